//! The types of tensors' elements, and conversions between them and float32. Knows no kernel.

/// The type of a tensor's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DType {
    Float32,
    Bfloat16,
    Float16,
}

impl DType {
    pub(crate) const ALL: [Self; 3] = [Self::Float32, Self::Bfloat16, Self::Float16];

    /// The name in numpy and torch.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Float32 => "float32",
            Self::Bfloat16 => "bfloat16",
            Self::Float16 => "float16",
        }
    }

    pub(crate) fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|dtype| dtype.name() == name)
    }

    pub(crate) fn bytes(self) -> usize {
        match self {
            Self::Float32 => 4,
            Self::Bfloat16 | Self::Float16 => 2,
        }
    }
}

/// Round to nearest, ties to even; NaN stays NaN.
#[inline]
pub(crate) fn round_to_bfloat16(value: f32) -> u16 {
    let bits = value.to_bits();
    let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16;
    if value.is_nan() { (bits >> 16 | 0x40) as u16 } else { rounded as u16 }
}

/// Round to nearest, ties to even; what exceeds the range becomes infinite, and NaN stays NaN.
#[inline]
pub(crate) fn round_to_float16(value: f32) -> u16 {
    const REBIAS: u32 = (127 - 15) << 23;
    /// 65,520: from here on, numbers round to infinity.
    const OVERFLOW: u32 = 0x477f_f000;
    /// 2⁻¹⁴, the least normal number.
    const NORMAL: u32 = REBIAS + (1 << 23);
    let sign = value.to_bits() >> 16 & 0x8000;
    let magnitude = value.to_bits() & 0x7fff_ffff;
    let rounded = if value.is_nan() {
        0x7e00 | magnitude >> 13 & 0x3ff
    } else if magnitude >= OVERFLOW {
        0x7c00
    } else if magnitude >= NORMAL {
        (magnitude - REBIAS + 0xfff + (magnitude >> 13 & 1)) >> 13
    } else {
        // The last bit of numbers from a half to 1 is 2⁻²⁴, as that of subnormal numbers is.
        (f32::from_bits(magnitude) + 0.5).to_bits() - 0.5_f32.to_bits()
    };
    (sign | rounded) as u16
}

/// Write a number in a dtype.
#[inline]
pub(crate) fn write(dtype: DType, value: f32, out: &mut [u8]) {
    match dtype {
        DType::Float32 => out.copy_from_slice(&value.to_ne_bytes()),
        DType::Bfloat16 => out.copy_from_slice(&round_to_bfloat16(value).to_ne_bytes()),
        DType::Float16 => out.copy_from_slice(&round_to_float16(value).to_ne_bytes()),
    }
}

/// The bytes of numbers in a dtype.
#[cfg(test)]
pub(crate) fn elements(dtype: DType, numbers: &[f32]) -> Vec<u8> {
    let mut bytes = vec![0; numbers.len() * dtype.bytes()];
    numbers.iter().zip(bytes.chunks_exact_mut(dtype.bytes())).for_each(|(&number, out)| write(dtype, number, out));
    bytes
}

/// The reverse of `elements`.
#[cfg(test)]
pub(crate) fn numbers(dtype: DType, bytes: &[u8]) -> Vec<f32> {
    let words = bytes.chunks_exact(dtype.bytes());
    match dtype {
        DType::Float32 => words.map(bytemuck::pod_read_unaligned).collect(),
        DType::Bfloat16 => words.map(bytemuck::pod_read_unaligned).map(from_bfloat16).collect(),
        DType::Float16 => words.map(bytemuck::pod_read_unaligned).map(from_float16).collect(),
    }
}

#[inline]
pub(crate) fn from_bfloat16(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

/// Convert from float16, exactly, subnormal numbers included.
#[inline]
pub(crate) fn from_float16(bits: u16) -> f32 {
    const REBIAS: f32 = f32::from_bits((254 - 15) << 23); // 2¹¹²
    let magnitude = u32::from(bits & 0x7fff) << 13;
    let sign = u32::from(bits & 0x8000) << 16;
    let value = if bits & 0x7c00 == 0x7c00 {
        f32::from_bits(magnitude | 0x7f80_0000)
    } else {
        f32::from_bits(magnitude) * REBIAS
    };
    f32::from_bits(value.to_bits() | sign)
}

/// Convert from E4M3 without infinities, exactly.
#[inline]
pub(crate) fn from_float8(bits: u8) -> f32 {
    let (exponent, mantissa) = (u32::from(bits >> 3 & 0xf), u32::from(bits & 7));
    let magnitude = match (exponent, mantissa) {
        (15, 7) => f32::NAN,
        (0, _) => f32::from(bits & 7) / 512.0,
        _ => f32::from_bits((exponent + 127 - 7) << 23 | mantissa << 20),
    };
    if bits >> 7 == 1 { -magnitude } else { magnitude }
}

/// Half of the power of two for an 8-bit exponent (E8M0): the scale of numbers that are stored doubled. Exact,
/// subnormal numbers included; 255 is NaN.
#[inline]
pub(crate) fn half_of_exponent(bits: u8) -> f32 {
    match bits {
        0 | 1 => f32::from_bits(0x20_0000 << bits),
        255 => f32::NAN,
        _ => f32::from_bits(u32::from(bits - 1) << 23),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounding_to_bfloat16_goes_to_the_nearest_even() {
        let cases = [
            (1.0, 0x3f80),
            (257.0 / 256.0, 0x3f80),
            (259.0 / 256.0, 0x3f82),
            (f32::INFINITY, 0x7f80),
            (3.4e38, 0x7f80),
        ];
        for (value, expected) in cases {
            assert_eq!(round_to_bfloat16(value), expected, "{value}");
        }
        assert!(from_bfloat16(round_to_bfloat16(f32::from_bits(0x7f80_0001))).is_nan());
    }

    #[test]
    fn float16_is_widened_exactly() {
        let cases = [
            (0x0000, 0.0),
            (0x0001, 2.0_f32.powi(-24)),
            (0x03ff, 1023.0 * 2.0_f32.powi(-24)),
            (0x0400, 2.0_f32.powi(-14)),
            (0x3c01, 1.0 + 2.0_f32.powi(-10)),
            (0xc500, -5.0),
            (0x7bff, 65504.0),
            (0xfc00, f32::NEG_INFINITY),
        ];
        for (bits, expected) in cases {
            assert_eq!(from_float16(bits).to_bits(), f32::to_bits(expected), "{bits:#x}");
        }
        assert!(from_float16(0x7e00).is_nan());
    }

    #[test]
    fn rounding_to_float16_is_the_reverse_of_widening() {
        for bits in 0..=u16::MAX {
            let number = from_float16(bits);
            let expected = if number.is_nan() { bits | 0x200 } else { bits };
            assert_eq!(round_to_float16(number), expected, "{bits:#x}");
        }
    }

    #[test]
    fn rounding_to_float16_goes_to_the_nearest_even() {
        for bits in 0..0x7bff {
            let (below, above) = (from_float16(bits), from_float16(bits + 1));
            let middle = f32::midpoint(below, above);
            assert_eq!(round_to_float16(middle), bits + (bits & 1), "{middle}");
            assert_eq!(round_to_float16(middle.next_down()), bits, "{middle}");
            assert_eq!(round_to_float16(-middle.next_up()), 0x8000 | (bits + 1), "{middle}");
        }
        let cases = [(65519.0, 0x7bff), (65520.0, 0x7c00), (-1e30, 0xfc00), (f32::INFINITY, 0x7c00), (-1e-30, 0x8000)];
        for (value, expected) in cases {
            assert_eq!(round_to_float16(value), expected, "{value}");
        }
    }

    #[test]
    fn float8_is_widened_exactly() {
        let cases =
            [(0x00, 0.0), (0x01, 1.0 / 512.0), (0x07, 7.0 / 512.0), (0x08, 1.0 / 64.0), (0x39, 1.125), (0xfe, -448.0)];
        for (bits, expected) in cases {
            assert_eq!(from_float8(bits).to_bits(), f32::to_bits(expected), "{bits:#x}");
        }
        assert!([0x7f, 0xff].into_iter().all(|bits| from_float8(bits).is_nan()));
    }

    #[test]
    fn exponents_are_powers_of_two() {
        for bits in 0..=254 {
            let expected = 2.0_f64.powi(i32::from(bits) - 128);
            assert_eq!(f64::from(half_of_exponent(bits)).to_bits(), expected.to_bits(), "{bits}");
        }
        assert!(half_of_exponent(255).is_nan());
    }
}
