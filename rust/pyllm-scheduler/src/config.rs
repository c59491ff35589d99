//! The limits and settings of a scheduler. Does not know their source.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// The scheduler's resources, its limits for a step, and its policy. Sizes are counts, not bytes.
///
/// Fields marked *live* may be changed by `Scheduler::reconfigure`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[expect(clippy::struct_excessive_bools, reason = "each setting is of its own")]
pub struct Config {
    /// Tokens per block.
    pub block_size: u32,
    /// Blocks in the KV cache.
    pub num_blocks: u32,
    /// Blocks in host memory: swap space, and the second tier of the prefix cache. 0: none.
    pub num_host_blocks: u32,
    /// Slots: sequences that may run at once.
    pub max_num_seqs: u32,
    /// Prompt and output tokens per sequence.
    pub max_model_len: u32,
    /// Size of the model's vocabulary; token ids are below it.
    pub vocab_size: u32,
    /// The groups of layers. Each has its own block for the same tokens.
    pub kv_groups: Vec<KvGroup>,
    /// States of sequences, for a model with layers that keep one; one more than run at once lets a checkpoint stay. 0:
    /// the model has no such layers.
    pub num_states: u32,
    /// States in host memory, as `num_host_blocks`.
    pub num_host_states: u32,
    /// Blocks of a prompt from one checkpoint of its state to the next. 0: there are checkpoints only where a prompt
    /// ends, and where others have branched off.
    pub state_checkpoint_blocks: u32,
    /// Whether full blocks are kept by the hash of their contents, for reuse.
    pub enable_prefix_caching: bool,
    /// Blocks that pins may keep from eviction. No request may rely on these blocks.
    pub max_pinned_blocks: u32,
    /// The digest that names blocks in the prefix cache.
    pub prefix_hash: PrefixHash,
    /// The seed of vLLM's chain of hashes, with `PrefixHash::Sha256Cbor`: its digest is the first block's parent.
    pub prefix_hash_seed: String,
    /// A text that identifies the model, so that names of blocks differ between models. Only with BLAKE3: names of
    /// `PrefixHash::Sha256Cbor` are vLLM's, which have no such part.
    pub cache_namespace: String,
    /// Blocks that saves may hold at once, until an external store has them. 0: no blocks are saved.
    pub max_saving_blocks: u32,
    /// Whether an output's keys and values depend on the prompt's length, as with sparse attention: then only requests
    /// with the same prompt can reuse an output's blocks.
    pub separate_outputs: bool,
    /// Whether a step has all tokens of a prompt, or none: for models whose tokens attend to later ones.
    pub whole_prompts: bool,
    /// Whether `events` and `snapshot` report the contents of the prefix cache.
    pub enable_kv_cache_events: bool,
    /// An id of this run in its events; a subscriber that sees a new one starts over.
    pub incarnation: u64,
    /// Seconds to swap one block to the host and back. 0: swaps cost nothing.
    pub swap_block_seconds: f64,
    /// Seconds to swap one state to the host and back.
    pub swap_state_seconds: f64,
    /// Drafts per row by prompt lookup, for a sequence that runs alone. 0: none.
    pub num_speculative_tokens: u32,
    /// Pipeline stages. With several, as many steps should be in flight: a sequence is in one of them at a time, except
    /// for chunks of its prompt, and each step takes its share of the running sequences.
    pub pipeline_parallel_size: u32,
    /// Slots of the device for adapters (LoRA): those that running sequences may have at once. 0: no adapters.
    pub max_loras: u32,

    /// *Live.* Token budget of a step, prefill chunks and decodes together.
    pub max_num_batched_tokens: u32,
    /// *Live.* Tokens of one prompt per step. 0: only `max_num_batched_tokens` limits them. Not with `whole_prompts`.
    pub long_prefill_token_threshold: u32,
    /// *Live.* Upper bound of the seconds between two tokens of a stream while prefills run. 0: no bound.
    pub inter_token_target: f64,
    /// *Live.* The scheduling policy.
    pub policy: PolicyName,
    /// *Live.* Weights of tenants under `PolicyName::Fair`; 1 for tenants without an entry.
    pub tenant_weights: BTreeMap<String, u32>,
    /// *Live.* The version of the model's weights. Blocks are never shared across versions.
    pub weights_version: String,
    /// *Live.* The sequences that are kept from computing.
    pub pause: Pause,
    /// *Live.* Share of the blocks that admission leaves free while sequences run, from 0 to below 1.
    pub watermark: f64,
    /// *Live.* Share of the running sequences' expected growth for which admission leaves blocks free. 0: none, 1: all.
    pub expected_growth: f64,
}

/// The digest that names a block by its tokens, all tokens before them, and the extra keys (tenant, salt...).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PrefixHash {
    /// BLAKE3.
    #[default]
    Blake3,
    /// vLLM's `sha256_cbor`, which routers can compute.
    Sha256Cbor,
}

/// Layers of a model with the same attention window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct KvGroup {
    /// Positions that a token attends to, its own included. None: all before it.
    pub window: Option<u32>,
}

/// The sequences that are kept from computing until the caller changes the setting.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Pause {
    /// None.
    #[default]
    None,
    /// Plans of requests that have not begun: they wait in the queue. The others run to their ends.
    New,
    /// All: there is no plan.
    All,
}

/// The scheduling policy. Each has a file in `policy`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PolicyName {
    /// First come, first served.
    #[default]
    Fcfs,
    /// The lowest `Request::priority` first, then the least slack; preempts requests of higher values.
    Priority,
    /// The least remaining work first; preempts requests with more.
    Shortest,
    /// The tenant with the least service first.
    Fair,
    /// The lowest `Request::policy_key` first.
    Custom,
}

impl Default for Config {
    /// A scheduler without blocks: the sizes must be set.
    fn default() -> Self {
        Self {
            block_size: 16,
            num_blocks: 0,
            num_host_blocks: 0,
            max_num_seqs: 0,
            max_model_len: 0,
            vocab_size: 0,
            kv_groups: vec![KvGroup::default()],
            num_states: 0,
            num_host_states: 0,
            state_checkpoint_blocks: 0,
            enable_prefix_caching: true,
            max_pinned_blocks: 0,
            prefix_hash: PrefixHash::Blake3,
            prefix_hash_seed: String::new(),
            cache_namespace: String::new(),
            max_saving_blocks: 0,
            separate_outputs: false,
            whole_prompts: false,
            enable_kv_cache_events: false,
            incarnation: 0,
            swap_block_seconds: 0.0,
            swap_state_seconds: 0.0,
            num_speculative_tokens: 0,
            pipeline_parallel_size: 1,
            max_loras: 0,
            max_num_batched_tokens: 0,
            long_prefill_token_threshold: 0,
            inter_token_target: 0.0,
            policy: PolicyName::Fcfs,
            tenant_weights: BTreeMap::new(),
            weights_version: String::new(),
            pause: Pause::None,
            watermark: 0.0,
            expected_growth: 0.0,
        }
    }
}

impl Config {
    /// Maximum of `max_num_seqs`.
    pub const MAX_NUM_SEQS: u32 = 65_536;
    /// Maximum number of groups of layers.
    pub const MAX_KV_GROUPS: u32 = 16;

    /// Errors: `Error::Config` naming the setting, its value and its range.
    pub fn validate(&self) -> Result<()> {
        let most = i32::MAX as u32;
        in_range("block_size", self.block_size, 1, most)?;
        in_range("num_blocks", self.num_blocks, 1, most)?;
        in_range("num_host_blocks", self.num_host_blocks, 0, most)?;
        in_range("max_num_seqs", self.max_num_seqs, 1, Self::MAX_NUM_SEQS)?;
        in_range("max_num_batched_tokens", self.max_num_batched_tokens, 1, most)?;
        in_range("max_model_len", self.max_model_len, 2, most)?;
        in_range("vocab_size", self.vocab_size, 1, most)?;
        in_range("the number of kv_groups", self.kv_groups.len() as u32, 1, Self::MAX_KV_GROUPS)?;
        for window in self.kv_groups.iter().filter_map(|group| group.window) {
            in_range("a window", window, 1, most)?;
        }
        if self.num_states > 0 {
            in_range("num_states", self.num_states, 2, most)?; // a sequence reads one and writes another
        }
        in_range("num_host_states", self.num_host_states, 0, most)?;
        in_range("max_pinned_blocks", self.max_pinned_blocks, 0, self.num_blocks - 1)?;
        in_range("max_saving_blocks", self.max_saving_blocks, 0, self.num_blocks)?;
        for &weight in self.tenant_weights.values() {
            in_range("a tenant's weight", weight, 1, Self::MAX_TENANT_WEIGHT)?;
        }
        in_range("num_speculative_tokens", self.num_speculative_tokens, 0, Self::MAX_SPECULATIVE_TOKENS)?;
        in_range("pipeline_parallel_size", self.pipeline_parallel_size, 1, Self::MAX_STAGES)?;
        in_range("max_loras", self.max_loras, 0, Self::MAX_LORAS)?;
        not_negative("swap_block_seconds", self.swap_block_seconds, f64::MAX)?;
        not_negative("swap_state_seconds", self.swap_state_seconds, f64::MAX)?;
        not_negative("inter_token_target", self.inter_token_target, f64::MAX)?;
        not_negative("expected_growth", self.expected_growth, 16.0)?;
        not_negative("watermark", self.watermark, 0.99)?;
        if self.whole_prompts {
            in_range(
                "max_num_batched_tokens, as a step has whole prompts,",
                self.max_num_batched_tokens,
                self.max_model_len,
                most,
            )?;
            in_range(
                "long_prefill_token_threshold, as a step has whole prompts,",
                self.long_prefill_token_threshold,
                0,
                0,
            )?;
        }
        let capacity = u64::from(self.num_blocks) * u64::from(self.block_size);
        if capacity > u64::from(most) {
            return Err(Error::Config(format!(
                "num_blocks {} times block_size {} is {capacity} tokens, and slot mappings end at {most}; lower num_blocks",
                self.num_blocks, self.block_size
            )));
        }
        Ok(())
    }

    /// Maximum of `pipeline_parallel_size`.
    pub const MAX_STAGES: u32 = 1024;

    /// Maximum of `max_loras`.
    pub const MAX_LORAS: u32 = 1024;

    /// Maximum of `num_speculative_tokens`.
    pub const MAX_SPECULATIVE_TOKENS: u32 = 16;

    /// Maximum weight of a tenant.
    pub const MAX_TENANT_WEIGHT: u32 = 1_000_000;

    /// Log-probabilities that come with a request's first tokens at most: a quarter of those that a step may carry.
    pub fn most_logprobs(&self) -> u64 {
        (1 << 17).max(2 * (u64::from(self.vocab_size) + 1))
    }

    /// Blocks that pins can never take, so one request may rely on them.
    pub(crate) fn num_unpinned_blocks(&self) -> u32 {
        self.num_blocks - self.max_pinned_blocks
    }

    pub(crate) fn watermark_blocks(&self) -> u32 {
        (f64::from(self.num_blocks) * self.watermark) as u32
    }

    /// The first setting that differs in `other` and cannot change while requests run.
    pub(crate) fn fixed_difference(&self, other: &Self) -> Option<&'static str> {
        // Every field is named here, so that a new one does not become live by oversight.
        let Self {
            block_size,
            num_blocks,
            num_host_blocks,
            max_num_seqs,
            max_model_len,
            vocab_size,
            kv_groups,
            num_states,
            num_host_states,
            state_checkpoint_blocks,
            enable_prefix_caching,
            max_pinned_blocks,
            prefix_hash,
            prefix_hash_seed,
            cache_namespace,
            max_saving_blocks,
            separate_outputs,
            whole_prompts,
            enable_kv_cache_events,
            incarnation,
            swap_block_seconds,
            swap_state_seconds,
            num_speculative_tokens,
            pipeline_parallel_size,
            max_loras,
            max_num_batched_tokens: _,
            long_prefill_token_threshold: _,
            inter_token_target: _,
            policy: _,
            tenant_weights: _,
            weights_version: _,
            pause: _,
            watermark: _,
            expected_growth: _,
        } = self;
        let fixed = [
            ("block_size", *block_size == other.block_size),
            ("num_blocks", *num_blocks == other.num_blocks),
            ("num_host_blocks", *num_host_blocks == other.num_host_blocks),
            ("max_num_seqs", *max_num_seqs == other.max_num_seqs),
            ("max_model_len", *max_model_len == other.max_model_len),
            ("vocab_size", *vocab_size == other.vocab_size),
            ("kv_groups", *kv_groups == other.kv_groups),
            ("num_states", *num_states == other.num_states),
            ("num_host_states", *num_host_states == other.num_host_states),
            ("state_checkpoint_blocks", *state_checkpoint_blocks == other.state_checkpoint_blocks),
            ("enable_prefix_caching", *enable_prefix_caching == other.enable_prefix_caching),
            ("max_pinned_blocks", *max_pinned_blocks == other.max_pinned_blocks),
            ("prefix_hash", *prefix_hash == other.prefix_hash),
            ("prefix_hash_seed", *prefix_hash_seed == other.prefix_hash_seed),
            ("cache_namespace", *cache_namespace == other.cache_namespace),
            ("max_saving_blocks", *max_saving_blocks == other.max_saving_blocks),
            ("separate_outputs", *separate_outputs == other.separate_outputs),
            ("whole_prompts", *whole_prompts == other.whole_prompts),
            ("enable_kv_cache_events", *enable_kv_cache_events == other.enable_kv_cache_events),
            ("incarnation", *incarnation == other.incarnation),
            ("swap_block_seconds", swap_block_seconds.to_bits() == other.swap_block_seconds.to_bits()),
            ("swap_state_seconds", swap_state_seconds.to_bits() == other.swap_state_seconds.to_bits()),
            ("num_speculative_tokens", *num_speculative_tokens == other.num_speculative_tokens),
            ("pipeline_parallel_size", *pipeline_parallel_size == other.pipeline_parallel_size),
            ("max_loras", *max_loras == other.max_loras),
        ];
        fixed.into_iter().find_map(|(name, equal)| (!equal).then_some(name))
    }
}

fn in_range(name: &str, value: u32, least: u32, most: u32) -> Result<()> {
    if (least..=most).contains(&value) {
        return Ok(());
    }
    Err(Error::Config(format!("{name} must be from {least} to {most}, not {value}")))
}

fn not_negative(name: &str, value: f64, most: f64) -> Result<()> {
    if value >= 0.0 && value <= most {
        return Ok(());
    }
    let range = if most < f64::MAX { format!("from 0 to {most}") } else { "a finite number, 0 or more".to_owned() };
    Err(Error::Config(format!("{name} must be {range}, not {value}")))
}
