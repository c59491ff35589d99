//! A draw from weights, after top-k and top-p. Sums are float64, in an order that depends only on their number.

/// Low bits of a weight that do not affect its bucket: 20 of the 23 of its mantissa.
const BUCKET_SHIFT: u32 = 20;
/// Weights are at most 1.
const NUM_BUCKETS: usize = (1.0_f32.to_bits() >> BUCKET_SHIFT) as usize + 1;

/// The limits of top-k and top-p, which keep at least one token.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// Number of the greatest weights to keep, of equal ones the first; 0: all.
    pub(super) top_k: usize,
    /// Share of top-k's total to keep, with as few of the greatest as possible; 1 and more: all.
    pub(super) top_p: f64,
}

/// A token that may be drawn, and its weight, which is above 0 and at most 1.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Candidate {
    pub(super) weight: f32,
    pub(super) id: u32,
}

impl Candidate {
    /// Whether it comes no later in the order of descending weights, equal ones by ascending id.
    fn is_at_or_before(self, other: Self) -> bool {
        self.weight > other.weight || (self.weight >= other.weight && self.id <= other.id)
    }
}

/// Apply top-k and top-p. The candidates, by ascending id, include all that may be kept; `total` is the sum of all
/// weights, including those of other tokens.
pub(super) fn limit(candidates: &mut Vec<Candidate>, limits: Limits, mut total: f64) {
    let buckets = Buckets::of(candidates);
    let mut last = None;
    if limits.top_k > 0 {
        let found = buckets.find(candidates, |num_before, _| num_before + 1 >= limits.top_k);
        total = found.map_or(buckets.sums.iter().sum(), |(_, sum)| sum);
        last = found.map(|(candidate, _)| candidate);
    }
    if limits.top_p < 1.0 {
        let target = limits.top_p * total;
        let found = buckets.find(candidates, |_, sum| sum >= target).map(|(candidate, _)| candidate);
        last = found.filter(|&found| last.is_none_or(|last| found.is_at_or_before(last))).or(last);
    }
    if let Some(last) = last {
        candidates.retain(|candidate| candidate.is_at_or_before(last));
    }
}

/// The id of the first candidate at which the sum of weights exceeds `uniform` times their total; else of the last.
pub(super) fn choose(candidates: &[Candidate], uniform: f64) -> Option<usize> {
    let weights = candidates.iter().map(|candidate| f64::from(candidate.weight));
    let place = first_beyond(weights.clone(), 0.0, uniform * weights.sum::<f64>());
    let chosen = place.map_or(candidates.last(), |place| candidates.get(place));
    chosen.map(|candidate| candidate.id as usize)
}

/// The first index at which the sum of the weights, plus `before`, exceeds the target.
pub(super) fn first_beyond(weights: impl Iterator<Item = f64>, before: f64, target: f64) -> Option<usize> {
    let sums = weights.scan(before, |sum, weight| {
        *sum += weight;
        Some(*sum)
    });
    sums.enumerate().find(|&(_, sum)| sum > target).map(|(place, _)| place)
}

/// Numbers and sums of weights by size; the greatest weights are in the last bucket.
struct Buckets {
    counts: [usize; NUM_BUCKETS],
    sums: [f64; NUM_BUCKETS],
}

impl Buckets {
    fn of(candidates: &[Candidate]) -> Self {
        let mut buckets = Self { counts: [0; NUM_BUCKETS], sums: [0.0; NUM_BUCKETS] };
        for candidate in candidates {
            let bucket = bucket(candidate.weight);
            buckets.counts[bucket] += 1;
            buckets.sums[bucket] += f64::from(candidate.weight);
        }
        buckets
    }

    /// The first candidate, from the greatest on, with `is_last(number of candidates before it, sum including it)`, and
    /// that sum. A bucket is searched only if this holds for its own last candidate.
    fn find(&self, candidates: &[Candidate], is_last: impl Fn(usize, f64) -> bool) -> Option<(Candidate, f64)> {
        let (mut num_before, mut sum) = (0, 0.0);
        for wanted in (0..NUM_BUCKETS).rev().filter(|&bucket| self.counts[bucket] > 0) {
            if is_last(num_before + self.counts[wanted] - 1, sum + self.sums[wanted]) {
                let in_bucket = candidates.iter().copied().filter(|candidate| bucket(candidate.weight) == wanted);
                let mut in_order: Vec<Candidate> = in_bucket.collect();
                in_order.sort_unstable_by(|a, b| b.weight.total_cmp(&a.weight).then(a.id.cmp(&b.id)));
                for candidate in in_order {
                    sum += f64::from(candidate.weight);
                    if is_last(num_before, sum) {
                        return Some((candidate, sum));
                    }
                    num_before += 1;
                }
            } else {
                num_before += self.counts[wanted];
                sum += self.sums[wanted];
            }
        }
        None
    }
}

fn bucket(weight: f32) -> usize {
    ((weight.to_bits() >> BUCKET_SHIFT) as usize).min(NUM_BUCKETS - 1)
}
