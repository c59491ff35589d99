//! Reports on requests, live and recently ended: owners of blocks, start times, and times in the queue and in prefill.
//! Takes no part in decisions.

use std::collections::{BTreeMap, VecDeque};
use std::mem::{replace, take};

use crate::ids::{BlockId, ClientId, RequestId};
use crate::kv::Kv;
use crate::observer::explain::{Explainer, Explanation};
use crate::request::Finish;
use crate::table::Table;
use crate::table::sequence::LiveRequest;

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

/// The last requests that have ended, oldest first.
#[derive(Default)]
pub(crate) struct EndedRequests {
    reports: VecDeque<RequestReport>,
    num_untaken: usize, // of these, those not yet given by `take`
}

impl EndedRequests {
    /// Moves the texts of an ended request into its report.
    pub(super) fn push(&mut self, mut live: LiveRequest, now: f64, finish: Finish) {
        if self.reports.len() == MAX_ENDED {
            self.reports.pop_front();
        }
        let ended = Some((now.max(live.request.arrival), finish));
        let (name, tenant) = (take(&mut live.request.name), take(&mut live.request.tenant));
        self.reports.push_back(RequestReport { name, tenant, ended, ..RequestReport::of_ended_samples(&live) });
        self.num_untaken = MAX_ENDED.min(self.num_untaken + 1);
    }

    /// The requests that have ended since the last call, oldest first.
    pub(crate) fn take(&mut self) -> Vec<RequestReport> {
        let num_taken = self.reports.len() - take(&mut self.num_untaken);
        self.reports.range(num_taken..).cloned().collect()
    }
}

impl Explainer<'_> {
    /// See `Scheduler::requests`.
    pub(crate) fn reports(&self, ended: &EndedRequests, limit: usize, name: Option<&str>) -> Vec<RequestReport> {
        let is_wanted = |of: &str| name.is_none_or(|name| name == of);
        let requests = self.table.requests().map(|(_, live)| live);
        let mut live: Vec<_> = requests.filter(|live| is_wanted(&live.request.name)).collect();
        live.sort_unstable_by_key(|live| live.serial);
        let ended = ended.reports.iter().rev().filter(|report| is_wanted(&report.name)).cloned();
        live.into_iter().map(|live| self.report(live)).chain(ended).take(limit).collect()
    }

    fn report(&self, live: &LiveRequest) -> RequestReport {
        let mut report = RequestReport { samples: self.explain(live), ..RequestReport::of_ended_samples(live) };
        for key in live.sequences() {
            let sequence = &self.table[key];
            report.num_output_tokens += sequence.output.len() as u32;
            report.num_cached_tokens = report.num_cached_tokens.max(sequence.cached_tokens.unwrap_or(0));
            report.num_blocks += sequence.num_blocks();
        }
        report
    }
}

/// See `Scheduler::block_owners`.
pub(crate) fn block_owners(table: &Table, kv: &Kv) -> BlockOwners {
    let cache = kv.cache();
    let mut owners = BlockOwners { free: cache.num_free(), ..BlockOwners::default() };
    let mut seen = vec![false; cache.num_blocks() as usize];
    for (_, live) in table.requests() {
        let blocks = live.sequences().into_iter().flat_map(|key| &table[key].chains);
        let blocks = blocks.flat_map(|chain| &chain.blocks);
        let num_own = blocks.filter(|block| !replace(&mut seen[block.0 as usize], true)).count();
        if num_own > 0 {
            *owners.tenants.entry(live.request.tenant.clone()).or_default() += num_own as u32;
        }
    }
    for block in cache.free_blocks() {
        seen[block.0 as usize] = true;
    }
    for (block, _) in seen.iter().enumerate().filter(|(_, seen)| !**seen) {
        if cache.pinned_references(BlockId(block as u32)) > 0 {
            owners.pinned += 1;
        } else {
            owners.in_transit += 1;
        }
    }
    owners
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
