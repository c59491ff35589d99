//! A host block whose contents are older than this scheduler, or than the loss of the device. The caller gives its
//! name, and has verified its contents. Knows no memory.

use serde::{Deserialize, Serialize};

use crate::block_hash::BlockHash;
use crate::ids::{HostBlockId, StepId};
use crate::kv::cache::prefix::{Name, Saved};

/// A host block or state and the name of its contents, as a plan gave it in `swap_names` or `state_swap_names`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostBlock {
    /// The block, or the number of the state.
    pub block: HostBlockId,
    /// The group of layers, by its index in `Config::kv_groups`; the group after the last is that of states.
    pub group: u32,
    /// The block's position in its chain.
    pub index: u32,
    /// Hash of the block's tokens and all before them.
    pub hash: [u8; 32],
}

impl HostBlock {
    /// The name of the contents, which every step may read. It is unknown whether they were saved, so the next request
    /// that reads them saves them again; a store does not write a block twice.
    pub(crate) fn name(&self) -> Name {
        let key = BlockHash::from_bytes(self.hash).of(self.group);
        Name { key, index: self.index, filled: StepId(0), saved: Saved::Nothing }
    }
}
