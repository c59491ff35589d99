//! The states of sequences: what some layers keep of all tokens before, a fixed number of bytes. A row reads one state
//! and writes another, or the same in place: in a state that others read, or that the prefix cache has named, nothing
//! is written. So a checkpoint of a prefix costs no copy, and neither does a sequence that continues from it.
//!
//! States have a pool of their own beside the blocks, whose names are those of the blocks that end where they do.

use crate::block_hash::BlockHash;
use crate::config::Config;
use crate::ids::{StateId, StepId};
use crate::kv::cache::prefix::{Name, Saved};
use crate::kv::cache::tier_cache::TierCache;
use crate::table::held_states::{Checkpoint, HeldState};
use crate::table::sequence::{LiveRequest, Sequence};

/// The group of a state's name; those of blocks are lower.
const GROUP: u32 = Config::MAX_KV_GROUPS;

/// The states of all sequences, and the checkpoints of the prefix cache.
pub(crate) struct States {
    pool: TierCache<StateId>,
    block_size: u32,
    checkpoint_interval: u32, // in tokens
    has_checkpoints: bool,
    found: Option<StateId>, // by the last lookup
}

impl States {
    /// None for a model without states.
    pub(crate) fn new(config: &Config) -> Option<Self> {
        (config.num_states > 0).then(|| Self {
            pool: TierCache::new(config.num_states),
            block_size: config.block_size,
            checkpoint_interval: config.state_checkpoint_blocks * config.block_size,
            has_checkpoints: config.enable_prefix_caching,
            found: None,
        })
    }

    pub(crate) fn num_free(&self) -> u32 {
        self.pool.num_free()
    }

    /// States with known contents.
    pub(crate) fn num_cached(&self) -> usize {
        self.pool.num_cached()
    }

    /// Finds the longest start, of at most `most` blocks, that ends at a checkpoint which step `planning` may read.
    pub(crate) fn find(
        &mut self,
        most: u32,
        hash_of: impl Fn(u32) -> BlockHash,
        planning: StepId,
        committed: StepId,
    ) -> u32 {
        let find = |length: u32| self.pool.find(hash_of(length - 1).of(GROUP), planning, committed);
        let found = (1..=most).rev().find_map(|length| Some((length, find(length)?)));
        self.found = found.map(|(_, state)| state);
        found.map_or(0, |(length, _)| length)
    }

    /// Whether there is a state to write to for a sequence that continues from the last checkpoint found.
    pub(crate) fn has_place(&self) -> bool {
        let is_taken = self.found.is_some_and(|state| self.pool.references(state) == 0);
        self.num_free() > u32::from(is_taken)
    }

    /// Gives a sequence the last checkpoint found, and a state to write to. `branch`: see `HeldStates`.
    pub(super) fn admit(&mut self, sequence: &mut Sequence, branch: u32) {
        let states = &mut sequence.states;
        debug_assert!(states.all().next().is_none(), "a queued sequence has no states");
        if let Some(state) = self.found.take() {
            let num_tokens = sequence.num_computed;
            self.pool.share(state);
            states.held.push(HeldState { state, num_tokens });
            states.last_checkpoint = self.pool.name(state).map(|name| Checkpoint { key: name.key, num_tokens });
        }
        states.branch = branch;
        states.spare = self.allocate();
        debug_assert!(states.spare.is_some(), "the caller has looked at has_place");
    }

    /// The end of the next row of a sequence, from its next token to at most `end`: rows end where a checkpoint is
    /// wanted, and before a token that may be computed again.
    pub(crate) fn row_end(&self, sequence: &Sequence, live: &LiveRequest, end: u32) -> u32 {
        let start = sequence.num_computed;
        let last = sequence.num_known() - 1;
        if start >= last || live.request.prompt_logprobs {
            return end; // it decodes, or its log-probabilities reach from row to row
        }
        let boundary = last / self.block_size * self.block_size;
        let multiple = match self.checkpoint_interval {
            0 => boundary,
            interval => (start / interval + 1) * interval,
        };
        let again = if sequence.is_stateful { last } else { end };
        let checkpoints =
            [boundary, multiple, sequence.states.branch].map(|at| if self.has_checkpoints { at } else { end });
        checkpoints.into_iter().chain([again]).filter(|&at| at > start).fold(end, u32::min)
    }

    /// Whether a state after so many tokens of a sequence is kept for others: at the end of its last full block, where
    /// others have branched off, and at each interval.
    fn is_checkpoint(&self, sequence: &Sequence, num_tokens: u32) -> bool {
        let is_boundary = num_tokens % self.block_size == 0 && self.has_checkpoints;
        let is_last = num_tokens + self.block_size >= sequence.num_known();
        is_boundary && (is_last || num_tokens == sequence.states.branch || self.is_at_interval(num_tokens))
    }

    fn is_at_interval(&self, num_tokens: u32) -> bool {
        self.checkpoint_interval > 0 && num_tokens % self.checkpoint_interval == 0
    }

    /// Whether a sequence's next row can leave the state that it reads as it is.
    pub(crate) fn can_keep(&self, sequence: &Sequence) -> bool {
        sequence.states.spare.is_some() || self.num_free() > 0
    }

    /// The states that a row reads and writes, which computes the tokens of a running sequence up to `end`; -1 for the
    /// state before the first token. With `keeps` the state that it reads stays as it is, if there is another.
    pub(super) fn advance(&mut self, sequence: &mut Sequence, end: u32, keeps: bool) -> (i32, i32) {
        let source = sequence.states.held.last().copied();
        let is_kept = keeps || source.is_some_and(|held| self.is_checkpoint(sequence, held.num_tokens));
        let is_free = source.is_some_and(|held| self.is_writable(held) && self.pool.name(held.state).is_none());
        let states = &mut sequence.states;
        let other = if is_free && !is_kept { None } else { states.spare.take().or_else(|| self.allocate()) };
        let destination = match (source, other) {
            (Some(HeldState { state, .. }), None) => {
                debug_assert!(self.pool.references(state) == 1, "a running sequence has a state that it may write");
                self.pool.forget_block(state);
                states.held.pop();
                state
            }
            (_, other) => {
                if !is_kept {
                    states.held.pop().into_iter().for_each(|held| self.pool.free(held.state));
                }
                other.expect("a sequence that begins has a state to write to")
            }
        };
        states.held.push(HeldState { state: destination, num_tokens: end });
        (source.map_or(-1, |held| held.state.0 as i32), destination.0 as i32)
    }

    /// Names the state at the end of a sequence's block, which is full of known tokens and has this hash, if it is to
    /// stay. Whoever continues the sequence continues here, so the checkpoint before is superseded.
    pub(super) fn store(&mut self, sequence: &mut Sequence, index: u32, hash: BlockHash) {
        let num_tokens = (index + 1) * self.block_size;
        let Some(at) = sequence.states.held.iter().position(|held| held.num_tokens == num_tokens) else { return };
        let is_last = at + 1 == sequence.states.held.len();
        if !self.is_checkpoint(sequence, num_tokens) || is_last && !self.ensure_spare(sequence) {
            return;
        }
        let key = hash.of(GROUP);
        let name = Name { key, index, filled: sequence.last_step, saved: Saved::Nothing };
        let state = sequence.states.held[at].state;
        if self.pool.store(state, name) && num_tokens == sequence.states.branch {
            self.pool.raise_hits(state, 1); // by the sequence that others have left here
        }
        let before = sequence.states.last_checkpoint.replace(Checkpoint { key, num_tokens });
        if let Some(before) = before.filter(|before| before.key != key) {
            self.supersede(sequence, before);
        }
    }

    /// Lets a checkpoint go before others, unless several sequences continued from it, or it is at an interval. One of
    /// an output of which there is a later one is forgotten.
    fn supersede(&mut self, sequence: &Sequence, before: Checkpoint) {
        let Some(state) = self.pool.get(before.key).filter(|_| !self.is_at_interval(before.num_tokens)) else { return };
        if before.num_tokens > sequence.num_prompt_tokens {
            if self.pool.references(state) == 0 {
                self.pool.forget_block(state);
            }
        } else if self.pool.hits(state) <= 1 {
            self.pool.supersede(state);
        }
    }

    /// Frees the states of a sequence before the last one after which a token may be computed again, or which is to be
    /// named when its tokens are known.
    pub(super) fn prune(&mut self, sequence: &mut Sequence) {
        let may_go_back = sequence.is_stateful || sequence.awaits_commit;
        let oldest = if may_go_back { sequence.lowest() } else { sequence.num_computed.min(sequence.num_known()) };
        let held = &mut sequence.states.held;
        let num_before = held.partition_point(|held| held.num_tokens <= oldest);
        for held in held.drain(..num_before.saturating_sub(1)) {
            self.pool.free(held.state);
        }
    }

    /// Goes back to the last state of a running sequence after at most `num_computed` tokens, and lowers that number to
    /// the state's. False: there is none after all known tokens but the last.
    pub(super) fn rewind(&mut self, sequence: &mut Sequence) -> bool {
        let held = &mut sequence.states.held;
        for held in held.drain(held.partition_point(|held| held.num_tokens <= sequence.num_computed)..) {
            self.pool.free(held.state);
        }
        let num_tokens = held.last().map_or(0, |held| held.num_tokens);
        let is_behind = num_tokens + 1 < sequence.num_known(); // windows have moved on
        if num_tokens < sequence.num_computed && is_behind {
            return false;
        }
        sequence.num_computed = num_tokens;
        let Some(&last) = sequence.states.held.last() else { return self.ensure_spare(sequence) };
        if self.is_writable(last) && (self.pool.name(last.state).is_none() || !self.ensure_spare(sequence)) {
            self.pool.forget_block(last.state);
            return true;
        }
        self.ensure_spare(sequence)
    }

    /// Gives a sequence a spare state if it has none. False: all states are taken.
    fn ensure_spare(&mut self, sequence: &mut Sequence) -> bool {
        if sequence.states.spare.is_none() {
            sequence.states.spare = self.allocate();
        }
        sequence.states.spare.is_some()
    }

    /// Whether no other sequence reads a held state.
    fn is_writable(&self, held: HeldState) -> bool {
        self.pool.references(held.state) == 1
    }

    /// Whether a fork can run from its origin's state: there is a state for each to write to.
    pub(super) fn can_share(&self) -> bool {
        self.num_free() >= 2
    }

    /// Lets a fork continue from its origin's last state.
    pub(super) fn share(&mut self, origin: &mut Sequence, fork: &mut Sequence) {
        if let Some(&last) = origin.states.held.last() {
            self.pool.share(last.state);
            fork.states.held.push(last);
        }
        fork.states.spare = self.allocate();
        if origin.states.spare.is_none() {
            origin.states.spare = self.allocate();
        }
    }

    /// Frees all states of a sequence.
    pub(super) fn free(&mut self, sequence: &mut Sequence) {
        for state in std::mem::take(&mut sequence.states).all() {
            self.pool.free(state);
        }
    }

    /// Forgets the contents of all checkpoints.
    pub(super) fn forget(&mut self) {
        self.pool.forget();
    }

    /// Frees every state after the loss of the device.
    pub(super) fn clear(&mut self) {
        self.pool = TierCache::new(self.pool.num_blocks());
    }

    fn allocate(&mut self) -> Option<StateId> {
        self.pool.allocate(false).map(|(state, _)| state)
    }

    /// See `Scheduler::audit`.
    pub(super) fn audit<'a>(&self, sequences: impl Iterator<Item = &'a Sequence>) -> Result<(), String> {
        let mut references = vec![0; self.pool.num_blocks() as usize];
        for sequence in sequences {
            sequence.states.all().for_each(|state| references[state.0 as usize] += 1);
            let held = &sequence.states.held;
            let end = held.last().map_or(0, |held| held.num_tokens);
            if sequence.slot().is_some() && end != sequence.num_computed {
                return Err(format!("the last state is after {end} tokens, not {}", sequence.num_computed));
            }
            let has_place = sequence.states.spare.is_some() || held.last().is_some_and(|&held| self.is_writable(held));
            if sequence.slot().is_some() != has_place {
                return Err(format!("a sequence in state {:?} has a place to write: {has_place}", sequence.state()));
            }
            if !held.is_sorted_by(|before, after| before.num_tokens < after.num_tokens) {
                return Err("a sequence's states are out of order".to_owned());
            }
        }
        let counted = |state: usize| self.pool.references(StateId(state as u32));
        match (0..references.len()).find(|&state| counted(state) != references[state]) {
            Some(state) => Err(format!("state {state} counts {} references of {}", counted(state), references[state])),
            None => self.pool.audit(),
        }
    }
}
