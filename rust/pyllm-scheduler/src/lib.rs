//! The scheduler of pyllm: decides which tokens every step computes, and in which blocks of the KV cache.
//!
//! ```
//! use pyllm_scheduler::{ClientId, Config, Request, RequestId, Scheduler};
//!
//! let mut scheduler = Scheduler::new(Config {
//!     block_size: 16,
//!     num_blocks: 64,
//!     max_num_seqs: 8,
//!     max_num_batched_tokens: 256,
//!     max_model_len: 512,
//!     vocab_size: 1000,
//!     ..Config::default()
//! })?;
//! let (client, id) = (ClientId(0), RequestId(1));
//! scheduler.add(Request { client, id, prompt: vec![1, 2, 3], n: 1, max_tokens: 1, ..Request::default() })?;
//!
//! let plan = scheduler.schedule(0.0)?.expect("a request waits");
//! assert_eq!((plan.num_tokens(), plan.num_rows()), (3, 1));
//! scheduler.commit(plan.step, &[0, 1], &[42], 0.0, None, None)?; // the worker computed the plan and sampled token 42
//!
//! let deltas = scheduler.take_deltas(client).expect("there are deltas");
//! assert_eq!((&deltas.requests[..], &deltas.tokens[..]), (&[1][..], &[42][..]));
//! # Ok::<(), pyllm_scheduler::Error>(())
//! ```
//!
//! It has no clock, no randomness and no I/O: `schedule` and `commit` depend only on the inputs so far, so a recording
//! of the inputs (`start_recording`, `replay`) gives the same decisions. Its rules:
//!
//! - A **sequence** is one sample of a request. It waits, runs in a slot, is held, or loads. There are no phases: each
//!   step computes tokens that are known but not computed, under one token budget for all sequences.
//! - The **policy** ranks sequences, both queued and running. Running streams get their next token first, then prompts
//!   their next chunk, then the queue is admitted. If blocks run out, or a higher class waits, the last sequence in the
//!   order is preempted: swapped to the host or recomputed, whichever costs less.
//! - The samples of a fresh request share one prefill. When it is committed they fork: a fork shares all blocks, and a
//!   sample copies a shared block before it writes to it.
//! - The beams of a **beam search** are sequences that fork at every token. A beam with known candidates waits for its
//!   siblings; then the best continue. At the end the best completed beams become the request's samples.
//! - Several steps may be in flight. A sequence whose last token is not known yet is planned with token -1; rows that
//!   turn out to be needless are dropped at commit.
//! - In a **pipeline** of several stages no sequence is planned while its last token is in flight, and each of the
//!   steps in flight takes its share of the running sequences.
//! - A row may verify **drafts**: it samples after each, and accepts those that match. A caller proposes them, or a
//!   sequence that runs alone finds them in its own text.
//! - The worker may choose the tokens of a **stateful** request by all tokens before. It gets them when a slot is
//!   initialised. A row of such a request may yield no token, and is planned again, or more than planned, and those are
//!   computed next.
//! - A **pooling** request asks for its prompt's embedding. It ends with the one row in which others sample their first
//!   token.
//! - Full blocks are kept by the hash of all they depend on, and later sequences find them again, on the device or on
//!   the host.
//! - Layers may keep a **state** of all tokens before instead. A row reads one and writes one; those at the ends of some
//!   blocks stay as checkpoints, and a prefix is found again up to one.
//! - A **placement** chooses between several schedulers for each request, by their reported work and prefix caches. It
//!   has no references to them.
//! - Each sequence without tokens in a step has one reason (`explain`).
//! - A refused call has changed nothing, and no call panics.

mod ids;
mod config;
mod error;
mod request;
mod scheduler;
mod table;
mod kv;
mod planner;
mod plan;
mod steps;
mod commit;
mod observer;
mod output;
mod policy;
mod recorder;
mod replay;
mod placement;

mod arena;
mod block_hash;
mod kv_layout;
mod estimates;

pub use block_hash::BlockHash;
pub use config::{Config, KvGroup, Pause, PolicyName, PrefixHash};
pub use error::{Error, Result};
pub use estimates::histogram::Histogram;
pub use ids::{BlockId, ClientId, HostBlockId, LoadId, RequestId, SaveId, Slot, StateId, StepId};
pub use kv::cache::event_batch::{BatchFormat, EventBatch};
pub use kv::cache::events::{Events, KvEvent, Snapshot, Tier};
pub use kv::cache::fragmentation::{Fragmentation, TierFragmentation};
pub use kv::cache::host_block::HostBlock;
pub use kv::cache::request_hasher::RequestHasher;
pub use kv::cache::saves::Save;
pub use kv::loads::Load;
pub use observer::explain::{Decision, Explanation, Reason};
pub use observer::load_report::LoadReport;
pub use observer::reports::{BlockOwners, RequestReport};
pub use observer::stats::{Stats, TenantService};
pub use output::deltas::DeltaColumns;
pub use output::embeddings::Embeddings;
pub use output::logprobs::{LogprobEntries, Logprobs};
pub use output::start_times::{StartTime, StartTimes};
pub use placement::{NewRequest, Placed, Placement, PlacementReplay};
pub use plan::{ALIGNMENT, Plan, SECTIONS, SWAP_NAME_SIZE};
pub use planner::philox::uniform;
pub use recorder::Input;
pub use replay::{Replay, replay};
pub use request::{Finish, Output, Pooling, Request, Retention};
pub use scheduler::Scheduler;
