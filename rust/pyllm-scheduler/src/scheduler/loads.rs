//! Loads of keys and values from an external store. There are no callbacks: offers and the ends of loads are inputs. An
//! asynchronous load puts its blocks into the prefix cache, where the request finds them. A synchronous load ends
//! before the step that reads it; if it fails, that step's row is void. Tokens that could not be loaded are computed.

use std::ops::Range;

use crate::arena::Key;
use crate::error::{Error, Result};
use crate::ids::{BlockId, ClientId, LoadId, RequestId, StepId};
use crate::kv_cache::hash::BlockHash;
use crate::kv_cache::{Filled, Found, FoundChain};
use crate::recorder::Input;
use crate::sequence::{Offer, Sequence, State};

use super::Scheduler;
use super::planning::Planning;

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
    /// ones, which later tokens still read.
    pub blocks: Vec<Vec<BlockId>>,
    /// The step that reads them; none if the request waits for the load.
    pub step: Option<StepId>,
}

/// A load under way. It holds references to its blocks, so that they are not reused while they are written.
pub(super) struct Loading {
    pub(super) sequence: Key<Sequence>,
    /// One for each group.
    pub(super) chains: Vec<LoadedChain>,
    /// The blocks before them in the prefix cache, without which an asynchronous load would be useless.
    pub(super) before: Vec<FoundChain>,
    /// The sequence's blocks that are loaded.
    range: Range<u32>,
    step: Option<StepId>,
    /// Whether its tokens count as cached at first admission.
    is_first: bool,
    /// Whether its blocks were computed with other weights.
    pub(super) is_stale: bool,
}

/// The sequence's blocks from `first` on in one group.
pub(super) struct LoadedChain {
    first: u32,
    pub(super) blocks: Vec<BlockId>,
}

impl Scheduler {
    /// The number of a request's tokens that the prefix cache has now, and the names of all full blocks that could be
    /// loaded, from the first on: those of the prompt, and of the output if there is one unfinished sample. Without
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

    /// Expected seconds to compute `num_tokens` of a prompt; none before any measurement.
    pub fn prefill_seconds(&self, num_tokens: u32) -> Option<f64> {
        self.times.is_measured().then(|| self.times.prefill_seconds(num_tokens))
    }

    /// Offers to load the keys and values of a request's first `num_tokens` tokens from an external store: before the
    /// step that reads them, or asynchronously while the request waits. Used if the prefix cache has fewer tokens.
    ///
    /// Errors: `Disabled` without prefix caching, `UnknownRequest`, `TooLate` while it has blocks or a step in flight.
    pub fn offer_load(
        &mut self,
        client: ClientId,
        request: RequestId,
        num_tokens: u32,
        asynchronous: bool,
    ) -> Result<()> {
        if !self.config.enable_prefix_caching {
            return Err(Error::Disabled { call: "offer_load", setting: "enable_prefix_caching" });
        }
        let key = self.find(client, request)?;
        let mut live = super::live_sequences(&self.requests[key]).into_iter().map(|key| &self.sequences[key]);
        // A sequence that was preempted, or lost its blocks with the device, starts like a new one.
        let starts = |sequence: &Sequence| {
            let has_place = matches!(sequence.state, State::Running(_) | State::Loading) || sequence.is_on_host();
            !has_place && sequence.num_in_flight == 0
        };
        if !live.all(starts) {
            return Err(Error::TooLate { request });
        }
        self.requests[key].offer = Some(Offer { num_tokens, asynchronous });
        self.record(|| Input::OfferLoad { client, request, num_tokens, asynchronous });
        Ok(())
    }

    /// The loads that plans have started since the last call.
    pub fn take_loads(&mut self) -> Vec<Load> {
        std::mem::take(&mut self.new_loads)
    }

    /// Ends a load, with its first `num_tokens` tokens in place; fewer than all is a failure. The success of a load
    /// that a step reads need not be reported: the step's commit implies it.
    ///
    /// Errors: `UnknownLoad`.
    pub fn finish_load(&mut self, load: LoadId, num_tokens: u32) -> Result<()> {
        let Some(loading) = self.loads.remove(&load) else { return Err(Error::UnknownLoad { load }) };
        let Loading { sequence: key, mut chains, before, range, step, is_first, is_stale } = loading;
        self.record(|| Input::FinishLoad { load, num_tokens });
        self.num_loading -= usize::from(step.is_none());
        let end = range.start.saturating_add(num_tokens / self.config.block_size).min(range.end);
        let failed = end < range.end;
        self.counters.num_failed_loads += u64::from(failed);
        if failed && is_first {
            self.counters.num_uncached_tokens += range.len() as u64 * u64::from(self.config.block_size);
        }
        let kept_end = if is_stale { range.start } else { end };
        if let Some(sequence) = self.sequences.get_mut(key) {
            if step.is_none() {
                sequence.num_awaited += (kept_end - range.start) * self.config.block_size;
            }
            let is_read = step.is_some() && sequence.load == Some(load);
            if is_read && !failed {
                sequence.load = None;
            }
            if is_read && failed {
                (sequence.valid_from, sequence.num_loaded) = (self.next_step, 0);
                if sequence.slot().is_some() {
                    self.running.retain(|&running| running != key);
                    self.take_back(key);
                }
                self.sequences[key].load = None;
            }
            // The blocks are complete, as if a committed step had filled them.
            let filled = Filled { step: StepId(self.oldest_step().0.saturating_sub(1)), is_loaded: true };
            let sequence = &self.sequences[key];
            let live = &self.requests[sequence.request];
            let retention = live.request.kv_cache_retention;
            for (group, chain) in (0..).zip(&chains) {
                for (index, &block) in (chain.first..kept_end).zip(&chain.blocks) {
                    let content = sequence.content(live, index, self.config.block_size);
                    self.cache.store_for(block, group, content, filled, retention);
                }
            }
        }
        for chain in &mut chains {
            self.cache.free_chain(&mut chain.blocks);
        }
        self.free_found(&before);
        if self.sequences.get(key).is_some_and(|sequence| sequence.state == State::Loading) {
            self.enqueue(key, State::Waiting);
        }
        Ok(())
    }

    /// Begins the asynchronous load of a sequence that was just taken from the queue. False: it needs none.
    pub(super) fn begin_asynchronous_load(&mut self, key: Key<Sequence>) -> bool {
        let num_cached = self.found.length;
        let Some(num_offered) = self.offered_blocks(key, true) else { return false };
        self.requests[self.sequences[key].request].offer = None;
        if num_offered <= num_cached {
            return false;
        }
        let end = num_offered * self.config.block_size;
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
        self.sequences[key].state = State::Loading;
        let range = num_cached..num_offered;
        let loading = Loading { sequence: key, chains, before, range, step: None, is_first: false, is_stale: false };
        self.load(loading);
        self.num_loading += 1;
        true
    }

    /// Begins a load, by the step in progress, of offered tokens that the sequence does not have.
    pub(super) fn begin_load_in_step(&mut self, key: Key<Sequence>, planning: &mut Planning) {
        let Some(num_offered) = self.offered_blocks(key, false) else { return };
        let sequence = &mut self.sequences[key];
        self.requests[sequence.request].offer = None;
        let first = sequence.num_computed / self.config.block_size;
        if num_offered <= first {
            return;
        }
        sequence.num_computed = num_offered * self.config.block_size;
        let loaded = sequence.chains.iter().map(|chain| {
            let first = first.max(chain.first);
            LoadedChain { first, blocks: (first..num_offered).filter_map(|index| chain.get(index)).collect() }
        });
        let chains: Vec<_> = loaded.collect();
        for &block in chains.iter().flat_map(|chain| &chain.blocks) {
            self.cache.share(block);
        }
        let step = Some(planning.step);
        let before = Vec::new(); // its sequence has them
        let range = first..num_offered;
        let is_first = self.sequences[key].cached_tokens.is_none();
        let loading = Loading { sequence: key, chains, before, range, step, is_first, is_stale: false };
        let load = self.load(loading);
        self.sequences[key].load = Some(load);
        self.sequences[key].num_loaded = num_offered;
        planning.loads.push(load);
    }

    /// Ends the loads of a committed step as successful.
    pub(super) fn finish_loads_of(&mut self, loads: Vec<LoadId>) {
        for load in loads {
            if let Some(mut loading) = self.loads.remove(&load) {
                for chain in &mut loading.chains {
                    self.cache.free_chain(&mut chain.blocks);
                }
                if loading.is_first {
                    let num_tokens = loading.range.len() as u64 * u64::from(self.config.block_size);
                    self.counters.prefix_hits += num_tokens;
                    self.counters.loaded_prefix_hits += num_tokens;
                }
                if let Some(sequence) = self.sequences.get_mut(loading.sequence) {
                    sequence.load = sequence.load.filter(|&of| of != load);
                    if loading.is_first {
                        let num_known = loading.range.end * self.config.block_size;
                        sequence.cached_tokens = Some(num_known.min(sequence.num_prompt_tokens));
                    }
                }
            }
        }
    }

    fn load(&mut self, loading: Loading) -> LoadId {
        let id = self.next_load;
        self.next_load = LoadId(id.0 + 1);
        let request = &self.requests[self.sequences[loading.sequence].request].request;
        self.new_loads.push(Load {
            id,
            client: request.client,
            request: request.id,
            first_token: loading.range.start * self.config.block_size,
            num_tokens: loading.range.len() as u32 * self.config.block_size,
            blocks: loading.chains.iter().map(|chain| chain.blocks.clone()).collect(),
            step: loading.step,
        });
        self.loads.insert(id, loading);
        id
    }

    fn free_found(&mut self, found: &[FoundChain]) {
        for &found in found.iter().flat_map(|chain| chain.blocks.iter().rev()) {
            match found {
                Found::Device(block) => self.cache.free(block),
                Found::Host(host) => self.cache.free_host_block(host),
            }
        }
    }

    /// The number of whole blocks in the offer, without the last known token, which is always computed. A load names no
    /// sample, so if several samples resume only the prompt is loaded.
    pub(super) fn offered_blocks(&self, key: Key<Sequence>, asynchronous: bool) -> Option<u32> {
        let sequence = &self.sequences[key];
        let live = &self.requests[sequence.request];
        let offer =
            live.offer.filter(|offer| offer.asynchronous == asynchronous && live.shares_prefix(&self.config))?;
        let most = if live.num_unfinished > 1 { sequence.num_prompt_tokens } else { sequence.num_known() };
        Some(offer.num_tokens.min(most).min(sequence.num_known() - 1) / self.config.block_size)
    }
}
