//! Rows: the next tokens of a running sequence as a part of the plan's buffer.

use crate::arena::Key;
use crate::plan::Draft;
use crate::planner::Planning;
use crate::planner::philox;
use crate::steps::{Gives, Row};
use crate::table::sequence::{Beam, LiveRequest, Sequence};

impl Planning<'_> {
    /// Plans the next tokens of a running sequence: in one row, or in several if states between them are kept.
    pub(super) fn plan_rows(&mut self, key: Key<Sequence>, num_tokens: u32) {
        let end = self.table[key].num_computed + num_tokens;
        while self.table[key].num_computed < end {
            let (sequence, live) = self.table.pair(key);
            let row_end = self.kv.row_end(sequence, live, end);
            self.plan_row(key, row_end - sequence.num_computed);
        }
        self.table[key].last_share = num_tokens;
    }

    /// Plans the next `num_tokens` tokens of a running sequence. The blocks for them are free.
    pub(super) fn plan_row(&mut self, key: Key<Sequence>, num_tokens: u32) {
        let block_size = self.config.block_size;
        let draft = &mut self.planner.draft;
        let (sequence, live) = self.table.pair_mut(key);
        let slot = sequence.slot().expect("the sequence is running");
        let (start, end) = (sequence.num_computed, sequence.num_computed + num_tokens);
        self.kv.prepare(sequence, end, draft);

        let is_decode = start + 1 >= sequence.num_known();
        let num_drafts = if is_decode && sequence.num_in_flight == 0 { num_tokens - 1 } else { 0 };
        let mut gives = if sequence.beam == Beam::None { Gives::Tokens } else { Gives::Candidates };
        if num_tokens == 1 && start >= sequence.num_prompt_tokens {
            write_token(sequence, block_size, draft);
        } else {
            if live.request.pools() {
                gives = Gives::Embedding; // it has no rows beyond its prompt
            }
            write_tokens(sequence, live, end, num_drafts, block_size, draft);
        }
        let num_samples = write_samples(sequence, end, num_drafts, draft);
        let may_go_back = num_drafts > 0 || sequence.is_stateful && num_samples > 0;
        self.kv.advance_state(sequence, end, may_go_back, draft);
        draft.end_row(slot, end);

        self.budget.logprobs.take(sequence, &live.request, num_tokens);
        self.budget.take(num_tokens, num_samples, is_decode);
        if is_decode {
            self.budget.heed_target(sequence);
        } else {
            self.num_prefill_tokens += num_tokens;
        }
        sequence.num_computed = end;
        sequence.num_in_flight += u32::from(num_samples > 0);
        sequence.awaits_commit = num_drafts > 0;
        if sequence.awaits_commit {
            sequence.drafts.truncate(num_drafts as usize);
        }
        self.kv.prune_states(sequence);
        sequence.last_step = self.step;
        sequence.last_share = num_tokens;
        let (is_verifying, is_stateful) = (num_drafts > 0, sequence.is_stateful);
        self.rows.push(Row { sequence: key, num_samples, is_verifying, is_stateful, gives });
        if sequence.has_block_to_store(block_size) {
            self.kv.store_full_blocks(sequence, live);
        }
    }
}

/// Writes the next token, which is one of the output or is in flight.
fn write_token(sequence: &mut Sequence, block_size: u32, draft: &mut Draft) {
    let start = sequence.num_computed;
    let output = (start - sequence.num_prompt_tokens) as usize;
    draft.tokens.push(sequence.output.get(output).copied().unwrap_or(-1));
    draft.positions.push(start as i32);
    let places = sequence.written.places(start / block_size, &sequence.chains, block_size);
    for (place, slot_mapping) in places.iter().zip(&mut draft.slot_mappings) {
        slot_mapping.push((place + start % block_size) as i32);
    }
}

/// Writes the next tokens before `end`, with drafts after the known ones.
fn write_tokens(
    sequence: &Sequence,
    live: &LiveRequest,
    end: u32,
    num_drafts: u32,
    block_size: u32,
    draft: &mut Draft,
) {
    let start = sequence.num_computed;
    let (head, tail) = sequence.tokens(&live.request.prompt, start, end.min(sequence.num_known()));
    draft.tokens.extend_from_slice(head);
    draft.tokens.extend_from_slice(tail);
    draft.tokens.extend_from_slice(&sequence.drafts[..num_drafts as usize]);
    draft.positions.extend(start as i32..end as i32);
    let first = start / block_size;
    for (chain, slot_mapping) in sequence.chains.iter().zip(&mut draft.slot_mappings) {
        let blocks = &chain.blocks[(first - chain.first) as usize..];
        for (index, block) in (first..end.div_ceil(block_size)).zip(blocks) {
            let (base, origin) = (block.0 * block_size, index * block_size);
            let offsets = start.max(origin) - origin..end.min(origin + block_size) - origin;
            slot_mapping.extend(offsets.map(|offset| (base + offset) as i32));
        }
    }
}

/// Writes the positions to sample, and gives their number.
fn write_samples(sequence: &Sequence, end: u32, num_drafts: u32, draft: &mut Draft) -> u32 {
    let position = sequence.length() - sequence.num_prompt_tokens;
    if num_drafts > 0 {
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
    }
}
