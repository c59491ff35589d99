//! Small products of matrices in float32. Knows nothing of attention.
#![expect(clippy::inline_always, reason = "see `Vector`")]

use crate::attention::TILE;
use crate::vector::{LANES, Vector};

/// Maximum number of vectors of columns: a tile's positions.
pub(super) const VECTORS: usize = TILE / LANES;

/// `out = left @ right`, or `out += left @ right`, of a few rows and up to four vectors of columns: an output is summed
/// up in order, in a register.
#[derive(Clone, Copy)]
pub(super) struct Product {
    pub(super) left: *const f32,
    pub(super) left_stride: usize,
    pub(super) right: *const f32,
    pub(super) right_stride: usize,
    pub(super) out: *mut f32,
    pub(super) out_stride: usize,
    pub(super) depth: usize,
    pub(super) add: bool,
}

impl Product {
    /// # Safety
    ///
    /// See `Kernel::run`; the matrices are valid.
    #[inline(always)]
    pub(super) unsafe fn compute<V: Vector, const ROWS: usize>(&self, vectors: usize) {
        let at_once = (V::ACCUMULATORS / ROWS).clamp(1, VECTORS);
        for first in (0..vectors).step_by(at_once) {
            // SAFETY: as the caller promises.
            unsafe {
                let at = first * LANES;
                let part = Self { right: self.right.add(at), out: self.out.add(at), ..*self };
                // The guards are constants: no kernel is compiled whose sums would leave the registers.
                match (vectors - first).min(at_once) {
                    1 => part.compute_vectors::<V, ROWS, 1>(),
                    2 if at_once >= 2 => part.compute_vectors::<V, ROWS, 2>(),
                    3 if at_once >= 3 => part.compute_vectors::<V, ROWS, 3>(),
                    _ => part.compute_vectors::<V, ROWS, VECTORS>(),
                }
            }
        }
    }

    /// # Safety
    ///
    /// See `compute`.
    #[inline(always)]
    unsafe fn compute_vectors<V: Vector, const ROWS: usize, const COUNT: usize>(&self) {
        let Self { left, left_stride, right, right_stride, out, out_stride, depth, add } = *self;
        // SAFETY: as the caller promises.
        unsafe {
            let mut sums = [[V::splat(0.0); COUNT]; ROWS];
            if add {
                for (row, sums) in sums.iter_mut().enumerate() {
                    for (column, sum) in sums.iter_mut().enumerate() {
                        *sum = V::load(out.add(row * out_stride + column * LANES));
                    }
                }
            }
            for step in 0..depth {
                let mut columns = [V::splat(0.0); COUNT];
                for (index, column) in columns.iter_mut().enumerate() {
                    *column = V::load(right.add(step * right_stride + index * LANES));
                }
                for (row, sums) in sums.iter_mut().enumerate() {
                    let factor = V::splat(*left.add(row * left_stride + step));
                    for (sum, &column) in sums.iter_mut().zip(&columns) {
                        *sum = factor.mul_add(column, *sum);
                    }
                }
            }
            for (row, sums) in sums.iter().enumerate() {
                for (column, sum) in sums.iter().enumerate() {
                    sum.store(out.add(row * out_stride + column * LANES));
                }
            }
        }
    }
}
