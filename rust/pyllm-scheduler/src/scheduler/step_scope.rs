//! Limits of a step. Its requests: while one is isolated, its rows and those of all others take turns. Its size: in a
//! pipeline, as many steps are in flight as there are stages, so a sequence waits for its token before it is planned
//! again, and each step takes its share of the running sequences, so that all steps have about equal work.

use crate::arena::Key;
use crate::logprob_room::{LogprobRoom, Share};
use crate::sequence::{Beam, LiveRequest, Sequence};

use super::Scheduler;

/// The requests that a step may have rows of.
#[derive(Clone, Copy, Default)]
pub(super) enum StepScope {
    #[default]
    Everyone,
    Only(Key<LiveRequest>),
    AllBut(Key<LiveRequest>),
}

impl StepScope {
    pub(super) fn admits(self, request: Key<LiveRequest>) -> bool {
        match self {
            Self::Everyone => true,
            Self::Only(one) => request == one,
            Self::AllBut(one) => request != one,
        }
    }
}

/// A step's prefill share is at least its budget / (2 x stages), so that steps do not become too small.
const MAX_PARTS: u32 = 2;

/// The share of a step in the work of all running sequences.
#[derive(Clone, Copy, Debug)]
pub(super) struct StepShare {
    /// Decodes without a row in the last steps, as many steps as there are stages. They come first.
    num_due: u32,
    /// Decodes with a row in those steps, if there are too few others.
    num_recent: u32,
    pub(super) prefill_tokens: u32,
    /// Whether a sequence got no row because the share was used up.
    pub(super) has_passed_over: bool,
}

impl StepShare {
    /// The whole work: no limit.
    pub(super) const WHOLE: Self =
        Self { num_due: u32::MAX, num_recent: u32::MAX, prefill_tokens: u32::MAX, has_passed_over: false };

    /// The same share of prefills, with all decodes.
    pub(super) fn with_all_decodes(self) -> Self {
        Self { prefill_tokens: self.prefill_tokens, ..Self::WHOLE }
    }

    /// Whether one more decode fits; if not, notes it.
    pub(super) fn admit_decode(&mut self, is_due: bool) -> bool {
        let fits = if is_due { self.num_due > 0 } else { self.num_recent > 0 };
        self.has_passed_over |= !fits;
        fits
    }

    /// Takes one decode off the share.
    pub(super) fn take(&mut self, is_due: bool) {
        let left = if is_due { &mut self.num_due } else { &mut self.num_recent };
        *left -= 1;
    }
}

impl Scheduler {
    /// Whether one more row can be planned before the next commit. In a pipeline not while a token is in flight; but
    /// chunks of a prompt follow one another at once.
    pub(super) fn may_have_row(&self, sequence: &Sequence) -> bool {
        sequence.is_plannable() && (sequence.num_in_flight == 0 || self.config.pipeline_parallel_size == 1)
    }

    /// Whether it had no row in the last steps, as many steps as there are stages.
    pub(super) fn is_due(&self, sequence: &Sequence) -> bool {
        let num_stages = u64::from(self.config.pipeline_parallel_size);
        sequence.last_share == 0 || sequence.last_step.0 + num_stages <= self.next_step.0
    }

    /// The share of the next step. While a request is isolated there is one step at a time, and each takes all.
    pub(super) fn step_share(&self) -> StepShare {
        let num_stages = self.config.pipeline_parallel_size;
        if num_stages == 1 || self.isolated.is_some() {
            return StepShare::WHOLE;
        }
        let (mut num_decodes, mut num_due) = (0, 0);
        let mut prefill_tokens: u64 = self.steps.iter().map(|step| u64::from(step.num_prefill_tokens)).sum();
        for &key in &self.running {
            let sequence = &self.sequences[key];
            let is_prefill = sequence.num_uncomputed() > 1 || (sequence.num_samples > 1 && sequence.num_in_flight == 0);
            if is_prefill {
                prefill_tokens += u64::from(sequence.num_uncomputed());
            } else if sequence.beam != Beam::Waiting {
                num_decodes += sequence.num_samples;
                num_due += u32::from(self.may_have_row(sequence) && self.is_due(sequence));
            }
        }
        prefill_tokens += self.waiting_tokens(u64::from(num_stages) * u64::from(self.config.max_num_batched_tokens));
        let num_rows = num_decodes.div_ceil(num_stages).max(1);
        let num_due = num_due.min(num_rows);
        let least = self.config.block_size.max(self.config.max_num_batched_tokens / (MAX_PARTS * num_stages));
        let prefill_tokens = prefill_tokens.div_ceil(u64::from(num_stages)).max(u64::from(least));
        StepShare {
            num_due,
            num_recent: num_rows - num_due,
            prefill_tokens: u32::try_from(prefill_tokens).unwrap_or(u32::MAX),
            has_passed_over: false,
        }
    }

    /// Uncomputed tokens of the queued sequences that could have a slot, up to about `most`.
    fn waiting_tokens(&self, most: u64) -> u64 {
        let mut num_tokens = 0;
        for (_, _, key) in self.queue.iter().take(self.free_slots.len()) {
            num_tokens += u64::from(self.uncomputed(key));
            if num_tokens >= most {
                break;
            }
        }
        num_tokens
    }

    fn uncomputed(&self, key: Key<Sequence>) -> u32 {
        self.sequences[key].num_uncomputed()
    }
}

impl Scheduler {
    /// Chooses the streams of many log-probabilities that may have a row, into `wide`: first those that waited longest.
    pub(super) fn choose_wide(&mut self, room: &LogprobRoom, turn: StepScope) {
        let mut wide = std::mem::take(&mut self.wide);
        wide.clear();
        wide.extend(self.running.iter().copied().filter(|&key| {
            let sequence = &self.sequences[key];
            let is_decode = sequence.length() == sequence.num_computed + 1 && self.may_have_row(sequence);
            is_decode && self.is_wide(key, room) && turn.admits(sequence.request)
        }));
        wide.sort_by_key(|&key| self.sequences[key].last_step);
        let mut left = room.of_decodes();
        wide.retain(|&key| {
            let request = &self.requests[self.sequences[key].request].request;
            let rest = left.checked_sub(u64::from(request.num_logprobs));
            left = rest.unwrap_or(0);
            rest.is_some()
        });
        self.wide = wide;
    }

    /// Whether a stream takes turns with others; those that `choose_wide` chose have theirs.
    pub(super) fn is_wide(&self, key: Key<Sequence>, room: &LogprobRoom) -> bool {
        room.is_wide(&self.requests[self.sequences[key].request].request)
    }

    /// Whether there is room for the first tokens of a waiting sequence, wherever it begins.
    pub(super) fn may_begin(&self, sequence: &Sequence, room: &LogprobRoom) -> bool {
        let request = &self.requests[sequence.request].request;
        let is_bounded = request.prompt_logprobs || room.is_wide(request);
        !is_bounded || room.room(request, Share::Admissions) >= u64::from(sequence.num_samples)
    }

    /// The number of a sequence's next `most` tokens that have room for their log-probabilities.
    pub(super) fn fitting(&self, sequence: &Sequence, most: u32, share: Share, room: &LogprobRoom) -> u32 {
        let request = &self.requests[sequence.request].request;
        room.fitting(sequence, request, most, share)
    }
}
