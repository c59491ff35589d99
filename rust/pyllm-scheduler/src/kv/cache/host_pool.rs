//! The host pool of the KV cache: it keeps contents that the device evicts, serves as swap space, and survives the loss
//! of the device.

use crate::ids::{BlockId, HostBlockId};
use crate::kv::cache::changes::Change;
use crate::kv::cache::events::Tier;
use crate::kv::cache::host_block::HostBlock;
use crate::kv::cache::pending_swaps::Swap;
use crate::kv::cache::prefix::Name;
use crate::kv::cache::tier_cache::Evicted;

use super::KvCache;

impl KvCache {
    /// Free host blocks, in any order.
    pub(crate) fn free_host_blocks(&self) -> impl Iterator<Item = HostBlockId> {
        self.host.free_blocks()
    }

    pub(crate) fn num_host_blocks(&self) -> u32 {
        self.host.num_blocks()
    }

    /// Host blocks without references, with or without known contents.
    pub(crate) fn num_host_free(&self) -> u32 {
        self.host.num_free()
    }

    /// Host blocks with known contents.
    pub(crate) fn num_host_cached(&self) -> usize {
        self.host.num_cached()
    }

    /// References to a host block, without those of the plan in progress.
    pub(crate) fn references_host(&self, host: HostBlockId) -> u32 {
        self.host.references(host) - self.swaps.references(host)
    }

    /// Adds a reference, and counts a hit.
    pub(crate) fn share_host(&mut self, host: HostBlockId) {
        self.host.share(host);
    }

    /// Drops a reference.
    pub(crate) fn free_host_block(&mut self, host: HostBlockId) {
        self.host.free(host);
    }

    /// Drops a reference to each block, the last first.
    pub(crate) fn free_host(&mut self, blocks: &mut Vec<HostBlockId>) {
        for host in blocks.drain(..).rev() {
            self.host.free(host);
        }
    }

    /// Assigns a host block to each device block, with a reference to each; none if the host has no room for all.
    /// Contents already on the host are not copied. The caller keeps the device blocks, which the plan in progress must
    /// not write.
    pub(crate) fn swap_out(&mut self, blocks: &[BlockId]) -> Option<Vec<HostBlockId>> {
        let known: Vec<_> = blocks.iter().map(|&block| self.host_copy(block)).collect();
        let is_in_use = |host: &&HostBlockId| self.host.references(**host) > 0;
        let num_in_use = known.iter().flatten().filter(is_in_use).count();
        if known.len() - num_in_use > self.host.num_free() as usize {
            return None;
        }
        for &host in known.iter().flatten() {
            self.host.hold(host);
        }
        blocks.iter().zip(known).map(|(&block, host)| host.or_else(|| self.copy_out(block))).collect()
    }

    /// Assigns a device block for the contents of a host block, without a name until `store`. The caller has checked
    /// `num_available`. The plan keeps a reference to the host block until `end_plan`, so that no copy overwrites it
    /// before it is read.
    pub(crate) fn swap_in(&mut self, host: HostBlockId, group: u32) -> BlockId {
        self.host.hold(host);
        let block = self.allocate(group);
        self.device.raise_hits(block, self.host.hits(host));
        self.swaps.push_in(host, block);
        block
    }

    pub(crate) fn has_swaps(&self) -> bool {
        !self.swaps.is_empty()
    }

    /// The swaps, all outs before all ins; no two write to one block. An out has the name of its contents, if any.
    pub(crate) fn drain_swaps(&mut self) -> impl Iterator<Item = (Swap, Option<Name>)> {
        let host = &self.host;
        self.swaps.drain().map(move |swap| match swap {
            Swap::Out { host: block, .. } => (swap, host.name(block)),
            Swap::In { .. } => (swap, None),
        })
    }

    /// Drops the plan's references to host blocks, once its swaps are drained.
    pub(crate) fn end_plan(&mut self) {
        for host in self.swaps.release() {
            self.host.free(host);
        }
    }

    /// The reason why one of these blocks cannot be restored; none: all can.
    pub(crate) fn cannot_restore(&self, blocks: &[HostBlock]) -> Option<String> {
        let (num_blocks, num_groups) = (self.host.num_blocks(), self.limits.groups.len());
        let mut seen = vec![false; num_blocks as usize];
        blocks.iter().find_map(|&HostBlock { block, group, .. }| match seen.get_mut(block.0 as usize) {
            None => Some(format!("host block {block} is none of {num_blocks}")),
            Some(true) => Some(format!("host block {block} is named twice")),
            Some(_) if group as usize >= num_groups => Some(format!("group {group} is none of {num_groups}")),
            Some(_) if self.host.references(block) > 0 || self.host.name(block).is_some() => {
                Some(format!("host block {block} is in use, or holds something known"))
            }
            Some(seen) => {
                *seen = true;
                None
            }
        })
    }

    /// Restores the names of host blocks. Of two blocks with equal contents the first keeps the name. Does nothing
    /// without prefix caching.
    pub(crate) fn restore_host(&mut self, mut blocks: Vec<HostBlock>) {
        // The tail of a chain is freed first: it is evicted first, as the fewest requests can use it.
        blocks.sort_by_key(|block| std::cmp::Reverse(block.index));
        for restored in blocks.iter().filter(|_| self.limits.enable_prefix_caching) {
            let name = restored.name();
            self.host.hold(restored.block);
            if self.host.store(restored.block, name) {
                self.log.restored(name.key);
                self.changes.push(Change::Stored(name.key.short()));
            }
            self.host.free(restored.block);
        }
    }

    /// Keeps evicted contents of the device on the host, if there is a free block.
    pub(super) fn write_back(&mut self, block: BlockId, evicted: &Evicted) {
        let &Evicted { name, hits } = evicted;
        if let Some(host) = self.host.get(name.key) {
            self.host.refresh(host, hits);
            self.host.mark_saved(host, name.on_host().saved);
        } else if let Some(host) = self.allocate_host() {
            self.swaps.push_out(block, host);
            self.store_host(host, name, hits);
        }
    }

    /// The host block that has, or will have, the contents of a device block.
    fn host_copy(&self, block: BlockId) -> Option<HostBlockId> {
        let named = self.device.name(block).and_then(|name| self.host.get(name.key));
        named.or_else(|| self.swaps.source(block))
    }

    /// Queues the copy of a device block to a new host block, of which the caller has one reference.
    fn copy_out(&mut self, block: BlockId) -> Option<HostBlockId> {
        let host = self.allocate_host()?;
        self.host.hold(host);
        self.swaps.push_out(block, host);
        if let Some(name) = self.device.name(block) {
            self.store_host(host, name, self.device.hits(block));
        }
        Some(host)
    }

    fn allocate_host(&mut self) -> Option<HostBlockId> {
        let (host, evicted) = self.host.allocate(false)?;
        if let Some(evicted) = evicted {
            self.log.removed(evicted.name.key, Tier::Host);
            self.note_removed(evicted.name.key);
        }
        Some(host)
    }

    fn store_host(&mut self, host: HostBlockId, name: Name, hits: u8) {
        self.host.store(host, name.on_host());
        self.host.raise_hits(host, hits);
        self.log.copied(name.key);
        // It is known already, but a snapshot under way may be past the device block and miss the host block.
        self.changes.push(Change::Stored(name.key.short()));
    }
}
