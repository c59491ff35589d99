//! What the micro-kernels of this format know of rows and panels when they are compiled.

use crate::linear::format::Int8Source;
use crate::linear::integer_rows;

/// Features of a row that lie side by side: the deepest tile of AMX.
pub(super) const CHUNK: usize = 64;
/// The high integers, and the low ones.
pub(super) const PLANES: usize = 2;

pub(super) type Tile = integer_rows::Tile<Int8Source>;

/// How a panel's integers lie.
pub(super) trait Weights {
    /// In 4 bits, to be made into 8.
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

/// What the products of an input row begin with and are scaled with.
#[derive(Clone, Copy, Default)]
#[repr(C)]
pub(crate) struct InputFactors {
    pub(super) scale: f32,
    /// So that the weights' offset is gone in the end, of each plane.
    pub(super) starts: [i32; PLANES],
}

#[derive(Clone, Copy)]
pub(crate) struct Panel {
    pub(super) integers: *const u8,
    /// float32 [`PANEL`]
    pub(super) scales: *const u8,
}
