//! How the numbers of a matrix are written down. Knows no kernel.

/// What inputs and outputs are made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Element {
    Float32,
    Bfloat16,
}

impl Element {
    pub(crate) fn bytes(self) -> usize {
        match self {
            Self::Float32 => 4,
            Self::Bfloat16 => 2,
        }
    }
}

/// What weights are made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    /// Numbers of the same kind as the input's.
    Element,
    /// -127 to 127, with one float32 scale an output: made here.
    Int8(Source),
    Quantised(Quantised),
}

/// What int8 weights are made of. Those of GGUF's 4 bits stay in so many, and become 8 when they are multiplied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    Elements,
    Q4_0,
    Q4_1,
}

impl Source {
    pub(crate) fn blocks(self) -> Option<Quantised> {
        match self {
            Self::Elements => None,
            Self::Q4_0 => Some(Quantised::Q4_0),
            Self::Q4_1 => Some(Quantised::Q4_1),
        }
    }
}

/// GGUF's integers, in groups of 32 features of one output, each to be multiplied with the scale of its group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Quantised {
    /// -128 to 127, with a float16 scale a group.
    Q8_0,
    /// -8 to 7, with a float16 scale a group.
    Q4_0,
    /// 0 to 15, with a float16 scale and a float16 minimum a group, which is added.
    Q4_1,
}

/// Features of a group.
pub(crate) const GROUP: usize = 32;

impl Quantised {
    /// What is added to an integer for it to be stored without a sign.
    pub(crate) fn offset(self) -> i32 {
        match self {
            Self::Q8_0 => 128,
            Self::Q4_0 => 8,
            Self::Q4_1 => 0,
        }
    }

    pub(crate) fn bits(self) -> usize {
        match self {
            Self::Q8_0 => 8,
            Self::Q4_0 | Self::Q4_1 => 4,
        }
    }

    /// Bytes of a group's scale, and of its minimum.
    pub(crate) fn scale_bytes(self) -> (usize, usize) {
        match self {
            Self::Q8_0 | Self::Q4_0 => (2, 0),
            Self::Q4_1 => (2, 2),
        }
    }

    /// Bytes of a group as it lies in a GGUF: the scale, the minimum, the integers.
    pub(crate) fn block_bytes(self) -> usize {
        let (scale, min) = self.scale_bytes();
        scale + min + GROUP * self.bits() / 8
    }
}

/// To the nearest, to even where two are equally near; not a number stays so.
#[inline]
pub(crate) fn round_to_bfloat16(value: f32) -> u16 {
    let bits = value.to_bits();
    let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16;
    if value.is_nan() { (bits >> 16 | 0x40) as u16 } else { rounded as u16 }
}

/// Write a number as an element.
#[inline]
pub(crate) fn write(element: Element, value: f32, out: &mut [u8]) {
    match element {
        Element::Float32 => out.copy_from_slice(&value.to_ne_bytes()),
        Element::Bfloat16 => out.copy_from_slice(&round_to_bfloat16(value).to_ne_bytes()),
    }
}

#[inline]
pub(crate) fn from_bfloat16(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

/// Exact, subnormal numbers included.
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
}
