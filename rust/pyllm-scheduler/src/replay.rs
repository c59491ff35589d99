//! A recording played back: every call is made again on a new scheduler. The same version makes the same decisions,
//! which the hash in each entry checks.

use serde::Deserialize;

use crate::config::Config;
use crate::error::{Error, Result};
use crate::recorder::{Entry, Input, MAGIC};
use crate::scheduler::{Scheduler, Stats};

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
        apply(&mut scheduler, input).map_err(|error| fault(num_entries, error.to_string()))?;
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

fn apply(scheduler: &mut Scheduler, input: Input) -> Result<()> {
    match input {
        Input::Add(request) => scheduler.add(*request)?,
        Input::Abort { client, request, sample } => drop(scheduler.abort(client, request, sample)),
        Input::Hold { client, request, reason } => scheduler.hold(client, request, &reason)?,
        Input::Release { client, request } => scheduler.release(client, request)?,
        Input::Isolate { client, request } => scheduler.isolate(client, request)?,
        Input::DropClient { client } => scheduler.drop_client(client),
        Input::Schedule { now } => drop(scheduler.schedule(now)?),
        Input::Expire { now } => scheduler.expire(now)?,
        Input::Commit { step, starts, tokens, seconds, logprobs } => {
            scheduler.commit(step, &starts, &tokens, seconds, logprobs.as_ref(), None)?;
        }
        Input::LoseDevice => scheduler.lose_device(),
        Input::Propose { client, request, sample, drafts } => scheduler.propose(client, request, sample, &drafts)?,
        Input::OfferLoad { client, request, num_tokens, asynchronous } => {
            scheduler.offer_load(client, request, num_tokens, asynchronous)?;
        }
        Input::FinishLoad { load, num_tokens } => scheduler.finish_load(load, num_tokens)?,
        Input::Reconfigure(config) => scheduler.reconfigure(*config)?,
        Input::ResetPrefixCache => scheduler.reset_prefix_cache(),
        Input::Pin { name, of } => drop(scheduler.pin(name, &of)?),
        Input::Unpin { name } => drop(scheduler.unpin(name)),
    }
    Ok(())
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
