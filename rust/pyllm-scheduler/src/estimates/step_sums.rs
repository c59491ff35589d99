//! Moving means of steps' durations and work, to fit a line: the base time of a step, and its seconds per unit of work.
//! Does not know the units of work.

use serde::{Deserialize, Serialize};

/// Weight of the newest step, after the first 1 / NEWEST steps.
const NEWEST: f64 = 1.0 / 32.0;

/// Means over the last steps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct StepSums {
    pub(crate) num_steps: u32, // at most 1 / NEWEST
    pub(crate) work: f64,
    pub(crate) seconds: f64,
    pub(crate) work_squared: f64,
    pub(crate) work_by_seconds: f64,
}

impl StepSums {
    /// Adds a step that took `seconds`.
    pub(crate) fn measure(&mut self, work: f64, seconds: f64) {
        if !(seconds.is_finite() && seconds > 0.0) || work <= 0.0 {
            return;
        }
        self.num_steps = (self.num_steps + 1).min((1.0 / NEWEST) as u32);
        let newest = 1.0 / f64::from(self.num_steps);
        let figures = [
            (&mut self.work, work),
            (&mut self.seconds, seconds),
            (&mut self.work_squared, work * work),
            (&mut self.work_by_seconds, work * seconds),
        ];
        for (mean, value) in figures {
            *mean += newest * (value - *mean);
        }
    }

    pub(crate) fn is_measured(&self) -> bool {
        self.num_steps > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_steps_count_alike_and_later_ones_replace_them() {
        let mut sums = StepSums::default();
        sums.measure(10.0, 1.0);
        sums.measure(30.0, 3.0);
        assert_eq!((sums.work, sums.seconds, sums.work_squared, sums.work_by_seconds), (20.0, 2.0, 500.0, 50.0));
        for _ in 0..1000 {
            sums.measure(5.0, 0.5);
        }
        assert!((sums.work - 5.0).abs() < 1e-6 && (sums.seconds - 0.5).abs() < 1e-6);
    }

    #[test]
    fn what_is_no_time_is_not_measured() {
        let mut sums = StepSums::default();
        for seconds in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            sums.measure(1.0, seconds);
        }
        sums.measure(0.0, 1.0);
        assert!(!sums.is_measured());
    }
}
