//! The names of a prompt's blocks, for whoever is not the scheduler that has them. Knows no cache.

use crate::config::PrefixHash;
use crate::kv_cache::hash::{BlockHash, BlockHasher};

/// Names the full blocks of prompts as a scheduler with the same settings does.
pub struct RequestHasher {
    hasher: BlockHasher,
    block_size: usize,
}

impl RequestHasher {
    /// The settings are those of `Config`; a block has at least one token.
    pub fn new(block_size: u32, prefix_hash: PrefixHash, prefix_hash_seed: &str, cache_namespace: &str) -> Self {
        let hasher = BlockHasher::by(prefix_hash, prefix_hash_seed, cache_namespace);
        Self { hasher, block_size: block_size as usize }
    }

    /// From the first block on, each by all tokens up to its last one. The extra keys are tenant, cache salt, adapter
    /// and the version of the weights.
    pub fn hashes(&mut self, prompt: &[i32], extra_keys: [&str; 4]) -> impl Iterator<Item = BlockHash> {
        let mut parent = self.hasher.root(&extra_keys);
        prompt.chunks_exact(self.block_size).map(move |tokens| {
            parent = self.hasher.child(parent, tokens, &[]);
            parent
        })
    }
}
