//! Replay of a placement's recording: every call is made again on a new one, and each choice must be the same.

use serde::{Deserialize, Serialize};

use crate::config::PrefixHash;
use crate::error::Result;
use crate::recorder::Entries;

use super::{NewRequest, Placement};

/// The first bytes of a recording. The number changes when old recordings can no longer be read.
pub(super) const MAGIC: &[u8] = b"pyllm placement recording 3\n";

/// The arguments of a new placement.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Settings {
    pub(super) block_size: u32,
    pub(super) prefix_hash: PrefixHash,
    pub(super) prefix_hash_seed: String,
    pub(super) cache_namespace: String,
}

/// One call that changed a placement.
#[derive(Serialize, Deserialize)]
pub(super) enum Input {
    AddCore { core: u32 },
    RemoveCore { core: u32 },
    UpdateCore { core: u32, last_request: Option<u64>, changes: Vec<u8>, load: Vec<u8> },
    Place { request: NewRequest, cores: Vec<u32> },
    Ended { request: u64 },
    ChangeWeights { version: String },
}

/// The result of a replay.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names say it")]
pub struct PlacementReplay {
    pub num_entries: u64,
    pub num_choices: u64,
    /// The hash of all choices.
    pub hash: u64,
    /// Whether the recording ends in the middle of an entry, as after a crash.
    pub is_truncated: bool,
}

impl Placement {
    /// Repeats all calls of a recording on a new placement, and compares its choices.
    ///
    /// Errors: `Replay` with the first entry that cannot be decoded, is refused, or chooses another core.
    pub fn replay(recording: &[u8]) -> Result<PlacementReplay> {
        let (settings, mut entries) = Entries::open::<Settings>(MAGIC, recording)?;
        let Settings { block_size, prefix_hash, prefix_hash_seed, cache_namespace } = settings;
        let mut placement = Self::new(block_size, prefix_hash, &prefix_hash_seed, &cache_namespace)?;
        placement.start_recording()?;
        let mut num_choices = 0;
        entries.replay(|input| {
            match input {
                Input::AddCore { core } => placement.add_core(core)?,
                Input::RemoveCore { core } => placement.remove_core(core)?,
                Input::UpdateCore { core, last_request, changes, load } => {
                    placement.update_core(core, last_request, &changes, &load)?;
                }
                Input::Place { request, cores } => {
                    placement.place(request, &cores)?;
                    num_choices += 1;
                }
                Input::Ended { request } => placement.ended(request),
                Input::ChangeWeights { version } => placement.change_weights(&version),
            }
            placement.take_recording();
            Ok(placement.choices_hash().unwrap_or_default())
        })?;
        Ok(PlacementReplay {
            num_entries: entries.num_read(),
            num_choices,
            hash: placement.choices_hash().unwrap_or_default(),
            is_truncated: entries.is_truncated(),
        })
    }
}
