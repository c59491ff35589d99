use std::ops::Range;

use proptest::prelude::*;

use super::*;
use crate::dtype::{self, DType};

/// Sequences in a cache, and the query of each of their positions.
#[derive(Clone, Debug)]
struct Case {
    /// KV heads, query heads per KV head, and their size.
    heads: (usize, usize, usize),
    block_size: usize,
    /// Positions of each sequence.
    lengths: Vec<usize>,
    elements: Elements,
    window: Option<usize>,
    bidirectional: bool,
    soft_cap: Option<f32>,
    has_sinks: bool,
    by_distance: ByDistance,
    /// Numbers of each cell behind its heads, which no one reads.
    beside: usize,
    seed: u64,
}

/// The change of scores by distance.
#[derive(Clone, Copy, Debug, PartialEq)]
enum ByDistance {
    Nothing,
    Slopes,
    RelativeBias,
}

/// The dtypes of the cache, and of query and out.
#[derive(Clone, Copy, Debug)]
struct Elements {
    cache: DType,
    query: DType,
}

const FLOAT32: Elements = Elements { cache: DType::Float32, query: DType::Float32 };
const BFLOAT16: Elements = Elements { cache: DType::Bfloat16, query: DType::Bfloat16 };
const FLOAT16: Elements = Elements { cache: DType::Float16, query: DType::Float16 };

impl Elements {
    /// Maximum distance from the result in float64: results are rounded, and weights too, with bfloat16 only.
    fn tolerance(self) -> f64 {
        match self.query {
            DType::Float32 => 1e-5,
            DType::Bfloat16 => 2.0_f64.powi(-7),
            DType::Float16 => 2.0_f64.powi(-10),
        }
    }
}

/// The inputs of a case, with the blocks in some order.
struct Memory {
    query: Vec<f32>,
    /// Keys, then values, in the cache's dtype.
    cache: [Vec<u8>; 2],
    tables: Vec<i32>,
    max_blocks: usize,
}

/// Numbers from -1 to 1 that depend on their index.
fn number(seed: u64, index: usize) -> f32 {
    let mut bits = seed ^ (index as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    bits = (bits ^ bits >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ bits >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    f32::from(((bits >> 40) as u16).cast_signed()) / 32768.0
}

impl Case {
    fn memory(&self, blocks_from_the_end: bool) -> Memory {
        let (kv_heads, group, head_dim) = self.heads;
        let width = kv_heads * head_dim;
        let max_blocks = self.lengths.iter().max().map_or(0, |length| length.div_ceil(self.block_size));
        let num_blocks = self.lengths.len() * max_blocks;
        let total: usize = self.lengths.iter().sum();
        let query = (0..total * group * width).map(|index| 4.0 * number(self.seed, index)).collect();
        let tables: Vec<i32> = (0..num_blocks as i32)
            .map(|block| if blocks_from_the_end { num_blocks as i32 - 1 - block } else { block })
            .collect();
        let cells = num_blocks * self.block_size;
        let cache = [1, 2].map(|which| {
            let stride = width + self.beside;
            let mut numbers = vec![f32::NAN; cells * stride];
            let mut next = 0;
            for (row, &length) in self.lengths.iter().enumerate() {
                for position in 0..length {
                    let block = tables[row * max_blocks + position / self.block_size] as usize;
                    let cell = block * self.block_size + position % self.block_size;
                    for number in &mut numbers[cell * stride..][..width] {
                        *number = self::number(self.seed + which, next);
                        next += 1;
                    }
                }
            }
            dtype::elements(self.elements.cache, &numbers)
        });
        Memory { query, cache, tables, max_blocks }
    }

    /// Attention of some positions of every row, in a call for all rows: row by row, [tokens, heads, `head_dim`].
    fn attend(&self, memory: &Memory, ranges: &[Range<usize>], isa: Isa, num_threads: usize) -> Vec<f32> {
        self.attend_to_first(self.heads.2, memory, ranges, isa, num_threads)
    }

    /// The same, of the first numbers of each value.
    fn attend_to_first(
        &self,
        value_dim: usize,
        memory: &Memory,
        ranges: &[Range<usize>],
        isa: Isa,
        num_threads: usize,
    ) -> Vec<f32> {
        let (kv_heads, group, head_dim) = self.heads;
        let width = kv_heads * group * head_dim;
        let rows: Vec<usize> = (0..self.lengths.len()).filter(|&row| !ranges[row].is_empty()).collect();
        let mut query: Vec<f32> = Vec::new();
        let mut starts = vec![0];
        for &row in &rows {
            let before: usize = self.lengths[..row].iter().sum();
            query.extend(&memory.query[(before + ranges[row].start) * width..(before + ranges[row].end) * width]);
            starts.push((query.len() / width) as i32);
        }
        let slots: Vec<i32> = rows.iter().map(|&row| row as i32).collect();
        let lengths: Vec<i32> = rows.iter().map(|&row| ranges[row].end as i32).collect();
        let tokens = query.len() / width;
        let query = dtype::elements(self.elements.query, &query);
        let mut out = vec![0xff; query.len() / head_dim * value_dim];
        let (sinks, slopes, biases) = (self.sinks(), self.slopes(), self.biases());
        let rows_at = |address, stride| Matrix { dtype: self.elements.query, address, stride };
        let op = PagedAttention {
            tokens,
            heads: kv_heads * group,
            scale: 0.3,
            window: self.window.unwrap_or(NO_WINDOW),
            bidirectional: self.bidirectional,
            soft_cap: self.soft_cap,
            sinks: self.has_sinks.then(|| sinks.as_ptr().expose_provenance()),
            slopes: (self.by_distance == ByDistance::Slopes).then(|| slopes.as_ptr().expose_provenance()),
            relative_bias: (self.by_distance == ByDistance::RelativeBias)
                .then(|| RelativeBias { address: biases.as_ptr().expose_provenance(), width: self.biases_width() }),
            query: rows_at(query.as_ptr().expose_provenance(), width),
            out: rows_at(out.as_mut_ptr().expose_provenance(), kv_heads * group * value_dim),
            value_dim,
            cache: KvLayer {
                dtype: self.elements.cache,
                key_address: memory.cache[0].as_ptr().expose_provenance(),
                value_address: memory.cache[1].as_ptr().expose_provenance(),
                num_blocks: self.lengths.len() * memory.max_blocks,
                block_size: self.block_size,
                block_stride: self.block_size,
                cell_stride: kv_heads * head_dim + self.beside,
                kv_heads,
                head_dim,
            },
            batch: Batch {
                rows: rows.len(),
                block_tables: Indices(memory.tables.as_ptr().expose_provenance()),
                num_slots: self.lengths.len(),
                max_blocks: memory.max_blocks,
                slots: Indices(slots.as_ptr().expose_provenance()),
                query_starts: Indices(starts.as_ptr().expose_provenance()),
                sequence_lengths: Indices(lengths.as_ptr().expose_provenance()),
                is_by_token: false,
            },
        };
        // SAFETY: every address is of a vector above, as long as the sizes say; the tests ask for what the machine has.
        unsafe { op.run(op.capacity(), isa, &mut Pool::new(num_threads)) }.expect("the indices are right");
        dtype::numbers(self.elements.query, &out)
    }

    /// The result in float64, by the definition, over cells numbered by position.
    fn expected(&self) -> Vec<f64> {
        let (kv_heads, group, head_dim) = self.heads;
        let rounded = |value: f32| {
            f64::from(dtype::numbers(self.elements.cache, &dtype::elements(self.elements.cache, &[value]))[0])
        };
        let query = self.memory(false).query;
        let query = dtype::numbers(self.elements.query, &dtype::elements(self.elements.query, &query));
        let biases = self.biases();
        let mut out = Vec::new();
        let mut before = 0;
        for &length in &self.lengths {
            let cell = |which: u64, position: usize, kv_head: usize, at: usize| {
                rounded(number(self.seed + which, ((before + position) * kv_heads + kv_head) * head_dim + at))
            };
            for position in 0..length {
                for head in 0..kv_heads * group {
                    let query = &query[((before + position) * kv_heads * group + head) * head_dim..][..head_dim];
                    let dot = |key: usize| -> f64 {
                        query.iter().enumerate().map(|(at, &q)| f64::from(q) * cell(1, key, head / group, at)).sum()
                    };
                    let window = self.window.unwrap_or(NO_WINDOW);
                    let first = (position + 1).saturating_sub(window);
                    let end =
                        if self.bidirectional { position.saturating_add(window).min(length) } else { position + 1 };
                    let held = |score: f64| {
                        self.soft_cap.map_or(score, |cap| f64::from(cap) * (score / f64::from(cap)).tanh())
                    };
                    let slope =
                        if self.by_distance == ByDistance::Slopes { f64::from(self.slopes()[head]) } else { 0.0 };
                    let distance = |key: usize| f64::from(position.abs_diff(key) as u32);
                    let bias = |key: usize| {
                        let middle = head * self.biases_width() + (self.biases_width() - LANES) / 2;
                        if self.by_distance == ByDistance::RelativeBias {
                            f64::from(biases[middle + key - position])
                        } else {
                            0.0
                        }
                    };
                    let score = |key: usize| held(0.3 * dot(key)) - slope * distance(key) + bias(key);
                    let scores: Vec<f64> = (first..end).map(score).collect();
                    let greatest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                    let weights: Vec<f64> = scores.iter().map(|score| (score - greatest).exp()).collect();
                    let sink = if self.has_sinks { (f64::from(self.sinks()[head]) - greatest).exp() } else { 0.0 };
                    let total: f64 = weights.iter().sum::<f64>() + sink;
                    out.extend((0..head_dim).map(|at| {
                        let values = weights.iter().enumerate();
                        values.map(|(key, weight)| weight * cell(2, first + key, head / group, at)).sum::<f64>() / total
                    }));
                }
            }
            before += length;
        }
        out
    }

    /// The sinks of the heads: some are far above the scores, some far below.
    fn sinks(&self) -> Vec<f32> {
        (0..self.heads.0 * self.heads.1).map(|head| 12.0 * number(self.seed + 3, head)).collect()
    }

    /// The biases of the heads by distance, only as many as the longest sequence needs.
    fn biases(&self) -> Vec<f32> {
        (0..self.heads.0 * self.heads.1 * self.biases_width()).map(|at| number(self.seed + 5, at)).collect()
    }

    fn biases_width(&self) -> usize {
        2 * self.lengths.iter().max().expect("there are sequences") + LANES
    }

    /// The slopes of the heads.
    fn slopes(&self) -> Vec<f32> {
        (0..self.heads.0 * self.heads.1).map(|head| number(self.seed + 4, head).abs()).collect()
    }

    /// Every position, in one call.
    fn whole(&self) -> Vec<Range<usize>> {
        self.lengths.iter().map(|&length| 0..length).collect()
    }

    /// Numbers of a row's positions.
    fn width(&self) -> usize {
        self.heads.0 * self.heads.1 * self.heads.2
    }
}

fn cases(longest: usize) -> impl Strategy<Value = Case> {
    let heads = (1..4_usize, 1..10_usize, prop::sample::select(vec![2, 16, 24, 32, 33, 64, 80, 96, 128]));
    let lengths = prop::collection::vec(1..longest, 1..4);
    let mixed = Elements { cache: DType::Bfloat16, query: DType::Float32 };
    let elements = prop::sample::select(vec![FLOAT32, mixed, BFLOAT16, BFLOAT16, FLOAT16]);
    let block_sizes = prop::sample::select(vec![1, 3, 16, 128, 1024]);
    let windows = prop::sample::select(vec![None, None, Some(1), Some(7), Some(64), Some(100)]);
    let seen = (windows, any::<bool>());
    let by_distance = prop::sample::select(vec![ByDistance::Nothing, ByDistance::Slopes, ByDistance::RelativeBias]);
    let layers = (seen, prop::sample::select(vec![None, None, Some(3.0)]), any::<bool>(), by_distance);
    let besides = prop::sample::select(vec![0, 0, 5, 32]);
    (heads, (block_sizes, besides), lengths, elements, layers, any::<u32>()).prop_map(
        |(
            heads,
            (block_size, beside),
            lengths,
            elements,
            ((window, bidirectional), soft_cap, has_sinks, by_distance),
            seed,
        )| {
            Case {
                heads,
                block_size,
                lengths,
                elements,
                window,
                bidirectional,
                soft_cap,
                has_sinks,
                by_distance,
                beside,
                seed: seed.into(),
            }
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]

    #[test]
    fn it_is_attention(case in cases(90)) {
        let memory = case.memory(false);
        let (expected, tolerance) = (case.expected(), case.elements.tolerance());
        for isa in Isa::available() {
            for (out, expected) in case.attend(&memory, &case.whole(), isa, 1).into_iter().zip(&expected) {
                prop_assert!((f64::from(out) - expected).abs() < tolerance, "{isa:?}: {out} is not {expected}");
            }
        }
    }

    #[test]
    fn narrower_values_are_the_first_numbers(case in cases(90), least in 1..128_usize) {
        let (memory, head_dim) = (case.memory(false), case.heads.2);
        for value_dim in [head_dim.div_ceil(2), least.min(head_dim)] {
            for isa in Isa::available() {
                // AMX computes whole tiles alone.
                let isa = if value_dim.is_multiple_of(32) { isa } else { isa.min(Isa::Avx512Bf16) };
                let whole = case.attend(&memory, &case.whole(), isa, 1);
                let narrow = case.attend_to_first(value_dim, &memory, &case.whole(), isa, 1);
                let first: Vec<f32> = whole.chunks(head_dim).flat_map(|head| head[..value_dim].to_vec()).collect();
                prop_assert_eq!(narrow, first, "{:?}", isa);
            }
        }
    }

    #[test]
    fn a_position_is_the_same_in_any_chunk_among_any_rows_in_any_blocks_and_on_any_threads(
        case in cases(140), cuts in prop::collection::vec(0..140_usize, 0..6), num_threads in 1..4_usize,
    ) {
        let (memory, elsewhere) = (case.memory(false), case.memory(true));
        for isa in Isa::available() {
            let together = case.attend(&memory, &case.whole(), isa, 1);
            let mut before = 0;
            for (row, &length) in case.lengths.iter().enumerate() {
                let mut ends: Vec<_> = cuts.iter().copied().filter(|&cut| cut < length).chain([0, length]).collect();
                ends.sort_unstable();
                for ends in ends.windows(2) {
                    // Tokens that see later ones are computed with all of these.
                    let chunk = ends[0]..if case.bidirectional { length } else { ends[1] };
                    let mut ranges = vec![0..0; case.lengths.len()];
                    ranges[row] = chunk.clone();
                    let part = case.attend(&elsewhere, &ranges, isa, num_threads);
                    let same = &together[(before + chunk.start) * case.width()..(before + chunk.end) * case.width()];
                    prop_assert_eq!(&part, same, "{:?}", isa);
                }
                before += length;
            }
        }
    }
}

#[test]
fn splits_are_the_same_one_after_the_other_and_side_by_side() {
    let length = 2 * SPLIT + 70;
    let cases = [(None, 16), (None, 64), (Some(7), 16), (Some(100), 64), (Some(SPLIT + 1), 16), (Some(SPLIT + 90), 16)];
    for (isa, (window, head_dim)) in Isa::available().flat_map(|isa| cases.map(|case| (isa, case))) {
        let case = Case {
            heads: (2, 3, head_dim),
            block_size: 16,
            lengths: vec![length, 3],
            elements: BFLOAT16,
            window,
            bidirectional: false,
            soft_cap: window.map(|_| 5.0),
            has_sinks: head_dim == 64,
            by_distance: if window == Some(7) || head_dim == 64 { ByDistance::Slopes } else { ByDistance::Nothing },
            beside: 0,
            seed: 7,
        };
        let memory = case.memory(true);
        // Two hundred positions, across the border of a split, then some of them alone.
        let chunk = length - 200..length;
        let together = case.attend(&memory, &[chunk.clone(), 0..3], isa, 1);
        for position in [2 * SPLIT - 1, 2 * SPLIT, 2 * SPLIT + 1, 2 * SPLIT + 25, length - 1] {
            for num_threads in [1, 2, 5] {
                for last in [position + 1, (position + 3).min(length)] {
                    let part = case.attend(&memory, &[position..last, 0..0], isa, num_threads);
                    let at = (position - chunk.start) * case.width();
                    assert_eq!(part, together[at..at + part.len()], "{isa:?}, {window:?}, {position}, {num_threads}");
                }
            }
        }
    }
}

#[test]
fn tokens_that_see_later_ones_are_the_same_alone_and_with_those_before() {
    let length = 2 * SPLIT + 70;
    for (isa, window) in
        Isa::available().flat_map(|isa| [None, Some(100), Some(SPLIT + 90)].map(|window| (isa, window)))
    {
        let case = Case {
            heads: (2, 3, 16),
            block_size: 16,
            lengths: vec![length],
            elements: BFLOAT16,
            window,
            bidirectional: true,
            soft_cap: None,
            has_sinks: false,
            by_distance: if window.is_none() { ByDistance::RelativeBias } else { ByDistance::Nothing },
            beside: 0,
            seed: 7,
        };
        let memory = case.memory(true);
        let together = case.attend(&memory, &case.whole(), isa, 1);
        for (first, num_threads) in [(length - 1, 5), (length - 3, 5), (length - 200, 2), (SPLIT + 3, 1)] {
            let part = case.attend(&memory, std::slice::from_ref(&(first..length)), isa, num_threads);
            assert_eq!(part, together[first * case.width()..], "{isa:?}, {window:?}, {first}, {num_threads}");
        }
    }
}

/// Positions outside all windows may share a tile with visible ones.
#[test]
fn what_lies_before_every_window_is_not_looked_at() {
    let (length, window, hidden) = (SPLIT + 200, 100, SPLIT + 37);
    for (elements, poison) in
        [FLOAT32, BFLOAT16, FLOAT16].into_iter().flat_map(|elements| [(elements, f32::NAN), (elements, f32::INFINITY)])
    {
        let heads = (2, 3, 32);
        let case = Case {
            heads,
            block_size: 4,
            lengths: vec![length],
            elements,
            window: Some(window),
            bidirectional: false,
            soft_cap: None,
            has_sinks: true,
            by_distance: ByDistance::Nothing,
            beside: 0,
            seed: 3,
        };
        let memory = case.memory(false);
        let mut poisoned = case.memory(false);
        for bytes in &mut poisoned.cache {
            let numbers = vec![poison; hidden * heads.0 * heads.2];
            let stored = dtype::elements(elements.cache, &numbers);
            bytes[..stored.len()].copy_from_slice(&stored);
        }
        let range = std::slice::from_ref(&(hidden + window - 1..length)).to_vec();
        for isa in Isa::available() {
            let expected = case.attend(&memory, &range, isa, 1);
            assert!(expected.iter().all(|number| number.is_finite()));
            assert_eq!(case.attend(&poisoned, &range, isa, 1), expected, "{isa:?}, {elements:?}");
        }
    }
}

/// Later positions of the chunk are in the same tile, and so are those of another sequence in the last block.
#[test]
fn what_a_later_position_holds_is_not_looked_at() {
    let poisons = [f32::INFINITY, f32::NEG_INFINITY, f32::NAN];
    for (elements, poison) in
        [FLOAT32, BFLOAT16, FLOAT16].into_iter().flat_map(|elements| poisons.map(|poison| (elements, poison)))
    {
        for (heads, seen) in [((2, 3, 32), 66), ((1, 1, 64), 3), ((1, 9, 64), 0), ((3, 3, 32), 69)] {
            let case = Case {
                heads,
                block_size: 4,
                lengths: vec![70],
                elements,
                window: None,
                bidirectional: false,
                soft_cap: None,
                has_sinks: false,
                by_distance: ByDistance::Nothing,
                beside: 0,
                seed: 3,
            };
            let memory = case.memory(false);
            let mut poisoned = case.memory(false);
            for bytes in &mut poisoned.cache {
                let start = (seen * heads.0 * heads.2) * elements.cache.bytes();
                let numbers = vec![poison; (bytes.len() - start) / elements.cache.bytes()];
                bytes[start..].copy_from_slice(&dtype::elements(elements.cache, &numbers));
            }
            for isa in Isa::available() {
                let expected = case.attend(&memory, std::slice::from_ref(&(0..70)), isa, 1);
                let out = case.attend(&poisoned, std::slice::from_ref(&(0..70)), isa, 1);
                let known = seen * case.width();
                assert_eq!(out[..known], expected[..known], "{isa:?}, {elements:?}, {heads:?}");
            }
        }
    }
}
