//! The keys and values of all sequences: their chains of blocks on the device and the host, the prefix cache that keeps
//! blocks by their contents, and loads and saves. Knows no queue, no policy and no step but the ids.

mod audit;
pub(crate) mod cache;
mod chains;
pub(crate) mod loads;
pub(crate) mod states;

use crate::arena::Key;
use crate::block_hash::{BlockHash, BlockHasher};
use crate::config::Config;
use crate::error::{Error, Result};
use crate::ids::BlockId;
use crate::kv::cache::{CacheLimits, FoundChain, FoundStart, KvCache};
use crate::kv::loads::Loads;
use crate::kv::states::States;
use crate::kv_layout::KvLayout;
use crate::request::{Request, tokens_are_ids};
use crate::steps::Steps;
use crate::table::Table;
use crate::table::sequence::{LiveRequest, Sequence, State};

pub(crate) struct Kv {
    cache: KvCache,
    layout: KvLayout,
    loads: Loads,
    states: Option<States>,
    hasher: BlockHasher,
    found: FoundStart,    // by the last lookup in the prefix cache
    branch: u32,          // tokens of the longest start whose blocks it has found
    copied: Vec<BlockId>, // by the plan in progress, each with one reference of its own
    enable_prefix_caching: bool,
    separate_outputs: bool,
    swap_block_seconds: f64,
    swap_state_seconds: f64,
}

impl Kv {
    pub(crate) fn new(config: &Config) -> Self {
        let layout = KvLayout::new(config);
        Self {
            cache: KvCache::new(cache_limits(config, &layout)),
            loads: Loads::default(),
            states: States::new(config),
            hasher: BlockHasher::new(config),
            found: FoundStart { chains: vec![FoundChain::default(); layout.groups.len()], ..FoundStart::default() },
            branch: 0,
            copied: Vec::new(),
            enable_prefix_caching: config.enable_prefix_caching,
            separate_outputs: config.separate_outputs,
            swap_block_seconds: config.swap_block_seconds,
            swap_state_seconds: config.swap_state_seconds,
            layout,
        }
    }

    pub(crate) fn layout(&self) -> &KvLayout {
        &self.layout
    }

    pub(crate) fn cache(&self) -> &KvCache {
        &self.cache
    }

    /// For calls that concern contents alone, and no sequence: pins, saves, events, restored host blocks.
    pub(crate) fn cache_mut(&mut self) -> &mut KvCache {
        &mut self.cache
    }

    /// The states of sequences; none for a model without.
    pub(crate) fn states(&self) -> Option<&States> {
        self.states.as_ref()
    }

    /// Whether a request may reuse cached blocks of others.
    pub(crate) fn shares_prefix(&self, live: &LiveRequest) -> bool {
        self.enable_prefix_caching && !live.request.needs_whole_prompt()
    }

    /// The hash before a request's first block: all that separates its blocks from those of others.
    pub(crate) fn root(&mut self, request: &Request, config: &Config) -> BlockHash {
        self.hasher.root(&[&request.tenant, &request.cache_salt, &request.adapter, &config.weights_version])
    }

    /// The root of a new request, and the hashes of its prompt's full blocks; none without prefix caching.
    pub(crate) fn hash_request(&mut self, request: &Request, config: &Config) -> (BlockHash, Vec<BlockHash>) {
        let root = self.root(request, config);
        (root, if self.enable_prefix_caching { self.hash_prompt(root, &request.prompt) } else { Vec::new() })
    }

    pub(crate) fn hash_prompt(&mut self, root: BlockHash, prompt: &[i32]) -> Vec<BlockHash> {
        let blocks = prompt.chunks_exact(self.layout.block_size as usize);
        let chain = blocks.scan(root, |parent, tokens| {
            *parent = self.hasher.child(*parent, tokens, &[]);
            Some(*parent)
        });
        chain.collect()
    }

    /// See `Scheduler::pin`.
    pub(crate) fn pin(&mut self, name: u64, of: &Request, config: &Config) -> Result<u32> {
        if !self.enable_prefix_caching {
            return Err(Error::Disabled { call: "pin", setting: "enable_prefix_caching" });
        }
        tokens_are_ids("prompt", &of.prompt, config.vocab_size)?;
        let (_, hashes) = self.hash_request(of, config);
        let num_blocks = hashes.len() as u32;
        if num_blocks == 0 {
            let (given, block_size) = (of.prompt.len(), self.layout.block_size);
            let problem = format!("{given} tokens fill no block of {block_size}; pin a longer prefix");
            return Err(Error::Request(problem));
        }
        // In a window, only the blocks that the next token reads.
        let end = num_blocks * self.layout.block_size;
        let keys = (0..).zip(&self.layout.groups).flat_map(|(group, layout)| {
            let first = layout.first_block(end);
            hashes[first as usize..].iter().map(move |hash| hash.of(group))
        });
        let checkpoints = hashes.iter().map(|hash| hash.of(self.cache.state_group())).collect();
        self.cache.pin(name, keys.collect(), checkpoints)?;
        Ok(num_blocks)
    }

    /// See `Scheduler::known_prefix`.
    pub(crate) fn known_prefix(
        &mut self,
        sequence: &mut Sequence,
        live: &LiveRequest,
        steps: &Steps,
    ) -> (u32, Vec<BlockHash>) {
        let block_size = self.layout.block_size;
        let num_tokens = if live.num_unfinished > 1 { sequence.num_prompt_tokens } else { sequence.num_known() };
        let most = num_tokens.min(sequence.num_known() - 1) / block_size;
        sequence.hash_blocks(live, block_size, most, &mut self.hasher, self.separate_outputs);
        let hashes: Vec<_> = (0..most).map(|index| sequence.hash(live, index)).collect();
        let lowest = |num_cached: u32| num_cached * block_size;
        let hash_of = |index| hashes[index as usize];
        self.find_start(most, hash_of, lowest, steps);
        (self.found.length * block_size, hashes)
    }

    /// Forgets the contents of all blocks. Running sequences keep them, and store them again, since their children's
    /// events need a parent.
    pub(crate) fn forget_contents(&mut self, table: &mut Table) {
        self.cache.forget();
        for sequence in table.sequences_mut() {
            sequence.num_stored = 0;
        }
    }

    /// Frees the blocks and the slot of a sequence.
    pub(crate) fn vacate(&mut self, key: Key<Sequence>, table: &mut Table) {
        self.free(&mut table[key]);
        table.leave_slot(key);
    }

    /// Removes a sequence, and frees its blocks and its slot.
    pub(crate) fn remove(&mut self, key: Key<Sequence>, table: &mut Table) {
        self.vacate(key, table);
        table.remove_sequence(key);
    }

    /// Queues all running sequences to be computed again with the new weights. No other keeps its blocks either, and
    /// all blocks get new names.
    pub(crate) fn change_weights(&mut self, table: &mut Table, config: &Config) {
        for key in table.stop_all() {
            self.vacate(key, table);
            table.enqueue(key, State::Preempted);
        }
        for sequence in table.sequences_mut() {
            self.free_host(sequence);
        }
        table.recompute_all();
        self.make_loads_stale();
        self.forget_contents(table);
        for live in table.requests_mut() {
            let has_hashes = !live.prompt_hashes.is_empty();
            live.root = self.root(&live.request, config);
            live.prompt_hashes =
                if has_hashes { self.hash_prompt(live.root, &live.request.prompt) } else { Vec::new() };
            live.offer = None;
        }
    }

    /// Frees all blocks after the loss of the device.
    pub(crate) fn clear(&mut self) {
        self.loads.clear();
        self.cache.clear();
    }

    /// Frees the copied blocks of a plan, now that all of it is known.
    pub(crate) fn end_copies(&mut self) {
        for block in self.copied.drain(..) {
            self.cache.free(block);
        }
    }

    /// See `Scheduler::audit`.
    pub(crate) fn audit(&self, table: &Table) -> std::result::Result<(), String> {
        self.audit_references(table)?;
        if self.states.is_some() {
            States::audit(table.sequences().map(|(_, sequence)| sequence), self.loads.states(), &self.cache)?;
        }
        self.cache.audit()
    }
}

fn cache_limits(config: &Config, layout: &KvLayout) -> CacheLimits {
    CacheLimits {
        groups: layout.groups.clone(),
        block_size: config.block_size,
        num_blocks: config.num_blocks,
        num_host_blocks: config.num_host_blocks,
        num_states: config.num_states,
        num_host_states: config.num_host_states,
        max_pinned_blocks: config.max_pinned_blocks,
        max_saving_blocks: config.max_saving_blocks,
        enable_prefix_caching: config.enable_prefix_caching,
        enable_events: config.enable_kv_cache_events,
        incarnation: config.incarnation,
    }
}
