//! Planning a step: the uncomputed tokens of every running sequence, under one token budget. Decodes go first, limited
//! prefills next so that no stream waits longer than its target, then the queue. Knows no sampled token and no client.

mod admit;
mod budget;
mod decodes;
mod drafts;
pub(crate) mod logprob_room;
pub(crate) mod preempt;
pub(crate) mod philox;
mod prefills;
mod prompt_lookup;
mod rows;
mod share;
pub(crate) mod turns;

use crate::arena::Key;
use crate::config::{Config, Pause};
use crate::estimates::peak_blocks::PeakBlocks;
use crate::ids::{LoadId, StepId};
use crate::kv::Kv;
use crate::kv::cache::pending_swaps::Swap;
use crate::observer::Observer;
use crate::observer::explain::{Decision, Reason};
use crate::plan::{Draft, Plan};
use crate::planner::budget::Budget;
use crate::planner::share::StepShare;
use crate::planner::turns::Turns;
use crate::steps::{Row, Step, Steps, Turn};
use crate::table::Table;
use crate::table::sequence::Sequence;

/// The planner's memory between steps: whose turn is next, and buffers that keep their memory.
pub(crate) struct Planner {
    turns: Turns,
    draft: Draft,
    peak_blocks: PeakBlocks,
    lagging: Vec<Key<Sequence>>,
    wide: Vec<Key<Sequence>>,
}

impl Planner {
    pub(crate) fn new(config: &Config) -> Self {
        Self {
            turns: Turns::default(),
            draft: Draft::new(config.kv_groups.len(), config.max_num_seqs),
            peak_blocks: PeakBlocks::default(),
            lagging: Vec::new(),
            wide: Vec::new(),
        }
    }

    pub(crate) fn turns(&self) -> &Turns {
        &self.turns
    }

    pub(crate) fn turns_mut(&mut self) -> &mut Turns {
        &mut self.turns
    }

    /// Plans the next step, and adds it to those in flight; none if it would have no row and no swap.
    pub(crate) fn plan(
        &mut self,
        config: &Config,
        table: &mut Table,
        kv: &mut Kv,
        steps: &mut Steps,
        observer: &mut Observer,
    ) -> Option<Plan> {
        self.turns.forget_ended(table);
        self.draft.clear();
        let planning = Planning {
            step: steps.next(),
            turn: Turn::Everyone,
            budget: Budget::new(config),
            ran_out_of_blocks: false,
            num_preempted: 0,
            num_swapped: 0,
            num_admitted: 0,
            num_prefill_tokens: 0,
            knows_growth: false,
            is_stalled: false,
            stop: None,
            lacking: None,
            cut: None,
            rows: steps.take_rows(),
            loads: Vec::new(),
            planner: self,
            config,
            table,
            kv,
            steps,
            observer,
        };
        planning.plan()
    }
}

/// The plan in progress.
struct Planning<'a> {
    config: &'a Config,
    table: &'a mut Table,
    kv: &'a mut Kv,
    steps: &'a mut Steps,
    observer: &'a mut Observer,
    planner: &'a mut Planner,
    step: StepId,
    turn: Turn,
    budget: Budget,
    ran_out_of_blocks: bool,
    num_preempted: u32,
    num_swapped: u32,
    num_admitted: u32,
    num_prefill_tokens: u32,
    /// Whether `peak_blocks` has the running sequences.
    knows_growth: bool,
    /// Whether no running sequence can continue unless one is admitted: all wait for their siblings.
    is_stalled: bool,
    /// The first sequence that was not admitted, and the reason.
    stop: Option<(Key<Sequence>, Reason)>,
    /// The first in the queue that lacks a slot of the device for its adapter, as of the last search for one that may
    /// run.
    lacking: Option<Key<Sequence>>,
    /// The reason for the first running sequence without a row.
    cut: Option<Reason>,
    rows: Vec<Row>,
    loads: Vec<LoadId>,
}

impl Planning<'_> {
    fn plan(mut self) -> Option<Plan> {
        if self.config.pause == Pause::All {
            return self.pause();
        }
        self.table.order_running();
        for turn in self.planner.turns.to_try() {
            (self.turn, self.stop, self.lacking, self.cut) = (turn, None, None, None);
            self.plan_turn();
            if !self.rows.is_empty() {
                break;
            }
        }
        self.kv.end_copies();
        // The sequences left in the queue are not of this turn, or kept from beginning.
        self.stop = self.stop.or_else(|| self.table.queue().first().map(|key| (key, self.reason_to_sit_out(key))));
        self.finish()
    }

    /// Ends the plan without rows. Swaps stay pending, with the blocks that they read.
    fn pause(mut self) -> Option<Plan> {
        self.stop = self.table.queue().first().map(|key| (key, Reason::Paused));
        self.note_decision();
        self.steps.recycle(self.rows);
        None
    }

    fn plan_turn(&mut self) {
        self.make_way();
        let is_whole = self.config.pipeline_parallel_size == 1 || self.planner.turns.is_isolating();
        // While a request is isolated there is one step at a time, and each takes all.
        self.budget.share =
            if is_whole { StepShare::WHOLE } else { StepShare::of_next(self.config, self.table, self.steps) };
        self.decodes();
        if self.budget.share.has_passed_over && self.rows.is_empty() {
            // The sequences that were to come first found no block.
            self.budget.share = self.budget.share.with_all_decodes();
            self.decodes();
        }
        let times = self.table.estimates().times;
        self.budget.bound_prefills(self.config, |seconds| times.prefill_tokens_within(seconds));
        self.prefills();
        self.is_stalled = self.rows.is_empty() && self.steps.is_empty();
        if self.ran_out_of_blocks && !self.is_stalled {
            self.stop = self.first_waiting().map(|key| (key, self.blocks_reason()));
        } else {
            self.admit();
        }
        let stop = self.stop.map(|(_, reason)| reason);
        self.planner.turns.end(self.turn, !self.rows.is_empty(), stop);
    }

    /// Notes the decision, and gives the number of tokens in the step.
    fn note_decision(&mut self) -> u32 {
        let num_tokens = self.config.max_num_batched_tokens - self.budget.tokens;
        let decision = Decision {
            step: self.step,
            now: self.table.now(),
            num_rows: self.rows.len() as u32,
            num_tokens,
            num_prefill_tokens: self.num_prefill_tokens,
            num_admitted: self.num_admitted,
            num_preempted: self.num_preempted,
            num_swapped: self.num_swapped,
            num_running: self.table.running().len() as u32,
            num_waiting: self.table.queue().len() as u32,
            num_free_blocks: self.kv.cache().num_free(),
            stop: self.stop.map(|(_, reason)| reason),
        };
        self.observer.decided(decision, self.stop.map(|(key, _)| key), self.cut, self.turn);
        self.table.note_decision(self.lacking.is_some());
        num_tokens
    }

    fn finish(mut self) -> Option<Plan> {
        let num_tokens = self.note_decision();
        // Without rows, a plan is still needed for swaps: an asynchronous load may overwrite a swapped-out block.
        let cache = self.kv.cache_mut();
        if self.rows.is_empty() && !cache.has_swaps() {
            cache.end_plan();
            self.steps.recycle(self.rows);
            return None;
        }
        let draft = &mut self.planner.draft;
        for (source, destination) in self.table.take_slot_copies() {
            draft.copy_slot(source, destination);
        }
        for (slot, adapter) in self.table.take_adapter_loads() {
            draft.load_adapter(slot, adapter);
        }
        for (swap, name) in cache.drain_swaps() {
            match swap {
                Swap::Out { device, host } => draft.swap_out(device, host, name.map(|name| (name.key, name.index))),
                Swap::In { host, device } => draft.swap_in(host, device),
            }
        }
        for (swap, name) in cache.states.drain_swaps() {
            match swap {
                Swap::Out { device, host } => {
                    draft.swap_out_state(device, host, name.map(|name| (name.key, name.index)));
                }
                Swap::In { host, device } => draft.swap_in_state(host, device),
            }
        }
        cache.end_plan();
        self.observer.planned(num_tokens);
        self.steps.push(Step {
            id: self.step,
            rows: self.rows,
            num_tokens,
            num_prefill_tokens: self.num_prefill_tokens,
            planned_at: self.table.now(),
            loads: self.loads,
        });
        Some(draft.finish(self.step))
    }

    /// The first in the queue that may have a row in this turn.
    fn first_waiting(&self) -> Option<Key<Sequence>> {
        if self.config.pause == Pause::None {
            return self.planner.turns.first_waiting(self.turn, self.table);
        }
        self.planner.turns.first_waiting_of(self.turn, self.table, |key| self.may_run_now(key))
    }

    /// Whether no pause keeps a waiting sequence from running.
    fn may_run_now(&self, key: Key<Sequence>) -> bool {
        self.config.pause == Pause::None || self.table.pair(key).1.has_begun()
    }

    fn reason_to_sit_out(&self, key: Key<Sequence>) -> Reason {
        if self.may_run_now(key) { Reason::Isolation } else { Reason::Paused }
    }

    /// The first in the queue that may have a row in this turn, and whose adapter has a slot of the device or can have
    /// one; `lacking` is the first that is passed over. No request after that one begins to use the least recently
    /// used adapter, so that its slot becomes free.
    fn first_with_adapter(&mut self) -> Option<Key<Sequence>> {
        if self.config.max_loras == 0 {
            return self.first_waiting();
        }
        let (table, turn, mut lacking) = (&*self.table, self.turn, None);
        let is_paused = self.config.pause != Pause::None;
        let slots = table.adapter_slots();
        let draining = slots.least_recent();
        let first = self.planner.turns.first_waiting_of(turn, table, |key| {
            let (_, live) = table.pair(key);
            if is_paused && !live.has_begun() {
                return false;
            }
            let adapter = live.request.adapter_number;
            let may_use = lacking.is_none() || Some(adapter) != draining || table.has_running(live);
            let may_run = adapter == 0 || (slots.has_room(adapter) && may_use);
            if !may_run {
                lacking.get_or_insert(key);
            }
            may_run
        });
        self.lacking = lacking;
        first
    }

    /// Whether a sequence may have a row in this turn.
    fn may_have_row(&self, sequence: &Sequence) -> bool {
        sequence.may_have_row(self.config.pipeline_parallel_size > 1) && self.turn.admits(sequence.request)
    }

    /// The reason for which the rest gets no rows, after a running sequence found no block.
    fn blocks_reason(&self) -> Reason {
        if self.num_preempted > 0 { Reason::Preempting } else { Reason::Blocks }
    }

    /// Notes the reason for which a running sequence has no row, if it is the first.
    fn cut(&mut self, reason: Reason) {
        self.cut.get_or_insert(reason);
    }
}
