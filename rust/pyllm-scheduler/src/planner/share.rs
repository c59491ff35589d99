//! The size of a step in a pipeline: as many steps are in flight as there are stages, so a sequence waits for its token
//! before it is planned again, and each step takes its share of the running sequences, so that all steps have about
//! equal work.

use crate::config::Config;
use crate::ids::StepId;
use crate::steps::Steps;
use crate::table::Table;
use crate::table::sequence::{Beam, Sequence};

/// A step's prefill share is at least its budget / (2 x stages), so that steps do not become too small.
const MAX_PARTS: u32 = 2;

/// The share of a step in the work of all running sequences.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StepShare {
    /// Decodes without a row in the last steps, as many steps as there are stages. They come first.
    num_due: u32,
    /// Decodes with a row in those steps, if there are too few others.
    num_recent: u32,
    pub(crate) prefill_tokens: u32,
    /// Whether a sequence got no row because the share was used up.
    pub(crate) has_passed_over: bool,
}

impl StepShare {
    /// The whole work: no limit.
    pub(crate) const WHOLE: Self =
        Self { num_due: u32::MAX, num_recent: u32::MAX, prefill_tokens: u32::MAX, has_passed_over: false };

    /// The same share of prefills, with all decodes.
    pub(crate) fn with_all_decodes(self) -> Self {
        Self { prefill_tokens: self.prefill_tokens, ..Self::WHOLE }
    }

    /// Whether one more decode fits; if not, notes it.
    pub(crate) fn admit_decode(&mut self, is_due: bool) -> bool {
        let fits = if is_due { self.num_due > 0 } else { self.num_recent > 0 };
        self.has_passed_over |= !fits;
        fits
    }

    /// Takes one decode off the share.
    pub(crate) fn take(&mut self, is_due: bool) {
        let left = if is_due { &mut self.num_due } else { &mut self.num_recent };
        *left -= 1;
    }
}

/// Whether a sequence had no row in the last steps before `next`, as many steps as there are stages.
pub(super) fn is_due(sequence: &Sequence, next: StepId, config: &Config) -> bool {
    let num_stages = u64::from(config.pipeline_parallel_size);
    sequence.last_share == 0 || sequence.last_step.0 + num_stages <= next.0
}

impl StepShare {
    /// The share of the next step in a pipeline.
    pub(super) fn of_next(config: &Config, table: &Table, steps: &Steps) -> Self {
        let num_stages = config.pipeline_parallel_size;
        let (mut num_decodes, mut num_due) = (0, 0);
        let mut prefill_tokens: u64 = steps.iter().map(|step| u64::from(step.num_prefill_tokens)).sum();
        for &key in table.running() {
            let sequence = &table[key];
            let is_prefill = sequence.num_uncomputed() > 1 || (sequence.num_samples > 1 && sequence.num_in_flight == 0);
            if is_prefill {
                prefill_tokens += u64::from(sequence.num_uncomputed());
            } else if sequence.beam != Beam::Waiting {
                num_decodes += sequence.num_samples;
                num_due += u32::from(sequence.may_have_row(true) && is_due(sequence, steps.next(), config));
            }
        }
        prefill_tokens += waiting_tokens(table, u64::from(num_stages) * u64::from(config.max_num_batched_tokens));
        let num_rows = num_decodes.div_ceil(num_stages).max(1);
        let num_due = num_due.min(num_rows);
        let least = config.block_size.max(config.max_num_batched_tokens / (MAX_PARTS * num_stages));
        let prefill_tokens = prefill_tokens.div_ceil(u64::from(num_stages)).max(u64::from(least));
        Self {
            num_due,
            num_recent: num_rows - num_due,
            prefill_tokens: u32::try_from(prefill_tokens).unwrap_or(u32::MAX),
            has_passed_over: false,
        }
    }
}

/// Uncomputed tokens of the queued sequences that could have a slot, up to about `most`.
fn waiting_tokens(table: &Table, most: u64) -> u64 {
    let mut num_tokens = 0;
    for (_, _, key) in table.queue().iter().take(table.num_free_slots()) {
        num_tokens += u64::from(table[key].num_uncomputed());
        if num_tokens >= most {
            break;
        }
    }
    num_tokens
}
