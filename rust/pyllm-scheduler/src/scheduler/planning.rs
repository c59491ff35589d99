//! Planning a step: what runs goes first, each sequence as far as its computed tokens lag behind, under one budget of
//! tokens. Where blocks run out, the sequence admitted last gives up its own.

use crate::arena::Key;
use crate::error::{Error, Result};
use crate::ids::{BlockId, StepId};
use crate::kv_cache::KvCache;
use crate::philox;
use crate::plan::Plan;
use crate::sequence::Sequence;

use super::{Row, Scheduler, Step};

/// The step being planned.
pub(super) struct Planning {
    pub(super) step: StepId,
    /// Tokens that may still be planned.
    pub(super) budget: u32,
    /// Positions that may still be sampled. Requests of many samples would else fill a step with a square of
    /// `max_num_seqs`; twice it leaves room for one of them beside all that decodes, so none waits for ever.
    pub(super) samples: u32,
    preempted: bool,
    rows: Vec<Row>,
}

impl Scheduler {
    /// Plans the next step, or `None` if nothing may be planned before a commit or a new request. It may be called
    /// again before the step is committed. `now` is seconds of a clock that never goes back.
    ///
    /// Errors: `Time`.
    pub fn schedule(&mut self, now: f64) -> Result<Option<Plan>> {
        if !now.is_finite() || now < self.now {
            return Err(Error::Time { now, previous: self.now });
        }
        self.now = now;
        self.draft.clear();
        let mut planning = Planning {
            step: self.next_step,
            budget: self.config.max_num_batched_tokens,
            samples: 2 * self.config.max_num_seqs,
            preempted: false,
            rows: self.spare_rows.pop().unwrap_or_default(),
        };
        planning.rows.clear();

        self.plan_running(&mut planning);
        if !planning.preempted {
            self.admit(&mut planning);
        }
        for block in self.copied.drain(..) {
            self.cache.free(block);
        }
        if planning.rows.is_empty() {
            self.spare_rows.push(planning.rows);
            return Ok(None);
        }
        for (source, destination) in self.slot_copies.drain(..) {
            self.draft.copy_slot(source, destination);
        }
        self.counters.num_steps += 1;
        self.counters.num_computed_tokens += u64::from(self.config.max_num_batched_tokens - planning.budget);
        self.next_step = StepId(planning.step.0 + 1);
        self.steps.push_back(Step { id: planning.step, rows: planning.rows });
        Ok(Some(self.draft.finish(planning.step)))
    }

    /// The oldest step that is not committed; all before it are.
    pub(super) fn oldest_step(&self) -> StepId {
        self.steps.front().map_or(self.next_step, |step| step.id)
    }

    fn plan_running(&mut self, planning: &mut Planning) {
        let mut index = 0;
        while index < self.running.len() && planning.budget > 0 {
            let key = self.running[index];
            let sequence = &self.sequences[key];
            if sequence.is_plannable() && sequence.num_samples <= planning.samples {
                let num_tokens = (sequence.length() - sequence.num_computed).min(planning.budget);
                if !self.make_room(key, num_tokens, planning) {
                    break;
                }
                self.plan_row(key, num_tokens, planning);
            }
            index += 1;
        }
    }

    /// Preempts from the end of `running` until the blocks for the sequence's next tokens are free. False: the sequence
    /// was the last, and is preempted itself.
    fn make_room(&mut self, key: Key<Sequence>, num_tokens: u32, planning: &mut Planning) -> bool {
        while self.num_blocks_to_take(key, num_tokens) > self.cache.num_free() {
            planning.preempted = true;
            let victim = self.running.pop().expect("the sequence itself is running");
            self.preempt(victim);
            if victim == key {
                return false;
            }
        }
        true
    }

    fn num_blocks_to_take(&self, key: Key<Sequence>, num_tokens: u32) -> u32 {
        let sequence = &self.sequences[key];
        let num_blocks = self.config.blocks_for(sequence.num_computed + num_tokens);
        let writes_shared = sequence.blocks.get((sequence.num_computed / self.config.block_size) as usize);
        let num_copies = u32::from(writes_shared.is_some_and(|&block| is_shared(&self.cache, &self.copied, block)));
        num_blocks - sequence.blocks.len() as u32 + num_copies
    }

    /// Plans the next `num_tokens` tokens of a running sequence. The blocks for them are free.
    pub(super) fn plan_row(&mut self, key: Key<Sequence>, num_tokens: u32, planning: &mut Planning) {
        let Self { config, cache, copied, draft, sequences, requests, .. } = self;
        let sequence = &mut sequences[key];
        let live = &requests[sequence.request];
        let slot = sequence.slot().expect("the sequence is running");
        let block_size = config.block_size;
        let (start, end) = (sequence.num_computed, sequence.num_computed + num_tokens);

        // Only the block that is partly full can be shared with another sample.
        let first = (start / block_size) as usize;
        if let Some(block) = sequence.blocks.get_mut(first).filter(|block| is_shared(cache, copied, **block)) {
            let copy = cache.allocate();
            draft.copy_block(*block, copy);
            draft.change_table(slot, first, copy);
            let source = std::mem::replace(block, copy);
            if copied.contains(&source) {
                cache.free(source);
            } else {
                copied.push(source);
            }
        }
        for index in sequence.blocks.len()..config.blocks_for(end) as usize {
            let block = cache.allocate();
            draft.change_table(slot, index, block);
            sequence.blocks.push(block);
        }

        let num_known = sequence.num_known();
        let (head, tail) = sequence.tokens(&live.request.prompt, start.min(num_known), end.min(num_known));
        draft.tokens.extend_from_slice(head);
        draft.tokens.extend_from_slice(tail);
        if end > num_known {
            draft.tokens.push(-1);
        }
        draft.positions.extend(start as i32..end as i32);
        for (index, block) in sequence.blocks.iter().enumerate().skip(first) {
            let (base, origin) = (block.0 * block_size, index as u32 * block_size);
            let offsets = start.max(origin) - origin..end.min(origin + block_size) - origin;
            draft.slot_mapping.extend(offsets.map(|offset| (base + offset) as i32));
        }

        let num_samples = if end == sequence.length() { sequence.num_samples } else { 0 };
        let position = sequence.length() - sequence.num_prompt_tokens;
        for sample in sequence.sample_range(num_samples) {
            draft.sample(philox::uniform(live.request.seed, position, sample));
        }
        draft.end_row(slot, end);

        sequence.num_computed = end;
        sequence.num_in_flight += u32::from(num_samples > 0);
        sequence.last_step = planning.step;
        planning.budget -= num_tokens;
        planning.samples -= num_samples;
        planning.rows.push(Row { sequence: key, num_samples });
        self.store_full_blocks(key);
    }

    /// Tells the prefix cache of the blocks that have become full of known tokens.
    pub(super) fn store_full_blocks(&mut self, key: Key<Sequence>) {
        let sequence = &mut self.sequences[key];
        let num_readable = sequence.num_known().min(sequence.num_computed) as usize;
        let block_size = self.config.block_size;
        if !self.config.enable_prefix_caching || num_readable < (sequence.num_stored + 1) * block_size as usize {
            return;
        }
        let live = &self.requests[sequence.request];
        let num_full = num_readable / block_size as usize;
        sequence.hash_blocks(live, block_size, num_full, &mut self.message);
        let blocks = &sequence.blocks[sequence.num_stored..num_full];
        for (hash, &block) in sequence.hashes(live).skip(sequence.num_stored).zip(blocks) {
            self.cache.store(hash, block, sequence.last_step);
        }
        sequence.num_stored = num_full;
    }
}

/// Whether more than one sequence refers to a block. What this step copies keeps one reference more until the plan is
/// made, so that no copy goes into a block that another copy reads.
fn is_shared(cache: &KvCache, copied: &[BlockId], block: BlockId) -> bool {
    let references = cache.references(block);
    references > 1 && references - u32::from(copied.contains(&block)) > 1
}
