//! Quantisation of floats to integers that share a scale: by the largest magnitude, to the nearest integer. Knows no
//! memory.

/// Smaller magnitudes become 0, as their inverse would not be finite. 2⁻¹⁰⁰.
const SMALLEST: f32 = f32::from_bits((127 - 100) << 23);

/// The factor from integers to numbers, and its inverse.
#[derive(Clone, Copy)]
pub(super) struct Scale {
    pub(super) scale: f32,
    pub(super) inverse: f32,
}

impl Scale {
    /// The scale that maps the largest magnitude to `steps`; NaN if a number is not finite.
    #[inline(always)] // so that it is compiled anew for each instruction set
    #[expect(clippy::inline_always, reason = "see above")]
    pub(super) fn of(numbers: impl Iterator<Item = f32>, steps: f32) -> Self {
        // Magnitudes have the order of their bits, with infinities and NaNs above all others.
        let bits = numbers.map(|number| number.to_bits() & 0x7fff_ffff).fold(0, u32::max);
        let largest = f32::from_bits(bits);
        if !largest.is_finite() {
            Self { scale: f32::NAN, inverse: 0.0 }
        } else if largest < SMALLEST {
            Self { scale: 0.0, inverse: 0.0 }
        } else {
            Self { scale: largest / steps, inverse: steps / largest }
        }
    }
}

/// The nearest integer, ties to even, of a number up to 2²²: adding a large number leaves no bits for a fraction.
#[inline]
pub(super) fn nearest(value: f32) -> i32 {
    const ROUNDER: f32 = 12_582_912.0; // 1.5 × 2²³
    (value + ROUNDER).to_bits().wrapping_sub(ROUNDER.to_bits()).cast_signed()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_go_to_even() {
        let numbers = [0.5, 1.5, -0.5, -1.5, -2.5, 16_256.0, -16_255.5, 4_194_303.5];
        assert_eq!(numbers.map(nearest), [0, 2, 0, -2, -2, 16_256, -16_256, 4_194_304]);
    }

    #[test]
    fn what_is_tiny_is_0_and_what_is_not_finite_shows() {
        let scale = |numbers: &[f32]| Scale::of(numbers.iter().copied(), 127.0);
        assert_eq!(scale(&[-254.0, 3.0]).scale.to_bits(), 2.0_f32.to_bits());
        let tiny = scale(&[1e-40, -1e-38]);
        assert_eq!([tiny.scale.to_bits(), tiny.inverse.to_bits()], [0, 0]);
        for odd in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            assert!(scale(&[1.0, odd]).scale.is_nan());
        }
    }
}
