//! `x @ weight.T` of weights that were packed once: floats, or integers by groups. Knows no tensor and no lock.
//!
//! An output element is one chain of operations that its row and its column alone decide: the number of rows beside it
//! and of threads change what is computed when, never the order within one.

#![expect(clippy::cast_ptr_alignment, reason = "what may lie anywhere is read as what may: `read_unaligned`, `loadu`")]
#![expect(clippy::cast_precision_loss, reason = "products of integers are rounded to float32 where it is said")]

mod floats;
mod format;
mod ggml;
mod int8;
mod integer_rows;
mod output;
mod rounding;
mod source;

use std::mem;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::dtype::DType;
use crate::isa::Isa;
use crate::op::RowWriter;
use crate::threads::{Memory, Pool};
pub(crate) use format::{Format, GgmlType, Int8Source};
use integer_rows::{IntegerFormat, IntegerRows};
use output::{Output, PANEL, SIDE};
use source::Content;
pub(crate) use source::{Row, Scales, Source, copy_rows, read_rows};

/// Float rows that are multiplied with one panel after the other, so that they stay in the second cache.
const FLOAT_ROWS_AT_ONCE: usize = 192;
/// The same of quantised rows, in bytes.
const QUANTISED_BYTES_AT_ONCE: usize = 512 << 10;

/// How far ahead of the integers in use memory is asked for more, in bytes. For few rows processors look ahead by
/// themselves, and a lone row reads 5 to 25 % less a second with 4096; with more rows between its reads they do not, and
/// 8 rows lose as much with 256.
#[cfg(target_arch = "x86_64")]
const fn ahead(rows: usize) -> usize {
    if rows < 4 { 256 } else { 4096 }
}

/// A block of rows is a multiple of it, but for the last.
const BLOCK_ROWS: usize = 32;

const MAX_FEATURES: usize = i32::MAX as usize;
/// So many products of numbers up to 127 and up to 128 fit in 31 bits.
const MAX_INT8_FEATURES: usize = 1 << 17;

/// A matrix as it lies packed: in panels of `PANEL` outputs, the last of which may end early.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Linear {
    pub(crate) format: Format,
    /// What inputs and outputs are made of.
    pub(crate) dtype: DType,
    /// A multiple of `GROUP` where the format has groups.
    pub(crate) in_features: usize,
    pub(crate) out_features: usize,
}

impl Linear {
    /// Whether there can be such a matrix; if not, why.
    pub(crate) fn check(&self) -> Result<(), String> {
        let Self { format, in_features, out_features, .. } = *self;
        if in_features == 0 || out_features == 0 || in_features.max(out_features) > MAX_FEATURES {
            return Err(format!(
                "a linear of {in_features} inputs and {out_features} outputs: each must be from 1 to {MAX_FEATURES}"
            ));
        }
        match format {
            Format::Int8(_) if in_features > MAX_INT8_FEATURES => {
                Err(format!("an int8 linear of {in_features} inputs: its sums are exact up to {MAX_INT8_FEATURES}"))
            }
            _ if !in_features.is_multiple_of(format.block_features()) => {
                let group = format.block_features();
                Err(format!("{in_features} inputs in groups of {group}: cut a matrix where a group ends"))
            }
            _ => Ok(()),
        }
    }

    pub(crate) fn packed_bytes(&self) -> usize {
        self.num_panels() * self.panel_bytes()
    }

    /// Bytes of an input row.
    pub(crate) fn in_bytes(&self) -> usize {
        self.in_features * self.dtype.bytes()
    }

    /// Pack the matrix from its rows. Gives back the first of them that has numbers that are not finite.
    ///
    /// # Errors
    ///
    /// The format cannot be made of a row's source.
    ///
    /// # Safety
    ///
    /// There are `out_features` rows, to which nothing writes during the call.
    pub(crate) unsafe fn pack(
        &self,
        rows: &[Row],
        packed: &mut [u8],
        pool: &mut Pool,
    ) -> Result<Option<usize>, String> {
        assert_eq!((rows.len(), packed.len()), (self.out_features, self.packed_bytes()));
        if let Some(row) = rows.iter().find(|row| !self.takes(row.source)) {
            return Err(format!("{self:?} cannot be packed from rows of {:?}", row.source));
        }
        let odd = AtomicUsize::new(usize::MAX);
        let panels: Vec<Mutex<&mut [u8]>> = packed.chunks_exact_mut(self.panel_bytes()).map(Mutex::new).collect();
        pool.run(panels.len(), &|index| {
            let mut panel = panels[index].lock().unwrap_or_else(PoisonError::into_inner);
            panel.fill(0);
            let first = index * PANEL;
            let columns = &rows[first..self.out_features.min(first + PANEL)];
            // SAFETY: as the caller promises.
            if let Some(column) = unsafe { self.pack_panel(columns, &mut panel) } {
                odd.fetch_min(first + column, Ordering::Relaxed);
            }
        });
        Ok(Some(odd.into_inner()).filter(|&row| row != usize::MAX))
    }

    /// Whether this can be packed from such rows.
    fn takes(&self, source: Source) -> bool {
        match self.format {
            Format::Float | Format::Int8(Int8Source::Elements) => true,
            Format::Int8(Int8Source::Q4_0) => source == Source::Ggml(GgmlType::Q4_0),
            Format::Int8(Int8Source::Q4_1) => source == Source::Ggml(GgmlType::Q4_1),
            Format::Ggml(format) => source == Source::Ggml(format),
        }
    }

    /// Pack rows as the columns of a panel that was all zeros. Gives back the first that is not finite.
    ///
    /// # Safety
    ///
    /// As for `pack`.
    unsafe fn pack_panel(&self, rows: &[Row], panel: &mut [u8]) -> Option<usize> {
        // SAFETY: as the caller promises.
        let rows: Vec<_> = rows.iter().map(|row| unsafe { row.content(self.in_features) }).collect();
        match self.format {
            Format::Ggml(format) => ggml::pack_panel(format, &rows, panel),
            Format::Float => floats::pack_panel(self, &rows, panel),
            Format::Int8(source) => {
                let mut numbers = vec![0.0; self.in_features];
                let mut odd = None;
                for (column, row) in rows.into_iter().enumerate() {
                    let Some(row) = row else { continue };
                    let is_finite = if source != Int8Source::Elements {
                        int8::pack_blocks(self, source, row.bytes, column, panel)
                    } else if let Some(scale) = row.only_scale() {
                        int8::pack_integers(row.bytes, scale, column, panel)
                    } else {
                        row.numbers(0, &mut numbers);
                        int8::pack_numbers(&numbers, column, panel)
                    };
                    if !is_finite {
                        odd = odd.or(Some(column));
                    }
                }
                odd
            }
        }
    }

    fn num_panels(&self) -> usize {
        self.out_features.div_ceil(PANEL)
    }

    fn panel_bytes(&self) -> usize {
        match self.format {
            Format::Float => floats::panel_bytes(self),
            Format::Int8(source) => int8::panel_bytes(self, source),
            Format::Ggml(format) => ggml::panel_bytes(self, format),
        }
    }
}

/// `out = x @ weight.T`, of as many rows as it is run with.
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

// SAFETY: the pointers are followed in `run` alone, whose caller answers for them.
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

    /// Whether a row that `writer` has just written is best taken at once.
    pub(crate) fn takes_rows_of(&self, writer: &dyn RowWriter) -> bool {
        let out = writer.out();
        let is_x = out.address == self.x.addr() && out.stride == self.linear.in_features;
        is_x && out.dtype == self.linear.dtype && self.linear.format != Format::Float
    }

    /// Run the writer of x, if one is given, and then this: each row is made into integers where it was written.
    ///
    /// # Safety
    ///
    /// As for `run`, and for the writer's `write`; where one is given, this takes its rows.
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
    /// As for `run_after`; the weights are of this format.
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
            // In the calling thread where they are few.
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

    /// What the tasks of a few rows read, a panel each.
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
    /// As for `run`; the part and the output are some of its own.
    unsafe fn multiply_floats(&self, isa: Isa, part: &Part, output: Output) {
        // SAFETY: as the caller promises.
        unsafe { floats::multiply(&self.linear, isa, self.x, part, output) };
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

/// Rows of the matrix as inputs would be, of as many indices as it is run with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lookup {
    pub(crate) linear: Linear,
    pub(crate) packed: *const u8,
    /// int32 [rows]
    pub(crate) indices: *const u8,
    /// [rows, `in_features`]
    pub(crate) out: *mut u8,
}

// SAFETY: the pointers are followed in `run` alone, whose caller answers for them.
unsafe impl Send for Lookup {}
// SAFETY: as above; tasks write to rows that no other task has.
unsafe impl Sync for Lookup {}

impl Lookup {
    const ROWS_A_TASK: usize = 16;

    /// Or give back the first index that the matrix has no row for, with nothing written.
    ///
    /// # Safety
    ///
    /// There are `num_rows` indices and rows of out, `packed` has the linear's `packed_bytes`, written by
    /// `Linear::pack`; nothing writes to what is read during the call and nothing else touches out.
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
    /// As for `run`; the matrix has the row that this row's index names.
    unsafe fn copy(&self, row: usize) {
        let (panel_bytes, row_bytes) = (self.linear.panel_bytes(), self.linear.in_bytes());
        // SAFETY: as the caller promises.
        let (panel, column, out) = unsafe {
            let index = self.indices.cast::<i32>().add(row).read_unaligned() as usize;
            let panel = std::slice::from_raw_parts(self.packed.add(index / PANEL * panel_bytes), panel_bytes);
            (panel, index % PANEL, std::slice::from_raw_parts_mut(self.out.add(row * row_bytes), row_bytes))
        };
        match self.linear.format {
            Format::Float => floats::unpack_column(panel, column, out),
            Format::Int8(source) => int8::unpack_column(&self.linear, source, panel, column, out),
            Format::Ggml(format) => ggml::unpack_column(&self.linear, format, panel, column, out),
        }
    }
}

/// What one task multiplies: some rows, and the start of one panel.
struct Part {
    rows: Range<usize>,
    panel: *const u8,
}

/// The fewest parts of at most `largest`, as equal as can be.
fn equal_parts(range: Range<usize>, largest: usize) -> impl Iterator<Item = Range<usize>> {
    let parts = range.len().div_ceil(largest);
    (0..parts).map(move |part| equal_part(range.clone(), part, parts))
}

fn equal_part(range: Range<usize>, part: usize, parts: usize) -> Range<usize> {
    let end = |part: usize| range.start + range.len() * part / parts;
    end(part)..end(part + 1)
}

/// A table of one micro-kernel for each number of rows.
macro_rules! for_rows {
    ($kernel:ident: $($rows:literal)*) => { [$($kernel::<$rows>),*] };
    ($kernel:ident<$weights:ident>: $($rows:literal)*) => { [$($kernel::<$weights, $rows>),*] };
}
use for_rows;

#[cfg(test)]
mod tests;
