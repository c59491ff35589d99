//! Equal service for tenants, by weight: the virtual token counter of Sheng et al., "Fairness in Serving Large Language
//! Models" (arXiv 2401.00588). The next sequence is of the tenant with the lowest counter; `queue.rs` keeps the
//! counters. Within a tenant, waiting sequences go by arrival, so that newcomers do not overtake a preempted one for
//! ever, and running ones by their own service, least first.

use super::{Policy, Rank, Work, ordered};

/// Costs of a token for its tenant: an input token that was computed, not cached, and an output token.
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
