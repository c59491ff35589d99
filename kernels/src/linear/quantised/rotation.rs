//! A row's features, rotated before they are made into integers: an outlier is spread over as many as 32 of them, and
//! the others keep more of their precision (`QuaRot`, arXiv 2404.00456). Knows neither integers nor a matrix.
//!
//! Rotated is each column of the row seen as [segments, features / segments], by the Walsh-Hadamard transform: at
//! distance 1, 2, 4, … two segments become their sum and their difference. No number is made in another way, so all are
//! bitwise the same on every instruction set.

use crate::isa::Isa;
use crate::linear::format::{Element, from_bfloat16};

pub(super) const MAX_SEGMENTS: usize = 32;

/// How many features are mixed with one another, a power of two. Who rotates twice multiplies by it.
pub(super) fn num_segments(features: usize) -> usize {
    1 << features.trailing_zeros().min(MAX_SEGMENTS.ilog2())
}

/// Write the elements, rotated, to a row of as many floats.
///
/// # Safety
///
/// This machine has `isa`.
pub(super) unsafe fn rotate(isa: Isa, element: Element, elements: &[u8], row: &mut [f32]) {
    match isa {
        // SAFETY: as the caller promises.
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 | Isa::Avx512Bf16 | Isa::Amx => unsafe { rotate_avx512(element, elements, row) },
        // SAFETY: as the caller promises.
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => unsafe { rotate_avx2(element, elements, row) },
        _ => rotate_portable(element, elements, row),
    }
}

/// Rotate a row, or some columns of one as if they were all, in place. It is not normalised.
#[inline(always)] // so that it is compiled anew for each instruction set
#[expect(clippy::inline_always, reason = "see above")]
pub(super) fn transform(row: &mut [f32], num_segments: usize) {
    // Two stages at a time, which takes a quarter less time than one by one.
    let mut width = row.len() / num_segments;
    while 4 * width <= row.len() {
        row.chunks_exact_mut(4 * width).for_each(two_stages);
        width *= 4;
    }
    if width < row.len() {
        let (first, second) = row.split_at_mut(width);
        for (a, b) in first.iter_mut().zip(second) {
            (*a, *b) = (*a + *b, *a - *b);
        }
    }
}

/// The portable form, compiled for AVX-512.
///
/// # Safety
///
/// As for `rotate`.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
unsafe fn rotate_avx512(element: Element, elements: &[u8], row: &mut [f32]) {
    rotate_portable(element, elements, row);
}

/// The portable form, compiled for AVX2.
///
/// # Safety
///
/// As for `rotate`.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
unsafe fn rotate_avx2(element: Element, elements: &[u8], row: &mut [f32]) {
    rotate_portable(element, elements, row);
}

#[inline(always)] // as above
#[expect(clippy::inline_always, reason = "see above")]
fn rotate_portable(element: Element, elements: &[u8], row: &mut [f32]) {
    match element {
        Element::Float32 => widen(elements.as_chunks().0, f32::from_ne_bytes, row),
        Element::Bfloat16 => widen(elements.as_chunks().0, |bytes| from_bfloat16(u16::from_ne_bytes(bytes)), row),
    }
    transform(row, num_segments(row.len()));
}

#[inline(always)] // as above
#[expect(clippy::inline_always, reason = "see above")]
fn widen<const BYTES: usize>(elements: &[[u8; BYTES]], widen: impl Fn([u8; BYTES]) -> f32, row: &mut [f32]) {
    assert_eq!(elements.len(), row.len());
    for (out, &bytes) in row.iter_mut().zip(elements) {
        *out = widen(bytes);
    }
}

/// Of four parts, first neighbours become their sum and their difference, then those two apart.
#[inline(always)] // as above
#[expect(clippy::inline_always, reason = "see above")]
fn two_stages(row: &mut [f32]) {
    let width = row.len() / 4;
    let (first, second) = row.split_at_mut(2 * width);
    let ((a, b), (c, d)) = (first.split_at_mut(width), second.split_at_mut(width));
    for (((a, b), c), d) in a.iter_mut().zip(b).zip(c).zip(d) {
        let (ab, cd) = ((*a + *b, *a - *b), (*c + *d, *c - *d));
        (*a, *b, *c, *d) = (ab.0 + cd.0, ab.1 + cd.1, ab.0 - cd.0, ab.1 - cd.1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::linear::format::round_to_bfloat16;

    fn rotated(isa: Isa, row: &[f32]) -> Vec<f32> {
        let mut out = vec![f32::NAN; row.len()];
        // SAFETY: the instructions are available ones.
        unsafe { rotate(isa, Element::Float32, bytemuck::cast_slice(row), &mut out) };
        out
    }

    /// The sum over the column, with the sign that the matrix has: -1 to the number of bits that both indices have.
    fn specified(row: &[f32]) -> Vec<f32> {
        let num_segments = num_segments(row.len());
        let width = row.len() / num_segments;
        let sign = |a: usize, b: usize| if (a & b).count_ones().is_multiple_of(2) { 1.0 } else { -1.0 };
        (0..row.len())
            .map(|at| (0..num_segments).map(|other| sign(at / width, other) * row[other * width + at % width]).sum())
            .collect()
    }

    #[test]
    fn every_instruction_set_computes_the_transform() {
        for features in [1, 3, 6, 12, 13, 24, 32, 48, 64, 96, 100, 576, 1536] {
            // Integers, whose sums are exact in any order.
            let row: Vec<f32> = (0..features).map(|index| f32::from((index * 37 % 101) as u8) - 50.0).collect();
            for isa in Isa::available() {
                assert_eq!(rotated(isa, &row), specified(&row), "{isa:?} {features}");
            }
        }
    }

    #[test]
    fn sums_are_rounded_alike_on_every_instruction_set() {
        let row: Vec<f32> = (0..1536_u16).map(|index| (f32::from(index) * 0.7).sin() / 3.0).collect();
        let bits = |isa| rotated(isa, &row).into_iter().map(f32::to_bits).collect::<Vec<_>>();
        for isa in Isa::available() {
            assert_eq!(bits(isa), bits(Isa::Portable), "{isa:?}");
        }
    }

    #[test]
    fn elements_of_two_bytes_are_widened() {
        let row: Vec<f32> = (0..96_u8).map(f32::from).collect();
        let elements: Vec<u8> = row.iter().flat_map(|&number| round_to_bfloat16(number).to_ne_bytes()).collect();
        for isa in Isa::available() {
            let mut out = vec![f32::NAN; 96];
            // SAFETY: the instructions are available ones.
            unsafe { rotate(isa, Element::Bfloat16, &elements, &mut out) };
            assert_eq!(out, rotated(isa, &row), "{isa:?}");
        }
    }

    #[test]
    fn twice_is_a_factor() {
        for (features, factor) in [(13, 1), (14, 2), (36, 4), (40, 8), (48, 16), (96, 32), (128, 32)] {
            assert_eq!(num_segments(features), factor);
            let row: Vec<f32> = (0..features).map(|index| f32::from(index as u8)).collect();
            let expected: Vec<f32> = row.iter().map(|number| number * factor as f32).collect();
            assert_eq!(rotated(Isa::best(), &rotated(Isa::best(), &row)), expected);
        }
    }
}
