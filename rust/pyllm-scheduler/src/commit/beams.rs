//! Beam search with sequences: each beam is one, and computes a token a round. When the candidates of all beams are
//! known, `table/beam_search.rs` chooses: parents without children free their blocks, a first child continues its parent's
//! sequence, and further children fork. Clients get no output before the end. A beam with candidates keeps its slot
//! without a row; if it is preempted it pauses outside the queue, since it waits only for its siblings.

use crate::arena::Key;
use crate::commit::Commit;
use crate::output::deltas::Delta;
use crate::output::logprobs::{LogprobEntries, LogprobView};
use crate::policy::OUTPUT_COST;
use crate::request::Finish;
use crate::table::beam_search::{BeamSearch, Candidate, Child, Path};
use crate::table::sequence::{Beam, EndedSamples, LiveRequest, Sample, Sequence};

impl Commit<'_> {
    /// Sets the candidates of a beam. True: sequences have ended.
    pub(super) fn search(&mut self, key: Key<Sequence>, logprobs: Option<LogprobView<'_>>) -> bool {
        self.table[key].num_samples = 1;
        self.table.await_siblings(key);
        let (sequence, live) = self.table.pair_mut(key);
        let (name, sample) = (sequence.request, sequence.sample);
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

    fn go_on(&mut self, name: Key<LiveRequest>, children: &[Child]) {
        for sample in 0..self.table[name].samples.len() {
            let Sample::Live(key) = self.table[name].samples[sample] else { continue };
            if children.iter().any(|child| child.parent as usize == sample) {
                self.table[key].beam = Beam::Computing;
            } else {
                self.table[name].samples[sample] = Sample::Unforked;
                self.kv.remove(key, self.table);
            }
        }
        self.table.forget_ended(); // ended sequences have no place in the running order
        for child in children.iter().filter(|child| child.sample != child.parent) {
            if let Sample::Live(parent) = self.table[name].samples[child.parent as usize] {
                self.fork(parent, child.sample);
            }
        }
        for child in children {
            if let Sample::Live(key) = self.table[name].samples[child.sample as usize] {
                self.extend_beam(key, child.token);
            }
        }
    }

    fn extend_beam(&mut self, key: Key<Sequence>, token: i32) {
        let now = self.table.now();
        let sequence = &mut self.table[key];
        sequence.output.push(token);
        sequence.last_token_at = now;
        self.table.charge(key, OUTPUT_COST);
        self.table.resume(key);
    }

    /// Ends a search: its samples are the completed beams, best first.
    fn answer(&mut self, name: Key<LiveRequest>, last: Key<Sequence>) {
        let cached_tokens = self.table[last].cached_tokens.unwrap_or(0);
        let mut found = self.table[name].search.take().map_or(Vec::new(), BeamSearch::answer).into_iter();
        let (mut num_output_tokens, mut last_finish) = (0, Finish::Stop);
        for sample in 0..self.table[name].samples.len() as u32 {
            let live = &self.table[name];
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
            self.observer.sample_ended(live, sample, finish, num_tokens);
            self.table.estimates_mut().output_lengths.add(num_tokens as u32);
            if num_tokens > 0 {
                self.tell_start(name);
            }
        }
        for key in self.table[name].sequences() {
            self.kv.remove(key, self.table);
        }
        self.table[name].ended = EndedSamples { num_output_tokens, num_cached_tokens: cached_tokens };
        self.remove_request(name, last_finish);
    }
}
