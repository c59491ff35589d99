//! Blocks of the host pool, and the swaps of blocks and states between the device and the host.

use crate::ids::{Block, BlockId, HostBlockId, HostStateId};
use crate::kv::cache::KvCache;
use crate::kv::cache::host_block::HostBlock;
use crate::kv::cache::pending_swaps::Swap;
use crate::kv::cache::prefix::Name;
use crate::kv::cache::tier_cache::TierCache;

impl KvCache {
    /// Adds a reference, and counts a hit.
    pub(crate) fn share_host(&mut self, host: HostBlockId) {
        self.blocks.host.share(host);
    }

    /// Drops a reference.
    pub(crate) fn free_host_block(&mut self, host: HostBlockId) {
        self.blocks.host.free(host);
    }

    /// See `Tiers::free_host`.
    pub(crate) fn free_host(&mut self, blocks: &mut Vec<HostBlockId>) {
        self.blocks.free_host(blocks);
    }

    /// See `Tiers::swap_out`.
    pub(crate) fn swap_out(&mut self, blocks: &[BlockId]) -> Option<Vec<HostBlockId>> {
        self.blocks.swap_out(blocks, &mut self.logs)
    }

    /// See `Tiers::swap_in`. The caller has checked `num_available`.
    pub(crate) fn swap_in(&mut self, host: HostBlockId, group: u32) -> BlockId {
        let in_window = self.limits.groups[group as usize].has_window();
        self.blocks.swap_in(host, in_window, &mut self.logs).expect("the caller has looked at num_available")
    }

    /// Whether the plan in progress has swaps, of blocks or of states.
    pub(crate) fn has_swaps(&self) -> bool {
        self.blocks.has_swaps() || self.states.has_swaps()
    }

    /// See `Tiers::drain_swaps`.
    pub(crate) fn drain_swaps(&mut self) -> impl Iterator<Item = (Swap<BlockId, HostBlockId>, Option<Name>)> {
        self.blocks.drain_swaps()
    }

    /// See `Tiers::end_plan`.
    pub(crate) fn end_plan(&mut self) {
        self.blocks.end_plan();
        self.states.end_plan();
    }

    /// The reason why one of these blocks cannot be restored; none: all can.
    pub(crate) fn cannot_restore(&self, blocks: &[HostBlock]) -> Option<String> {
        let num_groups = self.state_group() + u32::from(self.limits.num_states > 0);
        if let Some(HostBlock { group, .. }) = blocks.iter().find(|block| block.group >= num_groups) {
            return Some(format!("group {group} is none of {num_groups}"));
        }
        let (states, blocks): (Vec<_>, Vec<_>) = blocks.iter().partition(|block| block.group == self.state_group());
        let problem = cannot_restore(&blocks, &self.blocks.host, "block");
        problem.or_else(|| cannot_restore(&states, &self.states.host, "state"))
    }

    /// Restores the names of host blocks. Of two blocks with equal contents the first keeps the name. Does nothing
    /// without prefix caching.
    pub(crate) fn restore_host(&mut self, mut blocks: Vec<HostBlock>) {
        // The tail of a chain is freed first: it is evicted first, as the fewest requests can use it.
        blocks.sort_by_key(|block| std::cmp::Reverse(block.index));
        for restored in blocks.iter().filter(|_| self.limits.enable_prefix_caching) {
            if restored.group == self.state_group() {
                self.states.restore(HostStateId(restored.block.0), restored.name(), &mut self.logs);
            } else {
                self.blocks.restore(restored.block, restored.name(), &mut self.logs);
            }
        }
    }
}

fn cannot_restore<H: Block>(blocks: &[HostBlock], host: &TierCache<H>, kind: &str) -> Option<String> {
    let mut seen = vec![false; host.num_blocks() as usize];
    blocks.iter().find_map(|&HostBlock { block, .. }| match seen.get_mut(block.0 as usize) {
        None => Some(format!("host {kind} {block} is none of {}", host.num_blocks())),
        Some(true) => Some(format!("host {kind} {block} is named twice")),
        Some(_) if host.references(H::new(block.0)) > 0 || host.name(H::new(block.0)).is_some() => {
            Some(format!("host {kind} {block} is in use, or holds something known"))
        }
        Some(seen) => {
            *seen = true;
            None
        }
    })
}
