//! Priority classes: the lowest `priority` first, and lower ones preempt higher ones. Within a class the sequence with
//! the least slack is next; without targets, the earliest.

use super::{Policy, Rank, Work, ordered};

pub(crate) struct Priority;

impl Policy for Priority {
    fn rank(&self, work: &Work) -> Rank {
        // Slack is the time until `due`; of two sequences, the one due first always has less.
        (ordered(f64::from(work.priority)), ordered(work.due))
    }

    fn running_rank(&self, work: &Work) -> Option<Rank> {
        Some(self.rank(&Work { due: work.running_due, ..*work }))
    }

    fn preempts(&self, waiting: Rank, running: Rank) -> bool {
        waiting.0 < running.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_come_before_slack_and_only_classes_preempt() {
        let rank = |priority, due| Priority.rank(&Work { priority, due, ..Work::default() });
        assert!(rank(-1, 9.0) < rank(0, 1.0) && rank(0, 1.0) < rank(0, 2.0));
        assert!(Priority.preempts(rank(-1, 9.0), rank(0, 1.0)));
        assert!(!Priority.preempts(rank(0, 1.0), rank(0, 2.0)));
    }
}
