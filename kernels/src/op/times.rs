//! Start times and durations of ops, for a profile. Knows only their names.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// An op, and the one before it if both ran together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OpName {
    pub(crate) writer: Option<&'static str>,
    pub(crate) op: &'static str,
}

impl OpName {
    pub(crate) fn of(op: &'static str) -> Self {
        Self { writer: None, op }
    }

    pub(crate) fn text(self) -> String {
        self.writer.map_or_else(|| self.op.to_owned(), |writer| format!("{writer} + {}", self.op))
    }
}

/// An observer of every op that runs.
pub(crate) trait Watch {
    /// Run an op; `name` is only called if it is needed.
    fn run<R>(&mut self, name: impl FnOnce() -> OpName, op: impl FnOnce() -> R) -> R;
}

/// The observer that does nothing, at no cost.
pub(crate) struct Unwatched;

impl Watch for Unwatched {
    fn run<R>(&mut self, _: impl FnOnce() -> OpName, op: impl FnOnce() -> R) -> R {
        op()
    }
}

/// Totals of all ops by name, and the first single runs.
pub(crate) struct OpTimes {
    began: Instant,
    /// `began`, in nanoseconds of Unix time.
    origin: u64,
    max_runs: usize,
    runs: Vec<Run>,
    totals: Vec<Total>,
}

/// One run of an op, in nanoseconds of Unix time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Run {
    /// Index of its name in `totals`.
    pub(crate) name: usize,
    pub(crate) start: u64,
    pub(crate) duration: u64,
}

/// All runs of one name, in nanoseconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Total {
    pub(crate) name: OpName,
    pub(crate) runs: u64,
    pub(crate) duration: u64,
}

impl OpTimes {
    /// Only the first `max_runs` single runs are kept; totals include all.
    pub(crate) fn new(max_runs: usize) -> Self {
        let origin = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| nanoseconds(since.as_nanos()));
        Self { began: Instant::now(), origin, max_runs, runs: Vec::new(), totals: Vec::new() }
    }

    pub(crate) fn runs(&self) -> &[Run] {
        &self.runs
    }

    pub(crate) fn totals(&self) -> &[Total] {
        &self.totals
    }

    fn add(&mut self, name: OpName, start: u64, duration: u64) {
        // A model has a dozen names.
        let known = self.totals.iter().position(|total| total.name == name);
        let index = known.unwrap_or_else(|| {
            self.totals.push(Total { name, runs: 0, duration: 0 });
            self.totals.len() - 1
        });
        let total = &mut self.totals[index];
        total.runs += 1;
        total.duration += duration;
        if self.runs.len() < self.max_runs {
            self.runs.push(Run { name: index, start: self.origin + start, duration });
        }
    }
}

impl Watch for OpTimes {
    fn run<R>(&mut self, name: impl FnOnce() -> OpName, op: impl FnOnce() -> R) -> R {
        let started = Instant::now();
        let result = op();
        let duration = nanoseconds(started.elapsed().as_nanos());
        self.add(name(), nanoseconds(started.duration_since(self.began).as_nanos()), duration);
        result
    }
}

/// 2^64 nanoseconds are 584 years.
fn nanoseconds(number: u128) -> u64 {
    u64::try_from(number).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn totals_are_of_all_runs_and_the_first_are_kept() {
        let mut times = OpTimes::new(3);
        let (norm, joined) = (OpName::of("norm"), OpName { writer: Some("norm"), op: "packed_linear" });
        for name in [norm, joined, norm, norm, joined] {
            assert_eq!(times.run(|| name, || 7), 7);
        }
        let totals: Vec<_> = times.totals().iter().map(|total| (total.name.text(), total.runs)).collect();
        assert_eq!(totals, [("norm".to_owned(), 3), ("norm + packed_linear".to_owned(), 2)]);
        assert_eq!(times.runs().iter().map(|run| run.name).collect::<Vec<_>>(), [0, 1, 0]);
    }

    #[test]
    fn runs_follow_one_another_and_totals_are_their_sum() {
        let mut times = OpTimes::new(100);
        for _ in 0..20 {
            times.run(|| OpName::of("add"), || std::hint::black_box((0..1000).sum::<u64>()));
        }
        assert!(times.runs().windows(2).all(|pair| pair[0].start + pair[0].duration <= pair[1].start));
        assert_eq!(times.totals()[0].duration, times.runs().iter().map(|run| run.duration).sum::<u64>());
    }
}
