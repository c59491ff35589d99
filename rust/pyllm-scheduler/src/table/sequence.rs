//! One sample of a live request: its tokens, its blocks and its progress. Knows no queue and no other sequence; the
//! prompt belongs to the request and is passed in.

use std::ops::Range;

use crate::arena::Key;
use crate::block_hash::{BlockHash, BlockHasher, Content};
use crate::config::Config;
use crate::ids::{BlockId, ClientId, HostBlockId, LoadId, RequestId, Slot, StepId};
use crate::output::deltas::Client;
use crate::request::{Finish, Request};
use crate::table::beam_search::BeamSearch;
use crate::table::held_states::HeldStates;
use crate::table::queue::{Lane, QueueKey};

/// A value that no token has: marks the end of the prompt in the names of blocks.
const PROMPT_END: i32 = -1;

/// A request being served.
pub(crate) struct LiveRequest {
    pub(crate) request: Request,
    pub(crate) client: Key<Client>,
    pub(crate) lane: Key<Lane<Sequence>>,
    pub(crate) serial: u64,
    pub(crate) root: BlockHash,
    pub(crate) prompt_hashes: Vec<BlockHash>, // of the prompt's full blocks
    pub(crate) samples: Vec<Sample>,
    pub(crate) num_unfinished: u32,
    pub(crate) holders: Vec<String>, // in the order of the calls
    pub(crate) offer: Option<Offer>,
    pub(crate) search: Option<BeamSearch>,
    /// Output tokens that were expected when the request came.
    pub(crate) expected_output: u32,
    /// Time of the first step that computed a part of it.
    pub(crate) scheduled_at: Option<f64>,
    /// Whether its client has output of it, possibly from an earlier core.
    pub(crate) has_output: bool,
    pub(crate) num_preemptions: u32,
    pub(crate) ended: EndedSamples,
}

/// Totals of a request's ended samples.
#[derive(Clone, Copy, Default)]
pub(crate) struct EndedSamples {
    pub(crate) num_output_tokens: u32,
    pub(crate) num_cached_tokens: u32,
}

impl LiveRequest {
    /// Adds the totals of a sample that ends.
    pub(crate) fn note_ended(&mut self, sequence: &Sequence) {
        self.ended.num_output_tokens += sequence.output.len() as u32;
        self.ended.num_cached_tokens = self.ended.num_cached_tokens.max(sequence.cached_tokens.unwrap_or(0));
    }

    pub(crate) fn name(&self) -> (ClientId, RequestId) {
        (self.request.client, self.request.id)
    }

    /// Its sequences, in the order of its samples.
    pub(crate) fn sequences(&self) -> Vec<Key<Sequence>> {
        let live = self.samples.iter().filter_map(|sample| match sample {
            Sample::Live(key) => Some(*key),
            Sample::Unforked | Sample::Finished => None,
        });
        live.collect()
    }

    /// Whether a part of it was computed, here or on an earlier core.
    pub(crate) fn has_begun(&self) -> bool {
        self.scheduled_at.is_some() || self.has_output
    }

    /// The holders that keep it from running, as text; none if not held.
    pub(crate) fn hold(&self) -> Option<String> {
        (!self.holders.is_empty()).then(|| self.holders.join(", "))
    }
}

/// Tokens from the start of a prompt whose keys and values can be loaded from an external store.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Offer {
    pub(crate) num_tokens: u32,
    pub(crate) asynchronous: bool,
}

/// The state of one sample.
#[derive(Clone, Copy)]
pub(crate) enum Sample {
    /// Waits until another sample's sequence has computed the prompt, or the round of beams.
    Unforked,
    Live(Key<Sequence>),
    Finished,
}

/// The blocks of a sequence in one group of layers.
#[derive(Clone, Default)]
pub(crate) struct Chain {
    /// Index of the first of `blocks` within the sequence; earlier ones are outside the window.
    pub(crate) first: u32,
    pub(crate) blocks: Vec<BlockId>,
    /// The blocks on the host while swapped; `host_first` is the index of the first.
    pub(crate) host_blocks: Vec<HostBlockId>,
    pub(crate) host_first: u32,
}

impl Chain {
    /// The index after the last block.
    pub(crate) fn end(&self) -> u32 {
        self.first + self.blocks.len() as u32
    }

    /// The block at an index of the sequence, if the chain has it.
    pub(crate) fn get(&self, index: u32) -> Option<BlockId> {
        self.blocks.get(index.checked_sub(self.first)? as usize).copied()
    }

    /// The chain's blocks before index `end` of the sequence.
    pub(crate) fn before(&self, end: u32) -> &[BlockId] {
        &self.blocks[..(end.saturating_sub(self.first) as usize).min(self.blocks.len())]
    }
}

/// The places of the tokens in the block that is being written, in each group: a copy of a part of `chains`, as every
/// row needs it.
#[derive(Clone, Copy, Default)]
pub(crate) struct WrittenBlock {
    number: u32, // number of the block in the sequence, from 1; 0: none yet
    places: [u32; Config::MAX_KV_GROUPS as usize],
}

impl WrittenBlock {
    /// The place of the first token of block `index` in each group.
    pub(crate) fn places(&mut self, index: u32, chains: &[Chain], block_size: u32) -> &[u32] {
        if self.number != index + 1 {
            self.number = index + 1;
            for (place, chain) in self.places.iter_mut().zip(chains) {
                *place = chain.blocks[(index - chain.first) as usize].0 * block_size;
            }
        }
        &self.places[..chains.len()]
    }

    /// Marks the copy as stale.
    pub(crate) fn forget(&mut self) {
        self.number = 0;
    }
}

/// The fields that every step needs come first, in this order, so that they share the first cache lines.
#[derive(Default)]
#[repr(C)]
pub(crate) struct Sequence {
    pub(super) state: State,
    pub(crate) num_prompt_tokens: u32,
    /// Prompt and output tokens at which the sequence ends.
    pub(crate) max_length: u32,
    /// Tokens whose keys and values are in `chains`, or will be after the steps in flight; in a window those that are
    /// still read. While swapped: in the host blocks.
    pub(crate) num_computed: u32,
    /// Tokens before this one have a place in the blocks of every group, except outside the window.
    pub(crate) num_placed: u32,
    /// Rows in flight whose last token is not known yet.
    pub(crate) num_in_flight: u32,
    pub(crate) sample: u32,
    /// Positions to sample where the known tokens end: n until the samples fork, then 1.
    pub(crate) num_samples: u32,
    pub(crate) output: Vec<i32>,
    pub(crate) chains: Box<[Chain]>, // one per group
    pub(crate) states: HeldStates,   // of a model that has some
    pub(crate) num_stored: u32,      // blocks that the prefix cache has seen
    pub(crate) num_loaded: u32,      // blocks that came, at least in part, from an external store, which needs no copy
    /// The last step with a row of this sequence; `last_share` is the number of that row's tokens.
    pub(crate) last_step: StepId,
    pub(crate) last_share: u32,
    /// Whether no row may be planned before those in flight are committed: one verifies `drafts`, or all are void.
    pub(crate) awaits_commit: bool,
    pub(crate) is_stateful: bool,
    /// Whether the block that it writes next may be shared with another sample.
    pub(crate) may_share: bool,
    pub(crate) beam: Beam,
    // Copied from its request.
    pub(crate) seed: u64,
    pub(crate) tpot_target: Option<f64>,
    pub(crate) request: Key<LiveRequest>,
    /// Proposed next tokens, which the row after the last known token verifies.
    pub(crate) drafts: Vec<i32>,
    pub(crate) last_token_at: f64,
    pub(crate) service: u64, // see `Work::service`
    /// Rows of earlier steps are void.
    pub(crate) valid_from: StepId,
    pub(crate) written: WrittenBlock,
    /// Prompt tokens found in the prefix cache at first admission; none before.
    pub(crate) cached_tokens: Option<u32>,
    pub(super) queue_key: QueueKey,
    /// Number of decisions when it began to wait, or when a fork began to run.
    pub(crate) since: u64,
    /// The step of its last admission.
    pub(crate) admitted: StepId,
    pub(crate) load: Option<LoadId>,          // that its blocks depend on
    pub(crate) num_awaited: u32,              // tokens of loads that it has waited for
    pub(crate) output_hashes: Vec<BlockHash>, // of the full blocks after the prompt's
    /// Prompt tokens whose log-probabilities the worker has sent since the last admission; `num_prompt_told`: whose the
    /// client has. The first token has none, and counts.
    pub(crate) num_prompt_heard: u32,
    pub(crate) num_prompt_told: u32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum State {
    #[default]
    Waiting,
    /// Waiting, to be recomputed.
    Preempted,
    /// Waiting, with its keys and values on the host.
    Swapped,
    Held,
    Loading,
    /// A beam with candidates that was preempted before its siblings had theirs.
    Paused,
    Running(Slot),
}

/// The beam state of a sequence. A beam continues with its candidates; sampled tokens do not count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Beam {
    #[default]
    None,
    /// Its candidates are not computed yet.
    Computing,
    /// Its candidates are known, but not yet those of all siblings.
    Waiting,
}

impl State {
    pub(crate) fn is_queued(self) -> bool {
        matches!(self, Self::Waiting | Self::Preempted | Self::Swapped)
    }
}

impl Sequence {
    /// Known tokens of prompt and output.
    pub(crate) fn num_known(&self) -> u32 {
        self.num_prompt_tokens + self.output.len() as u32
    }

    /// Known tokens and those in flight.
    pub(crate) fn length(&self) -> u32 {
        self.num_known() + self.num_in_flight
    }

    /// Known tokens that are not computed yet.
    pub(crate) fn num_uncomputed(&self) -> u32 {
        self.num_known().saturating_sub(self.num_computed)
    }

    /// Output tokens still expected: at least one, however long the output is.
    pub(crate) fn expected_output(&self, live: &LiveRequest) -> u32 {
        live.expected_output.saturating_sub(self.output.len() as u32).max(1)
    }

    /// Tokens to compute until its expected end.
    pub(crate) fn remaining(&self, live: &LiveRequest) -> u32 {
        self.num_uncomputed() + self.expected_output(live)
    }

    /// Whether one more row can be planned before the next commit.
    fn is_plannable(&self) -> bool {
        let is_decided_at_commit = self.num_samples > 1 || self.awaits_commit || self.beam != Beam::None;
        self.length() < self.max_length
            && self.beam != Beam::Waiting
            && !(self.num_in_flight > 0 && is_decided_at_commit)
    }

    /// Whether one more row can be planned before the next commit. In a pipeline not while a token is in flight; but
    /// chunks of a prompt follow one another at once.
    pub(crate) fn may_have_row(&self, is_pipelined: bool) -> bool {
        self.is_plannable() && (self.num_in_flight == 0 || !is_pipelined)
    }

    /// Whether all rows in flight are void.
    pub(crate) fn comes_to_nothing(&self) -> bool {
        self.num_in_flight > 0 && self.last_step < self.valid_from
    }

    /// Drafts that its next row, which computes the last known token, may verify.
    pub(crate) fn num_drafts(&self) -> u32 {
        if self.drafts.is_empty() || self.num_in_flight > 0 || self.num_samples > 1 {
            return 0;
        }
        (self.drafts.len() as u32).min(self.most_drafts())
    }

    /// Maximum number of drafts: each lengthens the output by one token, and so does the token after them.
    pub(crate) fn most_drafts(&self) -> u32 {
        self.max_length.saturating_sub(self.length() + 1)
    }

    /// The samples that a row with `num_samples` positions to sample draws for.
    pub(crate) fn sample_range(&self, num_samples: u32) -> Range<u32> {
        if self.num_samples > 1 { 0..num_samples } else { self.sample..self.sample + num_samples }
    }

    pub(crate) fn state(&self) -> State {
        self.state
    }

    /// Its place in the order of the policy, as of its last rank.
    pub(crate) fn queue_key(&self) -> QueueKey {
        self.queue_key
    }

    /// Appends tokens to the output up to its end, and gives the reason if it has ended.
    pub(crate) fn append(&mut self, tokens: &[i32], request: &Request) -> Finish {
        self.drafts.clear(); // proposed to follow an earlier token
        for &token in tokens {
            self.output.push(token);
            let may_stop = self.output.len() as u32 >= request.min_tokens;
            if may_stop && request.stop_token_ids.binary_search(&token).is_ok() {
                return Finish::Stop;
            }
            if self.num_known() >= self.max_length {
                return Finish::Length;
            }
        }
        Finish::None
    }

    /// Makes the rows in flight before step `next` void; no other is planned until they are committed.
    pub(crate) fn drop_rows(&mut self, next: StepId) {
        self.awaits_commit = self.num_in_flight > 0;
        if self.awaits_commit {
            self.valid_from = next;
        }
    }

    /// Forgets its blocks and rows after the loss of the device; only its tokens remain.
    pub(super) fn lose_device(&mut self) {
        self.chains.fill(Chain::default());
        self.states = HeldStates::default();
        self.written.forget();
        (self.num_computed, self.num_placed) = (0, 0);
        self.num_in_flight = 0;
        self.awaits_commit = false;
        self.may_share = false;
        self.load = None;
        self.num_awaited = 0;
        if self.state == State::Swapped {
            self.state = State::Preempted;
        }
    }

    pub(crate) fn slot(&self) -> Option<Slot> {
        match self.state {
            State::Running(slot) => Some(slot),
            _ => None,
        }
    }

    /// The first token that may be computed again: the last known one may be, after a row with wrong drafts or an
    /// unready worker.
    pub(crate) fn lowest(&self) -> u32 {
        self.num_computed.min(self.num_known() - 1)
    }

    /// Updates `num_placed` after a change of `chains`.
    pub(crate) fn note_placed(&mut self, block_size: u32) {
        self.num_placed = self.chains.iter().map(Chain::end).min().unwrap_or(0) * block_size;
    }

    /// Blocks of all groups together.
    pub(crate) fn num_blocks(&self) -> u32 {
        self.chains.iter().map(|chain| chain.blocks.len() as u32).sum()
    }

    /// Whether it has blocks on the host.
    pub(crate) fn is_on_host(&self) -> bool {
        self.chains.iter().any(|chain| !chain.host_blocks.is_empty())
    }

    /// Known tokens whose keys and values are in its blocks, or will be after the steps in flight.
    pub(crate) fn num_readable(&self) -> u32 {
        self.num_known().min(self.num_computed)
    }

    /// Whether the prefix cache has not seen a full block yet.
    pub(crate) fn has_block_to_store(&self, block_size: u32) -> bool {
        self.num_readable() >= (self.num_stored + 1) * block_size
    }

    /// Known tokens from `start` to before `end`, as the part in the prompt and the part in the output.
    pub(crate) fn tokens<'a>(&'a self, prompt: &'a [i32], start: u32, end: u32) -> (&'a [i32], &'a [i32]) {
        let split = prompt.len();
        let (start, end) = (start as usize, end as usize);
        (&prompt[start.min(split)..end.min(split)], &self.output[start.max(split) - split..end.max(split) - split])
    }

    /// Computes the hashes of the first `num_blocks` blocks, all full of known tokens. With `separate_outputs`, the
    /// hashes of blocks with output tokens include the prompt's length.
    pub(crate) fn hash_blocks(
        &mut self,
        live: &LiveRequest,
        block_size: u32,
        num_blocks: u32,
        hasher: &mut BlockHasher,
        separate_outputs: bool,
    ) {
        let num_prompt_blocks = live.prompt_hashes.len();
        while num_prompt_blocks + self.output_hashes.len() < num_blocks as usize {
            let index = (num_prompt_blocks + self.output_hashes.len()) as u32;
            let mut parent = *self.output_hashes.last().or(live.prompt_hashes.last()).unwrap_or(&live.root);
            if separate_outputs && self.output_hashes.is_empty() {
                parent = hasher.child(parent, &[PROMPT_END], &[self.num_prompt_tokens as i32]);
            }
            let (head, tail) = self.tokens(&live.request.prompt, index * block_size, (index + 1) * block_size);
            let hash = hasher.child(parent, head, tail);
            self.output_hashes.push(hash);
        }
    }

    /// The hash of a block, which `hash_blocks` has computed.
    pub(crate) fn hash(&self, live: &LiveRequest, index: u32) -> BlockHash {
        let (index, num_prompt_blocks) = (index as usize, live.prompt_hashes.len());
        if index < num_prompt_blocks {
            live.prompt_hashes[index]
        } else {
            self.output_hashes[index - num_prompt_blocks]
        }
    }

    /// The contents of a full block for the prefix cache. Its hash is known.
    pub(crate) fn content<'a>(&'a self, live: &'a LiveRequest, index: u32, block_size: u32) -> Content<'a> {
        let start = index * block_size;
        Content {
            hash: self.hash(live, index),
            parent: index.checked_sub(1).map_or(live.root, |before| self.hash(live, before)),
            index,
            tokens: self.tokens(&live.request.prompt, start, start + block_size),
            adapter: &live.request.adapter,
        }
    }

    /// A sequence for another sample with the same tokens, which shares no blocks yet.
    pub(crate) fn fork(&self, sample: u32) -> Self {
        Self {
            request: self.request,
            sample,
            num_samples: 1,
            beam: self.beam,
            queue_key: QueueKey { sample, ..self.queue_key },
            seed: self.seed,
            tpot_target: self.tpot_target,
            num_prompt_tokens: self.num_prompt_tokens,
            max_length: self.max_length,
            cached_tokens: self.cached_tokens,
            last_token_at: self.last_token_at,
            service: self.service,
            is_stateful: self.is_stateful,
            num_prompt_told: self.num_prompt_told,
            output: self.output.clone(),
            output_hashes: self.output_hashes.clone(),
            chains: vec![Chain::default(); self.chains.len()].into(),
            ..Self::default()
        }
    }
}
