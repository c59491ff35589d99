//! Estimates of output lengths, from samples that ended by themselves. Older samples count less and less; a recording
//! gives the same estimates. Knows nothing of requests.

/// Buckets per doubling of the length.
const STEPS: u32 = 4;
const NUM_BUCKETS: usize = (32 * STEPS) as usize;
/// Factor of a sample's weight each time another one ends.
const KEPT: f64 = 1.0 - 1.0 / 256.0;
/// Expected output tokens before any sample has ended.
pub(crate) const FIRST_LENGTH: f64 = 128.0;

pub(crate) struct OutputLengths {
    weights: Box<[f64; NUM_BUCKETS]>, // of the lengths in each bucket
    sums: Box<[f64; NUM_BUCKETS]>,    // of those lengths, weighted
    longer: Box<[f64; NUM_BUCKETS]>,  // expected length beyond each bucket; 0 where nothing was longer
    mean: f64,
}

impl OutputLengths {
    pub(crate) fn new() -> Self {
        let nothing = || Box::new([0.0; NUM_BUCKETS]);
        Self { weights: nothing(), sums: nothing(), longer: nothing(), mean: FIRST_LENGTH }
    }

    /// Adds a sample that ended with `length` output tokens.
    pub(crate) fn add(&mut self, length: u32) {
        for value in self.weights.iter_mut().chain(self.sums.iter_mut()) {
            *value *= KEPT;
        }
        let bucket = bucket(length);
        self.weights[bucket] += 1.0;
        self.sums[bucket] += f64::from(length);
        self.refresh();
    }

    /// Expected output tokens of a new sample.
    pub(crate) fn mean(&self) -> f64 {
        self.mean
    }

    /// Expected output tokens after the first `length`: the mean remainder of the samples that were longer. A sample
    /// longer than all before is expected to reach the mean, or to double.
    pub(crate) fn remaining(&self, length: u32) -> f64 {
        if length == 0 {
            return self.mean();
        }
        let (length, longer) = (f64::from(length), self.longer[bucket(length)]);
        if longer > 0.0 { (longer - length).max(1.0) } else { (self.mean - length).max(length) }
    }

    fn refresh(&mut self) {
        let (mut weight, mut sum) = (0.0, 0.0);
        for bucket in (0..NUM_BUCKETS).rev() {
            self.longer[bucket] = if weight > 1e-3 { sum / weight } else { 0.0 };
            weight += self.weights[bucket];
            sum += self.sums[bucket];
        }
        self.mean = sum / weight;
    }
}

/// The bucket of a length: its power of two, and the two bits after the first.
fn bucket(length: u32) -> usize {
    let power = length.max(1).ilog2();
    let fraction = ((u64::from(length.max(1)) << 2) >> power) as u32 - STEPS;
    (power * STEPS + fraction) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_passed_the_mean_is_expected_to_go_on() {
        let mut lengths = OutputLengths::new();
        assert!((lengths.mean() - 128.0).abs() < 1e-9 && (lengths.remaining(300) - 300.0).abs() < 1e-9);
        for length in [10, 10, 10, 1000].repeat(100) {
            lengths.add(length);
        }
        assert!((200.0..320.0).contains(&lengths.mean()), "{}", lengths.mean());
        assert!((890.0..910.0).contains(&lengths.remaining(100)), "{}", lengths.remaining(100));
        assert!((lengths.remaining(2000) - 2000.0).abs() < 1e-9);
    }

    #[test]
    fn lengths_fall_into_buckets_in_their_order() {
        assert!((1..100_000).is_sorted_by_key(bucket));
        assert!(bucket(u32::MAX) < NUM_BUCKETS && bucket(0) == bucket(1));
    }
}
