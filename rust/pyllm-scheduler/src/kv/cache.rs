//! The blocks of the KV cache on its two tiers, the device and the host pool, and the names of their contents. Evicted
//! contents of the device are written back to the host, and copied to the device again on a cache hit or a swap-in.
//! Without prefix caching blocks have no names, and the host is swap space only. Knows no sequences.

pub(crate) mod block_pool;
pub(crate) mod changes;
mod content_logs;
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
mod state_pins;
pub(crate) mod tier_cache;
pub(crate) mod tiers;

use crate::block_hash::{BlockHash, Content, GroupHash};
use crate::ids::{BlockId, HostBlockId, HostStateId, SaveId, StateId, StepId};
use crate::kv::cache::changes::{Change, ChangeLog};
use crate::kv::cache::content_logs::ContentLogs;
use crate::kv::cache::events::{EventLog, Events, KvEvent, Snapshot};
use crate::kv::cache::pins::Pins;
use crate::kv::cache::prefix::{Name, Saved};
use crate::kv::cache::saves::{Candidate, Save, Saves};
use crate::kv::cache::state_pins::StatePins;
use crate::kv::cache::tiers::Tiers;
use crate::kv_layout::GroupLayout;
use crate::request::Retention;

#[derive(Clone, Debug)]
pub(crate) struct CacheLimits {
    pub(crate) groups: Vec<GroupLayout>,
    pub(crate) block_size: u32,
    pub(crate) num_blocks: u32,
    pub(crate) num_host_blocks: u32,
    pub(crate) num_states: u32,
    pub(crate) num_host_states: u32,
    pub(crate) max_pinned_blocks: u32,
    pub(crate) max_saving_blocks: u32,
    pub(crate) enable_prefix_caching: bool,
    pub(crate) enable_events: bool,
    pub(crate) incarnation: u64,
}

impl CacheLimits {
    /// States that saves may hold at once: a few, so that sequences have theirs.
    fn max_saving_states(&self) -> u32 {
        if self.max_saving_blocks > 0 { (self.num_states / 8).max(1).min(self.num_states.saturating_sub(2)) } else { 0 }
    }
}

/// A block or a state with the wanted contents, on one of the tiers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Found<D = BlockId, H = HostBlockId> {
    Device(D),
    Host(H),
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
    pub(crate) blocks: Tiers<BlockId, HostBlockId>,
    pub(crate) states: Tiers<StateId, HostStateId>, // of a model that has some
    pins: Pins,
    state_pins: StatePins,
    saves: Saves<BlockId>,
    state_saves: Saves<StateId>,
    next_save: SaveId,
    logs: ContentLogs,
}

impl KvCache {
    pub(crate) fn new(limits: CacheLimits) -> Self {
        Self {
            blocks: Tiers::new(limits.num_blocks, limits.num_host_blocks),
            states: Tiers::new(limits.num_states, limits.num_host_states),
            pins: Pins::new(limits.max_pinned_blocks),
            state_pins: StatePins::new(limits.num_states),
            saves: Saves::new(limits.num_blocks, limits.max_saving_blocks),
            state_saves: Saves::new(limits.num_states, limits.max_saving_states()),
            next_save: SaveId(0),
            logs: ContentLogs {
                events: EventLog::new(limits.enable_events, limits.incarnation),
                changes: ChangeLog::new(),
            },
            limits,
        }
    }

    pub(crate) fn num_blocks(&self) -> u32 {
        self.limits.num_blocks
    }

    /// Device blocks without references, with or without known contents.
    pub(crate) fn num_free(&self) -> u32 {
        self.blocks.device.num_free()
    }

    /// Free device blocks that are not reserved for running sequences; below 0 if pins have taken reserved blocks. It
    /// falls by one for each block that is taken, free or shared in a window, and rises by one for each freed block of
    /// a window.
    pub(crate) fn num_available(&self) -> i64 {
        i64::from(self.blocks.device.num_free()) - i64::from(self.blocks.device.num_owed())
    }

    /// Device blocks with known contents.
    pub(crate) fn num_cached(&self) -> usize {
        self.blocks.device.num_cached()
    }

    pub(crate) fn references(&self, block: BlockId) -> u32 {
        self.blocks.device.references(block)
    }

    /// Free device blocks, in any order.
    pub(crate) fn free_blocks(&self) -> impl Iterator<Item = BlockId> {
        self.blocks.device.free_blocks()
    }

    /// A device block to write to. The caller has checked `num_available`. The block's old contents are written back.
    pub(crate) fn allocate(&mut self, group: u32) -> BlockId {
        let in_window = self.limits.groups[group as usize].has_window();
        self.blocks.allocate(in_window, &mut self.logs).expect("the caller has looked at num_available")
    }

    /// Adds a reference, and counts a hit.
    pub(crate) fn share(&mut self, block: BlockId) {
        self.blocks.device.share(block);
    }

    /// Drops a reference. A block that the current plan writes keeps a reference until `end_plan`: swaps come first in
    /// a plan, so they would copy the block too early.
    pub(crate) fn free(&mut self, block: BlockId) {
        self.blocks.device.free(block);
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
            match self.blocks.device.find(key, planning, committed) {
                Some(block) => Some(Found::Device(block)),
                None => self.blocks.host.get(key).map(Found::Host),
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
        let Content { hash, tokens: (head, tail), .. } = content;
        debug_assert_eq!(head.len() + tail.len(), self.limits.block_size as usize, "full blocks alone have names");
        let is_first =
            self.limits.enable_prefix_caching && self.blocks.store(block, group, &content, filled, &mut self.logs);
        if is_first {
            self.hold_if_pinned(block, hash.of(group));
        }
        is_first
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
        if let Some(block) = self.blocks.device.get(key).filter(|_| filled.is_loaded) {
            self.blocks.device.mark_saved(block, Saved::For(Retention::Default));
        }
        self.save(key, retention);
    }

    /// Makes the device's block with these contents a candidate for a save, unless it was one already with at least
    /// this retention.
    pub(crate) fn save(&mut self, key: GroupHash, retention: Retention) {
        let Some(block) = self.blocks.device.get(key).filter(|_| self.limits.max_saving_blocks > 0) else { return };
        if let Some(Name { index, filled, .. }) = self.blocks.device.mark_saved(block, retention.into()) {
            self.saves.propose(Candidate { block, key, index, filled, retention });
        }
    }

    /// Cancels saves of a block whose contents may be written a second time. It is not saved while on the device, as
    /// the end of that write is not reported; a later copy on the host may be.
    pub(crate) fn withdraw_save(&mut self, block: BlockId) {
        self.saves.withdraw(block);
        self.blocks.device.mark_saved(block, Saved::Withdrawn);
    }

    /// Whether `take_saves` has candidates.
    pub(crate) fn has_saves(&self, committed: StepId) -> bool {
        self.saves.has_next(committed) || self.state_saves.has_next(committed)
    }

    /// Begins saves of blocks that steps before `committed` have filled. A block without other references is saved only
    /// while more blocks are available than all saves may take.
    pub(crate) fn take_saves(&mut self, committed: StepId) -> Vec<Save> {
        let mut taken = Vec::new();
        while let Some(Candidate { block, key, index, retention, .. }) = self.saves.next(committed) {
            let name = self.blocks.device.name(block).filter(|name| name.key == key && name.filled < committed);
            let is_scarce = self.num_available() <= i64::from(self.limits.max_saving_blocks);
            if name.is_none() || (self.references(block) == 0 && is_scarce) {
                self.saves.num_dropped += 1;
                continue;
            }
            self.blocks.device.hold(block);
            let id = self.new_save();
            self.saves.begin(id, block);
            taken.push(Save { id, hash: key.hash, group: key.group, index, block, retention });
        }
        while let Some(Candidate { block: state, key, index, retention, .. }) = self.state_saves.next(committed) {
            let device = &mut self.states.device;
            let name = device.name(state).filter(|name| name.key == key && name.filled < committed);
            let is_scarce = device.num_free() <= 2 + self.limits.max_saving_states();
            if name.is_none() || (device.references(state) == 0 && is_scarce) {
                self.state_saves.num_dropped += 1;
                continue;
            }
            device.hold(state);
            let id = self.new_save();
            self.state_saves.begin(id, state);
            let block = self.numbered(state);
            taken.push(Save { id, hash: key.hash, group: key.group, index, block, retention });
        }
        taken
    }

    fn new_save(&mut self) -> SaveId {
        let id = self.next_save;
        self.next_save = SaveId(id.0 + 1);
        id
    }

    /// The number of a state for a store, after all blocks.
    pub(crate) fn numbered(&self, state: StateId) -> BlockId {
        BlockId(self.limits.num_blocks + state.0)
    }

    /// Ends a save. False: there is no such save.
    pub(crate) fn finish_save(&mut self, save: SaveId) -> bool {
        if let Some(block) = self.saves.finish(save) {
            self.blocks.device.free(block);
            true
        } else if let Some(state) = self.state_saves.finish(save) {
            self.states.device.free(state);
            true
        } else {
            false
        }
    }

    /// Makes the state of this name a candidate for a save, as `save` does a block.
    pub(crate) fn save_state(&mut self, hash: BlockHash, retention: Retention) {
        let key = hash.of(self.state_group());
        let Some(state) = self.states.device.get(key).filter(|_| self.limits.max_saving_blocks > 0) else { return };
        if let Some(Name { index, filled, .. }) = self.states.device.mark_saved(state, retention.into()) {
            self.state_saves.propose(Candidate { block: state, key, index, filled, retention });
        }
    }

    /// Names a state that a load has written.
    pub(crate) fn store_loaded_state(&mut self, state: StateId, content: &Content<'_>, filled: StepId) {
        self.store_state(state, content, filled);
        let key = content.hash.of(self.state_group());
        if let Some(state) = self.states.device.get(key) {
            self.states.device.mark_saved(state, Saved::For(Retention::Default));
        }
    }

    /// A state's references from saves.
    pub(crate) fn saving_state_references(&self, state: StateId) -> u32 {
        self.state_saves.references(state)
    }

    /// The numbers of saves under way, and of candidates that were not saved.
    pub(crate) fn num_saving(&self) -> (usize, u64) {
        let num_dropped = self.saves.num_dropped + self.state_saves.num_dropped;
        (self.saves.num_under_way() + self.state_saves.num_under_way(), num_dropped)
    }

    /// A block's references from saves.
    pub(crate) fn saving_references(&self, block: BlockId) -> u32 {
        self.saves.references(block)
    }

    /// Pins these contents on the device: those that are there now, and the others once they are stored; and of a model
    /// with states the longest of the checkpoints after each block of the prefix.
    ///
    /// Errors: `DuplicatePin`, `PinQuota`, `PinnedStates`.
    pub(crate) fn pin(
        &mut self,
        name: u64,
        keys: Vec<GroupHash>,
        checkpoints: Vec<GroupHash>,
    ) -> crate::error::Result<()> {
        if self.limits.num_states > 0 && !self.pins.contains(name) {
            self.state_pins.check()?;
        }
        for key in self.pins.pin(name, keys)? {
            if let Some(block) = self.blocks.device.get(key) {
                self.hold_if_pinned(block, key);
            }
        }
        if self.limits.num_states > 0 {
            let find = |(index, key): (u32, &GroupHash)| Some((index, self.states.device.get(*key)?));
            let held = (0..).zip(&checkpoints).collect::<Vec<_>>().into_iter().rev().find_map(find);
            if let Some((_, state)) = held {
                self.states.device.hold(state);
            }
            self.state_pins.pin(name, checkpoints, held);
        }
        Ok(())
    }

    /// Removes a pin. False: there is no such pin.
    pub(crate) fn unpin(&mut self, name: u64) -> bool {
        let Some(blocks) = self.pins.unpin(name) else { return false };
        for block in blocks {
            self.blocks.device.free(block);
        }
        if let Some(state) = self.state_pins.unpin(name) {
            self.states.device.free(state);
        }
        true
    }

    /// The states that pins hold, once for each pin.
    pub(crate) fn pinned_states(&self) -> impl Iterator<Item = StateId> {
        self.state_pins.held()
    }

    /// Device blocks that pins hold.
    pub(crate) fn num_pinned(&self) -> u32 {
        self.pins.num_held()
    }

    /// A block's references from pins.
    pub(crate) fn pinned_references(&self, block: BlockId) -> u32 {
        u32::from(self.blocks.device.name(block).is_some_and(|name| self.pins.holds(block, name.key)))
    }

    /// Forgets the contents of all blocks on both tiers. Blocks in use stay in use. Pins hold no block until its
    /// contents are stored again.
    pub(crate) fn forget(&mut self) {
        self.blocks.forget();
        self.states.forget();
        self.saves.forget();
        self.state_saves.forget();
        for block in self.pins.release() {
            self.blocks.device.free(block);
        }
        for state in self.state_pins.release() {
            self.states.device.free(state);
        }
        self.logs.cleared();
    }

    /// Frees every block of both tiers after the loss of the device: no contents are known, and no swap is pending.
    /// Pins stay, but hold no blocks.
    pub(crate) fn clear(&mut self) {
        self.blocks = Tiers::new(self.limits.num_blocks, self.limits.num_host_blocks);
        self.states = Tiers::new(self.limits.num_states, self.limits.num_host_states);
        self.saves.clear();
        self.state_saves.clear();
        self.pins.release();
        self.state_pins.release();
        self.logs.cleared();
    }

    /// Events from number `first` on.
    pub(crate) fn events(&self, first: u64, limit: usize) -> Events {
        self.logs.events.events(first, limit)
    }

    /// All events from number `first` on, and the number of the first one that is still kept.
    pub(crate) fn events_since(&self, first: u64) -> (u64, impl ExactSizeIterator<Item = &KvEvent>) {
        self.logs.events.since(first)
    }

    /// All known contents, for a subscriber that has missed events.
    pub(crate) fn snapshot(&self) -> Snapshot {
        self.logs.events.snapshot()
    }

    /// Sets the numbers of changes that are kept, and reported at once.
    #[cfg(test)]
    pub(crate) fn limit_changes(&mut self, capacity: usize, max_told: usize) {
        self.logs.changes = ChangeLog::with_limits(capacity, max_told);
    }

    /// The log of changes to the contents known on any tier, kept from now on.
    pub(crate) fn changes(&mut self) -> &ChangeLog {
        self.logs.changes.begin();
        &self.logs.changes
    }

    /// The known contents in part `part` of all blocks and states; none after the last part.
    pub(crate) fn known_part(&self, part: usize) -> Option<impl Iterator<Item = Change>> {
        let size = self.logs.changes.max_told;
        let num_blocks = self.blocks.num_blocks();
        let num_all = num_blocks + self.states.num_blocks();
        let start = Some(part * size).filter(|&start| start < num_all)?;
        let names =
            (start..(start + size).min(num_all)).filter_map(move |number| match number.checked_sub(num_blocks) {
                None => self.blocks.name_at(number),
                Some(state) => self.states.name_at(state),
            });
        Some(names.map(|name| Change::Stored(name.key.short())))
    }

    /// See `Scheduler::audit`.
    pub(crate) fn audit(&self) -> Result<(), String> {
        self.blocks.audit()?;
        self.states.audit()?;
        self.pins.audit(|key| self.blocks.device.get(key))?;
        self.state_pins.audit(|state| self.states.device.name(state))?;
        self.logs.events.audit(self.blocks.known().chain(self.states.known()))?;
        let pinned = |block: &BlockId| self.pinned_references(*block) > self.references(*block);
        match (0..self.limits.num_blocks).map(BlockId).find(pinned) {
            Some(block) => Err(format!("block {block} is pinned and free")),
            None => Ok(()),
        }
    }

    /// Whether a tier has these contents, or a step in flight writes them.
    pub(crate) fn is_known(&self, key: GroupHash) -> bool {
        self.blocks.is_known(key)
    }

    /// The group of states' names, after those of blocks.
    pub(crate) fn state_group(&self) -> u32 {
        self.limits.groups.len() as u32
    }

    /// Whether a tier has, or a step in flight writes, the state at the end of the block of this hash.
    pub(crate) fn is_checkpoint(&self, hash: BlockHash) -> bool {
        self.states.is_known(hash.of(self.state_group()))
    }

    /// A state to write to, if one is free. Its old contents are written back.
    pub(crate) fn allocate_state(&mut self) -> Option<StateId> {
        self.states.allocate(false, &mut self.logs)
    }

    /// Names a state in use that ends where a block does by the block's contents; step `filled` writes it. False:
    /// another state has equal contents and keeps the name.
    pub(crate) fn store_state(&mut self, state: StateId, content: &Content<'_>, filled: StepId) -> bool {
        let group = self.state_group();
        let is_first = self.states.store(state, group, content, filled, &mut self.logs);
        let Self { states, state_pins, .. } = self;
        if let Some(name) = states.device.name(state).filter(|_| is_first) {
            state_pins.hold(state, name, |before| {
                states.device.hold(state);
                if let Some(before) = before {
                    states.device.free(before);
                }
            });
        }
        is_first
    }

    /// Forgets the contents of a state in use, or of a free one.
    pub(crate) fn forget_state(&mut self, state: StateId) {
        self.states.forget_block(state, &mut self.logs);
    }

    /// Assigns a host state for the contents of a state; none if the host has no room.
    pub(crate) fn swap_out_state(&mut self, state: StateId) -> Option<HostStateId> {
        self.states.swap_out(&[state], &mut self.logs)?.pop()
    }

    /// Assigns a state for the contents of a host state, which the caller gives up; none if no state is free.
    pub(crate) fn swap_in_state(&mut self, host: HostStateId) -> Option<StateId> {
        let state = self.states.swap_in(host, false, &mut self.logs);
        self.states.host.free(host);
        state
    }

    /// See `StatePins::longest_end`.
    pub(crate) fn pinned_end(&self, most: u32, hash_of: impl Fn(u32) -> BlockHash) -> u32 {
        self.state_pins.longest_end(most, |index| hash_of(index).of(self.state_group()))
    }

    fn hold_if_pinned(&mut self, block: BlockId, key: GroupHash) {
        if self.pins.hold(block, key) {
            self.blocks.device.hold(block);
        }
    }
}

#[cfg(test)]
mod tests;
