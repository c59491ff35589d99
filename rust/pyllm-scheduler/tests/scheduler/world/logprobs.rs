//! Log-probabilities: sent by the worker with the tokens, and received by the client in their place.

use pyllm_scheduler::{DeltaColumns, Finish, LogprobEntries, Logprobs};

use super::World;
use super::beams::check_beam_told;
use super::requests::Known;
use crate::oracle::told_with;

/// Log-probabilities of one step, added row by row.
pub(super) struct Columns(Logprobs);

impl Columns {
    pub(super) fn new() -> Self {
        let entries = LogprobEntries { starts: vec![0], ..LogprobEntries::default() };
        Self(Logprobs { prompt_starts: vec![0], prompt_tokens: Vec::new(), entries })
    }

    /// Adds a row: its prompt tokens, and the sampled ones, with entries if `logprobs`.
    pub(super) fn push(&mut self, prompt: &[i32], sampled: &[i32], logprobs: bool) {
        let Logprobs { prompt_starts, prompt_tokens, entries } = &mut self.0;
        prompt_tokens.extend(prompt);
        prompt_starts.push(prompt_tokens.len() as i32);
        let wanted = prompt.iter().map(|token| (token, true)).chain(sampled.iter().map(|token| (token, logprobs)));
        for (&token, is_told) in wanted {
            if is_told {
                entries.ids.extend(told_with(token));
            }
            entries.starts.push(entries.ids.len() as i32);
        }
        let num_before = entries.values.len();
        entries.values.extend(entries.ids[num_before..].iter().map(|&id| value(id)));
        entries.ranks.extend(entries.ids[num_before..].iter().map(|id| id + 1));
    }

    /// Adds a beam's row: the first token has the candidates as entries, the others have none.
    pub(super) fn push_beam(&mut self, sampled: &[i32], likeliest: &[(i32, f32)]) {
        let Logprobs { prompt_starts, prompt_tokens, entries } = &mut self.0;
        prompt_starts.push(prompt_tokens.len() as i32);
        entries.ids.extend(sampled.iter().take(1).chain(likeliest.iter().map(|(token, _)| token)));
        entries.values.extend([-9.0].iter().chain(likeliest.iter().map(|(_, logprob)| logprob)));
        entries.ranks.extend(0..=likeliest.len() as i32);
        entries.starts.extend(sampled.iter().map(|_| entries.ids.len() as i32));
    }

    /// The columns; none without entries.
    pub(super) fn finish(self) -> Option<Logprobs> {
        (!self.0.entries.ids.is_empty()).then_some(self.0)
    }
}

impl Known {
    /// Receives a row with log-probabilities of the prompt.
    pub(super) fn hear_prompt(&mut self, deltas: &DeltaColumns, row: usize) {
        assert!(self.request.prompt_logprobs && deltas.finishes[row] == Finish::None as u8);
        let prompt = &self.request.prompt;
        let start = (prompt.len() as i32 + deltas.offsets[row]) as usize;
        let end = start + deltas.row_tokens(row).len();
        assert_eq!(deltas.row_tokens(row), &prompt[start..end]);
        // A sample may begin with another's sequence, or from where that one was at the fork.
        let furthest = self.samples.iter().map(|sample| sample.num_told).max();
        let sample = &mut self.samples[deltas.samples[row] as usize];
        let begins = sample.num_told == 1 && Some(start) <= furthest;
        assert!(sample.num_told == start || begins, "each position is told once, in order");
        sample.num_told = end;
    }
}

/// Checks that every token has its own entries.
pub(super) fn check_logprobs(known: &Known, deltas: &DeltaColumns, row: usize) {
    let LogprobEntries { starts, ids, values, ranks } = &deltas.logprobs;
    assert!(starts.is_empty() || starts.len() == deltas.tokens.len() + 1);
    if known.request.beam_width > 0 {
        check_beam_told(&known.request, deltas, row);
        return;
    }
    let given = known.samples[deltas.samples[row] as usize].num_given as i32;
    let tokens = deltas.token_starts[row] as usize..deltas.token_starts[row + 1] as usize;
    for (place, offset) in tokens.zip(deltas.offsets[row]..) {
        let range = if starts.is_empty() { 0..0 } else { starts[place] as usize..starts[place + 1] as usize };
        assert!(
            values[range.clone()]
                .iter()
                .zip(&ids[range.clone()])
                .all(|(one, &id)| one.to_bits() == value(id).to_bits())
        );
        assert!(ranks[range.clone()].iter().zip(&ids[range.clone()]).all(|(rank, id)| *rank == id + 1));
        let told = &ids[range];
        let is_told = if offset < 0 { known.request.prompt_logprobs } else { known.logprobs && offset >= given };
        assert!(if is_told { told.iter().copied().eq(told_with(deltas.tokens[place])) } else { told.is_empty() });
    }
}

impl World {
    /// Checks that requests with log-probabilities of the prompt have received all of them before their end.
    pub(super) fn check_prompts_told(&mut self) {
        let came_to_its_end = |known: &&Known| {
            let mut samples = known.samples.iter();
            !known.is_dropped
                && samples.any(|one| {
                    one.ended.is_none()
                        && one.finish != Finish::None
                        && one.is_finished
                        && one.received.len() > one.num_given
                })
        };
        for known in self.requests.iter().filter(|known| known.request.prompt_logprobs).filter(came_to_its_end) {
            let num_told = known.samples.iter().map(|sample| sample.num_told).max();
            assert_eq!(num_told, Some(known.request.prompt.len()));
        }
        let asked = self.requests.iter().filter(|known| known.request.prompt_logprobs);
        let num_told = asked.map(|known| known.samples.iter().map(|one| one.num_told as u64 - 1).sum::<u64>()).sum();
        self.saw("tokens of prompts told of", num_told);
    }
}

fn value(id: i32) -> f32 {
    -f32::from(id as i16)
}
