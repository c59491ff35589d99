//! Floats to integers: each group by its largest magnitude. Knows neither weights nor rows of them.

use crate::isa::Isa;
use crate::linear::format::{Element, GROUP, from_bfloat16};
use crate::linear::rounding::{Scale, nearest};

const LARGEST: f32 = 127.0;

/// Where integers go: a group of them, then, `stride` after its start, the next.
#[derive(Clone, Copy)]
pub(super) struct Places {
    pub(super) first: *mut i8,
    pub(super) stride: usize,
}

/// Write integers, and tell each group's scale and sum of integers.
///
/// An integer is `element × (127 / largest magnitude)` to the nearest, to even where two are equally near; the scale is
/// `largest magnitude / 127`, and not a number where an element is not finite.
///
/// # Safety
///
/// There are places for all elements, whole groups of them, and nothing else touches these; this machine has `isa`.
pub(super) unsafe fn quantise(
    isa: Isa,
    element: Element,
    elements: &[u8],
    places: Places,
    group: impl FnMut(f32, i32),
) {
    match isa {
        // SAFETY: as the caller promises.
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 | Isa::Avx512Bf16 | Isa::Amx => unsafe {
            quantise_avx512(element, elements, places, group);
        },
        // SAFETY: as the caller promises.
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => unsafe { quantise_avx2(element, elements, places, group) },
        // SAFETY: as the caller promises.
        _ => unsafe { quantise_portable(element, elements, places, group) },
    }
}

/// The portable form, compiled for AVX-512.
///
/// # Safety
///
/// As for `quantise`.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
unsafe fn quantise_avx512(element: Element, elements: &[u8], places: Places, group: impl FnMut(f32, i32)) {
    // SAFETY: as the caller promises.
    unsafe { quantise_portable(element, elements, places, group) };
}

/// The portable form, compiled for AVX2.
///
/// # Safety
///
/// As for `quantise`.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
unsafe fn quantise_avx2(element: Element, elements: &[u8], places: Places, group: impl FnMut(f32, i32)) {
    // SAFETY: as the caller promises.
    unsafe { quantise_portable(element, elements, places, group) };
}

/// # Safety
///
/// As for `quantise`.
#[inline(always)] // so that it is compiled anew for each instruction set
#[expect(clippy::inline_always, reason = "see above")]
unsafe fn quantise_portable(element: Element, elements: &[u8], places: Places, group: impl FnMut(f32, i32)) {
    // SAFETY: as the caller promises.
    unsafe {
        match element {
            Element::Float32 => {
                quantise_groups(elements.as_chunks().0, f32::from_ne_bytes, places, group);
            }
            Element::Bfloat16 => {
                let widen = |bytes| from_bfloat16(u16::from_ne_bytes(bytes));
                quantise_groups(elements.as_chunks().0, widen, places, group);
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
    mut places: Places,
    mut group: impl FnMut(f32, i32),
) {
    // Of a number that it knows, the compiler makes vectors without loops.
    for elements in elements.as_chunks::<GROUP>().0 {
        // SAFETY: as the caller promises: this group's places.
        let integers = unsafe { &mut *places.first.cast::<[i8; GROUP]>() };
        places.first = places.first.wrapping_add(places.stride);
        let Scale { scale, inverse } = Scale::of(elements.iter().map(|&bytes| widen(bytes)), LARGEST);
        let mut sum = 0;
        for (integer, &bytes) in integers.iter_mut().zip(elements) {
            *integer = nearest(widen(bytes) * inverse) as i8;
            sum += i32::from(*integer);
        }
        group(scale, sum);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_of_a_group_becomes_127() {
        let mut elements = [0.0_f32; 2 * GROUP];
        elements[..5].copy_from_slice(&[-254.0, 3.0, 5.0, -1.0, 1e-32]);
        elements[GROUP..GROUP + 2].copy_from_slice(&[3.0, -3.0]);
        let bytes: &[u8] = bytemuck::cast_slice(&elements);
        for isa in Isa::available() {
            let (mut integers, mut groups) = ([99_i8; 3 * GROUP], Vec::new());
            let places = Places { first: integers.as_mut_ptr(), stride: 2 * GROUP };
            // SAFETY: both groups have their places, and the instructions are available ones.
            unsafe {
                quantise(isa, Element::Float32, bytes, places, |scale, sum| groups.push((scale.to_bits(), sum)));
            }
            assert_eq!(integers[..6], [-127, 2, 2, 0, 0, 0]);
            assert_eq!(integers[GROUP - 1..=GROUP], [0, 99]);
            assert_eq!(integers[2 * GROUP..2 * GROUP + 3], [127, -127, 0]);
            assert_eq!(groups, [(2.0_f32.to_bits(), -123), ((3.0_f32 / 127.0).to_bits(), 0)]);
        }
    }
}
