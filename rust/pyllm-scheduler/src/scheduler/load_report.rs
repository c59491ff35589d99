//! The report of this core's load for placements: changes of its prefix cache, and its work. Takes no part in decisions
//! here.

use std::collections::{BTreeMap, HashSet};

use crate::estimates::core_load::{CoreLoad, TenantLoad, work};
use crate::kv_cache::changes::Change;
use crate::kv_cache::hash::BlockHash;
use crate::sequence::{LiveRequest, Sequence};

use super::Scheduler;

/// Low bits of a negative number that name a part of a snapshot; the others have the number of its first change.
const PART_BITS: u32 = 20;

/// Maximum number of queued sequences whose cached tokens are looked up per load. The others are taken to be alike.
const MAX_LOOKED_UP: u32 = 256;

/// A reported load may be older by one input per this many live sequences.
const SEQUENCES_PER_INPUT: u64 = 1000;

/// Stride in blocks at which a prompt is probed for the end of its cached prefix.
const STRIDE: usize = 8;

/// The arguments of `Placement::update_core`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoadReport {
    /// The number for the next call. If it differs from this call's, there may be more.
    pub next: i64,
    /// Changes of the prefix cache, at most 16,384.
    pub changes: Vec<u8>,
    /// The queued work, and the speed of steps.
    pub load: Vec<u8>,
}

/// The encoded load after `num_inputs`.
#[derive(Default)]
pub(super) struct PackedLoad {
    num_inputs: u64,
    bytes: Vec<u8>,
}

/// The place at which a report continues.
enum Cursor {
    Number(u64),
    /// A part of a snapshot, to be completed by the changes from number `start` on.
    Part {
        start: u64,
        part: usize,
    },
}

impl Scheduler {
    /// Changes of the prefix cache from `number` on, and the load. With -1, or a number that is too old, a snapshot: it
    /// clears everything, then adds the stored blocks. The first call starts the log of changes.
    pub fn load_report(&mut self, number: i64) -> LoadReport {
        let mut changes = Vec::new();
        let next = match self.told_from(number) {
            Cursor::Number(first) => {
                let log = self.cache.changes();
                let told = log.since(first).into_iter().flatten().take(log.max_told);
                let mut next = first as i64;
                for change in told {
                    change.write(&mut changes);
                    next += 1;
                }
                next
            }
            Cursor::Part { start, part } => {
                if part == 0 {
                    Change::Cleared.write(&mut changes);
                }
                let known = self.cache.known_part(part);
                known.into_iter().flatten().for_each(|change| change.write(&mut changes));
                let is_last = self.cache.known_part(part + 1).is_none();
                if is_last { start as i64 } else { number_of(start, part + 1) }
            }
        };
        LoadReport { next, changes, load: self.packed_load() }
    }

    /// See `KvCache::limit_changes`.
    #[cfg(test)]
    pub(crate) fn limit_changes(&mut self, capacity: usize, max_told: usize) {
        self.cache.limit_changes(capacity, max_told);
    }

    fn told_from(&mut self, number: i64) -> Cursor {
        let cursor = if number >= 0 { Cursor::Number(number as u64) } else { part_of(number) };
        let changes = self.cache.changes();
        match cursor {
            Cursor::Number(first) | Cursor::Part { start: first, part: 1.. } if changes.since(first).is_some() => {
                cursor
            }
            _ => Cursor::Part { start: changes.next(), part: 0 },
        }
    }

    fn packed_load(&mut self) -> Vec<u8> {
        // Several clients ask in turn, and a scan of all sequences takes time. If there are many, one input hardly
        // changes the load.
        let num_new = self.num_inputs - self.packed_load.num_inputs;
        if self.packed_load.bytes.is_empty() || num_new > self.sequences.len() as u64 / SEQUENCES_PER_INPUT {
            let bytes = self.core_load().to_bytes();
            self.packed_load = PackedLoad { num_inputs: self.num_inputs, bytes };
        }
        self.packed_load.bytes.clone()
    }

    fn core_load(&mut self) -> CoreLoad {
        let shares_by_tenant = self.policy.shares_by_tenant();
        let mut works: BTreeMap<&str, f64> = BTreeMap::new();
        let mut looked_up = LookedUp::default();
        for (_, sequence) in self.sequences.iter() {
            let live = &self.requests[sequence.request];
            let num_cached = self.num_cached_tokens(sequence, live, &mut looked_up);
            let input = sequence.num_uncomputed() - num_cached;
            let remaining = self.output_lengths.remaining(sequence.output.len() as u32).ceil() as u32;
            let output = remaining.min(sequence.max_length.saturating_sub(sequence.num_known())).max(1);
            let tenant = if shares_by_tenant { live.request.tenant.as_str() } else { "" };
            *works.entry(tenant).or_default() += work(input, output.saturating_mul(sequence.num_samples));
        }
        let tenants = works.into_iter().map(|(tenant, work)| {
            let weight = self.weight(tenant).into();
            TenantLoad { tenant: tenant.to_owned(), weight, work }
        });
        let mut load = CoreLoad {
            shares_by_tenant,
            tenants: tenants.collect(),
            others: TenantLoad::default(),
            num_requests: self.requests.len() as u64,
            output_length: self.output_lengths.mean(),
            steps: self.step_sums,
            caches_prefixes: self.config.enable_prefix_caching,
            windows: self.config.kv_groups.iter().map(|group| group.window).collect(),
        };
        load.shorten();
        load
    }

    /// Tokens of a new sequence that will be cached when it runs, or computed by an earlier one in the queue.
    fn num_cached_tokens(&self, sequence: &Sequence, live: &LiveRequest, looked_up: &mut LookedUp) -> u32 {
        if sequence.num_computed > 0 || !live.shares_prefix(&self.config) {
            return 0;
        }
        let num_tokens = sequence.num_prompt_tokens - 1;
        if looked_up.num_sequences == MAX_LOOKED_UP {
            return (f64::from(num_tokens) * looked_up.share()) as u32;
        }
        let hashes = &live.prompt_hashes[..(num_tokens / self.config.block_size) as usize];
        let group = self.config.kv_groups.iter().position(|group| group.window.is_none()).unwrap_or(0);
        let short = |hash: &BlockHash| hash.of(group as u32).short();
        let is_known = |hash: &BlockHash| self.cache.is_known(hash.of(group as u32));
        // Chains are evicted from their tail, so no block is cached without those before it.
        let probes = || hashes.iter().skip(STRIDE - 1).step_by(STRIDE);
        let probes: Vec<_> = probes().collect();
        let num_found = probes.partition_point(|hash| looked_up.coming.contains(&short(hash)) || is_known(hash));
        looked_up.coming.extend(probes[num_found..].iter().map(|hash| short(hash)));
        let rest = &hashes[num_found * STRIDE..];
        let num_blocks = num_found * STRIDE + rest.iter().take(STRIDE - 1).take_while(|hash| is_known(hash)).count();
        looked_up.add(num_tokens, num_blocks as u32 * self.config.block_size)
    }
}

/// The result of lookups for the queued sequences so far.
#[derive(Default)]
struct LookedUp {
    num_sequences: u32,
    num_tokens: f64,
    num_cached: f64,
    coming: HashSet<u64>, // of blocks not cached yet, short names
}

impl LookedUp {
    fn add(&mut self, num_tokens: u32, num_cached: u32) -> u32 {
        self.num_sequences += 1;
        self.num_tokens += f64::from(num_tokens);
        self.num_cached += f64::from(num_cached);
        num_cached
    }

    fn share(&self) -> f64 {
        self.num_cached / self.num_tokens.max(1.0)
    }
}

/// -1 is a new snapshot; numbers below are parts of one that has begun.
fn number_of(start: u64, part: usize) -> i64 {
    -1 - (((start as i64) << PART_BITS) | part as i64)
}

fn part_of(number: i64) -> Cursor {
    let packed = (-1 - number) as u64;
    Cursor::Part { start: packed >> PART_BITS, part: (packed & ((1 << PART_BITS) - 1)) as usize }
}
