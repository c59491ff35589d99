//! The product of each head of a row with its own matrix of floats. Knows no attention.

use std::ops::Range;
use std::ptr::with_exposed_provenance;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use super::output::{Output, PANEL};
use super::{Format, Linear, Part, floats};
use crate::arrays::Array;
use crate::isa::Isa;
use crate::op::{Extent, Matrix, Op, OutOfRange};
use crate::threads::Pool;

/// Rows that are multiplied by one panel after the other, so that they stay in the L2 cache.
const ROWS_AT_ONCE: usize = 192;
/// Bytes of weights that justify a task: heads are many, and their matrices are small.
const TASK_BYTES: usize = 32 << 10;

/// `out[head] = x[head][first..] @ weight[head].T` for each head of each row; what comes before may be kept.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HeadProducts {
    tokens: usize,
    heads: usize,
    /// The matrix of one head: all are packed one after the other.
    linear: Linear,
    packed: usize,
    /// Numbers of a head before those that are multiplied.
    first: usize,
    /// Numbers of these that begin a head of the result: all or none.
    kept: usize,
    /// A row is a token: its heads, one after the other. Both are of the linear's dtype.
    x: Matrix,
    out: Matrix,
}

impl HeadProducts {
    /// The product of the matrix of all heads, at an address, with x `[tokens, heads, first + in_features]`, in out `[tokens, heads, kept + out_features]`.
    pub(super) fn of(whole: Linear, packed: usize, x: &Array, out: &Array) -> PyResult<Self> {
        let of_x @ [tokens, heads, size] = x.dimensions("x")?;
        let [_, _, width] = out.dimensions("out")?;
        let Some(linear) = whole.split(heads).filter(|linear| linear.format == Format::Float) else {
            return Err(PyValueError::new_err(format!(
                "{} outputs of {} are not those of {heads} heads: give floats, and each head a multiple of {PANEL}",
                whole.out_features,
                whole.format_name()
            )));
        };
        let first = size.checked_sub(linear.in_features).ok_or_else(|| {
            PyValueError::new_err(format!("heads of {size} numbers, and matrices that take {}", linear.in_features))
        })?;
        let kept = if width == linear.out_features { 0 } else { first };
        Ok(Self {
            tokens,
            heads,
            linear,
            packed,
            first,
            kept,
            x: x.heads("x", linear.dtype, of_x)?,
            out: out.heads("out", linear.dtype, [tokens, heads, kept + linear.out_features])?,
        })
    }

    /// Copy what is kept of a row's head.
    ///
    /// # Safety
    ///
    /// See `Op::run`; the row and the head exist.
    unsafe fn keep(&self, row: usize, head: usize) {
        let bytes = self.linear.dtype.bytes();
        let from = address(&self.x, row, head * (self.first + self.linear.in_features), bytes);
        let to = address(&self.out, row, head * (self.kept + self.linear.out_features), bytes);
        // SAFETY: as the caller promises.
        unsafe { std::ptr::copy_nonoverlapping(from, to, self.kept * bytes) };
    }

    /// Multiply some rows of a head by one panel of its matrix.
    ///
    /// # Safety
    ///
    /// See `keep`; the rows and the panel exist, and this machine has `isa`.
    unsafe fn multiply(&self, rows: Range<usize>, head: usize, panel: usize, isa: Isa) {
        let Linear { dtype, in_features, out_features, .. } = self.linear;
        let x = address(&self.x, 0, head * (self.first + in_features) + self.first, dtype.bytes());
        let column = head * (self.kept + out_features) + self.kept + panel * PANEL;
        let output = Output {
            first: address(&self.out, 0, column, dtype.bytes()),
            stride: self.out.stride * dtype.bytes(),
            columns: PANEL,
            dtype,
        };
        let offset = (head * self.linear.num_panels() + panel) * self.linear.panel_bytes();
        let part = Part { rows, panel: with_exposed_provenance::<u8>(self.packed).wrapping_add(offset) };
        // SAFETY: as the caller promises.
        unsafe { floats::multiply(&self.linear, isa, x, self.x.stride * dtype.bytes(), &part, output) };
    }
}

/// The address of an element of a matrix.
fn address(matrix: &Matrix, row: usize, column: usize, element_bytes: usize) -> *mut u8 {
    matrix.row::<u8>(row * element_bytes).wrapping_add(column * element_bytes)
}

impl Op for HeadProducts {
    fn name(&self) -> &'static str {
        "head_products"
    }

    fn capacity(&self) -> Extent {
        Extent { tokens: self.tokens, rows: usize::MAX }
    }

    unsafe fn run(&self, extent: Extent, isa: Isa, pool: &mut Pool) -> Result<(), OutOfRange> {
        let num_panels = self.linear.num_panels();
        let panels_a_task = (TASK_BYTES / self.linear.panel_bytes()).clamp(1, num_panels);
        let tasks_a_head = num_panels.div_ceil(panels_a_task);
        let tasks_a_block = self.heads * tasks_a_head;
        pool.run(extent.tokens.div_ceil(ROWS_AT_ONCE) * tasks_a_block, &|task| {
            let (block, task) = (task / tasks_a_block, task % tasks_a_block);
            let (head, first_panel) = (task / tasks_a_head, task % tasks_a_head * panels_a_task);
            let rows = block * ROWS_AT_ONCE..extent.tokens.min((block + 1) * ROWS_AT_ONCE);
            // SAFETY: as the caller promises; a task writes rows and columns that no other task has.
            unsafe {
                for panel in first_panel..num_panels.min(first_panel + panels_a_task) {
                    self.multiply(rows.clone(), head, panel, isa);
                }
                if first_panel == 0 {
                    rows.for_each(|row| self.keep(row, head));
                }
            }
        });
        Ok(())
    }
}
