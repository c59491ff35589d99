//! Admission: the first in the queue runs when there is a free slot and blocks for all its tokens, not only the next
//! chunk, and the running sequences still have room to grow. It starts after its cached prefix.

use crate::arena::Key;
use crate::estimates::peak_blocks::Expected;
use crate::ids::StepId;
use crate::kv_cache::Found;
use crate::logprob_room::Share;
use crate::policy::INPUT_COST;
use crate::request::Request;
use crate::sequence::{Sequence, State};

use super::Scheduler;
use super::explain::Reason;
use super::planning::Planning;
use super::step_scope::StepScope;

impl Scheduler {
    /// Admits from the queue, in order, while budget, slots and blocks last.
    pub(super) fn admit(&mut self, planning: &mut Planning) {
        while let Some(key) = self.first_waiting(planning.turn) {
            if let Err(reason) = self.may_run(key, planning) {
                if planning.is_stalled && self.set_back_waiting(key, planning) {
                    continue;
                }
                planning.stop = Some((key, reason));
                break;
            }
            if self.admit_first(key, planning) {
                planning.is_stalled = false;
                let sequence = &self.sequences[key];
                let num_tokens =
                    self.fitting(sequence, self.chunk(sequence, planning), Share::Admissions, &planning.logprobs);
                self.plan_row(key, num_tokens, planning);
            }
        }
    }

    fn may_run(&mut self, key: Key<Sequence>, planning: &mut Planning) -> Result<(), Reason> {
        if planning.prefill_budget() == 0 {
            return Err(planning.budget_reason());
        }
        if self.free_slots.is_empty() {
            return Err(Reason::Slots);
        }
        let sequence = &self.sequences[key];
        // No row is planned while the sequence's last token is in flight, and none overtakes it.
        if sequence.num_in_flight > 0 {
            return Err(Reason::InFlight);
        }
        if sequence.num_samples > planning.samples || !self.may_begin(sequence, &planning.logprobs) {
            return Err(Reason::Samples);
        }
        self.find_place(key, planning)
    }

    /// Looks up the cached prefix of a queued sequence, into `found`, and checks that there are blocks for the rest.
    pub(super) fn find_place(&mut self, key: Key<Sequence>, planning: &mut Planning) -> Result<(), Reason> {
        let num_taken = self.find_cached(key, planning.step);
        let num_available = self.cache.num_available();
        if i64::from(num_taken) > num_available {
            return Err(Reason::Blocks);
        }
        if self.running.is_empty() || planning.is_stalled {
            return Ok(());
        }
        if i64::from(num_taken + self.config.watermark_blocks()) > num_available {
            return Err(Reason::Watermark);
        }
        if !planning.knows_growth {
            planning.knows_growth = true;
            self.expect_growth(self.running.len());
        }
        if self.has_room_to_grow(key, num_taken, 0) { Ok(()) } else { Err(Reason::Growth) }
    }

    /// Whether there would be room for a queued sequence with only the first `num_kept` running sequences.
    pub(super) fn has_place_beside(&mut self, key: Key<Sequence>, num_kept: usize, planning: &mut Planning) -> bool {
        let num_taken = self.find_cached(key, planning.step);
        let victims = &self.running[num_kept..];
        let num_freed = victims.iter().map(|&key| self.sequences[key].num_blocks()).sum();
        planning.knows_growth = false;
        self.expect_growth(num_kept);
        i64::from(num_taken + self.config.watermark_blocks()) <= self.cache.num_available() + i64::from(num_freed)
            && self.has_room_to_grow(key, num_taken, num_freed)
    }

    /// Looks up the cached prefix of a queued sequence, into `found`. Gives the available blocks that all of it takes.
    fn find_cached(&mut self, key: Key<Sequence>, planning: StepId) -> u32 {
        let committed = self.oldest_step();
        let num_offered = self.offered_blocks(key, false).unwrap_or(0);
        let sequence = &mut self.sequences[key];
        let live = &self.requests[sequence.request];
        let block_size = self.config.block_size;
        let num_known = sequence.num_known();
        // The last token is always computed, for its logits.
        let most = if live.shares_prefix(&self.config) { (num_known - 1) / block_size } else { 0 };
        sequence.hash_blocks(live, block_size, most, &mut self.hasher, self.config.separate_outputs);
        let has_already = sequence.num_computed.max(num_offered * block_size);
        let lowest = |num_cached: u32| (num_cached * block_size).max(has_already).min(num_known - 1);
        let hash_of = |index| sequence.hash(live, index);
        self.cache.find_start(most, hash_of, lowest, planning, committed, &mut self.found);

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

    /// Adds the expected growth of the first `num_running` running sequences to `peak_blocks`.
    fn expect_growth(&mut self, num_running: usize) {
        self.peak_blocks.clear();
        if self.config.expected_growth > 0.0 {
            for index in 0..num_running {
                let running = self.running[index];
                let one = self.expected(running, self.sequences[running].num_blocks());
                self.peak_blocks.add(one);
            }
        }
    }

    fn has_room_to_grow(&mut self, key: Key<Sequence>, num_taken: u32, num_freed: u32) -> bool {
        if self.config.expected_growth <= 0.0 {
            return true;
        }
        let one = self.expected(key, num_taken);
        let capacity = self.config.num_blocks - self.config.watermark_blocks();
        let num_used = i64::from(self.config.num_blocks) - self.cache.num_available() - i64::from(num_freed);
        let num_used = u32::try_from(num_used).unwrap_or(0);
        self.peak_blocks.fits(one, num_used, capacity)
    }

    fn expected(&mut self, key: Key<Sequence>, num_blocks: u32) -> Expected {
        let sequence = &self.sequences[key];
        let output = self.output_lengths.remaining(sequence.output.len() as u32) * self.config.expected_growth;
        let num_tokens = (output as u32).min(sequence.max_length - sequence.num_known());
        let num_growing = self.layout.growth(sequence.num_known(), num_tokens);
        Expected { num_blocks, num_growing: num_growing * sequence.num_samples }
    }

    /// Gives the first in the queue its slot and the blocks that `find_place` has found. False: it loads from an
    /// external store first.
    pub(super) fn admit_first(&mut self, key: Key<Sequence>, planning: &mut Planning) -> bool {
        let sequence = &self.sequences[key];
        let num_known = sequence.num_known();
        let lane = self.requests[sequence.request].lane;
        let queue_key = sequence.queue_key;
        self.num_swapped_out -= usize::from(sequence.state == State::Swapped);
        match planning.turn {
            StepScope::Only(_) => self.queue.remove(lane, &queue_key), // not in the order of the others
            StepScope::Everyone | StepScope::AllBut(_) => self.queue.take_first(lane, &queue_key),
        }
        if self.begin_asynchronous_load(key) {
            return false;
        }
        let slot = self.free_slots.pop().expect("the caller has looked");
        let sequence = &mut self.sequences[key];
        let request = sequence.request;
        sequence.state = State::Running(slot);
        sequence.admitted = planning.step;
        sequence.num_prompt_heard = 1;
        let Request { prompt, sampling, .. } = &self.requests[request].request;
        let history = sequence.is_stateful.then_some(&sequence.output[..]);
        self.draft.initialise_slot(slot, sampling, prompt, history);
        let (num_cached, num_on_host) = self.take_found(key, planning);
        self.take_swapped(key);

        let sequence = &mut self.sequences[key];
        sequence.num_stored = num_cached;
        let num_cached_tokens = num_cached * self.config.block_size;
        sequence.num_computed = sequence.num_computed.max(num_cached_tokens);
        for (group, (chain, layout)) in (0..).zip(sequence.chains.iter_mut().zip(&self.layout.groups)) {
            for _ in chain.end()..layout.end_block(self.found.lowest, num_known) {
                let block = self.cache.allocate(group);
                chain.blocks.push(block);
            }
        }
        sequence.note_placed(self.config.block_size);
        self.begin_load_in_step(key, planning);
        let sequence = &mut self.sequences[key];
        for (group, chain) in (0..).zip(&sequence.chains) {
            for (index, &block) in (chain.first..).zip(&chain.blocks) {
                self.draft.change_table(group, slot, index, block);
            }
        }
        if sequence.cached_tokens.is_none() {
            sequence.cached_tokens = Some(num_cached_tokens.min(sequence.num_prompt_tokens));
            self.counters.num_uncached_tokens += u64::from(sequence.num_uncomputed());
            if self.requests[request].shares_prefix(&self.config) {
                self.counters.prefix_queries += u64::from(sequence.num_known());
                self.counters.prefix_hits += u64::from(num_cached_tokens);
                self.counters.host_prefix_hits += u64::from(num_on_host * self.config.block_size);
                self.counters.loaded_prefix_hits += u64::from(sequence.num_awaited.min(num_cached_tokens));
            }
            let input = u64::from(sequence.num_uncomputed());
            sequence.service += input * INPUT_COST;
            if self.policy.shares_by_tenant() {
                self.queue.charge(lane, input * INPUT_COST);
            }
            self.note_scheduled(request);
        }
        if planning.knows_growth {
            let one = self.expected(key, self.sequences[key].num_blocks());
            self.peak_blocks.add(one);
        }
        self.insert_running(key);
        planning.num_admitted += 1;
        true
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
    fn take_found(&mut self, key: Key<Sequence>, planning: &Planning) -> (u32, u32) {
        self.hold_found();
        let mut on_host = 0;
        for (group, found) in (0..).zip(&self.found.chains) {
            let mut num_on_host = 0;
            self.sequences[key].chains[group as usize].first = found.first;
            for (index, &place) in (found.first..).zip(&found.blocks) {
                let sequence = &self.sequences[key];
                let live = &self.requests[sequence.request];
                let content = sequence.content(live, index, self.config.block_size);
                let block = match place {
                    Found::Device(block) => block,
                    Found::Host(host) => {
                        num_on_host += 1;
                        let block = self.cache.swap_in(host, group);
                        self.cache.free_host_block(host);
                        self.cache.store(block, group, content, planning.step);
                        block
                    }
                };
                self.cache.save(content.hash.of(group), live.request.kv_cache_retention);
                self.sequences[key].chains[group as usize].blocks.push(block);
            }
            on_host = num_on_host.max(on_host);
        }
        (self.found.length, on_host)
    }

    /// Swaps in the host blocks of a swapped sequence that the prefix cache does not have. Blocks of drafts that were
    /// dropped meanwhile are left out.
    fn take_swapped(&mut self, key: Key<Sequence>) {
        let sequence = &mut self.sequences[key];
        let end = self.config.blocks_for(sequence.num_computed);
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

    /// Tokens of a prefilling sequence that this step may compute.
    pub(super) fn chunk(&self, sequence: &Sequence, planning: &Planning) -> u32 {
        let lag = sequence.length() - sequence.num_computed;
        let cap = self.config.long_prefill_token_threshold;
        let num_placed = sequence.num_placed - sequence.num_computed;
        lag.min(planning.prefill_budget()).min(if cap == 0 { u32::MAX } else { cap }).min(num_placed)
    }
}
