//! Arrays of Python as arguments of ops: their dtype, shape, strides and address, read and checked by name.
//!
//! Takes numpy's arrays, with the dtypes of `ml_dtypes`, and torch's tensors in the host's memory. Knows no op.

use numpy::{PyArrayDescrMethods, PyUntypedArray, PyUntypedArrayMethods};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;

use crate::dtype::DType;
use crate::op::{Indices, Matrix};

/// An array in memory; it keeps its Python object alive.
#[derive(Debug)]
pub(crate) struct Array {
    object: Py<PyAny>,
    /// The name of its elements, such as "float32".
    dtype: String,
    address: usize,
    shape: Vec<usize>,
    /// In elements.
    strides: Vec<isize>,
    /// Whether the address and the strides are whole numbers of elements.
    is_aligned: bool,
}

impl<'py> FromPyObject<'_, 'py> for Array {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        match object.cast::<PyUntypedArray>() {
            Ok(array) => of_numpy(&array),
            Err(_) => of_torch(&object),
        }
    }
}

fn of_numpy(array: &Bound<'_, PyUntypedArray>) -> PyResult<Array> {
    let descr = array.dtype();
    // numpy computes the text of a dtype in Python, which takes microseconds.
    let is_native = descr.is_native_byteorder() != Some(false);
    let dtype = if is_native { descr.typeobj().name()? } else { descr.str()? };
    let itemsize = descr.itemsize().max(1).cast_signed();
    // SAFETY: the pointer of a living array, whose data does not move.
    let address = unsafe { (*array.as_array_ptr()).data }.expose_provenance();
    Ok(Array {
        object: array.clone().into_any().unbind(),
        dtype: dtype.to_cow()?.into_owned(),
        address,
        shape: array.shape().to_vec(),
        strides: array.strides().iter().map(|&stride| stride / itemsize).collect(),
        is_aligned: address.is_multiple_of(descr.alignment().max(1))
            && array.strides().iter().all(|&stride| stride % itemsize == 0),
    })
}

fn of_torch(object: &Bound<'_, PyAny>) -> PyResult<Array> {
    let read = || -> PyResult<Array> {
        let dtype = object.getattr("dtype")?.str()?;
        Ok(Array {
            object: object.clone().unbind(),
            dtype: dtype.to_cow()?.trim_start_matches("torch.").to_owned(),
            address: object.call_method0("data_ptr")?.extract()?,
            shape: object.getattr("shape")?.extract()?,
            strides: object.call_method0("stride")?.extract()?,
            is_aligned: true,
        })
    };
    let Ok(is_cpu) = object.getattr("is_cpu") else {
        return Err(PyTypeError::new_err(format!("{} is no array", object.get_type().name()?)));
    };
    if !is_cpu.is_truthy()? {
        return Err(PyValueError::new_err(format!("a tensor on {}: give one on the CPU", object.getattr("device")?)));
    }
    read()
}

impl Array {
    /// Itself, for the graph that keeps the memory alive.
    pub(crate) fn object(&self) -> &Py<PyAny> {
        &self.object
    }

    pub(crate) fn address(&self) -> usize {
        self.address
    }

    /// The number of rows of its first dimension.
    pub(crate) fn len(&self) -> usize {
        self.shape.first().copied().unwrap_or(1)
    }

    pub(crate) fn dtype_name(&self) -> &str {
        &self.dtype
    }

    /// The type of its elements, if kernels compute with it.
    pub(crate) fn dtype(&self, name: &str) -> PyResult<DType> {
        DType::named(&self.dtype).ok_or_else(|| {
            PyValueError::new_err(format!("{name} is {}: give float32, bfloat16 or float16", self.dtype))
        })
    }

    /// Its shape as a number of dimensions that the op expects.
    pub(crate) fn dimensions<const N: usize>(&self, name: &str) -> PyResult<[usize; N]> {
        self.shape
            .as_slice()
            .try_into()
            .map_err(|_| PyValueError::new_err(format!("{name} is of shape {:?}: give {N} dimensions", self.shape)))
    }

    /// A matrix [rows, columns] whose rows are contiguous and do not overlap.
    pub(crate) fn matrix(&self, name: &str, shape: [usize; 2]) -> PyResult<Matrix> {
        self.check_shape(name, &shape)?;
        self.rows(name)
    }

    /// The matrix of that dtype, see `matrix`.
    pub(crate) fn matrix_of(&self, name: &str, dtype: DType, shape: [usize; 2]) -> PyResult<Matrix> {
        self.check_dtype(name, dtype)?;
        self.matrix(name, shape)
    }

    /// [rows, ...] whose rows are contiguous and do not overlap.
    pub(crate) fn rows(&self, name: &str) -> PyResult<Matrix> {
        let dtype = self.dtype(name)?;
        let width = self.shape.iter().skip(1).product::<usize>();
        let stride = self.strides.first().copied().unwrap_or(0);
        let is_apart = self.len() <= 1 || usize::try_from(stride).is_ok_and(|stride| stride >= width);
        self.check_aligned(name)?;
        let is_sound = is_apart && is_contiguous(&self.shape[1..], &self.strides[1..]);
        if !is_sound && !self.shape.contains(&0) {
            return Err(self.wrong_strides(name, "give contiguous rows that do not overlap"));
        }
        let stride = if self.len() <= 1 { width } else { stride.unsigned_abs() };
        Ok(Matrix { dtype, address: self.address, stride })
    }

    /// `[tokens, heads, head_dim]` of a dtype, tokens contiguous: a matrix with a row for each token.
    pub(crate) fn heads(&self, name: &str, dtype: DType, shape: [usize; 3]) -> PyResult<Matrix> {
        self.check_shape(name, &shape)?;
        self.check_dtype(name, dtype)?;
        self.rows(name)
    }

    /// `[num_blocks, block_size, kv_heads, head_dim]` of a dtype, the heads of a token contiguous: a matrix with a row for
    /// each token, and the tokens from the start of a block to that of the next one.
    pub(crate) fn cells(&self, name: &str, dtype: DType, shape: [usize; 4]) -> PyResult<(Matrix, usize)> {
        self.check_shape(name, &shape)?;
        self.check_dtype(name, dtype)?;
        self.check_aligned(name)?;
        let [num_blocks, block_size, kv_heads, head_dim] = shape;
        let width = kv_heads * head_dim;
        let apart = |stride: isize| usize::try_from(stride).ok().filter(|&stride| stride >= width);
        let (mut cell, of_blocks) = (apart(self.strides[1]), apart(self.strides[0]));
        if block_size == 1 && !cell.zip(of_blocks).is_some_and(|(cell, block)| block.is_multiple_of(cell)) {
            cell = Some(of_blocks.filter(|_| num_blocks > 1).unwrap_or(width)); // a stride of one token may be anything
        }
        let Some(cell) = cell.filter(|_| is_contiguous(&self.shape[2..], &self.strides[2..])) else {
            return Err(self.wrong_strides(name, "give contiguous heads of tokens that do not overlap"));
        };
        let block = if num_blocks == 1 { Some(block_size * cell) } else { of_blocks };
        match block.filter(|block| block.is_multiple_of(cell) && *block >= block_size * cell) {
            Some(block) => Ok((Matrix { dtype, address: self.address, stride: cell }, block / cell)),
            None => Err(self.wrong_strides(name, "give blocks that are whole tokens apart, and do not overlap")),
        }
    }

    /// A contiguous vector [length] as a matrix of one row.
    pub(crate) fn vector(&self, name: &str, length: usize) -> PyResult<Matrix> {
        self.check_shape(name, &[length])?;
        self.check_contiguous(name)?;
        Ok(Matrix { dtype: self.dtype(name)?, address: self.address, stride: length })
    }

    /// Contiguous int32 of a shape.
    pub(crate) fn indices(&self, name: &str, shape: &[usize]) -> PyResult<Indices> {
        Ok(Indices(self.elements(name, "int32", shape)?))
    }

    /// The address of contiguous elements of a dtype and shape.
    pub(crate) fn elements(&self, name: &str, dtype: &str, shape: &[usize]) -> PyResult<usize> {
        self.check_shape(name, shape)?;
        if self.dtype != dtype {
            return Err(PyValueError::new_err(format!("{name} is {}: give {dtype}", self.dtype)));
        }
        self.check_contiguous(name)?;
        Ok(self.address)
    }

    pub(crate) fn check_dtype(&self, name: &str, dtype: DType) -> PyResult<()> {
        if self.dtype != dtype.name() {
            return Err(PyValueError::new_err(format!("{name} is {}: give {}", self.dtype, dtype.name())));
        }
        Ok(())
    }

    pub(crate) fn check_shape(&self, name: &str, shape: &[usize]) -> PyResult<()> {
        if self.shape != shape {
            return Err(PyValueError::new_err(format!("{name} is of shape {:?}: it must be of {shape:?}", self.shape)));
        }
        Ok(())
    }

    pub(crate) fn check_contiguous(&self, name: &str) -> PyResult<()> {
        self.check_aligned(name)?;
        if is_contiguous(&self.shape, &self.strides) {
            return Ok(());
        }
        Err(self.wrong_strides(name, "give a contiguous array"))
    }

    fn check_aligned(&self, name: &str) -> PyResult<()> {
        if self.is_aligned || self.shape.contains(&0) {
            return Ok(());
        }
        Err(PyValueError::new_err(format!("{name} has elements at addresses that do not suit {}: copy it", self.dtype)))
    }

    fn wrong_strides(&self, name: &str, remedy: &str) -> PyErr {
        PyValueError::new_err(format!("{name} is of shape {:?} with strides {:?}: {remedy}", self.shape, self.strides))
    }
}

fn is_contiguous(shape: &[usize], strides: &[isize]) -> bool {
    let mut expected = 1;
    let mut contiguous = true;
    for (&size, &stride) in shape.iter().zip(strides).rev() {
        contiguous &= size == 1 || stride.cast_unsigned() == expected;
        expected *= size;
    }
    contiguous || shape.contains(&0)
}
