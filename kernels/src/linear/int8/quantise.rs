//! Quantisation of an input row to 15-bit integers, in two parts of 8 bits. Knows no weights.

use super::tile::{CHUNK, InputFactors, PLANES};
use crate::linear::output::SIDE;
use crate::linear::rounding::{Scale, nearest};

const LARGEST: f32 = 127.0 * 128.0;

/// Write a row's integers, padded with zeros to the end of its last chunk, and give its factors.
///
/// An integer is `element × (16,256 / largest magnitude)`, rounded to nearest, ties to even; it is 128 × its high part,
/// -127 to 127, plus its low part, -64 to 63. The scale is `largest magnitude / 16,256`, or NaN if an element is not
/// finite.
///
/// # Safety
///
/// See `IntegerFormat::quantise`.
#[inline(always)] // so that it is compiled anew for each instruction set
#[expect(clippy::inline_always, reason = "see above")]
pub(super) unsafe fn quantise<const BYTES: usize>(
    elements: &[[u8; BYTES]],
    widen: impl Fn([u8; BYTES]) -> f32,
    first: *mut i8,
) -> InputFactors {
    let Scale { scale, inverse } = Scale::of(elements.iter().map(|&bytes| widen(bytes)), LARGEST);
    let mut sums = [0; PLANES];
    let mut next = first.cast::<[i8; CHUNK]>();
    let mut fill = |elements: &[[u8; BYTES]; CHUNK]| {
        // SAFETY: as the caller promises: a chunk's memory, of each plane.
        let [high, low] = unsafe { [&mut *next, &mut *next.add(SIDE)] };
        next = next.wrapping_add(PLANES * SIDE);
        for ((&bytes, high), low) in elements.iter().zip(high).zip(low) {
            let integer = nearest(widen(bytes) * inverse);
            *high = ((integer + 64) >> 7) as i8;
            *low = (((integer + 64) & 127) - 64) as i8;
            sums[0] += i32::from(*high);
            sums[1] += i32::from(*low);
        }
    };
    let (chunks, rest) = elements.as_chunks::<CHUNK>();
    chunks.iter().for_each(&mut fill);
    if !rest.is_empty() {
        let mut chunk = [[0; BYTES]; CHUNK];
        chunk[..rest.len()].copy_from_slice(rest);
        fill(&chunk);
    }
    InputFactors { scale, starts: sums.map(|sum: i32| sum.wrapping_mul(-128)) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtype::DType;
    use crate::isa::Isa;
    use crate::linear::format::Int8Source;
    use crate::linear::integer_rows;

    fn quantised(isa: Isa, elements: &[f32], integers: &mut [i8]) -> InputFactors {
        let (bytes, mut factors) = (bytemuck::cast_slice(elements), InputFactors::default());
        assert!(integers.len() >= elements.len().div_ceil(CHUNK) * PLANES * SIDE * CHUNK);
        let first = integers.as_mut_ptr();
        // SAFETY: the side has room for its first row, and the instructions are available ones.
        unsafe { integer_rows::quantise(isa, Int8Source::Elements, DType::Float32, bytes, first, &raw mut factors) };
        factors
    }

    #[test]
    fn an_integer_is_the_sum_of_its_parts() {
        let mut elements = [0.0_f32; 70];
        elements[..8].copy_from_slice(&[16_256.0, -16_256.0, 63.0, 64.0, -64.0, -65.0, 0.5, 1.5]);
        elements[69] = 1000.0;
        for isa in Isa::available() {
            let mut integers = [99_i8; 2 * PLANES * SIDE * CHUNK];
            let factors = quantised(isa, &elements, &mut integers);
            let (high, low) = (&integers[..CHUNK], &integers[SIDE * CHUNK..][..CHUNK]);
            assert_eq!(high[..9], [127, -127, 0, 1, 0, -1, 0, 0, 0]);
            assert_eq!(low[..9], [0, 0, 63, -64, -64, 63, 0, 2, 0]);
            let (high, low) = (&integers[PLANES * SIDE * CHUNK..][..CHUNK], &integers[3 * SIDE * CHUNK..][..CHUNK]);
            assert_eq!((&high[4..7], &low[4..7]), (&[0, 8, 0][..], &[0, -24, 0][..]));
            assert_eq!((factors.scale.to_bits(), factors.starts), (1.0_f32.to_bits(), [-128 * 8, -128 * -24]));
        }
    }

    #[test]
    fn what_is_not_finite_shows() {
        for isa in Isa::available() {
            for odd in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                let mut integers = [0_i8; PLANES * SIDE * CHUNK];
                assert!(quantised(isa, &[1.0, odd], &mut integers).scale.is_nan());
            }
        }
    }
}
