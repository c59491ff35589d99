//! Estimates from measurements, for planning: output lengths, peak numbers of blocks, times of steps.

pub(crate) mod core_load;
pub(crate) mod histogram;
pub(crate) mod output_lengths;
pub(crate) mod peak_blocks;
pub(crate) mod step_sums;
pub(crate) mod step_times;
