//! The states of sequences: what some layers keep of all tokens before, a fixed number of bytes. A row reads one state
//! and writes another, or the same in place: in a state that others read, or that the prefix cache has named, nothing
//! is written. So a checkpoint of a prefix costs no copy, and neither does a sequence that continues from it.
//!
//! States have a pool of their own beside the blocks, whose names are those of the blocks that end where they do.

use crate::block_hash::BlockHash;
use crate::config::Config;
use crate::ids::{HostStateId, StateId, StepId};
use crate::kv::cache::{Found, KvCache};
use crate::table::held_states::{Checkpoint, HeldState};
use crate::table::sequence::{LiveRequest, Sequence};

/// The rules of states: where checkpoints stay, and which state a row reads and writes. The cache has the states.
pub(crate) struct States {
    block_size: u32,
    checkpoint_interval: u32, // in tokens
    has_checkpoints: bool,
    found: Option<Found<StateId, HostStateId>>, // by the last lookup
}

impl States {
    /// None for a model without states.
    pub(crate) fn new(config: &Config) -> Option<Self> {
        (config.num_states > 0).then(|| Self {
            block_size: config.block_size,
            checkpoint_interval: config.state_checkpoint_blocks * config.block_size,
            has_checkpoints: config.enable_prefix_caching,
            found: None,
        })
    }

    /// Finds the longest start, of at most `most` blocks, that ends at a checkpoint which step `planning` may read.
    pub(crate) fn find(
        &mut self,
        most: u32,
        hash_of: impl Fn(u32) -> BlockHash,
        planning: StepId,
        committed: StepId,
        cache: &KvCache,
    ) -> u32 {
        let (group, states) = (cache.state_group(), &cache.states);
        let find = |length: u32| {
            let key = hash_of(length - 1).of(group);
            let on_device = states.device.find(key, planning, committed).map(Found::Device);
            on_device.or_else(|| states.host.get(key).map(Found::Host))
        };
        let found = (1..=most).rev().find_map(|length| Some((length, find(length)?)));
        self.found = found.map(|(_, state)| state);
        found.map_or(0, |(length, _)| length)
    }

    /// Forgets the last checkpoint found, for a sequence that continues from its own state.
    pub(super) fn find_none(&mut self) {
        self.found = None;
    }

    /// Whether there are states for a sequence that continues from the last checkpoint found, or from its own on the
    /// host: one to write to, and one to read if that is not in use already.
    pub(crate) fn has_place(&self, sequence: &Sequence, cache: &KvCache) -> bool {
        let is_taken = match self.found {
            Some(Found::Device(state)) => cache.states.device.references(state) == 0,
            Some(Found::Host(_)) => true,
            None => sequence.states.on_host.is_some(),
        };
        cache.states.device.num_free() > u32::from(is_taken)
    }

    /// Gives a sequence its own state of the host or the last checkpoint found, and a state to write to.
    pub(super) fn admit(&mut self, sequence: &mut Sequence, live: &LiveRequest, step: StepId, cache: &mut KvCache) {
        debug_assert!(sequence.states.held.is_empty(), "a queued sequence has no states");
        let num_tokens = sequence.num_computed;
        let state = match self.found.take() {
            Some(Found::Device(state)) => {
                cache.states.device.share(state);
                Some(state)
            }
            Some(Found::Host(host)) => {
                cache.states.host.share(host);
                let state = cache.swap_in_state(host);
                let content = sequence.content(live, num_tokens / self.block_size - 1, self.block_size);
                if let Some(state) = state {
                    cache.store_state(state, &content, step);
                }
                state
            }
            None => sequence.states.on_host.take().and_then(|host| cache.swap_in_state(host)),
        };
        if let Some(state) = state {
            sequence.states.held.push(HeldState { state, num_tokens });
            let name = cache.states.device.name(state);
            if let Some(name) = name {
                cache.save_state(name.key.hash, live.request.kv_cache_retention);
            }
            sequence.states.last_checkpoint = name.map(|name| Checkpoint { key: name.key, num_tokens });
        }
        sequence.states.spare = cache.allocate_state();
        debug_assert!(sequence.states.spare.is_some(), "the caller has looked at has_place");
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
        let checkpoints = [boundary, multiple, sequence.states.branch, sequence.states.pinned]
            .map(|at| if self.has_checkpoints { at } else { end });
        checkpoints.into_iter().chain([again]).filter(|&at| at > start).fold(end, u32::min)
    }

    /// Whether a state after so many tokens of a sequence is kept for others: at the end of its last full block, where
    /// others have branched off or a pinned prefix ends, and at each interval.
    fn is_checkpoint(&self, sequence: &Sequence, num_tokens: u32) -> bool {
        let is_boundary = num_tokens % self.block_size == 0 && self.has_checkpoints;
        let is_last = num_tokens + self.block_size >= sequence.num_known();
        is_boundary && (is_last || sequence.states.is_wanted(num_tokens) || self.is_at_interval(num_tokens))
    }

    fn is_at_interval(&self, num_tokens: u32) -> bool {
        self.checkpoint_interval > 0 && num_tokens % self.checkpoint_interval == 0
    }

    /// Whether a sequence's next row can leave the state that it reads as it is.
    pub(crate) fn can_keep(sequence: &Sequence, cache: &KvCache) -> bool {
        sequence.states.spare.is_some() || cache.states.device.num_free() > 0
    }

    /// The states that a row reads and writes, which computes the tokens of a running sequence up to `end`; -1 for the
    /// state before the first token. With `keeps` the state that it reads stays as it is, if there is another.
    pub(super) fn advance(&self, sequence: &mut Sequence, end: u32, keeps: bool, cache: &mut KvCache) -> (i32, i32) {
        let source = sequence.states.held.last().copied();
        let is_kept = keeps || source.is_some_and(|held| self.is_checkpoint(sequence, held.num_tokens));
        let is_named = |held: HeldState| cache.states.device.name(held.state).is_some();
        let is_free = source.is_some_and(|held| is_writable(held, cache) && !is_named(held));
        let states = &mut sequence.states;
        let other = if is_free && !is_kept { None } else { states.spare.take().or_else(|| cache.allocate_state()) };
        let destination = match (source, other) {
            (Some(HeldState { state, .. }), None) => {
                assert!(cache.states.device.references(state) == 1, "a state that others read is not written");
                cache.forget_state(state);
                states.held.pop();
                state
            }
            (_, other) => {
                if !is_kept {
                    states.held.pop().into_iter().for_each(|held| cache.states.free_after_plan(held.state));
                }
                other.expect("a sequence that begins has a state to write to")
            }
        };
        states.held.push(HeldState { state: destination, num_tokens: end });
        (source.map_or(-1, |held| held.state.0 as i32), destination.0 as i32)
    }

    /// Names the state at the end of a sequence's block, which is full of known tokens, if it is to stay. A
    /// request that continues the sequence starts here, so the checkpoint before is superseded.
    pub(super) fn store(&self, sequence: &mut Sequence, live: &LiveRequest, index: u32, cache: &mut KvCache) {
        let num_tokens = (index + 1) * self.block_size;
        let Some(at) = sequence.states.held.iter().position(|held| held.num_tokens == num_tokens) else { return };
        let is_last = at + 1 == sequence.states.held.len();
        if !self.is_checkpoint(sequence, num_tokens) || is_last && !ensure_spare(sequence, cache) {
            return;
        }
        let content = sequence.content(live, index, self.block_size);
        let key = content.hash.of(cache.state_group());
        let state = sequence.states.held[at].state;
        let is_first = cache.store_state(state, &content, sequence.last_step);
        cache.save_state(content.hash, live.request.kv_cache_retention);
        if is_first && num_tokens == sequence.states.branch {
            cache.states.device.raise_hits(state, 1); // by the sequence that others have left here
        }
        let before = sequence.states.last_checkpoint.replace(Checkpoint { key, num_tokens });
        if let Some(before) = before.filter(|before| before.key != key) {
            self.supersede(sequence, before, cache);
        }
    }

    /// Lets a checkpoint go before others, unless several sequences continued from it, or it is at an interval. One of
    /// an output of which there is a later one is forgotten, if it is free.
    fn supersede(&self, sequence: &Sequence, before: Checkpoint, cache: &mut KvCache) {
        if self.is_at_interval(before.num_tokens) {
            return;
        }
        let is_of_output = before.num_tokens > sequence.num_prompt_tokens;
        let host = &mut cache.states.host;
        if let Some(state) = host.get(before.key).filter(|&state| is_of_output || host.hits(state) <= 1) {
            host.supersede(state);
        }
        let device = &mut cache.states.device;
        let Some(state) = device.get(before.key) else { return };
        if is_of_output && device.references(state) == 0 {
            cache.forget_state(state);
        } else if is_of_output || device.hits(state) <= 1 {
            device.supersede(state);
        }
    }

    /// Frees the states of a sequence before the last one after which a token may be computed again, or which is to be
    /// named when its tokens are known.
    pub(super) fn prune(sequence: &mut Sequence, cache: &mut KvCache) {
        let may_go_back = sequence.is_stateful || sequence.awaits_commit;
        let oldest = if may_go_back { sequence.lowest() } else { sequence.num_computed.min(sequence.num_known()) };
        let held = &mut sequence.states.held;
        let num_before = held.partition_point(|held| held.num_tokens <= oldest);
        for held in held.drain(..num_before.saturating_sub(1)) {
            cache.states.free_after_plan(held.state);
        }
    }

    /// Goes back to the last state of a running sequence after at most `num_computed` tokens, and lowers that number to
    /// the state's. False: there is none after all known tokens but the last.
    pub(super) fn rewind(sequence: &mut Sequence, cache: &mut KvCache) -> bool {
        let held = &mut sequence.states.held;
        for held in held.drain(held.partition_point(|held| held.num_tokens <= sequence.num_computed)..) {
            cache.states.device.free(held.state);
        }
        let num_tokens = held.last().map_or(0, |held| held.num_tokens);
        let is_behind = num_tokens + 1 < sequence.num_known(); // windows have moved on
        if num_tokens < sequence.num_computed && is_behind {
            return false;
        }
        sequence.num_computed = num_tokens;
        let Some(&last) = sequence.states.held.last() else { return ensure_spare(sequence, cache) };
        let is_named = cache.states.device.name(last.state).is_some();
        if is_writable(last, cache) && (!is_named || !ensure_spare(sequence, cache)) {
            cache.forget_state(last.state);
            return true;
        }
        ensure_spare(sequence, cache)
    }

    /// Whether a fork can run from its origin's state: there is a state for each to write to.
    pub(super) fn can_share(cache: &KvCache) -> bool {
        cache.states.device.num_free() >= 2
    }

    /// Lets a fork continue from its origin's last state.
    pub(super) fn share(origin: &mut Sequence, fork: &mut Sequence, cache: &mut KvCache) {
        if let Some(&last) = origin.states.held.last() {
            cache.states.device.share(last.state);
            fork.states.held.push(last);
        }
        fork.states.spare = cache.allocate_state();
        ensure_spare(origin, cache);
    }

    /// Frees all states of a sequence, on the device and the host.
    pub(super) fn free(sequence: &mut Sequence, cache: &mut KvCache) {
        let states = std::mem::take(&mut sequence.states);
        states.all().for_each(|state| cache.states.device.free(state));
        states.on_host.into_iter().for_each(|host| cache.states.host.free(host));
    }

    /// Whether the host can take the state of a sequence that stops running: none of its tokens is computed again.
    pub(super) fn can_swap_out(sequence: &Sequence, cache: &KvCache) -> bool {
        let is_last = sequence.states.held.last().is_some_and(|held| held.num_tokens == sequence.num_computed);
        is_last && !sequence.is_stateful && !sequence.awaits_commit && cache.states.host.num_free() > 0
    }

    /// Queues the swap of a sequence's last state to the host.
    pub(super) fn swap_out(sequence: &Sequence, cache: &mut KvCache) -> Option<HostStateId> {
        let last = sequence.states.held.last()?;
        cache.swap_out_state(last.state)
    }

    /// See `Scheduler::audit`.
    pub(super) fn audit<'a>(
        sequences: impl Iterator<Item = &'a Sequence>,
        loading: impl Iterator<Item = StateId>,
        cache: &KvCache,
    ) -> Result<(), String> {
        let states = &cache.states;
        let mut references = vec![0; states.device.num_blocks() as usize];
        let mut on_host = vec![0; states.host.num_blocks() as usize];
        for sequence in sequences {
            sequence.states.all().for_each(|state| references[state.0 as usize] += 1);
            sequence.states.on_host.into_iter().for_each(|host| on_host[host.0 as usize] += 1);
            let held = &sequence.states.held;
            let end = held.last().map_or(0, |held| held.num_tokens);
            if sequence.slot().is_some() && end != sequence.num_computed {
                return Err(format!("the last state is after {end} tokens, not {}", sequence.num_computed));
            }
            let has_place =
                sequence.states.spare.is_some() || held.last().is_some_and(|&held| is_writable(held, cache));
            if sequence.slot().is_some() != has_place {
                return Err(format!("a sequence in state {:?} has a place to write: {has_place}", sequence.state()));
            }
            if sequence.is_on_host() != sequence.states.on_host.is_some() {
                return Err(format!("of a sequence in state {:?} the host has blocks or a state", sequence.state()));
            }
            if !held.is_sorted_by(|before, after| before.num_tokens < after.num_tokens) {
                return Err("a sequence's states are out of order".to_owned());
            }
        }
        loading.chain(cache.pinned_states()).for_each(|state| references[state.0 as usize] += 1);
        for (state, references) in (0..).zip(&mut references) {
            *references += cache.saving_state_references(StateId(state));
        }
        let counted = |state: usize| states.device.references(StateId(state as u32));
        if let Some(state) = (0..references.len()).find(|&state| counted(state) != references[state]) {
            return Err(format!("state {state} counts {} references of {}", counted(state), references[state]));
        }
        let counted = |host: usize| states.references_host(HostStateId(host as u32));
        match (0..on_host.len()).find(|&host| counted(host) != on_host[host]) {
            Some(host) => Err(format!("host state {host} counts {} references of {}", counted(host), on_host[host])),
            None => Ok(()),
        }
    }
}

/// Whether no other sequence, and no pin, refers to a held state.
fn is_writable(held: HeldState, cache: &KvCache) -> bool {
    cache.states.device.references(held.state) == 1
}

/// Gives a sequence a spare state if it has none. False: all states are taken.
fn ensure_spare(sequence: &mut Sequence, cache: &mut KvCache) -> bool {
    if sequence.states.spare.is_none() {
        sequence.states.spare = cache.allocate_state();
    }
    sequence.states.spare.is_some()
}
