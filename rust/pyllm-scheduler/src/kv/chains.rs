//! The blocks of sequences: found in the prefix cache, taken, written, shared, swapped and freed.

use crate::block_hash::BlockHash;
use crate::estimates::step_times::StepTimes;
use crate::ids::{BlockId, HostBlockId, HostStateId, StepId};
use crate::kv::Kv;
use crate::kv::cache::{Filled, Found, KvCache};
use crate::kv::states::States;
use crate::plan::Draft;
use crate::steps::Steps;
use crate::table::sequence::{LiveRequest, Sequence};

/// The blocks of a swapped sequence on the host, by group with the index of the first one, and its state.
pub(crate) struct SwappedOut {
    pub(crate) chains: Vec<(u32, Vec<HostBlockId>)>,
    pub(crate) state: Option<HostStateId>,
}

/// Blocks for sequences that are admitted.
impl Kv {
    /// Looks up the cached prefix of a queued sequence, and keeps it for `admit`. Gives the available blocks that all
    /// of the sequence takes.
    pub(crate) fn find(&mut self, sequence: &mut Sequence, live: &LiveRequest, steps: &Steps) -> u32 {
        let num_offered = self.offered_blocks(sequence, live, false).unwrap_or(0);
        let block_size = self.layout.block_size;
        let num_known = sequence.num_known();
        // The last token is always computed, for its logits.
        let mut most = if self.shares_prefix(live) { (num_known - 1) / block_size } else { 0 };
        sequence.hash_blocks(live, block_size, most, &mut self.hasher, self.separate_outputs);
        let has_own_state = sequence.states.on_host.is_some();
        if has_own_state {
            most = most.min(sequence.num_computed / block_size); // it continues where its state is
        }
        let has_already = sequence.num_computed.max(num_offered * block_size);
        let lowest = |num_cached: u32| (num_cached * block_size).max(has_already).min(num_known - 1);
        let hash_of = |index| sequence.hash(live, index);
        self.branch = if has_own_state {
            self.find_blocks(most, hash_of, lowest, steps)
        } else {
            self.find_start(most, hash_of, lowest, steps)
        } * block_size;

        let in_use = |found: &&Found| matches!(found, Found::Device(block) if self.cache.references(*block) > 0);
        let mut num_taken = 0;
        for (chain, group) in self.found.chains.iter().zip(&self.layout.groups) {
            num_taken += group.end_block(self.found.lowest, num_known) - chain.first;
            // A sequence that shares a block of a window will take another one in its place.
            if !group.has_window() {
                num_taken -= chain.blocks.iter().filter(in_use).count() as u32;
            }
        }
        num_taken
    }

    /// Finds the longest cached start, as `KvCache::find_start`, that ends at a checkpoint if the model has states. Gives
    /// the length in blocks of the longest one with or without.
    pub(super) fn find_start(
        &mut self,
        most: u32,
        hash_of: impl Fn(u32) -> BlockHash,
        lowest: impl Fn(u32) -> u32,
        steps: &Steps,
    ) -> u32 {
        let (planning, committed) = (steps.next(), steps.oldest());
        let longest = self.find_blocks(most, &hash_of, &lowest, steps);
        if let Some(states) = &mut self.states {
            loop {
                let length = states.find(self.found.length, &hash_of, planning, committed, &self.cache);
                if length == self.found.length {
                    break;
                }
                self.cache.find_start(length, &hash_of, &lowest, planning, committed, &mut self.found);
            }
        }
        longest
    }

    /// Finds the longest cached start, wherever it ends. Gives its length in blocks.
    fn find_blocks(
        &mut self,
        most: u32,
        hash_of: impl Fn(u32) -> BlockHash,
        lowest: impl Fn(u32) -> u32,
        steps: &Steps,
    ) -> u32 {
        self.states.iter_mut().for_each(States::find_none);
        self.cache.find_start(most, hash_of, lowest, steps.next(), steps.oldest(), &mut self.found);
        self.found.length
    }

    /// Gives an admitted sequence the prefix of the last `find`, its swapped blocks, and blocks for all other tokens.
    /// Returns the cached tokens, and how many of them were on the host.
    pub(crate) fn admit(&mut self, sequence: &mut Sequence, live: &LiveRequest, step: StepId) -> (u32, u32) {
        let block_size = self.layout.block_size;
        let (num_cached, num_on_host) = self.take_found(sequence, live, step);
        self.take_swapped(sequence);
        sequence.num_stored = num_cached;
        sequence.num_computed = sequence.num_computed.max(num_cached * block_size);
        if let Some(states) = &mut self.states {
            states.admit(sequence, live, step, &mut self.cache);
            sequence.states.branch = self.branch;
            sequence.states.pinned = self.pinned_end(sequence, live) * block_size;
        }
        let num_known = sequence.num_known();
        for (group, (chain, layout)) in (0..).zip(sequence.chains.iter_mut().zip(&self.layout.groups)) {
            for _ in chain.end()..layout.end_block(self.found.lowest, num_known) {
                let block = self.cache.allocate(group);
                chain.blocks.push(block);
            }
        }
        sequence.note_placed(block_size);
        (num_cached * block_size, num_on_host * block_size)
    }

    /// The end in blocks of the longest pinned prefix that a sequence begins with.
    fn pinned_end(&self, sequence: &Sequence, live: &LiveRequest) -> u32 {
        let most = if self.shares_prefix(live) { (sequence.num_known() - 1) / self.layout.block_size } else { 0 };
        self.cache.pinned_end(most, |index| sequence.hash(live, index))
    }

    /// Adds a reference to all found blocks before any is allocated, so that an allocation evicts none of them.
    pub(super) fn hold_found(&mut self) {
        for found in self.found.places() {
            match found {
                Found::Device(block) => self.cache.share(block),
                Found::Host(host) => self.cache.share_host(host),
            }
        }
    }

    /// Makes the found blocks the sequence's first ones; those on the host are swapped in. Gives the number of blocks
    /// of the prefix, and of those on the host, maximum over the groups. Also saves them, as their first request may
    /// have asked for a shorter retention, or none.
    fn take_found(&mut self, sequence: &mut Sequence, live: &LiveRequest, step: StepId) -> (u32, u32) {
        self.hold_found();
        let mut on_host = 0;
        for (group, found) in (0..).zip(&self.found.chains) {
            let mut num_on_host = 0;
            sequence.chains[group as usize].first = found.first;
            for (index, &place) in (found.first..).zip(&found.blocks) {
                let content = sequence.content(live, index, self.layout.block_size);
                let block = match place {
                    Found::Device(block) => block,
                    Found::Host(host) => {
                        num_on_host += 1;
                        let block = self.cache.swap_in(host, group);
                        self.cache.free_host_block(host);
                        self.cache.store(block, group, content, step);
                        block
                    }
                };
                self.cache.save(content.hash.of(group), live.request.kv_cache_retention);
                sequence.chains[group as usize].blocks.push(block);
            }
            on_host = num_on_host.max(on_host);
        }
        (self.found.length, on_host)
    }

    /// Swaps in the host blocks of a swapped sequence that the prefix cache does not have. Blocks of drafts that were
    /// dropped meanwhile are left out.
    fn take_swapped(&mut self, sequence: &mut Sequence) {
        let end = self.layout.blocks_for(sequence.num_computed);
        for (group, chain) in (0..).zip(&mut sequence.chains) {
            let mut host_blocks = std::mem::take(&mut chain.host_blocks);
            let missing = chain.end()..end;
            for (_, &host) in (chain.host_first..).zip(&host_blocks).filter(|(index, _)| missing.contains(index)) {
                let block = self.cache.swap_in(host, group);
                chain.blocks.push(block);
            }
            self.cache.free_host(&mut host_blocks);
            chain.host_first = 0;
        }
    }
}

/// Blocks of running sequences.
impl Kv {
    /// Whether the blocks for a running sequence's next tokens are free.
    #[inline]
    pub(crate) fn has_room(&self, sequence: &Sequence, num_tokens: u32) -> bool {
        let end = sequence.num_computed + num_tokens;
        end <= sequence.num_placed && !sequence.may_share || self.has_room_before(sequence, end)
    }

    fn has_room_before(&self, sequence: &Sequence, end: u32) -> bool {
        let lowest = sequence.lowest();
        let written = sequence.num_computed / self.layout.block_size;
        let (mut num_taken, mut num_let_go) = (0, 0);
        for (chain, &group) in sequence.chains.iter().zip(&self.layout.groups) {
            num_taken += i64::from(group.end_block(lowest, end).saturating_sub(chain.end()));
            num_let_go += i64::from(group.first_block(lowest).saturating_sub(chain.first));
            if sequence.may_share {
                let is_copied = |block| is_shared(&self.cache, &self.copied, block);
                num_taken += i64::from(chain.get(written).is_some_and(is_copied));
            }
        }
        num_taken == 0 || num_taken - num_let_go <= self.cache.num_available()
    }

    /// Whether a sequence has the blocks for its tokens before `end`, as many as it may have at once.
    pub(crate) fn has_blocks(&self, sequence: &Sequence, end: u32) -> bool {
        let lowest = sequence.lowest();
        let mut chains = sequence.chains.iter().zip(&self.layout.groups);
        chains.all(|(chain, group)| chain.end() >= group.end_block(lowest, end))
    }

    /// Gives a running sequence the blocks for its tokens before `end`, which are free, as many as it may have at once.
    /// Those outside their windows are freed first.
    pub(crate) fn extend(&mut self, sequence: &mut Sequence, end: u32, draft: &mut Draft) {
        self.let_go(sequence);
        self.extend_chains(sequence, end, draft);
    }

    /// Makes the places of the tokens before `end` writable: it has blocks for them, and shares none with other samples.
    #[inline]
    pub(crate) fn prepare(&mut self, sequence: &mut Sequence, end: u32, draft: &mut Draft) {
        let is_extended = end > sequence.num_placed;
        if is_extended {
            self.let_go(sequence);
        }
        if sequence.may_share {
            self.copy_shared(sequence, draft);
        }
        if is_extended {
            self.extend_chains(sequence, end, draft);
        }
    }

    /// Stores the full blocks of known tokens of a running sequence in the prefix cache.
    pub(crate) fn store_full_blocks(&mut self, sequence: &mut Sequence, live: &LiveRequest) {
        if !self.enable_prefix_caching || sequence.load.is_some() || sequence.slot().is_none() {
            return;
        }
        let block_size = self.layout.block_size;
        let num_full = sequence.num_readable() / block_size;
        sequence.hash_blocks(live, block_size, num_full, &mut self.hasher, self.separate_outputs);
        let retention = live.request.kv_cache_retention;
        for index in sequence.num_stored..num_full {
            let content = sequence.content(live, index, block_size);
            let filled = Filled { step: sequence.last_step, is_loaded: index < sequence.num_loaded };
            for (group, chain) in (0..).zip(&sequence.chains) {
                if let Some(block) = chain.get(index) {
                    self.cache.store_for(block, group, content, filled, retention);
                }
            }
        }
        sequence.num_stored = num_full;
        if let (Some(states), Some(index)) = (&mut self.states, num_full.checked_sub(1)) {
            states.store(sequence, live, index, &mut self.cache);
        }
    }

    /// Cancels saves of the block whose last token is computed again, while a save might read it.
    pub(crate) fn withdraw_save(&mut self, sequence: &Sequence) {
        let written = sequence.num_computed / self.layout.block_size;
        if written < sequence.num_stored {
            for block in sequence.chains.iter().filter_map(|chain| chain.get(written)) {
                self.cache.withdraw_save(block);
            }
        }
    }

    /// Whether a fork can run on its origin's blocks: all but the last token are computed, and there is room.
    pub(crate) fn can_share(&self, origin: &Sequence) -> bool {
        // Blocks for uncomputed tokens exist already, but only one sequence may write them. The same goes for a named
        // block that will be written again.
        let is_named = origin.num_stored * self.layout.block_size > origin.num_computed;
        let num_shared = self.layout.blocks_for(origin.num_computed);
        let in_windows = origin.chains.iter().zip(&self.layout.groups).filter(|(_, group)| group.has_window());
        let num_owed: i64 = in_windows.map(|(chain, _)| chain.before(num_shared).len() as i64).sum();
        let has_room = num_owed == 0 || num_owed <= self.cache.num_available();
        let has_room = has_room && (self.states.is_none() || States::can_share(&self.cache));
        origin.num_uncomputed() <= 1 && origin.load.is_none() && !is_named && has_room
    }

    /// Lets a fork run on its origin's blocks of computed tokens.
    pub(crate) fn share(&mut self, origin: &mut Sequence, fork: &mut Sequence) {
        // Blocks after the computed tokens are the origin's alone.
        let num_shared = self.layout.blocks_for(origin.num_computed);
        fork.num_computed = origin.num_computed;
        fork.num_stored = origin.num_stored;
        for (chain, of) in fork.chains.iter_mut().zip(&origin.chains) {
            chain.first = of.first;
            chain.blocks.extend_from_slice(of.before(num_shared));
            chain.blocks.iter().for_each(|&block| self.cache.share(block));
        }
        if self.states.is_some() {
            States::share(origin, fork, &mut self.cache);
        }
        fork.note_placed(self.layout.block_size);
        (fork.may_share, origin.may_share) = (true, true);
    }

    /// Frees the blocks that are outside their windows, before the sequence takes others.
    fn let_go(&mut self, sequence: &mut Sequence) {
        let lowest = sequence.lowest();
        for (chain, group) in sequence.chains.iter_mut().zip(&self.layout.groups) {
            let first = group.first_block(lowest);
            if first > chain.first {
                for block in chain.blocks.drain(..(first - chain.first) as usize) {
                    self.cache.free(block);
                }
                chain.first = first;
            }
        }
    }

    fn extend_chains(&mut self, sequence: &mut Sequence, end: u32, draft: &mut Draft) {
        let slot = sequence.slot().expect("the sequence is running");
        let lowest = sequence.lowest();
        for (group, (of_group, chain)) in (0..).zip(self.layout.groups.iter().zip(&mut sequence.chains)) {
            for index in chain.end()..of_group.end_block(lowest, end) {
                let block = self.cache.allocate(group);
                draft.change_table(group, slot, index, block);
                chain.blocks.push(block);
            }
        }
        sequence.note_placed(self.layout.block_size);
    }

    /// Gives a running sequence a copy of the block that it writes first, if another sample refers to it. Only a partly
    /// full block can be shared like this.
    fn copy_shared(&mut self, sequence: &mut Sequence, draft: &mut Draft) {
        let Self { cache, copied, layout, .. } = self;
        let slot = sequence.slot().expect("the sequence is running");
        let written = sequence.num_computed / layout.block_size;
        for (group, chain) in (0..).zip(&mut sequence.chains) {
            let Some(block) = chain.get(written).filter(|&block| is_shared(cache, copied, block)) else { continue };
            let copy = cache.allocate(group);
            draft.copy_block(block, copy);
            draft.change_table(group, slot, written, copy);
            chain.blocks[(written - chain.first) as usize] = copy;
            sequence.written.forget();
            if copied.contains(&block) {
                cache.free(block);
            } else {
                copied.push(block);
            }
        }
    }
}

/// States of running sequences.
impl Kv {
    /// The end of the row that begins a part of a sequence's next tokens, up to `end`. See `States::row_end`.
    pub(crate) fn row_end(&self, sequence: &Sequence, live: &LiveRequest, end: u32) -> u32 {
        self.states.as_ref().map_or(end, |states| states.row_end(sequence, live, end))
    }

    /// Writes the states of a row, which computes a sequence's tokens up to `end`. `keeps`: see `States::advance`.
    pub(crate) fn advance_state(&mut self, sequence: &mut Sequence, end: u32, keeps: bool, draft: &mut Draft) {
        if let Some(states) = &mut self.states {
            let (source, destination) = states.advance(sequence, end, keeps, &mut self.cache);
            draft.use_states(source, destination);
        }
    }

    /// Frees the states of a sequence that no row will read, after one is planned.
    pub(crate) fn prune_states(&mut self, sequence: &mut Sequence) {
        if self.states.is_some() {
            States::prune(sequence, &mut self.cache);
        }
    }

    /// Goes back to a state after `num_computed` of a sequence's tokens or fewer. False: there is none, and the
    /// sequence must be preempted.
    pub(crate) fn rewind_state(&mut self, sequence: &mut Sequence) -> bool {
        self.states.is_none() || sequence.slot().is_none() || States::rewind(sequence, &mut self.cache)
    }
}

/// Blocks of sequences that stop running.
impl Kv {
    /// Frees the blocks of a sequence, on the device and the host.
    pub(crate) fn free(&mut self, sequence: &mut Sequence) {
        for chain in &mut sequence.chains {
            self.cache.free_chain(&mut chain.blocks);
            self.cache.free_host(&mut chain.host_blocks);
            (chain.first, chain.host_first) = (0, 0);
        }
        if self.states.is_some() {
            States::free(sequence, &mut self.cache);
        }
        sequence.written.forget();
        (sequence.num_computed, sequence.num_placed) = (0, 0);
        sequence.may_share = false;
    }

    /// Frees the blocks of a sequence on the host.
    pub(crate) fn free_host(&mut self, sequence: &mut Sequence) {
        for chain in &mut sequence.chains {
            self.cache.free_host(&mut chain.host_blocks);
            chain.host_first = 0;
        }
        sequence.states.on_host.take().into_iter().for_each(|host| self.cache.states.host.free(host));
    }

    /// Whether swapping the blocks out and in costs less than recomputing the tokens.
    pub(crate) fn should_swap(&self, sequence: &Sequence, live: &LiveRequest, times: &StepTimes) -> bool {
        let end = self.layout.blocks_for(sequence.num_computed);
        let num_blocks = sequence.chains.iter().map(|chain| chain.before(end).len() as u32).sum::<u32>();
        let has_room = num_blocks <= self.cache.blocks.host.num_free();
        let keeps_state = self.states.is_none() || States::can_swap_out(sequence, &self.cache);
        let is_whole = live.request.needs_whole_prompt();
        if num_blocks == 0 || !has_room || !keeps_state || sequence.load.is_some() || is_whole {
            return false;
        }
        let swap = self.swap_block_seconds * f64::from(num_blocks) + self.swap_state_seconds;
        // Before any prefill is measured, swapping is taken to be cheaper.
        !times.is_measured() || swap <= times.prefill_seconds(sequence.num_computed)
    }

    /// Queues swaps to the host. Gives, for each group, the index of the first block on the host, and the host blocks;
    /// and the host state of a model with states.
    pub(crate) fn swap_out(&mut self, sequence: &Sequence) -> Option<SwappedOut> {
        let end = self.layout.blocks_for(sequence.num_computed);
        let blocks: Vec<_> = sequence.chains.iter().flat_map(|chain| chain.before(end)).copied().collect();
        let mut copies = self.cache.swap_out(&blocks)?.into_iter();
        let chains = sequence.chains.iter();
        let copies = chains.map(|chain| (chain.first, copies.by_ref().take(chain.before(end).len()).collect()));
        let chains = copies.collect();
        let state = self.states.as_ref().and_then(|_| States::swap_out(sequence, &mut self.cache));
        Some(SwappedOut { chains, state })
    }
}

/// Whether more than one sequence refers to a block. Sources of copies keep an extra reference until the plan is made,
/// so that no copy overwrites the source of another.
fn is_shared(cache: &KvCache, copied: &[BlockId], block: BlockId) -> bool {
    let references = cache.references(block);
    references > 1 && references - u32::from(copied.contains(&block)) > 1
}
