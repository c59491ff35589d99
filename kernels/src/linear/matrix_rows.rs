//! `MatrixRows` of Python: rows in the formats of files, read by field name and checked. Knows no file.

use std::ptr::{with_exposed_provenance, with_exposed_provenance_mut};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::arrays::Array;
use crate::linear::{self, Row, Scales, Source};
use crate::threads::pool::pool;

#[derive(Debug, FromPyObject)]
pub(crate) struct MatrixRows {
    format: String,
    in_features: usize,
    addresses: Array,
    scales: Option<RowScales>,
}

#[derive(Debug, FromPyObject)]
struct RowScales {
    numbers: Array,
    features: usize,
}

/// The rows of the parts, one below the other. They are valid as long as the parts live.
pub(crate) fn all_rows(parts: &[MatrixRows], in_features: usize) -> PyResult<Vec<Row>> {
    let mut rows = Vec::new();
    for part in parts {
        if part.in_features != in_features {
            let wrong = format!("rows of {} features in a matrix of {in_features}", part.in_features);
            return Err(PyValueError::new_err(wrong));
        }
        rows.extend(part.rows()?);
    }
    Ok(rows)
}

impl MatrixRows {
    fn rows(&self) -> PyResult<impl Iterator<Item = Row>> {
        let Self { format, in_features, addresses, scales } = self;
        let source =
            Source::named(format).ok_or_else(|| PyValueError::new_err(format!("no rows of {format} can be read")))?;
        if source.has_scales() != scales.as_ref().is_some_and(|scales| scales.features > 0) {
            let scales = if source.has_scales() { "need scales" } else { "take no scales" };
            return Err(PyValueError::new_err(format!("rows of {format} {scales}")));
        }
        let num_rows = addresses.len();
        let (first, features, groups) = match scales {
            Some(RowScales { numbers, features }) => {
                let groups = in_features.div_ceil(*features);
                (numbers.elements("scales", "float32", &[num_rows, groups])?, *features, groups)
            }
            None => (0, 0, 0),
        };
        let addresses = with_exposed_provenance::<usize>(addresses.elements("addresses", "int64", &[num_rows])?);
        Ok((0..num_rows).map(move |row| {
            // SAFETY: there are as many addresses.
            let address = unsafe { addresses.add(row).read_unaligned() };
            Row { source, address, scales: Scales { address: first + row * groups * size_of::<f32>(), features } }
        }))
    }

    fn source(&self) -> Option<Source> {
        Source::named(&self.format)
    }
}

/// The bytes of the rows, to out uint8 [rows, bytes per row].
#[pyfunction]
pub(crate) fn copy_rows(py: Python<'_>, rows: MatrixRows, out: Array) -> PyResult<()> {
    let (found, in_features) = (all_rows(std::slice::from_ref(&rows), rows.in_features)?, rows.in_features);
    let row_bytes = rows.source().map_or(0, |source| source.row_bytes(in_features));
    let address = out.elements("out", "uint8", &[found.len(), row_bytes])?;
    // SAFETY: the array has as many bytes, which nothing else touches during the call.
    let out = unsafe { slice_mut(address, found.len() * row_bytes) };
    // SAFETY: rows of files are valid as long as their owners, which the argument keeps.
    py.detach(|| unsafe { linear::copy_rows(&found, in_features, out, &mut pool()) });
    Ok(())
}

/// The numbers of the rows, to out float32 [rows, features].
#[pyfunction]
pub(crate) fn read_rows(py: Python<'_>, rows: MatrixRows, out: Array) -> PyResult<()> {
    let (found, in_features) = (all_rows(std::slice::from_ref(&rows), rows.in_features)?, rows.in_features);
    let address = out.elements("out", "float32", &[found.len(), in_features])?;
    // SAFETY: as above, and arrays of numpy are aligned.
    let out = unsafe { slice_mut(address, found.len() * in_features) };
    // SAFETY: as above.
    py.detach(|| unsafe { linear::read_rows(&found, in_features, out, &mut pool()) });
    Ok(())
}

/// # Safety
///
/// `length` values are valid, aligned, and nothing else touches them while the slice lives.
unsafe fn slice_mut<'a, T>(address: usize, length: usize) -> &'a mut [T] {
    if length == 0 {
        return &mut []; // an empty tensor of torch has a null pointer
    }
    // SAFETY: as the caller promises.
    unsafe { std::slice::from_raw_parts_mut(with_exposed_provenance_mut(address), length) }
}
