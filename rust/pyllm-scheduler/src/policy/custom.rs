//! A policy of the caller's: each request has its key. Equal keys are ordered by arrival.

use super::{Policy, Rank, Work, ordered};

pub(crate) struct Custom;

impl Policy for Custom {
    fn rank(&self, work: &Work) -> Rank {
        (ordered(work.policy_key), ordered(work.arrival))
    }
}
