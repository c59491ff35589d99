//! Committing a step: sampled tokens become output, drafts are accepted or dropped, samples fork, and ended sequences
//! free their blocks and slots.

use crate::arena::Key;
use crate::error::{Error, Result};
use crate::estimates::core_load::work;
use crate::ids::{ClientId, StepId};
use crate::output::deltas::Delta;
use crate::output::embeddings::Embeddings;
use crate::output::logprobs::{LogprobView, Logprobs};
use crate::policy::OUTPUT_COST;
use crate::recorder::Input;
use crate::request::Finish;
use crate::sequence::{Sample, Sequence, State};

use super::{Gives, Row, Scheduler, Step};

impl Scheduler {
    /// Commits the oldest step in flight: row i of its plan sampled `tokens[starts[i]..starts[i + 1]]`. A row with
    /// drafts may have sampled fewer positions than planned, at least one; drafts are accepted while they equal the
    /// sampled tokens. A row of a stateful request may have no tokens, and its last one is planned again; or, if it has
    /// one sample, any number, all of which count: the accepted drafts, the sampled token, and tokens that are forced
    /// to follow. A beam continues with the candidates of its row's first position; its sampled token does not count.
    /// Tokens of sequences that ended meanwhile are dropped. A row of a pooling request ends it, with its row of
    /// `embeddings`; without `embeddings`, as in a replay, clients get none. `seconds` is the measured duration of the
    /// step, 0 if unknown. Gives the clients with pending deltas.
    ///
    /// Errors: `UnknownStep`, `OutOfOrder`, `Sampled`.
    pub fn commit(
        &mut self,
        step: StepId,
        starts: &[i32],
        tokens: &[i32],
        seconds: f64,
        logprobs: Option<&Logprobs>,
        embeddings: Option<&Embeddings>,
    ) -> Result<&[ClientId]> {
        let oldest = self.oldest_step();
        if !self.steps.iter().any(|planned| planned.id == step) {
            return Err(Error::UnknownStep { step });
        }
        if step != oldest {
            return Err(Error::OutOfOrder { step, oldest });
        }
        if let Err(problem) = self.check_result(&self.steps[0], starts, tokens, logprobs, embeddings) {
            return Err(Error::Sampled { step, problem });
        }
        let deciding = self.recorder.as_ref().and_then(|_| self.deciding(&self.steps[0], starts, logprobs));
        self.record(|| Input::Commit {
            step,
            starts: starts.to_vec(),
            tokens: tokens.to_vec(),
            seconds,
            logprobs: deciding,
        });
        let Some(step) = self.steps.pop_front() else { return Err(Error::UnknownStep { step }) };
        // Steps with drafts only take longer than those that decodes are planned for.
        if step.num_prefill_tokens > 0 || step.rows.iter().all(|row| !row.is_verifying) {
            self.times.measure(step.num_prefill_tokens, seconds);
        }
        let num_outputs = step.num_tokens - step.num_prefill_tokens;
        self.step_sums.measure(work(step.num_prefill_tokens, num_outputs), seconds);
        self.note_committed(step.planned_at, seconds);
        self.finish_loads_of(step.loads);
        if let Some(logprobs) = logprobs.filter(|logprobs| !logprobs.prompt_tokens.is_empty()) {
            self.tell_prompts(step.id, &step.rows, starts, logprobs);
        }
        self.outbox.begin_round();
        let mut any_ended = false;
        for (index, (row, range)) in step.rows.iter().zip(starts.windows(2)).enumerate() {
            if row.num_samples == 0 {
                continue;
            }
            let Some(sequence) = self.sequences.get_mut(row.sequence) else { continue };
            sequence.num_in_flight -= 1;
            if step.id < sequence.valid_from {
                sequence.awaits_commit = sequence.num_in_flight > 0;
                continue;
            }
            let sampled = &tokens[range[0] as usize..range[1] as usize];
            let logprobs = logprobs.map(|logprobs| logprobs.of_sampled(index, range[0]));
            any_ended |= match sampled {
                _ if row.gives == Gives::Embedding => {
                    self.pool(row.sequence, embeddings.map_or(&[], |given| given.row(index)))
                }
                _ if row.gives == Gives::Candidates => self.search(row.sequence, logprobs),
                [] => self.sample_again(row.sequence),
                _ if row.is_verifying => self.verify(row.sequence, sampled, logprobs),
                _ if row.num_samples > 1 => self.fork_row(row.sequence, sampled, logprobs),
                [_] => self.append(row.sequence, sampled, logprobs),
                _ => self.go_ahead(row.sequence, sampled, logprobs),
            };
        }
        self.spare_rows.push(step.rows);
        if any_ended {
            self.forget_ended();
        }
        self.settle();
        Ok(self.outbox.pending())
    }

    /// Ends a pooling request, whose prompt is computed. Always true.
    fn pool(&mut self, key: Key<Sequence>, embedding: &[f32]) -> bool {
        let sequence = &self.sequences[key];
        let (name, sample) = (sequence.request, sequence.sample);
        let live = &self.requests[name];
        let delta = Delta {
            request: live.request.id,
            sample,
            offset: 0,
            tokens: &[],
            logprobs: None,
            embedding,
            finish: Finish::Stop,
            cached_tokens: sequence.cached_tokens.unwrap_or(0),
        };
        self.outbox.push(live.client, &delta);
        if let Some(recorder) = &mut self.recorder {
            recorder.record_finish(live.request.id, sample, Finish::Stop, 0);
        }
        self.tell_start(name);
        self.end_sample(name, sample, Finish::Stop);
        true
    }

    /// Plans the last known token again, with its drafts, because the worker was not ready. Always false.
    fn sample_again(&mut self, key: Key<Sequence>) -> bool {
        let sequence = &mut self.sequences[key];
        sequence.num_computed = sequence.num_computed.min(sequence.num_known() - 1);
        // The last token is written again, while a save might read its block.
        let written = sequence.num_computed / self.config.block_size;
        if written < sequence.num_stored {
            for block in sequence.chains.iter().filter_map(|chain| chain.get(written)) {
                self.cache.withdraw_save(block);
            }
        }
        self.drop_rows(key);
        false
    }

    /// Appends a sampled token and those forced to follow, of which a row in flight has computed the first.
    fn go_ahead(&mut self, key: Key<Sequence>, tokens: &[i32], logprobs: Option<LogprobView<'_>>) -> bool {
        let sequence = &mut self.sequences[key];
        sequence.num_computed = sequence.num_computed.min(sequence.num_known() + 1);
        self.drop_rows(key);
        self.append(key, tokens, logprobs)
    }

    /// Voids the rows in flight of a sequence; no other is planned until they are committed.
    fn drop_rows(&mut self, key: Key<Sequence>) {
        let sequence = &mut self.sequences[key];
        sequence.awaits_commit = sequence.num_in_flight > 0;
        if sequence.awaits_commit {
            sequence.valid_from = self.next_step;
        }
    }

    /// Appends tokens to a sample's output, up to its end. True: it has ended.
    fn append(&mut self, key: Key<Sequence>, tokens: &[i32], logprobs: Option<LogprobView<'_>>) -> bool {
        let sequence = &mut self.sequences[key];
        let live = &self.requests[sequence.request];
        let offset = sequence.output.len();
        let mut finish = Finish::None;
        for &token in tokens {
            sequence.output.push(token);
            let may_stop = sequence.output.len() as u32 >= live.request.min_tokens;
            if may_stop && live.request.stop_token_ids.binary_search(&token).is_ok() {
                finish = Finish::Stop;
            } else if sequence.num_known() >= sequence.max_length {
                finish = Finish::Length;
            }
            if finish != Finish::None {
                break;
            }
        }
        sequence.last_token_at = self.now;
        sequence.drafts.clear(); // proposed to follow an earlier token
        let delta = Delta {
            request: live.request.id,
            sample: sequence.sample,
            offset: offset as i32,
            tokens: &sequence.output[offset..],
            logprobs,
            embedding: &[],
            finish,
            cached_tokens: sequence.cached_tokens.unwrap_or(0),
        };
        self.outbox.push(live.client, &delta);
        let (request, sample, length) = (sequence.request, sequence.sample, sequence.output.len());
        let cost = (length - offset) as u64 * OUTPUT_COST;
        sequence.service += cost;
        let has_block_to_store = sequence.has_block_to_store(self.config.block_size);
        if self.policy.shares_by_tenant() {
            self.queue.charge(live.lane, cost);
        }
        if offset == 0 {
            self.tell_start(request);
        }
        if finish == Finish::None {
            if has_block_to_store {
                self.store_full_blocks(key);
            }
        } else {
            self.output_lengths.add(length as u32);
            if let Some(recorder) = &mut self.recorder {
                recorder.record_finish(self.requests[request].request.id, sample, finish, length);
            }
            self.end_sample(request, sample, finish);
        }
        finish != Finish::None
    }

    /// Commits a row with drafts: each is accepted while it equals the token sampled before it. For a stateful request
    /// the worker has compared them, and forced tokens may follow.
    fn verify(&mut self, key: Key<Sequence>, sampled: &[i32], logprobs: Option<LogprobView<'_>>) -> bool {
        let sequence = &mut self.sequences[key];
        let drafts = std::mem::take(&mut sequence.drafts);
        sequence.awaits_commit = false;
        let num_accepted = drafts.iter().zip(sampled).take_while(|(draft, token)| draft == token).count();
        let num_accepted = num_accepted.min(sampled.len() - 1);
        // Entries of rejected drafts are overwritten by the tokens in their place.
        sequence.num_computed = sequence.num_computed.min(sequence.num_known() + num_accepted as u32);
        let num_tokens = if sequence.is_stateful { sampled.len() } else { num_accepted + 1 };
        self.counters.num_drafts += drafts.len() as u64;
        self.counters.num_accepted_drafts += num_accepted as u64;
        self.counters.accepted_drafts.add(num_accepted as u64);
        self.append(key, &sampled[..num_tokens], logprobs)
    }

    /// Forks the other samples of a computed prompt, and appends each one's first token. True: one has ended.
    fn fork_row(&mut self, key: Key<Sequence>, sampled: &[i32], logprobs: Option<LogprobView<'_>>) -> bool {
        let request = self.sequences[key].request;
        self.sequences[key].num_samples = 1;
        self.forget_ended(); // ended sequences have no place in the order of `running`
        let mut forked = std::mem::take(&mut self.forked);
        for sample in 0..sampled.len() {
            match self.requests[request].samples[sample] {
                Sample::Live(sequence) => forked.push((sequence, sample)),
                Sample::Unforked => forked.push((self.fork_sample(key, sample as u32), sample)),
                Sample::Finished => {}
            }
        }
        let mut any_ended = false;
        for (sequence, sample) in forked.drain(..) {
            let logprobs = logprobs.map(|logprobs| logprobs.from(sample));
            any_ended |= self.append(sequence, &sampled[sample..=sample], logprobs);
        }
        self.forked = forked;
        any_ended
    }

    /// Adds a sequence for another sample. If its origin has computed all but the last token and a slot is free, it
    /// runs on the origin's blocks; else it waits to be recomputed.
    pub(super) fn fork_sample(&mut self, origin: Key<Sequence>, sample: u32) -> Key<Sequence> {
        let origin = &mut self.sequences[origin];
        let request = origin.request;
        let mut sequence = origin.fork(sample);
        sequence.since = self.decisions.num_made();
        // Blocks for uncomputed tokens exist already, but only one sequence may write them. The same goes for a named
        // block that will be written again.
        let is_named = origin.num_stored * self.config.block_size > origin.num_computed;
        let is_computed = origin.num_uncomputed() <= 1 && origin.load.is_none() && !is_named;
        // Blocks after the computed tokens are the origin's alone.
        let num_shared = self.config.blocks_for(origin.num_computed);
        let in_windows = origin.chains.iter().zip(&self.layout.groups).filter(|(_, group)| group.has_window());
        let num_owed: i64 = in_windows.map(|(chain, _)| chain.before(num_shared).len() as i64).sum();
        let has_room = num_owed == 0 || num_owed <= self.cache.num_available();
        let source = origin.slot().filter(|_| is_computed && has_room);
        let slots = source.and_then(|source| Some((source, self.free_slots.pop()?)));
        if let Some((source, slot)) = slots {
            sequence.state = State::Running(slot);
            sequence.num_computed = origin.num_computed;
            sequence.num_stored = origin.num_stored;
            for (chain, of) in sequence.chains.iter_mut().zip(&origin.chains) {
                chain.first = of.first;
                chain.blocks.extend_from_slice(of.before(num_shared));
                chain.blocks.iter().for_each(|&block| self.cache.share(block));
            }
            sequence.note_placed(self.config.block_size);
            (sequence.may_share, origin.may_share) = (true, true);
            // The source itself may be the destination of a pending copy: copy from that one's source.
            let earlier = self.slot_copies.iter().find(|copy| copy.1 == source);
            self.slot_copies.push((earlier.map_or(source, |copy| copy.0), slot));
        }
        let is_held = !self.requests[request].holders.is_empty();
        let is_running = slots.is_some();
        let key = self.sequences.insert(sequence);
        self.requests[request].samples[sample as usize] = Sample::Live(key);
        if is_running {
            self.insert_running(key);
        } else if is_held {
            self.sequences[key].state = State::Held;
            self.num_held += 1;
        } else {
            self.enqueue(key, State::Preempted);
        }
        key
    }

    /// Errors: the first thing that does not match the step.
    fn check_result(
        &self,
        step: &Step,
        starts: &[i32],
        tokens: &[i32],
        logprobs: Option<&Logprobs>,
        embeddings: Option<&Embeddings>,
    ) -> std::result::Result<(), String> {
        self.check_sampled(&step.rows, starts, tokens)?;
        if let Some(embeddings) = embeddings {
            embeddings.check(step.rows.len())?;
            self.check_pooled(&step.rows, embeddings)?;
        }
        if let Some(logprobs) = logprobs {
            logprobs.check(step.rows.len(), starts, self.config.vocab_size)?;
            self.check_prompts(step, logprobs)?;
        }
        self.check_candidates(step, starts, logprobs)
    }

    /// Errors: a pooling row without an embedding.
    fn check_pooled(&self, rows: &[Row], embeddings: &Embeddings) -> std::result::Result<(), String> {
        let mut pooled =
            rows.iter().enumerate().filter(|(_, row)| row.gives == Gives::Embedding && row.num_samples > 0);
        match pooled.find(|&(index, row)| embeddings.row(index).is_empty() && self.sequences.contains(row.sequence)) {
            Some((index, _)) => Err(format!("row {index} asks for an embedding and has none")),
            None => Ok(()),
        }
    }

    /// Rows of ended sequences are not checked.
    fn check_sampled(&self, rows: &[Row], starts: &[i32], tokens: &[i32]) -> std::result::Result<(), String> {
        if starts.len() != rows.len() + 1 {
            return Err(format!("it has {} rows and the plan {}", starts.len().saturating_sub(1), rows.len()));
        }
        if starts[0] != 0 {
            return Err(format!("starts[0] is {}, and the first row starts at 0", starts[0]));
        }
        for (index, (row, range)) in rows.iter().zip(starts.windows(2)).enumerate() {
            let length = i64::from(range[1]) - i64::from(range[0]);
            let is_as_planned = length == i64::from(row.num_samples);
            if !is_as_planned && !row.may_give(length) && (length < 0 || self.sequences.contains(row.sequence)) {
                let expected = row.expected();
                return Err(format!("row {index} has {length} tokens, and the plan asks for {expected}"));
            }
        }
        let expected = starts[rows.len()] as usize;
        if tokens.len() != expected {
            return Err(format!("it has {} tokens, and its starts end at {expected}", tokens.len()));
        }
        let vocab_size = self.config.vocab_size;
        let is_strange = |token: &i32| *token as u32 >= vocab_size;
        if !tokens.iter().any(is_strange) {
            return Ok(());
        }
        let row_of = |index: usize| rows[starts.partition_point(|&start| start as usize <= index) - 1];
        let mut strange = tokens.iter().enumerate().filter(|(_, token)| is_strange(token));
        match strange.find(|&(index, _)| self.sequences.contains(row_of(index).sequence)) {
            Some((index, token)) => Err(format!("token {index} is {token}; ids are from 0 to {}", vocab_size - 1)),
            None => Ok(()),
        }
    }
}

impl Row {
    /// Whether the row may have `length` sampled tokens.
    fn may_give(self, length: i64) -> bool {
        let planned = i64::from(self.num_samples);
        match length {
            0 => planned == 0 || self.is_stateful,
            _ if planned == 0 => false,
            _ if self.is_stateful && (planned == 1 || self.is_verifying) => length > 0,
            _ if self.is_verifying => (1..=planned).contains(&length),
            _ => length == planned,
        }
    }

    /// The allowed numbers of tokens, in words.
    fn expected(self) -> String {
        match self.num_samples {
            0 => "0".to_owned(),
            1 if self.is_stateful => "0 or more".to_owned(),
            _ if self.is_stateful && self.is_verifying => "0 or more".to_owned(),
            planned if self.is_stateful => format!("0 or {planned}"),
            planned if self.is_verifying => format!("1 to {planned}"),
            planned => planned.to_string(),
        }
    }
}
