//! Keys and values for outside. Full blocks of committed steps are handed over by the names of their contents, and kept
//! as they are until the caller says that they are written. What finds no place, or is evicted before, is not saved:
//! that costs a later hit, and nothing else.

use crate::error::{Error, Result};
use crate::ids::SaveId;
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
}
