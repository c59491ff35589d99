//! Committing a step: sampled tokens become output, samples fork, and what has come to its end gives up its place.

use crate::arena::Key;
use crate::deltas::Delta;
use crate::error::{Error, Result};
use crate::ids::{ClientId, StepId};
use crate::request::Finish;
use crate::sequence::{Sample, Sequence, State};

use super::{Row, Scheduler};

impl Scheduler {
    /// Takes the tokens of the oldest step in flight: row i of its plan sampled `tokens[starts[i]..starts[i + 1]]`.
    /// The tokens of a row whose sequence has ended meanwhile are dropped. Gives the clients that have deltas to take.
    ///
    /// Errors: `UnknownStep`, `OutOfOrder`, `Sampled`.
    pub fn commit(&mut self, step: StepId, starts: &[i32], tokens: &[i32]) -> Result<&[ClientId]> {
        let oldest = self.oldest_step();
        if !self.steps.iter().any(|planned| planned.id == step) {
            return Err(Error::UnknownStep { step });
        }
        if step != oldest {
            return Err(Error::OutOfOrder { step, oldest });
        }
        if let Err(problem) = check_sampled(&self.steps[0].rows, starts, tokens) {
            return Err(Error::Sampled { step, problem });
        }
        let Some(step) = self.steps.pop_front() else { return Err(Error::UnknownStep { step }) };
        self.outbox.begin_round();
        let mut any_ended = false;
        for (row, range) in step.rows.iter().zip(starts.windows(2)) {
            let sampled = &tokens[range[0] as usize..range[1] as usize];
            if sampled.is_empty() || !self.sequences.contains(row.sequence) {
                continue;
            }
            self.sequences[row.sequence].num_in_flight -= 1;
            any_ended |= match *sampled {
                [token] => self.append(row.sequence, token),
                _ => self.fork(row.sequence, sampled),
            };
        }
        self.spare_rows.push(step.rows);
        if any_ended {
            self.running.retain(|&key| self.sequences.contains(key));
        }
        Ok(self.outbox.pending())
    }

    /// One more output token of a sample. True: it was the last, and the sample has ended.
    fn append(&mut self, key: Key<Sequence>, token: i32) -> bool {
        let sequence = &mut self.sequences[key];
        let live = &self.requests[sequence.request];
        let offset = sequence.output.len() as u32;
        sequence.output.push(token);
        let finish = if live.request.stop_token_ids.binary_search(&token).is_ok() {
            Finish::Stop
        } else if sequence.num_known() >= sequence.max_length {
            Finish::Length
        } else {
            Finish::None
        };
        let delta = Delta {
            request: live.request.id,
            sample: sequence.sample,
            offset,
            tokens: &[token],
            finish,
            cached_tokens: sequence.cached_tokens.unwrap_or(0),
        };
        self.outbox.push(live.client, &delta);
        if finish == Finish::None {
            self.store_full_blocks(key);
        } else {
            let (request, sample) = (sequence.request, sequence.sample);
            self.end_sample(request, sample);
        }
        finish != Finish::None
    }

    /// The prompt is computed: the other samples come to be, and each takes its first token. True: one has ended.
    fn fork(&mut self, key: Key<Sequence>, sampled: &[i32]) -> bool {
        let request = self.sequences[key].request;
        self.sequences[key].num_samples = 1;
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
            any_ended |= self.append(sequence, token);
        }
        self.forked = forked;
        any_ended
    }

    /// With a free slot, the new sequence runs on the blocks of its origin; without, it waits to be computed.
    fn fork_sample(&mut self, origin: Key<Sequence>, sample: u32) -> Key<Sequence> {
        let origin = &self.sequences[origin];
        let request = origin.request;
        let live = &mut self.requests[request];
        let mut sequence = origin.fork(sample, live.queue_key(sample));
        let slots = origin.slot().and_then(|source| Some((source, self.free_slots.pop()?)));
        if let Some((source, slot)) = slots {
            sequence.state = State::Running(slot);
            sequence.num_computed = origin.num_computed;
            sequence.num_stored = origin.num_stored;
            sequence.blocks.extend_from_slice(&origin.blocks);
            for &block in &origin.blocks {
                self.cache.share(block);
            }
            self.slot_copies.push((source, slot));
        } else if live.hold.is_some() {
            sequence.state = State::Held;
            self.num_held += 1;
        }
        let (state, queue_key) = (sequence.state, sequence.queue_key);
        let key = self.sequences.insert(sequence);
        live.samples[sample as usize] = Sample::Live(key);
        match state {
            State::Running(_) => self.running.push(key),
            State::Waiting => drop(self.waiting.insert(queue_key, key)),
            State::Held => {}
        }
        key
    }
}

fn check_sampled(rows: &[Row], starts: &[i32], tokens: &[i32]) -> std::result::Result<(), String> {
    if starts.len() != rows.len() + 1 {
        return Err(format!("it has {} rows and the plan {}", starts.len().saturating_sub(1), rows.len()));
    }
    let mut expected = 0;
    for (index, &start) in starts.iter().enumerate() {
        if start != expected {
            return Err(format!("starts[{index}] is {start}, and the plan asks for {expected}"));
        }
        expected += rows.get(index).map_or(0, |row| row.num_samples as i32);
    }
    if tokens.len() != expected as usize {
        return Err(format!("it has {} tokens, and the plan asks for {expected}", tokens.len()));
    }
    match tokens.iter().position(|&token| token < 0) {
        Some(index) => Err(format!("token {index} is {}; ids are 0 or more", tokens[index])),
        None => Ok(()),
    }
}
