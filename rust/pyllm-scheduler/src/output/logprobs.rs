//! Log-probabilities as columns: those of a step's tokens from a worker, and those that wait for a client. Knows
//! neither sequences nor the meaning of the numbers.

use std::ops::Range;

use serde::{Deserialize, Serialize};

/// Log-probabilities of one step, row by row: first of the row's prompt tokens, then of its sampled tokens.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Logprobs {
    /// Row i has those of `prompt_tokens[prompt_starts[i]..prompt_starts[i + 1]]`.
    pub prompt_starts: Vec<i32>,
    /// Tokens of prompts whose requests asked for them. A request's rows are consecutive; the first starts at the
    /// prompt's second token.
    pub prompt_tokens: Vec<i32>,
    /// Entries of the prompts' tokens and the sampled ones, in the order above.
    pub entries: LogprobEntries,
}

/// Token i has the entries `starts[i]..starts[i + 1]`: first itself, then the likeliest tokens, best first; none if the
/// request did not ask for them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LogprobEntries {
    /// Start of each token's entries, then the end of the last; empty if no token has entries.
    pub starts: Vec<i32>,
    /// Token ids.
    pub ids: Vec<i32>,
    /// Their log-probabilities.
    pub values: Vec<f32>,
    /// Number of tokens that are at least as likely, itself included.
    pub ranks: Vec<i32>,
}

/// The entries of consecutive tokens.
#[derive(Clone, Copy)]
pub(crate) struct LogprobView<'a> {
    entries: &'a LogprobEntries,
    first: usize,
}

impl Logprobs {
    /// Errors: the problem, for a step of `num_rows` rows whose sampled tokens are `starts`.
    pub(crate) fn check(&self, num_rows: usize, starts: &[i32], vocab_size: u32) -> Result<(), String> {
        check_starts("prompt_starts", &self.prompt_starts, num_rows, self.prompt_tokens.len())?;
        let num_sampled = starts.last().map_or(0, |&end| end as usize);
        let LogprobEntries { starts, ids, values, ranks } = &self.entries;
        check_starts("starts", starts, self.prompt_tokens.len() + num_sampled, ids.len())?;
        if (values.len(), ranks.len()) != (ids.len(), ids.len()) {
            let (ids, values, ranks) = (ids.len(), values.len(), ranks.len());
            return Err(format!("its log-probabilities are {ids} ids, {values} values and {ranks} ranks"));
        }
        match ids.iter().position(|&id| id as u32 >= vocab_size) {
            Some(index) => {
                Err(format!("id {index} of its log-probabilities is {}, not below {vocab_size}", ids[index]))
            }
            None => Ok(()),
        }
    }

    /// The range of a row's prompt tokens.
    pub(crate) fn prompt_range(&self, row: usize) -> Range<usize> {
        self.prompt_starts[row] as usize..self.prompt_starts[row + 1] as usize
    }

    /// The entries of a row's prompt tokens without the first `skipped`; `num_sampled_before` tokens were sampled
    /// before the row.
    pub(crate) fn of_prompt(&self, row: usize, num_sampled_before: i32, skipped: usize) -> LogprobView<'_> {
        let first = (self.prompt_starts[row] + num_sampled_before) as usize + skipped;
        LogprobView { entries: &self.entries, first }
    }

    /// The entries of a row's sampled tokens.
    pub(crate) fn of_sampled(&self, row: usize, num_sampled_before: i32) -> LogprobView<'_> {
        LogprobView { entries: &self.entries, first: (self.prompt_starts[row + 1] + num_sampled_before) as usize }
    }
}

impl LogprobView<'_> {
    /// Id and value of the first token's likeliest tokens, best first.
    pub(crate) fn likeliest(self) -> impl ExactSizeIterator<Item = (i32, f32)> {
        let LogprobEntries { starts, ids, values, .. } = self.entries;
        let (start, end) = (starts[self.first] as usize, starts[self.first + 1] as usize);
        let likeliest = (start + 1).min(end)..end;
        likeliest.map(|index| (ids[index], values[index]))
    }

    /// The entries from a later token on.
    pub(crate) fn from(self, token: usize) -> Self {
        Self { first: self.first + token, ..self }
    }
}

impl LogprobEntries {
    /// Adds the entries of the next `num_tokens` tokens, after `num_before` others.
    pub(crate) fn push(&mut self, num_before: usize, view: LogprobView<'_>, num_tokens: usize) {
        let starts = &view.entries.starts[view.first..=view.first + num_tokens];
        let range = starts[0] as usize..starts[num_tokens] as usize;
        if range.is_empty() {
            return;
        }
        self.starts.resize(num_before + 1, self.ids.len() as i32);
        let shift = self.ids.len() as i32 - starts[0];
        self.starts.extend(starts[1..].iter().map(|start| start + shift));
        self.ids.extend_from_slice(&view.entries.ids[range.clone()]);
        self.values.extend_from_slice(&view.entries.values[range.clone()]);
        self.ranks.extend_from_slice(&view.entries.ranks[range]);
    }

    /// Adds empty entries for the tokens since the last `push`, unless no token has any.
    pub(crate) fn complete(&mut self, num_tokens: usize) {
        if !self.starts.is_empty() {
            self.starts.resize(num_tokens + 1, self.ids.len() as i32);
        }
    }

    /// The entries from token `first` on, if any token has some.
    pub(crate) fn view(&self, first: usize) -> Option<LogprobView<'_>> {
        (!self.starts.is_empty()).then_some(LogprobView { entries: self, first })
    }

    pub(crate) fn clear(&mut self) {
        self.starts.clear();
        self.ids.clear();
        self.values.clear();
        self.ranks.clear();
    }
}

fn check_starts(name: &str, starts: &[i32], number: usize, end: usize) -> Result<(), String> {
    if starts.len() != number + 1 {
        return Err(format!("{name} of its log-probabilities has {} entries, not {}", starts.len(), number + 1));
    }
    let is_sound = starts[0] == 0 && starts.is_sorted() && starts[number] as usize == end;
    if is_sound { Ok(()) } else { Err(format!("{name} of its log-probabilities do not go from 0 up to {end}")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn two_tokens() -> LogprobEntries {
        LogprobEntries {
            starts: vec![0, 1, 3],
            ids: vec![5, 6, 7],
            values: vec![-0.5, -1.0, -2.0],
            ranks: vec![1, 2, 3],
        }
    }

    #[test]
    fn tokens_without_entries_cost_nothing_until_one_has_some() {
        let mut entries = LogprobEntries::default();
        let given = two_tokens();
        let none = LogprobEntries { starts: vec![0; 3], ..LogprobEntries::default() };
        entries.push(0, none.view(0).unwrap(), 2);
        entries.complete(2);
        assert_eq!(entries, LogprobEntries::default());
        entries.push(2, given.view(1).unwrap(), 1);
        entries.complete(4);
        assert_eq!(entries.starts, [0, 0, 0, 2, 2]);
        assert_eq!((&entries.ids[..], &entries.ranks[..]), (&[6, 7][..], &[2, 3][..]));
    }

    #[test]
    fn what_is_not_aligned_is_refused() {
        let sound = Logprobs { prompt_starts: vec![0, 1], prompt_tokens: vec![9], entries: two_tokens() };
        let check = |logprobs: &Logprobs| logprobs.check(1, &[0, 1], 10);
        assert_eq!(check(&sound), Ok(()));
        let wrong: [fn(&mut Logprobs); 8] = [
            |one| one.prompt_starts = vec![0],
            |one| one.prompt_starts = vec![0, 2],
            |one| one.prompt_tokens.clear(),
            |one| one.entries.starts = vec![0, 3],
            |one| one.entries.starts = vec![0, -1, 3],
            |one| one.entries.starts = vec![0, 1, 4],
            |one| one.entries.ranks.truncate(2),
            |one| one.entries.ids[0] = 10,
        ];
        for change in wrong {
            let mut logprobs = sound.clone();
            change(&mut logprobs);
            assert!(check(&logprobs).is_err(), "{logprobs:?}");
        }
    }
}
