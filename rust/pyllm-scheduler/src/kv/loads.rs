//! Loads of keys and values from an external store. There are no callbacks: offers and the ends of loads are inputs. An
//! asynchronous load puts its blocks into the prefix cache, where the request finds them. A synchronous load ends
//! before the step that reads it; if it fails, that step's row is void. Tokens that could not be loaded are computed.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::arena::Key;
use crate::error::{Error, Result};
use crate::ids::{BlockId, ClientId, LoadId, RequestId, StateId, StepId};
use crate::kv::Kv;
use crate::kv::cache::{Filled, Found, FoundChain, KvCache};
use crate::steps::Steps;
use crate::table::Table;
use crate::table::sequence::{LiveRequest, Sequence, State};

/// A load of whole blocks into blocks of the device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Load {
    /// Its id for `Scheduler::finish_load`.
    pub id: LoadId,
    /// The client of the request. The load has tokens of the prompt, and of the output if it has one unfinished sample.
    pub client: ClientId,
    /// The client's id for it.
    pub request: RequestId,
    /// Index of the first token to load.
    pub first_token: u32,
    /// The number of tokens.
    pub num_tokens: u32,
    /// One list per group of layers. Without a window it has every block of these tokens; with a window only the last
    /// ones, which later tokens still read. Of a model with states one more list has the state after the last token,
    /// numbered after all blocks.
    pub blocks: Vec<Vec<BlockId>>,
    /// The step that reads them; none if the request waits for the load.
    pub step: Option<StepId>,
}

/// A load under way. It holds references to its blocks, so that they are not reused while they are written.
struct Loading {
    sequence: Key<Sequence>,
    /// One for each group.
    chains: Vec<LoadedChain>,
    /// The state after its last token, of a model with states.
    state: Option<StateId>,
    /// The blocks before them in the prefix cache, without which an asynchronous load would be useless.
    before: Vec<FoundChain>,
    /// The sequence's blocks that are loaded.
    range: Range<u32>,
    step: Option<StepId>,
    /// Whether its tokens count as cached at first admission.
    is_first: bool,
    /// Whether its blocks were computed with other weights.
    is_stale: bool,
}

/// The sequence's blocks from `first` on in one group.
struct LoadedChain {
    first: u32,
    blocks: Vec<BlockId>,
}

/// The loads under way.
#[derive(Default)]
pub(crate) struct Loads {
    under_way: BTreeMap<LoadId, Loading>,
    new: Vec<Load>,     // not taken by the caller yet
    num_awaited: usize, // for which a sequence waits, or waited before it ended
    next: LoadId,
}

impl Loads {
    pub(crate) fn num_awaited(&self) -> usize {
        self.num_awaited
    }

    /// Blocks that loads refer to, once for each reference.
    pub(super) fn places(&self) -> impl Iterator<Item = Found> {
        self.under_way.values().flat_map(|loading| {
            let loaded = loading.chains.iter().flat_map(|chain| chain.blocks.iter().copied().map(Found::Device));
            loaded.chain(loading.before.iter().flat_map(|chain| chain.blocks.iter().copied()))
        })
    }

    /// States that loads refer to.
    pub(super) fn states(&self) -> impl Iterator<Item = StateId> {
        self.under_way.values().filter_map(|loading| loading.state)
    }

    /// Forgets all loads after the loss of the device.
    pub(super) fn clear(&mut self) {
        self.under_way.clear();
        self.new.clear();
        self.num_awaited = 0;
    }
}

/// The end of a load.
#[derive(Clone, Copy)]
pub(crate) struct EndedLoad {
    pub(crate) num_tokens: u32,
    /// Whether its tokens count as cached at first admission.
    pub(crate) is_first: bool,
    pub(crate) failed: bool,
}

impl Kv {
    pub(crate) fn loads(&self) -> &Loads {
        &self.loads
    }

    /// The loads that plans have started since the last call.
    pub(crate) fn take_loads(&mut self) -> Vec<Load> {
        std::mem::take(&mut self.loads.new)
    }

    /// Marks the blocks of all loads as computed with other weights.
    pub(super) fn make_loads_stale(&mut self) {
        for loading in self.loads.under_way.values_mut() {
            loading.is_stale = true;
        }
    }

    /// Ends a load under way, with its first `num_tokens` tokens in place. If that fails, a sequence that read its
    /// blocks is computed again.
    ///
    /// Errors: `UnknownLoad`.
    pub(crate) fn end_load(
        &mut self,
        load: LoadId,
        num_tokens: u32,
        table: &mut Table,
        steps: &Steps,
    ) -> Result<EndedLoad> {
        let block_size = self.layout.block_size;
        let loading = self.loads.under_way.remove(&load).ok_or(Error::UnknownLoad { load })?;
        let Loading { sequence: key, chains, state, before, range, step, is_first, is_stale } = loading;
        self.loads.num_awaited -= usize::from(step.is_none());
        let end = range.start.saturating_add(num_tokens / block_size).min(range.end);
        let failed = end < range.end;
        let kept_end = if is_stale { range.start } else { end };
        if let Some(sequence) = table.sequence_mut(key) {
            if step.is_none() {
                sequence.num_awaited += (kept_end - range.start) * block_size;
            } else if sequence.load == Some(load) {
                self.end_read(key, failed, table, steps);
            }
            // The blocks are complete, as if a committed step had filled them.
            let filled = Filled { step: StepId(steps.oldest().0.saturating_sub(1)), is_loaded: true };
            let (sequence, live) = table.pair(key);
            let retention = live.request.kv_cache_retention;
            for (group, chain) in (0..).zip(&chains) {
                for (index, &block) in (chain.first..kept_end).zip(&chain.blocks) {
                    let content = sequence.content(live, index, block_size);
                    self.cache.store_for(block, group, content, filled, retention);
                }
            }
            if let Some(state) = state.filter(|_| !failed && !is_stale) {
                let content = sequence.content(live, end - 1, block_size);
                self.cache.store_loaded_state(state, &content, filled.step);
                self.cache.save_state(content.hash, retention);
            }
        }
        for mut chain in chains {
            self.cache.free_chain(&mut chain.blocks);
        }
        if let Some(state) = state {
            self.cache.states.device.free(state);
        }
        free_found(&before, &mut self.cache);
        if table.sequence(key).is_some_and(|sequence| sequence.state() == State::Loading) {
            table.enqueue(key, State::Waiting);
        }
        Ok(EndedLoad { num_tokens: range.len() as u32 * block_size, is_first, failed })
    }

    /// Ends the load that a running sequence's blocks depend on. If it failed, they are void.
    fn end_read(&mut self, key: Key<Sequence>, failed: bool, table: &mut Table, steps: &Steps) {
        if failed {
            let sequence = &mut table[key];
            (sequence.valid_from, sequence.num_loaded) = (steps.next(), 0);
            if sequence.slot().is_some() {
                table.stop_running(key);
                self.vacate(key, table);
                table.enqueue(key, State::Preempted);
            }
        }
        table[key].load = None;
    }

    /// Ends a load that a committed step has read: with success, if it is still under way.
    pub(crate) fn end_load_of_step(&mut self, load: LoadId, table: &mut Table) -> Option<EndedLoad> {
        let loading = self.loads.under_way.remove(&load)?;
        for mut chain in loading.chains {
            self.cache.free_chain(&mut chain.blocks);
        }
        if let Some(sequence) = table.sequence_mut(loading.sequence) {
            sequence.load = sequence.load.filter(|&of| of != load);
            if loading.is_first {
                let num_known = loading.range.end * self.layout.block_size;
                sequence.cached_tokens = Some(num_known.min(sequence.num_prompt_tokens));
            }
        }
        let num_tokens = loading.range.len() as u32 * self.layout.block_size;
        Some(EndedLoad { num_tokens, is_first: loading.is_first, failed: false })
    }

    /// Begins the asynchronous load of a sequence that was just taken from the queue, after the prefix of the last
    /// `find`. False: it needs none.
    pub(crate) fn begin_asynchronous_load(&mut self, key: Key<Sequence>, table: &mut Table) -> bool {
        let num_cached = self.found.length;
        let (sequence, live) = table.pair_mut(key);
        let Some(num_offered) = self.offered_blocks(sequence, live, true) else { return false };
        live.offer = None;
        if num_offered <= num_cached {
            return false;
        }
        let end = num_offered * self.layout.block_size;
        for (found, group) in self.found.chains.iter_mut().zip(&self.layout.groups) {
            let first = group.first_block(end);
            let passed = (first.saturating_sub(found.first) as usize).min(found.blocks.len());
            found.blocks.drain(..passed);
            found.first = found.first.max(first);
        }
        let before = self.found.chains.clone();
        self.hold_found();
        let mut chains = Vec::new();
        for (group, found) in (0..).zip(&before) {
            let first = num_cached.max(found.first);
            let blocks = (first..num_offered).map(|_| self.cache.allocate(group)).collect();
            chains.push(LoadedChain { first, blocks });
        }
        let range = num_cached..num_offered;
        let state = self.states.as_ref().and_then(|_| self.cache.allocate_state());
        let loading =
            Loading { sequence: key, chains, state, before, range, step: None, is_first: false, is_stale: false };
        self.begin_load(loading, live);
        self.loads.num_awaited += 1;
        table.begin_loading(key);
        true
    }

    /// Begins a load, by the step in progress, of offered tokens that an admitted sequence does not have.
    pub(crate) fn begin_load_in_step(&mut self, key: Key<Sequence>, table: &mut Table, step: StepId) -> Option<LoadId> {
        let (sequence, live) = table.pair_mut(key);
        let num_offered = self.offered_blocks(sequence, live, false)?;
        live.offer = None;
        let first = sequence.num_computed / self.layout.block_size;
        if num_offered <= first {
            return None;
        }
        sequence.num_computed = num_offered * self.layout.block_size;
        let loaded = sequence.chains.iter().map(|chain| {
            let first = first.max(chain.first);
            LoadedChain { first, blocks: (first..num_offered).filter_map(|index| chain.get(index)).collect() }
        });
        let chains: Vec<_> = loaded.collect();
        for &block in chains.iter().flat_map(|chain| &chain.blocks) {
            self.cache.share(block);
        }
        let before = Vec::new(); // its sequence has them
        let is_first = sequence.cached_tokens.is_none();
        let range = first..num_offered;
        let state = None;
        let loading =
            Loading { sequence: key, chains, state, before, range, step: Some(step), is_first, is_stale: false };
        let load = self.begin_load(loading, live);
        sequence.load = Some(load);
        sequence.num_loaded = num_offered;
        Some(load)
    }

    fn begin_load(&mut self, loading: Loading, live: &LiveRequest) -> LoadId {
        let id = self.loads.next;
        self.loads.next = LoadId(id.0 + 1);
        let state = loading.state.map(|state| vec![self.cache.numbered(state)]);
        self.loads.new.push(Load {
            id,
            client: live.request.client,
            request: live.request.id,
            first_token: loading.range.start * self.layout.block_size,
            num_tokens: loading.range.len() as u32 * self.layout.block_size,
            blocks: loading.chains.iter().map(|chain| chain.blocks.clone()).chain(state).collect(),
            step: loading.step,
        });
        self.loads.under_way.insert(id, loading);
        id
    }

    /// The number of whole blocks in the offer, without the last known token, which is always computed. A load names no
    /// sample, so if several samples resume only the prompt is loaded.
    pub(super) fn offered_blocks(&self, sequence: &Sequence, live: &LiveRequest, asynchronous: bool) -> Option<u32> {
        let offer = live.offer.filter(|offer| offer.asynchronous == asynchronous && self.shares_prefix(live))?;
        if self.states.is_some() && !asynchronous {
            return None; // a row would read the state before the load has ended
        }
        let most = if live.num_unfinished > 1 { sequence.num_prompt_tokens } else { sequence.num_known() };
        Some(offer.num_tokens.min(most).min(sequence.num_known() - 1) / self.layout.block_size)
    }
}

fn free_found(found: &[FoundChain], cache: &mut KvCache) {
    for &found in found.iter().flat_map(|chain| chain.blocks.iter().rev()) {
        match found {
            Found::Device(block) => cache.free(block),
            Found::Host(host) => cache.free_host_block(host),
        }
    }
}
