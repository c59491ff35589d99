//! The states that a sequence holds. Knows no pool.

use crate::block_hash::GroupHash;
use crate::ids::{HostStateId, StateId};

/// A state that a sequence holds, after so many of its tokens.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HeldState {
    pub(crate) state: StateId,
    pub(crate) num_tokens: u32,
}

/// A state that the prefix cache has named.
#[derive(Clone, Copy)]
pub(crate) struct Checkpoint {
    pub(crate) key: GroupHash,
    pub(crate) num_tokens: u32,
}

/// The states of one sequence, each with a reference.
#[derive(Default)]
pub(crate) struct HeldStates {
    /// Oldest first; none before the first token. The last one is after `Sequence::num_computed` tokens, and the next
    /// row reads it.
    pub(crate) held: Vec<HeldState>,
    /// A state to write to, if the last one is not to be written.
    pub(crate) spare: Option<StateId>,
    /// The last state on the host while the sequence is swapped.
    pub(crate) on_host: Option<HostStateId>,
    /// Tokens of the longest prefix whose blocks were cached at its admission: other sequences have branched off here.
    pub(crate) branch: u32,
    /// The last checkpoint on its way, its own or the one from which it continued.
    pub(crate) last_checkpoint: Option<Checkpoint>,
    /// Tokens of the longest pinned prefix that it begins with.
    pub(crate) pinned: u32,
}

impl HeldStates {
    /// Whether others are expected to continue after so many tokens.
    pub(crate) fn is_wanted(&self, num_tokens: u32) -> bool {
        num_tokens == self.branch || num_tokens == self.pinned
    }

    /// The states of the device.
    pub(crate) fn all(&self) -> impl Iterator<Item = StateId> {
        self.held.iter().map(|held| held.state).chain(self.spare)
    }
}
