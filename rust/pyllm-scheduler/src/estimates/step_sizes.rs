//! A histogram of tokens per step. Does not tell prefill from decode.

const NUM_BUCKETS: usize = 14;

/// The largest size of each bucket, and the name of its counter. The bounds are those of vLLM's
/// `iteration_tokens_total`.
const BUCKETS: [(u64, &str); NUM_BUCKETS] = [
    (1, "iteration_tokens_le_1"),
    (8, "iteration_tokens_le_8"),
    (16, "iteration_tokens_le_16"),
    (32, "iteration_tokens_le_32"),
    (64, "iteration_tokens_le_64"),
    (128, "iteration_tokens_le_128"),
    (256, "iteration_tokens_le_256"),
    (512, "iteration_tokens_le_512"),
    (1024, "iteration_tokens_le_1024"),
    (2048, "iteration_tokens_le_2048"),
    (4096, "iteration_tokens_le_4096"),
    (8192, "iteration_tokens_le_8192"),
    (16384, "iteration_tokens_le_16384"),
    (u64::MAX, "iteration_tokens_le_inf"),
];

/// Numbers of steps by their tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepSizes {
    counts: [u64; NUM_BUCKETS],
}

impl StepSizes {
    /// Counts a step of so many tokens; steps that only move blocks are not counted.
    pub(crate) fn add(&mut self, num_tokens: u64) {
        if num_tokens > 0 {
            self.counts[BUCKETS.partition_point(|&(bound, _)| bound < num_tokens)] += 1;
        }
    }

    /// Every bucket's name, and the number of steps with at most its tokens.
    pub fn named(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let counts = self.counts.into_iter().scan(0, |total, count| {
            *total += count;
            Some(*total)
        });
        BUCKETS.iter().map(|&(_, name)| name).zip(counts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_on_a_bound_belongs_to_it() {
        let mut sizes = StepSizes::default();
        for num_tokens in [0, 1, 2, 8, 9, 16_384, 16_385] {
            sizes.add(num_tokens);
        }
        let counts: Vec<_> = sizes.named().map(|(_, count)| count).collect();
        assert_eq!(counts, [1, 3, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 5, 6]);
    }

    #[test]
    fn every_bucket_is_named_by_its_bound() {
        let bounds: Vec<_> = BUCKETS[..NUM_BUCKETS - 1].iter().map(|&(bound, _)| bound).collect();
        assert_eq!(bounds, [1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384]);
        for (bound, name) in &BUCKETS[..NUM_BUCKETS - 1] {
            assert_eq!(*name, format!("iteration_tokens_le_{bound}"));
        }
    }
}
