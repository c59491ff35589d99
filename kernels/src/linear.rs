//! `x @ weight.T` of packed weights: floats, or integers by groups. Knows no tensor and no lock.
//!
//! An output element is one chain of operations that depends only on its row and its column: the number of rows and of
//! threads decides when it is computed, never its order.

#![expect(
    clippy::cast_ptr_alignment,
    reason = "pointers may be unaligned; they are read with `read_unaligned` and `loadu`"
)]
#![expect(clippy::cast_precision_loss, reason = "products of integers are rounded to float32 where it is said")]

mod dots;
mod floats;
mod format;
mod ggml;
mod head_products;
mod int8;
mod integer_rows;
mod lookup;
pub(crate) mod matrix_rows;
mod output;
pub(crate) mod packed_linear;
mod product;
mod rounding;
mod source;

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::dtype::DType;
use crate::threads::Pool;
pub(crate) use format::{Format, GgmlType, Int8Source};
pub(crate) use lookup::Lookup;
use output::PANEL;
pub(crate) use product::{GROUP_ROWS, Product, RowGroup};
use source::Content;
pub(crate) use source::{Row, Scales, Source, copy_rows, read_rows};

/// Distance in bytes by which kernels prefetch weights.
#[cfg(target_arch = "x86_64")]
const PREFETCH: usize = 4096;
/// The same for fewer than 4 rows, where the processor prefetches by itself: with 4096, one row reads 5 to 25 % less a
/// second. With more rows it does not: with 256, 8 rows lose as much.
#[cfg(target_arch = "x86_64")]
const PREFETCH_OF_FEW_ROWS: usize = 256;

#[cfg(target_arch = "x86_64")]
const fn prefetch_distance(rows: usize) -> usize {
    if rows < 4 { PREFETCH_OF_FEW_ROWS } else { PREFETCH }
}

const MAX_FEATURES: usize = i32::MAX as usize;
/// Sums of this many products of numbers up to 127 and up to 128 fit into 31 bits.
const MAX_INT8_FEATURES: usize = 1 << 17;

/// A packed matrix: panels of `PANEL` outputs, the last of which may end early.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Linear {
    pub(crate) format: Format,
    /// The dtype of inputs and outputs.
    pub(crate) dtype: DType,
    /// A multiple of the format's `block_features`.
    pub(crate) in_features: usize,
    pub(crate) out_features: usize,
}

impl Linear {
    /// Whether such a matrix can exist; if not, the reason.
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
                let block = format.block_features();
                Err(format!("{in_features} inputs do not fill blocks of {block}: split the matrix where a block ends"))
            }
            _ => Ok(()),
        }
    }

    /// One of `count` matrices that this one consists of, one below the other, if each begins with a panel.
    pub(crate) fn split(&self, count: usize) -> Option<Self> {
        let out_features = self.out_features / count.max(1);
        let is_even = self.out_features == count * out_features && out_features.is_multiple_of(PANEL);
        (is_even && out_features > 0).then_some(Self { out_features, ..*self })
    }

    pub(crate) fn packed_bytes(&self) -> usize {
        self.num_panels() * self.panel_bytes()
    }

    /// Bytes of an input row.
    pub(crate) fn in_bytes(&self) -> usize {
        self.in_features * self.dtype.bytes()
    }

    /// Pack the matrix from its rows. Gives the first row with numbers that are not finite.
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
        if let Some(blocks) = self.format.required_blocks()
            && let Some(row) = rows.iter().find(|row| row.source != Source::Ggml(blocks))
        {
            let (format, source, blocks) = (self.format_name(), row.source.name(), blocks.name());
            return Err(format!("{format} cannot be packed from rows of {source}: give rows of {blocks}"));
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

    /// The format's name in Python.
    fn format_name(&self) -> &'static str {
        match self.format {
            Format::Float => self.dtype.name(),
            Format::Int8(_) => "int8",
            Format::Ggml(format) => format.name(),
        }
    }

    /// Pack rows as the columns of a zeroed panel. Gives the first that is not finite.
    ///
    /// # Safety
    ///
    /// See `pack`.
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

/// The task of a thread: some rows, and the start of one panel.
struct Part {
    rows: Range<usize>,
    panel: *const u8,
}

/// The lower of this column and the one found before, if any.
fn lowest(found: Option<usize>, column: usize) -> usize {
    found.map_or(column, |found| found.min(column))
}

/// The fewest parts of at most `largest`, as equal as possible.
fn equal_parts(range: Range<usize>, largest: usize) -> impl Iterator<Item = Range<usize>> {
    let parts = range.len().div_ceil(largest);
    (0..parts).map(move |part| equal_part(range.clone(), part, parts))
}

fn equal_part(range: Range<usize>, part: usize, parts: usize) -> Range<usize> {
    let end = |part: usize| range.start + range.len() * part / parts;
    end(part)..end(part + 1)
}

/// A table of a micro-kernel for each number of rows.
macro_rules! for_rows {
    ($kernel:ident: $($rows:literal)*) => { [$($kernel::<$rows>),*] };
    ($kernel:ident<$weights:ident>: $($rows:literal)*) => { [$($kernel::<$weights, $rows>),*] };
}
use for_rows;

#[cfg(test)]
mod tests;
