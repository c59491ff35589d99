//! Tenants get equal service, by weight: the virtual token counter of Sheng et al., "Fairness in Serving Large Language
//! Models" (arXiv 2401.00588). The next sequence is of the tenant whose counter is lowest; `queue.rs` keeps the
//! counters. Within a tenant what came first is next, so that nothing preempted is overtaken by all that came
//! meanwhile; of what runs, the sequence that got least itself.

use super::{Policy, Rank, Work, ordered};

/// What one token costs a tenant: an input token, computed and not found in a cache, and an output token.
pub(crate) const INPUT_COST: u64 = 1;
pub(crate) const OUTPUT_COST: u64 = 2;

pub(crate) struct Fair;

impl Policy for Fair {
    fn rank(&self, work: &Work) -> Rank {
        (ordered(work.arrival), 0)
    }

    fn running_rank(&self, work: &Work) -> Option<Rank> {
        Some((work.tenant_service, work.service))
    }

    fn shares_by_tenant(&self) -> bool {
        true
    }
}
