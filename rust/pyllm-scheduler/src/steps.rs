//! The steps in flight, oldest first, with their rows. Knows no block and no queue.

use std::collections::VecDeque;

use crate::arena::Key;
use crate::error::{Error, Result};
use crate::ids::{LoadId, StepId};
use crate::table::sequence::{LiveRequest, Sequence};

/// A planned step.
pub(crate) struct Step {
    pub(crate) id: StepId,
    pub(crate) rows: Vec<Row>,
    pub(crate) num_tokens: u32,
    pub(crate) num_prefill_tokens: u32,
    pub(crate) planned_at: f64,
    pub(crate) loads: Vec<LoadId>, // that its rows read
}

/// A sequence's row in a step.
#[derive(Clone, Copy)]
pub(crate) struct Row {
    pub(crate) sequence: Key<Sequence>,
    pub(crate) num_samples: u32,
    /// Whether all positions except the first verify drafts.
    pub(crate) is_verifying: bool,
    pub(crate) is_stateful: bool,
    pub(crate) gives: Gives,
}

/// The result of a row that samples.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Gives {
    Tokens,
    /// The candidates of a beam, from its first position.
    Candidates,
    Embedding,
}

impl Row {
    /// Whether the row may have `length` sampled tokens.
    pub(crate) fn may_give(self, length: i64) -> bool {
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
    pub(crate) fn expected(self) -> String {
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

/// The requests that a step may have rows of.
#[derive(Clone, Copy, Default)]
pub(crate) enum Turn {
    #[default]
    Everyone,
    Only(Key<LiveRequest>),
    AllBut(Key<LiveRequest>),
}

impl Turn {
    pub(crate) fn admits(self, request: Key<LiveRequest>) -> bool {
        match self {
            Self::Everyone => true,
            Self::Only(one) => request == one,
            Self::AllBut(one) => request != one,
        }
    }
}

#[derive(Default)]
pub(crate) struct Steps {
    in_flight: VecDeque<Step>,
    next: StepId,
    spare_rows: Vec<Vec<Row>>, // of committed steps, to reuse their memory
}

impl Steps {
    /// The id of the step that is planned next.
    pub(crate) fn next(&self) -> StepId {
        self.next
    }

    /// The oldest uncommitted step.
    pub(crate) fn oldest(&self) -> StepId {
        self.in_flight.front().map_or(self.next, |step| step.id)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.in_flight.is_empty()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Step> {
        self.in_flight.iter()
    }

    /// A step in flight.
    ///
    /// Errors: `UnknownStep`.
    pub(crate) fn find(&self, id: StepId) -> Result<&Step> {
        self.in_flight.iter().find(|step| step.id == id).ok_or(Error::UnknownStep { step: id })
    }

    /// Empty rows for the next step.
    pub(crate) fn take_rows(&mut self) -> Vec<Row> {
        self.spare_rows.pop().unwrap_or_default()
    }

    /// Keeps the memory of rows for another step.
    pub(crate) fn recycle(&mut self, mut rows: Vec<Row>) {
        rows.clear();
        self.spare_rows.push(rows);
    }

    /// Adds the next step.
    pub(crate) fn push(&mut self, step: Step) {
        self.next = StepId(step.id.0 + 1);
        self.in_flight.push_back(step);
    }

    /// Removes the oldest step.
    pub(crate) fn pop(&mut self) -> Option<Step> {
        self.in_flight.pop_front()
    }

    /// Forgets the steps in flight, which will never be committed.
    pub(crate) fn clear(&mut self) {
        while let Some(step) = self.pop() {
            self.recycle(step.rows);
        }
    }

    /// See `Scheduler::audit`. `sequences` are the live ones, with their numbers of rows in flight.
    pub(crate) fn audit<'a>(
        &self,
        sequences: impl Iterator<Item = (Key<Sequence>, &'a Sequence)>,
        is_pipelined: bool,
    ) -> std::result::Result<(), String> {
        if !self.in_flight.iter().is_sorted_by_key(|step| step.id) {
            return Err("steps are out of order".to_owned());
        }
        for (key, sequence) in sequences {
            let rows = || self.iter().flat_map(|step| &step.rows).filter(|row| row.sequence == key);
            let sampled = rows().filter(|row| row.num_samples > 0).count();
            if sampled != sequence.num_in_flight as usize {
                return Err(format!("{sampled} tokens are in flight, not {}", sequence.num_in_flight));
            }
            let is_behind = rows().skip_while(|row| row.num_samples == 0).nth(1).is_some();
            if is_pipelined && is_behind {
                return Err("a row is planned behind one whose token is not known".to_owned());
            }
        }
        Ok(())
    }
}
