//! The state of each slot's tokens for sampling, for logits on any device. Owns no logits, and knows neither requests
//! nor grammars; `python.rs` is its shim.
//!
//! A slot is plain until it is initialised with rules: then it keeps its tokens, and the logits that they change.

mod edits;
mod python;
mod slot;
mod thinking;

use std::fmt;

pub(crate) use edits::Edits;
pub(crate) use python::LogitsStates;
pub(crate) use slot::{Rules, Slot};
pub(crate) use thinking::Thinking;

/// The states, one for each slot.
pub(crate) struct Slots {
    vocabulary: usize,
    slots: Vec<Option<Slot>>,
}

/// The rows of one step, as in its plan.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Step<'a> {
    pub(crate) slots: &'a [i32],
    /// Start of each row's tokens, then the end of the last.
    pub(crate) query_starts: &'a [i32],
    /// The context of each row, this step's tokens included.
    pub(crate) sequence_lengths: &'a [i32],
    /// -1: the slot's last sampled one.
    pub(crate) tokens: &'a [i32],
    /// Start of each row's sampled positions, then the end of the last.
    pub(crate) sampled_starts: &'a [i32],
    /// Indices into the tokens.
    pub(crate) logits_rows: &'a [i32],
}

/// Whether a row can be sampled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Readiness {
    /// The row is not sampled, or its slot is plain.
    Plain = 0,
    Ready = 1,
    /// The slot lacks tokens before its first sampled position, or has more.
    Stale = 2,
}

/// The reason why a call is refused. It has changed nothing, except tokens of earlier rows in `catch_up`.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum StateError {
    Slot {
        slot: i32,
        num_slots: usize,
    },
    Token {
        what: &'static str,
        token: i32,
        vocabulary: usize,
    },
    /// Lengths of related columns do not match.
    Lengths {
        what: &'static str,
        length: usize,
        expected: usize,
    },
    Starts {
        what: &'static str,
        end: usize,
    },
    Row {
        row: usize,
        what: &'static str,
    },
    Gap {
        slot: i32,
        position: usize,
        length: usize,
    },
    Number {
        what: &'static str,
        value: f32,
        allowed: &'static str,
    },
    NoTokens {
        what: &'static str,
    },
}

impl fmt::Display for StateError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Slot { slot, num_slots } => write!(formatter, "slot {slot}: there are {num_slots}, from 0 on"),
            Self::Token { what, token, vocabulary } => {
                write!(formatter, "{what} has token {token}: give ids from 0 to {}", vocabulary - 1)
            }
            Self::Lengths { what, length, expected } => {
                write!(formatter, "{what} has {length} elements: give {expected}")
            }
            Self::Starts { what, end } => write!(formatter, "{what} must rise from 0 to {end}"),
            Self::Row { row, what } => write!(formatter, "row {row}: {what}"),
            Self::Gap { slot, position, length } => write!(
                formatter,
                "slot {slot} knows {length} tokens, and a row begins with a later one, at position {position}: \
                 initialise the slot with all tokens before"
            ),
            Self::Number { what, value, allowed } => write!(formatter, "{what} is {value}: it must be {allowed}"),
            Self::NoTokens { what } => write!(formatter, "{what} has no tokens: leave it out"),
        }
    }
}

impl Slots {
    pub(crate) fn new(num_slots: usize, vocabulary: usize) -> Self {
        Self { vocabulary, slots: (0..num_slots).map(|_| None).collect() }
    }

    /// Initialise a slot with rules and tokens, of which the first are its prompt.
    pub(crate) fn initialise(
        &mut self,
        slot: i32,
        tokens: &[i32],
        num_prompt_tokens: usize,
        rules: Rules,
    ) -> Result<(), StateError> {
        let slot_index = self.slot_index(slot)?;
        self.check_tokens("what is known", tokens)?;
        if num_prompt_tokens > tokens.len() {
            let (length, expected) = (tokens.len(), num_prompt_tokens);
            return Err(StateError::Lengths { what: "what is known", length, expected });
        }
        let rules = rules.checked(self.vocabulary)?;
        self.slots[slot_index] = Some(Slot::new(rules, tokens, num_prompt_tokens, self.vocabulary));
        Ok(())
    }

    /// Make the slots plain.
    pub(crate) fn clear(&mut self, slots: &[i32]) -> Result<(), StateError> {
        for slot_index in self.slot_indices(slots)? {
            self.slots[slot_index] = None;
        }
        Ok(())
    }

    /// Copy slots in the order of the pairs (source, destination), as one gather.
    pub(crate) fn copy(&mut self, pairs: &[i32]) -> Result<(), StateError> {
        if !pairs.len().is_multiple_of(2) {
            let length = pairs.len();
            return Err(StateError::Lengths { what: "pairs of slots", length, expected: length + 1 });
        }
        for pair in self.slot_indices(pairs)?.chunks(2) {
            if pair[0] != pair[1] {
                let copied = self.slots[pair[0]].clone();
                self.slots[pair[1]] = copied;
            }
        }
        Ok(())
    }

    /// Add a step's tokens to the rows' slots, up to each row's first sampled position.
    pub(crate) fn catch_up(&mut self, step: Step<'_>) -> Result<Vec<Readiness>, StateError> {
        let num_rows = step.slots.len();
        let queries = ranges("query_starts", step.query_starts, num_rows, step.tokens.len())?;
        let sampled = ranges("sampled_starts", step.sampled_starts, num_rows, step.logits_rows.len())?;
        if step.sequence_lengths.len() != num_rows {
            let length = step.sequence_lengths.len();
            return Err(StateError::Lengths { what: "sequence_lengths", length, expected: num_rows });
        }
        let slot_indices = self.slot_indices(step.slots)?;
        let mut readiness = vec![Readiness::Plain; num_rows];
        for row in 0..num_rows {
            let (query, sampled) = (queries.get(row), sampled.get(row));
            let Some(slot) = self.slots[slot_indices[row]].as_mut().filter(|_| !sampled.is_empty()) else {
                continue;
            };
            let last = step.logits_rows[sampled.start] as usize;
            if !query.contains(&last) {
                return Err(StateError::Row { row, what: "its first sampled position is not one of its tokens" });
            }
            let Some(first) = (step.sequence_lengths[row] as usize).checked_sub(query.len()) else {
                return Err(StateError::Row { row, what: "its sequence is shorter than its tokens" });
            };
            let tokens = &step.tokens[query.start..=last];
            if let Some(&token) = tokens.iter().find(|&&token| token < -1 || token >= self.vocabulary as i32) {
                return Err(StateError::Token { what: "a row", token, vocabulary: self.vocabulary });
            }
            if first > slot.len() && tokens[0] >= 0 {
                return Err(StateError::Gap { slot: step.slots[row], position: first, length: slot.len() });
            }
            let knows_all = slot.learn(first, tokens);
            let ready = knows_all && slot.len() == first + tokens.len();
            readiness[row] = if ready { Readiness::Ready } else { Readiness::Stale };
        }
        Ok(readiness)
    }

    /// Append tokens to slots: `starts[i]` to `starts[i + 1]` to slot i. Plain ones do not keep them.
    pub(crate) fn push(&mut self, slots: &[i32], starts: &[i32], tokens: &[i32]) -> Result<(), StateError> {
        let ranges = ranges("starts", starts, slots.len(), tokens.len())?;
        let slot_indices = self.slot_indices(slots)?;
        for (index, &slot_index) in slot_indices.iter().enumerate() {
            if self.slots[slot_index].is_some() {
                self.check_tokens("what is pushed", &tokens[ranges.get(index)])?;
            }
        }
        for (index, slot_index) in slot_indices.into_iter().enumerate() {
            if let Some(slot) = &mut self.slots[slot_index] {
                tokens[ranges.get(index)].iter().for_each(|&token| slot.append(token));
            }
        }
        Ok(())
    }

    /// The edits of logits at these positions, each after its slot's tokens and some drafts.
    pub(crate) fn edits(&self, slots: &[i32], draft_starts: &[i32], drafts: &[i32]) -> Result<Edits, StateError> {
        let ranges = ranges("draft_starts", draft_starts, slots.len(), drafts.len())?;
        self.check_tokens("what is drafted", drafts)?;
        let mut edits = Edits::default();
        for (index, slot_index) in self.slot_indices(slots)?.into_iter().enumerate() {
            if let Some(slot) = &self.slots[slot_index] {
                edits.extend(slot, &drafts[ranges.get(index)]);
            }
            edits.end_row();
        }
        Ok(edits)
    }

    /// The state of a slot, unless it is plain.
    pub(crate) fn get(&self, slot: i32) -> Result<Option<&Slot>, StateError> {
        Ok(self.slots[self.slot_index(slot)?].as_ref())
    }

    fn slot_index(&self, slot: i32) -> Result<usize, StateError> {
        let num_slots = self.slots.len();
        usize::try_from(slot)
            .ok()
            .filter(|&slot_index| slot_index < num_slots)
            .ok_or(StateError::Slot { slot, num_slots })
    }

    fn slot_indices(&self, slots: &[i32]) -> Result<Vec<usize>, StateError> {
        slots.iter().map(|&slot| self.slot_index(slot)).collect()
    }

    fn check_tokens(&self, what: &'static str, tokens: &[i32]) -> Result<(), StateError> {
        let vocabulary = self.vocabulary;
        let wrong = tokens.iter().find(|&&token| token < 0 || token as usize >= vocabulary);
        wrong.map_or(Ok(()), |&token| Err(StateError::Token { what, token, vocabulary }))
    }
}

/// The checked ranges of ragged rows.
struct Ranges<'a>(&'a [i32]);

impl Ranges<'_> {
    fn get(&self, row: usize) -> std::ops::Range<usize> {
        self.0[row] as usize..self.0[row + 1] as usize
    }
}

fn ranges<'a>(what: &'static str, starts: &'a [i32], rows: usize, end: usize) -> Result<Ranges<'a>, StateError> {
    if starts.len() != rows + 1 {
        return Err(StateError::Lengths { what, length: starts.len(), expected: rows + 1 });
    }
    let rises = starts.is_sorted() && starts[0] == 0 && starts[rows] as usize == end;
    if rises { Ok(Ranges(starts)) } else { Err(StateError::Starts { what, end }) }
}

#[cfg(test)]
mod tests;
