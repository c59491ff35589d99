//! Numbers from Python. A number out of its type's range is refused like any wrong value. Knows no meanings.

use pyo3::exceptions::PyOverflowError;
use pyo3::prelude::*;

use crate::errors::SchedulerError;

/// A number, or the text of a value that is out of range.
pub(crate) struct Number<T>(pub(crate) Result<T, String>);

impl<'a, 'py, T> FromPyObject<'a, 'py> for Number<T>
where
    T: FromPyObject<'a, 'py, Error = PyErr>,
{
    type Error = PyErr;

    fn extract(value: Borrowed<'a, 'py, PyAny>) -> PyResult<Self> {
        match value.extract() {
            Ok(number) => Ok(Self(Ok(number))),
            Err(error) if error.is_instance_of::<PyOverflowError>(value.py()) => Ok(Self(Err(value.to_string()))),
            Err(error) => Err(error),
        }
    }
}

impl<T> Number<T> {
    /// The number, or an error with its name if it is out of range.
    pub(crate) fn named(self, name: &str) -> PyResult<T> {
        let kind = std::any::type_name::<T>();
        self.0.map_err(|value| SchedulerError::new_err(format!("{name} is {value}; give a number that fits {kind}")))
    }
}
