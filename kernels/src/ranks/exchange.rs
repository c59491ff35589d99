//! The Python class of a rank; `_cpu.pyi` documents it.

use std::net::TcpStream;
use std::os::fd::FromRawFd;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use pyo3::buffer::PyBuffer;
use pyo3::exceptions::{PyConnectionError, PyOSError, PyRuntimeError, PyTimeoutError, PyValueError};
use pyo3::prelude::*;

use super::shared_memory::SharedMemory;
use super::sockets::Sockets;
use super::{Place, RankError, Ranks};
use crate::dtype::DType;
use crate::isa::Isa;

#[pyclass(frozen, module = "pyllm_kernels._cpu")]
pub(crate) struct RankExchange(Mutex<Ranks>, Place);

#[pymethods]
impl RankExchange {
    #[staticmethod]
    fn in_memory(descriptor: i32, rank: usize, size: usize, num_stages: usize, timeout: f64) -> PyResult<Self> {
        let (place, timeout) = (place(rank, size, num_stages)?, seconds(timeout)?);
        let memory = SharedMemory::new(descriptor, place, timeout)?;
        Ok(Self(Mutex::new(Ranks::new(place, Box::new(memory))), place))
    }

    #[staticmethod]
    fn over_tcp(
        sockets: Vec<(usize, i32)>,
        rank: usize,
        size: usize,
        num_stages: usize,
        timeout: f64,
    ) -> PyResult<Self> {
        // SAFETY: the stub requires that the descriptors are sockets of nobody else.
        let streams = sockets.into_iter().map(|(rank, socket)| (rank, unsafe { TcpStream::from_raw_fd(socket) }));
        let streams: Vec<_> = streams.collect();
        let (place, timeout) = (place(rank, size, num_stages)?, seconds(timeout)?);
        let mut found: Vec<usize> = streams.iter().map(|(rank, _)| *rank).collect();
        found.sort_unstable();
        let others = place.before().into_iter().chain(place.stage()).chain(place.after());
        let expected: Vec<usize> = others.filter(|&other| other != rank).collect();
        if found != expected {
            return Err(PyValueError::new_err(format!(
                "sockets to the ranks {found:?}, and rank {rank} exchanges with {expected:?}"
            )));
        }
        let sockets = Sockets::new(streams, place, timeout)?;
        Ok(Self(Mutex::new(Ranks::new(place, Box::new(sockets))), place))
    }

    fn all_gather(&self, py: Python<'_>, part: PyBuffer<u8>, whole: PyBuffer<u8>) -> PyResult<()> {
        // SAFETY: the stub requires that nothing else writes to the arguments during the call.
        let (part, whole) = unsafe { (bytes(py, &part)?, bytes_mut(py, &whole)?) };
        self.check_whole(part, whole)?;
        self.run(py, |ranks| ranks.all_gather(part, whole))
    }

    fn gather(
        &self,
        py: Python<'_>,
        part: PyBuffer<u8>,
        row_bytes: usize,
        whole: Option<PyBuffer<u8>>,
    ) -> PyResult<()> {
        // SAFETY: as above.
        let (part, whole) =
            unsafe { (bytes(py, &part)?, whole.as_ref().map(|whole| bytes_mut(py, whole)).transpose()?) };
        if whole.is_some() != (self.1.index() == 0) {
            return Err(PyValueError::new_err("the first rank of a stage, and no other, has room for all parts"));
        }
        if !part.is_empty() && (row_bytes == 0 || part.len() % row_bytes != 0) {
            return Err(PyValueError::new_err(format!("{} bytes in rows of {row_bytes}", part.len())));
        }
        whole.as_ref().map_or(Ok(()), |whole| self.check_whole(part, whole))?;
        self.run(py, |ranks| ranks.gather(part, row_bytes, whole))
    }

    fn broadcast(&self, py: Python<'_>, part: PyBuffer<u8>) -> PyResult<()> {
        // SAFETY: as above.
        let part = unsafe { bytes_mut(py, &part)? };
        self.run(py, |ranks| ranks.broadcast(part))
    }

    fn sum(&self, py: Python<'_>, dtype: &str, part: PyBuffer<u8>) -> PyResult<()> {
        let dtype = DType::named(dtype)
            .ok_or_else(|| PyValueError::new_err(format!("no sum of {dtype}: use float32, bfloat16 or float16")))?;
        // SAFETY: as above.
        let part = unsafe { bytes_mut(py, &part)? };
        if part.len() % dtype.bytes() != 0 || part.as_ptr().addr() % dtype.bytes() != 0 {
            return Err(PyValueError::new_err(format!("{} bytes that are no numbers of {}", part.len(), dtype.name())));
        }
        self.run(py, |ranks| ranks.sum(dtype, part, Isa::used()))
    }

    fn allocate_messages(&self, py: Python<'_>, num_messages: usize, max_bytes: usize) -> PyResult<()> {
        if num_messages == 0 {
            return Err(PyValueError::new_err("room for no message: give at least 1"));
        }
        self.run(py, |ranks| ranks.allocate_messages(num_messages, max_bytes))
    }

    fn send(&self, py: Python<'_>, parts: Vec<PyBuffer<u8>>) -> PyResult<()> {
        // SAFETY: as above.
        let parts = parts.iter().map(|part| unsafe { bytes(py, part) }).collect::<PyResult<Vec<_>>>()?;
        if self.1.after().is_none() {
            return Err(PyValueError::new_err("the last stage sends nothing"));
        }
        self.run(py, |ranks| ranks.send(&parts))
    }

    fn receive(&self, py: Python<'_>, parts: Vec<PyBuffer<u8>>) -> PyResult<()> {
        // SAFETY: as above.
        let mut parts = parts.iter().map(|part| unsafe { bytes_mut(py, part) }).collect::<PyResult<Vec<_>>>()?;
        if self.1.before().is_none() {
            return Err(PyValueError::new_err("the first stage receives nothing"));
        }
        self.run(py, |ranks| ranks.receive(&mut parts))
    }
}

impl RankExchange {
    fn run(&self, py: Python<'_>, exchange: impl FnOnce(&mut Ranks) -> super::Result<()> + Send) -> PyResult<()> {
        py.detach(|| exchange(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))).map_err(|error| {
            let text = error.to_string();
            match error {
                RankError::Ended(_) => PyConnectionError::new_err(text),
                RankError::Late(..) => PyTimeoutError::new_err(text),
                RankError::Differs(..) => PyValueError::new_err(text),
                RankError::System(_) => PyOSError::new_err(text),
                RankError::Broken(_) => PyRuntimeError::new_err(text),
            }
        })
    }

    fn check_whole(&self, part: &[u8], whole: &[u8]) -> PyResult<()> {
        let expected = part.len() * self.1.size;
        if whole.len() == expected {
            return Ok(());
        }
        Err(PyValueError::new_err(format!("room for {} bytes, and the parts have {expected}", whole.len())))
    }
}

fn place(rank: usize, size: usize, num_stages: usize) -> PyResult<Place> {
    if rank >= size * num_stages {
        return Err(PyValueError::new_err(format!("rank {rank} of {size} ranks in each of {num_stages} stages")));
    }
    Ok(Place { rank, size, num_stages })
}

fn seconds(timeout: f64) -> PyResult<Duration> {
    Duration::try_from_secs_f64(timeout)
        .map_err(|error| PyValueError::new_err(format!("a timeout of {timeout} s: {error}")))
}

/// # Safety
///
/// Nothing writes to the buffer while the slice lives.
unsafe fn bytes<'a>(py: Python<'_>, buffer: &'a PyBuffer<u8>) -> PyResult<&'a [u8]> {
    let cells = buffer.as_slice(py).ok_or_else(|| PyValueError::new_err("the bytes are not contiguous"))?;
    // SAFETY: the same memory, and the caller promises the rest.
    Ok(unsafe { std::slice::from_raw_parts(cells.as_ptr().cast(), cells.len()) })
}

/// # Safety
///
/// Nothing else accesses the buffer while the slice lives.
#[expect(clippy::mut_from_ref, reason = "a buffer is memory of another object")]
unsafe fn bytes_mut<'a>(py: Python<'_>, buffer: &'a PyBuffer<u8>) -> PyResult<&'a mut [u8]> {
    let cells =
        buffer.as_mut_slice(py).ok_or_else(|| PyValueError::new_err("the bytes are read-only or not contiguous"))?;
    // SAFETY: as above.
    Ok(unsafe { std::slice::from_raw_parts_mut(cells.as_ptr().cast_mut().cast(), cells.len()) })
}
