//! Recordings: every input that a scheduler has taken, and a running hash of its decisions. `replay.rs` reads them.
//! Does no I/O: it makes bytes.

use serde::{Deserialize, Serialize};

use crate::config::Config;
use crate::ids::{ClientId, LoadId, RequestId, StepId};
use crate::output::logprobs::Logprobs;
use crate::plan::Plan;
use crate::request::{Finish, Request};

/// What a recording begins with. The number grows when old recordings can no longer be read.
pub(crate) const MAGIC: &[u8] = b"pyllm scheduler recording 10\n";

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
    OfferLoad { client: ClientId, request: RequestId, num_tokens: u32, asynchronous: bool },
    FinishLoad { load: LoadId, num_tokens: u32 },
    Reconfigure(Box<Config>),
    ResetPrefixCache,
    Pin { name: u64, of: Box<Request> },
    Unpin { name: u64 },
}

/// An input, and the hash of all decisions up to and with it.
#[derive(Serialize, Deserialize)]
pub(crate) struct Entry {
    pub(crate) input: Input,
    pub(crate) hash: u64,
}

/// Keeps the log of a scheduler until it is taken.
pub(crate) struct Recorder {
    log: Vec<u8>,
    hasher: blake3::Hasher,
    hash: u64,
}

impl Recorder {
    pub(crate) fn new(config: &Config) -> Self {
        let mut log = MAGIC.to_vec();
        append(&mut log, config);
        Self { log, hasher: blake3::Hasher::new(), hash: 0 }
    }

    /// What was recorded since the last call.
    pub(crate) fn take(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.log)
    }

    /// The hash of all decisions so far.
    pub(crate) fn hash(&self) -> u64 {
        self.hash
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

/// A value after its length, as four bytes.
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
