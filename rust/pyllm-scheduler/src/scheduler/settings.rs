//! Calls that change settings, weights and the prefix cache while requests run: reset, pins, events, and restored host
//! blocks.

use std::iter;

use crate::config::Config;
use crate::error::{Error, Result};
use crate::kv_cache::event_batch::{BatchFormat, EventBatch};
use crate::kv_cache::events::{Events, KvEvent, Snapshot};
use crate::kv_cache::hash::BlockHash;
use crate::kv_cache::host_block::HostBlock;
use crate::policy::policy;
use crate::queue::Queue;
use crate::recorder::Input;
use crate::request::{Request, tokens_are_ids};
use crate::sequence::{LiveRequest, State};

use super::Scheduler;

impl Scheduler {
    /// The current settings.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Length in tokens of the longest sequence that fits into the KV cache; none if windows let any length fit.
    pub fn longest_sequence(&self) -> Option<u32> {
        self.layout.longest_sequence(self.config.num_blocks)
    }

    /// Changes live settings, from the next step on. A new policy reorders the queue. A new version of the weights
    /// recomputes all running sequences, and empties the prefix cache.
    ///
    /// Errors: `Config` for a value out of its range, `Fixed` for a setting that is not live.
    pub fn reconfigure(&mut self, config: Config) -> Result<()> {
        config.validate()?;
        if let Some(setting) = self.config.fixed_difference(&config) {
            return Err(Error::Fixed { setting });
        }
        self.record(|| Input::Reconfigure(Box::new(config.clone())));
        let before = std::mem::replace(&mut self.config, config);
        if before.weights_version != self.config.weights_version {
            self.change_weights();
        }
        if before.policy != self.config.policy {
            self.change_policy();
        } else if before.tenant_weights != self.config.tenant_weights {
            self.change_tenant_weights();
        }
        Ok(())
    }

    /// Empties the prefix cache. Running sequences keep their blocks.
    pub fn reset_prefix_cache(&mut self) {
        self.record(|| Input::ResetPrefixCache);
        self.forget_contents();
    }

    /// Restores the contents of these host blocks, which survived on every rank; the others are empty. Call it on a new
    /// scheduler, or after `lose_device` if the host's memory has survived. Of two blocks with the same contents the
    /// first stays; nothing is restored without prefix caching.
    ///
    /// Errors: `HostBlock` for a block or group that does not exist, and for a block that is named twice, in use, or
    /// has known contents.
    pub fn restore_host_blocks(&mut self, blocks: Vec<HostBlock>) -> Result<()> {
        if let Some(problem) = self.cache.cannot_restore(&blocks) {
            return Err(Error::HostBlock { problem });
        }
        self.record(|| Input::RestoreHostBlocks { blocks: blocks.clone() });
        self.cache.restore_host(blocks);
        Ok(())
    }

    /// Keeps the full blocks of a prefix from eviction: those that are cached now, and the others once they are
    /// computed. The prefix is that of requests with this tenant, cache salt and adapter. Gives the number of its full
    /// blocks.
    ///
    /// Errors: `Disabled` without prefix caching, `DuplicatePin`, `PinQuota`, `Request` for an invalid token id or no
    /// full block.
    pub fn pin(&mut self, name: u64, of: &Request) -> Result<u32> {
        if !self.config.enable_prefix_caching {
            return Err(Error::Disabled { call: "pin", setting: "enable_prefix_caching" });
        }
        tokens_are_ids("prompt", &of.prompt, self.config.vocab_size)?;
        let root = self.hasher.root(&LiveRequest::extra_keys(of, &self.config));
        let hashes = self.hash_prompt(root, &of.prompt);
        let num_blocks = hashes.len() as u32;
        if num_blocks == 0 {
            let (given, block_size) = (of.prompt.len(), self.config.block_size);
            let problem = format!("{given} tokens fill no block of {block_size}; pin a longer prefix");
            return Err(Error::Request(problem));
        }
        // In a window, only the blocks that the next token reads.
        let end = num_blocks * self.config.block_size;
        let keys = (0..).zip(&self.layout.groups).flat_map(|(group, layout)| {
            let first = layout.first_block(end);
            hashes[first as usize..].iter().map(move |hash| hash.of(group))
        });
        self.cache.pin(name, keys.collect())?;
        self.record(|| Input::Pin { name, of: Box::new(of.clone()) });
        Ok(num_blocks)
    }

    /// At most `limit` events of the prefix cache from number `first` on. The last 100,000 are kept; none unless
    /// `enable_kv_cache_events`.
    pub fn events(&self, first: u64, limit: usize) -> Events {
        self.cache.events(first, limit)
    }

    /// All events from number `first` on, as a batch of vLLM; the whole cache if some of them were dropped; none if
    /// there are no events.
    pub fn event_batch(&self, first: u64, format: BatchFormat, seconds: f64) -> Option<EventBatch> {
        let (found, events) = self.cache.events_since(first);
        if found != first {
            return Some(self.snapshot_batch(format, seconds));
        }
        let next = first + events.len() as u64;
        (next > first).then(|| EventBatch { next, payload: format.encode(events, &self.config, seconds) })
    }

    /// The contents of the prefix cache, as a batch of vLLM that begins with `AllBlocksCleared`.
    pub fn snapshot_batch(&self, format: BatchFormat, seconds: f64) -> EventBatch {
        let Snapshot { next, events, .. } = self.cache.snapshot();
        let events = iter::once(&KvEvent::Cleared).chain(&events);
        EventBatch { next, payload: format.encode(events, &self.config, seconds) }
    }

    /// The contents of the prefix cache, for a subscriber that has missed events.
    pub fn snapshot(&self) -> Snapshot {
        self.cache.snapshot()
    }

    /// Removes a pin. False: there is no such pin.
    pub fn unpin(&mut self, name: u64) -> bool {
        self.record(|| Input::Unpin { name });
        self.cache.unpin(name)
    }

    fn forget_contents(&mut self) {
        self.cache.forget();
        // Running sequences store their blocks again, since their children's events need a parent.
        for sequence in self.sequences.values_mut() {
            sequence.num_stored = 0;
        }
    }

    fn change_policy(&mut self) {
        self.policy = policy(self.config.policy);
        let waiting: Vec<_> = self.queue.iter().map(|(_, _, key)| key).collect();
        self.queue = Queue::new();
        let keys: Vec<_> = self.requests.iter().map(|(key, _)| key).collect();
        for key in keys {
            let tenant = std::mem::take(&mut self.requests[key].request.tenant);
            self.requests[key].lane = self.open_lane(&tenant);
            self.requests[key].request.tenant = tenant;
        }
        for key in waiting {
            self.take_place(key);
        }
        let mut running = std::mem::take(&mut self.running);
        for &key in &running {
            self.sequences[key].queue_key = self.queue_key(key);
        }
        running.sort_unstable_by_key(|&key| self.sequences[key].queue_key);
        self.running = running;
    }

    fn change_tenant_weights(&mut self) {
        let lanes: Vec<_> =
            self.requests.iter().map(|(_, live)| (live.lane, self.weight(&live.request.tenant))).collect();
        if self.policy.shares_by_tenant() {
            for (lane, weight) in lanes {
                self.queue.set_weight(lane, weight);
            }
        }
    }

    /// Recomputes all sequences with the new weights.
    fn change_weights(&mut self) {
        for key in std::mem::take(&mut self.running) {
            self.vacate(key);
            self.enqueue(key, State::Preempted);
        }
        let keys: Vec<_> = self.sequences.iter().map(|(key, _)| key).collect();
        for key in keys {
            let sequence = &mut self.sequences[key];
            for chain in &mut sequence.chains {
                self.cache.free_host(&mut chain.host_blocks);
                chain.host_first = 0;
            }
            sequence.num_computed = 0;
            sequence.output_hashes.clear();
            if sequence.state == State::Swapped {
                sequence.state = State::Preempted;
            }
        }
        self.num_swapped_out = 0;
        for loading in self.loads.values_mut() {
            loading.is_stale = true;
        }
        self.forget_contents();
        let keys: Vec<_> = self.requests.iter().map(|(key, _)| key).collect();
        for key in keys {
            let live = &self.requests[key];
            let root = self.hasher.root(&LiveRequest::extra_keys(&live.request, &self.config));
            let num_hashes = live.prompt_hashes.len();
            let prompt = std::mem::take(&mut self.requests[key].request.prompt);
            let hashes: Vec<BlockHash> = if num_hashes > 0 { self.hash_prompt(root, &prompt) } else { Vec::new() };
            let live = &mut self.requests[key];
            live.request.prompt = prompt;
            live.root = root;
            live.prompt_hashes = hashes;
            live.offer = None;
        }
    }
}
