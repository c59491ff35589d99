//! Ops whose result is rows that depend on one row each. Know no attention.

pub(crate) mod activation;
pub(crate) mod elementwise;
pub(crate) mod norm;
