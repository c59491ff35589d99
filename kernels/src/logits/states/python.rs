//! The shim of `LogitsStates`: Python's buffers to slices, and columns to Python. Decides nothing.

use std::sync::{Mutex, MutexGuard, PoisonError};

use pyo3::buffer::{Element, PyUntypedBuffer};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyByteArray;

use super::{Rules, Slots, StateError, Step, Thinking};

type Columns<'py> = (
    Bound<'py, PyByteArray>,
    Bound<'py, PyByteArray>,
    Bound<'py, PyByteArray>,
    Bound<'py, PyByteArray>,
    Bound<'py, PyByteArray>,
);

#[pyclass(frozen, module = "pyllm_kernels._cpu")]
pub(crate) struct LogitsStates(Mutex<Slots>);

#[pymethods]
impl LogitsStates {
    #[new]
    fn new(num_slots: usize, vocab_size: usize) -> PyResult<Self> {
        if vocab_size == 0 || vocab_size > i32::MAX as usize {
            return Err(PyValueError::new_err(format!("vocab_size is {vocab_size}: give 1 to 2,147,483,647")));
        }
        Ok(Self(Mutex::new(Slots::new(num_slots, vocab_size))))
    }

    #[pyo3(signature = (
        slot, tokens, num_prompt_tokens, *, presence_penalty=0.0, frequency_penalty=0.0, repetition_penalty=1.0,
        bias_ids=None, bias_values=None, bad_words=None, min_tokens=0, stop_token_ids=None,
        thinking_budget=0, thinking_starts=None, thinking_ends=None,
    ))]
    #[expect(clippy::too_many_arguments, reason = "they are the keywords that Python has")]
    fn initialise(
        &self,
        py: Python<'_>,
        slot: i32,
        tokens: Numbers<i32>,
        num_prompt_tokens: usize,
        presence_penalty: f32,
        frequency_penalty: f32,
        repetition_penalty: f32,
        bias_ids: Option<Numbers<i32>>,
        bias_values: Option<Numbers<f32>>,
        bad_words: Option<Vec<Numbers<i32>>>,
        min_tokens: usize,
        stop_token_ids: Option<Numbers<i32>>,
        thinking_budget: usize,
        thinking_starts: Option<Vec<Numbers<i32>>>,
        thinking_ends: Option<Vec<Numbers<i32>>>,
    ) -> PyResult<()> {
        let sequences = |all: Option<Vec<Numbers<i32>>>| all.unwrap_or_default().into_iter().map(|one| one.0).collect();
        let ids = bias_ids.map_or_else(Vec::new, |ids| ids.0);
        let values = bias_values.map_or_else(Vec::new, |values| values.0);
        if ids.len() != values.len() {
            return Err(state_error(&StateError::Lengths {
                what: "bias_values",
                length: values.len(),
                expected: ids.len(),
            }));
        }
        let rules = Rules {
            presence_penalty,
            frequency_penalty,
            repetition_penalty,
            bias: ids.into_iter().zip(values).collect(),
            bad_words: sequences(bad_words),
            min_tokens,
            stop_token_ids: stop_token_ids.map_or_else(Vec::new, |ids| ids.0),
            thinking: Thinking {
                budget: thinking_budget,
                starts: sequences(thinking_starts),
                ends: sequences(thinking_ends),
            },
        };
        self.with(py, |slots| slots.initialise(slot, &tokens.0, num_prompt_tokens, rules))
    }

    fn clear(&self, py: Python<'_>, slots: Numbers<i32>) -> PyResult<()> {
        self.with(py, |all| all.clear(&slots.0))
    }

    fn copy(&self, py: Python<'_>, pairs: Numbers<i32>) -> PyResult<()> {
        self.with(py, |all| all.copy(&pairs.0))
    }

    #[expect(clippy::too_many_arguments, reason = "they are the plan's sections")]
    fn catch_up<'py>(
        &self,
        py: Python<'py>,
        slots: Numbers<i32>,
        query_starts: Numbers<i32>,
        sequence_lengths: Numbers<i32>,
        tokens: Numbers<i32>,
        sampled_starts: Numbers<i32>,
        logits_rows: Numbers<i32>,
    ) -> PyResult<Bound<'py, PyByteArray>> {
        let step = Step {
            slots: &slots.0,
            query_starts: &query_starts.0,
            sequence_lengths: &sequence_lengths.0,
            tokens: &tokens.0,
            sampled_starts: &sampled_starts.0,
            logits_rows: &logits_rows.0,
        };
        let readiness = self.with(py, |slots| slots.catch_up(step))?;
        column(py, &readiness, |readiness| [readiness as u8])
    }

    fn push(&self, py: Python<'_>, slots: Numbers<i32>, starts: Numbers<i32>, tokens: Numbers<i32>) -> PyResult<()> {
        self.with(py, |all| all.push(&slots.0, &starts.0, &tokens.0))
    }

    fn edits<'py>(
        &self,
        py: Python<'py>,
        slots: Numbers<i32>,
        draft_starts: Numbers<i32>,
        drafts: Numbers<i32>,
    ) -> PyResult<Columns<'py>> {
        let edits = self.with(py, |all| all.edits(&slots.0, &draft_starts.0, &drafts.0))?;
        Ok((
            column(py, &edits.starts, i32::to_ne_bytes)?,
            column(py, &edits.ids, i32::to_ne_bytes)?,
            column(py, &edits.bias, f32::to_ne_bytes)?,
            column(py, &edits.repetition, f32::to_ne_bytes)?,
            column(py, &edits.subtracted, f32::to_ne_bytes)?,
        ))
    }

    fn length(&self, py: Python<'_>, slot: i32) -> PyResult<usize> {
        self.with(py, |slots| Ok(slots.get(slot)?.map_or(0, super::Slot::len)))
    }

    fn tokens<'py>(&self, py: Python<'py>, slot: i32, start: usize) -> PyResult<Bound<'py, PyByteArray>> {
        let tokens = self.with(py, |all| Ok(all.get(slot)?.map(|slot| slot.tokens_from(start))))?;
        column(py, &tokens.unwrap_or_default(), i32::to_ne_bytes)
    }
}

impl LogitsStates {
    /// The interpreter lock is released, as another thread may hold it while waiting for this one.
    fn with<R: Send>(
        &self,
        py: Python<'_>,
        call: impl FnOnce(&mut Slots) -> Result<R, StateError> + Send,
    ) -> PyResult<R> {
        py.detach(|| call(&mut self.lock())).map_err(|error| state_error(&error))
    }

    fn lock(&self) -> MutexGuard<'_, Slots> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn state_error(error: &StateError) -> PyErr {
    PyValueError::new_err(error.to_string())
}

/// Numbers from any buffer of them, or from bytes.
struct Numbers<T>(Vec<T>);

impl<'py, T: Element + FromBytes> FromPyObject<'_, 'py> for Numbers<T> {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        let buffer = PyUntypedBuffer::get(&object)?;
        if let Ok(numbers) = buffer.as_typed::<T>() {
            return Ok(Self(numbers.to_vec(object.py())?));
        }
        let Ok(bytes) = buffer.as_typed::<u8>() else {
            let (format, name) = (buffer.format().to_string_lossy(), std::any::type_name::<T>());
            return Err(PyValueError::new_err(format!("elements of format {format}: give {name} or bytes")));
        };
        let bytes = bytes.to_vec(object.py())?;
        let (numbers, rest) = bytes.as_chunks::<4>();
        if !rest.is_empty() {
            return Err(PyValueError::new_err(format!("{} bytes: give a multiple of 4", bytes.len())));
        }
        Ok(Self(numbers.iter().map(|&bytes| T::from_bytes(bytes)).collect()))
    }
}

trait FromBytes {
    fn from_bytes(bytes: [u8; 4]) -> Self;
}

impl FromBytes for i32 {
    fn from_bytes(bytes: [u8; 4]) -> Self {
        Self::from_ne_bytes(bytes)
    }
}

impl FromBytes for f32 {
    fn from_bytes(bytes: [u8; 4]) -> Self {
        Self::from_ne_bytes(bytes)
    }
}

/// Numbers as bytes that numpy and torch take without a copy, and may write to.
fn column<'py, T: Copy, const SIZE: usize>(
    py: Python<'py>,
    numbers: &[T],
    to_bytes: impl Fn(T) -> [u8; SIZE],
) -> PyResult<Bound<'py, PyByteArray>> {
    PyByteArray::new_with(py, numbers.len() * SIZE, |bytes| {
        for (place, &number) in bytes.as_chunks_mut::<SIZE>().0.iter_mut().zip(numbers) {
            *place = to_bytes(number);
        }
        Ok(())
    })
}
