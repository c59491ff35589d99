//! Floats to integers: each group by its largest magnitude. Knows neither weights nor rows of them.

use crate::isa::Isa;
use crate::linear::format::{Element, GROUP, from_bfloat16};

const LARGEST: f32 = 127.0;
/// Below it everything is 0: its inverse would not be finite. 2⁻¹⁰⁰.
const SMALLEST: f32 = f32::from_bits((127 - 100) << 23);

/// Where integers go: a chunk of them, then, `stride` after its start, the next.
#[derive(Clone, Copy)]
pub(super) struct Places {
    pub(super) first: *mut i8,
    pub(super) chunk: usize,
    pub(super) stride: usize,
}

/// Write integers, zeros behind the last up to the end of its chunk, and tell each group's scale and sum of integers.
///
/// An integer is `element × (127 / largest magnitude)` to the nearest, to even where two are equally near; the scale is
/// `largest magnitude / 127`, and not a number where an element is not finite.
///
/// # Safety
///
/// There are places for all elements, and nothing else touches them; groups are whole chunks; this machine has `isa`.
pub(super) unsafe fn quantise(
    isa: Isa,
    element: Element,
    elements: &[u8],
    group_features: usize,
    places: Places,
    group: impl FnMut(f32, i32),
) {
    match isa {
        // SAFETY: as the caller promises.
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 | Isa::Avx512Bf16 | Isa::Amx => unsafe {
            quantise_avx512(element, elements, group_features, places, group);
        },
        // SAFETY: as the caller promises.
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => unsafe { quantise_avx2(element, elements, group_features, places, group) },
        // SAFETY: as the caller promises.
        _ => unsafe { quantise_portable(element, elements, group_features, places, group) },
    }
}

/// The portable form, compiled for AVX-512.
///
/// # Safety
///
/// As for `quantise`.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
unsafe fn quantise_avx512(
    element: Element,
    elements: &[u8],
    group_features: usize,
    places: Places,
    group: impl FnMut(f32, i32),
) {
    // SAFETY: as the caller promises.
    unsafe { quantise_portable(element, elements, group_features, places, group) };
}

/// The portable form, compiled for AVX2.
///
/// # Safety
///
/// As for `quantise`.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
unsafe fn quantise_avx2(
    element: Element,
    elements: &[u8],
    group_features: usize,
    places: Places,
    group: impl FnMut(f32, i32),
) {
    // SAFETY: as the caller promises.
    unsafe { quantise_portable(element, elements, group_features, places, group) };
}

/// # Safety
///
/// As for `quantise`.
#[inline(always)] // so that it is compiled anew for each instruction set
#[expect(clippy::inline_always, reason = "see above")]
unsafe fn quantise_portable(
    element: Element,
    elements: &[u8],
    group_features: usize,
    places: Places,
    group: impl FnMut(f32, i32),
) {
    // SAFETY: as the caller promises.
    unsafe {
        match element {
            Element::Float32 => {
                quantise_groups(elements.as_chunks().0, f32::from_ne_bytes, group_features, places, group);
            }
            Element::Bfloat16 => {
                let widen = |bytes| from_bfloat16(u16::from_ne_bytes(bytes));
                quantise_groups(elements.as_chunks().0, widen, group_features, places, group);
            }
        }
    }
}

/// # Safety
///
/// As for `quantise`.
#[inline(always)] // as above
#[expect(clippy::inline_always, reason = "see above")]
unsafe fn quantise_groups<const BYTES: usize>(
    elements: &[[u8; BYTES]],
    widen: impl Fn([u8; BYTES]) -> f32,
    group_features: usize,
    mut places: Places,
    mut group: impl FnMut(f32, i32),
) {
    let mut next_chunk = || {
        // SAFETY: as the caller promises: this chunk's places.
        let integers = unsafe { std::slice::from_raw_parts_mut(places.first, places.chunk) };
        places.first = places.first.wrapping_add(places.stride);
        integers
    };
    if (group_features, places.chunk) == (GROUP, GROUP) {
        // Of a number that it knows, the compiler makes vectors without loops.
        for elements in elements.as_chunks::<GROUP>().0 {
            let (scale, inverse) = scale_of(elements, &widen);
            let integers = next_chunk().first_chunk_mut::<GROUP>().expect("a chunk is a group");
            group(scale, round(elements, inverse, integers, &widen));
        }
        return;
    }
    for elements in elements.chunks(group_features) {
        let (scale, inverse) = scale_of(elements, &widen);
        let mut sum = 0;
        for elements in elements.chunks(places.chunk) {
            let (filled, rest) = next_chunk().split_at_mut(elements.len());
            sum += round(elements, inverse, filled, &widen);
            rest.fill(0);
        }
        group(scale, sum);
    }
}

/// A group's scale, and what its elements are multiplied with.
#[inline(always)] // as above
#[expect(clippy::inline_always, reason = "see above")]
fn scale_of<const BYTES: usize>(elements: &[[u8; BYTES]], widen: &impl Fn([u8; BYTES]) -> f32) -> (f32, f32) {
    // Magnitudes are ordered as their bits are, with what is not finite above all others.
    let bits = elements.iter().map(|&bytes| widen(bytes).to_bits() & 0x7fff_ffff).fold(0, u32::max);
    let largest = f32::from_bits(bits);
    if !largest.is_finite() {
        (f32::NAN, LARGEST / largest)
    } else if largest < SMALLEST {
        (0.0, 0.0)
    } else {
        (largest / LARGEST, LARGEST / largest)
    }
}

/// Make elements into integers, and give the sum of these.
#[inline(always)] // as above
#[expect(clippy::inline_always, reason = "see above")]
fn round<const BYTES: usize>(
    elements: &[[u8; BYTES]],
    inverse: f32,
    integers: &mut [i8],
    widen: &impl Fn([u8; BYTES]) -> f32,
) -> i32 {
    let mut sum = 0;
    for (integer, &bytes) in integers.iter_mut().zip(elements) {
        *integer = nearest(widen(bytes) * inverse);
        sum += i32::from(*integer);
    }
    sum
}

/// The nearest integer: behind so large a number there is no room for a fraction.
#[inline]
fn nearest(value: f32) -> i8 {
    const ROUNDER: f32 = 12_582_912.0; // 1.5 × 2²³
    (value + ROUNDER).to_bits() as i8
}

#[cfg(test)]
mod tests {
    use super::*;

    fn quantised(isa: Isa, elements: &[f32], group_features: usize) -> (Vec<i8>, Vec<(u32, i32)>) {
        let bytes: Vec<u8> = elements.iter().flat_map(|element| element.to_ne_bytes()).collect();
        let chunk = group_features / 2;
        let mut integers = vec![99; elements.len().next_multiple_of(chunk)];
        let mut groups = Vec::new();
        let places = Places { first: integers.as_mut_ptr(), chunk, stride: chunk };
        // SAFETY: all chunks have their places, and the instructions are available ones.
        unsafe {
            quantise(isa, Element::Float32, &bytes, group_features, places, |scale, sum| {
                groups.push((scale.to_bits(), sum));
            });
        }
        (integers, groups)
    }

    #[test]
    fn the_largest_becomes_127_and_halves_go_to_even() {
        for isa in Isa::available() {
            let (integers, groups) = quantised(isa, &[-254.0, 3.0, 5.0, -1.0, 0.0, 0.0, 1e-32, 3.0, 3.0], 4);
            assert_eq!(integers, [-127, 2, 2, 0, 0, 0, 0, 127, 127, 0]);
            let expected = [(2.0_f32, -123), (3.0 / 127.0, 127), (3.0 / 127.0, 127)];
            assert_eq!(groups, expected.map(|(scale, sum)| (scale.to_bits(), sum)));
        }
    }

    #[test]
    fn what_is_tiny_is_0_and_what_is_not_finite_shows() {
        for isa in Isa::available() {
            assert_eq!(quantised(isa, &[1e-40, -1e-38], 2), (vec![0, 0], vec![(0, 0)]));
            for odd in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                let (_, groups) = quantised(isa, &[1.0, odd], 2);
                assert!(f32::from_bits(groups[0].0).is_nan());
            }
        }
    }
}
