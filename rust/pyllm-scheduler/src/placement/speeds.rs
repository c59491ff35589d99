//! Relative speeds of cores, from the times of their steps. A core with little work has short steps that compute little
//! each, so work per second measures load rather than speed: instead, a line fitted to the steps of all cores gives the
//! expected time of a step by its work, and a core's slowness is its measured time divided by that.

use crate::estimates::step_sums::StepSums;

/// Limit of a core's slowness, and of its inverse: a first step may include compilation.
const MAX_SLOWNESS: f64 = 16.0;

/// Seconds per unit of work before any measurement, where it is the same for all cores.
const UNMEASURED: f64 = 1e-4;

/// Means over all cores.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Speeds {
    base: f64,
    slope: f64,
    /// Seconds of a mean step; 0 before any measurement.
    pub(crate) step_seconds: f64,
    seconds_per_work: f64,
    unknown: f64, // slowness of cores without measurements
}

impl Default for Speeds {
    fn default() -> Self {
        Self { base: 0.0, slope: 0.0, step_seconds: 0.0, seconds_per_work: UNMEASURED, unknown: 1.0 }
    }
}

impl Speeds {
    /// Speeds from the measured ones of `cores`.
    pub(crate) fn of<'a>(cores: impl Iterator<Item = &'a StepSums>) -> Self {
        let measured: Vec<_> = cores.filter(|sums| sums.is_measured()).collect();
        if measured.is_empty() {
            return Self::default();
        }
        let count = f64::from(measured.len() as u32);
        let mean = |of: fn(&StepSums) -> f64| measured.iter().map(|sums| of(sums)).sum::<f64>() / count;
        let (work, seconds) = (mean(|sums| sums.work), mean(|sums| sums.seconds));
        let variance = mean(|sums| sums.work_squared) - work * work;
        let covariance = mean(|sums| sums.work_by_seconds) - work * seconds;
        let slope = if variance > 1e-6 * work * work { (covariance / variance).max(0.0) } else { 0.0 };
        let slope = slope.min(seconds / work);
        let speeds = Self {
            base: seconds - slope * work,
            slope,
            step_seconds: seconds,
            seconds_per_work: seconds / work,
            unknown: 1.0,
        };
        let speed = measured.iter().map(|sums| 1.0 / speeds.slowness(sums)).sum::<f64>() / count;
        Self { unknown: 1.0 / speed, ..speeds }
    }

    /// Seconds per unit of work on a core, at the current load.
    pub(crate) fn seconds_per_work(&self, sums: &StepSums) -> f64 {
        self.seconds_per_work * self.slowness(sums)
    }

    /// Seconds per unit of work on a core without measurements.
    pub(crate) fn unmeasured_seconds(&self) -> f64 {
        self.seconds_per_work * self.unknown
    }

    fn slowness(&self, sums: &StepSums) -> f64 {
        if !sums.is_measured() {
            return self.unknown;
        }
        let expected = self.base + self.slope * sums.work;
        if expected > 0.0 { (sums.seconds / expected).clamp(1.0 / MAX_SLOWNESS, MAX_SLOWNESS) } else { 1.0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn core(steps: &[(f64, f64)]) -> StepSums {
        let mut sums = StepSums::default();
        for &(work, seconds) in steps {
            sums.measure(work, seconds);
        }
        sums
    }

    fn seconds(cores: &[StepSums]) -> Vec<f64> {
        let speeds = Speeds::of(cores.iter());
        cores.iter().map(|sums| speeds.seconds_per_work(sums)).collect()
    }

    /// A step that takes 20 ms and 10 us per unit of work.
    fn step(work: f64, slowness: f64) -> (f64, f64) {
        (work, slowness * (0.02 + 1e-5 * work))
    }

    #[test]
    fn a_core_with_little_to_do_is_as_fast_as_a_busy_one() {
        let times = seconds(&[core(&[step(2.0, 1.0), step(4.0, 1.0)]), core(&[step(500.0, 1.0), step(2000.0, 1.0)])]);
        assert!((times[0] / times[1] - 1.0).abs() < 1e-9, "{times:?}");
    }

    #[test]
    fn a_slow_core_is_slow_and_an_unknown_one_as_fast_as_their_mean() {
        let sizes = [100.0, 900.0];
        let times =
            seconds(&[core(&sizes.map(|work| step(work, 1.0))), core(&sizes.map(|work| step(work, 3.0))), core(&[])]);
        assert!((times[1] / times[0] - 3.0).abs() < 1e-9, "{times:?}");
        let mean = f64::midpoint(1.0 / times[0], 1.0 / times[1]);
        assert!((1.0 / times[2] - mean).abs() < 1e-6 * mean, "{times:?}");
    }

    #[test]
    fn without_a_measure_all_are_alike() {
        assert_eq!(seconds(&[core(&[]), core(&[])]), [UNMEASURED; 2]);
        assert_eq!(Speeds::of([].iter()), Speeds::default());
    }
}
