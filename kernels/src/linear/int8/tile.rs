//! What one call of a micro-kernel computes: some rows in two planes, times one panel of integers.

#[cfg(target_arch = "x86_64")]
use super::{amx, avx2, avx512};
use super::{nibbles, portable};
use crate::isa::Isa;
use crate::linear::output::{Output, SIDE};
use crate::linear::parts_of_sides;

/// Features of a row that lie side by side: the deepest tile of AMX.
pub(super) const CHUNK: usize = 64;
/// The high integers, and the low ones.
pub(super) const PLANES: usize = 2;

/// How a panel's integers lie, which a micro-kernel must know when it is compiled.
pub(super) trait Storage {
    /// In 4 bits, to be made into 8.
    const NIBBLES: bool;
}

pub(super) struct Bytes;
pub(super) struct Nibbles;

impl Storage for Bytes {
    const NIBBLES: bool = false;
}

impl Storage for Nibbles {
    const NIBBLES: bool = true;
}

/// What the products of an input row begin with and are scaled with.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct Factors {
    pub(super) scale: f32,
    /// So that the weights' offset is gone in the end, of each plane.
    pub(super) starts: [i32; PLANES],
}

pub(super) struct Tile {
    pub(super) rows: usize,
    /// [rows / `SIDE`, `num_chunks`, `PLANES`, `SIDE`, `CHUNK`]: what a tile of AMX takes lies in one piece.
    pub(super) integers: *const i8,
    /// [rows]
    pub(super) factors: *const Factors,
    pub(super) num_chunks: usize,
    /// The panel's integers.
    pub(super) weights: *const u8,
    /// float32 [`PANEL`]
    pub(super) scales: *const u8,
    /// Begins at the first of the rows.
    pub(super) output: Output,
}

impl Tile {
    /// # Safety
    ///
    /// Every row, chunk and column that the tile names is there, the rows up to a multiple of `SIDE` can be read, the
    /// panel is so stored, nothing else touches the output, and this machine has `isa`.
    pub(super) unsafe fn multiply<S: Storage>(&self, isa: Isa) {
        // SAFETY: as the caller promises.
        unsafe {
            match isa {
                #[cfg(target_arch = "x86_64")]
                Isa::Amx if self.rows >= amx::LEAST_ROWS => amx::multiply::<S>(self),
                #[cfg(target_arch = "x86_64")]
                Isa::Avx512 | Isa::Avx512Bf16 | Isa::Amx => avx512::multiply::<S>(self),
                #[cfg(target_arch = "x86_64")]
                Isa::Avx2 => self.in_bytes::<S>(isa, |tile| avx2::multiply(tile)),
                _ => self.in_bytes::<S>(isa, |tile| portable::multiply(tile)),
            }
        }
    }

    /// Where a plane of a chunk of the first row lies; the same of the next `SIDE - 1` rows is behind it.
    ///
    /// # Safety
    ///
    /// As for `multiply`; the rows have the chunk.
    #[inline]
    pub(super) unsafe fn chunk(&self, chunk: usize, plane: usize) -> *const i8 {
        // SAFETY: as the caller promises.
        unsafe { self.integers.add((chunk * PLANES + plane) * SIDE * CHUNK) }
    }

    /// The rows in parts of at most `largest`, none of which has rows on both sides of a multiple of `SIDE`.
    ///
    /// # Safety
    ///
    /// As for `multiply`.
    #[inline]
    pub(super) unsafe fn parts(&self, largest: usize) -> impl Iterator<Item = Self> {
        // SAFETY: as the caller promises; these are rows of the tile.
        parts_of_sides(self.rows, largest).map(|rows| unsafe { self.part(rows.start, rows.len()) })
    }

    /// # Safety
    ///
    /// As for `multiply`; the tile has the rows from `start` on, `rows` of them.
    #[inline]
    unsafe fn part(&self, start: usize, rows: usize) -> Self {
        let (side, within) = (start / SIDE * SIDE, start % SIDE);
        // SAFETY: as the caller promises.
        unsafe {
            Self {
                rows,
                integers: self.integers.add(side * self.num_chunks * PLANES * CHUNK + within * CHUNK),
                factors: self.factors.add(start),
                output: self.output.rows_from(start),
                ..*self
            }
        }
    }

    /// Call `run` with the tile as if its integers had always been bytes.
    ///
    /// # Safety
    ///
    /// As for `multiply`.
    pub(super) unsafe fn in_bytes<S: Storage>(&self, isa: Isa, run: impl FnOnce(&Self)) {
        if !S::NIBBLES {
            return run(self);
        }
        // SAFETY: as the caller promises.
        let panel = unsafe { std::slice::from_raw_parts(self.weights, nibbles::panel_bytes(self.num_chunks)) };
        nibbles::with_bytes(isa, panel, |bytes| run(&Self { weights: bytes.as_ptr(), ..*self }));
    }
}
