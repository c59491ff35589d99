//! A core's report of its load, for the choice between cores: its work by tenant, the speed of its steps, and the
//! layout of its cache. Knows neither the scheduler nor the placement.

use serde::{Deserialize, Serialize};

use crate::estimates::step_sums::StepSums;
use crate::policy::{INPUT_COST, OUTPUT_COST};

/// Tenants with the most work are reported by name, this many; the others as one sum.
const MAX_TENANTS: usize = 256;

/// The load of a core. Work is counted as by `work`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct CoreLoad {
    /// Whether a request waits for its own tenant's work, by weight, instead of for all work.
    pub(crate) shares_by_tenant: bool,
    /// One without a name, unless the policy shares by tenant.
    pub(crate) tenants: Vec<TenantLoad>,
    pub(crate) others: TenantLoad,
    pub(crate) num_requests: u64,
    /// Expected output tokens of a new sample.
    pub(crate) output_length: f64,
    pub(crate) steps: StepSums,
    pub(crate) caches_prefixes: bool,
    /// Attention window of each group of layers, in positions.
    pub(crate) windows: Vec<Option<u32>>,
    /// Whether the model has states, so that a cached prefix ends at a checkpoint.
    pub(crate) has_states: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct TenantLoad {
    pub(crate) tenant: String,
    pub(crate) weight: f64,
    pub(crate) work: f64,
}

/// Work of tokens to compute and to generate, in the units that tenants are charged.
#[expect(clippy::cast_precision_loss, reason = "what a token costs is a small number")]
pub(crate) fn work(num_inputs: u32, num_outputs: u32) -> f64 {
    f64::from(num_inputs) * INPUT_COST as f64 + f64::from(num_outputs) * OUTPUT_COST as f64
}

impl CoreLoad {
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        postcard::to_allocvec(self).expect("a load holds nothing that cannot be written")
    }

    /// None if the bytes cannot be decoded.
    pub(crate) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (load, rest) = postcard::take_from_bytes::<Self>(bytes).ok()?;
        (rest.is_empty() && load.is_sound()).then_some(load)
    }

    /// Whether every number is in its range.
    fn is_sound(&self) -> bool {
        let is_amount = |value: f64| value.is_finite() && value >= 0.0;
        let StepSums { num_steps, work, seconds, work_squared, work_by_seconds } = self.steps;
        let others = is_amount(self.others.weight) && is_amount(self.others.work);
        let tenants =
            self.tenants.iter().all(|tenant| tenant.weight >= 1.0 && is_amount(tenant.weight.max(tenant.work)));
        let steps = [work, seconds, work_squared, work_by_seconds];
        let steps = steps.into_iter().all(|value| is_amount(value) && (value > 0.0 || num_steps == 0));
        others
            && tenants
            && steps
            && is_amount(self.output_length)
            && self.windows.iter().all(|&window| window != Some(0))
    }

    /// Merges the smallest tenants, so that the size of a load is bounded.
    pub(crate) fn shorten(&mut self) {
        if self.tenants.len() > MAX_TENANTS {
            self.tenants.sort_by(|one, other| other.work.total_cmp(&one.work));
            for tenant in self.tenants.drain(MAX_TENANTS..) {
                self.others.weight += tenant.weight;
                self.others.work += tenant.work;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_load_is_read_as_it_was_written_and_nothing_else_is() {
        let tenant = TenantLoad { tenant: "a".to_owned(), weight: 2.0, work: 7.0 };
        let load = CoreLoad { tenants: vec![tenant], windows: vec![None, Some(9)], ..CoreLoad::default() };
        let bytes = load.to_bytes();
        assert_eq!(CoreLoad::from_bytes(&bytes), Some(load));
        assert_eq!(CoreLoad::from_bytes(&bytes[1..]), None);
        assert_eq!(CoreLoad::from_bytes(&[bytes, vec![0]].concat()), None);
        let unsound = CoreLoad { output_length: f64::NAN, ..CoreLoad::default() };
        assert_eq!(CoreLoad::from_bytes(&unsound.to_bytes()), None);
    }

    #[test]
    fn the_smallest_of_many_tenants_are_told_of_together() {
        let tenant = |work: u32| TenantLoad { tenant: work.to_string(), weight: 1.0, work: work.into() };
        let mut load = CoreLoad { tenants: (0..300).map(tenant).collect(), ..CoreLoad::default() };
        load.shorten();
        assert_eq!(
            (load.tenants.len(), load.others.weight, load.others.work),
            (256, 44.0, f64::from((0..44).sum::<u32>()))
        );
        assert!(load.tenants.iter().all(|tenant| tenant.work >= 44.0));
    }
}
