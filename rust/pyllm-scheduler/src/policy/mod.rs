//! Scheduling policies. A policy ranks sequences by their `Work`, and decides nothing else: queues, slots and blocks
//! are the scheduler's.

mod custom;
mod fair;
mod fcfs;
mod priority;
mod shortest;

use crate::config::PolicyName;

pub(crate) use fair::{INPUT_COST, OUTPUT_COST};

/// The data of a sequence for its rank.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Work {
    pub(crate) arrival: f64,
    pub(crate) priority: i32,
    pub(crate) policy_key: f64,
    /// Tokens to compute until its expected end.
    pub(crate) remaining: u32,
    /// Time at which its next token is due, by its target, less the expected time of the tokens to compute before.
    /// Without a target, some time after its arrival.
    pub(crate) due: f64,
    /// The same for a running sequence: without a target, some time after its last token.
    pub(crate) running_due: f64,
    /// Service of the request, counted from the service of its tenant's other requests at its arrival.
    pub(crate) service: u64,
    /// Service of the tenant, divided by weight. Known for running sequences.
    pub(crate) tenant_service: u64,
}

/// A rank in the order of service: lower comes first.
pub(crate) type Rank = (u64, u64);

pub(crate) trait Policy: Send {
    /// The rank of a waiting sequence. It is not updated while the sequence waits, so it must include any ageing.
    fn rank(&self, work: &Work) -> Rank;

    /// The rank of a running sequence, if it changes as the sequence runs.
    fn running_rank(&self, _: &Work) -> Option<Rank> {
        None
    }

    /// Whether a waiting sequence preempts a running one.
    fn preempts(&self, _waiting: Rank, _running: Rank) -> bool {
        false
    }

    /// Whether every tenant has a queue of its own, and the one with the least service is next.
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

/// Maps finite numbers to integers in the same order.
pub(crate) fn ordered(value: f64) -> u64 {
    // Bits of floats are in the order of the floats after negatives are flipped, and positives moved above them.
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
