//! Beam search with sequences: each beam is one, and computes a token a round. When the candidates of all beams are
//! known, `beam_search.rs` chooses: parents without children free their blocks, a first child continues its parent's
//! sequence, and further children fork. Clients get no output before the end. A beam with candidates keeps its slot
//! without a row; if it is preempted it pauses outside the queue, since it waits only for its siblings.

use crate::arena::Key;
use crate::beam_search::{BeamSearch, Candidate, Child, Path};
use crate::output::deltas::Delta;
use crate::output::logprobs::{LogprobEntries, LogprobView, Logprobs};
use crate::policy::OUTPUT_COST;
use crate::request::Finish;
use crate::sequence::{Beam, EndedSamples, LiveRequest, Sample, Sequence, State};

use super::{Gives, Scheduler, Step, live_sequences};

impl Scheduler {
    /// Sets the candidates of a beam. True: sequences have ended.
    pub(super) fn search(&mut self, key: Key<Sequence>, logprobs: Option<LogprobView<'_>>) -> bool {
        let sequence = &mut self.sequences[key];
        sequence.num_samples = 1;
        sequence.beam = Beam::Waiting;
        if sequence.state.is_queued() {
            self.dequeue(key);
            self.pause(key);
        }
        let (name, sample) = (self.sequences[key].request, self.sequences[key].sample);
        let live = &mut self.requests[name];
        let Some(search) = &mut live.search else { return false };
        let candidates = logprobs.into_iter().flat_map(LogprobView::likeliest).take(live.request.num_candidates());
        let candidates = candidates.map(|(token, logprob)| Candidate { token, logprob }).collect();
        if !search.offer(sample, candidates) {
            return false;
        }
        let children = search.select(&live.request);
        if children.is_empty() {
            self.answer(name, key);
        } else {
            self.go_on(name, &children);
        }
        children.is_empty()
    }

    /// Errors: the row of a beam lacks candidates.
    pub(super) fn check_candidates(
        &self,
        step: &Step,
        starts: &[i32],
        logprobs: Option<&Logprobs>,
    ) -> Result<(), String> {
        for (index, sequence) in self.beam_rows(step) {
            let given = logprobs.map_or(0, |logprobs| logprobs.of_sampled(index, starts[index]).likeliest().len());
            let wanted = self.requests[sequence.request].request.num_candidates();
            if given < wanted {
                return Err(format!("row {index} is a beam's and has {given} candidates of {wanted}"));
            }
        }
        Ok(())
    }

    /// The log-probabilities of a step's tokens that are candidates of beams.
    pub(super) fn deciding(&self, step: &Step, starts: &[i32], logprobs: Option<&Logprobs>) -> Option<Logprobs> {
        let mut entries = LogprobEntries::default();
        for (index, _) in self.beam_rows(step) {
            entries.push(starts[index] as usize, logprobs?.of_sampled(index, starts[index]), 1);
        }
        entries.complete(starts[step.rows.len()] as usize);
        let prompt_starts = vec![0; starts.len()];
        entries.view(0)?;
        Some(Logprobs { prompt_starts, prompt_tokens: Vec::new(), entries })
    }

    /// The rows of a step with candidates of live beams.
    fn beam_rows(&self, step: &Step) -> impl Iterator<Item = (usize, &Sequence)> {
        let rows =
            step.rows.iter().enumerate().filter(|(_, row)| row.gives == Gives::Candidates && row.num_samples > 0);
        rows.filter_map(|(index, row)| self.sequences.get(row.sequence).map(|sequence| (index, sequence)))
    }

    /// Pauses a beam until its siblings have their candidates.
    pub(super) fn pause(&mut self, key: Key<Sequence>) {
        self.sequences[key].state = State::Paused;
        self.num_paused += 1;
    }

    fn go_on(&mut self, name: Key<LiveRequest>, children: &[Child]) {
        for sample in 0..self.requests[name].samples.len() {
            let Sample::Live(key) = self.requests[name].samples[sample] else { continue };
            if children.iter().any(|child| child.parent as usize == sample) {
                self.sequences[key].beam = Beam::Computing;
            } else {
                self.requests[name].samples[sample] = Sample::Unforked;
                self.remove_sequence(key);
            }
        }
        self.forget_ended(); // ended sequences have no place in the order of `running`
        for child in children.iter().filter(|child| child.sample != child.parent) {
            if let Sample::Live(parent) = self.requests[name].samples[child.parent as usize] {
                self.fork_sample(parent, child.sample);
            }
        }
        for child in children {
            if let Sample::Live(key) = self.requests[name].samples[child.sample as usize] {
                self.extend_beam(key, child.token);
            }
        }
    }

    fn extend_beam(&mut self, key: Key<Sequence>, token: i32) {
        let sequence = &mut self.sequences[key];
        sequence.output.push(token);
        sequence.last_token_at = self.now;
        sequence.service += OUTPUT_COST;
        let is_paused = sequence.state == State::Paused;
        let queued = if sequence.is_on_host() { State::Swapped } else { State::Preempted };
        if self.policy.shares_by_tenant() {
            self.queue.charge(self.requests[sequence.request].lane, OUTPUT_COST);
        }
        if is_paused {
            self.num_paused -= 1;
            self.enqueue(key, queued);
        }
    }

    /// Ends a search: its samples are the completed beams, best first.
    fn answer(&mut self, name: Key<LiveRequest>, last: Key<Sequence>) {
        let cached_tokens = self.sequences[last].cached_tokens.unwrap_or(0);
        let mut found = self.requests[name].search.take().map_or(Vec::new(), BeamSearch::answer).into_iter();
        let (mut num_output_tokens, mut last_finish) = (0, Finish::Stop);
        for sample in 0..self.requests[name].samples.len() as u32 {
            let live = &self.requests[name];
            let (path, finish) = found.next().map_or((Path::default(), Finish::Stop), |one| (one.path, one.finish));
            let num_tokens = path.tokens.len();
            (num_output_tokens, last_finish) = (num_output_tokens + num_tokens as u32, finish);
            let starts = (0..=num_tokens as i32).collect();
            let entries = LogprobEntries { starts, ids: path.tokens, values: path.logprobs, ranks: path.ranks };
            let delta = Delta {
                request: live.request.id,
                sample,
                offset: 0,
                tokens: &entries.ids,
                logprobs: entries.view(0),
                embedding: &[],
                finish,
                cached_tokens,
            };
            self.outbox.push(live.client, &delta);
            self.output_lengths.add(num_tokens as u32);
            if let Some(recorder) = &mut self.recorder {
                recorder.record_finish(live.request.id, sample, finish, num_tokens);
            }
            if num_tokens > 0 {
                self.tell_start(name);
            }
        }
        for key in live_sequences(&self.requests[name]) {
            self.remove_sequence(key);
        }
        self.requests[name].ended = EndedSamples { num_output_tokens, num_cached_tokens: cached_tokens };
        self.remove_request(name, last_finish);
    }
}
