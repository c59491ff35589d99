//! The common interface of ops: pointers and sizes, checked at construction, which can be run many times on the same
//! memory. Knows no particular op.

pub(crate) mod times;

use std::fmt;
use std::ops::Range;

use crate::dtype::DType;
use crate::isa::Isa;
use crate::threads::{Memory, Pool};
use crate::vector::{self, Kernel};

/// Fewer elements than this are not worth another thread.
const ELEMENTS_A_TASK: usize = 16 << 10;

/// The sizes of a run, within an op's capacity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Extent {
    /// Rows of every tensor whose first dimension is the step's tokens.
    pub(crate) tokens: usize,
    /// Sequences.
    pub(crate) rows: usize,
}

/// A computation on memory at fixed addresses.
pub(crate) trait Op: Send + Sync {
    /// The name of its function in `_cpu.ops`, or of a matrix's method in `pyllm_kernels`.
    fn name(&self) -> &'static str;

    /// The maximum sizes that it has memory for.
    fn capacity(&self) -> Extent;

    /// # Safety
    ///
    /// The extent is within the capacity, the op's pointers are valid, nothing else touches their memory during the
    /// call, and the machine has `isa`.
    unsafe fn run(&self, extent: Extent, isa: Isa, pool: &mut Pool) -> Result<(), OutOfRange>;

    /// Itself, if it writes its result row by row.
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
    /// See `run`, and for the writer's `write`.
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

    /// Memory worth prefetching before the op runs, as its tasks will read it.
    fn weights(&self) -> Option<Memory> {
        None
    }
}

/// An op that writes its result row by row, so that its reader can start on each while it is in the cache.
pub(crate) trait RowWriter {
    /// The result.
    fn out(&self) -> Matrix;

    /// Write the rows of `num_tokens`, and call `then` with each, on the thread that wrote it.
    ///
    /// # Safety
    ///
    /// See `Op::run`.
    unsafe fn write(&self, num_tokens: usize, isa: Isa, pool: &mut Pool, then: &(dyn Fn(usize) + Sync));
}

/// An index that is out of range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OutOfRange {
    /// The tensor, the position in it, and the allowed minimum and maximum.
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

/// Check that every number is one of `allowed`.
pub(crate) fn check_range(what: &'static str, numbers: &[i32], allowed: Range<i64>) -> Result<(), OutOfRange> {
    let fits = |&number: &i32| allowed.contains(&i64::from(number));
    // First all at once, which takes no branch per number.
    if numbers.iter().fold(true, |all, number| all & fits(number)) {
        return Ok(());
    }
    let wrong = numbers.iter().enumerate().find(|(_, number)| !fits(number));
    wrong.map_or(Ok(()), |(index, &number)| {
        Err(OutOfRange::Index { what, index, number: number.into(), from: allowed.start, to: allowed.end - 1 })
    })
}

/// Check that rows own all tokens: their starts ascend from 0 to the number of tokens.
pub(crate) fn check_query_starts(starts: &[i32], tokens: usize) -> Result<(), OutOfRange> {
    check_range("query start", starts, 0..tokens as i64 + 1)?;
    // A token outside all sequences would get leftovers in memory.
    for (index, expected) in [(0, 0), (starts.len() - 1, tokens as i64)] {
        let number = i64::from(starts[index]);
        if number != expected {
            return Err(OutOfRange::Index { what: "query start", index, number, from: expected, to: expected });
        }
    }
    for (index, pair) in starts.windows(2).enumerate() {
        if pair[1] < pair[0] {
            let (number, from) = (pair[1].into(), pair[0].into());
            return Err(OutOfRange::Index {
                what: "end of the queries of row",
                index,
                number,
                from,
                to: tokens as i64,
            });
        }
    }
    Ok(())
}

/// A matrix in memory, its rows contiguous.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Matrix {
    pub(crate) dtype: DType,
    pub(crate) address: usize,
    /// Elements from one row to the next.
    pub(crate) stride: usize,
}

impl Matrix {
    /// Address of a row.
    pub(crate) fn row<T>(&self, row: usize) -> *mut T {
        std::ptr::with_exposed_provenance_mut::<T>(self.address).wrapping_add(row * self.stride)
    }

    /// Its columns from `first` on.
    pub(crate) fn columns_from(self, first: usize) -> Self {
        Self { address: self.address + first * self.dtype.bytes(), ..self }
    }
}

/// Indices at a fixed address.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Indices(pub(crate) usize);

impl Indices {
    /// # Safety
    ///
    /// `count` int32 are valid, and nothing writes to them while the slice lives.
    pub(crate) unsafe fn first<'a>(self, count: usize) -> &'a [i32] {
        if count == 0 {
            return &[]; // torch gives an empty tensor a null pointer
        }
        // SAFETY: as the caller promises.
        unsafe { std::slice::from_raw_parts(std::ptr::with_exposed_provenance(self.0), count) }
    }
}

/// Run a kernel whose parts are rows of `width` elements: in parallel if there are many, else on this thread. `then` is
/// called with each finished row.
///
/// # Safety
///
/// See `Kernel::run`, for every row; the machine has `isa`.
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
