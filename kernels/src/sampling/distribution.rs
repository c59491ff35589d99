//! A draw from weights, after top-k and top-p. Sums are float64, in an order that the weights' number alone decides.

/// Weights whose sum is taken before it is added to the others'.
const CHUNK: usize = 256;
/// Sums that are kept apart within a chunk.
const SUMS: usize = 8;
/// Bits of a weight that do not say which bucket it is in: 20 of the 23 behind the point.
const BUCKET_SHIFT: u32 = 20;
/// Weights go up to 1.
const NUM_BUCKETS: usize = (1.0_f32.to_bits() >> BUCKET_SHIFT) as usize + 1;

/// What is kept, at least one token.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// The greatest so many, of equal ones the first; 0: all.
    pub(super) top_k: usize,
    /// As few of the greatest as have this share of what top-k has left; 1 and more: all.
    pub(super) top_p: f64,
}

/// The first index at which the sum of the weights that are kept exceeds `uniform` of all of theirs.
///
/// Weights are from 0 to 1. One of 0 is chosen only where all are.
pub(super) fn choose(weights: &[f32], limits: Limits, uniform: f64) -> usize {
    let last = if limits.top_k > 0 || limits.top_p < 1.0 { last_kept(weights, limits) } else { Place::LAST };
    let total: f64 = chunks(weights).map(|(start, chunk)| last.sum_of_kept(start, chunk)).sum();
    let target = uniform * total;
    let (mut before, mut found) = (0.0, 0);
    for (start, chunk) in chunks(weights) {
        let sum = before + last.sum_of_kept(start, chunk);
        // Where the uniform number is 1, or as good as, it is the last one with any weight.
        if sum > before {
            let (index, exceeds) = last.first_beyond(start, chunk, before, target);
            found = index;
            if exceeds || sum > target {
                break;
            }
        }
        before = sum;
    }
    found
}

/// A weight in the order of descending weights, equal ones by ascending index.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Place {
    weight: f32,
    index: usize,
}

impl Place {
    /// After every other one.
    const LAST: Self = Self { weight: 0.0, index: usize::MAX };

    /// Whether a weight is not after this place.
    fn keeps(self, weight: f32, index: usize) -> bool {
        weight > self.weight || (weight >= self.weight && index <= self.index)
    }

    fn kept(self, weight: f32, index: usize) -> f64 {
        if self.keeps(weight, index) { weight.into() } else { 0.0 }
    }

    fn sum_of_kept(self, start: usize, chunk: &[f32]) -> f64 {
        let mut sums = [0.0; SUMS];
        for (step, weights) in chunk.chunks(SUMS).enumerate() {
            for (lane, (sum, &weight)) in sums.iter_mut().zip(weights).enumerate() {
                *sum += self.kept(weight, start + step * SUMS + lane);
            }
        }
        sums.iter().sum()
    }

    /// The first index of a chunk where the sum exceeds the target, and whether it does: else the last that is kept.
    fn first_beyond(self, start: usize, chunk: &[f32], mut sum: f64, target: f64) -> (usize, bool) {
        let mut last = start;
        for (offset, &weight) in chunk.iter().enumerate() {
            let weight = self.kept(weight, start + offset);
            if weight > 0.0 {
                (sum, last) = (sum + weight, start + offset);
                if sum > target {
                    return (last, true);
                }
            }
        }
        (last, false)
    }
}

fn chunks(weights: &[f32]) -> impl Iterator<Item = (usize, &[f32])> {
    weights.chunks(CHUNK).enumerate().map(|(index, chunk)| (index * CHUNK, chunk))
}

/// The last place that top-k and top-p keep.
fn last_kept(weights: &[f32], limits: Limits) -> Place {
    let buckets = Buckets::of(weights);
    let (mut last, mut total) = (Place::LAST, buckets.sums.iter().sum::<f64>());
    if limits.top_k > 0 {
        let kept = buckets.find(weights, |num_before, _| num_before + 1 >= limits.top_k);
        (last, total) = kept.unwrap_or((last, total));
    }
    if limits.top_p < 1.0 {
        let target = limits.top_p * total;
        let kept = buckets.find(weights, |_, sum| sum >= target).map(|(place, _)| place);
        last = kept.filter(|place| last.keeps(place.weight, place.index)).unwrap_or(last);
    }
    last
}

/// How many weights there are of a size, and what they sum up to; the greatest in the last one.
struct Buckets {
    counts: [usize; NUM_BUCKETS],
    sums: [f64; NUM_BUCKETS],
}

impl Buckets {
    fn of(weights: &[f32]) -> Self {
        let mut buckets = Self { counts: [0; NUM_BUCKETS], sums: [0.0; NUM_BUCKETS] };
        for &weight in weights.iter().filter(|&&weight| weight > 0.0) {
            let bucket = bucket(weight);
            buckets.counts[bucket] += 1;
            buckets.sums[bucket] += f64::from(weight);
        }
        buckets
    }

    /// The first weight, from the greatest on, of which `is_last(how many are before it, their sum with it)` is true, and
    /// that sum. A bucket is looked into only if it is true of its own last.
    fn find(&self, weights: &[f32], is_last: impl Fn(usize, f64) -> bool) -> Option<(Place, f64)> {
        let (mut num_before, mut sum) = (0, 0.0);
        for bucket in (0..NUM_BUCKETS).rev().filter(|&bucket| self.counts[bucket] > 0) {
            if is_last(num_before + self.counts[bucket] - 1, sum + self.sums[bucket]) {
                let mut places = places_in(bucket, weights);
                places.sort_unstable_by(|a, b| b.weight.total_cmp(&a.weight).then(a.index.cmp(&b.index)));
                for place in places {
                    sum += f64::from(place.weight);
                    if is_last(num_before, sum) {
                        return Some((place, sum));
                    }
                    num_before += 1;
                }
            } else {
                num_before += self.counts[bucket];
                sum += self.sums[bucket];
            }
        }
        None
    }
}

fn bucket(weight: f32) -> usize {
    ((weight.to_bits() >> BUCKET_SHIFT) as usize).min(NUM_BUCKETS - 1)
}

fn places_in(wanted: usize, weights: &[f32]) -> Vec<Place> {
    let places = weights.iter().enumerate().map(|(index, &weight)| Place { weight, index });
    places.filter(|place| place.weight > 0.0 && bucket(place.weight) == wanted).collect()
}
