//! Admission: the first in the queue runs when there is a free slot and blocks for all its tokens, not only the next
//! chunk, and the running sequences still have room to grow. It starts after its cached prefix.

use crate::arena::Key;
use crate::estimates::peak_blocks::Expected;
use crate::kv::states::States;
use crate::observer::PrefixLookup;
use crate::observer::explain::Reason;
use crate::planner::Planning;
use crate::planner::logprob_room::Share;
use crate::policy::INPUT_COST;
use crate::steps::Turn;
use crate::table::sequence::{LiveRequest, Sequence};

impl Planning<'_> {
    /// Admits from the queue, in order, while budget, slots and blocks last.
    pub(super) fn admit(&mut self) {
        while let Some((key, may_run)) = self.next_waiting() {
            if let Err(reason) = may_run {
                if self.is_stalled && self.set_back_waiting(key) {
                    continue;
                }
                self.stop = Some((key, reason));
                break;
            }
            if self.admit_first(key) {
                self.is_stalled = false;
                let (sequence, live) = self.table.pair(key);
                let num_tokens = self.next_chunk(sequence, live, Share::Admissions);
                self.plan_rows(key, num_tokens);
            }
        }
    }

    /// The next in the queue, and whether it may run. One that lacks a slot for its adapter comes after all others.
    fn next_waiting(&mut self) -> Option<(Key<Sequence>, Result<(), Reason>)> {
        if let Err(reason) = self.has_room_for_any() {
            return self.first_waiting().map(|key| (key, Err(reason))); // without a search for one with an adapter
        }
        match self.first_with_adapter() {
            Some(key) => Some((key, self.may_run(key))),
            None => self.lacking.map(|key| (key, Err(Reason::Adapters))),
        }
    }

    fn has_room_for_any(&self) -> Result<(), Reason> {
        if self.budget.prefill_tokens() == 0 {
            return Err(self.budget.reason());
        }
        if self.table.num_free_slots() == 0 { Err(Reason::Slots) } else { Ok(()) }
    }

    fn may_run(&mut self, key: Key<Sequence>) -> Result<(), Reason> {
        let (sequence, live) = self.table.pair(key);
        // No row is planned while the sequence's last token is in flight, and none overtakes it.
        if sequence.num_in_flight > 0 {
            return Err(Reason::InFlight);
        }
        if sequence.num_samples > self.budget.samples || !self.may_begin(sequence, live) {
            return Err(Reason::Samples);
        }
        if self.config.whole_prompts && self.budget.chunk(sequence, self.config) == 0 {
            return Err(Reason::Budget);
        }
        self.find_place(key)
    }

    /// Whether there is room for the log-probabilities of a waiting sequence's first tokens, wherever it begins.
    fn may_begin(&self, sequence: &Sequence, live: &LiveRequest) -> bool {
        let (request, room) = (&live.request, &self.budget.logprobs);
        let is_bounded = request.prompt_logprobs || room.is_wide(request);
        !is_bounded || room.room(request, Share::Admissions) >= u64::from(sequence.num_samples)
    }

    /// Looks up the cached prefix of a queued sequence, and checks that there are blocks for the rest.
    pub(super) fn find_place(&mut self, key: Key<Sequence>) -> Result<(), Reason> {
        let num_taken = self.find_cached(key);
        let has_place = |states: &States| states.has_place(&self.table[key], self.kv.cache());
        if !self.kv.states().is_none_or(has_place) {
            return Err(Reason::States);
        }
        let num_available = self.kv.cache().num_available();
        if i64::from(num_taken) > num_available {
            return Err(Reason::Blocks);
        }
        if self.table.running().is_empty() || self.is_stalled {
            return Ok(());
        }
        if i64::from(num_taken + self.config.watermark_blocks()) > num_available {
            return Err(Reason::Watermark);
        }
        if !self.knows_growth {
            self.knows_growth = true;
            self.expect_growth(self.table.running().len());
        }
        if self.has_room_to_grow(key, num_taken, 0) { Ok(()) } else { Err(Reason::Growth) }
    }

    /// Whether there would be room for a queued sequence with only the first `num_kept` running sequences.
    pub(super) fn has_place_beside(&mut self, key: Key<Sequence>, num_kept: usize) -> bool {
        let num_taken = self.find_cached(key);
        let victims = &self.table.running()[num_kept..];
        let num_freed = victims.iter().map(|&key| self.table[key].num_blocks()).sum();
        self.knows_growth = false;
        self.expect_growth(num_kept);
        i64::from(num_taken + self.config.watermark_blocks()) <= self.kv.cache().num_available() + i64::from(num_freed)
            && self.has_room_to_grow(key, num_taken, num_freed)
    }

    fn find_cached(&mut self, key: Key<Sequence>) -> u32 {
        let (sequence, live) = self.table.pair_mut(key);
        self.kv.find(sequence, live, self.steps)
    }

    /// Adds the expected growth of the first `num_running` running sequences to `peak_blocks`.
    fn expect_growth(&mut self, num_running: usize) {
        self.planner.peak_blocks.clear();
        if self.config.expected_growth > 0.0 {
            for index in 0..num_running {
                let running = self.table.running()[index];
                let one = self.expected(running, self.table[running].num_blocks());
                self.planner.peak_blocks.add(one);
            }
        }
    }

    fn has_room_to_grow(&mut self, key: Key<Sequence>, num_taken: u32, num_freed: u32) -> bool {
        if self.config.expected_growth <= 0.0 {
            return true;
        }
        let one = self.expected(key, num_taken);
        let capacity = self.config.num_blocks - self.config.watermark_blocks();
        let num_available = self.kv.cache().num_available();
        let num_used = i64::from(self.config.num_blocks) - num_available - i64::from(num_freed);
        let num_used = u32::try_from(num_used).unwrap_or(0);
        self.planner.peak_blocks.fits(one, num_used, capacity)
    }

    fn expected(&self, key: Key<Sequence>, num_blocks: u32) -> Expected {
        let sequence = &self.table[key];
        let output_lengths = &self.table.estimates().output_lengths;
        let output = output_lengths.remaining(sequence.output.len() as u32) * self.config.expected_growth;
        let num_tokens = (output as u32).min(sequence.max_length - sequence.num_known());
        let num_growing = self.kv.layout().growth(sequence.num_known(), num_tokens);
        Expected { num_blocks, num_growing: num_growing * sequence.num_samples }
    }

    /// Gives the first in the queue its slot and the blocks that `find_place` has found. False: it loads from an
    /// external store first.
    pub(super) fn admit_first(&mut self, key: Key<Sequence>) -> bool {
        // In the turn of one request, and past one that lacks an adapter, it is not in the order of the others.
        self.table.take_from_queue(key, matches!(self.turn, Turn::Only(_)) || self.lacking.is_some());
        if self.kv.begin_asynchronous_load(key, self.table) {
            return false;
        }
        let slot = self.table.run(key, self.step);
        let adapter_slot = self.table.adapter_slot(key);
        let (sequence, live) = self.table.pair_mut(key);
        sequence.num_prompt_heard = 1;
        let history = sequence.is_stateful.then_some(&sequence.output[..]);
        let draft = &mut self.planner.draft;
        draft.initialise_slot(slot, &live.request.sampling, &live.request.prompt, history);
        if self.config.max_loras > 0 {
            draft.use_adapter(adapter_slot);
        }
        let (num_cached, num_on_host) = self.kv.admit(sequence, live, self.step);
        self.loads.extend(self.kv.begin_load_in_step(key, self.table, self.step));
        for (group, chain) in (0..).zip(&self.table[key].chains) {
            for (index, &block) in (chain.first..).zip(&chain.blocks) {
                draft.change_table(group, slot, index, block);
            }
        }
        if self.table[key].cached_tokens.is_none() {
            self.begin(key, num_cached, num_on_host);
        }
        if self.knows_growth {
            let one = self.expected(key, self.table[key].num_blocks());
            self.planner.peak_blocks.add(one);
        }
        self.num_admitted += 1;
        true
    }

    /// Notes the first admission of a sequence, with so many cached tokens, of which some were on the host.
    fn begin(&mut self, key: Key<Sequence>, num_cached: u32, num_on_host: u32) {
        let now = self.table.now();
        let (sequence, live) = self.table.pair_mut(key);
        sequence.cached_tokens = Some(num_cached.min(sequence.num_prompt_tokens));
        live.scheduled_at.get_or_insert(now);
        let lookup = self.kv.shares_prefix(live).then(|| PrefixLookup {
            known: sequence.num_known(),
            cached: num_cached,
            on_host: num_on_host,
            loaded: sequence.num_awaited.min(num_cached),
        });
        let input = sequence.num_uncomputed();
        self.observer.began(input, lookup);
        self.table.charge(key, u64::from(input) * INPUT_COST);
    }
}
