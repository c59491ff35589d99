//! Recordings: every input of a scheduler or a placement, and a running hash of its decisions. `replay.rs` and
//! `placement/replay.rs` play them back. Does no I/O: it makes and reads bytes.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::config::Config;
use crate::error::{Error, Result};
use crate::ids::{ClientId, LoadId, RequestId, SaveId, StepId};
use crate::kv::cache::host_block::HostBlock;
use crate::output::logprobs::Logprobs;
use crate::plan::Plan;
use crate::request::{Finish, Request};

/// The first bytes of a recording. The number changes when old recordings can no longer be read.
pub(crate) const MAGIC: &[u8] = b"pyllm scheduler recording 17\n";

/// A call that changed a scheduler. It keeps only the log-probabilities that beam search needs, and no embeddings.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "each is the method of its name, with its arguments")]
pub enum Input {
    Add(Box<Request>),
    Abort { client: ClientId, request: RequestId, sample: Option<u32> },
    Hold { client: ClientId, request: RequestId, holder: String },
    Release { client: ClientId, request: RequestId, holder: String },
    Isolate { client: ClientId, request: RequestId },
    DropClient { client: ClientId },
    Schedule { now: f64 },
    Expire { now: f64 },
    Commit { step: StepId, starts: Vec<i32>, tokens: Vec<i32>, seconds: f64, logprobs: Option<Logprobs> },
    LoseDevice,
    RestoreHostBlocks { blocks: Vec<HostBlock> },
    Propose { client: ClientId, request: RequestId, sample: u32, drafts: Vec<i32> },
    OfferLoad { client: ClientId, request: RequestId, num_tokens: u32, asynchronous: bool },
    FinishLoad { load: LoadId, num_tokens: u32 },
    TakeSaves,
    FinishSave { save: SaveId },
    Reconfigure(Box<Config>),
    ResetPrefixCache,
    Pin { name: u64, of: Box<Request> },
    Unpin { name: u64 },
}

/// Keeps the log until it is taken: the first bytes, the settings, then each input with the hash of all decisions up to
/// and including it.
pub(crate) struct Recorder {
    log: Vec<u8>,
    hasher: blake3::Hasher,
    hash: u64,
}

impl Recorder {
    pub(crate) fn new(magic: &[u8], settings: &impl Serialize) -> Self {
        let mut log = magic.to_vec();
        append(&mut log, settings);
        Self { log, hasher: blake3::Hasher::new(), hash: 0 }
    }

    /// The recorded bytes since the last call.
    pub(crate) fn take(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.log)
    }

    /// The hash of all decisions so far.
    pub(crate) fn hash(&self) -> u64 {
        self.hash
    }

    /// Adds a part of a decision to the hash.
    pub(crate) fn decide(&mut self, bytes: &[u8]) {
        self.hasher.update(bytes);
    }

    pub(crate) fn record(&mut self, input: &impl Serialize) {
        self.hash = first_word(&self.hasher);
        append(&mut self.log, &(input, self.hash));
    }

    /// Adds the end of a sample to the hash, with its number of output tokens.
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

/// The entries of a recording, in their order.
pub(crate) struct Entries<'a> {
    rest: &'a [u8],
    num_read: u64,
}

impl<'a> Entries<'a> {
    /// The settings of a recording, and the rest of it.
    ///
    /// Errors: `Replay` if it is not a recording of this kind and version.
    pub(crate) fn open<S: DeserializeOwned>(magic: &[u8], recording: &'a [u8]) -> Result<(S, Self)> {
        let fault = |problem: &str| Error::Replay { entry: 0, problem: problem.to_owned() };
        let rest = recording.strip_prefix(magic).ok_or_else(|| fault("this is no recording of this version"))?;
        let (bytes, rest) = split(rest).ok_or_else(|| fault("it ends within its settings"))?;
        let settings = read(bytes).ok_or_else(|| fault("its settings cannot be decoded"))?;
        Ok((settings, Self { rest, num_read: 0 }))
    }

    /// Repeats each input. `apply` gives the hash of all decisions up to and including it.
    ///
    /// Errors: `Replay` with the first entry that cannot be decoded, is refused, or decides differently.
    pub(crate) fn replay<I: DeserializeOwned>(&mut self, mut apply: impl FnMut(I) -> Result<u64>) -> Result<()> {
        while let Some((bytes, after)) = split(self.rest) {
            let fault = |problem| Error::Replay { entry: self.num_read, problem };
            let (input, hash) = read::<(I, u64)>(bytes).ok_or_else(|| fault("it cannot be decoded".to_owned()))?;
            let decided = apply(input).map_err(|error| fault(error.to_string()))?;
            if decided != hash {
                return Err(fault(format!("the decisions differ: hash {decided:016x} instead of {hash:016x}")));
            }
            self.rest = after;
            self.num_read += 1;
        }
        Ok(())
    }

    pub(crate) fn num_read(&self) -> u64 {
        self.num_read
    }

    /// Whether the recording ends in the middle of an entry, as after a crash.
    pub(crate) fn is_truncated(&self) -> bool {
        !self.rest.is_empty()
    }
}

/// Appends a value after its length, as four bytes.
fn append(log: &mut Vec<u8>, value: &impl Serialize) {
    let start = log.len();
    log.extend_from_slice(&[0; 4]);
    let bytes = postcard::to_allocvec(value).expect("what is recorded holds nothing that cannot be written");
    log.extend_from_slice(&bytes);
    let length = (log.len() - start - 4) as u32;
    log[start..start + 4].copy_from_slice(&length.to_le_bytes());
}

fn first_word(hasher: &blake3::Hasher) -> u64 {
    let mut word = [0; 8];
    hasher.finalize_xof().fill(&mut word);
    u64::from_le_bytes(word)
}

/// The bytes of the first value, and the rest. None: the log ends before the value does.
fn split(log: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, rest) = log.split_first_chunk::<4>()?;
    rest.split_at_checked(u32::from_le_bytes(*length) as usize)
}

/// The value in these bytes, if it takes all of them.
fn read<T: DeserializeOwned>(bytes: &[u8]) -> Option<T> {
    let (value, rest) = postcard::take_from_bytes(bytes).ok()?;
    rest.is_empty().then_some(value)
}
