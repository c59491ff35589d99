//! The source of a matrix: rows of elements or of blocks in files, each at any address. Knows no panel.

use std::ptr::with_exposed_provenance;
use std::sync::{Mutex, PoisonError};

use super::format::{GROUP, GgmlType};
use super::ggml;
use crate::dtype::{DType, from_bfloat16, from_float8, from_float16};
use crate::threads::Pool;

/// The format of a matrix's rows before it is packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    Elements(DType),
    /// Integers, to be multiplied with the row's scales.
    Int8,
    /// E4M3 without infinities, to be multiplied with the row's scales.
    Float8,
    Ggml(GgmlType),
}

impl Source {
    /// The source with this name: that of a dtype, or of a format of gguf in lower case.
    pub(crate) fn named(name: &str) -> Option<Self> {
        match name {
            "int8" => Some(Self::Int8),
            "float8_e4m3fn" => Some(Self::Float8),
            _ => DType::named(name).map(Self::Elements).or_else(|| GgmlType::named(name).map(Self::Ggml)),
        }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Elements(dtype) => dtype.name(),
            Self::Int8 => "int8",
            Self::Float8 => "float8_e4m3fn",
            Self::Ggml(format) => format.name(),
        }
    }

    /// Bytes of a row of `in_features`, which fill whole blocks.
    pub(crate) fn row_bytes(self, in_features: usize) -> usize {
        match self {
            Self::Elements(dtype) => in_features * dtype.bytes(),
            Self::Int8 | Self::Float8 => in_features,
            Self::Ggml(format) => in_features / format.block_features() * format.block_bytes(),
        }
    }

    pub(crate) fn has_scales(self) -> bool {
        matches!(self, Self::Int8 | Self::Float8)
    }
}

/// A row of a matrix, anywhere in memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Row {
    pub(crate) source: Source,
    /// 0 for a row of zeros.
    pub(crate) address: usize,
    /// Only for sources with scales.
    pub(crate) scales: Scales,
}

/// The float32 scales of a row: one for each `features` features; the last may have fewer.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Scales {
    pub(crate) address: usize,
    pub(crate) features: usize,
}

impl Row {
    /// The row's content; none for a row of zeros.
    ///
    /// # Safety
    ///
    /// The row is valid with `in_features`, and its scales are, aligned; nothing writes to them while the content
    /// lives.
    pub(super) unsafe fn content<'a>(self, in_features: usize) -> Option<Content<'a>> {
        let Self { source, address, scales } = self;
        if address == 0 {
            return None;
        }
        let num_scales = if source.has_scales() { in_features.div_ceil(scales.features) } else { 0 };
        // SAFETY: as the caller promises.
        let (bytes, scales_found) = unsafe {
            let bytes = std::slice::from_raw_parts(with_exposed_provenance(address), source.row_bytes(in_features));
            let found = if num_scales == 0 {
                &[]
            } else {
                std::slice::from_raw_parts(with_exposed_provenance(scales.address), num_scales)
            };
            (bytes, found)
        };
        Some(Content { source, bytes, scales: scales_found, scale_features: scales.features })
    }
}

/// The bytes and scales of a row.
#[derive(Clone, Copy)]
pub(super) struct Content<'a> {
    pub(super) source: Source,
    pub(super) bytes: &'a [u8],
    scales: &'a [f32],
    scale_features: usize,
}

impl Content<'_> {
    /// The numbers of some features from `first` on; with blocks, of whole ones.
    pub(super) fn numbers(&self, first: usize, out: &mut [f32]) {
        let (source, last) = (self.source, first + out.len());
        let bytes = &self.bytes[source.row_bytes(first)..source.row_bytes(last)];
        match source {
            Source::Elements(DType::Float32) => fill(out, bytes, f32::from_ne_bytes),
            Source::Elements(DType::Bfloat16) => fill(out, bytes, |bits| from_bfloat16(u16::from_ne_bytes(bits))),
            Source::Elements(DType::Float16) => fill(out, bytes, |bits| from_float16(u16::from_ne_bytes(bits))),
            Source::Int8 => self.fill_scaled(first, out, bytes, |byte| f32::from(byte.cast_signed())),
            Source::Float8 => self.fill_scaled(first, out, bytes, from_float8),
            Source::Ggml(format) => {
                let blocks = bytes.chunks_exact(format.block_bytes());
                for (block, out) in blocks.zip(out.chunks_exact_mut(format.block_features())) {
                    for (number, out) in out.as_chunks_mut::<GROUP>().0.iter_mut().enumerate() {
                        ggml::group_numbers(format, block, number, out);
                    }
                }
            }
        }
    }

    /// The scale of a row of integers, if it has only one.
    pub(super) fn only_scale(&self) -> Option<f32> {
        match *self.scales {
            [scale] if self.source == Source::Int8 => Some(scale),
            _ => None,
        }
    }

    fn fill_scaled(&self, first: usize, out: &mut [f32], bytes: &[u8], number: impl Fn(u8) -> f32) {
        let mut start = 0;
        while start < out.len() {
            let group = (first + start) / self.scale_features;
            let end = out.len().min((group + 1) * self.scale_features - first);
            for (out, byte) in out[start..end].iter_mut().zip(&bytes[start..end]) {
                *out = self.scales[group] * number(*byte);
            }
            start = end;
        }
    }
}

/// The bytes of rows, [rows, bytes per row]; a row of zeros is zeros.
///
/// # Safety
///
/// The rows are valid with `in_features`, and nothing writes to them during the call.
pub(crate) unsafe fn copy_rows(rows: &[Row], in_features: usize, out: &mut [u8], pool: &mut Pool) {
    let copy = |content: Content, out: &mut [u8]| out.copy_from_slice(content.bytes);
    // SAFETY: as the caller promises.
    unsafe { fill_rows(rows, in_features, out, pool, copy) };
}

/// The numbers of rows, [rows, `in_features`].
///
/// # Safety
///
/// The rows and their scales are valid with `in_features`, and nothing writes to them during the call.
pub(crate) unsafe fn read_rows(rows: &[Row], in_features: usize, out: &mut [f32], pool: &mut Pool) {
    let read = |content: Content, out: &mut [f32]| content.numbers(0, out);
    // SAFETY: as the caller promises.
    unsafe { fill_rows(rows, in_features, out, pool, read) };
}

/// Call `write` with the content of each row and its equal part of `out`; a row of zeros becomes zeros.
///
/// # Safety
///
/// The rows and their scales are valid with `in_features`, and nothing writes to them during the call.
unsafe fn fill_rows<T: Copy + Default + Send>(
    rows: &[Row],
    in_features: usize,
    out: &mut [T],
    pool: &mut Pool,
    write: impl Fn(Content, &mut [T]) + Sync,
) {
    if out.is_empty() {
        return;
    }
    let outs: Vec<Mutex<&mut [T]>> = out.chunks_exact_mut(out.len() / rows.len()).map(Mutex::new).collect();
    assert_eq!(outs.len(), rows.len());
    pool.run(outs.len(), &|index| {
        let mut out = outs[index].lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: as the caller promises.
        match unsafe { rows[index].content(in_features) } {
            Some(content) => write(content, &mut out),
            None => out.fill(T::default()),
        }
    });
}

fn fill<const BYTES: usize>(out: &mut [f32], row: &[u8], number: impl Fn([u8; BYTES]) -> f32) {
    for (out, bytes) in out.iter_mut().zip(row.as_chunks().0) {
        *out = number(*bytes);
    }
}
