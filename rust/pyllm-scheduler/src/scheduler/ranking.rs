//! Ranks of sequences by the policy, and the order of running ones.

use crate::arena::Key;
use crate::policy::Work;
use crate::queue::{Lane, QueueKey};
use crate::sequence::{LiveRequest, Sequence};

use super::Scheduler;

pub(super) use crate::policy::ordered;

/// Time in seconds until the next token is due for a request without a target.
const DEFAULT_TARGET: f64 = 10.0;
const DEFAULT_WEIGHT: u32 = 1;

impl Scheduler {
    /// The key in the queue that a sequence would get now.
    pub(super) fn queue_key(&self, key: Key<Sequence>) -> QueueKey {
        let sequence = &self.sequences[key];
        let live = &self.requests[sequence.request];
        let rank = self.policy.rank(&self.work(sequence, live));
        QueueKey { rank, serial: live.serial, sample: sequence.sample }
    }

    /// The lane for a request of this tenant.
    pub(super) fn open_lane(&mut self, tenant: &str) -> Key<Lane<Sequence>> {
        let lane = if self.policy.shares_by_tenant() { tenant } else { "" };
        self.queue.open(lane, self.weight(lane))
    }

    pub(super) fn weight(&self, tenant: &str) -> u32 {
        self.config.tenant_weights.get(tenant).copied().unwrap_or(DEFAULT_WEIGHT)
    }

    /// Inserts a sequence into `running` by its rank.
    pub(super) fn insert_running(&mut self, key: Key<Sequence>) {
        let queue_key = self.sequences[key].queue_key;
        let place = self.running.partition_point(|&running| self.sequences[running].queue_key < queue_key);
        self.running.insert(place, key);
    }

    /// Sorts `running` by the policy, if ranks change as sequences run.
    pub(super) fn order_running(&mut self) {
        if !self.running_order_is_stale() {
            return;
        }
        let mut reordered = std::mem::take(&mut self.reordered);
        reordered.clear();
        let (mut last, mut is_sorted) = (None, true);
        for &key in &self.running {
            let queue_key = self.running_key(key).expect("the policy ranks what runs");
            self.sequences[key].queue_key = queue_key;
            is_sorted &= last < Some(queue_key);
            last = Some(queue_key);
        }
        if !is_sorted {
            reordered.extend(self.running.iter().map(|&key| (self.sequences[key].queue_key, key)));
            reordered.sort_unstable_by_key(|&(queue_key, _)| queue_key);
            self.running.clear();
            self.running.extend(reordered.iter().map(|&(_, key)| key));
        }
        self.reordered = reordered;
    }

    /// Whether `running` must be sorted by `order_running` first.
    pub(super) fn running_order_is_stale(&self) -> bool {
        self.running.first().is_some_and(|&first| self.running_key(first).is_some())
    }

    fn running_key(&self, key: Key<Sequence>) -> Option<QueueKey> {
        let sequence = &self.sequences[key];
        let live = &self.requests[sequence.request];
        let rank = self.policy.running_rank(&self.work(sequence, live))?;
        Some(QueueKey { rank, ..sequence.queue_key })
    }

    fn work(&self, sequence: &Sequence, live: &LiveRequest) -> Work {
        Work {
            arrival: live.request.arrival,
            priority: live.request.priority,
            policy_key: live.request.policy_key,
            remaining: sequence.remaining(live),
            due: self.due(sequence, live, live.request.arrival),
            running_due: self.due(sequence, live, sequence.last_token_at),
            service: sequence.service,
            tenant_service: self.queue.service(live.lane),
        }
    }

    /// Time at which its next token is due; without a target, some time after `since`.
    fn due(&self, sequence: &Sequence, live: &LiveRequest, since: f64) -> f64 {
        let request = &live.request;
        let before = self.times.prefill_seconds(sequence.num_uncomputed());
        let target = match sequence.output[..] {
            [] => request.ttft_target.map(|target| request.arrival + target),
            _ => request.tpot_target.map(|target| sequence.last_token_at + target),
        };
        target.map_or(since + DEFAULT_TARGET, |due| due - before)
    }
}
