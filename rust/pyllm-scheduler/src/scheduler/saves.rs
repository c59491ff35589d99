//! Keys and values for outside. Full blocks of committed steps are handed over by the names of their contents, and kept
//! as they are until the caller says that they are written. What finds no place, or is evicted before, is not saved:
//! that costs a later hit, and nothing else.

use crate::error::{Error, Result};
use crate::ids::{ClientId, RequestId, SaveId};
use crate::kv_cache::hash::BlockHash;
use crate::kv_cache::saves::Save;
use crate::recorder::Input;

use super::Scheduler;

impl Scheduler {
    /// The blocks to save that committed steps have filled, as far as there is room for them. Each is kept, and written
    /// by no step, until `finish_save` or `lose_device`.
    pub fn take_saves(&mut self) -> Vec<Save> {
        let committed = self.oldest_step();
        if !self.cache.has_saves(committed) {
            return Vec::new();
        }
        self.record(|| Input::TakeSaves);
        let saves = self.cache.take_saves(committed);
        self.counters.num_saves += saves.len() as u64;
        saves
    }

    /// A save has ended, whether or not the contents are kept outside now.
    ///
    /// Errors: `UnknownSave`.
    pub fn finish_save(&mut self, save: SaveId) -> Result<()> {
        if !self.cache.finish_save(save) {
            return Err(Error::UnknownSave { save });
        }
        self.record(|| Input::FinishSave { save });
        Ok(())
    }

    /// The tokens of a request that either tier of the prefix cache has now, and the names of the full blocks that could
    /// be loaded for it, from the first on: those of the prompt, and of the output where one sample goes on. Without
    /// prefix caching there are none.
    ///
    /// Errors: `UnknownRequest`.
    pub fn known_prefix(&mut self, client: ClientId, request: RequestId) -> Result<(u32, Vec<BlockHash>)> {
        let key = self.find(client, request)?;
        let live = super::live_sequences(&self.requests[key]);
        let Some(&first) = live.first() else { return Ok((0, Vec::new())) };
        if !self.requests[key].shares_prefix(&self.config) {
            return Ok((0, Vec::new()));
        }
        let (live, sequence) = (&self.requests[key], &mut self.sequences[first]);
        let block_size = self.config.block_size;
        let num_tokens = if live.num_unfinished > 1 { sequence.num_prompt_tokens } else { sequence.num_known() };
        let most = num_tokens.min(sequence.num_known() - 1) / block_size;
        sequence.hash_blocks(live, block_size, most, &mut self.hasher, self.config.separate_outputs);
        let hashes: Vec<_> = (0..most).map(|index| sequence.hash(live, index)).collect();
        let lowest = |num_cached: u32| num_cached * block_size;
        let (planning, committed) = (self.next_step, self.oldest_step());
        self.cache.find_start(most, |index| hashes[index as usize], lowest, planning, committed, &mut self.found);
        Ok((self.found.length * block_size, hashes))
    }

    /// Seconds that computing so many tokens of a prompt takes; none before that was measured.
    pub fn prefill_seconds(&self, num_tokens: u32) -> Option<f64> {
        self.times.is_measured().then(|| self.times.prefill_seconds(num_tokens))
    }
}
