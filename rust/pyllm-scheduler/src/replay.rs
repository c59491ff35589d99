//! Replay of a recording: every call is made again on a new scheduler. The same version makes the same decisions, which
//! the hash in each entry checks.

use crate::config::Config;
use crate::error::Result;
use crate::observer::stats::Stats;
use crate::recorder::{Entries, Input, MAGIC};
use crate::scheduler::Scheduler;

/// The result of a replay.
#[derive(Clone, Debug, PartialEq)]
#[expect(missing_docs, reason = "the names say it")]
pub struct Replay {
    pub num_entries: u64,
    /// Planned steps.
    pub num_steps: u64,
    /// The hash of all decisions.
    pub hash: u64,
    /// Whether the recording ends in the middle of an entry, as after a crash.
    pub is_truncated: bool,
    /// The scheduler's figures at the end.
    pub stats: Stats,
}

/// Repeats all calls of a recording on a new scheduler, and compares its decisions after each.
///
/// Errors: `Replay` with the first entry that cannot be decoded, is refused, or decides differently.
pub fn replay(recording: &[u8]) -> Result<Replay> {
    let (config, mut entries) = Entries::open::<Config>(MAGIC, recording)?;
    let mut scheduler = Scheduler::new(config)?;
    scheduler.start_recording()?;
    entries.replay(|input| {
        apply(&mut scheduler, input)?;
        scheduler.take_recording();
        // Taking deltas does not change decisions; it keeps their columns small.
        for client in scheduler.pending_clients().to_vec() {
            scheduler.take_deltas(client);
        }
        Ok(scheduler.decisions_hash().unwrap_or_default())
    })?;
    let stats = scheduler.stats();
    Ok(Replay {
        num_entries: entries.num_read(),
        num_steps: stats.num_steps,
        hash: scheduler.decisions_hash().unwrap_or_default(),
        is_truncated: entries.is_truncated(),
        stats,
    })
}

fn apply(scheduler: &mut Scheduler, input: Input) -> Result<()> {
    match input {
        Input::Add(request) => scheduler.add(*request)?,
        Input::Abort { client, request, sample } => drop(scheduler.abort(client, request, sample)),
        Input::Hold { client, request, holder } => scheduler.hold(client, request, &holder)?,
        Input::Release { client, request, holder } => scheduler.release(client, request, &holder)?,
        Input::Isolate { client, request } => scheduler.isolate(client, request)?,
        Input::DropClient { client } => scheduler.drop_client(client),
        Input::Schedule { now } => drop(scheduler.schedule(now)?),
        Input::Expire { now } => scheduler.expire(now)?,
        Input::Commit { step, starts, tokens, seconds, logprobs } => {
            scheduler.commit(step, &starts, &tokens, seconds, logprobs.as_ref(), None)?;
        }
        Input::LoseDevice => scheduler.lose_device(),
        Input::RestoreHostBlocks { blocks } => scheduler.restore_host_blocks(blocks)?,
        Input::Propose { client, request, sample, drafts } => scheduler.propose(client, request, sample, &drafts)?,
        Input::OfferLoad { client, request, num_tokens, asynchronous } => {
            scheduler.offer_load(client, request, num_tokens, asynchronous)?;
        }
        Input::FinishLoad { load, num_tokens } => scheduler.finish_load(load, num_tokens)?,
        Input::TakeSaves => drop(scheduler.take_saves()),
        Input::FinishSave { save } => scheduler.finish_save(save)?,
        Input::Reconfigure(config) => scheduler.reconfigure(*config)?,
        Input::ResetPrefixCache => scheduler.reset_prefix_cache(),
        Input::Pin { name, of } => drop(scheduler.pin(name, &of)?),
        Input::Unpin { name } => drop(scheduler.unpin(name)),
    }
    Ok(())
}
