//! What one call of a micro-kernel computes: some quantised rows times one panel of integers.

use super::portable;
#[cfg(target_arch = "x86_64")]
use super::{avx2, avx512};
use crate::isa::Isa;
use crate::linear::output::{Output, PANEL};

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
}

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
#[derive(Clone, Copy)]
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
    /// [rows, `num_groups`, `group_features`]
    pub(super) integers: *const i8,
    /// [rows, `num_groups`]
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
    /// Every row, group and column that the tile names is there, the panel is of this format, nothing else touches the
    /// output, and this machine has `isa`.
    pub(super) unsafe fn multiply<W: Weights>(&self, isa: Isa) {
        // SAFETY: as the caller promises.
        unsafe {
            match isa {
                #[cfg(target_arch = "x86_64")]
                Isa::Avx512 | Isa::Avx512Bf16 | Isa::Amx => avx512::multiply::<W>(self),
                #[cfg(target_arch = "x86_64")]
                Isa::Avx2 => avx2::multiply::<W>(self),
                _ => portable::multiply::<W>(self),
            }
        }
    }

    /// The next features of a row, from `feature` on.
    ///
    /// # Safety
    ///
    /// As for `multiply`; the row has them.
    #[inline]
    pub(super) unsafe fn step(&self, row: usize, feature: usize) -> i32 {
        // SAFETY: as the caller promises.
        unsafe { self.integers.add(row * self.row_features() + feature).cast::<i32>().read_unaligned() }
    }

    /// # Safety
    ///
    /// As for `multiply`; the row has the group.
    #[inline]
    pub(super) unsafe fn factors(&self, row: usize, group: usize) -> Factors {
        // SAFETY: as the caller promises.
        unsafe { self.factors.add(row * self.num_groups + group).read() }
    }

    #[inline]
    pub(super) fn row_features(&self) -> usize {
        self.num_groups * self.group_features
    }

    /// The rows from `start` on, `rows` of them.
    ///
    /// # Safety
    ///
    /// The tile has them.
    #[inline]
    pub(super) unsafe fn part(&self, start: usize, rows: usize) -> Self {
        // SAFETY: as the caller promises.
        unsafe {
            Self {
                rows,
                integers: self.integers.add(start * self.row_features()),
                factors: self.factors.add(start * self.num_groups),
                output: self.output.from_row(start),
                ..*self
            }
        }
    }
}
