//! Packed matrices: their layout as a class of Python, and products with them and lookups in them as ops of a step.

use std::ptr::{with_exposed_provenance, with_exposed_provenance_mut};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use super::head_products::HeadProducts;
use super::matrix_rows::{MatrixRows, all_rows};
use crate::arrays::Array;
use crate::dtype::DType;
use crate::execution::execute;
use crate::isa::Isa;
use crate::linear::{self, Format, GgmlType, Int8Source, Lookup, Product};
use crate::op::{Extent, Op, OutOfRange, RowWriter};
use crate::threads::pool::pool;
use crate::threads::{Memory, Pool};

#[pyclass(frozen, module = "pyllm_kernels._cpu")]
pub(crate) struct Linear(pub(crate) linear::Linear);

#[pymethods]
impl Linear {
    #[new]
    #[pyo3(signature = (format, dtype, in_features, out_features, blocks=None))]
    fn new(format: &str, dtype: &str, in_features: usize, out_features: usize, blocks: Option<&str>) -> PyResult<Self> {
        let element_type = DType::named(dtype)
            .ok_or_else(|| PyValueError::new_err(format!("no linear of {dtype}: use float32, bfloat16 or float16")))?;
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

    fn pack(&self, py: Python<'_>, parts: Vec<MatrixRows>, packed: Array) -> PyResult<Option<usize>> {
        let (rows, num_bytes) = (all_rows(&parts, self.0.in_features)?, self.0.packed_bytes());
        if rows.len() != self.0.out_features {
            return Err(PyValueError::new_err(format!("{} rows of a matrix of {}", rows.len(), self.0.out_features)));
        }
        let packed = with_exposed_provenance_mut(packed.elements("packed", "uint8", &[num_bytes])?);
        // SAFETY: the array has as many bytes; it and the rows live, and nothing else touches them during the call.
        let packed = unsafe { std::slice::from_raw_parts_mut(packed, num_bytes) };
        // SAFETY: as above.
        py.detach(|| unsafe { self.0.pack(&rows, packed, &mut pool()) }).map_err(PyValueError::new_err)
    }

    fn unpack_rows(&self, py: Python<'_>, packed: Array, rows: Array, out: Array) -> PyResult<()> {
        let tokens = rows.len();
        let lookup = Lookup {
            linear: self.0,
            packed: with_exposed_provenance(self.memory_of(&packed)?),
            indices: with_exposed_provenance(rows.indices("rows", &[tokens])?.0),
            out: with_exposed_provenance_mut(out.elements(
                "out",
                self.0.dtype.name(),
                &[tokens, self.0.in_features],
            )?),
        };
        // SAFETY: the arrays have the sizes that the op expects, and live as long as it.
        unsafe { execute(py, PackedRows { tokens, lookup }, &[&packed, &rows, &out]) }
    }

    fn run(&self, py: Python<'_>, x: Array, packed: Array, out: Array) -> PyResult<()> {
        let linear::Linear { dtype, in_features, out_features, .. } = self.0;
        let [tokens, _] = x.dimensions("x")?;
        let from = x.elements("x", dtype.name(), &[tokens, in_features])?;
        let to = out.matrix_of("out", dtype, [tokens, out_features])?;
        let product = Product {
            linear: self.0,
            x: with_exposed_provenance(from),
            packed: with_exposed_provenance(self.memory_of(&packed)?),
            out: with_exposed_provenance_mut(to.address),
            out_stride: to.stride * dtype.bytes(),
        };
        // SAFETY: as above.
        unsafe { execute(py, PackedLinear { tokens, product }, &[&x, &packed, &out]) }
    }

    fn run_heads(&self, py: Python<'_>, x: Array, packed: Array, out: Array) -> PyResult<()> {
        let op = HeadProducts::of(self.0, self.memory_of(&packed)?, &x, &out)?;
        // SAFETY: as above.
        unsafe { execute(py, op, &[&x, &packed, &out]) }
    }
}

impl Linear {
    /// The address of the packed matrix: floats in their dtype, integers in bytes.
    pub(crate) fn memory_of(&self, packed: &Array) -> PyResult<usize> {
        let (dtype, bytes) = match self.0.format {
            Format::Float => (self.0.dtype.name(), self.0.dtype.bytes()),
            Format::Int8(_) | Format::Ggml(_) => ("uint8", 1),
        };
        packed.elements("packed", dtype, &[self.0.packed_bytes() / bytes])
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct PackedLinear {
    pub(crate) tokens: usize,
    pub(crate) product: Product,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct PackedRows {
    pub(crate) tokens: usize,
    pub(crate) lookup: Lookup,
}

impl Op for PackedLinear {
    fn name(&self) -> &'static str {
        "packed_linear"
    }

    fn capacity(&self) -> Extent {
        Extent { tokens: self.tokens, rows: usize::MAX }
    }

    unsafe fn run(&self, extent: Extent, isa: Isa, pool: &mut Pool) -> Result<(), OutOfRange> {
        // SAFETY: as the caller promises.
        unsafe { self.product.run(extent.tokens, isa, pool) };
        Ok(())
    }

    fn takes_rows_of(&self, writer: &dyn RowWriter) -> bool {
        self.product.takes_rows_of(writer)
    }

    unsafe fn run_after(
        &self,
        writer: &dyn RowWriter,
        extent: Extent,
        isa: Isa,
        pool: &mut Pool,
    ) -> Result<(), OutOfRange> {
        // SAFETY: as the caller promises.
        unsafe { self.product.run_after(Some(writer), extent.tokens, isa, pool) };
        Ok(())
    }

    fn weights(&self) -> Option<Memory> {
        Some(self.product.weights())
    }
}

impl Op for PackedRows {
    fn name(&self) -> &'static str {
        "packed_rows"
    }

    fn capacity(&self) -> Extent {
        Extent { tokens: self.tokens, rows: usize::MAX }
    }

    unsafe fn run(&self, extent: Extent, _: Isa, pool: &mut Pool) -> Result<(), OutOfRange> {
        // SAFETY: as the caller promises.
        unsafe { self.lookup.run(extent.tokens, pool) }
            .map_err(|row| OutOfRange::Row { number: row, num_rows: self.lookup.linear.out_features })
    }
}
