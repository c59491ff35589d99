//! Compile-time properties of rows and panels for the micro-kernels of this format.

use crate::linear::format::Int8Source;
use crate::linear::integer_rows;

/// Contiguous features of a row: the deepest tile of AMX.
pub(super) const CHUNK: usize = 64;
/// The planes of high and of low integers.
pub(super) const PLANES: usize = 2;

pub(super) type Tile = integer_rows::Tile<Int8Source>;

/// The layout of a panel's integers.
pub(super) trait Weights {
    /// Whether they are 4-bit integers, to be widened to 8.
    const NIBBLES: bool;
}

pub(super) struct Bytes;
pub(super) struct Nibbles;

impl Weights for Bytes {
    const NIBBLES: bool = false;
}

impl Weights for Nibbles {
    const NIBBLES: bool = true;
}

/// Initial values and factors of an input row's products.
#[derive(Clone, Copy, Default)]
#[repr(C)]
pub(crate) struct InputFactors {
    pub(super) scale: f32,
    /// Initial values of each plane, which cancel the weights' offset.
    pub(super) starts: [i32; PLANES],
}

#[derive(Clone, Copy)]
pub(crate) struct Panel {
    pub(super) integers: *const u8,
    /// float32 [`PANEL`]
    pub(super) scales: *const u8,
}
