//! `pyllm_kernels._cpu`: the kernels for CPUs. The shim makes slices of Python's pointers, and checks their sizes; the
//! stub `pyllm_kernels/_cpu.pyi` is its documentation.

#[cfg(target_arch = "x86_64")]
mod amx_tiles;
mod arrays;
mod attention;
mod blocks;
mod capture;
mod dtype;
mod experts;
mod graph;
mod isa;
mod kv_layer;
mod linear;
mod linear_ops;
mod logits;
mod memory;
mod op;
mod ops;
mod ranks;
mod rope;
mod rows;
mod threads;
mod vector;

use std::ptr::{with_exposed_provenance, with_exposed_provenance_mut};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use dtype::DType;
use isa::Isa;
use linear::{Format, GgmlType, Int8Source, Lookup, Product, Row, Scales, Source};
use linear_ops::{PackedLinear, PackedRows};
use ops::execute;
use threads::Pool;
use threads::pool::{self, pool};

#[pyclass(frozen, module = "pyllm_kernels._cpu")]
struct Linear(linear::Linear);

#[pymethods]
impl Linear {
    #[new]
    #[pyo3(signature = (format, dtype, in_features, out_features, blocks=None))]
    fn new(format: &str, dtype: &str, in_features: usize, out_features: usize, blocks: Option<&str>) -> PyResult<Self> {
        let element_type = match dtype {
            "float32" => DType::Float32,
            "bfloat16" => DType::Bfloat16,
            _ => {
                return Err(PyValueError::new_err(format!("no linear of {dtype}: use float32 or bfloat16")));
            }
        };
        let format = match (format, blocks) {
            _ if format == dtype => Format::Float,
            ("int8", None) => Format::Int8(Int8Source::Elements),
            ("int8", Some("q4_0")) => Format::Int8(Int8Source::Q4_0),
            ("int8", Some("q4_1")) => Format::Int8(Int8Source::Q4_1),
            ("int8", Some(blocks)) => {
                return Err(PyValueError::new_err(format!("no int8 of blocks of {blocks}: use q4_0, q4_1 or floats")));
            }
            (name, None) if let Some(blocks) = GgmlType::named(name) => Format::Ggml(blocks),
            _ => {
                let blocks = GgmlType::ALL.map(GgmlType::name).join(", ");
                return Err(PyValueError::new_err(format!(
                    "no {format} weights with {dtype} inputs: use {dtype}, int8, {blocks}"
                )));
            }
        };
        let linear = linear::Linear { format, dtype: element_type, in_features, out_features };
        linear.check().map_err(PyValueError::new_err)?;
        Ok(Self(linear))
    }

    #[getter]
    fn in_features(&self) -> usize {
        self.0.in_features
    }

    #[getter]
    fn out_features(&self) -> usize {
        self.0.out_features
    }

    #[getter]
    fn blocks(&self) -> Option<&'static str> {
        match self.0.format {
            Format::Int8(source) => source.blocks().map(GgmlType::name),
            Format::Float | Format::Ggml(_) => None,
        }
    }

    #[getter]
    fn packed_bytes(&self) -> usize {
        self.0.packed_bytes()
    }

    /// # Safety
    ///
    /// The pointers are those that the stub documents.
    unsafe fn pack(&self, py: Python<'_>, rows: Vec<RowsOf>, packed: usize) -> PyResult<Option<usize>> {
        // SAFETY: the stub requires valid pointers, and that nothing else touches their memory during the call.
        let (rows, packed) = unsafe { (all_rows(rows, self.0.in_features)?, slice_mut(packed, self.0.packed_bytes())) };
        if rows.len() != self.0.out_features {
            return Err(PyValueError::new_err(format!("{} rows of a matrix of {}", rows.len(), self.0.out_features)));
        }
        // SAFETY: as above.
        py.detach(|| unsafe { self.0.pack(&rows, packed, &mut pool()) }).map_err(PyValueError::new_err)
    }

    /// # Safety
    ///
    /// The pointers are those that the stub documents.
    unsafe fn unpack_rows(
        &self,
        py: Python<'_>,
        packed: usize,
        rows: usize,
        num_rows: usize,
        out: usize,
    ) -> PyResult<()> {
        let (packed, indices) = (with_exposed_provenance(packed), with_exposed_provenance(rows));
        let lookup = Lookup { linear: self.0, packed, indices, out: with_exposed_provenance_mut(out) };
        // SAFETY: the stub requires valid pointers, and that nothing else touches their memory while it is used.
        unsafe { execute(py, PackedRows { tokens: num_rows, lookup }, &[]) }
    }

    /// # Safety
    ///
    /// The pointers are those that the stub documents.
    unsafe fn run(
        &self,
        py: Python<'_>,
        x: usize,
        num_rows: usize,
        packed: usize,
        out: usize,
        out_stride: usize,
    ) -> PyResult<()> {
        if out_stride < self.0.out_features {
            return Err(PyValueError::new_err(format!(
                "output rows of {} features are {out_stride} apart: leave room",
                self.0.out_features
            )));
        }
        let product = Product {
            linear: self.0,
            x: with_exposed_provenance(x),
            packed: with_exposed_provenance(packed),
            out: with_exposed_provenance_mut(out),
            out_stride: out_stride * self.0.dtype.bytes(),
        };
        // SAFETY: the stub requires valid pointers, and that nothing else touches their memory while it is used.
        unsafe { execute(py, PackedLinear { tokens: num_rows, product }, &[]) }
    }
}

/// The name of a source, the address of the rows' addresses, and their number; the address of their scales, and the
/// features that share one, or zeros.
type RowsOf = (String, usize, usize, usize, usize);

/// # Safety
///
/// The addresses point to as many addresses as the parts say.
unsafe fn all_rows(parts: Vec<RowsOf>, in_features: usize) -> PyResult<Vec<Row>> {
    let mut rows = Vec::new();
    for (name, addresses, num_rows, scales, features) in parts {
        let source =
            Source::named(&name).ok_or_else(|| PyValueError::new_err(format!("no rows of {name} can be read")))?;
        if source.has_scales() != (features > 0) {
            let scales = if source.has_scales() { "need scales" } else { "take no scales" };
            return Err(PyValueError::new_err(format!("rows of {name} {scales}")));
        }
        let scale_bytes = if features > 0 { in_features.div_ceil(features) * size_of::<f32>() } else { 0 };
        // SAFETY: as the caller promises.
        let addresses: &[usize] = unsafe { slice(addresses, num_rows) };
        rows.extend(addresses.iter().enumerate().map(|(row, &address)| {
            let scales = Scales { address: scales + row * scale_bytes, features };
            Row { source, address, scales }
        }));
    }
    Ok(rows)
}

/// # Safety
///
/// The pointers are those that the stub documents.
#[pyfunction]
unsafe fn copy_rows(py: Python<'_>, rows: Vec<RowsOf>, in_features: usize, out: usize) -> PyResult<()> {
    // SAFETY: the stub requires valid pointers, and that nothing else touches their memory during the call.
    unsafe {
        let rows = all_rows(rows, in_features)?;
        if let Some(other) = rows.iter().find(|row| row.source != rows[0].source) {
            let names = [&rows[0], other].map(|row| row.source.name());
            return Err(PyValueError::new_err(format!(
                "rows of {} and rows of {} cannot be copied together: copy one format at a time",
                names[0], names[1]
            )));
        }
        let out = slice_mut(out, rows.iter().map(|row| row.source.row_bytes(in_features)).sum());
        py.detach(|| linear::copy_rows(&rows, in_features, out, &mut pool()));
    }
    Ok(())
}

/// # Safety
///
/// The pointers are those that the stub documents.
#[pyfunction]
unsafe fn read_rows(py: Python<'_>, rows: Vec<RowsOf>, in_features: usize, out: usize) -> PyResult<()> {
    // SAFETY: the stub requires valid pointers, and that nothing else touches their memory during the call.
    unsafe {
        let rows = all_rows(rows, in_features)?;
        let out = slice_mut(out, rows.len() * in_features);
        py.detach(|| linear::read_rows(&rows, in_features, out, &mut pool()));
    }
    Ok(())
}

#[pyfunction]
fn set_num_threads(py: Python<'_>, num_threads: usize) -> PyResult<()> {
    if !(1..=1024).contains(&num_threads) {
        return Err(PyValueError::new_err(format!("{num_threads} threads: choose 1 to 1,024")));
    }
    py.detach(|| *pool() = Pool::new(num_threads));
    Ok(())
}

#[pyfunction]
fn stay_awake(py: Python<'_>, awake: bool) {
    py.detach(|| pool().stay_awake(awake));
}

/// A forked process has no threads, and a lock that may be held for ever: it starts with a new pool.
#[pyfunction]
fn forget_threads() {
    pool::forget();
}

#[pyfunction]
fn num_threads(py: Python<'_>) -> usize {
    py.detach(|| pool().num_threads())
}

#[pyfunction]
fn instruction_set() -> &'static str {
    Isa::best().name()
}

/// # Safety
///
/// `length` values are valid, aligned, and nothing writes to them while the slice lives.
unsafe fn slice<'a, T>(address: usize, length: usize) -> &'a [T] {
    if length == 0 {
        return &[]; // torch gives an empty tensor a null pointer
    }
    // SAFETY: as the caller promises.
    unsafe { std::slice::from_raw_parts(with_exposed_provenance(address), length) }
}

/// # Safety
///
/// `length` values are valid, aligned, and nothing else touches them while the slice lives.
unsafe fn slice_mut<'a, T>(address: usize, length: usize) -> &'a mut [T] {
    if length == 0 {
        return &mut [];
    }
    // SAFETY: as the caller promises.
    unsafe { std::slice::from_raw_parts_mut(with_exposed_provenance_mut(address), length) }
}

#[pymodule]
mod _cpu {
    #[pymodule_export]
    use super::capture::{Graph, Lease, OpTimes};
    #[pymodule_export]
    use super::logits::states::LogitsStates;
    #[pymodule_export]
    use super::ops::{
        experts,
    };
    #[pymodule_export]
    use super::attention::{paged_attention, score_blocks, select_blocks};
    #[pymodule_export]
    use super::blocks::copy_blocks;
    #[pymodule_export]
    use super::logits::edit_logits::edit_logits;
    #[pymodule_export]
    use super::logits::logprobs::logprobs;
    #[pymodule_export]
    use super::logits::sampling::sample;
    #[pymodule_export]
    use super::rope::rope_and_kv_write;
    #[pymodule_export]
    use super::rows::activation::activation;
    #[pymodule_export]
    use super::rows::elementwise::{add, add_bias, scale_and_cap};
    #[pymodule_export]
    use super::rows::norm::{add_norm, norm};
    #[pymodule_export]
    use super::ranks::exchange::RankExchange;
    #[pymodule_export]
    use super::{
        Linear, copy_rows, forget_threads, instruction_set, num_threads, read_rows, set_num_threads, stay_awake,
    };
}
