//! The blocks of the KV cache on its two tiers, the device and the host pool, and the names of their contents. Evicted
//! contents of the device are written back to the host, and copied to the device again on a cache hit or a swap-in.
//! Without prefix caching blocks have no names, and the host is swap space only. Knows no sequences.

pub(crate) mod block_pool;
pub(crate) mod changes;
pub(crate) mod event_batch;
pub(crate) mod events;
pub(crate) mod fragmentation;
pub(crate) mod host_block;
mod host_pool;
pub(crate) mod pending_swaps;
pub(crate) mod pins;
pub(crate) mod prefix;
pub(crate) mod request_hasher;
pub(crate) mod saves;
pub(crate) mod tier_cache;

use crate::block_hash::{BlockHash, Content, GroupHash};
use crate::ids::{BlockId, HostBlockId, SaveId, StepId};
use crate::kv::cache::changes::{Change, ChangeLog};
use crate::kv::cache::events::{EventLog, Events, KvEvent, Snapshot, Tier};
use crate::kv::cache::pending_swaps::PendingSwaps;
use crate::kv::cache::pins::Pins;
use crate::kv::cache::prefix::{Name, Saved};
use crate::kv::cache::saves::{Candidate, Save, Saves};
use crate::kv::cache::tier_cache::TierCache;
use crate::kv_layout::GroupLayout;
use crate::request::Retention;

#[derive(Clone, Debug)]
pub(crate) struct CacheLimits {
    pub(crate) groups: Vec<GroupLayout>,
    pub(crate) block_size: u32,
    pub(crate) num_blocks: u32,
    pub(crate) num_host_blocks: u32,
    pub(crate) max_pinned_blocks: u32,
    pub(crate) max_saving_blocks: u32,
    pub(crate) enable_prefix_caching: bool,
    pub(crate) enable_events: bool,
    pub(crate) incarnation: u64,
}

/// A block with the wanted contents, on one of the tiers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    Device(BlockId),
    Host(HostBlockId),
}

/// The blocks of a sequence in a group, from `first` on; earlier ones are outside the group's window.
#[derive(Clone, Default)]
pub(crate) struct FoundChain {
    pub(crate) first: u32,
    pub(crate) blocks: Vec<Found>,
}

/// The longest start of a sequence that all groups have cached, as far as their windows need it.
#[derive(Default)]
pub(crate) struct FoundStart {
    /// Length in blocks.
    pub(crate) length: u32,
    /// The first token that may be computed again.
    pub(crate) lowest: u32,
    pub(crate) chains: Vec<FoundChain>, // one per group
}

impl FoundStart {
    pub(crate) fn places(&self) -> impl Iterator<Item = Found> {
        self.chains.iter().flat_map(|chain| chain.blocks.iter().copied())
    }
}

/// The origin of a block's contents.
#[derive(Clone, Copy)]
pub(crate) struct Filled {
    /// The step that writes the contents, or after which a load has written them.
    pub(crate) step: StepId,
    /// Whether the contents were loaded, so the external store has them already.
    pub(crate) is_loaded: bool,
}

pub(crate) struct KvCache {
    limits: CacheLimits,
    device: TierCache<BlockId>,
    host: TierCache<HostBlockId>,
    pins: Pins,
    swaps: PendingSwaps,
    saves: Saves,
    log: EventLog,
    changes: ChangeLog,
}

impl KvCache {
    pub(crate) fn new(limits: CacheLimits) -> Self {
        Self {
            device: TierCache::new(limits.num_blocks),
            host: TierCache::new(limits.num_host_blocks),
            pins: Pins::new(limits.max_pinned_blocks),
            swaps: PendingSwaps::default(),
            saves: Saves::new(limits.num_blocks, limits.max_saving_blocks),
            log: EventLog::new(limits.enable_events, limits.incarnation),
            changes: ChangeLog::new(),
            limits,
        }
    }

    pub(crate) fn num_blocks(&self) -> u32 {
        self.limits.num_blocks
    }

    /// Device blocks without references, with or without known contents.
    pub(crate) fn num_free(&self) -> u32 {
        self.device.num_free()
    }

    /// Free device blocks that are not reserved for running sequences; below 0 if pins have taken reserved blocks. It
    /// falls by one for each block that is taken, free or shared in a window, and rises by one for each freed block of
    /// a window.
    pub(crate) fn num_available(&self) -> i64 {
        i64::from(self.device.num_free()) - i64::from(self.device.num_owed())
    }

    /// Device blocks with known contents.
    pub(crate) fn num_cached(&self) -> usize {
        self.device.num_cached()
    }

    pub(crate) fn references(&self, block: BlockId) -> u32 {
        self.device.references(block)
    }

    /// Free device blocks, in any order.
    pub(crate) fn free_blocks(&self) -> impl Iterator<Item = BlockId> {
        self.device.free_blocks()
    }

    /// A device block to write to. The caller has checked `num_available`. The block's old contents are written back.
    pub(crate) fn allocate(&mut self, group: u32) -> BlockId {
        let in_window = self.limits.groups[group as usize].has_window();
        let (block, evicted) = self.device.allocate(in_window).expect("the caller has looked at num_available");
        if let Some(evicted) = evicted {
            if self.limits.num_host_blocks > 0 {
                self.write_back(block, &evicted);
            }
            self.log.removed(evicted.name.key, Tier::Device);
            self.note_removed(evicted.name.key);
        }
        block
    }

    /// Adds a reference, and counts a hit.
    pub(crate) fn share(&mut self, block: BlockId) {
        self.device.share(block);
    }

    /// Drops a reference. A block that the current plan writes keeps a reference until `end_plan`: swaps come first in
    /// a plan, so they would copy the block too early.
    pub(crate) fn free(&mut self, block: BlockId) {
        self.device.free(block);
    }

    /// Frees a sequence's blocks, the last first: it is evicted first, as the fewest requests can use it.
    pub(crate) fn free_chain(&mut self, blocks: &mut Vec<BlockId>) {
        for block in blocks.drain(..).rev() {
            self.free(block);
        }
    }

    /// Finds the longest cached start of a sequence that step `planning` may read; steps before `committed` are
    /// committed. `hash_of` has the hashes of the first `most` blocks. `lowest` gives the first token that may be
    /// computed after a start of this many blocks; `found` has no blocks outside the window of that token.
    ///
    /// Takes no references: share the blocks before the next `allocate` or `swap_in`.
    pub(crate) fn find_start(
        &self,
        most: u32,
        hash_of: impl Fn(u32) -> BlockHash,
        lowest: impl Fn(u32) -> u32,
        planning: StepId,
        committed: StepId,
        found: &mut FoundStart,
    ) {
        let find = |group: usize, index| {
            let key = hash_of(index).of(group as u32);
            match self.device.find(key, planning, committed) {
                Some(block) => Some(Found::Device(block)),
                None => self.host.get(key).map(Found::Host),
            }
        };
        let groups = || self.limits.groups.iter().enumerate();
        found.chains.iter_mut().for_each(|chain| chain.blocks.clear());
        let mut length = most;
        for (group, _) in groups().filter(|(_, group)| !group.has_window()) {
            found.chains[group].blocks.extend((0..length).map_while(|index| find(group, index)));
            length = found.chains[group].blocks.len() as u32;
        }
        loop {
            let before = length;
            for (group, layout) in groups().filter(|(_, group)| group.has_window()) {
                length = layout.longest_start(length, |index| find(group, index).is_some());
            }
            if length == before {
                break;
            }
        }
        (found.length, found.lowest) = (length, lowest(length));
        for (group, layout) in groups() {
            let chain = &mut found.chains[group];
            chain.first = layout.first_block(found.lowest);
            if layout.has_window() {
                chain.blocks.extend((chain.first..length).filter_map(|index| find(group, index)));
            } else {
                chain.blocks.truncate(length as usize);
            }
        }
    }

    /// Names a block in use by its contents for a group, which step `filled` writes. False: another block has equal
    /// contents and keeps the name.
    pub(crate) fn store(&mut self, block: BlockId, group: u32, content: Content<'_>, filled: StepId) -> bool {
        let Content { hash, index, tokens: (head, tail), .. } = content;
        let key = hash.of(group);
        debug_assert_eq!(head.len() + tail.len(), self.limits.block_size as usize, "full blocks alone have names");
        if !self.limits.enable_prefix_caching {
            return false;
        }
        let on_host = self.host.get(key).and_then(|host| self.host.name(host));
        let saved = on_host.map_or(Saved::Nothing, |name| name.saved);
        if !self.device.store(block, Name { key, index, filled, saved }) {
            return false;
        }
        self.log.stored(group, &content);
        self.changes.push(Change::Stored(key.short()));
        self.hold_if_pinned(block, key);
        true
    }

    /// Names a block as `store` does, and saves the device's block with these contents at the request's retention.
    pub(crate) fn store_for(
        &mut self,
        block: BlockId,
        group: u32,
        content: Content<'_>,
        filled: Filled,
        retention: Retention,
    ) {
        let key = content.hash.of(group);
        self.store(block, group, content, filled.step);
        if let Some(block) = self.device.get(key).filter(|_| filled.is_loaded) {
            self.device.mark_saved(block, Saved::For(Retention::Default));
        }
        self.save(key, retention);
    }

    /// Makes the device's block with these contents a candidate for a save, unless it was one already with at least
    /// this retention.
    pub(crate) fn save(&mut self, key: GroupHash, retention: Retention) {
        let Some(block) = self.device.get(key).filter(|_| self.limits.max_saving_blocks > 0) else { return };
        if let Some(Name { index, filled, .. }) = self.device.mark_saved(block, retention.into()) {
            self.saves.propose(Candidate { block, key, index, filled, retention });
        }
    }

    /// Cancels saves of a block whose contents may be written a second time. It is not saved while on the device, as
    /// the end of that write is not reported; a later copy on the host may be.
    pub(crate) fn withdraw_save(&mut self, block: BlockId) {
        self.saves.withdraw(block);
        self.device.mark_saved(block, Saved::Withdrawn);
    }

    /// Whether `take_saves` has candidates.
    pub(crate) fn has_saves(&self, committed: StepId) -> bool {
        self.saves.has_next(committed)
    }

    /// Begins saves of blocks that steps before `committed` have filled. A block without other references is saved only
    /// while more blocks are available than all saves may take.
    pub(crate) fn take_saves(&mut self, committed: StepId) -> Vec<Save> {
        let mut taken = Vec::new();
        while let Some(Candidate { block, key, index, retention, .. }) = self.saves.next(committed) {
            let name = self.device.name(block).filter(|name| name.key == key && name.filled < committed);
            let is_scarce = self.num_available() <= i64::from(self.limits.max_saving_blocks);
            if name.is_none() || (self.references(block) == 0 && is_scarce) {
                self.saves.num_dropped += 1;
                continue;
            }
            self.device.hold(block);
            let id = self.saves.begin(block);
            taken.push(Save { id, hash: key.hash, group: key.group, index, block, retention });
        }
        taken
    }

    /// Ends a save. False: there is no such save.
    pub(crate) fn finish_save(&mut self, save: SaveId) -> bool {
        let Some(block) = self.saves.finish(save) else { return false };
        self.device.free(block);
        true
    }

    /// The numbers of saves under way, and of candidates that were not saved.
    pub(crate) fn num_saving(&self) -> (usize, u64) {
        (self.saves.num_under_way(), self.saves.num_dropped)
    }

    /// A block's references from saves.
    pub(crate) fn saving_references(&self, block: BlockId) -> u32 {
        self.saves.references(block)
    }

    /// Pins these contents on the device: those that are there now, and the others once they are stored.
    ///
    /// Errors: `DuplicatePin`, `PinQuota`.
    pub(crate) fn pin(&mut self, name: u64, keys: Vec<GroupHash>) -> crate::error::Result<()> {
        for key in self.pins.pin(name, keys)? {
            if let Some(block) = self.device.get(key) {
                self.hold_if_pinned(block, key);
            }
        }
        Ok(())
    }

    /// Removes a pin. False: there is no such pin.
    pub(crate) fn unpin(&mut self, name: u64) -> bool {
        let Some(blocks) = self.pins.unpin(name) else { return false };
        for block in blocks {
            self.device.free(block);
        }
        true
    }

    /// Device blocks that pins hold.
    pub(crate) fn num_pinned(&self) -> u32 {
        self.pins.num_held()
    }

    /// A block's references from pins.
    pub(crate) fn pinned_references(&self, block: BlockId) -> u32 {
        u32::from(self.device.name(block).is_some_and(|name| self.pins.holds(block, name.key)))
    }

    /// Forgets the contents of all blocks on both tiers. Blocks in use stay in use. Pins hold no block until its
    /// contents are stored again.
    pub(crate) fn forget(&mut self) {
        self.device.forget();
        self.host.forget();
        self.saves.forget();
        for block in self.pins.release() {
            self.device.free(block);
        }
        self.log.cleared();
        self.changes.push(Change::Cleared);
    }

    /// Frees every block of both tiers after the loss of the device: no contents are known, and no swap is pending.
    /// Pins stay, but hold no blocks.
    pub(crate) fn clear(&mut self) {
        self.device = TierCache::new(self.limits.num_blocks);
        self.host = TierCache::new(self.limits.num_host_blocks);
        self.swaps = PendingSwaps::default();
        self.saves.clear();
        self.pins.release();
        self.log.cleared();
        self.changes.push(Change::Cleared);
    }

    /// Events from number `first` on.
    pub(crate) fn events(&self, first: u64, limit: usize) -> Events {
        self.log.events(first, limit)
    }

    /// All events from number `first` on, and the number of the first one that is still kept.
    pub(crate) fn events_since(&self, first: u64) -> (u64, impl ExactSizeIterator<Item = &KvEvent>) {
        self.log.since(first)
    }

    /// All known contents, for a subscriber that has missed events.
    pub(crate) fn snapshot(&self) -> Snapshot {
        self.log.snapshot()
    }

    /// Sets the numbers of changes that are kept, and reported at once.
    #[cfg(test)]
    pub(crate) fn limit_changes(&mut self, capacity: usize, max_told: usize) {
        self.changes = ChangeLog::with_limits(capacity, max_told);
    }

    /// The log of changes to the contents known on any tier, kept from now on.
    pub(crate) fn changes(&mut self) -> &ChangeLog {
        self.changes.begin();
        &self.changes
    }

    /// The known contents in part `part` of all blocks; none after the last part.
    pub(crate) fn known_part(&self, part: usize) -> Option<impl Iterator<Item = Change>> {
        let size = self.changes.max_told;
        let num_blocks = (self.limits.num_blocks + self.limits.num_host_blocks) as usize;
        let start = Some(part * size).filter(|&start| start < num_blocks)?;
        let (first_host, end) = (self.limits.num_blocks as usize, (start + size).min(num_blocks));
        let on_device = (start..end.min(first_host)).filter_map(|block| self.device.name(BlockId(block as u32)));
        let on_host = (start.max(first_host)..end)
            .filter_map(move |block| self.host.name(HostBlockId((block - first_host) as u32)))
            .filter(|name| self.device.get(name.key).is_none());
        Some(on_device.chain(on_host).map(|name| Change::Stored(name.key.short())))
    }

    /// See `Scheduler::audit`.
    pub(crate) fn audit(&self) -> Result<(), String> {
        self.device.audit()?;
        self.host.audit()?;
        self.pins.audit(|key| self.device.get(key))?;
        self.log.audit(self.known())?;
        let unheld = |host: &HostBlockId| self.host.references(*host) < self.swaps.references(*host);
        if let Some(host) = (0..self.num_host_blocks()).map(HostBlockId).find(unheld) {
            return Err(format!("host block {host} is part of a swap and may be overwritten before"));
        }
        let pinned = |block: &BlockId| self.pinned_references(*block) > self.references(*block);
        match (0..self.limits.num_blocks).map(BlockId).find(pinned) {
            Some(block) => Err(format!("block {block} is pinned and free")),
            None => Ok(()),
        }
    }

    fn known(&self) -> impl Iterator<Item = (GroupHash, Tier)> {
        let device = self.device.known().map(|(_, name)| (name.key, Tier::Device));
        device.chain(self.host.known().map(|(_, name)| (name.key, Tier::Host)))
    }

    /// Logs that a tier has lost these contents, unless the other tier has them.
    fn note_removed(&mut self, key: GroupHash) {
        if self.changes.is_kept() && !self.is_known(key) {
            self.changes.push(Change::Removed(key.short()));
        }
    }

    /// Whether a tier has these contents, or a step in flight writes them.
    pub(crate) fn is_known(&self, key: GroupHash) -> bool {
        self.device.get(key).is_some() || self.host.get(key).is_some()
    }

    fn hold_if_pinned(&mut self, block: BlockId, key: GroupHash) {
        if self.pins.hold(block, key) {
            self.device.hold(block);
        }
    }
}

#[cfg(test)]
mod tests;
