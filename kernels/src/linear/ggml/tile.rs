//! What the micro-kernels of these formats know of rows and panels when they are compiled.

use crate::linear::format::GgmlType;
use crate::linear::integer_rows;

pub(super) type Tile = integer_rows::Tile<GgmlType>;

/// What a micro-kernel must know of a format when it is compiled.
pub(super) trait Weights {
    /// Two integers a byte.
    const NIBBLES: bool;
    const HAS_MIN: bool;
}

macro_rules! weights {
    ($name:ident: $nibbles:literal $has_min:literal) => {
        pub(super) struct $name;

        impl Weights for $name {
            const NIBBLES: bool = $nibbles;
            const HAS_MIN: bool = $has_min;
        }
    };
}

weights!(Q8_0: false false);
weights!(Q4_0: true false);
weights!(Q4_1: true true);

/// What the product of a group of an input row is scaled with.
#[derive(Clone, Copy, Default)]
#[repr(C)]
pub(crate) struct Factors {
    pub(super) scale: f32,
    /// What the product begins with, so that the weights' offset is gone in the end.
    pub(super) start: i32,
    /// The scale times the sum of the row's integers.
    pub(super) scaled_sum: f32,
}

impl Factors {
    #[inline]
    pub(super) fn new(scale: f32, sum: i32, offset: i32) -> Self {
        Self { scale, start: sum.wrapping_mul(-offset), scaled_sum: scale * sum as f32 }
    }
}
