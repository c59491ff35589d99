//! The number of cases of a property: the variable `PROPTEST_CASES`, which `make proofs` sets, or the property's own.

use proptest::prelude::ProptestConfig;

pub fn cases(number: u32) -> ProptestConfig {
    let asked = ProptestConfig { failure_persistence: None, ..ProptestConfig::default() };
    if std::env::var_os("PROPTEST_CASES").is_some() { asked } else { ProptestConfig { cases: number, ..asked } }
}
