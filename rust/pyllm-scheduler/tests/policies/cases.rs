//! How many cases a property gets: the variable `PROPTEST_CASES`, which `make proofs` sets, goes before its own number.

use proptest::prelude::ProptestConfig;

pub fn cases(number: u32) -> ProptestConfig {
    let asked = ProptestConfig { failure_persistence: None, ..ProptestConfig::default() };
    if std::env::var_os("PROPTEST_CASES").is_some() { asked } else { ProptestConfig { cases: number, ..asked } }
}
