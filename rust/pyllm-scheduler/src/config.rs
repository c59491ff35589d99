//! The limits a scheduler is built with. Knows nothing of where they come from.

use crate::error::{Error, Result};

/// What the scheduler may use and how much it may plan. All sizes are counts, not bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Tokens a block holds.
    pub block_size: u32,
    /// Blocks in the KV cache.
    pub num_blocks: u32,
    /// Slots: sequences that may run at once.
    pub max_num_seqs: u32,
    /// Tokens one step may compute, prefill chunks and decodes together.
    pub max_num_batched_tokens: u32,
    /// Prompt and output tokens a sequence may have.
    pub max_model_len: u32,
    /// Token ids the model has: those from 0 to below this.
    pub vocab_size: u32,
    /// Whether full blocks are kept by the hash of their contents, and found again.
    pub enable_prefix_caching: bool,
}

impl Config {
    /// Most slots a scheduler takes.
    pub const MAX_NUM_SEQS: u32 = 65_536;

    /// Errors: `Error::Config` naming the setting, its value and its range.
    pub fn validate(&self) -> Result<()> {
        let most = i32::MAX as u32;
        in_range("block_size", self.block_size, 1, most)?;
        in_range("num_blocks", self.num_blocks, 1, most)?;
        in_range("max_num_seqs", self.max_num_seqs, 1, Self::MAX_NUM_SEQS)?;
        in_range("max_num_batched_tokens", self.max_num_batched_tokens, 1, most)?;
        in_range("max_model_len", self.max_model_len, 2, most)?;
        in_range("vocab_size", self.vocab_size, 1, most)?;
        let capacity = u64::from(self.num_blocks) * u64::from(self.block_size);
        if capacity > u64::from(most) {
            return Err(Error::Config(format!(
                "num_blocks {} times block_size {} is {capacity} tokens, and slot mappings end at {most}; lower num_blocks",
                self.num_blocks, self.block_size
            )));
        }
        Ok(())
    }

    /// Blocks that hold `num_tokens` tokens.
    pub(crate) fn blocks_for(&self, num_tokens: u32) -> u32 {
        num_tokens.div_ceil(self.block_size)
    }
}

fn in_range(name: &str, value: u32, least: u32, most: u32) -> Result<()> {
    if (least..=most).contains(&value) {
        return Ok(());
    }
    Err(Error::Config(format!("{name} must be from {least} to {most}, not {value}")))
}
