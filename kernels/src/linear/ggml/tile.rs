//! Compile-time properties of rows and panels for the micro-kernels of these formats.

use crate::linear::format::{Encoding, GROUP, GgmlType, ScaleType};
use crate::linear::integer_rows;
use crate::linear::output::PANEL;

pub(super) type Tile = integer_rows::Tile<GgmlType>;

/// Compile-time properties of a panel's weights.
pub(super) trait Weights {
    const ENCODING: Encoding;
    const GROUP_BYTES: usize = Self::ENCODING.group_bytes();
    const INTEGER_BYTES: usize = Self::ENCODING.integer_bytes();
    const SUPER_BYTES: usize = Self::ENCODING.super_bytes();
    const IN_SUPER_BLOCKS: bool = matches!(Self::ENCODING.scale_type, ScaleType::SuperBlock);
    const HAS_MIN: bool = Self::ENCODING.has_min;
    /// Whether each half of a group has its own scale, and minimum.
    const HALVES: bool = Self::ENCODING.scales_per_group == 2;
    /// The weights of the expanded panel.
    type Expanded: Weights;
}

macro_rules! weights {
    ($($name:ident)*) => {
        $(
            pub(super) struct $name;

            impl Weights for $name {
                const ENCODING: Encoding = GgmlType::$name.encoding();
                type Expanded =
                    Expanded<{ GgmlType::$name.encoding().scales_per_group }, { GgmlType::$name.encoding().has_min }>;
            }
        )*
    };
}

weights!(Q8_0 Q4_0 Q4_1 Q5_0 Q5_1 Iq4Nl Mxfp4 Q2K Q3K Q4K Q5K Q6K Iq4Xs);

/// Unsigned integers of 8 bits, and scales and minimums of float32: expanded from any other format, for many rows, or
/// from one with a grid, for any. The offset is that of formats with a grid, whose panels AVX2 multiplies, too; the
/// others do not need to know it, since `InputFactors` has its products.
pub(super) struct Expanded<const SCALES: usize, const HAS_MIN: bool>;

impl<const SCALES: usize, const HAS_MIN: bool> Weights for Expanded<SCALES, HAS_MIN> {
    const ENCODING: Encoding = Encoding {
        bits: 8,
        codebook: None,
        offset: 128,
        scale_type: ScaleType::Single,
        scales_per_group: SCALES,
        has_min: HAS_MIN,
    };
    type Expanded = Self;
}

/// Initial values and factors of an input row's products with a group. If the weights' groups have one scale, the first
/// of two elements stands for the whole group.
#[derive(Clone, Copy, Default)]
#[repr(C)]
pub(crate) struct InputFactors {
    pub(super) scale: f32,
    /// Initial value of the products of each half, which cancels the weights' offset.
    pub(super) starts: [i32; 2],
    /// The scale times the sum of the row's integers, for each half.
    pub(super) scaled_sums: [f32; 2],
}

impl InputFactors {
    /// Factors from the sums of the integers of both halves.
    #[inline]
    pub(super) fn new(scale: f32, sums: [i32; 2], encoding: Encoding) -> Self {
        let sums = if encoding.scales_per_group == 2 { sums } else { [sums[0] + sums[1], 0] };
        Self {
            scale,
            starts: sums.map(|sum| sum.wrapping_mul(-encoding.offset)),
            scaled_sums: sums.map(|sum| scale * sum as f32),
        }
    }
}

const _: () = assert!(Expanded::<1, false>::GROUP_BYTES == PANEL * (GROUP + 4));
