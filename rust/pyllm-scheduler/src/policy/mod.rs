//! Whom to serve first. A policy ranks sequences by what it may look at, and decides nothing else: queues, slots and
//! blocks are the scheduler's.

mod custom;
mod fair;
mod fcfs;
mod priority;
mod shortest;

use crate::config::PolicyName;

pub(crate) use fair::{INPUT_COST, OUTPUT_COST};

/// What a policy may look at.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Work {
    pub(crate) arrival: f64,
    pub(crate) priority: i32,
    pub(crate) policy_key: f64,
    /// Tokens to compute until it is expected to end.
    pub(crate) remaining: u32,
    /// When its next token is due by its target, less the time that the tokens before it take. Without a target that is
    /// some time after it came.
    pub(crate) due: f64,
    /// The same for what runs: without a target, some time after its last token.
    pub(crate) running_due: f64,
    /// Service that it has had, counted from where its tenant's other requests were when it came.
    pub(crate) service: u64,
    /// Service that its tenant has had, by the tenant's weight. Known for what runs.
    pub(crate) tenant_service: u64,
}

/// A place in the order of service: lower comes first.
pub(crate) type Rank = (u64, u64);

pub(crate) trait Policy: Send {
    /// The place of a waiting sequence. It stays as it is while the sequence waits, so ageing has to be part of it.
    fn rank(&self, work: &Work) -> Rank;

    /// The place of a running sequence, where it changes as the sequence runs.
    fn running_rank(&self, _: &Work) -> Option<Rank> {
        None
    }

    /// Whether a waiting sequence takes the place of a running one.
    fn preempts(&self, _waiting: Rank, _running: Rank) -> bool {
        false
    }

    /// Whether every tenant has a queue of its own, and the one that got least is next.
    fn shares_by_tenant(&self) -> bool {
        false
    }
}

pub(crate) fn policy(name: PolicyName) -> Box<dyn Policy> {
    match name {
        PolicyName::Fcfs => Box::new(fcfs::Fcfs),
        PolicyName::Priority => Box::new(priority::Priority),
        PolicyName::Shortest => Box::new(shortest::Shortest),
        PolicyName::Fair => Box::new(fair::Fair),
        PolicyName::Custom => Box::new(custom::Custom),
    }
}

/// Finite numbers as integers of the same order.
pub(crate) fn ordered(value: f64) -> u64 {
    // The bits of a float are in its order once negatives are flipped and positives lifted above them.
    let bits = (value + 0.0).to_bits();
    let sign = 1 << 63;
    if bits & sign == 0 { bits | sign } else { !bits }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_keep_their_order_as_integers() {
        let values = [f64::MIN, -2.0, -1.0, -0.0, 1e-300, 1.0, f64::MAX];
        assert!(values.is_sorted_by_key(|&value| ordered(value)));
        assert_eq!(ordered(-0.0), ordered(0.0));
    }

    #[test]
    fn a_better_rank_never_preempts_a_worse_one_under_fcfs_fair_and_custom() {
        for name in [PolicyName::Fcfs, PolicyName::Fair, PolicyName::Custom] {
            assert!(!policy(name).preempts((0, 0), (u64::MAX, u64::MAX)), "{name:?}");
        }
    }
}
