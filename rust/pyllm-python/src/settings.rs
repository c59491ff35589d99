//! Settings by their names. Their ranges are the scheduler's to check.

use std::collections::BTreeMap;

use pyllm_scheduler::{Config, PolicyName};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::SchedulerError;
use crate::numbers::Number;

/// A configuration with some settings changed.
pub(crate) fn changed(mut config: Config, settings: Option<&Bound<'_, PyDict>>) -> PyResult<Config> {
    for (name, value) in settings.into_iter().flatten() {
        set(&mut config, name.extract()?, &value)?;
    }
    Ok(config)
}

fn set(config: &mut Config, name: &str, value: &Bound<'_, PyAny>) -> PyResult<()> {
    match name {
        "block_size" => config.block_size = number(name, value)?,
        "num_blocks" => config.num_blocks = number(name, value)?,
        "num_host_blocks" => config.num_host_blocks = number(name, value)?,
        "max_num_seqs" => config.max_num_seqs = number(name, value)?,
        "max_model_len" => config.max_model_len = number(name, value)?,
        "vocab_size" => config.vocab_size = number(name, value)?,
        "enable_prefix_caching" => config.enable_prefix_caching = value.extract()?,
        "max_pinned_blocks" => config.max_pinned_blocks = number(name, value)?,
        "enable_kv_cache_events" => config.enable_kv_cache_events = value.extract()?,
        "incarnation" => config.incarnation = number(name, value)?,
        "swap_block_seconds" => config.swap_block_seconds = number(name, value)?,
        "num_speculative_tokens" => config.num_speculative_tokens = number(name, value)?,
        "max_num_batched_tokens" => config.max_num_batched_tokens = number(name, value)?,
        "long_prefill_token_threshold" => config.long_prefill_token_threshold = number(name, value)?,
        "inter_token_target" => config.inter_token_target = number(name, value)?,
        "policy" => config.policy = policy(value.extract()?)?,
        "tenant_weights" => config.tenant_weights = weights(name, value)?,
        "weights_version" => config.weights_version = value.extract()?,
        "watermark" => config.watermark = number(name, value)?,
        "expected_growth" => config.expected_growth = number(name, value)?,
        _ => return Err(PyTypeError::new_err(format!("there is no setting {name:?}"))),
    }
    Ok(())
}

fn number<'py, T>(name: &str, value: &Bound<'py, PyAny>) -> PyResult<T>
where
    T: for<'a> FromPyObject<'a, 'py, Error = PyErr>,
{
    value.extract::<Number<T>>()?.named(name)
}

fn weights(name: &str, value: &Bound<'_, PyAny>) -> PyResult<BTreeMap<String, u32>> {
    let weights = value.extract::<BTreeMap<String, Number<u32>>>()?;
    weights
        .into_iter()
        .map(|(tenant, weight)| Ok((tenant.clone(), weight.named(&format!("{name} of {tenant:?}"))?)))
        .collect()
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
