//! What the micro-kernels of these formats know of rows and panels when they are compiled.

use crate::linear::format::{Encoding, GROUP, GgmlType, ScaleType};
use crate::linear::integer_rows;
use crate::linear::output::PANEL;

pub(super) type Tile = integer_rows::Tile<GgmlType>;

/// What a micro-kernel must know of a panel's weights when it is compiled.
pub(super) trait Weights {
    const ENCODING: Encoding;
    const GROUP_BYTES: usize = Self::ENCODING.group_bytes();
    const INTEGER_BYTES: usize = Self::ENCODING.integer_bytes();
    const SUPER_BYTES: usize = Self::ENCODING.super_bytes();
    const IN_SUPER_BLOCKS: bool = matches!(Self::ENCODING.scale_type, ScaleType::SuperBlock);
    const HAS_MIN: bool = Self::ENCODING.has_min;
    /// Each half of a group has a scale, and a minimum, of its own.
    const HALVES: bool = Self::ENCODING.scales_per_group == 2;
    /// What these weights are once they are expanded.
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

/// Integers of 8 bits without a sign, and scales and minimums of float32: made from any other, for many rows.
pub(super) struct Expanded<const SCALES: usize, const HAS_MIN: bool>;

impl<const SCALES: usize, const HAS_MIN: bool> Weights for Expanded<SCALES, HAS_MIN> {
    const ENCODING: Encoding = Encoding {
        bits: 8,
        codebook: None,
        offset: 0,
        scale_type: ScaleType::Single,
        scales_per_group: SCALES,
        has_min: HAS_MIN,
    };
    type Expanded = Self;
}

/// What the products of a group of an input row begin with and are scaled with. Where the weights' groups have one scale,
/// the first of two stands for the whole group.
#[derive(Clone, Copy, Default)]
#[repr(C)]
pub(crate) struct InputFactors {
    pub(super) scale: f32,
    /// What the products of each half begin with, so that the weights' offset is gone in the end.
    pub(super) starts: [i32; 2],
    /// The scale times the sum of the row's integers of each half.
    pub(super) scaled_sums: [f32; 2],
}

impl InputFactors {
    /// Of the sums of the integers of both halves.
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
