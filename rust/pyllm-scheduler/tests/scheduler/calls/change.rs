//! Changes of live settings.

use proptest::prelude::*;
use proptest::sample::select;
use pyllm_scheduler::{Config, PolicyName};

#[derive(Clone, Copy, Debug)]
pub enum Change {
    Budget(u32),
    LongPrefill(u32),
    InterTokenTarget(f64),
    Policy(PolicyName),
    TenantWeight(&'static str, u32),
    WeightsVersion(u32),
    Watermark(f64),
    ExpectedGrowth(f64),
}

pub const POLICIES: [PolicyName; 5] =
    [PolicyName::Fcfs, PolicyName::Priority, PolicyName::Shortest, PolicyName::Fair, PolicyName::Custom];

impl Change {
    pub fn apply(self, config: &mut Config) {
        match self {
            Self::Budget(tokens) => config.max_num_batched_tokens = tokens,
            Self::LongPrefill(tokens) => config.long_prefill_token_threshold = tokens,
            Self::InterTokenTarget(seconds) => config.inter_token_target = seconds,
            Self::Policy(policy) => config.policy = policy,
            Self::TenantWeight(tenant, weight) => drop(config.tenant_weights.insert(tenant.to_owned(), weight)),
            Self::WeightsVersion(version) => config.weights_version = format!("v{version}"),
            Self::Watermark(share) => config.watermark = share,
            Self::ExpectedGrowth(share) => config.expected_growth = share,
        }
    }
}

pub fn change() -> impl Strategy<Value = Change> {
    prop_oneof![
        3 => (1..=32_u32).prop_map(Change::Budget),
        1 => (0..8_u32).prop_map(Change::LongPrefill),
        1 => select(&[0.0, 0.0, 1e-6, 0.3, 1e6][..]).prop_map(Change::InterTokenTarget),
        4 => select(&POLICIES[..]).prop_map(Change::Policy),
        1 => (select(&["", "one", "two"][..]), 1..4_u32).prop_map(|(tenant, weight)| Change::TenantWeight(tenant, weight)),
        1 => (0..3_u32).prop_map(Change::WeightsVersion),
        1 => select(&[0.0, 0.0, 0.1, 0.5, 0.99][..]).prop_map(Change::Watermark),
        1 => select(&[0.0, 0.0, 0.5, 1.0, 16.0][..]).prop_map(Change::ExpectedGrowth),
    ]
}
