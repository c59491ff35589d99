//! What one call of a micro-kernel computes: some quantised rows times one panel of integers.

use super::portable;
#[cfg(target_arch = "x86_64")]
use super::{amx, avx2, avx512};
use crate::isa::Isa;
use crate::linear::format::GROUP;
use crate::linear::output::{Output, SIDE};
use crate::linear::parts_of_sides;

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
    /// [rows / `SIDE`, `num_groups`, `SIDE`, `GROUP`]: what a tile of AMX takes lies in one piece.
    pub(super) integers: *const i8,
    /// [rows / `SIDE`, `num_groups`, `SIDE`]
    pub(super) factors: *const Factors,
    pub(super) num_groups: usize,
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

    /// Where a group of the first row lies; the same group of the next `SIDE - 1` rows is behind it.
    ///
    /// # Safety
    ///
    /// As for `multiply`; the rows have the group.
    #[inline]
    pub(super) unsafe fn group(&self, group: usize) -> *const i8 {
        // SAFETY: as the caller promises.
        unsafe { self.integers.add(group * SIDE * GROUP) }
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

    /// The rows from `start` on, `rows` of them.
    ///
    /// # Safety
    ///
    /// As for `multiply`; the tile has them.
    #[inline]
    pub(super) unsafe fn part(&self, start: usize, rows: usize) -> Self {
        let (side, within) = (start / SIDE * SIDE, start % SIDE);
        // SAFETY: as the caller promises.
        unsafe {
            Self {
                rows,
                integers: self.integers.add(side * self.num_groups * GROUP + within * GROUP),
                factors: self.factors.add(side * self.num_groups + within),
                output: self.output.rows_from(start),
                ..*self
            }
        }
    }
}
