//! What a step may have. Whose rows: while a request is isolated, its own and everybody else's take turns. How many: in
//! a pipeline the stages compute as many steps at once, each another one, so a sequence waits for its token before it is
//! planned again, and a step takes its share of what runs, so that all carry about equal work.

use crate::arena::Key;
use crate::sequence::{Beam, LiveRequest, Sequence};

use super::Scheduler;

/// Whose rows a step may have.
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

/// What a step may take of all that runs.
#[derive(Clone, Copy, Debug)]
pub(super) struct StepShare {
    /// Decodes that had no row in the last steps, as many as there are stages. They come first.
    num_due: u32,
    /// Decodes that had one, where too few others are there.
    num_recent: u32,
    pub(super) prefill_tokens: u32,
    /// Whether a sequence got no row for want of a share.
    pub(super) has_passed_over: bool,
}

impl StepShare {
    /// A step takes all it can.
    pub(super) const WHOLE: Self =
        Self { num_due: u32::MAX, num_recent: u32::MAX, prefill_tokens: u32::MAX, has_passed_over: false };

    /// The same share of prefills, and all decodes.
    pub(super) fn with_all_decodes(self) -> Self {
        Self { prefill_tokens: self.prefill_tokens, ..Self::WHOLE }
    }

    /// Whether one more decode fits; notes it when not.
    pub(super) fn admit_decode(&mut self, is_due: bool) -> bool {
        let fits = if is_due { self.num_due > 0 } else { self.num_recent > 0 };
        self.has_passed_over |= !fits;
        fits
    }

    /// A decode has a row.
    pub(super) fn take(&mut self, is_due: bool) {
        let left = if is_due { &mut self.num_due } else { &mut self.num_recent };
        *left -= 1;
    }
}

impl Scheduler {
    /// Whether one more row makes sense before the next commit. In a pipeline the token in flight is a stage away; the
    /// chunks of a prompt follow one another at once.
    pub(super) fn may_have_row(&self, sequence: &Sequence) -> bool {
        sequence.is_plannable() && (sequence.num_in_flight == 0 || self.config.pipeline_parallel_size == 1)
    }

    /// Whether none of the last steps, as many as there are stages, has a row of it.
    pub(super) fn is_due(&self, sequence: &Sequence) -> bool {
        let num_stages = u64::from(self.config.pipeline_parallel_size);
        sequence.last_share == 0 || sequence.last_step.0 + num_stages <= self.next_step.0
    }

    /// What the next step may take. While a request is by itself the steps are one at a time, and each takes all.
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

    /// Tokens to compute of what waits and could have a slot, up to about `most`.
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
