//! The storage formats of a matrix's numbers. Knows no kernel.

use super::output::PANEL;

/// The format of weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    /// Floats of the input's dtype.
    Float,
    /// Integers from -127 to 127, quantised here, or from -128 to 127 as stored, with one float32 scale per output.
    Int8(Int8Source),
    Ggml(GgmlType),
}

/// The source of int8 weights. GGUF's 4-bit formats stay packed, and are widened to 8 bits in the product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Int8Source {
    Elements,
    Q4_0,
    Q4_1,
}

impl Format {
    /// The blocks that this must be packed from; none if it is packed from rows of any source.
    pub(crate) fn required_blocks(self) -> Option<GgmlType> {
        match self {
            Self::Float => None,
            Self::Int8(source) => source.blocks(),
            Self::Ggml(format) => Some(format),
        }
    }

    /// Features that are packed together.
    pub(crate) fn block_features(self) -> usize {
        match self {
            Self::Float | Self::Int8(Int8Source::Elements) => 1,
            Self::Int8(Int8Source::Q4_0 | Int8Source::Q4_1) => GROUP,
            Self::Ggml(format) => format.block_features(),
        }
    }
}

impl Int8Source {
    /// The blocks of the source; none for elements.
    pub(crate) fn blocks(self) -> Option<GgmlType> {
        match self {
            Self::Elements => None,
            Self::Q4_0 => Some(GgmlType::Q4_0),
            Self::Q4_1 => Some(GgmlType::Q4_1),
        }
    }
}

/// GGUF's integer formats. Each number is `scale × integer + minimum`; the stored integer is unsigned, with the
/// format's offset added, or an index into a codebook; see `Encoding`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GgmlType {
    Q8_0,
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Iq4Nl,
    Mxfp4,
    Q2K,
    Q3K,
    Q4K,
    Q5K,
    Q6K,
    Iq4Xs,
    Iq2Xxs,
    Iq2Xs,
    Iq2S,
    Iq3Xxs,
    Iq3S,
    Iq1S,
    Iq1M,
}

/// Features in a group of integers.
pub(crate) const GROUP: usize = 32;
/// Groups in a super-block.
pub(crate) const SUPER_GROUPS: usize = 8;

/// The storage format of a group's scales and minimums.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ScaleType {
    /// float16 each.
    Half,
    /// A byte each, an exponent of two: see `half_of_exponent`.
    Exponent,
    /// A signed byte each, to be multiplied by a float16 of the super-block.
    SuperBlock,
    /// float32 each: only in expanded panels (see `ggml/expand.rs`).
    Single,
}

/// The properties of a format that kernels depend on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Encoding {
    /// Bits of an integer, or of its index into the codebook.
    pub(crate) bits: usize,
    /// The integers of the codebook, from `-offset` on.
    pub(crate) codebook: Option<&'static [i8; 16]>,
    /// The number that makes an integer unsigned when added to it.
    pub(crate) offset: i32,
    pub(crate) scale_type: ScaleType,
    /// Scales of a group: one, or one for each half.
    pub(crate) scales_per_group: usize,
    pub(crate) has_min: bool,
}

/// The codebook of `IQ4_NL` and `IQ4_XS` (`kvalues_iq4nl` of ggml).
const IQ4: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];
/// The codebook of `MXFP4`: floats of a sign, two bits of exponent and one of mantissa (E2M1), doubled.
const E2M1: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

impl GgmlType {
    pub(crate) const ALL: [Self; 20] = [
        Self::Q8_0,
        Self::Q4_0,
        Self::Q4_1,
        Self::Q5_0,
        Self::Q5_1,
        Self::Iq4Nl,
        Self::Mxfp4,
        Self::Q2K,
        Self::Q3K,
        Self::Q4K,
        Self::Q5K,
        Self::Q6K,
        Self::Iq4Xs,
        Self::Iq2Xxs,
        Self::Iq2Xs,
        Self::Iq2S,
        Self::Iq3Xxs,
        Self::Iq3S,
        Self::Iq1S,
        Self::Iq1M,
    ];

    /// The encoding of a panel; of formats with a grid, of an expanded one.
    pub(crate) const fn encoding(self) -> Encoding {
        let (bits, offset, scales_per_group, has_min) = match self {
            Self::Q8_0 | Self::Iq2Xxs | Self::Iq3Xxs | Self::Iq3S | Self::Iq1S => (8, 128, 1, false),
            Self::Q4_0 => (4, 8, 1, false),
            Self::Q4_1 | Self::Q4K => (4, 0, 1, true),
            Self::Q5_0 => (5, 16, 1, false),
            Self::Q5_1 | Self::Q5K => (5, 0, 1, true),
            Self::Q2K => (4, 0, 2, true),  // 2 bits, stored in 4
            Self::Q3K => (4, 4, 2, false), // 3 bits, stored in 4
            Self::Q6K => (6, 32, 2, false),
            Self::Iq4Nl | Self::Iq4Xs => (4, 128, 1, false),
            Self::Mxfp4 => (4, 12, 1, false),
            Self::Iq2Xs | Self::Iq2S | Self::Iq1M => (8, 128, 2, false),
        };
        let (scale_type, codebook) = match self {
            Self::Mxfp4 => (ScaleType::Exponent, Some(&E2M1)),
            Self::Iq4Nl => (ScaleType::Half, Some(&IQ4)),
            Self::Iq4Xs => (ScaleType::SuperBlock, Some(&IQ4)),
            _ if self.has_grid() => (ScaleType::Single, None),
            _ if self.block_features() == GROUP => (ScaleType::Half, None),
            _ => (ScaleType::SuperBlock, None),
        };
        Encoding { bits, codebook, offset, scale_type, scales_per_group, has_min }
    }

    /// Whether integers are looked up several at a time: see `ggml/grid.rs`.
    pub(crate) const fn has_grid(self) -> bool {
        matches!(self, Self::Iq2Xxs | Self::Iq2Xs | Self::Iq2S | Self::Iq3Xxs | Self::Iq3S | Self::Iq1S | Self::Iq1M)
    }

    /// The name in gguf, in lower case.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Q8_0 => "q8_0",
            Self::Q4_0 => "q4_0",
            Self::Q4_1 => "q4_1",
            Self::Q5_0 => "q5_0",
            Self::Q5_1 => "q5_1",
            Self::Iq4Nl => "iq4_nl",
            Self::Mxfp4 => "mxfp4",
            Self::Q2K => "q2_k",
            Self::Q3K => "q3_k",
            Self::Q4K => "q4_k",
            Self::Q5K => "q5_k",
            Self::Q6K => "q6_k",
            Self::Iq4Xs => "iq4_xs",
            Self::Iq2Xxs => "iq2_xxs",
            Self::Iq2Xs => "iq2_xs",
            Self::Iq2S => "iq2_s",
            Self::Iq3Xxs => "iq3_xxs",
            Self::Iq3S => "iq3_s",
            Self::Iq1S => "iq1_s",
            Self::Iq1M => "iq1_m",
        }
    }

    pub(crate) fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|format| format.name() == name)
    }

    /// Features in a block: rows can be split at block boundaries.
    pub(crate) const fn block_features(self) -> usize {
        match self {
            Self::Q8_0 | Self::Q4_0 | Self::Q4_1 | Self::Q5_0 | Self::Q5_1 | Self::Iq4Nl | Self::Mxfp4 => GROUP,
            _ => GROUP * SUPER_GROUPS,
        }
    }

    /// Bytes of a block in a GGUF file.
    pub(crate) const fn block_bytes(self) -> usize {
        match self {
            Self::Mxfp4 => 17,
            Self::Q4_0 | Self::Iq4Nl => 18,
            Self::Q4_1 => 20,
            Self::Q5_0 => 22,
            Self::Q5_1 => 24,
            Self::Q8_0 => 34,
            Self::Q2K => 84,
            Self::Q3K | Self::Iq3S => 110,
            Self::Iq4Xs => 136,
            Self::Q4K => 144,
            Self::Q5K => 176,
            Self::Q6K => 210,
            Self::Iq2Xxs => 66,
            Self::Iq2Xs => 74,
            Self::Iq2S => 82,
            Self::Iq3Xxs => 98,
            Self::Iq1S => 50,
            Self::Iq1M => 56,
        }
    }
}

impl Encoding {
    /// The codebook's integers with the offset added.
    pub(crate) fn unsigned_codebook(self) -> Option<[u8; 16]> {
        self.codebook.map(|integers| integers.map(|integer| (i32::from(integer) + self.offset) as u8))
    }

    /// The largest unsigned integer.
    pub(crate) const fn largest(self) -> i32 {
        let Some(integers) = self.codebook else { return (1 << self.bits) - 1 };
        let (mut largest, mut index) = (0, 0);
        while index < integers.len() {
            let integer = integers[index] as i32 + self.offset;
            largest = if integer > largest { integer } else { largest };
            index += 1;
        }
        largest
    }

    /// Bytes of a group's integers in a panel.
    pub(crate) const fn integer_bytes(self) -> usize {
        PANEL * GROUP * self.bits / 8
    }

    /// Bytes of each scale and minimum.
    pub(crate) const fn scale_bytes(self) -> usize {
        match self.scale_type {
            ScaleType::Half => 2,
            ScaleType::Exponent | ScaleType::SuperBlock => 1,
            ScaleType::Single => 4,
        }
    }

    /// Scales and minimums of a group.
    pub(crate) const fn factors_per_group(self) -> usize {
        self.scales_per_group * if self.has_min { 2 } else { 1 }
    }

    /// Bytes of a group in a panel.
    pub(crate) const fn group_bytes(self) -> usize {
        self.integer_bytes() + PANEL * self.factors_per_group() * self.scale_bytes()
    }

    /// Bytes before a super-block's groups: a float16 for its scales, and one for its minimums.
    pub(crate) const fn super_bytes(self) -> usize {
        match self.scale_type {
            ScaleType::SuperBlock => PANEL * 2 * if self.has_min { 2 } else { 1 },
            ScaleType::Half | ScaleType::Exponent | ScaleType::Single => 0,
        }
    }

    /// Bytes of `groups` groups in a panel.
    pub(crate) const fn panel_bytes(self, groups: usize) -> usize {
        groups * self.group_bytes() + groups / SUPER_GROUPS * self.super_bytes()
    }
}
