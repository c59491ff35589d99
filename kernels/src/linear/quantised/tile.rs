//! What one call of a micro-kernel computes: some quantised rows times one panel of integers.

use super::portable;
#[cfg(target_arch = "x86_64")]
use super::{amx, avx2, avx512};
use crate::isa::Isa;
use crate::linear::equal_parts;
use crate::linear::format::GROUP;
use crate::linear::output::{Output, PANEL};

/// Rows that lie side by side: a tile of AMX.
pub(super) const SIDE: usize = 16;
/// Features that lie side by side in a panel.
pub(super) const STEP_FEATURES: usize = 4;
/// Bytes of a step's integers, of 8 bits each.
pub(super) const STEP_BYTES: usize = PANEL * STEP_FEATURES;

/// What a micro-kernel must know of a format when it is compiled.
pub(super) trait Weights {
    /// Two integers a byte.
    const NIBBLES: bool;
    /// A row is one group; its scale is a float32.
    const ONE_GROUP: bool;
    const HAS_MIN: bool;
    /// Features of a row that lie side by side.
    const CHUNK: usize = if Self::ONE_GROUP { INT8_CHUNK } else { GROUP };
}

/// The deepest tile of AMX.
pub(super) const INT8_CHUNK: usize = 64;

macro_rules! weights {
    ($name:ident: $nibbles:literal $one_group:literal $has_min:literal) => {
        pub(super) struct $name;

        impl Weights for $name {
            const NIBBLES: bool = $nibbles;
            const ONE_GROUP: bool = $one_group;
            const HAS_MIN: bool = $has_min;
        }
    };
}

weights!(Int8: false true false);
weights!(Q8_0: false false false);
weights!(Q4_0: true false false);
weights!(Q4_1: true false true);

/// What the product of a group of an input row is scaled with.
#[derive(Clone, Copy, Default)]
#[repr(C)]
pub(super) struct Factors {
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

pub(super) struct Tile {
    pub(super) rows: usize,
    /// [rows / `SIDE`, features / chunk, `SIDE`, chunk]: what a tile of AMX takes lies in one piece.
    pub(super) integers: *const i8,
    /// [rows / `SIDE`, `num_groups`, `SIDE`]
    pub(super) factors: *const Factors,
    /// 1 where the format has one group.
    pub(super) num_groups: usize,
    pub(super) group_features: usize,
    /// The panel.
    pub(super) weights: *const u8,
    /// Begins at the first of the rows.
    pub(super) output: Output,
}

impl Tile {
    /// # Safety
    ///
    /// Every row, group and column that the tile names is there, the rows up to a multiple of `SIDE` can be read, the
    /// panel is of this format, nothing else touches the output, and this machine has `isa`.
    pub(super) unsafe fn multiply<W: Weights>(&self, isa: Isa) {
        // SAFETY: as the caller promises.
        unsafe {
            match isa {
                #[cfg(target_arch = "x86_64")]
                Isa::Amx => amx::multiply::<W>(self),
                #[cfg(target_arch = "x86_64")]
                Isa::Avx512 | Isa::Avx512Bf16 => avx512::multiply::<W>(self),
                #[cfg(target_arch = "x86_64")]
                Isa::Avx2 => avx2::multiply::<W>(self),
                _ => portable::multiply::<W>(self),
            }
        }
    }

    /// Where a chunk of the first row lies; the same chunk of the next `SIDE - 1` rows is behind it.
    ///
    /// # Safety
    ///
    /// As for `multiply`; the rows have the chunk.
    #[inline]
    pub(super) unsafe fn chunk<W: Weights>(&self, chunk: usize) -> *const i8 {
        // SAFETY: as the caller promises.
        unsafe { self.integers.add(chunk * SIDE * W::CHUNK) }
    }

    /// Where a group's factors of the first row lie; those of the next `SIDE - 1` rows are behind it.
    ///
    /// # Safety
    ///
    /// As for `multiply`; the rows have the group.
    #[inline]
    pub(super) unsafe fn factors(&self, group: usize) -> *const Factors {
        // SAFETY: as the caller promises.
        unsafe { self.factors.add(group * SIDE) }
    }

    /// How many chunks a group has.
    #[inline]
    pub(super) fn chunks_a_group<W: Weights>(&self) -> usize {
        if W::ONE_GROUP { self.group_features / W::CHUNK } else { 1 }
    }

    /// The rows in parts of at most `largest`, none of which has rows on both sides of a multiple of `SIDE`.
    ///
    /// # Safety
    ///
    /// As for `multiply`.
    #[inline]
    pub(super) unsafe fn parts<W: Weights>(&self, largest: usize) -> impl Iterator<Item = Self> {
        (0..self.rows).step_by(SIDE).flat_map(move |side| {
            let rows = equal_parts(side..self.rows.min(side + SIDE), largest);
            // SAFETY: as the caller promises; these are rows of the tile.
            rows.map(|rows| unsafe { self.part::<W>(rows.start, rows.len()) })
        })
    }

    /// The rows from `start` on, `rows` of them.
    ///
    /// # Safety
    ///
    /// As for `multiply`; the tile has them.
    #[inline]
    pub(super) unsafe fn part<W: Weights>(&self, start: usize, rows: usize) -> Self {
        let (side, within) = (start / SIDE * SIDE, start % SIDE);
        // SAFETY: as the caller promises.
        unsafe {
            Self {
                rows,
                integers: self.integers.add(side * self.num_groups * self.group_features + within * W::CHUNK),
                factors: self.factors.add(side * self.num_groups + within),
                output: self.output.rows_from(start),
                ..*self
            }
        }
    }
}
