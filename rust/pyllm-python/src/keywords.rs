//! Python's keywords as structs of the scheduler, by field name. The scheduler checks their ranges.

use pyllm_scheduler::{Config, PrefixHash};
use pyo3::exceptions::{PyOverflowError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::{IntoPyDict, PyDict};
use pythonize::{Depythonizer, PythonizeError, depythonize, pythonize};
use serde::de::DeserializeOwned;
use serde_path_to_error::{Path, Segment};

use crate::errors::SchedulerError;

/// A struct with these fields; the others have their defaults.
pub(crate) fn read<T: DeserializeOwned>(keywords: &Bound<'_, PyDict>) -> PyResult<T> {
    // Tracking the path of a field takes time, so it is done only after an error.
    depythonize(keywords).or_else(|_| {
        let mut fields = Depythonizer::from_object(keywords);
        serde_path_to_error::deserialize(&mut fields).map_err(|error| refusal(keywords, error))
    })
}

/// The prefix hash and its seed, parsed like a core's settings of these names.
pub(crate) fn prefix_hash(py: Python<'_>, prefix_hash: &str, seed: &str) -> PyResult<(PrefixHash, String)> {
    let names = [("prefix_hash", prefix_hash), ("prefix_hash_seed", seed)].into_py_dict(py)?;
    let Config { prefix_hash, prefix_hash_seed, .. } = read(&names)?;
    Ok((prefix_hash, prefix_hash_seed))
}

/// A configuration with some settings changed.
pub(crate) fn changed(config: &Config, settings: &Bound<'_, PyDict>) -> PyResult<Config> {
    let fields = pythonize(settings.py(), config)?.cast_into::<PyDict>()?;
    fields.update(settings.as_mapping())?;
    read(&fields)
}

/// The error for wrong keywords. A number out of range or an unknown name is a wrong value; others are type errors.
fn refusal(keywords: &Bound<'_, PyDict>, error: serde_path_to_error::Error<PythonizeError>) -> PyErr {
    let (name, value) = (error.path().to_string(), value_at(keywords, error.path()));
    let cause = error.into_inner();
    let text = cause.to_string();
    let cause = PyErr::from(cause);
    if cause.is_instance_of::<PyOverflowError>(keywords.py()) {
        let value = value.map_or_else(String::new, |value| value.to_string());
        return SchedulerError::new_err(format!("{name} is {value}; give a number that fits its type"));
    }
    if text.starts_with("unknown variant") {
        return SchedulerError::new_err(format!("{name}: {text}"));
    }
    PyTypeError::new_err(format!("{name}: {text}"))
}

fn value_at<'py>(keywords: &Bound<'py, PyDict>, path: &Path) -> Option<Bound<'py, PyAny>> {
    path.iter().try_fold(keywords.clone().into_any(), |object, segment| match segment {
        Segment::Map { key } => object.get_item(key).ok(),
        _ => None,
    })
}
