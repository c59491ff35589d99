//! `pyllm_kernels._cpu`: the kernels for CPUs. Each op reads its arguments in its own file; the stub
//! `pyllm_kernels/_cpu.pyi` documents the classes.
#![expect(clippy::needless_pass_by_value, reason = "PyO3 extracts an argument by value")]

#[cfg(target_arch = "x86_64")]
mod amx_tiles;
mod arrays;
mod attention;
mod blocks;
mod capture;
mod dtype;
mod experts;
mod isa;
mod kv_layer;
mod linear;
mod logits;
mod memory;
mod op;
mod execution;
mod ranks;
mod recurrence;
mod rope;
mod rows;
mod threads;
mod vector;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use isa::Isa;
use threads::Pool;
use threads::pool::{self, pool};

#[pyfunction]
fn set_num_threads(py: Python<'_>, num_threads: usize) -> PyResult<()> {
    if !(1..=1024).contains(&num_threads) {
        return Err(PyValueError::new_err(format!("{num_threads} threads: choose 1 to 1,024")));
    }
    py.detach(|| *pool() = Pool::new(num_threads));
    Ok(())
}

#[pyfunction]
fn stay_awake(py: Python<'_>, awake: bool) {
    py.detach(|| pool().stay_awake(awake));
}

/// A forked process has no threads, and a lock that may be held for ever: it starts with a new pool.
#[pyfunction]
fn forget_threads() {
    pool::forget();
}

#[pyfunction]
fn num_threads(py: Python<'_>) -> usize {
    py.detach(|| pool().num_threads())
}

#[pyfunction]
fn instruction_set() -> &'static str {
    Isa::used().name()
}

#[pyfunction]
fn use_instruction_set(name: &str) -> PyResult<()> {
    Isa::choose(name).map_err(PyValueError::new_err)
}

#[pymodule]
mod _cpu {
    use pyo3::pymodule;

    #[pymodule_export]
    use super::capture::{Graph, Lease, OpTimes};
    #[pymodule_export]
    use super::linear::matrix_rows::{copy_rows, read_rows};
    #[pymodule_export]
    use super::linear::packed_linear::Linear;
    #[pymodule_export]
    use super::logits::states::LogitsStates;
    #[pymodule_export]
    use super::ranks::exchange::RankExchange;
    #[pymodule_export]
    use super::{forget_threads, instruction_set, num_threads, set_num_threads, stay_awake, use_instruction_set};

    #[pymodule]
    mod ops {
        #[pymodule_export]
        use crate::attention::{paged_attention, score_blocks, select_blocks, select_tokens};
        #[pymodule_export]
        use crate::blocks::copy_blocks;
        #[pymodule_export]
        use crate::experts::experts;
        #[pymodule_export]
        use crate::logits::edit_logits::edit_logits;
        #[pymodule_export]
        use crate::logits::logprobs::logprobs;
        #[pymodule_export]
        use crate::logits::sampling::sample;
        #[pymodule_export]
        use crate::recurrence::causal_convolution::{causal_convolution, gated_convolution};
        #[pymodule_export]
        use crate::recurrence::gated_delta_rule::gated_delta_rule;
        #[pymodule_export]
        use crate::recurrence::selective_scan::selective_scan;
        #[pymodule_export]
        use crate::recurrence::state_space::state_space;
        #[pymodule_export]
        use crate::rope::{rope, rope_and_kv_write};
        #[pymodule_export]
        use crate::rows::activation::activation;
        #[pymodule_export]
        use crate::rows::elementwise::{
            add, add_bias, clamp, scale_and_cap, sigmoid_gate, silu_gate, softplus_gate, widen,
        };
        #[pymodule_export]
        use crate::rows::gated_norm::gated_norm;
        #[pymodule_export]
        use crate::rows::lora::add_lora;
        #[pymodule_export]
        use crate::rows::norm::{add_norm, norm};
        #[pymodule_export]
        use crate::rows::streams::{
            add_to_streams, correct_streams, gaussian_top_k, join_streams, match_magnitudes, predict_streams,
        };
    }
}
