//! The names of a prompt's blocks, for programs outside the scheduler. Knows no cache.

use crate::block_hash::{BlockHash, BlockHasher};
use crate::config::PrefixHash;
use crate::error::{Error, Result};

/// Names the full blocks of prompts as a scheduler with the same settings does.
pub struct RequestHasher {
    hasher: BlockHasher,
    block_size: usize,
}

impl RequestHasher {
    /// The settings are those of `Config`.
    ///
    /// Errors: `Config` for a block size of 0.
    pub fn new(
        block_size: u32,
        prefix_hash: PrefixHash,
        prefix_hash_seed: &str,
        cache_namespace: &str,
    ) -> Result<Self> {
        if block_size == 0 {
            return Err(Error::Config("block_size is 0; give the cores' own".to_owned()));
        }
        let hasher = BlockHasher::by(prefix_hash, prefix_hash_seed, cache_namespace);
        Ok(Self { hasher, block_size: block_size as usize })
    }

    /// The hashes of the full blocks, each over all tokens up to its end.
    pub fn hashes(
        &mut self,
        prompt: &[i32],
        tenant: &str,
        cache_salt: &str,
        adapter: &str,
        weights_version: &str,
    ) -> impl Iterator<Item = BlockHash> {
        let mut parent = self.hasher.root(&[tenant, cache_salt, adapter, weights_version]);
        prompt.chunks_exact(self.block_size).map(move |tokens| {
            parent = self.hasher.child(parent, tokens, &[]);
            parent
        })
    }
}
