//! Quantisation of an input row to 8-bit integers, with a scale for each group. Knows no weights.

use super::tile::InputFactors;
use crate::linear::format::{Encoding, GROUP};
use crate::linear::output::SIDE;
use crate::linear::rounding::{Scale, nearest};

const LARGEST: f32 = 127.0;

/// Write a row's integers, and each group's factors for weights of this encoding.
///
/// An integer is `element × (127 / largest magnitude)`, rounded to nearest, ties to even; the scale is `largest
/// magnitude / 127`, or NaN if an element is not finite.
///
/// # Safety
///
/// See `IntegerFormat::quantise`.
#[inline(always)] // so that it is compiled anew for each instruction set
#[expect(clippy::inline_always, reason = "see above")]
pub(super) unsafe fn quantise<const BYTES: usize>(
    elements: &[[u8; BYTES]],
    widen: impl Fn([u8; BYTES]) -> f32,
    encoding: Encoding,
    mut integers: *mut i8,
    mut factors: *mut InputFactors,
) {
    // With a constant length, the compiler vectorises without loops.
    for elements in elements.as_chunks::<GROUP>().0 {
        // SAFETY: as the caller promises: this is the group's memory.
        let group = unsafe { &mut *integers.cast::<[i8; GROUP]>() };
        let Scale { scale, inverse } = Scale::of(elements.iter().map(|&bytes| widen(bytes)), LARGEST);
        let mut sums = [0; 2];
        for ((group, elements), sum) in
            group.chunks_exact_mut(GROUP / 2).zip(elements.chunks_exact(GROUP / 2)).zip(&mut sums)
        {
            for (integer, &bytes) in group.iter_mut().zip(elements) {
                *integer = nearest(widen(bytes) * inverse) as i8;
                *sum += i32::from(*integer);
            }
        }
        // SAFETY: as the caller promises: a row has factors for each of its groups.
        unsafe { factors.write(InputFactors::new(scale, sums, encoding)) };
        (integers, factors) = (integers.wrapping_add(SIDE * GROUP), factors.wrapping_add(SIDE));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtype::DType;
    use crate::isa::Isa;
    use crate::linear::format::GgmlType;
    use crate::linear::integer_rows;

    #[test]
    fn the_largest_of_a_group_becomes_127() {
        let mut elements = [0.0_f32; 2 * GROUP];
        elements[..5].copy_from_slice(&[-254.0, 3.0, 5.0, -1.0, 1e-32]);
        elements[GROUP..GROUP + 2].copy_from_slice(&[3.0, -3.0]);
        let bytes: &[u8] = bytemuck::cast_slice(&elements);
        for isa in Isa::available() {
            let (mut integers, mut factors) = ([99_i8; 2 * SIDE * GROUP], [InputFactors::default(); 2 * SIDE]);
            let (first, first_factors) = (integers.as_mut_ptr(), factors.as_mut_ptr());
            // SAFETY: a side of two groups has room for its first row, and the instructions are available ones.
            unsafe { integer_rows::quantise(isa, GgmlType::Q8_0, DType::Float32, bytes, first, first_factors) };
            assert_eq!(integers[..6], [-127, 2, 2, 0, 0, 0]);
            assert_eq!(integers[GROUP - 1..=GROUP], [0, 99]);
            assert_eq!(integers[SIDE * GROUP..SIDE * GROUP + 3], [127, -127, 0]);
            let bits = |factors: InputFactors| {
                (factors.scale.to_bits(), factors.starts, factors.scaled_sums.map(f32::to_bits))
            };
            assert_eq!(bits(factors[0]), (2.0_f32.to_bits(), [123 * 128, 0], [(-246.0_f32).to_bits(), 0]));
            assert_eq!(bits(factors[SIDE]), ((3.0_f32 / 127.0).to_bits(), [0; 2], [0; 2]));
        }
    }
}
