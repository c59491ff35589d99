//! Preemption of running sequences, if blocks run out or a higher class waits. A preempted sequence is swapped to the
//! host or recomputed later, whichever is expected to cost less.

use crate::arena::Key;
use crate::kv::Kv;
use crate::observer::Observer;
use crate::planner::Planning;
use crate::policy::Rank;
use crate::steps::Turn;
use crate::table::Table;
use crate::table::sequence::{Beam, Sequence, State};

impl Planning<'_> {
    /// Preempts from the end of the running order until the blocks for the sequence's next tokens are free. False: they
    /// are not, and the sequence itself may have been preempted. Preempted sequences have no row yet: rows are planned
    /// from the front.
    #[inline]
    pub(super) fn make_room(&mut self, key: Key<Sequence>, num_tokens: u32) -> bool {
        self.kv.has_room(&self.table[key], num_tokens) || self.preempt_until_room(key, num_tokens)
    }

    fn preempt_until_room(&mut self, key: Key<Sequence>, num_tokens: u32) -> bool {
        while !self.kv.has_room(&self.table[key], num_tokens) {
            self.ran_out_of_blocks = true;
            let victim = *self.table.running().last().expect("the sequence itself is running");
            // A sequence admitted in this plan may have swaps in it, so it keeps its blocks until the next.
            if self.table[victim].admitted == self.step {
                return false;
            }
            self.preempt(victim);
            if victim == key {
                return false;
            }
        }
        true
    }

    /// Lets waiting sequences of a higher class preempt running ones, before any row is planned.
    pub(super) fn make_way(&mut self) {
        let mut is_worth_it = None; // the sequence for which it is
        while let Some((waiting, victim)) = self.next_to_make_way() {
            if self.table.num_free_slots() == 0 || self.find_place(waiting).is_err() {
                if is_worth_it != Some(waiting) && !self.is_way_to_make(waiting) {
                    break;
                }
                is_worth_it = Some(waiting);
                self.preempt(victim);
            } else {
                self.admit_first(waiting);
            }
        }
    }

    /// The next waiting sequence that may preempt a running one, and the running one. None is preempted for the sake of
    /// its adapter's slot.
    fn next_to_make_way(&mut self) -> Option<(Key<Sequence>, Key<Sequence>)> {
        let &victim = self.table.running().last()?;
        // One admitted in this plan has a slot in it already. It may have a lower rank than one whose adapter has got a
        // slot since; that one comes first in the next plan.
        if self.table[victim].admitted == self.step {
            return None;
        }
        // None after the first in the queue has a better rank, so that most steps end here.
        let first = self.first_waiting()?;
        if !self.may_take_the_place(self.table[first].queue_key().rank, victim) {
            return None;
        }
        let waiting = self.first_with_adapter()?;
        let sequence = &self.table[waiting];
        let may_preempt = sequence.num_in_flight == 0 && self.may_take_the_place(sequence.queue_key().rank, victim);
        may_preempt.then_some((waiting, victim))
    }

    /// Preempts a beam that waits for its siblings, so that the first in the queue can run; preferably one of another
    /// request. For a step that would have no rows. False: there is none.
    pub(super) fn set_back_waiting(&mut self, first: Key<Sequence>) -> bool {
        let request = self.table[first].request;
        let waiting = || {
            let running = self.table.running().iter().rev().copied();
            running.filter(|&key| self.table[key].beam == Beam::Waiting)
        };
        let of_another = waiting().find(|&key| self.table[key].request != request);
        let Some(victim) = of_another.or_else(|| waiting().next()) else { return false };
        self.preempt(victim);
        true
    }

    /// Whether a waiting sequence would have room without all the sequences that it may preempt.
    fn is_way_to_make(&mut self, waiting: Key<Sequence>) -> bool {
        let rank = self.table[waiting].queue_key().rank;
        let running = self.table.running();
        let num_victims = running.iter().rev().take_while(|&&key| self.may_take_the_place(rank, key)).count();
        let num_kept = running.len() - num_victims;
        num_kept == 0 || self.has_place_beside(waiting, num_kept)
    }

    /// Whether a waiting sequence of this rank may preempt a running one. An isolated request is never preempted, since
    /// it might never end.
    fn may_take_the_place(&self, rank: Rank, of: Key<Sequence>) -> bool {
        let victim = &self.table[of];
        let is_isolated = matches!(self.turn, Turn::AllBut(one) if victim.request == one);
        !is_isolated && self.table.ranking().preempts(rank, victim.queue_key().rank)
    }

    fn preempt(&mut self, victim: Key<Sequence>) {
        let is_swapped = preempt(victim, self.table, self.kv, self.observer);
        self.knows_growth = false; // the victim was a part of it
        self.num_preempted += 1;
        self.num_swapped += u32::from(is_swapped);
    }
}

/// Preempts a running sequence: swaps or frees its blocks, and queues it. True: it was swapped.
pub(crate) fn preempt(key: Key<Sequence>, table: &mut Table, kv: &mut Kv, observer: &mut Observer) -> bool {
    table.stop_running(key);
    let times = table.estimates().times;
    let (sequence, live) = table.pair_mut(key);
    live.num_preemptions += 1;
    let copies = if kv.should_swap(sequence, live, &times) { kv.swap_out(sequence) } else { None };
    let num_computed = sequence.num_computed;
    kv.vacate(key, table);
    let is_swapped = copies.is_some();
    if let Some(copies) = copies {
        let sequence = &mut table[key];
        for (chain, (first, host_blocks)) in sequence.chains.iter_mut().zip(copies.chains) {
            (chain.host_first, chain.host_blocks) = (first, host_blocks);
        }
        sequence.states.on_host = copies.state;
        sequence.num_computed = num_computed;
    }
    observer.preempted(is_swapped);
    table.enqueue(key, if is_swapped { State::Swapped } else { State::Preempted });
    is_swapped
}
