//! What every op is: pointers and sizes that were checked when it was made, and that can be run again and again on what
//! they point to. Knows no op in particular.

pub(crate) mod times;

use std::fmt;
use std::ops::Range;

use crate::dtype::DType;
use crate::isa::Isa;
use crate::threads::{Memory, Pool};
use crate::vector::{self, Kernel};

/// Fewer elements than this are not worth another thread.
const ELEMENTS_A_TASK: usize = 16 << 10;

/// How much of what the ops of a step point to is there this time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Extent {
    /// Rows of every tensor whose first dimension is the step's tokens.
    pub(crate) tokens: usize,
    /// Sequences.
    pub(crate) rows: usize,
}

/// Something to compute, at addresses that stay.
pub(crate) trait Op: Send + Sync {
    /// What Python calls it: the name of its function in `_cpu.pyi`, or of a matrix' in `pyllm_kernels`.
    fn name(&self) -> &'static str;

    /// The most that there is room for.
    fn capacity(&self) -> Extent;

    /// # Safety
    ///
    /// The extent is within the capacity, what the op points to is there, nothing else touches it during the call, and
    /// the machine has `isa`.
    unsafe fn run(&self, extent: Extent, isa: Isa, pool: &mut Pool) -> Result<(), OutOfRange>;

    /// Itself, where its result is rows that are each written at once.
    fn as_row_writer(&self) -> Option<&dyn RowWriter> {
        None
    }

    /// Whether it is faster to run the writer of its input together with it, by `run_after`.
    fn takes_rows_of(&self, _writer: &dyn RowWriter) -> bool {
        false
    }

    /// Run the writer of its input, then itself.
    ///
    /// # Safety
    ///
    /// As for `run`, and for the writer's `write`.
    unsafe fn run_after(
        &self,
        writer: &dyn RowWriter,
        extent: Extent,
        isa: Isa,
        pool: &mut Pool,
    ) -> Result<(), OutOfRange> {
        // SAFETY: as the caller promises.
        unsafe {
            writer.write(extent.tokens, isa, pool, &|_| {});
            self.run(extent, isa, pool)
        }
    }

    /// Memory worth bringing before the op runs, as its tasks will read it.
    fn weights(&self) -> Option<Memory> {
        None
    }
}

/// What writes a row of its result at once, so that what reads it can begin with it while it is near.
pub(crate) trait RowWriter {
    /// The result.
    fn out(&self) -> Matrix;

    /// Write the rows of so many tokens, and call `then` with each, on the thread that wrote it.
    ///
    /// # Safety
    ///
    /// As for `Op::run`.
    unsafe fn write(&self, num_tokens: usize, isa: Isa, pool: &mut Pool, then: &(dyn Fn(usize) + Sync));
}

/// A number in a tensor of indices that names nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OutOfRange {
    /// Which tensor, where the number stands in it, and the least and the greatest that it may be.
    Index {
        what: &'static str,
        index: usize,
        number: i64,
        from: i64,
        to: i64,
    },
    Row {
        number: i32,
        num_rows: usize,
    },
}

impl fmt::Display for OutOfRange {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Index { what, index, number, from, to } => {
                write!(formatter, "{what} {index} is {number}: it must be from {from} to {to}")
            }
            Self::Row { number, num_rows } => write!(formatter, "row {number} of a matrix of {num_rows} rows"),
        }
    }
}

/// See that every number is one of `allowed`.
pub(crate) fn check_range(what: &'static str, numbers: &[i32], allowed: Range<i64>) -> Result<(), OutOfRange> {
    let fits = |&number: &i32| allowed.contains(&i64::from(number));
    // All of them first, which takes no branch a number.
    if numbers.iter().fold(true, |all, number| all & fits(number)) {
        return Ok(());
    }
    let wrong = numbers.iter().enumerate().find(|(_, number)| !fits(number));
    wrong.map_or(Ok(()), |(index, &number)| {
        Err(OutOfRange::Index { what, index, number: number.into(), from: allowed.start, to: allowed.end - 1 })
    })
}

/// A matrix somewhere in memory, its rows contiguous.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Matrix {
    pub(crate) dtype: DType,
    pub(crate) address: usize,
    /// Elements from one row to the next.
    pub(crate) stride: usize,
}

impl Matrix {
    /// Where a row begins.
    pub(crate) fn row<T>(&self, row: usize) -> *mut T {
        std::ptr::with_exposed_provenance_mut::<T>(self.address).wrapping_add(row * self.stride)
    }
}

/// Numbers that say where something is, at an address that stays.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Indices(pub(crate) usize);

impl Indices {
    /// # Safety
    ///
    /// So many int32 are there, and nothing writes to them while the slice lives.
    pub(crate) unsafe fn first<'a>(self, count: usize) -> &'a [i32] {
        if count == 0 {
            return &[]; // torch gives an empty tensor a null pointer
        }
        // SAFETY: as the caller promises.
        unsafe { std::slice::from_raw_parts(std::ptr::with_exposed_provenance(self.0), count) }
    }
}

/// Run a kernel whose parts are rows of `width` elements: side by side where they are many, else by this thread alone.
/// `then` is called with each row that is done.
///
/// # Safety
///
/// As for `Kernel::run`, for every row; the machine has `isa`.
pub(crate) unsafe fn run_rows<K: Kernel>(
    kernel: &K,
    num_rows: usize,
    width: usize,
    isa: Isa,
    pool: &mut Pool,
    then: &(dyn Fn(usize) + Sync),
) {
    let rows_a_task = (ELEMENTS_A_TASK / width.max(1)).clamp(1, num_rows.div_ceil(pool.num_threads()).max(1));
    pool.run(num_rows.div_ceil(rows_a_task), &|task| {
        for row in task * rows_a_task..((task + 1) * rows_a_task).min(num_rows) {
            // SAFETY: as the caller promises.
            unsafe { vector::run(isa, kernel, row) };
            then(row);
        }
    });
}
