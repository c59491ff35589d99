//! Saves of keys and values to an external store. The caller takes full blocks of committed steps, with the names of
//! their contents. No step writes them until the caller ends the save. Blocks beyond the limit, or evicted before, are
//! not saved: a later request computes them.

use crate::error::{Error, Result};
use crate::ids::SaveId;
use crate::kv_cache::saves::Save;
use crate::recorder::Input;

use super::Scheduler;

impl Scheduler {
    /// Begins saves of blocks that committed steps have filled, up to the limit. Each block is kept, and no step writes
    /// it, until `finish_save` or `lose_device`.
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

    /// Ends a save, with or without success.
    ///
    /// Errors: `UnknownSave`.
    pub fn finish_save(&mut self, save: SaveId) -> Result<()> {
        if !self.cache.finish_save(save) {
            return Err(Error::UnknownSave { save });
        }
        self.record(|| Input::FinishSave { save });
        Ok(())
    }
}
