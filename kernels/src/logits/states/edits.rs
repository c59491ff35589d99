//! Edits of logits at a position: from one slot's rules, counts and last tokens to columns.

use std::ops::Range;

use super::slot::{Counts, Rules, Slot};

/// Edits of position i from `starts[i]` to `starts[i + 1]`, by ascending id, each id once. A logit x becomes x + bias,
/// then that divided by (if positive) or multiplied by the repetition penalty, then reduced by `subtracted`.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Edits {
    pub(crate) starts: Vec<i32>,
    pub(crate) ids: Vec<i32>,
    pub(crate) bias: Vec<f32>,
    pub(crate) repetition: Vec<f32>,
    pub(crate) subtracted: Vec<f32>,
}

/// A token with more changes than those by its count.
#[derive(Clone, Copy, Debug)]
struct Change {
    id: i32,
    bias: f32,
    /// Number of its occurrences in the drafts.
    drafted: u32,
}

impl Default for Edits {
    fn default() -> Self {
        let (bias, repetition, subtracted) = (Vec::new(), Vec::new(), Vec::new());
        Self { starts: vec![0], ids: Vec::new(), bias, repetition, subtracted }
    }
}

impl Edits {
    /// Add the edits after the slot's tokens and these drafts.
    pub(super) fn extend(&mut self, slot: &Slot, drafts: &[i32]) {
        if let Some(id) = slot.forced(drafts) {
            self.push(id, f32::INFINITY, 1.0, 0.0); // It is chosen, whatever the others have.
            return;
        }
        let (rules, counts) = (&*slot.rules, &slot.counts);
        let mut next = 0;
        for change in changes(slot, drafts) {
            let place = next + counts.ids[next..].partition_point(|&id| id < change.id);
            self.extend_counted(rules, counts, next..place);
            let is_counted = counts.ids.get(place) == Some(&change.id);
            let count = if is_counted { counts.in_output[place] } else { 0 } + change.drafted;
            let repetition = if is_counted || change.drafted > 0 { rules.repetition_penalty } else { 1.0 };
            self.push(change.id, change.bias, repetition, rules.subtracted(count));
            next = place + usize::from(is_counted);
        }
        self.extend_counted(rules, counts, next..counts.ids.len());
    }

    /// End the edits of a position.
    pub(super) fn end_row(&mut self) {
        self.starts.push(self.ids.len() as i32);
    }

    fn push(&mut self, id: i32, bias: f32, repetition: f32, subtracted: f32) {
        self.ids.push(id);
        self.bias.push(bias);
        self.repetition.push(repetition);
        self.subtracted.push(subtracted);
    }

    fn extend_counted(&mut self, rules: &Rules, counts: &Counts, range: Range<usize>) {
        let length = self.ids.len() + range.len();
        self.ids.extend_from_slice(&counts.ids[range.clone()]);
        self.bias.resize(length, 0.0);
        self.repetition.resize(length, rules.repetition_penalty);
        self.subtracted.extend(counts.in_output[range].iter().map(|&count| rules.subtracted(count)));
    }
}

/// Biases, bans and, if they count, drafts: by ascending id, each id once.
fn changes(slot: &Slot, drafts: &[i32]) -> Vec<Change> {
    let rules = &*slot.rules;
    let mut changes: Vec<Change> = rules.bias.iter().map(|&(id, bias)| Change { id, bias, drafted: 0 }).collect();
    let num_biases = changes.len();
    let banned = |id| Change { id, bias: f32::NEG_INFINITY, drafted: 0 };
    changes.extend(bad_words_ends(slot, drafts).map(banned));
    if slot.output().len() + drafts.len() < rules.min_tokens {
        changes.extend(rules.stop_token_ids.iter().copied().map(banned));
    }
    if rules.count_output() {
        changes.extend(drafts.iter().map(|&id| Change { id, bias: 0.0, drafted: 1 }));
    }
    if changes.len() > num_biases {
        changes.sort_by_key(|change| change.id);
    }
    changes.dedup_by(|later, first| {
        let same = later.id == first.id;
        if same {
            first.bias += later.bias;
            first.drafted += later.drafted;
        }
        same
    });
    changes
}

/// The tokens that would complete a bad word here.
fn bad_words_ends<'a>(slot: &'a Slot, drafts: &'a [i32]) -> impl Iterator<Item = i32> + 'a {
    slot.rules.bad_words.iter().filter_map(move |word| {
        let (&last, before) = word.split_last()?;
        let mut past = drafts.iter().rev().chain(slot.output().iter().rev());
        before.iter().rev().all(|token| past.next() == Some(token)).then_some(last)
    })
}
