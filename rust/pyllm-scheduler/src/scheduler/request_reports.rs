//! Reports on requests, live and recently ended: owners of blocks, start times, and times in the queue and in prefill.
//! Takes no part in decisions.

use std::collections::BTreeMap;
use std::mem::{replace, take};

use crate::arena::Key;
use crate::ids::{BlockId, ClientId, RequestId};
use crate::output::start_times::StartTime;
use crate::request::Finish;
use crate::sequence::{LiveRequest, Sample};

use super::{Explanation, Scheduler};

const MAX_ENDED: usize = 1000;

/// A live or ended request.
#[derive(Clone, Debug, PartialEq)]
#[expect(missing_docs, reason = "the names say it; times are of `Scheduler::schedule`'s clock")]
pub struct RequestReport {
    pub client: ClientId,
    pub id: RequestId,
    pub name: String,
    pub tenant: String,
    pub priority: i32,
    pub num_samples: u32,
    pub num_prompt_tokens: u32,
    /// Output tokens of all samples.
    pub num_output_tokens: u32,
    /// Prompt tokens that were in the prefix cache at its first admission.
    pub num_cached_tokens: u32,
    /// Blocks on the device, shared ones included.
    pub num_blocks: u32,
    pub num_preemptions: u32,
    pub arrival: f64,
    /// Time of the first step with tokens of the request.
    pub scheduled_at: Option<f64>,
    /// Time at which it ended, and the finish reason of its last sample.
    pub ended: Option<(f64, Finish)>,
    /// The state of each sample; empty once it has ended.
    pub samples: Vec<Explanation>,
}

/// Numbers of device blocks by owner. They add up to all blocks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BlockOwners {
    /// Blocks in use by requests, by the tenant's name.
    pub tenants: BTreeMap<String, u32>,
    /// Blocks kept by pins only.
    pub pinned: u32,
    /// Blocks of copies in flight, and of loads and saves.
    pub in_transit: u32,
    /// Free blocks, with or without known contents.
    pub free: u32,
}

impl Scheduler {
    /// The live requests, in order of arrival, and the last 1,000 that have ended, latest first: at most `limit` of
    /// them, and only those of a `name` if one is given.
    pub fn requests(&self, limit: usize, name: Option<&str>) -> Vec<RequestReport> {
        let is_wanted = |of: &str| name.is_none_or(|name| name == of);
        let mut live: Vec<_> =
            self.requests.iter().map(|(_, live)| live).filter(|live| is_wanted(&live.request.name)).collect();
        live.sort_unstable_by_key(|live| live.serial);
        let ended = self.ended.iter().rev().filter(|report| is_wanted(&report.name)).cloned();
        live.into_iter().map(|live| self.report(live)).chain(ended).take(limit).collect()
    }

    /// The requests that have ended since the last call, oldest first; at most the last 1,000.
    pub fn take_ended(&mut self) -> Vec<RequestReport> {
        let num_taken = self.ended.len() - take(&mut self.num_ended_untaken);
        self.ended.range(num_taken..).cloned().collect()
    }

    /// The device blocks by owner. Takes time proportional to the blocks in use.
    pub fn block_owners(&self) -> BlockOwners {
        let mut owners = BlockOwners { free: self.cache.num_free(), ..BlockOwners::default() };
        let mut seen = vec![false; self.config.num_blocks as usize];
        for (_, live) in self.requests.iter() {
            let blocks = super::live_sequences(live).into_iter().flat_map(|key| &self.sequences[key].chains);
            let blocks = blocks.flat_map(|chain| &chain.blocks);
            let num_own = blocks.filter(|block| !replace(&mut seen[block.0 as usize], true)).count();
            if num_own > 0 {
                *owners.tenants.entry(live.request.tenant.clone()).or_default() += num_own as u32;
            }
        }
        for block in self.cache.free_blocks() {
            seen[block.0 as usize] = true;
        }
        for (block, _) in seen.iter().enumerate().filter(|(_, seen)| !**seen) {
            if self.cache.pinned_references(BlockId(block as u32)) > 0 {
                owners.pinned += 1;
            } else {
                owners.in_transit += 1;
            }
        }
        owners
    }

    /// Moves the texts of an ended request into its report.
    pub(super) fn keep_report(&mut self, mut live: LiveRequest, finish: Finish) {
        if self.ended.len() == MAX_ENDED {
            self.ended.pop_front();
        }
        self.counters.num_ended_preemptions += u64::from(live.num_preemptions);
        self.counters.request_preemptions.add(live.num_preemptions.into());
        let ended = Some((self.now.max(live.request.arrival), finish));
        let (name, tenant) = (take(&mut live.request.name), take(&mut live.request.tenant));
        self.ended.push_back(RequestReport { name, tenant, ended, ..RequestReport::of_ended_samples(&live) });
        self.num_ended_untaken = MAX_ENDED.min(self.num_ended_untaken + 1);
    }

    /// Notes the time if this is the first step with a part of the request.
    pub(super) fn note_scheduled(&mut self, key: Key<LiveRequest>) {
        self.requests[key].scheduled_at.get_or_insert(self.now);
    }

    /// Notes the end of a step planned at `planned_at`. It ran from then, or from the end of the step before, for
    /// `seconds`.
    pub(super) fn note_committed(&mut self, planned_at: f64, seconds: f64) {
        let seconds = if seconds.is_finite() { seconds.max(0.0) } else { 0.0 };
        self.committed_at = self.now.max(self.committed_at.max(planned_at) + seconds);
    }

    /// Adds start times to the last pushed row if it is the first output of this request. A resumed request has sent
    /// them before, from its first core.
    pub(super) fn tell_start(&mut self, key: Key<LiveRequest>) {
        let live = &mut self.requests[key];
        if replace(&mut live.has_output, true) {
            return;
        }
        let Some(scheduled_at) = live.scheduled_at else { return };
        let queue = (scheduled_at - live.request.arrival).max(0.0) as f32;
        let prefill = (self.committed_at - scheduled_at).max(0.0) as f32;
        self.outbox.tell_start(live.client, StartTime { queue, prefill });
    }

    fn report(&self, live: &LiveRequest) -> RequestReport {
        let mut report = RequestReport::of_ended_samples(live);
        for (index, &sample) in live.samples.iter().enumerate() {
            report.samples.push(self.explain_sample(live, index as u32, sample));
            if let Sample::Live(key) = sample {
                let sequence = &self.sequences[key];
                report.num_output_tokens += sequence.output.len() as u32;
                report.num_cached_tokens = report.num_cached_tokens.max(sequence.cached_tokens.unwrap_or(0));
                report.num_blocks += sequence.num_blocks();
            }
        }
        report
    }
}

impl RequestReport {
    /// A report without the data of live sequences.
    fn of_ended_samples(live: &LiveRequest) -> Self {
        let request = &live.request;
        Self {
            client: request.client,
            id: request.id,
            name: request.name.clone(),
            tenant: request.tenant.clone(),
            priority: request.priority,
            num_samples: request.n,
            num_prompt_tokens: request.prompt.len() as u32,
            num_output_tokens: live.ended.num_output_tokens,
            num_cached_tokens: live.ended.num_cached_tokens,
            num_blocks: 0,
            num_preemptions: live.num_preemptions,
            arrival: request.arrival,
            scheduled_at: live.scheduled_at,
            ended: None,
            samples: Vec::new(),
        }
    }
}
