//! Lookup of rows of a packed matrix by index, converted to elements. Knows no layout of a panel.

use super::format::Format;
use super::output::PANEL;
use super::{Linear, equal_part, floats, ggml, int8};
use crate::threads::Pool;

/// Writes rows of the matrix in the dtype of inputs, for as many indices as it is run with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lookup {
    pub(crate) linear: Linear,
    pub(crate) packed: *const u8,
    /// int32 [rows]
    pub(crate) indices: *const u8,
    /// [rows, `in_features`]
    pub(crate) out: *mut u8,
}

// SAFETY: only `run` dereferences the pointers, and its caller guarantees them.
unsafe impl Send for Lookup {}
// SAFETY: as above; tasks write to rows that no other task has.
unsafe impl Sync for Lookup {}

impl Lookup {
    const ROWS_A_TASK: usize = 16;

    /// Write the rows. If an index has no row, write nothing and return it.
    ///
    /// # Safety
    ///
    /// There are `num_rows` indices and rows of out, `packed` has the linear's `packed_bytes`, written by
    /// `Linear::pack`; nothing writes to its inputs during the call and nothing else touches out.
    pub(crate) unsafe fn run(&self, num_rows: usize, pool: &mut Pool) -> Result<(), i32> {
        // SAFETY: as the caller promises.
        let index = |row| unsafe { self.indices.cast::<i32>().add(row).read_unaligned() };
        let exists = |index: i32| usize::try_from(index).is_ok_and(|index| index < self.linear.out_features);
        if let Some(missing) = (0..num_rows).map(index).find(|&index| !exists(index)) {
            return Err(missing);
        }
        let num_tasks = num_rows.div_ceil(Self::ROWS_A_TASK);
        pool.run(num_tasks, &|task| {
            for row in equal_part(0..num_rows, task, num_tasks) {
                // SAFETY: as the caller promises; every index was found to be a row's.
                unsafe { self.copy(row) };
            }
        });
        Ok(())
    }

    /// # Safety
    ///
    /// See `run`; the matrix has the row that this row's index names.
    unsafe fn copy(&self, row: usize) {
        let (panel_bytes, row_bytes) = (self.linear.panel_bytes(), self.linear.in_bytes());
        // SAFETY: as the caller promises.
        let (panel, column, out) = unsafe {
            let index = self.indices.cast::<i32>().add(row).read_unaligned() as usize;
            let panel = std::slice::from_raw_parts(self.packed.add(index / PANEL * panel_bytes), panel_bytes);
            (panel, index % PANEL, std::slice::from_raw_parts_mut(self.out.add(row * row_bytes), row_bytes))
        };
        match self.linear.format {
            Format::Float => floats::unpack_column(self.linear.dtype, panel, column, out),
            Format::Int8(source) => int8::unpack_column(&self.linear, source, panel, column, out),
            Format::Ggml(format) => ggml::unpack_column(&self.linear, format, panel, column, out),
        }
    }
}
