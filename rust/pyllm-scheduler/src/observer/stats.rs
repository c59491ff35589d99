//! Statistics of the scheduler.

use std::collections::BTreeMap;

use crate::config::Config;
use crate::estimates::histogram::{Histogram, bounds};
use crate::kv::Kv;
use crate::kv::cache::fragmentation::{Fragmentation, TierFragmentation};
use crate::table::Table;
use crate::table::queue::SERVICE_UNIT;

/// Declares `Stats` and its fields by name, so that no other list of them is needed.
macro_rules! stats {
    ($($(#[$doc:meta])* $name:ident),*; $($(#[$histogram_doc:meta])* $histogram:ident: $size:literal = $bounds:expr,)*) => {
        /// Current gauges, and counters since the start. Running, waiting and held are counted in sequences.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[expect(missing_docs, reason = "each name says it; the ones that do not are documented")]
        pub struct Stats {
            $($(#[$doc])* pub $name: u64,)*
            $($(#[$histogram_doc])* pub $histogram: Histogram<$size>,)*
        }

        impl Default for Stats {
            fn default() -> Self {
                Self { $($name: 0,)* $($histogram: Histogram::new($bounds),)* }
            }
        }

        impl Stats {
            /// Every figure with its name.
            pub fn named(&self) -> impl Iterator<Item = (&'static str, u64)> {
                let numbers = [$((stringify!($name), self.$name)),*].into_iter();
                numbers$(.chain(self.$histogram.named()))*
            }
        }
    };
}

stats! {
    num_requests,
    num_running,
    /// Sequences in the queue: waiting, preempted and swapped.
    num_waiting,
    /// Waiting sequences whose keys and values are on the host.
    num_swapped_out,
    num_held,
    /// Preempted beams that wait for their siblings.
    num_paused,
    /// Sequences that wait for loads from an external store.
    num_loading,
    num_blocks,
    /// Blocks without references, including those with contents that the prefix cache knows.
    num_free_blocks,
    num_used_blocks,
    /// Blocks that the prefix cache knows, in use or free.
    num_cached_blocks,
    /// Blocks that pins keep from eviction.
    num_pinned_blocks,
    /// Blocks in host memory; those without references; those with contents that the prefix cache knows.
    num_host_blocks,
    num_free_host_blocks,
    num_cached_host_blocks,
    /// States of a model that has some; those without references; those that the prefix cache knows.
    num_states,
    num_free_states,
    num_cached_states,
    /// States that pins keep from eviction, once for each pin.
    num_pinned_states,
    /// States in host memory; those without references; those that the prefix cache knows.
    num_host_states,
    num_free_host_states,
    num_cached_host_states,
    num_preemptions,
    /// Preempted sequences that were swapped to the host, and preemptions of requests that have ended.
    num_swapped,
    num_ended_preemptions,
    /// Requests that ended at their deadline.
    num_expired,
    /// Tokens looked up in the prefix cache at first admission, and hits; of these, tokens on the host, and tokens
    /// loaded from an external store.
    prefix_queries,
    prefix_hits,
    host_prefix_hits,
    loaded_prefix_hits,
    /// Tokens that were to be computed at first admission, those included that are not looked up.
    num_uncached_tokens,
    /// Tokens planned.
    num_computed_tokens,
    /// Planned steps.
    num_steps,
    /// Draft tokens that a row may have, those that rows verified, and those of them that became output.
    num_speculative_tokens,
    num_drafts,
    num_accepted_drafts,
    /// Loads from an external store that failed in part or in full.
    num_failed_loads,
    /// Blocks of saves under way.
    num_saving_blocks,
    /// Blocks handed over for saving, and candidates that were dropped: evicted before, or too many.
    num_saves,
    num_dropped_saves;
    // The bounds of the first and the last are those of vLLM's `iteration_tokens_total` and `request_num_preemptions`.
    /// Steps by their tokens, which add up to `num_computed_tokens`.
    iteration_tokens: 14 = bounds!("iteration_tokens", 1 8 16 32 64 128 256 512 1024 2048 4096 8192 16384),
    /// Rows with drafts by those of them that became output.
    accepted_drafts: 17 = bounds!("accepted_drafts", 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15),
    /// Requests that have ended by how often they were preempted.
    request_preemptions: 8 = bounds!("request_preemptions", 1 2 3 4 5 10 20),
}

impl Stats {
    /// These counters, with the gauges of now.
    pub(crate) fn with_gauges(self, config: &Config, table: &Table, kv: &Kv) -> Self {
        let cache = kv.cache();
        let num_blocks = u64::from(config.num_blocks);
        let num_free_blocks = u64::from(cache.num_free());
        let (num_saving, num_dropped_saves) = cache.num_saving();
        Self {
            num_requests: table.num_requests() as u64,
            num_running: table.running().len() as u64,
            num_waiting: table.queue().len() as u64,
            num_swapped_out: table.num_swapped_out() as u64,
            num_held: table.num_held() as u64,
            num_paused: table.num_paused() as u64,
            num_loading: kv.loads().num_awaited() as u64,
            num_blocks,
            num_free_blocks,
            num_used_blocks: num_blocks - num_free_blocks,
            num_cached_blocks: cache.num_cached() as u64,
            num_pinned_blocks: u64::from(cache.num_pinned()),
            num_host_blocks: u64::from(config.num_host_blocks),
            num_states: u64::from(config.num_states),
            num_free_states: u64::from(cache.states.device.num_free()),
            num_cached_states: cache.states.device.num_cached() as u64,
            num_pinned_states: cache.pinned_states().count() as u64,
            num_host_states: u64::from(config.num_host_states),
            num_free_host_states: u64::from(cache.states.host.num_free()),
            num_cached_host_states: cache.states.host.num_cached() as u64,
            num_free_host_blocks: u64::from(cache.blocks.host.num_free()),
            num_cached_host_blocks: cache.blocks.host.num_cached() as u64,
            num_saving_blocks: num_saving as u64,
            num_dropped_saves,
            num_speculative_tokens: u64::from(config.num_speculative_tokens),
            ..self
        }
    }
}

/// See `Scheduler::fragmentation`.
pub(crate) fn fragmentation(config: &Config, table: &Table, kv: &Kv) -> Fragmentation {
    let chains =
        || table.sequences().flat_map(|(_, one)| one.chains.iter().map(move |chain| (one.num_computed, chain)));
    let on_device = chains().filter_map(|(num_computed, chain)| {
        Some((*chain.blocks.last()?, (chain.end() * config.block_size).saturating_sub(num_computed)))
    });
    let on_host = chains().filter_map(|(num_computed, chain)| {
        let end = chain.host_first + chain.host_blocks.len() as u32;
        Some((*chain.host_blocks.last()?, (end * config.block_size).saturating_sub(num_computed)))
    });
    Fragmentation {
        device: TierFragmentation::of(config.num_blocks, kv.cache().free_blocks(), on_device),
        host: TierFragmentation::of(config.num_host_blocks, kv.cache().blocks.host.free_blocks(), on_host),
    }
}

/// See `Scheduler::adapter_counts`.
pub(crate) fn adapter_counts(table: &Table) -> Vec<(u32, u32, u32)> {
    let in_slots = table.adapter_slots().adapters().map(|adapter| (adapter, (0, 0)));
    let mut counts: BTreeMap<u32, (u32, u32)> = in_slots.collect();
    for (_, sequence) in table.sequences() {
        let adapter = table[sequence.request].request.adapter_number;
        if adapter > 0 {
            let (running, waiting) = counts.entry(adapter).or_default();
            *if sequence.slot().is_some() { running } else { waiting } += 1;
        }
    }
    counts.into_iter().map(|(adapter, (running, waiting))| (adapter, running, waiting)).collect()
}

/// The service of a tenant under a policy that shares by tenant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TenantService {
    /// The tenant.
    pub tenant: String,
    /// Tokens weighted by cost (1 per computed input token, 2 per output token), divided by the tenant's weight.
    pub service: u64,
    /// Its sequences in the queue.
    pub num_waiting: u64,
}

/// See `Scheduler::tenants`.
pub(crate) fn tenants(table: &Table) -> Vec<TenantService> {
    let lanes = table.queue().lanes();
    let tenants = lanes.map(|(tenant, service, num_waiting)| TenantService {
        tenant: tenant.to_owned(),
        service: service / SERVICE_UNIT,
        num_waiting: num_waiting as u64,
    });
    tenants.collect()
}
