//! Committing a step: sampled tokens become output, drafts are accepted or dropped, samples fork, and ended sequences
//! free their blocks and slots. Requests end here, whatever ends them. Knows no queue order and plans nothing.

mod beams;
pub(crate) mod check;
mod endings;
mod prompt_logprobs;

use crate::arena::Key;
use crate::commit::check::StepResult;
use crate::estimates::core_load::work;
use crate::ids::StepId;
use crate::kv::Kv;
use crate::observer::Observer;
use crate::output::deltas::{Delta, Outbox};
use crate::output::logprobs::LogprobView;
use crate::planner::preempt::preempt;
use crate::policy::OUTPUT_COST;
use crate::request::Finish;
use crate::steps::{Gives, Row, Step};
use crate::table::Table;
use crate::table::sequence::{Sample, Sequence};

/// A change of output: it borrows the parts that it changes.
pub(crate) struct Commit<'a> {
    pub(crate) table: &'a mut Table,
    pub(crate) kv: &'a mut Kv,
    pub(crate) outbox: &'a mut Outbox,
    pub(crate) observer: &'a mut Observer,
    /// The step that is planned next.
    pub(crate) next_step: StepId,
    pub(crate) block_size: u32,
}

impl Commit<'_> {
    /// Commits the oldest step, which took `seconds`, 0 if unknown. The result has been checked.
    pub(crate) fn commit(&mut self, step: &Step, result: StepResult<'_>, seconds: f64) {
        self.measure(step, seconds);
        for &load in &step.loads {
            if let Some(load) = self.kv.end_load_of_step(load, self.table) {
                self.observer.load_read(load);
            }
        }
        if let Some(logprobs) = result.logprobs.filter(|logprobs| !logprobs.prompt_tokens.is_empty()) {
            self.tell_prompts(step.id, &step.rows, result.starts, logprobs);
        }
        self.outbox.begin_round();
        let mut any_ended = false;
        for (index, row) in step.rows.iter().enumerate().filter(|(_, row)| row.num_samples > 0) {
            any_ended |= self.commit_row(step.id, index, row, result);
        }
        if any_ended {
            self.table.forget_ended();
        }
    }

    fn measure(&mut self, step: &Step, seconds: f64) {
        let estimates = self.table.estimates_mut();
        // Steps with drafts only take longer than those that decodes are planned for.
        if step.num_prefill_tokens > 0 || step.rows.iter().all(|row| !row.is_verifying) {
            estimates.times.measure(step.num_prefill_tokens, seconds);
        }
        let num_outputs = step.num_tokens - step.num_prefill_tokens;
        estimates.step_sums.measure(work(step.num_prefill_tokens, num_outputs), seconds);
        self.observer.committed(self.table.now(), step.planned_at, seconds);
    }

    /// Commits a row that sampled. True: sequences have ended.
    fn commit_row(&mut self, step: StepId, index: usize, row: &Row, result: StepResult<'_>) -> bool {
        let Some(sequence) = self.table.sequence_mut(row.sequence) else { return false };
        sequence.num_in_flight -= 1;
        if step < sequence.valid_from {
            sequence.awaits_commit = sequence.num_in_flight > 0;
            return false;
        }
        let (first, end) = (result.starts[index], result.starts[index + 1]);
        let sampled = &result.tokens[first as usize..end as usize];
        let logprobs = result.logprobs.map(|logprobs| logprobs.of_sampled(index, first));
        match sampled {
            _ if row.gives == Gives::Embedding => {
                self.pool(row.sequence, result.embeddings.map_or(&[], |given| given.row(index)))
            }
            _ if row.gives == Gives::Candidates => self.search(row.sequence, logprobs),
            [] => self.sample_again(row.sequence),
            _ if row.is_verifying => self.verify(row.sequence, sampled, logprobs),
            _ if row.num_samples > 1 => self.fork_row(row.sequence, sampled, logprobs),
            [_] => self.append(row.sequence, sampled, logprobs),
            _ => self.go_ahead(row.sequence, sampled, logprobs),
        }
    }

    /// Ends a pooling request, whose prompt is computed. Always true.
    fn pool(&mut self, key: Key<Sequence>, embedding: &[f32]) -> bool {
        let (sequence, live) = self.table.pair(key);
        let (request, sample) = (sequence.request, sequence.sample);
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
        self.observer.sample_ended(live, sample, Finish::Stop, 0);
        self.tell_start(request);
        self.end_sample(request, sample, Finish::Stop);
        true
    }

    /// Plans the last known token again, with its drafts, because the worker was not ready. Always false.
    fn sample_again(&mut self, key: Key<Sequence>) -> bool {
        self.go_back(key, self.table[key].num_known() - 1);
        self.table[key].drop_rows(self.next_step);
        false
    }

    /// Appends a sampled token and those forced to follow, of which a row in flight has computed the first.
    fn go_ahead(&mut self, key: Key<Sequence>, tokens: &[i32], logprobs: Option<LogprobView<'_>>) -> bool {
        self.go_back(key, self.table[key].num_known() + 1);
        self.table[key].drop_rows(self.next_step);
        self.append(key, tokens, logprobs)
    }

    /// Appends tokens to a sample's output, up to its end. True: it has ended.
    fn append(&mut self, key: Key<Sequence>, tokens: &[i32], logprobs: Option<LogprobView<'_>>) -> bool {
        let now = self.table.now();
        let (sequence, live) = self.table.pair_mut(key);
        let offset = sequence.output.len();
        let finish = sequence.append(tokens, &live.request);
        sequence.last_token_at = now;
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
        let has_block_to_store = sequence.has_block_to_store(self.block_size);
        self.table.charge(key, (length - offset) as u64 * OUTPUT_COST);
        if offset == 0 {
            self.tell_start(request);
        }
        if finish == Finish::None {
            if has_block_to_store {
                let (sequence, live) = self.table.pair_mut(key);
                self.kv.store_full_blocks(sequence, live);
            }
        } else {
            self.table.estimates_mut().output_lengths.add(length as u32);
            self.observer.sample_ended(&self.table[request], sample, finish, length);
            self.end_sample(request, sample, finish);
        }
        finish != Finish::None
    }

    /// Commits a row with drafts: each is accepted while it equals the token sampled before it. For a stateful request
    /// the worker has compared them, and forced tokens may follow.
    fn verify(&mut self, key: Key<Sequence>, sampled: &[i32], logprobs: Option<LogprobView<'_>>) -> bool {
        let sequence = &mut self.table[key];
        let drafts = std::mem::take(&mut sequence.drafts);
        sequence.awaits_commit = false;
        let num_accepted = drafts.iter().zip(sampled).take_while(|(draft, token)| draft == token).count();
        let num_accepted = num_accepted.min(sampled.len() - 1);
        // Entries of rejected drafts are overwritten by the tokens in their place.
        let num_computed = sequence.num_known() + num_accepted as u32;
        let num_tokens = if sequence.is_stateful { sampled.len() } else { num_accepted + 1 };
        self.observer.verified(drafts.len(), num_accepted);
        self.go_back(key, num_computed);
        self.append(key, &sampled[..num_tokens], logprobs)
    }

    /// Lowers the number of a sequence's computed tokens; with states to where it has one. Without one it is computed
    /// anew from a checkpoint.
    fn go_back(&mut self, key: Key<Sequence>, num_computed: u32) {
        let sequence = &mut self.table[key];
        sequence.num_computed = sequence.num_computed.min(num_computed);
        let is_kept = self.kv.rewind_state(sequence);
        self.kv.withdraw_save(sequence);
        if !is_kept {
            preempt(key, self.table, self.kv, self.observer);
        }
    }

    /// Forks the other samples of a computed prompt, and appends each one's first token. True: one has ended.
    fn fork_row(&mut self, key: Key<Sequence>, sampled: &[i32], logprobs: Option<LogprobView<'_>>) -> bool {
        let sequence = &mut self.table[key];
        sequence.num_samples = 1;
        let request = sequence.request;
        self.table.forget_ended(); // ended sequences have no place in the running order
        for sample in 0..sampled.len() {
            if let Sample::Unforked = self.table[request].samples[sample] {
                self.fork(key, sample as u32);
            }
        }
        let mut any_ended = false;
        for sample in 0..sampled.len() {
            let Some(live) = self.table.request(request) else { break };
            if let Sample::Live(sequence) = live.samples[sample] {
                let logprobs = logprobs.map(|logprobs| logprobs.from(sample));
                any_ended |= self.append(sequence, &sampled[sample..=sample], logprobs);
            }
        }
        any_ended
    }

    /// Adds a sequence for another sample. If its origin has computed all but the last token and a slot is free, it
    /// runs on the origin's blocks; else it waits to be recomputed.
    fn fork(&mut self, origin: Key<Sequence>, sample: u32) {
        let mut fork = self.table[origin].fork(sample);
        let source = self.table[origin].slot().filter(|_| self.kv.can_share(&self.table[origin]));
        let slot = source.and_then(|source| self.table.copy_slot(source));
        if slot.is_some() {
            self.kv.share(&mut self.table[origin], &mut fork);
        }
        self.table.add_fork(fork, slot);
    }
}

/// Whether a step's row is no older than the sequence's admission, and not void.
fn hears(sequence: &Sequence, step: StepId) -> bool {
    step >= sequence.admitted && step >= sequence.valid_from
}
