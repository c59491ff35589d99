//! Ranks of sequences by the policy. Knows no order: the queue and the table keep those.

use crate::arena::Key;
use crate::config::Config;
use crate::estimates::Estimates;
use crate::policy::{Policy, Rank, Work, policy};
use crate::table::queue::{Lane, Queue, QueueKey};
use crate::table::sequence::{LiveRequest, Sequence};

/// Time in seconds until the next token is due for a request without a target.
const DEFAULT_TARGET: f64 = 10.0;
const DEFAULT_WEIGHT: u32 = 1;

pub(crate) struct Ranking {
    policy: Box<dyn Policy>,
}

impl Ranking {
    pub(crate) fn new(config: &Config) -> Self {
        Self { policy: policy(config.policy) }
    }

    /// The lane for one more request of this tenant.
    pub(crate) fn open_lane(&self, queue: &mut Queue<Sequence>, tenant: &str, config: &Config) -> Key<Lane<Sequence>> {
        let lane = if self.shares_by_tenant() { tenant } else { "" };
        queue.open(lane, weight(lane, config))
    }

    /// Whether every tenant has a lane of its own.
    pub(crate) fn shares_by_tenant(&self) -> bool {
        self.policy.shares_by_tenant()
    }

    /// Whether a waiting sequence preempts a running one.
    pub(crate) fn preempts(&self, waiting: Rank, running: Rank) -> bool {
        self.policy.preempts(waiting, running)
    }

    /// The key in the queue that a sequence would get now.
    pub(crate) fn queue_key(
        &self,
        sequence: &Sequence,
        live: &LiveRequest,
        queue: &Queue<Sequence>,
        estimates: &Estimates,
    ) -> QueueKey {
        let rank = self.policy.rank(&work(sequence, live, queue, estimates));
        QueueKey { rank, serial: live.serial, sample: sequence.sample }
    }

    /// The key of a running sequence, if it changes as the sequence runs.
    pub(crate) fn running_key(
        &self,
        sequence: &Sequence,
        live: &LiveRequest,
        queue: &Queue<Sequence>,
        estimates: &Estimates,
    ) -> Option<QueueKey> {
        let rank = self.policy.running_rank(&work(sequence, live, queue, estimates))?;
        Some(QueueKey { rank, ..sequence.queue_key })
    }
}

/// The weight of a tenant.
pub(crate) fn weight(tenant: &str, config: &Config) -> u32 {
    config.tenant_weights.get(tenant).copied().unwrap_or(DEFAULT_WEIGHT)
}

fn work(sequence: &Sequence, live: &LiveRequest, queue: &Queue<Sequence>, estimates: &Estimates) -> Work {
    Work {
        arrival: live.request.arrival,
        priority: live.request.priority,
        policy_key: live.request.policy_key,
        remaining: sequence.remaining(live),
        due: due(sequence, live, live.request.arrival, estimates),
        running_due: due(sequence, live, sequence.last_token_at, estimates),
        service: sequence.service,
        tenant_service: queue.service(live.lane),
    }
}

/// Time at which its next token is due; without a target, some time after `since`.
fn due(sequence: &Sequence, live: &LiveRequest, since: f64, estimates: &Estimates) -> f64 {
    let request = &live.request;
    let before = estimates.times.prefill_seconds(sequence.num_uncomputed());
    let target = match sequence.output[..] {
        [] => request.ttft_target.map(|target| request.arrival + target),
        _ => request.tpot_target.map(|target| sequence.last_token_at + target),
    };
    target.map_or(since + DEFAULT_TARGET, |due| due - before)
}
