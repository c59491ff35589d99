//! The scheduler of pyllm: which tokens every step computes, in which blocks of the KV cache, for whom.
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
//! It has no clock, no randomness and no I/O: `schedule` and `commit` are functions of the inputs so far, so a
//! recording of the inputs (`start_recording`, `replay`) gives the same decisions. Its rules:
//!
//! - A **sequence** is one sample of a request. It waits, runs in a slot, is held, or loads. There are no phases: each
//!   step a sequence's computed tokens catch up with its known ones, under one budget of tokens for all.
//! - The **policy** ranks sequences; the queue and what runs are in its order. Streams get their next token first, then
//!   prompts their next chunk, then the queue is admitted. Where blocks run out, or something of a higher class waits, the
//!   last in the order gives up its own: to the host, or to be computed anew, whichever costs less.
//! - The samples of a fresh request share one prefill. When it is committed they fork: a fork shares all blocks, and
//!   whoever writes to a shared block first takes a copy.
//! - The beams of a **beam search** are sequences that fork at every token. One that knows what may follow it waits for
//!   its siblings; then the best go on. At the end the best that are complete become the request's samples.
//! - Several steps may be in flight. A sequence whose last token is on its way is planned with token -1; what turns out
//!   to be needless is dropped at commit.
//! - In a **pipeline** of several stages no row is planned behind one whose token is on its way, and each of the steps in
//!   flight takes its share of what runs.
//! - A row may verify **drafts**: it samples after each, and those that were sampled count. A caller proposes them, or
//!   a sequence that runs alone finds them in its own text.
//! - The worker may choose the tokens of a **stateful** request by all that came before. It is told them when a slot is
//!   initialised. A row of such a request may come back without a token, and its last one is planned again, or with more
//!   than were planned, and those that follow are computed next.
//! - A request that **pools** asks for its prompt's embedding. It has one row where others sample their first token,
//!   and ends with it.
//! - Full blocks are kept by the hash of all they depend on, and found again by every later sequence, on the device or
//!   on the host.
//! - A **placement** chooses between several such schedulers for each request, by what they tell of their work and their
//!   prefix caches. It knows none of them.
//! - Each sequence that got no tokens in a step has one reason (`explain`).
//! - A refused call has changed nothing, and no call panics.

mod ids;
mod config;
mod error;
mod request;
mod scheduler;
mod policy;
mod plan;
mod output;
mod recorder;
mod replay;
mod placement;

mod arena;
mod histogram;
mod sequence;
mod beam_search;
mod queue;
mod estimates;
mod kv_cache;
mod kv_layout;
mod philox;
mod prompt_lookup;

pub use config::{Config, KvGroup, PolicyName, PrefixHash};
pub use error::{Error, Result};
pub use histogram::Histogram;
pub use ids::{BlockId, ClientId, HostBlockId, LoadId, RequestId, SaveId, Slot, StepId};
pub use kv_cache::event_batch::{BatchFormat, EventBatch};
pub use kv_cache::events::{Events, KvEvent, Snapshot, Tier};
pub use kv_cache::fragmentation::{Fragmentation, TierFragmentation};
pub use kv_cache::hash::BlockHash;
pub use kv_cache::host_block::HostBlock;
pub use kv_cache::request_hasher::RequestHasher;
pub use kv_cache::saves::Save;
pub use output::deltas::DeltaColumns;
pub use output::embeddings::Embeddings;
pub use output::logprobs::{LogprobEntries, Logprobs};
pub use output::start_times::{StartTime, StartTimes};
pub use philox::uniform;
pub use placement::{NewRequest, Placed, Placement, PlacementReplay};
pub use plan::{ALIGNMENT, Plan, SECTIONS, SWAP_NAME_SIZE};
pub use recorder::Input;
pub use replay::{Replay, replay};
pub use request::{Finish, Output, Pooling, Request, Retention};
pub use scheduler::{
    BlockOwners, Decision, Explanation, Load, LoadReport, Reason, RequestReport, Scheduler, Stats, TenantService,
};
