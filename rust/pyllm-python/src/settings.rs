//! Settings by their names. Their ranges are the scheduler's to check.

use pyllm_scheduler::{Config, PolicyName};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::{Integer, SchedulerError};

/// A configuration with some settings changed.
pub(crate) fn changed(mut config: Config, settings: Option<&Bound<'_, PyDict>>) -> PyResult<Config> {
    for (name, value) in settings.into_iter().flatten() {
        set(&mut config, name.extract()?, &value)?;
    }
    Ok(config)
}

fn set(config: &mut Config, name: &str, value: &Bound<'_, PyAny>) -> PyResult<()> {
    match name {
        "block_size" => config.block_size = integer(name, value)?,
        "num_blocks" => config.num_blocks = integer(name, value)?,
        "num_host_blocks" => config.num_host_blocks = integer(name, value)?,
        "max_num_seqs" => config.max_num_seqs = integer(name, value)?,
        "max_model_len" => config.max_model_len = integer(name, value)?,
        "vocab_size" => config.vocab_size = integer(name, value)?,
        "enable_prefix_caching" => config.enable_prefix_caching = value.extract()?,
        "max_pinned_blocks" => config.max_pinned_blocks = integer(name, value)?,
        "enable_kv_cache_events" => config.enable_kv_cache_events = value.extract()?,
        "incarnation" => config.incarnation = value.extract()?,
        "swap_block_seconds" => config.swap_block_seconds = value.extract()?,
        "max_num_batched_tokens" => config.max_num_batched_tokens = integer(name, value)?,
        "long_prefill_token_threshold" => config.long_prefill_token_threshold = integer(name, value)?,
        "inter_token_target" => config.inter_token_target = value.extract()?,
        "policy" => config.policy = policy(value.extract()?)?,
        "tenant_weights" => config.tenant_weights = value.extract()?,
        "weights_version" => config.weights_version = value.extract()?,
        "watermark" => config.watermark = value.extract()?,
        "expected_growth" => config.expected_growth = value.extract()?,
        _ => return Err(PyTypeError::new_err(format!("there is no setting {name:?}"))),
    }
    Ok(())
}

fn integer(name: &str, value: &Bound<'_, PyAny>) -> PyResult<u32> {
    value.extract::<Integer<u32>>()?.named(name)
}

fn policy(name: &str) -> PyResult<PolicyName> {
    match name {
        "fcfs" => Ok(PolicyName::Fcfs),
        "priority" => Ok(PolicyName::Priority),
        "shortest" => Ok(PolicyName::Shortest),
        "fair" => Ok(PolicyName::Fair),
        "custom" => Ok(PolicyName::Custom),
        _ => Err(SchedulerError::new_err(format!(
            "policy {name:?} is not there; there are fcfs, priority, shortest, fair and custom"
        ))),
    }
}
