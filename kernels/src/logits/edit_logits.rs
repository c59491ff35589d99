//! Copies of rows of logits with some tokens masked out and some logits changed. Knows neither requests nor grammars.
#![expect(clippy::inline_always, reason = "see `Vector`")]

use std::ops::Range;
use std::ptr::{with_exposed_provenance, with_exposed_provenance_mut};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::arrays::Array;
use crate::execution::execute;
use crate::isa::Isa;
use crate::op::{Extent, Indices, Matrix, Op, OutOfRange, check_range};
use crate::threads::Pool;
use crate::vector::{self, Kernel, LANES, Storage, Vector, for_dtype};

/// Tokens per word of a mask.
const WORD_BITS: usize = 32;

/// Copies a row of logits for each sample to float32, masked, then edited.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EditLogits {
    pub(crate) samples: usize,
    pub(crate) logits: Matrix,
    pub(crate) num_rows: usize,
    pub(crate) vocabulary: usize,
    /// Each sample's row of logits.
    pub(crate) rows: Indices,
    pub(crate) edits: Edits,
    pub(crate) masks: Option<Masks>,
    /// float32, contiguous.
    pub(crate) out: usize,
}

/// Changes of logits, ragged. Addresses of one number per edit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Edits {
    /// Start of each sample's edits, then the end of the last.
    pub(crate) starts: Indices,
    pub(crate) count: usize,
    pub(crate) ids: Indices,
    /// float32
    pub(crate) bias: usize,
    /// float32
    pub(crate) repetition: usize,
    /// float32
    pub(crate) subtracted: usize,
}

/// Bits of allowed tokens, lowest first; tokens beyond the last word are not allowed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Masks {
    /// Each sample's mask; -1: none.
    pub(crate) rows: Indices,
    /// Words of 32 bits, contiguous.
    pub(crate) address: usize,
    pub(crate) count: usize,
    pub(crate) words_each: usize,
}

/// A `LogitsEdits` of Python.
#[derive(FromPyObject)]
pub(crate) struct EditsArrays {
    starts: Array,
    ids: Array,
    bias: Array,
    repetition: Array,
    subtracted: Array,
}

impl EditsArrays {
    fn read(&self, samples: usize) -> PyResult<Edits> {
        let count = self.ids.len();
        let floats = |name, array: &Array| array.elements(name, "float32", &[count]);
        Ok(Edits {
            starts: self.starts.indices("starts", &[samples + 1])?,
            count,
            ids: self.ids.indices("ids", &[count])?,
            bias: floats("bias", &self.bias)?,
            repetition: floats("repetition", &self.repetition)?,
            subtracted: floats("subtracted", &self.subtracted)?,
        })
    }

    fn arrays(&self) -> [&Array; 5] {
        [&self.starts, &self.ids, &self.bias, &self.repetition, &self.subtracted]
    }
}

#[pyfunction]
#[pyo3(signature = (logits, rows, edits, mask_rows, masks, out))]
pub(crate) fn edit_logits(
    py: Python<'_>,
    logits: Array,
    rows: Array,
    edits: EditsArrays,
    mask_rows: Option<Array>,
    masks: Option<Array>,
    out: Array,
) -> PyResult<()> {
    let shape @ [num_rows, vocabulary] = logits.dimensions("logits")?;
    let samples = rows.len();
    let masked = match (&mask_rows, &masks) {
        (Some(mask_rows), Some(masks)) => Some(read_masks(samples, mask_rows, masks)?),
        _ => None,
    };
    let op = EditLogits {
        samples,
        logits: logits.matrix("logits", shape)?,
        num_rows,
        vocabulary,
        rows: rows.indices("rows", &[samples])?,
        edits: edits.read(samples)?,
        masks: masked,
        out: out.elements("out", "float32", &[samples, vocabulary])?,
    };
    let mut arrays = vec![&logits, &rows, &out];
    arrays.extend(edits.arrays());
    arrays.extend(mask_rows.iter().chain(&masks));
    // SAFETY: the arrays have the shapes that the op expects, and live as long as it.
    unsafe { execute(py, op, &arrays) }
}

fn read_masks(samples: usize, rows: &Array, masks: &Array) -> PyResult<Masks> {
    if !matches!(masks.dtype_name(), "int32" | "uint32") {
        return Err(PyValueError::new_err(format!("masks are {}: give int32 or uint32", masks.dtype_name())));
    }
    let shape @ [count, words_each] = masks.dimensions("masks")?;
    let address = masks.elements("masks", masks.dtype_name(), &shape)?;
    Ok(Masks { rows: rows.indices("mask_rows", &[samples])?, address, count, words_each })
}

impl Op for EditLogits {
    fn name(&self) -> &'static str {
        "edit_logits"
    }

    fn capacity(&self) -> Extent {
        Extent { tokens: self.samples, rows: usize::MAX }
    }

    unsafe fn run(&self, extent: Extent, isa: Isa, pool: &mut Pool) -> Result<(), OutOfRange> {
        let samples = extent.tokens;
        // SAFETY: as the caller promises.
        let (rows, starts, ids, mask_rows) = unsafe {
            (
                self.rows.first(samples),
                self.edits.starts.first(samples + 1),
                self.edits.ids.first(self.edits.count),
                self.masks.map(|masks| masks.rows.first(samples)),
            )
        };
        check_range("row of sample", rows, 0..self.num_rows as i64)?;
        check_starts(starts, self.edits.count)?;
        check_range("token of edit", ids, 0..self.vocabulary as i64)?;
        if let (Some(masks), Some(rows)) = (self.masks, mask_rows) {
            check_range("mask of sample", rows, -1..masks.count as i64)?;
        }
        pool.run(samples, &|sample| {
            let mask = self.masks.zip(mask_rows).and_then(|(masks, rows)| masks.mask(rows[sample]));
            let edits = starts[sample] as usize..starts[sample + 1] as usize;
            let row = rows[sample] as usize;
            // SAFETY: as the caller promises; all numbers were checked, and the sample's row of the output is its own.
            unsafe {
                let out = with_exposed_provenance_mut::<f32>(self.out).add(sample * self.vocabulary);
                for_dtype!(self.logits.dtype, L => self.copy::<L>(row, mask, out, isa));
                self.edits.apply(edits, ids, out);
            }
        });
        Ok(())
    }
}

impl EditLogits {
    /// # Safety
    ///
    /// See `Op::run`; the logits are made of L, the row is valid, and so are the pointers of the mask and `out`.
    unsafe fn copy<L: Storage>(&self, row: usize, mask: Option<Mask>, out: *mut f32, isa: Isa) {
        let logits = self.logits.row::<L>(row).cast_const();
        // SAFETY: as the caller promises.
        unsafe { vector::run(isa, &Copy { logits, mask, vocabulary: self.vocabulary, out }, 0) };
    }
}

impl Edits {
    /// # Safety
    ///
    /// The edits are valid, and their tokens are within `out`.
    unsafe fn apply(&self, edits: Range<usize>, ids: &[i32], out: *mut f32) {
        let number = |address, edit| {
            // SAFETY: as the caller promises.
            unsafe { with_exposed_provenance::<f32>(address).add(edit).read() }
        };
        for edit in edits {
            // SAFETY: as the caller promises.
            let logit = unsafe { &mut *out.add(ids[edit] as usize) };
            let biased = *logit + number(self.bias, edit);
            let repetition = number(self.repetition, edit);
            let penalised = if biased > 0.0 { biased / repetition } else { biased * repetition };
            *logit = penalised - number(self.subtracted, edit);
        }
    }
}

impl Masks {
    fn mask(self, row: i32) -> Option<Mask> {
        let row = usize::try_from(row).ok()?;
        let words = with_exposed_provenance::<u32>(self.address).wrapping_add(row * self.words_each);
        Some(Mask { words, num_words: self.words_each })
    }
}

/// Check that starts rise to at most the number of edits.
fn check_starts(starts: &[i32], num_edits: usize) -> Result<(), OutOfRange> {
    let mut from = 0;
    for (index, &start) in starts.iter().enumerate() {
        let (number, to) = (i64::from(start), num_edits as i64);
        if number < from || number > to {
            return Err(OutOfRange::Index { what: "start of edits", index, number, from, to });
        }
        from = number;
    }
    Ok(())
}

#[derive(Clone, Copy)]
struct Mask {
    words: *const u32,
    num_words: usize,
}

impl Mask {
    /// Bits for sixteen tokens from a multiple of sixteen on.
    ///
    /// # Safety
    ///
    /// The words are valid.
    #[inline(always)]
    unsafe fn lanes(self, at: usize) -> u32 {
        let word = at / WORD_BITS;
        if word >= self.num_words {
            return 0;
        }
        // SAFETY: as the caller promises.
        unsafe { self.words.add(word).read() >> (at % WORD_BITS) & 0xffff }
    }
}

struct Copy<L> {
    logits: *const L,
    mask: Option<Mask>,
    vocabulary: usize,
    out: *mut f32,
}

// SAFETY: a thread makes these for itself.
unsafe impl<L> Sync for Copy<L> {}

impl<L: Storage> Kernel for Copy<L> {
    #[inline(always)]
    unsafe fn run<V: Vector>(&self, _: usize) {
        // SAFETY: as the caller promises.
        unsafe {
            let banned = V::splat(f32::NEG_INFINITY);
            let Some(mask) = self.mask else {
                for at in (0..self.vocabulary).step_by(LANES) {
                    let left = self.vocabulary - at;
                    let logits: V = L::load_up_to(self.logits.add(at), left);
                    f32::store_up_to(logits, self.out.add(at), left);
                }
                return;
            };
            for at in (0..self.vocabulary).step_by(LANES) {
                let (left, lanes) = (self.vocabulary - at, mask.lanes(at));
                // Grammars mostly allow few tokens: logits of the others need not be read.
                let logits = if lanes == 0 { banned } else { L::load_up_to::<V>(self.logits.add(at), left) };
                f32::store_up_to(logits.select(lanes, banned), self.out.add(at), left);
            }
        }
    }
}

#[cfg(test)]
mod tests;
