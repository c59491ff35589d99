//! The reasons for which a call is refused. A refused call has changed nothing.

use std::fmt;

use crate::ids::{ClientId, LoadId, RequestId, SaveId, StepId};

/// `std::result::Result` with this crate's error.
pub type Result<T> = std::result::Result<T, Error>;

/// The reason of a refusal. `Display` gives the numbers and what to do next.
#[derive(Clone, Debug, PartialEq)]
pub enum Error {
    /// A limit in `Config` is out of its range.
    Config(String),
    /// A field of a new request is not valid in any state of the scheduler.
    Request(String),
    /// The client already has a live request with this id.
    DuplicateRequest {
        /// The client.
        client: ClientId,
        /// The id it used twice.
        request: RequestId,
    },
    /// The prompt leaves no room for one output token, or is too long even without output.
    PromptTooLong {
        /// Tokens in the prompt.
        num_tokens: usize,
        /// The limit for prompt and output together.
        max_model_len: u32,
    },
    /// The request needs more blocks than there are, even alone.
    NeverFits {
        /// Tokens in the prompt.
        num_prompt_tokens: u32,
        /// Requested output tokens.
        max_tokens: u32,
        /// Beams of a beam search; 0: no beam search.
        beam_width: u32,
        /// Tokens whose keys and values must be in the cache at once.
        num_tokens: u32,
        /// Blocks needed for them.
        needed: u32,
        /// Blocks in the KV cache.
        num_blocks: u32,
        /// Blocks of these that pins may keep from the request.
        max_pinned_blocks: u32,
        /// Tokens per block.
        block_size: u32,
    },
    /// No live request has this id.
    UnknownRequest {
        /// The client.
        client: ClientId,
        /// The id.
        request: RequestId,
    },
    /// The holder already holds the request.
    AlreadyHeld {
        /// The request.
        request: RequestId,
        /// The holder.
        holder: String,
    },
    /// The request is already isolated.
    AlreadyIsolated {
        /// Its client.
        client: ClientId,
        /// The request.
        request: RequestId,
    },
    /// The holder does not hold the request.
    NotHeld {
        /// The request.
        request: RequestId,
        /// The holder.
        holder: String,
    },
    /// The sample is not live, or not in a state that allows the call.
    Sample {
        /// The request.
        request: RequestId,
        /// The sample.
        sample: u32,
        /// The reason.
        problem: &'static str,
    },
    /// The request runs or loads already, so no load can be offered to it.
    TooLate {
        /// The request.
        request: RequestId,
    },
    /// No load with this id is under way.
    UnknownLoad {
        /// The load.
        load: LoadId,
    },
    /// No save with this id is under way.
    UnknownSave {
        /// The save.
        save: SaveId,
    },
    /// A host block that does not exist, is in use, or has known contents.
    HostBlock {
        /// The problem, with the block.
        problem: String,
    },
    /// A pin with this name exists already.
    DuplicatePin {
        /// The pin's name.
        name: u64,
    },
    /// The pins would hold more blocks than they may.
    PinQuota {
        /// Requested blocks.
        asked: u32,
        /// Blocks that pins hold already.
        pinned: u32,
        /// Existing pins.
        num_pins: u32,
        /// `Config::max_pinned_blocks`.
        quota: u32,
    },
    /// One more pin would keep a state of those that sequences need.
    PinnedStates {
        /// Existing pins.
        num_pins: u32,
        /// Pins that may keep a state.
        quota: u32,
    },
    /// The call needs a setting that is off.
    Disabled {
        /// The call.
        call: &'static str,
        /// The setting.
        setting: &'static str,
    },
    /// The call is only allowed before every other.
    NotNew {
        /// The call.
        call: &'static str,
    },
    /// The setting cannot change while requests run.
    Fixed {
        /// The setting.
        setting: &'static str,
    },
    /// A call of a placement that names an unknown core or request, or cannot be decoded.
    Placement(String),
    /// A recording that cannot be decoded, or does not replay to the same decisions.
    Replay {
        /// Entries before the faulty one.
        entry: u64,
        /// The problem.
        problem: String,
    },
    /// The time is before that of the last call, or not a number.
    Time {
        /// The given time.
        now: f64,
        /// The time of the last call.
        previous: f64,
    },
    /// The step was never planned, is committed already, or was lost with the device.
    UnknownStep {
        /// The step.
        step: StepId,
    },
    /// An older step is still in flight.
    OutOfOrder {
        /// The given step.
        step: StepId,
        /// The step that is due.
        oldest: StepId,
    },
    /// The sampled tokens do not have the shape that the plan asked for.
    Sampled {
        /// The step.
        step: StepId,
        /// The problem.
        problem: String,
    },
}

impl fmt::Display for Error {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Config(problem) | Self::Request(problem) | Self::Placement(problem) => formatter.write_str(problem),
            Self::DuplicateRequest { client, request } => write!(
                formatter,
                "request {request} of client {client} exists already; give every request an id of its own"
            ),
            Self::PromptTooLong { num_tokens, max_model_len } => write!(
                formatter,
                "the prompt has {num_tokens} tokens, and max_model_len is {max_model_len}, which must hold any output, \
                 too; shorten the prompt"
            ),
            Self::NeverFits {
                num_prompt_tokens,
                max_tokens,
                beam_width,
                num_tokens,
                needed,
                num_blocks,
                max_pinned_blocks,
                block_size,
            } => {
                let (with, each, lower) = match beam_width {
                    0 => (String::new(), "", "max_tokens"),
                    width => {
                        (format!(" and beam_width {width}"), " in each beam, together", "max_tokens or beam_width")
                    }
                };
                write!(
                    formatter,
                    "a prompt of {num_prompt_tokens} tokens with max_tokens {max_tokens}{with} holds {num_tokens} \
                     tokens{each} in {needed} blocks of {block_size}, and the KV cache has {num_blocks} blocks \
                     ({} tokens)",
                    num_blocks * block_size
                )?;
                if *max_pinned_blocks > 0 {
                    write!(formatter, ", of which max_pinned_blocks {max_pinned_blocks} are for pins")?;
                }
                write!(formatter, "; shorten the prompt, lower {lower}, or enlarge the KV cache")
            }
            Self::UnknownRequest { client, request } => {
                write!(formatter, "client {client} has no live request {request}; it has finished or was never added")
            }
            Self::AlreadyHeld { request, holder } => {
                write!(formatter, "request {request} is held by {holder} already; release it first")
            }
            Self::AlreadyIsolated { client, request } => {
                write!(formatter, "request {request} of client {client} is isolated already; wait until it is not")
            }
            Self::NotHeld { request, holder } => {
                write!(formatter, "request {request} is not held by {holder}; hold it first")
            }
            Self::Sample { request, sample, problem } => {
                write!(formatter, "sample {sample} of request {request} {problem}")
            }
            Self::TooLate { request } => {
                write!(formatter, "request {request} runs or loads; offer what can be loaded while it waits")
            }
            Self::UnknownLoad { load } => {
                write!(formatter, "load {load} is not under way: it was finished, or lost with the device")
            }
            Self::UnknownSave { save } => {
                write!(formatter, "save {save} is not under way: it was finished, or lost with the device")
            }
            Self::HostBlock { problem } => write!(
                formatter,
                "{problem}; restore what host blocks hold of a new scheduler, or right after lose_device"
            ),
            Self::DuplicatePin { name } => write!(formatter, "pin {name} exists; unpin it first"),
            Self::PinQuota { asked, pinned, num_pins, quota } => write!(
                formatter,
                "one more pin, of {asked} more blocks, beside {num_pins} pins of {pinned} blocks is more than \
                 max_pinned_blocks {quota} allows of either; unpin something, or pin a shorter prefix"
            ),
            Self::PinnedStates { num_pins, quota } => write!(
                formatter,
                "one more pin beside {num_pins} would keep a state, and {quota} may; unpin something, or start with room \
                 for more states"
            ),
            Self::Disabled { call, setting } => write!(formatter, "{call} needs {setting}, which is off; turn it on"),
            Self::NotNew { call } => write!(formatter, "{call} comes before every other call; make a new scheduler"),
            Self::Fixed { setting } => {
                write!(formatter, "{setting} cannot change while the engine runs; start another with it")
            }
            Self::Replay { entry, problem } => write!(formatter, "entry {entry} of the recording: {problem}"),
            Self::Time { now, previous } => {
                write!(formatter, "now is {now} after {previous}; give seconds of a clock that never goes back")
            }
            Self::UnknownStep { step } => write!(
                formatter,
                "step {step} is not in flight: never planned, committed already, or lost with the device; drop its result"
            ),
            Self::OutOfOrder { step, oldest } => {
                write!(formatter, "step {step} was committed before step {oldest}; commit steps in the order planned")
            }
            Self::Sampled { step, problem } => write!(formatter, "the result of step {step} does not fit: {problem}"),
        }
    }
}

impl std::error::Error for Error {}
