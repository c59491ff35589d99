//! Committing a step: sampled tokens become output, drafts are accepted or dropped, samples fork, and what has come to
//! its end gives up its place.

use crate::arena::Key;
use crate::deltas::Delta;
use crate::error::{Error, Result};
use crate::ids::{ClientId, StepId};
use crate::policy::OUTPUT_COST;
use crate::record::Input;
use crate::request::Finish;
use crate::sequence::{Sample, Sequence, State};

use super::{Row, Scheduler};

impl Scheduler {
    /// Takes the tokens of the oldest step in flight: row i of its plan sampled `tokens[starts[i]..starts[i + 1]]`. A row
    /// with drafts may have sampled fewer positions than planned, at least one; its drafts count as far as they equal
    /// what was sampled. The tokens of a row whose sequence has ended meanwhile are dropped. `seconds` is what the step
    /// took, 0 if that was not measured. Gives the clients that have deltas to take.
    ///
    /// Errors: `UnknownStep`, `OutOfOrder`, `Sampled`.
    pub fn commit(&mut self, step: StepId, starts: &[i32], tokens: &[i32], seconds: f64) -> Result<&[ClientId]> {
        let oldest = self.oldest_step();
        if !self.steps.iter().any(|planned| planned.id == step) {
            return Err(Error::UnknownStep { step });
        }
        if step != oldest {
            return Err(Error::OutOfOrder { step, oldest });
        }
        if let Err(problem) = check_sampled(&self.steps[0].rows, starts, tokens, self.config.vocab_size) {
            return Err(Error::Sampled { step, problem });
        }
        self.record(|| Input::Commit { step, starts: starts.to_vec(), tokens: tokens.to_vec(), seconds });
        let Some(step) = self.steps.pop_front() else { return Err(Error::UnknownStep { step }) };
        self.times.measure(step.num_prefill_tokens, seconds);
        self.finish_loads_of(step.loads);
        self.outbox.begin_round();
        let mut any_ended = false;
        for (row, range) in step.rows.iter().zip(starts.windows(2)) {
            let sampled = &tokens[range[0] as usize..range[1] as usize];
            let Some(sequence) = self.sequences.get_mut(row.sequence).filter(|_| !sampled.is_empty()) else { continue };
            sequence.num_in_flight -= 1;
            if step.id < sequence.valid_from {
                sequence.is_verifying = false;
                continue;
            }
            any_ended |= match *sampled {
                _ if row.is_verifying => self.verify(row.sequence, sampled),
                [token] => self.append(row.sequence, &[token]),
                _ => self.fork_row(row.sequence, sampled),
            };
        }
        self.spare_rows.push(step.rows);
        if any_ended {
            self.forget_ended();
        }
        Ok(self.outbox.pending())
    }

    /// More output tokens of a sample, up to its end. True: it has ended.
    fn append(&mut self, key: Key<Sequence>, tokens: &[i32]) -> bool {
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
        sequence.drafts.clear(); // they followed the token before these
        let delta = Delta {
            request: live.request.id,
            sample: sequence.sample,
            offset: offset as u32,
            tokens: &sequence.output[offset..],
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
        if finish == Finish::None {
            if has_block_to_store {
                self.store_full_blocks(key);
            }
        } else {
            self.output_lengths.add(length as u32);
            if let Some(recorder) = &mut self.recorder {
                recorder.record_finish(live.request.id, sample, finish, length);
            }
            self.end_sample(request, sample);
        }
        finish != Finish::None
    }

    /// A row that computed drafts: they count as long as each is what the position before it sampled.
    fn verify(&mut self, key: Key<Sequence>, sampled: &[i32]) -> bool {
        let sequence = &mut self.sequences[key];
        let drafts = std::mem::take(&mut sequence.drafts);
        sequence.is_verifying = false;
        let num_accepted = drafts.iter().zip(sampled).take_while(|(draft, token)| draft == token).count();
        let num_accepted = num_accepted.min(sampled.len() - 1);
        // What was computed for the others is overwritten by the tokens that take their place.
        let num_known = sequence.num_known() + num_accepted as u32 + 1;
        sequence.num_computed = sequence.num_computed.min(num_known - 1);
        self.counters.num_drafts += drafts.len() as u64;
        self.counters.num_accepted_drafts += num_accepted as u64;
        self.append(key, &sampled[..=num_accepted])
    }

    /// The prompt is computed: the other samples come to be, and each takes its first token. True: one has ended.
    fn fork_row(&mut self, key: Key<Sequence>, sampled: &[i32]) -> bool {
        let request = self.sequences[key].request;
        self.sequences[key].num_samples = 1;
        self.forget_ended(); // what this commit has ended has no place in the order of what runs
        let mut forked = std::mem::take(&mut self.forked);
        for (sample, &token) in sampled.iter().enumerate() {
            match self.requests[request].samples[sample] {
                Sample::Live(sequence) => forked.push((sequence, token)),
                Sample::Unforked => forked.push((self.fork_sample(key, sample as u32), token)),
                Sample::Finished => {}
            }
        }
        let mut any_ended = false;
        for (sequence, token) in forked.drain(..) {
            any_ended |= self.append(sequence, &[token]);
        }
        self.forked = forked;
        any_ended
    }

    /// With a free slot, the new sequence runs on the blocks of an origin that has computed all but its last token; else it
    /// waits to be computed.
    pub(super) fn fork_sample(&mut self, origin: Key<Sequence>, sample: u32) -> Key<Sequence> {
        let origin = &mut self.sequences[origin];
        let request = origin.request;
        let mut sequence = origin.fork(sample);
        sequence.since = self.decisions.num_made();
        // What is still to be computed has its blocks already, and they are for one sequence to write.
        let is_computed = origin.num_uncomputed() <= 1 && origin.load.is_none();
        let slots = origin.slot().filter(|_| is_computed).and_then(|source| Some((source, self.free_slots.pop()?)));
        if let Some((source, slot)) = slots {
            sequence.state = State::Running(slot);
            sequence.num_computed = origin.num_computed;
            sequence.num_stored = origin.num_stored;
            // What the origin has beyond its computed tokens is for those that it computes itself.
            let num_shared = self.config.blocks_for(origin.num_computed) as usize;
            sequence.blocks.extend_from_slice(&origin.blocks[..num_shared]);
            for &block in &sequence.blocks {
                self.cache.share(block);
            }
            (sequence.may_share, origin.may_share) = (true, true);
            // A slot that is itself still to be copied has nothing to give.
            let earlier = self.slot_copies.iter().find(|copy| copy.1 == source);
            self.slot_copies.push((earlier.map_or(source, |copy| copy.0), slot));
        }
        let is_held = self.requests[request].hold.is_some();
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
}

fn check_sampled(rows: &[Row], starts: &[i32], tokens: &[i32], vocab_size: u32) -> std::result::Result<(), String> {
    if starts.len() != rows.len() + 1 {
        return Err(format!("it has {} rows and the plan {}", starts.len().saturating_sub(1), rows.len()));
    }
    if starts[0] != 0 {
        return Err(format!("starts[0] is {}, and the first row starts at 0", starts[0]));
    }
    for (index, (row, range)) in rows.iter().zip(starts.windows(2)).enumerate() {
        let (least, most) = (if row.is_verifying { 1 } else { row.num_samples }, row.num_samples);
        let length = i64::from(range[1]) - i64::from(range[0]);
        if !(i64::from(least)..=i64::from(most)).contains(&length) {
            let range = if least == most { most.to_string() } else { format!("{least} to {most}") };
            return Err(format!("row {index} has {length} tokens, and the plan asks for {range}"));
        }
    }
    let expected = starts[rows.len()] as usize;
    if tokens.len() != expected {
        return Err(format!("it has {} tokens, and its starts end at {expected}", tokens.len()));
    }
    match tokens.iter().position(|&token| token as u32 >= vocab_size) {
        Some(index) => Err(format!("token {index} is {}; ids are from 0 to {}", tokens[index], vocab_size - 1)),
        None => Ok(()),
    }
}
