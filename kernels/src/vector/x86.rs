//! Vectors in AVX2, two registers each, and in AVX-512.
#![expect(clippy::inline_always, reason = "see `Vector`")]

use std::arch::x86_64::{
    __m128i, __m256, __m256i, __m512, __m512i, _CMP_GE_OQ, _CMP_UNORD_Q, _MM_FROUND_TO_NEAREST_INT, _MM_HINT_T1,
    _mm_add_ps, _mm_add_ss, _mm_cvtss_f32, _mm_loadu_si128, _mm_max_ps, _mm_max_ss, _mm_movehl_ps, _mm_packus_epi32,
    _mm_prefetch, _mm_shuffle_ps, _mm_storeu_si128, _mm256_add_epi32, _mm256_add_ps, _mm256_and_ps, _mm256_and_si256,
    _mm256_blendv_epi8, _mm256_blendv_ps, _mm256_castpd_ps, _mm256_castps_si256, _mm256_castps256_ps128,
    _mm256_castsi256_ps, _mm256_castsi256_si128, _mm256_cmp_ps, _mm256_cmpeq_epi32, _mm256_cmpgt_epi32,
    _mm256_cvtepu16_epi32, _mm256_cvtph_ps, _mm256_cvtps_epi32, _mm256_cvtps_ph, _mm256_cvtss_f32, _mm256_div_ps,
    _mm256_extractf128_ps, _mm256_extracti128_si256, _mm256_fmadd_ps, _mm256_loadu_ps, _mm256_max_ps, _mm256_min_ps,
    _mm256_movemask_ps, _mm256_mul_ps, _mm256_or_si256, _mm256_permute2f128_ps, _mm256_round_ps, _mm256_set1_epi32,
    _mm256_set1_ps, _mm256_setr_epi32, _mm256_shuffle_ps, _mm256_slli_epi32, _mm256_srli_epi32, _mm256_storeu_ps,
    _mm256_sub_ps, _mm256_unpackhi_ps, _mm256_unpacklo_ps, _mm512_add_epi32, _mm512_add_ps, _mm512_and_epi32,
    _mm512_castpd_ps, _mm512_castps_pd, _mm512_castps_si512, _mm512_castps512_ps256, _mm512_castsi512_ps,
    _mm512_cmp_ps_mask, _mm512_cvtepi32_epi16, _mm512_cvtepu16_epi32, _mm512_cvtph_ps, _mm512_cvtps_epi32,
    _mm512_cvtps_ph, _mm512_cvtss_f32, _mm512_div_ps, _mm512_extractf64x4_pd, _mm512_fmadd_ps, _mm512_loadu_ps,
    _mm512_mask_blend_epi32, _mm512_mask_blend_ps, _mm512_maskz_mov_ps, _mm512_max_ps, _mm512_min_ps, _mm512_mul_ps,
    _mm512_or_epi32, _mm512_roundscale_ps, _mm512_set1_epi32, _mm512_set1_ps, _mm512_shuffle_f32x4, _mm512_slli_epi32,
    _mm512_srli_epi32, _mm512_storeu_ps, _mm512_sub_ps, _mm512_unpackhi_pd, _mm512_unpackhi_ps, _mm512_unpacklo_pd,
    _mm512_unpacklo_ps,
};
use std::mem::transmute;

use super::{Kernel, LANES, Vector};

/// # Safety
///
/// See `Kernel::run`.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx2,fma,f16c")]
pub(super) unsafe fn run_avx512<K: Kernel>(kernel: &K, part: usize) {
    // SAFETY: as the caller promises.
    unsafe { kernel.run::<Avx512>(part) }
}

/// # Safety
///
/// See `Kernel::run`.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn run_avx2<K: Kernel>(kernel: &K, part: usize) {
    // SAFETY: as the caller promises.
    unsafe { kernel.run::<Avx2>(part) }
}

/// Prefetch into the L2 cache: there may be more data than fits into the L1 cache.
#[inline(always)]
pub(super) fn prefetch(from: *const u8) {
    // SAFETY: every processor of the architecture has the instruction, and it ignores an address that is none.
    unsafe { _mm_prefetch::<_MM_HINT_T1>(from.cast()) };
}

/// Rounding to the nearest, without exceptions.
const NEAREST: i32 = 8;

#[derive(Clone, Copy)]
pub(crate) struct Avx512(__m512);

/// # Safety
///
/// The machine has AVX2.
#[inline(always)]
unsafe fn sum_256(lanes: __m256) -> f32 {
    // SAFETY: as the caller promises.
    unsafe {
        let four = _mm_add_ps(_mm256_castps256_ps128(lanes), _mm256_extractf128_ps::<1>(lanes));
        let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
        _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps::<1>(two, two)))
    }
}

/// # Safety
///
/// The machine has AVX2.
#[inline(always)]
unsafe fn greatest_256(lanes: __m256) -> f32 {
    // SAFETY: as the caller promises.
    unsafe {
        let four = _mm_max_ps(_mm256_castps256_ps128(lanes), _mm256_extractf128_ps::<1>(lanes));
        let two = _mm_max_ps(four, _mm_movehl_ps(four, four));
        _mm_cvtss_f32(_mm_max_ss(two, _mm_shuffle_ps::<1>(two, two)))
    }
}

/// # Safety
///
/// The machine has AVX-512 F.
#[inline(always)]
unsafe fn halves_512(lanes: __m512) -> [__m256; 2] {
    // SAFETY: as the caller promises.
    unsafe {
        let upper = _mm512_extractf64x4_pd::<1>(_mm512_castps_pd(lanes));
        [_mm512_castps512_ps256(lanes), _mm256_castpd_ps(upper)]
    }
}

// SAFETY, of every block below without a comment of its own: the machine has the instructions, since `self` exists or
// the caller of an unsafe function promises it; and the caller promises valid memory, too.
impl Vector for Avx512 {
    const ACCUMULATORS: usize = 24;

    #[inline(always)]
    unsafe fn splat(value: f32) -> Self {
        // SAFETY: see above.
        Self(unsafe { _mm512_set1_ps(value) })
    }

    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        // SAFETY: see above.
        Self(unsafe { _mm512_loadu_ps(from) })
    }

    #[inline(always)]
    unsafe fn load_bfloat16(from: *const u16) -> Self {
        // SAFETY: see above.
        Self(unsafe {
            let halves = from.cast::<__m256i>().read_unaligned();
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(halves)))
        })
    }

    #[inline(always)]
    unsafe fn load_float16(from: *const u16) -> Self {
        // SAFETY: see above.
        Self(unsafe { _mm512_cvtph_ps(from.cast::<__m256i>().read_unaligned()) })
    }

    #[inline(always)]
    unsafe fn load_transposed(from: &[*const f32; LANES]) -> [Self; LANES] {
        // SAFETY: see above.
        unsafe {
            let mut rows = [_mm512_set1_ps(0.0); LANES];
            for (row, &from) in rows.iter_mut().zip(from) {
                *row = _mm512_loadu_ps(from);
            }
            // Interleave pairs of rows, fours of them, then halves and quarters of registers, in turn.
            let mut pairs = rows;
            for i in (0..LANES).step_by(2) {
                pairs[i] = _mm512_unpacklo_ps(rows[i], rows[i + 1]);
                pairs[i + 1] = _mm512_unpackhi_ps(rows[i], rows[i + 1]);
            }
            let mut fours = pairs;
            for i in (0..LANES).step_by(4) {
                for j in 0..2 {
                    let (a, b) = (_mm512_castps_pd(pairs[i + j]), _mm512_castps_pd(pairs[i + j + 2]));
                    fours[i + 2 * j] = _mm512_castpd_ps(_mm512_unpacklo_pd(a, b));
                    fours[i + 2 * j + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(a, b));
                }
            }
            let mut eights = fours;
            for i in [0, 8] {
                for j in 0..4 {
                    eights[i + j] = _mm512_shuffle_f32x4::<0x88>(fours[i + j], fours[i + j + 4]);
                    eights[i + j + 4] = _mm512_shuffle_f32x4::<0xdd>(fours[i + j], fours[i + j + 4]);
                }
            }
            let mut columns = [Self(rows[0]); LANES];
            for j in 0..8 {
                columns[j] = Self(_mm512_shuffle_f32x4::<0x88>(eights[j], eights[j + 8]));
                columns[j + 8] = Self(_mm512_shuffle_f32x4::<0xdd>(eights[j], eights[j + 8]));
            }
            columns
        }
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        // SAFETY: see above.
        unsafe { _mm512_storeu_ps(to, self.0) }
    }

    #[inline(always)]
    unsafe fn store_bfloat16(self, to: *mut u16) {
        // SAFETY: see above.
        unsafe {
            let bits = _mm512_castps_si512(self.0);
            let odd = _mm512_and_epi32(_mm512_srli_epi32::<16>(bits), _mm512_set1_epi32(1));
            let rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
            let quiet = _mm512_or_epi32(bits, _mm512_set1_epi32(0x0040_0000));
            let not_a_number = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(self.0, self.0);
            let rounded: __m512i = _mm512_mask_blend_epi32(not_a_number, rounded, quiet);
            let halves = _mm512_cvtepi32_epi16(_mm512_srli_epi32::<16>(rounded));
            to.cast::<__m256i>().write_unaligned(halves);
        }
    }

    #[inline(always)]
    unsafe fn store_float16(self, to: *mut u16) {
        // SAFETY: see above.
        unsafe { to.cast::<__m256i>().write_unaligned(_mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(self.0)) }
    }

    #[inline(always)]
    fn add(self, other: Self) -> Self {
        // SAFETY: see above.
        Self(unsafe { _mm512_add_ps(self.0, other.0) })
    }

    #[inline(always)]
    fn sub(self, other: Self) -> Self {
        // SAFETY: see above.
        Self(unsafe { _mm512_sub_ps(self.0, other.0) })
    }

    #[inline(always)]
    fn mul(self, other: Self) -> Self {
        // SAFETY: see above.
        Self(unsafe { _mm512_mul_ps(self.0, other.0) })
    }

    #[inline(always)]
    fn div(self, other: Self) -> Self {
        // SAFETY: see above.
        Self(unsafe { _mm512_div_ps(self.0, other.0) })
    }

    #[inline(always)]
    fn mul_add(self, factor: Self, other: Self) -> Self {
        // SAFETY: see above.
        Self(unsafe { _mm512_fmadd_ps(self.0, factor.0, other.0) })
    }

    #[inline(always)]
    fn max(self, other: Self) -> Self {
        // SAFETY: see above.
        Self(unsafe { _mm512_max_ps(self.0, other.0) })
    }

    #[inline(always)]
    fn min(self, other: Self) -> Self {
        // SAFETY: see above.
        Self(unsafe { _mm512_min_ps(self.0, other.0) })
    }

    #[inline(always)]
    fn round(self) -> Self {
        // SAFETY: see above.
        Self(unsafe { _mm512_roundscale_ps::<NEAREST>(self.0) })
    }

    #[inline(always)]
    fn scale(self, exponent: Self) -> Self {
        // SAFETY: see above.
        Self(unsafe {
            let exponent = _mm512_add_epi32(_mm512_cvtps_epi32(exponent.0), _mm512_set1_epi32(127));
            _mm512_mul_ps(self.0, _mm512_castsi512_ps(_mm512_slli_epi32::<23>(exponent)))
        })
    }

    #[inline(always)]
    fn first(self, count: usize, other: Self) -> Self {
        // SAFETY: see above.
        Self(unsafe { _mm512_mask_blend_ps(((1_u32 << count) - 1) as u16, other.0, self.0) })
    }

    #[inline(always)]
    fn at_least(self, bound: Self) -> Self {
        // SAFETY: see above.
        Self(unsafe { _mm512_maskz_mov_ps(_mm512_cmp_ps_mask::<_CMP_GE_OQ>(self.0, bound.0), self.0) })
    }

    #[inline(always)]
    fn lanes_at_least(self, bound: Self) -> u32 {
        // SAFETY: see above.
        unsafe { _mm512_cmp_ps_mask::<_CMP_GE_OQ>(self.0, bound.0).into() }
    }

    #[inline(always)]
    fn select(self, lanes: u32, other: Self) -> Self {
        // SAFETY: see above.
        Self(unsafe { _mm512_mask_blend_ps(lanes as u16, other.0, self.0) })
    }

    #[inline(always)]
    fn bfloat16_pairs(self) -> [Self; 2] {
        // SAFETY: see above.
        unsafe {
            let bits = _mm512_castps_si512(self.0);
            let upper = _mm512_and_epi32(bits, _mm512_set1_epi32(HIGH_HALF));
            [Self(_mm512_castsi512_ps(_mm512_slli_epi32::<16>(bits))), Self(_mm512_castsi512_ps(upper))]
        }
    }

    #[inline(always)]
    fn float16_pairs(self) -> [Self; 2] {
        // SAFETY: see above.
        unsafe {
            let lower = _mm512_castps_si512(self.0);
            let both = [lower, _mm512_srli_epi32::<16>(lower)];
            both.map(|halves| Self(_mm512_cvtph_ps(_mm512_cvtepi32_epi16(halves))))
        }
    }

    #[inline(always)]
    fn sum(self) -> f32 {
        // SAFETY: see above; AVX-512 comes with AVX2.
        unsafe {
            let [lower, upper] = halves_512(self.0);
            sum_256(_mm256_add_ps(lower, upper))
        }
    }

    #[inline(always)]
    fn greatest(self) -> f32 {
        // SAFETY: see above; AVX-512 comes with AVX2.
        unsafe {
            let [lower, upper] = halves_512(self.0);
            greatest_256(_mm256_max_ps(lower, upper))
        }
    }

    #[inline(always)]
    fn lowest(self) -> f32 {
        // SAFETY: see above.
        unsafe { _mm512_cvtss_f32(self.0) }
    }
}

#[derive(Clone, Copy)]
struct Avx2([__m256; 2]);

impl Avx2 {
    #[inline(always)]
    fn with(self, other: Self, op: impl Fn(__m256, __m256) -> __m256) -> Self {
        Self([op(self.0[0], other.0[0]), op(self.0[1], other.0[1])])
    }
}

/// # Safety
///
/// The machine has AVX2.
#[inline(always)]
unsafe fn bfloat16s_256(lanes: __m256) -> __m256i {
    // SAFETY: as the caller promises.
    unsafe {
        let bits = _mm256_castps_si256(lanes);
        let odd = _mm256_and_si256(_mm256_srli_epi32::<16>(bits), _mm256_set1_epi32(1));
        let rounded = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
        let quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x0040_0000));
        let not_a_number = _mm256_castps_si256(_mm256_cmp_ps::<_CMP_UNORD_Q>(lanes, lanes));
        _mm256_srli_epi32::<16>(_mm256_blendv_epi8(rounded, quiet, not_a_number))
    }
}

/// Words that fit into 16 bits, in as many.
///
/// # Safety
///
/// The machine has AVX2.
#[inline(always)]
unsafe fn packed_words_256(words: __m256i) -> __m128i {
    // SAFETY: as the caller promises.
    unsafe { _mm_packus_epi32(_mm256_castsi256_si128(words), _mm256_extracti128_si256::<1>(words)) }
}

/// The transposition of eight rows of eight.
///
/// # Safety
///
/// The machine has AVX2.
#[inline(always)]
unsafe fn transposed_256(rows: [__m256; 8]) -> [__m256; 8] {
    // SAFETY: as the caller promises.
    unsafe {
        let mut pairs = rows;
        for i in (0..8).step_by(2) {
            pairs[i] = _mm256_unpacklo_ps(rows[i], rows[i + 1]);
            pairs[i + 1] = _mm256_unpackhi_ps(rows[i], rows[i + 1]);
        }
        let mut fours = pairs;
        for i in [0, 4] {
            for j in 0..2 {
                fours[i + 2 * j] = _mm256_shuffle_ps::<0x44>(pairs[i + j], pairs[i + j + 2]);
                fours[i + 2 * j + 1] = _mm256_shuffle_ps::<0xee>(pairs[i + j], pairs[i + j + 2]);
            }
        }
        let mut columns = fours;
        for j in 0..4 {
            columns[j] = _mm256_permute2f128_ps::<0x20>(fours[j], fours[j + 4]);
            columns[j + 4] = _mm256_permute2f128_ps::<0x31>(fours[j], fours[j + 4]);
        }
        columns
    }
}

impl Vector for Avx2 {
    const ACCUMULATORS: usize = 6;

    #[inline(always)]
    unsafe fn splat(value: f32) -> Self {
        // SAFETY: see above.
        Self(unsafe { [_mm256_set1_ps(value); 2] })
    }

    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        // SAFETY: see above.
        Self(unsafe { [_mm256_loadu_ps(from), _mm256_loadu_ps(from.add(8))] })
    }

    #[inline(always)]
    unsafe fn load_bfloat16(from: *const u16) -> Self {
        // SAFETY: see above.
        unsafe {
            let halves: [_; 2] = transmute(from.cast::<__m256i>().read_unaligned());
            Self(halves.map(|half| _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(half)))))
        }
    }

    #[inline(always)]
    unsafe fn load_float16(from: *const u16) -> Self {
        // SAFETY: see above.
        Self(unsafe {
            [_mm256_cvtph_ps(_mm_loadu_si128(from.cast())), _mm256_cvtph_ps(_mm_loadu_si128(from.add(8).cast()))]
        })
    }

    #[inline(always)]
    unsafe fn load_transposed(from: &[*const f32; LANES]) -> [Self; LANES] {
        // SAFETY: see above.
        unsafe {
            let mut columns = [Self::splat(0.0); LANES];
            for half in 0..2 {
                for words in [0, 8] {
                    let mut rows = [_mm256_set1_ps(0.0); 8];
                    for (row, &from) in rows.iter_mut().zip(&from[8 * half..]) {
                        *row = _mm256_loadu_ps(from.add(words));
                    }
                    let transposed = transposed_256(rows);
                    for (column, lanes) in columns[words..words + 8].iter_mut().zip(transposed) {
                        column.0[half] = lanes;
                    }
                }
            }
            columns
        }
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        // SAFETY: see above.
        unsafe {
            _mm256_storeu_ps(to, self.0[0]);
            _mm256_storeu_ps(to.add(8), self.0[1]);
        }
    }

    #[inline(always)]
    unsafe fn store_bfloat16(self, to: *mut u16) {
        // SAFETY: see above.
        unsafe {
            for (half, lanes) in self.0.into_iter().enumerate() {
                _mm_storeu_si128(to.add(8 * half).cast(), packed_words_256(bfloat16s_256(lanes)));
            }
        }
    }

    #[inline(always)]
    unsafe fn store_float16(self, to: *mut u16) {
        // SAFETY: see above.
        unsafe {
            for (half, lanes) in self.0.into_iter().enumerate() {
                _mm_storeu_si128(to.add(8 * half).cast(), _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(lanes));
            }
        }
    }

    #[inline(always)]
    fn add(self, other: Self) -> Self {
        // SAFETY: see above.
        self.with(other, |a, b| unsafe { _mm256_add_ps(a, b) })
    }

    #[inline(always)]
    fn sub(self, other: Self) -> Self {
        // SAFETY: see above.
        self.with(other, |a, b| unsafe { _mm256_sub_ps(a, b) })
    }

    #[inline(always)]
    fn mul(self, other: Self) -> Self {
        // SAFETY: see above.
        self.with(other, |a, b| unsafe { _mm256_mul_ps(a, b) })
    }

    #[inline(always)]
    fn div(self, other: Self) -> Self {
        // SAFETY: see above.
        self.with(other, |a, b| unsafe { _mm256_div_ps(a, b) })
    }

    #[inline(always)]
    fn mul_add(self, factor: Self, other: Self) -> Self {
        // SAFETY: see above.
        unsafe {
            let lower = _mm256_fmadd_ps(self.0[0], factor.0[0], other.0[0]);
            Self([lower, _mm256_fmadd_ps(self.0[1], factor.0[1], other.0[1])])
        }
    }

    #[inline(always)]
    fn max(self, other: Self) -> Self {
        // SAFETY: see above.
        self.with(other, |a, b| unsafe { _mm256_max_ps(a, b) })
    }

    #[inline(always)]
    fn min(self, other: Self) -> Self {
        // SAFETY: see above.
        self.with(other, |a, b| unsafe { _mm256_min_ps(a, b) })
    }

    #[inline(always)]
    fn round(self) -> Self {
        // SAFETY: see above.
        Self(self.0.map(|lanes| unsafe { _mm256_round_ps::<NEAREST>(lanes) }))
    }

    #[inline(always)]
    fn scale(self, exponent: Self) -> Self {
        // SAFETY: see above.
        self.with(exponent, |a, exponent| unsafe {
            let exponent = _mm256_add_epi32(_mm256_cvtps_epi32(exponent), _mm256_set1_epi32(127));
            _mm256_mul_ps(a, _mm256_castsi256_ps(_mm256_slli_epi32::<23>(exponent)))
        })
    }

    #[inline(always)]
    fn first(self, count: usize, other: Self) -> Self {
        // SAFETY: see above.
        unsafe {
            let count = _mm256_set1_epi32(count as i32);
            let lanes = [_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), _mm256_setr_epi32(8, 9, 10, 11, 12, 13, 14, 15)];
            let wanted = lanes.map(|lanes| _mm256_castsi256_ps(_mm256_cmpgt_epi32(count, lanes)));
            Self([
                _mm256_blendv_ps(other.0[0], self.0[0], wanted[0]),
                _mm256_blendv_ps(other.0[1], self.0[1], wanted[1]),
            ])
        }
    }

    #[inline(always)]
    fn at_least(self, bound: Self) -> Self {
        // SAFETY: see above.
        self.with(bound, |a, bound| unsafe { _mm256_and_ps(a, _mm256_cmp_ps::<_CMP_GE_OQ>(a, bound)) })
    }

    #[inline(always)]
    fn lanes_at_least(self, bound: Self) -> u32 {
        // SAFETY: see above.
        let [lower, upper] = self.with(bound, |a, bound| unsafe { _mm256_cmp_ps::<_CMP_GE_OQ>(a, bound) }).0;
        // SAFETY: see above.
        unsafe { (_mm256_movemask_ps(lower) | _mm256_movemask_ps(upper) << 8).cast_unsigned() }
    }

    #[inline(always)]
    fn select(self, lanes: u32, other: Self) -> Self {
        // SAFETY: see above.
        unsafe {
            let lower = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
            let wanted = [lower, _mm256_slli_epi32::<8>(lower)].map(|bits| {
                let set = _mm256_and_si256(_mm256_set1_epi32(lanes.cast_signed()), bits);
                _mm256_castsi256_ps(_mm256_cmpeq_epi32(set, bits))
            });
            Self([
                _mm256_blendv_ps(other.0[0], self.0[0], wanted[0]),
                _mm256_blendv_ps(other.0[1], self.0[1], wanted[1]),
            ])
        }
    }

    #[inline(always)]
    fn bfloat16_pairs(self) -> [Self; 2] {
        // SAFETY: see above.
        unsafe {
            let bits = self.0.map(|lanes| _mm256_castps_si256(lanes));
            let lower = bits.map(|bits| _mm256_castsi256_ps(_mm256_slli_epi32::<16>(bits)));
            let upper = bits.map(|bits| _mm256_castsi256_ps(_mm256_and_si256(bits, _mm256_set1_epi32(HIGH_HALF))));
            [Self(lower), Self(upper)]
        }
    }

    #[inline(always)]
    fn float16_pairs(self) -> [Self; 2] {
        // SAFETY: see above.
        unsafe {
            let bits = self.0.map(|lanes| _mm256_castps_si256(lanes));
            let lower = bits.map(|bits| _mm256_and_si256(bits, _mm256_set1_epi32(0xffff)));
            let upper = bits.map(|bits| _mm256_srli_epi32::<16>(bits));
            [lower, upper].map(|halves| Self(halves.map(|words| _mm256_cvtph_ps(packed_words_256(words)))))
        }
    }

    #[inline(always)]
    fn sum(self) -> f32 {
        // SAFETY: see above.
        unsafe { sum_256(_mm256_add_ps(self.0[0], self.0[1])) }
    }

    #[inline(always)]
    fn greatest(self) -> f32 {
        // SAFETY: see above.
        unsafe { greatest_256(_mm256_max_ps(self.0[0], self.0[1])) }
    }

    #[inline(always)]
    fn lowest(self) -> f32 {
        // SAFETY: see above.
        unsafe { _mm256_cvtss_f32(self.0[0]) }
    }
}

const HIGH_HALF: i32 = 0xffff_0000_u32.cast_signed();
