//! Input rows quantised to integers, and the tiles of them that micro-kernels multiply by a panel, for all integer
//! formats. Knows neither weights nor products.
//!
//! A row's integers are in chunks of `CHUNK` features, each chunk in one or more planes of a byte per feature. The same
//! chunk and plane of `SIDE` rows is one piece of memory, in the layout of an AMX tile.

use std::ops::Range;

use super::output::{Output, SIDE};
use super::{Linear, Part, equal_parts};
use crate::dtype::{DType, from_bfloat16, from_float16};
use crate::isa::Isa;
use crate::memory::scratch::Scratch;

/// A weight format whose input rows are quantised to integers.
pub(super) trait IntegerFormat: Copy + Sync {
    /// Features of a chunk, which are contiguous.
    const CHUNK: usize;
    /// Bytes per feature.
    const PLANES: usize;
    /// Whether each chunk of a row has factors of its own.
    const CHUNKS_HAVE_FACTORS: bool;
    /// Initial values and factors of products.
    type Factors: Copy + Default;
    /// Addresses of the parts of a panel.
    type Panel: Copy;

    fn panel(self, in_features: usize, first: *const u8) -> Self::Panel;

    /// Quantise a row, padded with zeros to the end of its last chunk. Must be `#[inline(always)]`, and its callees,
    /// too: it is compiled anew for each instruction set.
    ///
    /// # Safety
    ///
    /// Both pointers are to the row's memory in a tile (see `Tile`), and nothing else touches it.
    unsafe fn quantise<const BYTES: usize>(
        self,
        numbers: &[[u8; BYTES]],
        widen: impl Fn([u8; BYTES]) -> f32,
        integers: *mut i8,
        factors: *mut Self::Factors,
    );

    /// # Safety
    ///
    /// Every row, chunk and column that the tile names is valid, the rows up to a multiple of `SIDE` can be read, the
    /// panel is of this format, nothing else touches the output, and this machine has `isa`.
    unsafe fn multiply(self, isa: Isa, tile: &Tile<Self>);
}

/// The quantised rows of one input.
pub(super) struct IntegerRows<F: IntegerFormat> {
    format: F,
    dtype: DType,
    in_features: usize,
    /// [rows, `in_features`]
    x: *const u8,
    num_chunks: usize,
    /// In the layout of `Tile`.
    integers: *mut i8,
    factors: *mut F::Factors,
}

// SAFETY: only unsafe methods dereference the pointers, and their callers guarantee them; tasks write to rows that no
// other task has.
unsafe impl<F: IntegerFormat> Sync for IntegerRows<F> {}

impl<F: IntegerFormat> IntegerRows<F> {
    /// Memory for the quantised rows of x, valid until the scratch memory is reused.
    pub(super) fn within(scratch: &mut Scratch, format: F, linear: &Linear, x: *const u8, num_rows: usize) -> Self {
        let Linear { dtype, in_features, .. } = *linear;
        let num_chunks = in_features.div_ceil(F::CHUNK);
        // AMX reads a whole tile with its factors, even if it has fewer rows.
        let whole_rows = num_rows.next_multiple_of(SIDE);
        let integer_bytes = whole_rows * row_bytes::<F>(num_chunks);
        let factor_bytes = whole_rows * row_factors::<F>(num_chunks) * size_of::<F::Factors>();
        let (integers, factors) = scratch.bytes(integer_bytes + factor_bytes).split_at_mut(integer_bytes);
        let (integers, factors) = (integers.as_mut_ptr().cast(), factors.as_mut_ptr().cast());
        let rows = Self { format, dtype, in_features, x, num_chunks, integers, factors };
        rows.clear_up_to_a_tile(num_rows);
        rows
    }

    /// Write zeros from a row on up to the next tile: leftovers there might be numbers that are slow to compute with.
    pub(super) fn clear_up_to_a_tile(&self, row: usize) {
        for row in row..row.next_multiple_of(SIDE) {
            for chunk in 0..row_factors::<F>(self.num_chunks) {
                // SAFETY: there is room for whole tiles.
                unsafe { self.row_factors(row).add(chunk * SIDE).write(F::Factors::default()) };
            }
        }
    }

    /// Number of rows in `bytes` bytes.
    pub(super) fn at_once(&self, bytes: usize) -> usize {
        (bytes / row_bytes::<F>(self.num_chunks)).max(1)
    }

    /// Quantise a row.
    ///
    /// # Safety
    ///
    /// x has the row, whose room is still its own; no other thread has it; this machine has `isa`.
    pub(super) unsafe fn quantise_row(&self, row: usize, isa: Isa) {
        let x_bytes = self.in_features * self.dtype.bytes();
        // SAFETY: as the caller promises.
        unsafe {
            let x = std::slice::from_raw_parts(self.x.add(row * x_bytes), x_bytes);
            let (side, within) = (row / SIDE * SIDE, row % SIDE);
            let integers = self.integers.add(side * row_bytes::<F>(self.num_chunks) + within * F::CHUNK);
            quantise(isa, self.format, self.dtype, x, integers, self.row_factors(row));
        }
    }

    /// Multiply some of the rows by one panel.
    ///
    /// # Safety
    ///
    /// The rows have been quantised, the part's panel is of their format and has their features, and nothing else
    /// touches the output, which begins at row 0; the part begins at a multiple of `SIDE`; this machine has `isa`.
    pub(super) unsafe fn multiply(&self, isa: Isa, part: &Part, output: Output) {
        let first = part.rows.start;
        debug_assert!(first.is_multiple_of(SIDE));
        // SAFETY: as the caller promises.
        unsafe {
            let tile = Tile {
                rows: part.rows.len(),
                integers: self.integers.add(first * row_bytes::<F>(self.num_chunks)),
                factors: self.row_factors(first),
                num_chunks: self.num_chunks,
                panel: self.format.panel(self.in_features, part.panel),
                output: output.rows_from(first),
            };
            self.format.multiply(isa, &tile);
        }
    }

    /// # Safety
    ///
    /// There is room for the row.
    unsafe fn row_factors(&self, row: usize) -> *mut F::Factors {
        // SAFETY: as the caller promises.
        unsafe { self.factors.add(row / SIDE * SIDE * row_factors::<F>(self.num_chunks) + row % SIDE) }
    }
}

/// The arguments of a micro-kernel: some rows times one panel.
pub(super) struct Tile<F: IntegerFormat> {
    pub(super) rows: usize,
    /// [rows / `SIDE`, `num_chunks`, `PLANES`, `SIDE`, `CHUNK`]
    pub(super) integers: *const i8,
    /// [rows / `SIDE`, `num_chunks`, `SIDE`] if chunks have factors, else [rows]
    pub(super) factors: *const F::Factors,
    pub(super) num_chunks: usize,
    pub(super) panel: F::Panel,
    /// Begins at the first of the rows.
    pub(super) output: Output,
}

impl<F: IntegerFormat> Tile<F> {
    /// Address of a plane of a chunk of the first row; those of the next `SIDE - 1` rows follow it.
    ///
    /// # Safety
    ///
    /// See `IntegerFormat::multiply`; the rows have the chunk.
    #[inline]
    pub(super) unsafe fn chunk(&self, chunk: usize, plane: usize) -> *const i8 {
        // SAFETY: as the caller promises.
        unsafe { self.integers.add((chunk * F::PLANES + plane) * SIDE * F::CHUNK) }
    }

    /// Address of a chunk's factors of the first row; those of the next `SIDE - 1` rows follow it.
    ///
    /// # Safety
    ///
    /// See `IntegerFormat::multiply`; the rows have the chunk, and it has factors.
    #[inline]
    pub(super) unsafe fn chunk_factors(&self, chunk: usize) -> *const F::Factors {
        // SAFETY: as the caller promises.
        unsafe { self.factors.add(chunk * SIDE) }
    }

    /// The rows in parts of at most `largest`, none of which crosses a multiple of `SIDE`.
    ///
    /// # Safety
    ///
    /// See `IntegerFormat::multiply`.
    #[inline]
    pub(super) unsafe fn parts(&self, largest: usize) -> impl Iterator<Item = Self> {
        // SAFETY: as the caller promises; these are rows of the tile.
        parts_of_sides(self.rows, largest).map(|rows| unsafe { self.part(rows.start, rows.len()) })
    }

    /// Run the kernel for each part's number of rows, of which the first is for one.
    ///
    /// # Safety
    ///
    /// See `IntegerFormat::multiply`; this machine has the kernels' instructions.
    pub(super) unsafe fn run_parts(&self, kernels: &[unsafe fn(&Self)]) {
        // SAFETY: as the caller promises.
        unsafe { self.parts(kernels.len()).for_each(|part| kernels[part.rows - 1](&part)) };
    }

    /// # Safety
    ///
    /// See `IntegerFormat::multiply`; the tile has the rows from `start` on, `rows` of them.
    #[inline]
    unsafe fn part(&self, start: usize, rows: usize) -> Self {
        let (side, within) = (start / SIDE * SIDE, start % SIDE);
        // SAFETY: as the caller promises.
        unsafe {
            Self {
                rows,
                integers: self.integers.add(side * row_bytes::<F>(self.num_chunks) + within * F::CHUNK),
                factors: self.factors.add(side * row_factors::<F>(self.num_chunks) + within),
                output: self.output.rows_from(start),
                ..*self
            }
        }
    }
}

fn row_bytes<F: IntegerFormat>(num_chunks: usize) -> usize {
    num_chunks * F::PLANES * F::CHUNK
}

fn row_factors<F: IntegerFormat>(num_chunks: usize) -> usize {
    if F::CHUNKS_HAVE_FACTORS { num_chunks } else { 1 }
}

/// Ranges of at most `largest` rows, none of which crosses a multiple of `SIDE`.
fn parts_of_sides(rows: usize, largest: usize) -> impl Iterator<Item = Range<usize>> {
    (0..rows).step_by(SIDE).flat_map(move |side| equal_parts(side..rows.min(side + SIDE), largest))
}

/// `IntegerFormat::quantise` of a row of any dtype, in the instructions of `isa`.
///
/// # Safety
///
/// See `IntegerFormat::quantise`; this machine has `isa`.
pub(super) unsafe fn quantise<F: IntegerFormat>(
    isa: Isa,
    format: F,
    dtype: DType,
    x: &[u8],
    integers: *mut i8,
    factors: *mut F::Factors,
) {
    // SAFETY: as the caller promises.
    unsafe {
        match isa {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 | Isa::Avx512Bf16 | Isa::Amx => quantise_avx512(format, dtype, x, integers, factors),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 | Isa::AvxVnni => quantise_avx2(format, dtype, x, integers, factors),
            _ => quantise_portable(format, dtype, x, integers, factors),
        }
    }
}

/// The portable form, compiled for AVX-512.
///
/// # Safety
///
/// See `quantise`.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
unsafe fn quantise_avx512<F: IntegerFormat>(
    format: F,
    dtype: DType,
    x: &[u8],
    integers: *mut i8,
    factors: *mut F::Factors,
) {
    // SAFETY: as the caller promises.
    unsafe { quantise_portable(format, dtype, x, integers, factors) };
}

/// The portable form, compiled for AVX2.
///
/// # Safety
///
/// See `quantise`.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
unsafe fn quantise_avx2<F: IntegerFormat>(
    format: F,
    dtype: DType,
    x: &[u8],
    integers: *mut i8,
    factors: *mut F::Factors,
) {
    // SAFETY: as the caller promises.
    unsafe { quantise_portable(format, dtype, x, integers, factors) };
}

/// # Safety
///
/// See `quantise`.
#[inline(always)] // so that it is compiled anew for each instruction set
#[expect(clippy::inline_always, reason = "see above")]
unsafe fn quantise_portable<F: IntegerFormat>(
    format: F,
    dtype: DType,
    x: &[u8],
    integers: *mut i8,
    factors: *mut F::Factors,
) {
    // SAFETY: as the caller promises.
    unsafe {
        match dtype {
            DType::Float32 => format.quantise(x.as_chunks().0, f32::from_ne_bytes, integers, factors),
            DType::Bfloat16 => {
                format.quantise(x.as_chunks().0, |bits| from_bfloat16(u16::from_ne_bytes(bits)), integers, factors);
            }
            DType::Float16 => {
                format.quantise(x.as_chunks().0, |bits| from_float16(u16::from_ne_bytes(bits)), integers, factors);
            }
        }
    }
}
