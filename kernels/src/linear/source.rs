//! A matrix as files have it: rows of elements or of blocks, each wherever it is. Knows no panel.

use std::ptr::with_exposed_provenance;
use std::sync::{Mutex, PoisonError};

use super::format::{GROUP, GgmlType};
use super::ggml;
use crate::dtype::{DType, from_bfloat16, from_float16};
use crate::threads::Pool;

/// What the rows of a matrix are made of before it is packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    Elements(DType),
    Float16,
    Ggml(GgmlType),
}

impl Source {
    /// By the name of a dtype, or of a format of gguf in small letters.
    pub(crate) fn named(name: &str) -> Option<Self> {
        match name {
            "float32" => Some(Self::Elements(DType::Float32)),
            "bfloat16" => Some(Self::Elements(DType::Bfloat16)),
            "float16" => Some(Self::Float16),
            _ => GgmlType::named(name).map(Self::Ggml),
        }
    }

    /// Bytes of a row of so many features, which fill blocks.
    pub(crate) fn row_bytes(self, in_features: usize) -> usize {
        match self {
            Self::Elements(dtype) => in_features * dtype.bytes(),
            Self::Float16 => in_features * 2,
            Self::Ggml(format) => in_features / format.block_features() * format.block_bytes(),
        }
    }

    /// The numbers of a row.
    pub(super) fn numbers(self, row: &[u8], out: &mut [f32]) {
        match self {
            Self::Elements(DType::Float32) => fill(out, row, f32::from_ne_bytes),
            Self::Elements(DType::Bfloat16) => fill(out, row, |bytes| from_bfloat16(u16::from_ne_bytes(bytes))),
            Self::Float16 => fill(out, row, |bytes| from_float16(u16::from_ne_bytes(bytes))),
            Self::Ggml(format) => {
                let blocks = row.chunks_exact(format.block_bytes());
                for (block, out) in blocks.zip(out.chunks_exact_mut(format.block_features())) {
                    for (number, out) in out.as_chunks_mut::<GROUP>().0.iter_mut().enumerate() {
                        ggml::group_numbers(format, block, number, out);
                    }
                }
            }
        }
    }
}

/// A row of a matrix, somewhere in memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Row {
    pub(crate) source: Source,
    /// 0 is a row of zeros.
    pub(crate) address: usize,
}

impl Row {
    /// The row's bytes; None of a row of zeros.
    ///
    /// # Safety
    ///
    /// The row is there with so many features, and nothing writes to it while the slice lives.
    pub(super) unsafe fn bytes<'a>(self, in_features: usize) -> Option<&'a [u8]> {
        let length = self.source.row_bytes(in_features);
        // SAFETY: as the caller promises.
        (self.address != 0)
            .then(|| unsafe { std::slice::from_raw_parts(with_exposed_provenance(self.address), length) })
    }
}

/// The numbers of rows, [rows, `in_features`].
///
/// # Safety
///
/// The rows are there with so many features, and nothing writes to them during the call.
pub(crate) unsafe fn read_rows(rows: &[Row], in_features: usize, out: &mut [f32], pool: &mut Pool) {
    assert_eq!(out.len(), rows.len() * in_features);
    let outs: Vec<Mutex<&mut [f32]>> = out.chunks_exact_mut(in_features).map(Mutex::new).collect();
    pool.run(outs.len(), &|index| {
        let mut out = outs[index].lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: as the caller promises.
        match unsafe { rows[index].bytes(in_features) } {
            Some(bytes) => rows[index].source.numbers(bytes, &mut out),
            None => out.fill(0.0),
        }
    });
}

fn fill<const BYTES: usize>(out: &mut [f32], row: &[u8], number: impl Fn([u8; BYTES]) -> f32) {
    for (out, bytes) in out.iter_mut().zip(row.as_chunks().0) {
        *out = number(*bytes);
    }
}
