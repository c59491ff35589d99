//! What a host block holds since before this scheduler, or since before the device was lost, as its caller tells it. How
//! the caller knows, and that a copy is whole, is not known here.

use serde::{Deserialize, Serialize};

use crate::ids::{HostBlockId, StepId};
use crate::kv_cache::hash::BlockHash;
use crate::kv_cache::prefix::{Name, Saved};

/// A host block and the name of what it holds, as a plan gave it in `swap_names`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostBlock {
    /// The block.
    pub block: HostBlockId,
    /// Of which layers, by the index in `Config::kv_groups`.
    pub group: u32,
    /// Of the block in its chain.
    pub index: u32,
    /// Names the block's tokens and all before them.
    pub hash: [u8; 32],
}

impl HostBlock {
    /// Every step may read it. Whether it was saved before is not known, so whoever asks has it saved again: a store
    /// that has it does not write it.
    pub(crate) fn name(&self) -> Name {
        let key = BlockHash::from_bytes(self.hash).of(self.group);
        Name { key, index: self.index, filled: StepId(0), saved: Saved::Nothing }
    }
}
