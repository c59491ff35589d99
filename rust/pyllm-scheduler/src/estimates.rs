//! Estimates from measurements, for planning: output lengths, peak numbers of blocks, times of steps.

pub(crate) mod core_load;
pub(crate) mod histogram;
pub(crate) mod output_lengths;
pub(crate) mod peak_blocks;
pub(crate) mod step_sums;
pub(crate) mod step_times;

use output_lengths::OutputLengths;
use step_sums::StepSums;
use step_times::StepTimes;

/// Expectations from the steps and outputs so far.
pub(crate) struct Estimates {
    pub(crate) times: StepTimes,
    pub(crate) output_lengths: OutputLengths,
    /// Charged work of the steps.
    pub(crate) step_sums: StepSums,
}

impl Estimates {
    pub(crate) fn new() -> Self {
        Self { times: StepTimes::default(), output_lengths: OutputLengths::new(), step_sums: StepSums::default() }
    }
}
