//! Saves to an external store: handed over by name, kept unchanged, and ended.

use pyllm_scheduler::{BlockId, Error, Retention, Save, SaveId};

use super::World;
use super::requests::Known;
use crate::device::Block;
use crate::names;
use crate::oracle::Prefix;

/// A save under way, with the block's contents at its start.
pub(super) struct Saving {
    pub(super) block: BlockId,
    held: Held,
}

/// The contents of a block, or of a state.
#[derive(Debug, PartialEq)]
enum Held {
    Block(Block),
    State(Option<(usize, Prefix)>),
}

impl World {
    pub(super) fn take_saves(&mut self) {
        let saves = self.scheduler.take_saves();
        for save in &saves {
            if save.group as usize == self.config.kv_groups.len() {
                self.check_state_save(save);
            } else {
                self.check_save(save);
            }
            let held = self.held(save.block);
            self.saves.insert(save.id, Saving { block: save.block, held });
        }
        let most = self.config.max_saving_blocks + self.config.num_states.saturating_sub(2);
        assert!(self.saves.len() <= most as usize, "saves are bounded");
        self.saw("saves", saves.len() as u64);
    }

    /// Checks that the block has exactly the contents of its name, computed with these weights, and that a request with
    /// these tokens asked for this retention.
    fn check_save(&mut self, save: &Save) {
        let (tokens, prefix, spoilt) = self.device.contents(save.block, save.group as usize, save.index as usize);
        assert!(!spoilt, "what a load did not bring is not saved");
        let fits = |root: Prefix| tokens.iter().fold(root, |prefix, &token| prefix.then(token)) == prefix;
        let weights = &self.config.weights_version;
        let owners = || self.requests.iter().filter(|known| fits(Prefix::empty(&known.request, weights)));
        let owner = &owners().next().expect("somebody's prefix, by the weights that there are").request;
        let blocks = tokens.chunks_exact(self.config.block_size as usize);
        let name = blocks.fold(names::root(owner, &self.config), names::child);
        assert_eq!(&name, save.hash.as_bytes(), "the name is that of the contents");

        let asks = |known: &Known| known.request.kv_cache_retention == save.retention && may_have(known, &tokens);
        assert!(save.retention != Retention::None && owners().any(asks), "nobody wants it saved like this");
        let place = (name, save.group);
        if save.retention == Retention::Default {
            self.saved_with_default.insert(place);
        } else if self.saved_with_default.remove(&place) {
            self.saw("saves for longer than before", 1);
        }
    }

    /// Checks that a state is that after all tokens of its name, computed with these weights. What beams have is unknown.
    fn check_state_save(&mut self, save: &Save) {
        let state = save.block.0 - self.config.num_blocks;
        let (num_tokens, prefix) = self.device.state(state as usize).expect("it was written");
        assert_eq!(num_tokens, (save.index as usize + 1) * self.config.block_size as usize);
        let has = |known: &Known, output: &[i32]| {
            let tokens: Vec<_> = known.request.prompt.iter().chain(output).copied().take(num_tokens).collect();
            let blocks = tokens.chunks_exact(self.config.block_size as usize);
            let name = blocks.fold(names::root(&known.request, &self.config), names::child);
            let root = Prefix::empty(&known.request, &self.config.weights_version);
            let is_prefix = tokens.iter().fold(root, |prefix, &token| prefix.then(token)) == prefix;
            tokens.len() == num_tokens && name == *save.hash.as_bytes() && is_prefix
        };
        let is_of = |known: &Known| known.samples.iter().any(|sample| has(known, &sample.expected)) || has(known, &[]);
        let is_of_beam = self.requests.iter().any(|known| known.request.beam_width > 0);
        assert!(self.requests.iter().any(is_of) || is_of_beam, "the name is that of the tokens before");
        assert!(save.retention != Retention::None);
        self.saw("saves of states", 1);
    }

    fn held(&self, block: BlockId) -> Held {
        match block.0.checked_sub(self.config.num_blocks) {
            None => Held::Block(self.device.block(block).clone()),
            Some(state) => Held::State(self.device.state(state as usize)),
        }
    }

    pub(super) fn finish_save(&mut self, pick: usize) {
        let Some(place) = pick.checked_rem(self.saves.len()) else { return };
        let save = *self.saves.keys().nth(place).expect("there are as many");
        self.end_save(save);
    }

    pub(super) fn end_save(&mut self, save: SaveId) {
        let Some(Saving { block, held }) = self.saves.remove(&save) else { return };
        assert_eq!(self.held(block), held, "a block is not written while it is saved");
        assert_eq!(self.scheduler.finish_save(save), Ok(()));
        assert_eq!(self.scheduler.finish_save(save), Err(Error::UnknownSave { save }));
        self.saw("saves that end", 1);
    }

    /// Drops all saves after the loss of the device.
    pub(super) fn lose_saves(&mut self) {
        self.saw("losses while something is saved", u64::from(!self.saves.is_empty()));
        for (save, _) in std::mem::take(&mut self.saves) {
            assert_eq!(self.scheduler.finish_save(save), Err(Error::UnknownSave { save }));
        }
    }
}

/// Whether a request may have these tokens, prompt and output. Beams of a search are not known.
fn may_have(known: &Known, tokens: &[i32]) -> bool {
    let Known { request, samples, .. } = known;
    let (of_prompt, output) = tokens.split_at(tokens.len().min(request.prompt.len()));
    let is_answer = || samples.iter().any(|sample| sample.expected.starts_with(output));
    request.prompt.starts_with(of_prompt) && (output.is_empty() || request.beam_width > 0 || is_answer())
}
