//! `pyllm_kernels._cpu`: the kernels for CPUs. The shim makes slices of what Python points to, and checks that they fit;
//! the stub `pyllm_kernels/_cpu.pyi` is its documentation.

mod activation;
mod arena;
mod attention;
mod cache;
mod capture;
mod graph;
mod isa;
mod linear;
mod norm;
mod op;
mod ops;
mod rope;
mod threads;
mod vector;

use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

use pyo3::exceptions::{PyIndexError, PyValueError};
use pyo3::prelude::*;

use isa::Isa;
use linear::Element;
use threads::Pool;

static POOL: LazyLock<Mutex<Pool>> = LazyLock::new(|| Mutex::new(Pool::new(1)));

#[pyclass(frozen, module = "pyllm_kernels._cpu")]
struct Linear(linear::Linear);

#[pymethods]
impl Linear {
    #[new]
    fn new(dtype: &str, in_features: usize, out_features: usize) -> PyResult<Self> {
        let element = match dtype {
            "float32" => Element::Float32,
            "bfloat16" => Element::Bfloat16,
            _ => {
                return Err(PyValueError::new_err(format!("no linear of {dtype}: use float32 or bfloat16")));
            }
        };
        if in_features == 0 || out_features == 0 || in_features.max(out_features) > i32::MAX as usize {
            return Err(PyValueError::new_err(format!(
                "a linear of {in_features} inputs and {out_features} outputs: each must be from 1 to 2,147,483,647"
            )));
        }
        Ok(Self(linear::Linear { element, in_features, out_features }))
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
    fn packed_bytes(&self) -> usize {
        self.0.packed_bytes()
    }

    /// # Safety
    ///
    /// The pointers are to what the stub says.
    unsafe fn pack(&self, py: Python<'_>, weight: usize, packed: usize) {
        // SAFETY: Python promises that so many bytes are there, and that nothing else touches them during the call.
        let (weight, packed) =
            unsafe { (bytes(weight, self.in_bytes(self.0.out_features)), bytes_mut(packed, self.packed_bytes())) };
        py.detach(|| self.0.pack(weight, packed));
    }

    /// # Safety
    ///
    /// The pointers are to what the stub says.
    unsafe fn unpack_rows(&self, packed: usize, rows: usize, num_rows: usize, out: usize) -> PyResult<()> {
        // SAFETY: Python promises that so many bytes are there, and that nothing else touches them during the call.
        let (packed, rows, out) = unsafe {
            (bytes(packed, self.packed_bytes()), bytes(rows, num_rows * 4), bytes_mut(out, self.in_bytes(num_rows)))
        };
        let rows = rows.chunks_exact(4).map(|row| i32::from_ne_bytes([row[0], row[1], row[2], row[3]]));
        for (row, out) in rows.zip(out.chunks_exact_mut(self.in_bytes(1))) {
            let index = usize::try_from(row).ok().filter(|&row| row < self.0.out_features).ok_or_else(|| {
                PyIndexError::new_err(format!("row {row} of a matrix of {} rows", self.0.out_features))
            })?;
            self.0.unpack_row(packed, index, out);
        }
        Ok(())
    }

    /// # Safety
    ///
    /// The pointers are to what the stub says.
    unsafe fn run(&self, py: Python<'_>, x: usize, num_rows: usize, packed: usize, out: usize) {
        // SAFETY: Python promises that so many bytes are there, and that nothing else touches them during the call.
        let (x, packed, out) = unsafe {
            let out_bytes = num_rows * self.0.out_features * self.0.element.bytes();
            (bytes(x, self.in_bytes(num_rows)), bytes(packed, self.packed_bytes()), bytes_mut(out, out_bytes))
        };
        py.detach(|| self.0.run(Isa::best(), &mut pool(), x, packed, out));
    }
}

impl Linear {
    fn in_bytes(&self, num_rows: usize) -> usize {
        num_rows * self.0.in_features * self.0.element.bytes()
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

#[pyfunction]
fn num_threads(py: Python<'_>) -> usize {
    py.detach(|| pool().num_threads())
}

#[pyfunction]
fn instruction_set() -> &'static str {
    Isa::best().name()
}

pub(crate) fn pool() -> MutexGuard<'static, Pool> {
    POOL.lock().unwrap_or_else(PoisonError::into_inner)
}

/// # Safety
///
/// `length` bytes are there, initialised, and nothing writes to them while the slice lives.
unsafe fn bytes<'a>(address: usize, length: usize) -> &'a [u8] {
    if length == 0 {
        return &[]; // torch gives an empty tensor a null pointer
    }
    // SAFETY: as the caller promises.
    unsafe { std::slice::from_raw_parts(std::ptr::with_exposed_provenance(address), length) }
}

/// # Safety
///
/// `length` bytes are there, and nothing else touches them while the slice lives.
unsafe fn bytes_mut<'a>(address: usize, length: usize) -> &'a mut [u8] {
    if length == 0 {
        return &mut [];
    }
    // SAFETY: as the caller promises.
    unsafe { std::slice::from_raw_parts_mut(std::ptr::with_exposed_provenance_mut(address), length) }
}

#[pymodule]
mod _cpu {
    #[pymodule_export]
    use super::capture::{Graph, Lease};
    #[pymodule_export]
    use super::ops::{paged_attention, rms_norm, rope_and_kv_write, silu_and_mul};
    #[pymodule_export]
    use super::{Linear, instruction_set, num_threads, set_num_threads};
}
