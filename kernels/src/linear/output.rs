//! The output of a micro-kernel: some rows of one panel's columns.

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::{
    __m512, _CMP_UNORD_Q, _MM_FROUND_TO_NEAREST_INT, _mm256_mask_storeu_epi16, _mm512_add_epi32, _mm512_and_si512,
    _mm512_castps_si512, _mm512_cmp_ps_mask, _mm512_cvtepi32_epi16, _mm512_cvtps_ph, _mm512_mask_mov_epi32,
    _mm512_mask_storeu_ps, _mm512_or_si512, _mm512_set1_epi32, _mm512_srli_epi32,
};

use crate::dtype::{DType, round_to_bfloat16, round_to_float16};

/// Outputs in a panel: two vectors of AVX-512.
pub(crate) const PANEL: usize = 32;
/// Contiguous features in a panel of integers.
pub(crate) const STEP_FEATURES: usize = 4;
/// Bytes of a step's integers, of 8 bits each.
pub(crate) const STEP_BYTES: usize = PANEL * STEP_FEATURES;
/// Rows, and columns, of an AMX tile's product.
pub(crate) const SIDE: usize = PANEL / 2;

/// The products of an AMX tile, a row after the other.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(crate) struct Products(pub(crate) [[i32; SIDE]; SIDE]);

#[derive(Clone, Copy)]
pub(crate) struct Output {
    /// Address of the first row's first column.
    pub(crate) first: *mut u8,
    /// Bytes from one row to the next.
    pub(crate) stride: usize,
    /// Number of the panel's columns.
    pub(crate) columns: usize,
    pub(crate) dtype: DType,
}

impl Output {
    /// Round a row's sums and write them.
    ///
    /// # Safety
    ///
    /// The row is valid, with `columns` columns, and nothing else touches them.
    #[inline]
    pub(crate) unsafe fn store(&self, row: usize, sums: &[f32; PANEL]) {
        // SAFETY: as the caller promises; an array has at least `columns` elements.
        unsafe {
            let out = self.first.add(row * self.stride);
            match self.dtype {
                DType::Float32 => std::ptr::copy_nonoverlapping(sums.as_ptr().cast(), out, self.columns * 4),
                DType::Bfloat16 => {
                    let rounded = sums.map(round_to_bfloat16);
                    std::ptr::copy_nonoverlapping(rounded.as_ptr().cast(), out, self.columns * 2);
                }
                DType::Float16 => {
                    let rounded = sums.map(round_to_float16);
                    std::ptr::copy_nonoverlapping(rounded.as_ptr().cast(), out, self.columns * 2);
                }
            }
        }
    }

    /// The same for 16 columns from `column` on.
    ///
    /// # Safety
    ///
    /// See `store`.
    #[cfg(target_arch = "x86_64")]
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    pub(crate) unsafe fn store_avx512(&self, row: usize, column: usize, sums: __m512) {
        let columns = self.columns.saturating_sub(column).min(16);
        let mask = ((1_u32 << columns) - 1) as u16;
        // SAFETY: as the caller promises; what the mask leaves out is not touched.
        unsafe {
            let out = self.first.add(row * self.stride).wrapping_add(column * self.dtype.bytes());
            match self.dtype {
                DType::Float32 => _mm512_mask_storeu_ps(out.cast(), mask, sums),
                DType::Bfloat16 => {
                    // As in `round_to_bfloat16`.
                    let bits = _mm512_castps_si512(sums);
                    let odd = _mm512_and_si512(_mm512_srli_epi32::<16>(bits), _mm512_set1_epi32(1));
                    let rounded = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
                    let quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x40_0000));
                    let not_numbers = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(sums, sums);
                    let rounded = _mm512_mask_mov_epi32(rounded, not_numbers, quiet);
                    let halves = _mm512_cvtepi32_epi16(_mm512_srli_epi32::<16>(rounded));
                    _mm256_mask_storeu_epi16(out.cast(), mask, halves);
                }
                DType::Float16 => {
                    let halves = _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(sums);
                    _mm256_mask_storeu_epi16(out.cast(), mask, halves);
                }
            }
        }
    }

    /// The output from row `row` on.
    ///
    /// # Safety
    ///
    /// The row is valid.
    pub(crate) unsafe fn rows_from(&self, row: usize) -> Self {
        // SAFETY: as the caller promises.
        Self { first: unsafe { self.first.add(row * self.stride) }, ..*self }
    }
}
