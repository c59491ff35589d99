//! The report of this core's load for placements: changes of its prefix cache, and its work. Takes no part in decisions
//! here.

use std::collections::{BTreeMap, HashSet};

use crate::block_hash::BlockHash;
use crate::config::Config;
use crate::estimates::core_load::{CoreLoad, TenantLoad, work};
use crate::kv::Kv;
use crate::kv::cache::KvCache;
use crate::kv::cache::changes::Change;
use crate::table::Table;
use crate::table::ranking::weight;
use crate::table::sequence::{LiveRequest, Sequence};

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
pub(crate) struct PackedLoad {
    num_inputs: u64,
    bytes: Vec<u8>,
}

impl PackedLoad {
    /// See `Observer::packed_load`.
    pub(super) fn get(&mut self, num_inputs: u64, num_sequences: usize, pack: impl FnOnce() -> Vec<u8>) -> Vec<u8> {
        let num_new = num_inputs - self.num_inputs;
        if self.bytes.is_empty() || num_new > num_sequences as u64 / SEQUENCES_PER_INPUT {
            *self = Self { num_inputs, bytes: pack() };
        }
        self.bytes.clone()
    }
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

/// Changes of the prefix cache from a number on, and the number for the next call. See `Scheduler::load_report`.
pub(crate) fn changes(number: i64, cache: &mut KvCache) -> (i64, Vec<u8>) {
    let mut changes = Vec::new();
    let next = match told_from(number, cache) {
        Cursor::Number(first) => {
            let log = cache.changes();
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
            let known = cache.known_part(part);
            known.into_iter().flatten().for_each(|change| change.write(&mut changes));
            let is_last = cache.known_part(part + 1).is_none();
            if is_last { start as i64 } else { number_of(start, part + 1) }
        }
    };
    (next, changes)
}

fn told_from(number: i64, cache: &mut KvCache) -> Cursor {
    let cursor = if number >= 0 { Cursor::Number(number as u64) } else { part_of(number) };
    let changes = cache.changes();
    match cursor {
        Cursor::Number(first) | Cursor::Part { start: first, part: 1.. } if changes.since(first).is_some() => cursor,
        _ => Cursor::Part { start: changes.next(), part: 0 },
    }
}

/// The queued work and the speed of steps, as bytes.
pub(crate) fn pack_load(config: &Config, table: &Table, kv: &Kv) -> Vec<u8> {
    let output_lengths = &table.estimates().output_lengths;
    let shares_by_tenant = table.ranking().shares_by_tenant();
    let mut works: BTreeMap<&str, f64> = BTreeMap::new();
    let mut looked_up = LookedUp::default();
    for (key, _) in table.sequences() {
        let (sequence, live) = table.pair(key);
        let num_cached = num_cached_tokens(sequence, live, kv, config, &mut looked_up);
        let input = sequence.num_uncomputed() - num_cached;
        let remaining = output_lengths.remaining(sequence.output.len() as u32).ceil() as u32;
        let output = remaining.min(sequence.max_length.saturating_sub(sequence.num_known())).max(1);
        let tenant = if shares_by_tenant { live.request.tenant.as_str() } else { "" };
        *works.entry(tenant).or_default() += work(input, output.saturating_mul(sequence.num_samples));
    }
    let tenants = works.into_iter().map(|(tenant, work)| {
        let weight = weight(tenant, config).into();
        TenantLoad { tenant: tenant.to_owned(), weight, work }
    });
    let mut load = CoreLoad {
        shares_by_tenant,
        tenants: tenants.collect(),
        others: TenantLoad::default(),
        num_requests: table.num_requests() as u64,
        output_length: output_lengths.mean(),
        steps: table.estimates().step_sums,
        caches_prefixes: config.enable_prefix_caching,
        windows: config.kv_groups.iter().map(|group| group.window).collect(),
        has_states: config.num_states > 0,
    };
    load.shorten();
    load.to_bytes()
}

/// Tokens of a new sequence that will be cached when it runs, or computed by an earlier one in the queue.
fn num_cached_tokens(
    sequence: &Sequence,
    live: &LiveRequest,
    kv: &Kv,
    config: &Config,
    looked_up: &mut LookedUp,
) -> u32 {
    if sequence.num_computed > 0 || !kv.shares_prefix(live) {
        return 0;
    }
    let num_tokens = sequence.num_prompt_tokens - 1;
    if looked_up.num_sequences == MAX_LOOKED_UP {
        return (f64::from(num_tokens) * looked_up.share()) as u32;
    }
    let hashes = &live.prompt_hashes[..(num_tokens / config.block_size) as usize];
    let group = config.kv_groups.iter().position(|group| group.window.is_none()).unwrap_or(0);
    let short = |hash: &BlockHash| hash.of(group as u32).short();
    let is_known = |hash: &BlockHash| kv.cache().is_known(hash.of(group as u32));
    // Chains are evicted from their tail, so no block is cached without those before it.
    let probes = || hashes.iter().skip(STRIDE - 1).step_by(STRIDE);
    let probes: Vec<_> = probes().collect();
    let num_found = probes.partition_point(|hash| looked_up.coming.contains(&short(hash)) || is_known(hash));
    looked_up.coming.extend(probes[num_found..].iter().map(|hash| short(hash)));
    let rest = &hashes[num_found * STRIDE..];
    let mut num_blocks = num_found * STRIDE + rest.iter().take(STRIDE - 1).take_while(|hash| is_known(hash)).count();
    if config.num_states > 0 {
        let is_checkpoint = |hash: &BlockHash| kv.cache().is_checkpoint(*hash);
        num_blocks = hashes[..num_blocks].iter().rposition(is_checkpoint).map_or(0, |last| last + 1);
    }
    looked_up.add(num_tokens, num_blocks as u32 * config.block_size)
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
