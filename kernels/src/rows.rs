//! Ops with rows as results, each of which depends on one row. They know no attention.

pub(crate) mod activation;
pub(crate) mod elementwise;
pub(crate) mod gated_norm;
pub(crate) mod lora;
pub(crate) mod norm;
pub(crate) mod streams;
