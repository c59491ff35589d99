//! The least remaining work first; less work preempts more. Later requests count as larger, so that none waits for
//! ever: a sequence is overtaken by no more work than arrives while ageing makes up for its own size.

use super::{Policy, Rank, Work, ordered};

/// Tokens by which a request counts as smaller per second of earlier arrival.
const AGEING: f64 = 128.0;

pub(crate) struct Shortest;

impl Policy for Shortest {
    fn rank(&self, work: &Work) -> Rank {
        (ordered(f64::from(work.remaining) + AGEING * work.arrival), 0)
    }

    fn running_rank(&self, work: &Work) -> Option<Rank> {
        Some(self.rank(work))
    }

    fn preempts(&self, waiting: Rank, running: Rank) -> bool {
        waiting < running
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_counts_until_age_outweighs_it() {
        let rank = |remaining, arrival| Shortest.rank(&Work { arrival, remaining, ..Work::default() });
        assert!(rank(10, 0.0) < rank(20, 0.0));
        assert!(rank(20, 0.0) < rank(10, 1.0));
    }
}
