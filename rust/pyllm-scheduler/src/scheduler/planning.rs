//! Planning a step: the uncomputed tokens of every running sequence, under one token budget. Decodes go first, limited
//! prefills next so that no stream waits longer than its target, then the queue.

use crate::arena::Key;
use crate::error::Result;
use crate::ids::{BlockId, LoadId, StepId};
use crate::kv_cache::pending_swaps::Swap;
use crate::kv_cache::{Filled, KvCache};
use crate::kv_layout::KvLayout;
use crate::logprob_room::{LogprobRoom, Share};
use crate::philox;
use crate::plan::{Draft, Plan};
use crate::recorder::Input;
use crate::sequence::{Beam, Sequence};

use super::explain::{Decision, Reason};
use super::step_scope::{StepScope, StepShare};
use super::{Gives, Row, Scheduler, Step};

/// The plan in progress.
pub(super) struct Planning {
    pub(super) step: StepId,
    pub(super) turn: StepScope,
    /// Remaining token budget.
    budget: u32,
    /// Number of decodes that this step may have.
    share: StepShare,
    /// Remaining prefill tokens, by this step's share or the targets of running streams; and which of both.
    prefill_room: u32,
    prefill_bound: Reason,
    /// Remaining positions to sample. Requests with many samples would otherwise fill a step with `max_num_seqs`
    /// squared positions; twice `max_num_seqs` leaves room for one of them beside all decodes, so none waits for ever.
    pub(super) samples: u32,
    pub(super) logprobs: LogprobRoom,
    /// The shortest inter-token target of its streams, and the target of streams without one of their own.
    inter_token_target: f64,
    default_target: f64,
    pub(super) ran_out_of_blocks: bool,
    pub(super) num_preempted: u32,
    pub(super) num_swapped: u32,
    pub(super) num_admitted: u32,
    num_prefill_tokens: u32,
    pub(super) knows_growth: bool,
    /// Whether no running sequence can continue unless one is admitted: all wait for their siblings.
    pub(super) is_stalled: bool,
    /// The first sequence that was not admitted, and the reason.
    pub(super) stop: Option<(Key<Sequence>, Reason)>,
    /// The reason for the first running sequence without a row.
    cut: Option<Reason>,
    rows: Vec<Row>,
    pub(super) loads: Vec<LoadId>,
}

impl Planning {
    pub(super) fn prefill_budget(&self) -> u32 {
        self.budget.min(self.prefill_room)
    }

    pub(super) fn budget_reason(&self) -> Reason {
        if self.budget == 0 { Reason::Budget } else { self.prefill_bound }
    }

    /// The reason for which the rest gets no rows, after a running sequence found no block.
    fn blocks_reason(&self) -> Reason {
        if self.num_preempted > 0 { Reason::Preempting } else { Reason::Blocks }
    }

    pub(super) fn has_rows(&self) -> bool {
        !self.rows.is_empty()
    }

    /// Respects the target of a stream that waits for the step's end, with or without a row in it.
    fn heed_target(&mut self, sequence: &Sequence) {
        let target = sequence.tpot_target.unwrap_or(self.default_target);
        self.inter_token_target = self.inter_token_target.min(target);
    }

    fn cut(&mut self, reason: Reason) {
        self.cut.get_or_insert(reason);
    }
}

impl Scheduler {
    /// Plans the next step, or `None` if none is possible before a commit or a new request. May be called again before
    /// the step is committed. `now` is in seconds of a clock that never goes back.
    ///
    /// Errors: `Time`.
    pub fn schedule(&mut self, now: f64) -> Result<Option<Plan>> {
        self.set_time(now)?;
        self.num_inputs += 1;
        let plan = self.plan_step();
        if let Some(recorder) = &mut self.recorder {
            recorder.record_plan(&Input::Schedule { now }, plan.as_ref());
        }
        Ok(plan)
    }

    /// The oldest uncommitted step.
    pub(super) fn oldest_step(&self) -> StepId {
        self.steps.front().map_or(self.next_step, |step| step.id)
    }

    fn plan_step(&mut self) -> Option<Plan> {
        self.end_expired();
        self.draft.clear();
        let mut planning = Planning {
            step: self.next_step,
            turn: StepScope::Everyone,
            budget: self.config.max_num_batched_tokens,
            share: StepShare::WHOLE,
            prefill_room: u32::MAX,
            prefill_bound: Reason::InterTokenTarget,
            samples: 2 * self.config.max_num_seqs,
            logprobs: LogprobRoom::new(&self.config),
            inter_token_target: f64::INFINITY,
            default_target: Some(self.config.inter_token_target)
                .filter(|&target| target > 0.0)
                .unwrap_or(f64::INFINITY),
            ran_out_of_blocks: false,
            num_preempted: 0,
            num_swapped: 0,
            num_admitted: 0,
            num_prefill_tokens: 0,
            knows_growth: false,
            is_stalled: false,
            stop: None,
            cut: None,
            rows: self.spare_rows.pop().unwrap_or_default(),
            loads: Vec::new(),
        };
        planning.rows.clear();

        self.order_running();
        for turn in self.turns().into_iter().flatten() {
            (planning.turn, planning.stop, planning.cut) = (turn, None, None);
            self.plan_turn(&mut planning);
            if planning.has_rows() {
                break;
            }
        }
        for block in self.copied.drain(..) {
            self.cache.free(block);
        }
        // The sequences left in the queue are not of this turn.
        planning.stop = planning.stop.or_else(|| self.queue.first().map(|key| (key, Reason::Isolation)));
        self.finish_plan(planning)
    }

    fn plan_turn(&mut self, planning: &mut Planning) {
        self.make_way(planning);
        planning.share = self.step_share();
        self.plan_decodes(planning);
        if planning.share.has_passed_over && !planning.has_rows() {
            // The sequences that were to come first found no block.
            planning.share = planning.share.with_all_decodes();
            self.plan_decodes(planning);
        }
        self.bound_prefills(planning);
        self.plan_prefills(planning);
        planning.is_stalled = planning.rows.is_empty() && self.steps.is_empty();
        if planning.ran_out_of_blocks && !planning.is_stalled {
            planning.stop = self.first_waiting(planning.turn).map(|key| (key, planning.blocks_reason()));
        } else {
            self.admit(planning);
        }
        self.end_turn(planning);
    }

    fn finish_plan(&mut self, planning: Planning) -> Option<Plan> {
        self.decisions.push(
            Decision {
                step: planning.step,
                now: self.now,
                num_rows: planning.rows.len() as u32,
                num_tokens: self.config.max_num_batched_tokens - planning.budget,
                num_prefill_tokens: planning.num_prefill_tokens,
                num_admitted: planning.num_admitted,
                num_preempted: planning.num_preempted,
                num_swapped: planning.num_swapped,
                num_running: self.running.len() as u32,
                num_waiting: self.queue.len() as u32,
                num_free_blocks: self.cache.num_free(),
                stop: planning.stop.map(|(_, reason)| reason),
            },
            planning.stop.map(|(key, _)| key),
            planning.cut,
            planning.turn,
        );
        // Without rows, a plan is still needed for swaps: an asynchronous load may overwrite a swapped-out block.
        if planning.rows.is_empty() && !self.cache.has_swaps() {
            self.cache.end_plan();
            self.spare_rows.push(planning.rows);
            return None;
        }
        for (source, destination) in self.slot_copies.drain(..) {
            self.draft.copy_slot(source, destination);
        }
        for (swap, name) in self.cache.drain_swaps() {
            match swap {
                Swap::Out { device, host } => self.draft.swap_out(device, host, name),
                Swap::In { host, device } => self.draft.swap_in(host, device),
            }
        }
        self.cache.end_plan();
        self.counters.num_steps += 1;
        let num_tokens = self.config.max_num_batched_tokens - planning.budget;
        self.counters.num_computed_tokens += u64::from(num_tokens);
        if num_tokens > 0 {
            self.counters.iteration_tokens.add(num_tokens.into()); // others only move blocks
        }
        self.next_step = StepId(planning.step.0 + 1);
        let num_prefill_tokens = planning.num_prefill_tokens;
        let Planning { step, rows, loads, .. } = planning;
        self.steps.push_back(Step { id: step, rows, num_tokens, num_prefill_tokens, planned_at: self.now, loads });
        Some(self.draft.finish(planning.step))
    }

    /// Plans the decodes: rows of one token or with drafts. Others are left for `plan_prefills`.
    fn plan_decodes(&mut self, planning: &mut Planning) {
        self.lagging.clear();
        self.choose_wide(&planning.logprobs, planning.turn);
        let mut index = 0;
        while index < self.running.len() {
            let key = self.running[index];
            let sequence = &self.sequences[key];
            if planning.budget == 0 {
                planning.cut(Reason::Budget);
                break;
            }
            if self.may_have_row(sequence) && planning.turn.admits(sequence.request) {
                let is_due = self.is_due(sequence);
                let is_wide = self.is_wide(key, &planning.logprobs);
                let lag = sequence.length() - sequence.num_computed;
                if lag > 1 || sequence.num_samples > 1 {
                    if self.take_blocks(key, lag, planning) {
                        self.lagging.push(key);
                    } else {
                        planning.cut(planning.blocks_reason());
                    }
                } else if !planning.share.admit_decode(is_due) {
                    planning.cut(Reason::Pipeline);
                    planning.heed_target(sequence);
                } else if planning.samples == 0 || is_wide && !self.wide.contains(&key) {
                    planning.cut(Reason::Samples);
                } else if sequence.num_computed >= sequence.num_placed
                    && sequence.num_computed >= self.layout.reach(sequence.lowest())
                {
                    planning.cut(Reason::InFlight); // a window only moves on with known tokens
                } else if self.speculate(key) {
                    planning.heed_target(&self.sequences[key]);
                } else {
                    let sequence = &self.sequences[key];
                    // Drafts use the budget that is left after every stream's next token.
                    let num_others = (self.running.len() - index) as u32;
                    let left = planning.budget.min(planning.samples).saturating_sub(num_others);
                    let mut most = if is_wide { 0 } else { sequence.num_drafts().min(left) };
                    if most > 0 {
                        most = most.min(self.layout.reach(sequence.lowest()) - sequence.num_computed - 1);
                    }
                    // No sequence is preempted for drafts.
                    let num_drafts = if most > 0 && self.has_room(key, 1 + most) { most } else { 0 };
                    // Without room the loop continues: each sequence admitted in this plan must have its row.
                    if self.make_room(key, 1 + num_drafts, planning) {
                        self.plan_row(key, 1 + num_drafts, planning);
                        planning.share.take(is_due);
                    } else {
                        planning.cut(planning.blocks_reason());
                    }
                }
            } else if sequence.awaits_commit && planning.turn.admits(sequence.request) {
                planning.heed_target(sequence);
            }
            index += 1;
        }
    }

    /// Gives a sequence the blocks for all its tokens, `lag` of them uncomputed. Forced tokens came after its
    /// admission.
    fn take_blocks(&mut self, key: Key<Sequence>, lag: u32, planning: &mut Planning) -> bool {
        let sequence = &self.sequences[key];
        let end = sequence.num_computed + lag;
        if has_blocks(sequence, end, &self.layout) {
            return true;
        }
        if !self.make_room(key, lag, planning) {
            return false;
        }
        let Self { layout, sequences, cache, draft, .. } = self;
        let sequence = &mut sequences[key];
        let_go(sequence, layout, cache);
        extend_chains(sequence, end, layout, cache, draft);
        true
    }

    /// Limits prefills by the targets of the step's streams, and by the step's share of all prefill tokens. At least
    /// one block is always computed. In a pipeline a token takes as many steps as there are stages.
    fn bound_prefills(&self, planning: &mut Planning) {
        (planning.prefill_room, planning.prefill_bound) = (planning.share.prefill_tokens, Reason::Pipeline);
        if planning.inter_token_target.is_finite() {
            let target = planning.inter_token_target / f64::from(self.config.pipeline_parallel_size);
            let num_tokens = self.times.prefill_tokens_within(target).max(self.config.block_size);
            if num_tokens <= planning.prefill_room {
                (planning.prefill_room, planning.prefill_bound) = (num_tokens, Reason::InterTokenTarget);
            }
        }
    }

    /// Plans chunks of prompts, which have their blocks since admission.
    fn plan_prefills(&mut self, planning: &mut Planning) {
        let lagging = std::mem::take(&mut self.lagging);
        for &key in &lagging {
            if planning.prefill_budget() == 0 {
                planning.cut(planning.budget_reason());
                break;
            }
            let sequence = &self.sequences[key];
            if sequence.slot().is_none() {
                continue; // preempted for a decode
            }
            if sequence.num_samples > planning.samples {
                planning.cut(Reason::Samples);
                continue;
            }
            let num_tokens =
                self.fitting(sequence, self.chunk(sequence, planning), Share::Prefills, &planning.logprobs);
            if num_tokens == 0 {
                planning.cut(Reason::Samples);
                continue;
            }
            self.plan_row(key, num_tokens, planning);
        }
        self.lagging = lagging;
    }

    /// Plans the next `num_tokens` tokens of a running sequence. The blocks for them are free.
    pub(super) fn plan_row(&mut self, key: Key<Sequence>, num_tokens: u32, planning: &mut Planning) {
        let Self { config, layout, cache, copied, draft, sequences, requests, .. } = self;
        let sequence = &mut sequences[key];
        let slot = sequence.slot().expect("the sequence is running");
        let block_size = config.block_size;
        let (start, end) = (sequence.num_computed, sequence.num_computed + num_tokens);

        let is_extended = end > sequence.num_placed;
        if is_extended {
            let_go(sequence, layout, cache);
        }
        let first = start / block_size;
        if sequence.may_share {
            copy_shared(sequence, first, cache, copied, draft);
        }
        if is_extended {
            extend_chains(sequence, end, layout, cache, draft);
        }

        let num_known = sequence.num_known();
        let is_decode = start + 1 >= num_known;
        let mut gives = if sequence.beam == Beam::None { Gives::Tokens } else { Gives::Candidates };
        let num_drafts = if is_decode && sequence.num_in_flight == 0 { num_tokens - 1 } else { 0 };
        if num_tokens == 1 && start >= sequence.num_prompt_tokens {
            let output = (start - sequence.num_prompt_tokens) as usize;
            draft.tokens.push(sequence.output.get(output).copied().unwrap_or(-1));
            draft.positions.push(start as i32);
            let places = sequence.written.places(first, &sequence.chains, block_size);
            for (place, slot_mapping) in places.iter().zip(&mut draft.slot_mappings) {
                slot_mapping.push((place + start % block_size) as i32);
            }
        } else {
            let request = &requests[sequence.request].request;
            if request.pools() {
                gives = Gives::Embedding; // it has no rows beyond its prompt
            }
            let (head, tail) = sequence.tokens(&request.prompt, start, end.min(num_known));
            draft.tokens.extend_from_slice(head);
            draft.tokens.extend_from_slice(tail);
            draft.tokens.extend_from_slice(&sequence.drafts[..num_drafts as usize]);
            draft.positions.extend(start as i32..end as i32);
            for (chain, slot_mapping) in sequence.chains.iter().zip(&mut draft.slot_mappings) {
                let blocks = &chain.blocks[(first - chain.first) as usize..];
                for (index, block) in (first..config.blocks_for(end)).zip(blocks) {
                    let (base, origin) = (block.0 * block_size, index * block_size);
                    let offsets = start.max(origin) - origin..end.min(origin + block_size) - origin;
                    slot_mapping.extend(offsets.map(|offset| (base + offset) as i32));
                }
            }
        }

        let position = sequence.length() - sequence.num_prompt_tokens;
        let num_samples = if num_drafts > 0 {
            for draft_index in 0..=num_drafts {
                let uniform = philox::uniform(sequence.seed, position + draft_index, sequence.sample);
                draft.sample_at(num_drafts - draft_index, uniform);
            }
            num_drafts + 1
        } else if end == sequence.length() {
            for sample in sequence.sample_range(sequence.num_samples) {
                draft.sample_at(0, philox::uniform(sequence.seed, position, sample));
            }
            sequence.num_samples
        } else {
            0
        };
        planning.logprobs.take(sequence, &requests[sequence.request].request, num_tokens);
        draft.end_row(slot, end);

        if is_decode {
            planning.heed_target(sequence);
        } else {
            planning.num_prefill_tokens += num_tokens;
            planning.prefill_room = planning.prefill_room.saturating_sub(num_tokens);
        }
        sequence.num_computed = end;
        sequence.num_in_flight += u32::from(num_samples > 0);
        sequence.awaits_commit = num_drafts > 0;
        if sequence.awaits_commit {
            sequence.drafts.truncate(num_drafts as usize);
        }
        sequence.last_step = planning.step;
        sequence.last_share = num_tokens;
        planning.budget -= num_tokens;
        planning.samples -= num_samples;
        planning.rows.push(Row {
            sequence: key,
            num_samples,
            is_verifying: num_drafts > 0,
            is_stateful: sequence.is_stateful,
            gives,
        });
        if sequence.has_block_to_store(block_size) {
            self.store_full_blocks(key);
        }
    }

    /// Stores the full blocks of known tokens of a running sequence in the prefix cache.
    pub(super) fn store_full_blocks(&mut self, key: Key<Sequence>) {
        let sequence = &mut self.sequences[key];
        if !self.config.enable_prefix_caching || sequence.load.is_some() || sequence.slot().is_none() {
            return;
        }
        let live = &self.requests[sequence.request];
        let block_size = self.config.block_size;
        let num_full = sequence.num_readable() / block_size;
        sequence.hash_blocks(live, block_size, num_full, &mut self.hasher, self.config.separate_outputs);
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
    }
}

/// Whether a sequence has the blocks for its tokens before `end`, as many as it may have at once.
fn has_blocks(sequence: &Sequence, end: u32, layout: &KvLayout) -> bool {
    let lowest = sequence.lowest();
    let mut chains = sequence.chains.iter().zip(&layout.groups);
    chains.all(|(chain, group)| chain.end() >= group.end_block(lowest, end))
}

/// Frees the blocks that are outside their windows, before the sequence takes others.
fn let_go(sequence: &mut Sequence, layout: &KvLayout, cache: &mut KvCache) {
    let lowest = sequence.lowest();
    for (chain, group) in sequence.chains.iter_mut().zip(&layout.groups) {
        let first = group.first_block(lowest);
        if first > chain.first {
            for block in chain.blocks.drain(..(first - chain.first) as usize) {
                cache.free(block);
            }
            chain.first = first;
        }
    }
}

/// Gives a running sequence new blocks for its tokens before `end`, as many as it may have at once.
fn extend_chains(sequence: &mut Sequence, end: u32, layout: &KvLayout, cache: &mut KvCache, draft: &mut Draft) {
    let slot = sequence.slot().expect("the sequence is running");
    let lowest = sequence.lowest();
    for (group, (of_group, chain)) in (0..).zip(layout.groups.iter().zip(&mut sequence.chains)) {
        for index in chain.end()..of_group.end_block(lowest, end) {
            let block = cache.allocate(group);
            draft.change_table(group, slot, index, block);
            chain.blocks.push(block);
        }
    }
    sequence.note_placed(layout.block_size);
}

/// Gives a running sequence a copy of the block that it writes first, if another sample refers to it. Only a partly
/// full block can be shared like this.
fn copy_shared(
    sequence: &mut Sequence,
    written: u32,
    cache: &mut KvCache,
    copied: &mut Vec<BlockId>,
    draft: &mut Draft,
) {
    let slot = sequence.slot().expect("the sequence is running");
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

/// Whether more than one sequence refers to a block. Sources of copies keep an extra reference until the plan is made,
/// so that no copy overwrites the source of another.
pub(super) fn is_shared(cache: &KvCache, copied: &[BlockId], block: BlockId) -> bool {
    let references = cache.references(block);
    references > 1 && references - u32::from(copied.contains(&block)) > 1
}
