//! Preemption of running sequences, if blocks run out or a higher class waits. A preempted sequence is swapped to the
//! host or recomputed later, whichever is expected to cost less.

use crate::arena::Key;
use crate::ids::HostBlockId;
use crate::policy::Rank;
use crate::sequence::{Beam, Sequence, State};

use super::Scheduler;
use super::planning::{Planning, is_shared};
use super::step_scope::StepScope;

impl Scheduler {
    /// Preempts from the end of `running` until the blocks for the sequence's next tokens are free. False: they are
    /// not, and the sequence itself may have been preempted. Preempted sequences have no row yet: rows are planned from
    /// the front.
    pub(super) fn make_room(&mut self, key: Key<Sequence>, num_tokens: u32, planning: &mut Planning) -> bool {
        self.has_room(key, num_tokens) || self.preempt_until_room(key, num_tokens, planning)
    }

    fn preempt_until_room(&mut self, key: Key<Sequence>, num_tokens: u32, planning: &mut Planning) -> bool {
        while !self.has_room(key, num_tokens) {
            planning.ran_out_of_blocks = true;
            let victim = *self.running.last().expect("the sequence itself is running");
            // A sequence admitted in this plan may have swaps in it, so it keeps its blocks until the next.
            if self.sequences[victim].admitted == planning.step {
                return false;
            }
            self.running.pop();
            self.preempt_for(victim, planning);
            if victim == key {
                return false;
            }
        }
        true
    }

    /// Lets waiting sequences of a higher class preempt running ones, before any row is planned.
    pub(super) fn make_way(&mut self, planning: &mut Planning) {
        let mut is_worth_it = false; // for the first in the queue
        while let Some(waiting) = self.first_waiting(planning.turn) {
            let Some(&victim) = self.running.last() else { break };
            let first = &self.sequences[waiting];
            if first.num_in_flight > 0 || !self.may_take_the_place(first.queue_key.rank, victim, planning.turn) {
                break;
            }
            if self.free_slots.is_empty() || self.find_place(waiting, planning).is_err() {
                if !is_worth_it && !self.is_way_to_make(waiting, planning) {
                    break;
                }
                is_worth_it = true;
                self.running.pop();
                self.preempt_for(victim, planning);
            } else {
                self.admit_first(waiting, planning);
                is_worth_it = false;
            }
        }
    }

    /// Preempts a beam that waits for its siblings, so that the first in the queue can run; preferably one of another
    /// request. For a step that would have no rows. False: there is none.
    pub(super) fn set_back_waiting(&mut self, first: Key<Sequence>, planning: &mut Planning) -> bool {
        let request = self.sequences[first].request;
        let sequence = |place: usize| &self.sequences[self.running[place]];
        let waiting = || (0..self.running.len()).rev().filter(|&place| sequence(place).beam == Beam::Waiting);
        let of_another = waiting().find(|&place| sequence(place).request != request);
        let Some(place) = of_another.or_else(|| waiting().next()) else { return false };
        let victim = self.running.remove(place);
        self.preempt_for(victim, planning);
        true
    }

    /// Whether a waiting sequence would have room without all the sequences that it may preempt.
    fn is_way_to_make(&mut self, waiting: Key<Sequence>, planning: &mut Planning) -> bool {
        let rank = self.sequences[waiting].queue_key.rank;
        let may_go = |key: &&Key<Sequence>| self.may_take_the_place(rank, **key, planning.turn);
        let num_victims = self.running.iter().rev().take_while(may_go).count();
        let num_kept = self.running.len() - num_victims;
        num_kept == 0 || self.has_place_beside(waiting, num_kept, planning)
    }

    /// Whether a waiting sequence of this rank may preempt a running one. An isolated request is never preempted, since
    /// it might never end.
    fn may_take_the_place(&self, rank: Rank, of: Key<Sequence>, turn: StepScope) -> bool {
        let victim = &self.sequences[of];
        let is_isolated = matches!(turn, StepScope::AllBut(one) if victim.request == one);
        !is_isolated && self.policy.preempts(rank, victim.queue_key.rank)
    }

    fn preempt_for(&mut self, victim: Key<Sequence>, planning: &mut Planning) {
        let swapped = self.counters.num_swapped;
        self.preempt(victim);
        planning.knows_growth = false; // the victim was a part of it
        planning.num_preempted += 1;
        planning.num_swapped += (self.counters.num_swapped - swapped) as u32;
    }

    /// Preempts a running sequence to make room.
    pub(super) fn preempt(&mut self, key: Key<Sequence>) {
        self.counters.num_preemptions += 1;
        self.requests[self.sequences[key].request].num_preemptions += 1;
        self.take_back(key);
    }

    /// Swaps or frees the blocks of a running sequence, which the caller has removed from `running`, and queues it.
    pub(super) fn take_back(&mut self, key: Key<Sequence>) {
        let copies = if self.should_swap(key) { self.swap_out(key) } else { None };
        let num_computed = self.sequences[key].num_computed;
        self.vacate(key);
        let sequence = &mut self.sequences[key];
        let state = match copies {
            Some(copies) => {
                for (chain, (first, host_blocks)) in sequence.chains.iter_mut().zip(copies) {
                    (chain.host_first, chain.host_blocks) = (first, host_blocks);
                }
                sequence.num_computed = num_computed;
                self.counters.num_swapped += 1;
                State::Swapped
            }
            None => State::Preempted,
        };
        self.enqueue(key, state);
    }

    /// Queues swaps to the host. Gives, for each group, the index of the first block on the host, and the host blocks.
    fn swap_out(&mut self, key: Key<Sequence>) -> Option<Vec<(u32, Vec<HostBlockId>)>> {
        let sequence = &self.sequences[key];
        let end = self.config.blocks_for(sequence.num_computed);
        let blocks: Vec<_> = sequence.chains.iter().flat_map(|chain| chain.before(end)).copied().collect();
        let mut copies = self.cache.swap_out(&blocks)?.into_iter();
        let chains = sequence.chains.iter();
        let copies = chains.map(|chain| (chain.first, copies.by_ref().take(chain.before(end).len()).collect()));
        Some(copies.collect())
    }

    /// Whether swapping the blocks out and in costs less than recomputing the tokens.
    fn should_swap(&self, key: Key<Sequence>) -> bool {
        let sequence = &self.sequences[key];
        let end = self.config.blocks_for(sequence.num_computed);
        let num_blocks = sequence.chains.iter().map(|chain| chain.before(end).len() as u32).sum::<u32>();
        let is_whole = self.requests[sequence.request].request.needs_whole_prompt();
        if num_blocks == 0 || num_blocks > self.cache.num_host_free() || sequence.load.is_some() || is_whole {
            return false;
        }
        let swap = self.config.swap_block_seconds * f64::from(num_blocks);
        // Before any prefill is measured, swapping is taken to be cheaper.
        !self.times.is_measured() || swap <= self.times.prefill_seconds(sequence.num_computed)
    }

    /// Whether the blocks for the sequence's next tokens are free.
    pub(super) fn has_room(&self, key: Key<Sequence>, num_tokens: u32) -> bool {
        let sequence = &self.sequences[key];
        let (lowest, end) = (sequence.lowest(), sequence.num_computed + num_tokens);
        if end <= sequence.num_placed && !sequence.may_share {
            return true;
        }
        let written = sequence.num_computed / self.config.block_size;
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
}
