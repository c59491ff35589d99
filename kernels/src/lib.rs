//! `pyllm_kernels._cpu`: the kernels for CPUs. The shim makes slices of what Python points to, and checks that they fit;
//! the stub `pyllm_kernels/_cpu.pyi` is its documentation.

mod activation;
mod arena;
mod attention;
mod blocks;
mod cache;
mod capture;
mod edit_logits;
mod graph;
mod isa;
mod linear;
mod logits_states;
mod logprobs;
mod norm;
mod op;
mod ops;
mod packed;
mod rope;
mod row;
mod sampling;
mod scratch;
mod threads;
#[cfg(target_arch = "x86_64")]
mod tiles;
mod vector;

use std::ptr::{self, with_exposed_provenance, with_exposed_provenance_mut};
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use isa::Isa;
use linear::{Element, Format, Lookup, Product, Quantised, Source};
use ops::execute;
use packed::{PackedLinear, PackedRows};
use threads::Pool;

/// Null until it is asked for. What it points to is never freed: somebody may have it.
static POOL: AtomicPtr<Mutex<Pool>> = AtomicPtr::new(ptr::null_mut());

#[pyclass(frozen, module = "pyllm_kernels._cpu")]
struct Linear(linear::Linear);

#[pymethods]
impl Linear {
    #[new]
    #[pyo3(signature = (format, dtype, in_features, out_features, blocks=None))]
    fn new(format: &str, dtype: &str, in_features: usize, out_features: usize, blocks: Option<&str>) -> PyResult<Self> {
        let element = match dtype {
            "float32" => Element::Float32,
            "bfloat16" => Element::Bfloat16,
            _ => {
                return Err(PyValueError::new_err(format!("no linear of {dtype}: use float32 or bfloat16")));
            }
        };
        let format = match (format, blocks) {
            _ if format == dtype => Format::Element,
            ("int8", None) => Format::Int8(Source::Elements),
            ("int8", Some("q4_0")) => Format::Int8(Source::Q4_0),
            ("int8", Some("q4_1")) => Format::Int8(Source::Q4_1),
            ("int8", Some(blocks)) => {
                return Err(PyValueError::new_err(format!("no int8 of blocks of {blocks}: use q4_0, q4_1 or floats")));
            }
            ("q8_0", None) => Format::Quantised(Quantised::Q8_0),
            ("q4_0", None) => Format::Quantised(Quantised::Q4_0),
            ("q4_1", None) => Format::Quantised(Quantised::Q4_1),
            _ => {
                return Err(PyValueError::new_err(format!(
                    "no {format} weights with {dtype} inputs: use {dtype}, int8, q8_0, q4_0 or q4_1"
                )));
            }
        };
        let linear = linear::Linear { format, element, in_features, out_features };
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
    fn row_bytes(&self) -> usize {
        self.0.row_bytes()
    }

    #[getter]
    fn packed_bytes(&self) -> usize {
        self.0.packed_bytes()
    }

    /// # Safety
    ///
    /// The pointers are to what the stub says.
    unsafe fn pack(&self, py: Python<'_>, weight: usize, packed: usize) {
        // SAFETY: Python promises that so many bytes are there, and that nothing else touches them during the call.
        let (weight, packed) = unsafe {
            (bytes(weight, self.0.out_features * self.0.row_bytes()), bytes_mut(packed, self.0.packed_bytes()))
        };
        py.detach(|| self.0.pack(weight, packed));
    }

    /// # Safety
    ///
    /// The pointers are to what the stub says.
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
        // SAFETY: Python promises that what the stub says is there, and that nothing else touches it while it is used.
        unsafe { execute(py, PackedRows { tokens: num_rows, lookup }) }
    }

    /// # Safety
    ///
    /// The pointers are to what the stub says.
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
            out_stride: out_stride * self.0.element.bytes(),
        };
        // SAFETY: Python promises that what the stub says is there, and that nothing else touches it while it is used.
        unsafe { execute(py, PackedLinear { tokens: num_rows, product }) }
    }
}

#[pyfunction]
fn set_num_threads(py: Python<'_>, num_threads: usize) -> PyResult<()> {
    if !(1..=1024).contains(&num_threads) {
        return Err(PyValueError::new_err(format!("{num_threads} threads: choose 1 to 1,024")));
    }
    py.detach(|| *pool() = Pool::new(num_threads));
    Ok(())
}

/// A forked process has none of the threads, and a lock that may be held for ever: it begins with a pool of its own.
#[pyfunction]
fn forget_threads() {
    POOL.store(ptr::null_mut(), Ordering::Release);
}

#[pyfunction]
fn num_threads(py: Python<'_>) -> usize {
    py.detach(|| pool().num_threads())
}

#[pyfunction]
fn instruction_set() -> &'static str {
    Isa::best().name()
}

pub(crate) fn pool() -> MutexGuard<'static, Pool> {
    let mut pool = POOL.load(Ordering::Acquire);
    if pool.is_null() {
        let new = Box::into_raw(Box::new(Mutex::new(Pool::new(1))));
        pool = match POOL.compare_exchange(ptr::null_mut(), new, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => new,
            // Another thread was first; a pool of one thread has nothing to give back.
            Err(first) => first,
        };
    }
    // SAFETY: it was made above, and is never freed.
    unsafe { &*pool }.lock().unwrap_or_else(PoisonError::into_inner)
}

/// # Safety
///
/// `length` bytes are there, initialised, and nothing writes to them while the slice lives.
unsafe fn bytes<'a>(address: usize, length: usize) -> &'a [u8] {
    if length == 0 {
        return &[]; // torch gives an empty tensor a null pointer
    }
    // SAFETY: as the caller promises.
    unsafe { std::slice::from_raw_parts(with_exposed_provenance(address), length) }
}

/// # Safety
///
/// `length` bytes are there, and nothing else touches them while the slice lives.
unsafe fn bytes_mut<'a>(address: usize, length: usize) -> &'a mut [u8] {
    if length == 0 {
        return &mut [];
    }
    // SAFETY: as the caller promises.
    unsafe { std::slice::from_raw_parts_mut(with_exposed_provenance_mut(address), length) }
}

#[pymodule]
mod _cpu {
    #[pymodule_export]
    use super::capture::{Graph, Lease};
    #[pymodule_export]
    use super::logits_states::LogitsStates;
    #[pymodule_export]
    use super::ops::{
        copy_blocks, edit_logits, logprobs, paged_attention, rms_norm, rope_and_kv_write, sample, silu_and_mul,
    };
    #[pymodule_export]
    use super::{Linear, forget_threads, instruction_set, num_threads, set_num_threads};
}
