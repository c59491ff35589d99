//! The scheduler's errors as Python's exceptions.

use pyllm_scheduler::Error;
use pyo3::create_exception;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

create_exception!(pyllm._rust, SchedulerError, PyValueError, "A call that the scheduler refused.");
create_exception!(pyllm._rust, NeverFitsError, SchedulerError, "A request too large to ever run.");

/// The exception for an error of the scheduler.
pub(crate) fn python_error(error: &Error) -> PyErr {
    match error {
        Error::PromptTooLong { .. } | Error::NeverFits { .. } => NeverFitsError::new_err(error.to_string()),
        _ => SchedulerError::new_err(error.to_string()),
    }
}

/// The exception for an error of a call without requests, which only refuses wrong arguments.
pub(crate) fn value_error(error: &Error) -> PyErr {
    PyValueError::new_err(error.to_string())
}
