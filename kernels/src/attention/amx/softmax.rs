//! The online softmax of a panel: from scores to weights, in float32, one lane per pair. Exponentials are powers of
//! two.

use std::arch::x86_64::{
    __m512, __m512bh, __m512i, _mm512_add_ps, _mm512_cmpgt_epi32_mask, _mm512_cvtne2ps_pbh, _mm512_cvtss_f32,
    _mm512_dpbf16_ps, _mm512_fmadd_ps, _mm512_fmsub_ps, _mm512_load_ps, _mm512_loadu_ps, _mm512_loadu_si512,
    _mm512_mask_mov_ps, _mm512_maskz_mov_ps, _mm512_max_ps, _mm512_min_epi32, _mm512_mul_ps, _mm512_permutexvar_epi16,
    _mm512_roundscale_ps, _mm512_scalef_ps, _mm512_set1_epi16, _mm512_set1_epi32, _mm512_set1_ps, _mm512_setzero_ps,
    _mm512_storeu_ps, _mm512_storeu_si512, _mm512_sub_epi32, _mm512_sub_ps,
};
use std::f32::consts::LOG2_E;
use std::mem::transmute;
use std::ops::Range;

use super::products::{DEPTH, SIDE};
use crate::attention::TILE;
use crate::attention::cells::Ahead;
use crate::vector::{Avx512, Vector};

/// A lower bound of all scores, so that unseen positions weigh nothing; finite, so that it can be subtracted from
/// itself.
pub(super) const LOWEST: f32 = -1e30;

/// The partial results of one panel's pairs.
pub(super) struct Panel {
    pub(super) sums: *mut f32,
    /// The greatest scores, as exponents of two.
    pub(super) greatest: *mut f32,
    pub(super) weights: *mut f32,
}

/// The positions of a tile that are visible to the pairs of a panel.
#[derive(Clone, Copy)]
pub(super) struct Seen<'a> {
    /// The end of each pair's visible positions.
    pub(super) ends: &'a [i32; SIDE],
    /// The tile's first position, and its number of positions.
    pub(super) first: usize,
    pub(super) count: usize,
    /// Whether all positions are visible to all pairs.
    pub(super) all: bool,
}

impl Seen<'_> {
    /// The number of positions visible to a pair.
    pub(super) fn of(&self, pair: usize) -> usize {
        (self.ends[pair] as usize).saturating_sub(self.first).min(self.count)
    }
}

/// Turn the scores of a tile into weights.
pub(super) struct Weigh<'a> {
    /// [TILE, SIDE].
    pub(super) scores: *const f32,
    pub(super) scale: f32,
    pub(super) seen: Seen<'a>,
    /// [SIDE, TILE], bfloat16.
    pub(super) to: *mut u8,
}

/// A number per pair.
#[repr(C, align(64))]
pub(super) struct Factors([f32; SIDE]);

impl Weigh<'_> {
    /// Add the tile to the greatest scores and the sums of weights, and give the factors for earlier sums.
    ///
    /// # Safety
    ///
    /// The machine has AMX; the scores are valid, and there is room for the weights of `num_pairs`.
    pub(super) unsafe fn run(&self, panel: &Panel, num_pairs: usize, ahead: &Ahead<'_>) -> Factors {
        // SAFETY: as the caller promises.
        unsafe {
            if self.seen.all && self.seen.count == TILE {
                self.run_where::<false>(panel, num_pairs, ahead)
            } else {
                self.run_where::<true>(panel, num_pairs, ahead)
            }
        }
    }

    /// # Safety
    ///
    /// See `run`; all see all where nothing is masked.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16,avx2,fma")]
    unsafe fn run_where<const MASKED: bool>(&self, panel: &Panel, num_pairs: usize, ahead: &Ahead<'_>) -> Factors {
        // SAFETY: as the caller promises.
        unsafe {
            let scale = _mm512_set1_ps(self.scale * LOG2_E);
            let ends = _mm512_loadu_si512(self.seen.ends.as_ptr().cast());
            let visible = _mm512_sub_epi32(ends, _mm512_set1_epi32(self.seen.first as i32));
            let visible = _mm512_min_epi32(visible, _mm512_set1_epi32(self.seen.count as i32));
            let seen = |position: usize| _mm512_cmpgt_epi32_mask(visible, _mm512_set1_epi32(position as i32));
            let score = |position: usize| _mm512_load_ps(self.scores.add(position * SIDE));
            let before = _mm512_loadu_ps(panel.greatest);
            let mut maxima = [before; 4];
            for position in 0..TILE {
                let maximum = &mut maxima[position % 4];
                let score = _mm512_mul_ps(score(position), scale);
                let score = if MASKED { _mm512_mask_mov_ps(before, seen(position), score) } else { score };
                *maximum = _mm512_max_ps(*maximum, score);
            }
            let [a, b, c, d] = maxima;
            let greatest = _mm512_max_ps(_mm512_max_ps(a, b), _mm512_max_ps(c, d));
            let factor = power_of_two(_mm512_sub_ps(before, greatest));
            let weight = |position: usize| {
                let weight = power_of_two(_mm512_fmsub_ps(score(position), scale, greatest));
                if MASKED { _mm512_maskz_mov_ps(seen(position), weight) } else { weight }
            };
            let ones: __m512bh = transmute(_mm512_set1_epi16(0x3f80));
            let take_turns = _mm512_loadu_si512((&raw const TAKE_TURNS).cast());
            let mut totals = [_mm512_setzero_ps(); 4];
            let mut pairs = [const { Line([0; SIDE]) }; TILE / 2];
            for (index, pair) in pairs.iter_mut().enumerate() {
                ahead.ask(index, TILE / 2);
                let both = _mm512_cvtne2ps_pbh(weight(2 * index + 1), weight(2 * index));
                let both = _mm512_permutexvar_epi16(take_turns, transmute::<__m512bh, __m512i>(both));
                totals[index % 4] = _mm512_dpbf16_ps(totals[index % 4], transmute::<__m512i, __m512bh>(both), ones);
                _mm512_storeu_si512((&raw mut *pair).cast(), both);
            }
            let [a, b, c, d] = totals;
            let total = _mm512_add_ps(_mm512_add_ps(a, b), _mm512_add_ps(c, d));
            let total = _mm512_fmadd_ps(_mm512_loadu_ps(panel.weights), factor, total);
            _mm512_storeu_ps(panel.weights, total);
            _mm512_storeu_ps(panel.greatest, greatest);
            for chunk in 0..TILE / DEPTH {
                let pairs = pairs[chunk * SIDE..].as_ptr().cast::<f32>();
                let rows = Avx512::load_transposed(&std::array::from_fn(|row| pairs.wrapping_add(row * SIDE)));
                for (row, weights) in rows.into_iter().enumerate().take(num_pairs) {
                    weights.store(self.to.add((row * TILE + chunk * DEPTH) * 2).cast());
                }
            }
            let mut factors = Factors([0.0; SIDE]);
            _mm512_storeu_ps(factors.0.as_mut_ptr(), factor);
            factors
        }
    }
}

impl Panel {
    /// Add the sums of a tile's values, for some rows.
    ///
    /// # Safety
    ///
    /// The machine has AMX, and these rows have `head_dim` dimensions.
    #[target_feature(enable = "avx512f")]
    pub(super) unsafe fn add(&self, rows: Range<usize>, factors: &Factors, products: *const f32, head_dim: usize) {
        for row in rows {
            let factor = _mm512_set1_ps(factors.0[row]);
            for at in (row * head_dim..(row + 1) * head_dim).step_by(SIDE) {
                // SAFETY: as the caller promises.
                unsafe {
                    let (sums, product) = (self.sums.add(at), _mm512_load_ps(products.add(at)));
                    _mm512_storeu_ps(sums, _mm512_fmadd_ps(_mm512_loadu_ps(sums), factor, product));
                }
            }
        }
    }

    /// Add a later split.
    ///
    /// # Safety
    ///
    /// The machine has AMX, and both have `head_dim` dimensions.
    #[target_feature(enable = "avx512f")]
    pub(super) unsafe fn merge(&self, later: &Self, head_dim: usize) {
        // SAFETY: as the caller promises.
        unsafe {
            let (a, b) = (_mm512_loadu_ps(self.greatest), _mm512_loadu_ps(later.greatest));
            let greatest = _mm512_max_ps(a, b);
            let factors = [a, b].map(|greatest_of_one| power_of_two(_mm512_sub_ps(greatest_of_one, greatest)));
            let weights = _mm512_mul_ps(_mm512_loadu_ps(later.weights), factors[1]);
            let weights = _mm512_fmadd_ps(_mm512_loadu_ps(self.weights), factors[0], weights);
            _mm512_storeu_ps(self.weights, weights);
            _mm512_storeu_ps(self.greatest, greatest);
            let [mut own, mut others] = [const { Factors([0.0; SIDE]) }; 2];
            _mm512_storeu_ps(own.0.as_mut_ptr(), factors[0]);
            _mm512_storeu_ps(others.0.as_mut_ptr(), factors[1]);
            for row in 0..SIDE {
                let (own, other) = (_mm512_set1_ps(own.0[row]), _mm512_set1_ps(others.0[row]));
                for at in (row * head_dim..(row + 1) * head_dim).step_by(SIDE) {
                    let sums = self.sums.add(at);
                    let product = _mm512_mul_ps(_mm512_loadu_ps(later.sums.add(at)), other);
                    _mm512_storeu_ps(sums, _mm512_fmadd_ps(_mm512_loadu_ps(sums), own, product));
                }
            }
        }
    }
}

/// The factor for a pair's sums, and its weights, including a sink.
///
/// # Safety
///
/// The machine has AMX.
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn with_sink(before: f32, weights: f32, sink: f32) -> (f32, f32) {
    let sink = sink * LOG2_E;
    let greatest = if before > sink { before } else { sink };
    let [factor, weight] =
        [before, sink].map(|exponent| _mm512_cvtss_f32(power_of_two(_mm512_set1_ps(exponent - greatest))));
    (factor, weights.mul_add(factor, weight))
}

#[repr(C, align(64))]
struct Line([i32; SIDE]);

/// The order that interleaves sixteen halves of words with sixteen others.
static TAKE_TURNS: [u16; DEPTH] = {
    let mut order = [0; DEPTH];
    let mut half = 0;
    while half < DEPTH {
        order[half] = (half / 2 + half % 2 * SIDE) as u16;
        half += 1;
    }
    order
};

/// Two to the power of `x`, with a relative error of 3e-6, lost in rounding to bfloat16. Exactly 1 of 0, 0 of very low.
#[inline]
#[target_feature(enable = "avx512f")]
fn power_of_two(x: __m512) -> __m512 {
    const NEAREST: i32 = 8;
    let whole = _mm512_roundscale_ps::<NEAREST>(x);
    let rest = _mm512_sub_ps(x, whole);
    // 2^r = 1 + r q(r); q minimises the greatest relative error for |r| up to 1/2.
    let q = _mm512_fmadd_ps(_mm512_set1_ps(0.009_582_853), rest, _mm512_set1_ps(0.055_906_426));
    let q = _mm512_fmadd_ps(q, rest, _mm512_set1_ps(0.240_240_99));
    let q = _mm512_fmadd_ps(q, rest, _mm512_set1_ps(0.693_124_2));
    _mm512_scalef_ps(_mm512_fmadd_ps(q, rest, _mm512_set1_ps(1.0)), whole)
}
