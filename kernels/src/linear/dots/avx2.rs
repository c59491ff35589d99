//! Sums of a step's integer products in AVX2, with and without VNNI.
#![expect(clippy::inline_always, reason = "a function takes its caller's instructions only where it is inlined")]

use std::arch::asm;
use std::arch::x86_64::{
    __m256i, _mm256_abs_epi8, _mm256_add_epi16, _mm256_add_epi32, _mm256_madd_epi16, _mm256_maddubs_epi16,
    _mm256_set1_epi8, _mm256_set1_epi16, _mm256_setzero_si256, _mm256_sign_epi8, _mm256_xor_si256,
};
// Tests compute the same in AVX-512's encoding, which more machines have.
#[cfg(not(test))]
use std::arch::x86_64::_mm256_dpbusd_avx_epi32 as dpbusd;
#[cfg(test)]
use std::arch::x86_64::_mm256_dpbusd_epi32 as dpbusd;

/// Sums of products of 8 columns, weights unsigned and inputs from -127 to 127, two steps at a time.
///
/// # Safety
///
/// All functions need the type's instructions, and must be inlined into a function that has them.
pub(in crate::linear) trait Dots {
    /// The largest weight.
    const LARGEST: i32 = 255;
    /// Pairs of steps that are added up before `end`.
    const STEP_PAIRS: usize = 4;
    /// The offset that `prepare` subtracts from weights.
    const SUBTRACTS: i32 = 0;
    /// A step's weights.
    type Weights: Copy;

    /// A sum that goes on from `products`, int32.
    #[inline(always)]
    unsafe fn begin(products: __m256i) -> __m256i {
        products
    }
    /// The form in which weights are multiplied.
    unsafe fn prepare(weights: __m256i) -> Self::Weights;
    unsafe fn add(sum: __m256i, weights: [Self::Weights; 2], x: [__m256i; 2]) -> __m256i;
    /// `products` with all steps since `begin`.
    #[inline(always)]
    unsafe fn end(sum: __m256i, products: __m256i) -> __m256i {
        let _ = products;
        sum
    }
}

/// VNNI, of weights up to 255.
pub(in crate::linear) struct Vnni;

impl Dots for Vnni {
    type Weights = __m256i;

    #[inline(always)]
    unsafe fn prepare(weights: __m256i) -> __m256i {
        weights
    }

    #[inline(always)]
    unsafe fn add(sum: __m256i, weights: [__m256i; 2], x: [__m256i; 2]) -> __m256i {
        // SAFETY: as the caller promises.
        unsafe { dpbusd(dpbusd(sum, weights[0], x[0]), weights[1], x[1]) }
    }
}

/// AVX2, of weights up to `128 / STEPS`: sums of two products are added up in 16 bits for so many steps.
pub(in crate::linear) struct UnsignedBytes<const STEPS: usize>;

const _: () = assert!(128 * 127 * 2 <= i16::MAX as i32);

impl<const STEPS: usize> Dots for UnsignedBytes<STEPS> {
    const LARGEST: i32 = 128 / STEPS as i32;
    const STEP_PAIRS: usize = STEPS / 2;
    type Weights = __m256i;

    #[inline(always)]
    unsafe fn begin(products: __m256i) -> __m256i {
        // SAFETY: as the caller promises.
        if STEPS > 2 { unsafe { _mm256_setzero_si256() } } else { products }
    }

    #[inline(always)]
    unsafe fn prepare(weights: __m256i) -> __m256i {
        weights
    }

    #[inline(always)]
    unsafe fn add(sum: __m256i, weights: [__m256i; 2], x: [__m256i; 2]) -> __m256i {
        // SAFETY: as the caller promises.
        unsafe {
            let words = _mm256_maddubs_epi16(weights[0], x[0]);
            let words = _mm256_add_epi16(words, _mm256_maddubs_epi16(weights[1], x[1]));
            in_order(if STEPS > 2 { _mm256_add_epi16(sum, words) } else { widened(sum, words) })
        }
    }

    #[inline(always)]
    unsafe fn end(sum: __m256i, products: __m256i) -> __m256i {
        // SAFETY: as the caller promises.
        if STEPS > 2 { unsafe { widened(products, sum) } } else { sum }
    }
}

/// AVX2, of weights of 8 bits with 128 added: their magnitudes are multiplied by inputs with their signs.
pub(in crate::linear) struct Signed;

impl Dots for Signed {
    const SUBTRACTS: i32 = 128;
    type Weights = [__m256i; 2];

    #[inline(always)]
    unsafe fn prepare(weights: __m256i) -> [__m256i; 2] {
        // SAFETY: as the caller promises.
        unsafe {
            let signed = _mm256_xor_si256(weights, _mm256_set1_epi8(-128));
            [signed, _mm256_abs_epi8(signed)]
        }
    }

    #[inline(always)]
    unsafe fn add(mut sum: __m256i, weights: [[__m256i; 2]; 2], x: [__m256i; 2]) -> __m256i {
        for ([signed, magnitudes], x) in weights.into_iter().zip(x) {
            // SAFETY: as the caller promises.
            unsafe { sum = in_order(widened(sum, _mm256_maddubs_epi16(magnitudes, _mm256_sign_epi8(x, signed)))) };
        }
        sum
    }
}

/// Add sums of 16 bits, two at a time, to sums of 32.
///
/// # Safety
///
/// This machine has AVX2.
#[inline(always)]
unsafe fn widened(sum: __m256i, words: __m256i) -> __m256i {
    // SAFETY: as the caller promises.
    unsafe { _mm256_add_epi32(sum, _mm256_madd_epi16(words, _mm256_set1_epi16(1))) }
}

/// The same vector. The compiler moves no sum across this; otherwise it reorders sums, and they leave registers.
///
/// # Safety
///
/// This machine has AVX2.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn in_order(mut vector: __m256i) -> __m256i {
    // SAFETY: there are no instructions.
    unsafe { asm!("/* {} */", inout(ymm_reg) vector, options(nomem, nostack, preserves_flags)) };
    vector
}
