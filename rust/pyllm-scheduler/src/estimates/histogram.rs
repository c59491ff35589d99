//! Counts of values up to each bound, every count a named figure. Knows nothing of what is counted.

/// The bounds of a histogram, each with its figure's name: the prefix, `_le_` and the bound, or `inf` at the end.
macro_rules! bounds {
    ($prefix:literal, $($bound:literal)*) => {
        &[$(($bound, concat!($prefix, "_le_", $bound)),)* (u64::MAX, concat!($prefix, "_le_inf"))]
    };
}

pub(crate) use bounds;

/// Numbers of values up to each of `N` bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Histogram<const N: usize> {
    bounds: &'static [(u64, &'static str); N],
    counts: [u64; N],
}

impl<const N: usize> Histogram<N> {
    /// Without a value. The bounds rise, and nothing is above the last.
    pub(crate) const fn new(bounds: &'static [(u64, &'static str); N]) -> Self {
        Self { bounds, counts: [0; N] }
    }

    /// Count one value.
    pub(crate) fn add(&mut self, value: u64) {
        self.counts[self.bounds.partition_point(|&(bound, _)| bound < value)] += 1;
    }

    /// Every figure's name, and how many values were at most its bound.
    pub fn named(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let counts = self.counts.into_iter().scan(0, |total, count| {
            *total += count;
            Some(*total)
        });
        self.bounds.iter().map(|&(_, name)| name).zip(counts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_on_a_bound_belongs_to_it() {
        let mut histogram = Histogram::new(bounds!("size", 0 1 8 16384));
        for value in [0, 1, 2, 8, 9, 16_384, 16_385] {
            histogram.add(value);
        }
        let figures: Vec<_> = histogram.named().collect();
        let names = ["size_le_0", "size_le_1", "size_le_8", "size_le_16384", "size_le_inf"];
        assert_eq!(figures, names.into_iter().zip([1, 2, 4, 6, 7]).collect::<Vec<_>>());
    }
}
