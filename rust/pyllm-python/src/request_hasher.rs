//! `RequestHasher` for Python: arguments are converted, nothing is decided.

use std::sync::{Mutex, PoisonError};

use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::buffers::ids_from_bytes;
use crate::errors::value_error;
use crate::keywords;
use crate::numbers::Number;

#[pyclass(frozen, module = "pyllm._rust")]
pub(crate) struct RequestHasher(Mutex<pyllm_scheduler::RequestHasher>);

#[pymethods]
impl RequestHasher {
    #[new]
    #[pyo3(signature = (*, block_size, prefix_hash = "blake3", prefix_hash_seed = "", cache_namespace = ""))]
    fn new(
        py: Python<'_>,
        block_size: Number<u32>,
        prefix_hash: &str,
        prefix_hash_seed: &str,
        cache_namespace: &str,
    ) -> PyResult<Self> {
        let (prefix_hash, seed) = keywords::prefix_hash(py, prefix_hash, prefix_hash_seed)?;
        let block_size = block_size.named("block_size")?;
        let hasher = pyllm_scheduler::RequestHasher::new(block_size, prefix_hash, &seed, cache_namespace);
        hasher.map(|hasher| Self(Mutex::new(hasher))).map_err(|error| value_error(&error))
    }

    #[pyo3(signature = (prompt, *, tenant = "", cache_salt = "", adapter = "", weights_version = ""))]
    fn hashes<'py>(
        &self,
        py: Python<'py>,
        prompt: &[u8],
        tenant: &str,
        cache_salt: &str,
        adapter: &str,
        weights_version: &str,
    ) -> PyResult<Vec<Bound<'py, PyBytes>>> {
        let prompt = ids_from_bytes("prompt", prompt)?;
        let hashes: Vec<_> = py.detach(|| {
            let mut hasher = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            hasher.hashes(&prompt, tenant, cache_salt, adapter, weights_version).collect()
        });
        Ok(hashes.iter().map(|hash| PyBytes::new(py, hash.as_bytes())).collect())
    }
}
