//! Recordings: every input that a scheduler has taken, and a running hash of what it decided. A recording replayed by
//! the same version gives the same decisions, which the hash in each entry checks. Does no I/O: it makes and reads bytes.

use serde::{Deserialize, Serialize};

use crate::config::Config;
use crate::error::{Error, Result};
use crate::ids::{ClientId, LoadId, RequestId, StepId};
use crate::logprobs::Logprobs;
use crate::plan::Plan;
use crate::request::{Finish, Request};
use crate::scheduler::{Scheduler, Stats};

/// What a recording begins with. The number grows when old recordings can no longer be read.
const MAGIC: &[u8] = b"pyllm scheduler recording 5\n";

/// One call that changed a scheduler. Of log-probabilities those are kept by which beams go on, and no embeddings.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "each is the method of its name, with its arguments")]
pub enum Input {
    Add(Box<Request>),
    Abort { client: ClientId, request: RequestId, sample: Option<u32> },
    Hold { client: ClientId, request: RequestId, reason: String },
    Release { client: ClientId, request: RequestId },
    Isolate { client: ClientId, request: RequestId },
    DropClient { client: ClientId },
    Schedule { now: f64 },
    Expire { now: f64 },
    Commit { step: StepId, starts: Vec<i32>, tokens: Vec<i32>, seconds: f64, logprobs: Option<Logprobs> },
    LoseDevice,
    Propose { client: ClientId, request: RequestId, sample: u32, drafts: Vec<i32> },
    Fork { client: ClientId, request: RequestId, sample: u32, last_token: i32 },
    OfferLoad { client: ClientId, request: RequestId, num_tokens: u32, asynchronous: bool },
    FinishLoad { load: LoadId, num_tokens: u32 },
    Reconfigure(Box<Config>),
    ResetPrefixCache,
    Pin { name: u64, of: Box<Request> },
    Unpin { name: u64 },
}

/// An input, and the hash of all decisions up to and with it.
#[derive(Serialize, Deserialize)]
struct Entry {
    input: Input,
    hash: u64,
}

/// How a replay went.
#[derive(Clone, Debug, PartialEq)]
#[expect(missing_docs, reason = "the names say it")]
pub struct Replay {
    pub num_entries: u64,
    /// Steps that were planned.
    pub num_steps: u64,
    /// The hash of all decisions.
    pub hash: u64,
    /// Whether the recording ends in the middle of an entry, as after a crash.
    pub is_truncated: bool,
    /// The scheduler's figures at the end.
    pub stats: Stats,
}

/// Keeps the log of a scheduler until it is taken.
pub(crate) struct Recorder {
    log: Vec<u8>,
    hasher: blake3::Hasher,
    hash: u64,
}

impl Recorder {
    fn new(config: &Config) -> Self {
        let mut log = MAGIC.to_vec();
        append(&mut log, config);
        Self { log, hasher: blake3::Hasher::new(), hash: 0 }
    }

    pub(crate) fn record(&mut self, input: &Input) {
        self.hash = first_word(&self.hasher);
        append(&mut self.log, &(input, self.hash));
    }

    /// A sample has ended, with so many output tokens.
    pub(crate) fn record_finish(&mut self, request: RequestId, sample: u32, finish: Finish, num_tokens: usize) {
        self.hasher.update(&request.0.to_le_bytes());
        self.hasher.update(&sample.to_le_bytes());
        self.hasher.update(&[finish as u8]);
        self.hasher.update(&(num_tokens as u64).to_le_bytes());
    }

    pub(crate) fn record_plan(&mut self, input: &Input, plan: Option<&Plan>) {
        if let Some(plan) = plan {
            self.hasher.update(&plan.step.0.to_le_bytes());
            for count in plan.counts {
                self.hasher.update(&count.to_le_bytes());
            }
            self.hasher.update(&plan.buffer);
        }
        self.record(input);
    }
}

impl Scheduler {
    /// Keeps every input from now on, for `take_recording`.
    ///
    /// Errors: `NotNew` if something happened before, which the recording would lack.
    pub fn start_recording(&mut self) -> Result<()> {
        if !self.is_new() {
            return Err(Error::NotNew { call: "start_recording" });
        }
        self.set_recorder(Recorder::new(self.config()));
        Ok(())
    }

    /// What was recorded since the last call; the parts of a recording are read in one piece. Empty without recording.
    pub fn take_recording(&mut self) -> Vec<u8> {
        self.recorder_mut().map_or(Vec::new(), |recorder| std::mem::take(&mut recorder.log))
    }

    /// The hash of all decisions since recording began.
    pub fn decisions_hash(&mut self) -> Option<u64> {
        self.recorder_mut().map(|recorder| recorder.hash)
    }

    fn apply(&mut self, input: Input) -> Result<()> {
        match input {
            Input::Add(request) => self.add(*request)?,
            Input::Abort { client, request, sample } => drop(self.abort(client, request, sample)),
            Input::Hold { client, request, reason } => self.hold(client, request, &reason)?,
            Input::Release { client, request } => self.release(client, request)?,
            Input::Isolate { client, request } => self.isolate(client, request)?,
            Input::DropClient { client } => self.drop_client(client),
            Input::Schedule { now } => drop(self.schedule(now)?),
            Input::Expire { now } => self.expire(now)?,
            Input::Commit { step, starts, tokens, seconds, logprobs } => {
                self.commit(step, &starts, &tokens, seconds, logprobs.as_ref(), None)?;
            }
            Input::LoseDevice => self.lose_device(),
            Input::Propose { client, request, sample, drafts } => self.propose(client, request, sample, &drafts)?,
            Input::Fork { client, request, sample, last_token } => {
                self.fork(client, request, sample, last_token)?;
            }
            Input::OfferLoad { client, request, num_tokens, asynchronous } => {
                self.offer_load(client, request, num_tokens, asynchronous)?;
            }
            Input::FinishLoad { load, num_tokens } => self.finish_load(load, num_tokens)?,
            Input::Reconfigure(config) => self.reconfigure(*config)?,
            Input::ResetPrefixCache => self.reset_prefix_cache(),
            Input::Pin { name, of } => drop(self.pin(name, &of)?),
            Input::Unpin { name } => drop(self.unpin(name)),
        }
        Ok(())
    }
}

/// Makes all calls of a recording on a new scheduler, and checks after each that it decided the same.
///
/// Errors: `Replay` with the first entry that does not read, is refused, or decides something else.
pub fn replay(recording: &[u8]) -> Result<Replay> {
    let fault = |entry, problem: String| Error::Replay { entry, problem };
    let rest =
        recording.strip_prefix(MAGIC).ok_or_else(|| fault(0, "this is no recording of this version".to_owned()))?;
    let (bytes, mut rest) = split(rest).ok_or_else(|| fault(0, "it ends within its settings".to_owned()))?;
    let config = read::<Config>(bytes).ok_or_else(|| fault(0, "its settings do not read".to_owned()))?;
    let mut scheduler = Scheduler::new(config)?;
    scheduler.start_recording()?;
    let mut num_entries = 0;
    while let Some((bytes, after)) = split(rest) {
        rest = after;
        let entry = read::<Entry>(bytes).ok_or_else(|| fault(num_entries, "it does not read".to_owned()));
        let Entry { input, hash } = entry?;
        scheduler.apply(input).map_err(|error| fault(num_entries, error.to_string()))?;
        scheduler.take_recording();
        // The decisions are the same whoever takes the deltas; taking them keeps their columns small.
        for client in scheduler.pending_clients().to_vec() {
            scheduler.take_deltas(client);
        }
        let decided = scheduler.decisions_hash().unwrap_or_default();
        if decided != hash {
            return Err(fault(
                num_entries,
                format!("the decisions differ: hash {decided:016x} instead of {hash:016x}"),
            ));
        }
        num_entries += 1;
    }
    let stats = scheduler.stats();
    let hash = scheduler.decisions_hash().unwrap_or_default();
    Ok(Replay { num_entries, num_steps: stats.num_steps, hash, is_truncated: !rest.is_empty(), stats })
}

/// A value after its length, as four bytes.
fn append(log: &mut Vec<u8>, value: &impl Serialize) {
    let start = log.len();
    log.extend_from_slice(&[0; 4]);
    let bytes = postcard::to_allocvec(value).expect("what is recorded holds nothing that cannot be written");
    log.extend_from_slice(&bytes);
    let length = (log.len() - start - 4) as u32;
    log[start..start + 4].copy_from_slice(&length.to_le_bytes());
}

/// The bytes of the first value, and what follows it. None: the log ends before the value does.
fn split(log: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, rest) = log.split_first_chunk::<4>()?;
    rest.split_at_checked(u32::from_le_bytes(*length) as usize)
}

/// The value that these bytes are, all of them.
fn read<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Option<T> {
    let (value, rest) = postcard::take_from_bytes(bytes).ok()?;
    rest.is_empty().then_some(value)
}

fn first_word(hasher: &blake3::Hasher) -> u64 {
    let mut word = [0; 8];
    hasher.finalize_xof().fill(&mut word);
    u64::from_le_bytes(word)
}
