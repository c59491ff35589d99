//! Whose rows a step may have: while a request is isolated, its own and everybody else's take turns.

use crate::arena::Key;
use crate::sequence::LiveRequest;

/// Whose rows a step may have.
#[derive(Clone, Copy, Default)]
pub(super) enum StepScope {
    #[default]
    Everyone,
    Only(Key<LiveRequest>),
    AllBut(Key<LiveRequest>),
}

impl StepScope {
    pub(super) fn admits(self, request: Key<LiveRequest>) -> bool {
        match self {
            Self::Everyone => true,
            Self::Only(one) => request == one,
            Self::AllBut(one) => request != one,
        }
    }
}
