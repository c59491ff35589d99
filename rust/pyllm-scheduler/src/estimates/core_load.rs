//! What a core tells of itself, so that others choose between cores: the work that is there, by tenant, how fast its
//! steps have been, and how its cache is laid out. Knows neither the scheduler nor who chooses.

use serde::{Deserialize, Serialize};

use crate::estimates::step_sums::StepSums;

/// Tenants that are told of by name, those with the most work; the others are told of together.
const MOST_TENANTS: usize = 256;

/// Work is counted in tokens by their cost: `INPUT_COST` for one to compute, `OUTPUT_COST` for one that is expected.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct CoreLoad {
    /// Whether each tenant waits for its own work, by its weight, instead of for all.
    pub(crate) shares_by_tenant: bool,
    /// In no order that means anything; one, without a name, unless it shares by tenant.
    pub(crate) tenants: Vec<TenantLoad>,
    pub(crate) others: TenantLoad,
    pub(crate) num_requests: u64,
    /// Output tokens that are expected of a new sample.
    pub(crate) output_length: f64,
    pub(crate) steps: StepSums,
    pub(crate) caches_prefixes: bool,
    /// Of the groups of layers: positions that a token reads.
    pub(crate) windows: Vec<Option<u32>>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct TenantLoad {
    pub(crate) tenant: String,
    pub(crate) weight: u64,
    pub(crate) work: u64,
}

impl CoreLoad {
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        postcard::to_allocvec(self).expect("a load holds nothing that cannot be written")
    }

    /// None if these bytes are something else.
    pub(crate) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (load, rest) = postcard::take_from_bytes::<Self>(bytes).ok()?;
        rest.is_empty().then_some(load)
    }

    /// Tells of the smallest tenants together, so that a load has a bounded size.
    pub(crate) fn shorten(&mut self) {
        if self.tenants.len() > MOST_TENANTS {
            self.tenants.sort_unstable_by(|one, other| (other.work, &one.tenant).cmp(&(one.work, &other.tenant)));
            for tenant in self.tenants.drain(MOST_TENANTS..) {
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
        let tenant = TenantLoad { tenant: "a".to_owned(), weight: 2, work: 7 };
        let load = CoreLoad { tenants: vec![tenant], windows: vec![None, Some(9)], ..CoreLoad::default() };
        let bytes = load.to_bytes();
        assert_eq!(CoreLoad::from_bytes(&bytes), Some(load));
        assert_eq!(CoreLoad::from_bytes(&bytes[1..]), None);
        assert_eq!(CoreLoad::from_bytes(&[bytes, vec![0]].concat()), None);
    }

    #[test]
    fn the_smallest_of_many_tenants_are_told_of_together() {
        let tenant = |work| TenantLoad { tenant: work.to_string(), weight: 1, work };
        let mut load = CoreLoad { tenants: (0..300).map(tenant).collect(), ..CoreLoad::default() };
        load.shorten();
        assert_eq!((load.tenants.len(), load.others.weight, load.others.work), (256, 44, (0..44).sum()));
        assert_eq!(load.tenants.iter().map(|tenant| tenant.work).min(), Some(44));
    }
}
