//! First come, first served.

use super::{Policy, Rank, Work, ordered};

pub(crate) struct Fcfs;

impl Policy for Fcfs {
    fn rank(&self, work: &Work) -> Rank {
        (ordered(work.arrival), 0)
    }
}
