//! The product with a packed matrix: quantises input rows if the format requires it, and divides rows and panels among
//! tasks. Knows no micro-kernel and no layout of a panel.

use std::mem;
use std::ops::Range;

use super::format::Format;
use super::integer_rows::{IntegerFormat, IntegerRows};
use super::output::{Output, PANEL, SIDE};
use super::{Linear, Part, floats};
use crate::isa::Isa;
use crate::op::RowWriter;
use crate::threads::{Memory, Pool};

/// Float rows that are multiplied by one panel after the other, so that they stay in the L2 cache.
const FLOAT_ROWS_AT_ONCE: usize = 192;
/// The same for quantised rows, in bytes.
const QUANTISED_BYTES_AT_ONCE: usize = 512 << 10;

/// Every block but the last has a multiple of this many rows.
const BLOCK_ROWS: usize = 32;

/// Rows that are multiplied by one of several matrices, which lie one after the other.
#[derive(Clone, Debug)]
pub(crate) struct RowGroup {
    /// Begins at a multiple of `GROUP_ROWS`.
    pub(crate) rows: Range<usize>,
    pub(crate) matrix: usize,
}

/// Bytes of weights that justify a task: groups are many, and have few rows.
const GROUP_TASK_BYTES: usize = 32 << 10;

/// Rows of two groups are never in one tile.
pub(crate) const GROUP_ROWS: usize = SIDE;

/// `out = x @ weight.T`, for as many rows as it is run with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Product {
    pub(crate) linear: Linear,
    /// [rows, `in_features`]
    pub(crate) x: *const u8,
    pub(crate) packed: *const u8,
    /// [rows, `out_features`]
    pub(crate) out: *mut u8,
    /// Bytes from one output row to the next.
    pub(crate) out_stride: usize,
}

// SAFETY: only `run` dereferences the pointers, and its caller guarantees them.
unsafe impl Send for Product {}
// SAFETY: as above; tasks write to outputs that no other task has.
unsafe impl Sync for Product {}

impl Product {
    /// # Safety
    ///
    /// x and out have `num_rows` rows, `packed` has the linear's `packed_bytes`, written by `Linear::pack`; nothing
    /// writes to x and `packed` during the call and nothing else touches out; this machine has `isa`.
    pub(crate) unsafe fn run(&self, num_rows: usize, isa: Isa, pool: &mut Pool) {
        // SAFETY: as the caller promises.
        unsafe { self.run_after(None, num_rows, isa, pool) };
    }

    /// Whether to take each row as soon as `writer` has written it.
    pub(crate) fn takes_rows_of(&self, writer: &dyn RowWriter) -> bool {
        let out = writer.out();
        let is_x = out.address == self.x.addr() && out.stride == self.linear.in_features;
        is_x && out.dtype == self.linear.dtype && self.linear.format != Format::Float
    }

    /// Run the writer of x, if one is given, and then this: each row is quantised on the thread that wrote it.
    ///
    /// # Safety
    ///
    /// See `run`, and for the writer's `write`; where one is given, this takes its rows.
    pub(crate) unsafe fn run_after(&self, writer: Option<&dyn RowWriter>, num_rows: usize, isa: Isa, pool: &mut Pool) {
        match self.linear.format {
            Format::Float => {
                self.run_parts(num_rows, FLOAT_ROWS_AT_ONCE, pool, &|part, output| {
                    // SAFETY: as the caller promises.
                    unsafe { self.multiply_floats(isa, &part, output) };
                });
            }
            // SAFETY: as the caller promises.
            Format::Int8(source) => unsafe { self.run_integers(source, writer, num_rows, isa, pool) },
            // SAFETY: as the caller promises.
            Format::Ggml(ggml_type) => unsafe { self.run_integers(ggml_type, writer, num_rows, isa, pool) },
        }
    }

    /// # Safety
    ///
    /// See `run_after`; the weights are of this format.
    unsafe fn run_integers<F: IntegerFormat>(
        &self,
        format: F,
        writer: Option<&dyn RowWriter>,
        num_rows: usize,
        isa: Isa,
        pool: &mut Pool,
    ) {
        let mut scratch = mem::take(&mut pool.scratch);
        let rows = IntegerRows::within(&mut scratch, format, &self.linear, self.x, num_rows);
        // SAFETY: as the caller promises; each row is taken once.
        let quantise = |row: usize| unsafe { rows.quantise_row(row, isa) };
        match writer {
            // A few rows are quantised by the calling thread.
            None => pool.run(num_rows.div_ceil(SIDE), &|side| {
                (side * SIDE..num_rows.min((side + 1) * SIDE)).for_each(quantise);
            }),
            // SAFETY: as the caller promises.
            Some(writer) => unsafe { writer.write(num_rows, isa, pool, &quantise) },
        }
        self.run_parts(num_rows, rows.at_once(QUANTISED_BYTES_AT_ONCE), pool, &|part, output| {
            // SAFETY: as the caller promises; the rows were just quantised.
            unsafe { rows.multiply(isa, &part, output) };
        });
        pool.scratch = scratch;
    }

    /// Multiply each group of rows by its matrix.
    ///
    /// # Safety
    ///
    /// See `run`, of the rows of the groups, and `packed` has all matrices that they name.
    pub(crate) unsafe fn run_groups(&self, groups: &[RowGroup], isa: Isa, pool: &mut Pool) {
        match self.linear.format {
            Format::Float => {
                self.run_group_parts(groups, FLOAT_ROWS_AT_ONCE, pool, &|part, output| {
                    // SAFETY: as the caller promises.
                    unsafe { self.multiply_floats(isa, &part, output) };
                });
            }
            // SAFETY: as the caller promises.
            Format::Int8(source) => unsafe { self.run_integer_groups(source, groups, isa, pool) },
            // SAFETY: as the caller promises.
            Format::Ggml(ggml_type) => unsafe { self.run_integer_groups(ggml_type, groups, isa, pool) },
        }
    }

    /// # Safety
    ///
    /// See `run_groups`; the weights are of this format.
    unsafe fn run_integer_groups<F: IntegerFormat>(&self, format: F, groups: &[RowGroup], isa: Isa, pool: &mut Pool) {
        let mut scratch = mem::take(&mut pool.scratch);
        let num_rows = groups.last().map_or(0, |group| group.rows.end);
        let rows = IntegerRows::within(&mut scratch, format, &self.linear, self.x, num_rows);
        pool.run(groups.len(), &|group| {
            for row in groups[group].rows.clone() {
                // SAFETY: as the caller promises; each row is in one group.
                unsafe { rows.quantise_row(row, isa) };
            }
            rows.clear_up_to_a_tile(groups[group].rows.end);
        });
        self.run_group_parts(groups, rows.at_once(QUANTISED_BYTES_AT_ONCE), pool, &|part, output| {
            // SAFETY: as the caller promises; the rows were just quantised.
            unsafe { rows.multiply(isa, &part, output) };
        });
        pool.scratch = scratch;
    }

    /// Call `run` once for each panel of the matrix of each group, and each block of its rows.
    fn run_group_parts(
        &self,
        groups: &[RowGroup],
        rows_at_once: usize,
        pool: &mut Pool,
        run: &(dyn Fn(Part, Output) + Sync),
    ) {
        let num_panels = self.linear.num_panels();
        let panels_a_task = (GROUP_TASK_BYTES / self.linear.panel_bytes()).clamp(1, num_panels);
        let tasks_a_block = num_panels.div_ceil(panels_a_task);
        let rows_at_once = rows_at_once.next_multiple_of(BLOCK_ROWS);
        let blocks = groups.iter().flat_map(|group| {
            let starts = group.rows.clone().step_by(rows_at_once);
            starts.map(|start| (start..group.rows.end.min(start + rows_at_once), group.matrix))
        });
        let blocks: Vec<_> = blocks.collect();
        pool.run(blocks.len() * tasks_a_block, &|task| {
            let ((rows, matrix), first) = (&blocks[task / tasks_a_block], task % tasks_a_block * panels_a_task);
            for panel in first..num_panels.min(first + panels_a_task) {
                // SAFETY: the matrices have this panel, and so have the outputs its columns.
                let (weights, output) = unsafe { (self.panel(matrix * num_panels + panel), self.output(panel)) };
                run(Part { rows: rows.clone(), panel: weights }, output);
            }
        });
    }

    /// The memory that tasks of a few rows read, a panel each.
    pub(crate) fn weights(&self) -> Memory {
        Memory { address: self.packed.addr(), part_bytes: self.linear.panel_bytes(), parts: self.linear.num_panels() }
    }

    /// Call `run` once for each panel and each block of rows.
    fn run_parts(&self, num_rows: usize, rows_at_once: usize, pool: &mut Pool, run: &(dyn Fn(Part, Output) + Sync)) {
        let (num_panels, num_blocks) = (self.linear.num_panels(), num_rows.div_ceil(rows_at_once));
        let block_rows = num_rows.div_ceil(num_blocks.max(1)).next_multiple_of(BLOCK_ROWS);
        pool.run(num_rows.div_ceil(block_rows.max(1)) * num_panels, &|task| {
            let (block, panel) = (task / num_panels, task % num_panels);
            let rows = block * block_rows..num_rows.min((block + 1) * block_rows);
            // SAFETY: the matrix has this panel, and so have the outputs its columns.
            let (panel, output) = unsafe { (self.panel(panel), self.output(panel)) };
            run(Part { rows, panel }, output);
        });
    }

    /// # Safety
    ///
    /// See `run`; the part and the output are some of its own.
    unsafe fn multiply_floats(&self, isa: Isa, part: &Part, output: Output) {
        // SAFETY: as the caller promises.
        unsafe { floats::multiply(&self.linear, isa, self.x, self.linear.in_bytes(), part, output) };
    }

    /// # Safety
    ///
    /// The matrix has the panel.
    unsafe fn panel(&self, panel: usize) -> *const u8 {
        // SAFETY: as the caller promises.
        unsafe { self.packed.add(panel * self.linear.panel_bytes()) }
    }

    /// # Safety
    ///
    /// The matrix has the panel.
    unsafe fn output(&self, panel: usize) -> Output {
        let Linear { dtype, out_features, .. } = self.linear;
        let column = panel * PANEL;
        // SAFETY: as the caller promises.
        let first = unsafe { self.out.add(column * dtype.bytes()) };
        Output { first, stride: self.out_stride, columns: PANEL.min(out_features - column), dtype }
    }
}
