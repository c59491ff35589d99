//! What changes while requests run: settings, weights, and what the prefix cache must keep or forget, or has from
//! before.

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
    /// The settings as they are.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Tokens of the longest sequence that fits into the KV cache; none where windows let any length fit.
    pub fn longest_sequence(&self) -> Option<u32> {
        self.layout.longest_sequence(self.config.num_blocks)
    }

    /// Changes live settings, from the next step on. With another policy all that waits is ordered anew. With another
    /// version of the weights all that runs is computed anew, and the prefix cache is forgotten.
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

    /// Forgets all contents that the prefix cache knows. What runs keeps its blocks.
    pub fn reset_prefix_cache(&mut self) {
        self.record(|| Input::ResetPrefixCache);
        self.forget_contents();
    }

    /// These host blocks hold what they held before, on every rank; the others hold nothing. Call it on a new scheduler,
    /// or after `lose_device`, where the host's memory has outlived the workers. Of two blocks with the same contents
    /// the first stays; nothing is restored without prefix caching.
    ///
    /// Errors: `HostBlock` for a block or group that there is not, and for a block that is named twice, in use, or known
    /// to hold something.
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
    /// Errors: `Disabled` without prefix caching, `DuplicatePin`, `PinQuota`, `Request` for what is no token id or no
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
        // Of a window what those read that go on from the prefix.
        let end = num_blocks * self.config.block_size;
        let keys = (0..).zip(&self.layout.groups).flat_map(|(group, layout)| {
            let first = layout.first_block(end);
            hashes[first as usize..].iter().map(move |hash| hash.of(group))
        });
        self.cache.pin(name, keys.collect())?;
        self.record(|| Input::Pin { name, of: Box::new(of.clone()) });
        Ok(num_blocks)
    }

    /// At most `limit` of what the prefix cache has got and lost, from the event of number `first` on. The last 100,000
    /// are kept; none unless `enable_kv_cache_events`.
    pub fn events(&self, first: u64, limit: usize) -> Events {
        self.cache.events(first, limit)
    }

    /// All events from number `first` on, as a batch of vLLM; the whole cache where some of them were dropped; none if
    /// there are none.
    pub fn event_batch(&self, first: u64, format: BatchFormat, seconds: f64) -> Option<EventBatch> {
        let (found, events) = self.cache.events_since(first);
        if found != first {
            return Some(self.snapshot_batch(format, seconds));
        }
        let next = first + events.len() as u64;
        (next > first).then(|| EventBatch { next, payload: format.encode(events, &self.config, seconds) })
    }

    /// What the prefix cache knows now, as a batch of vLLM that begins with `AllBlocksCleared`.
    pub fn snapshot_batch(&self, format: BatchFormat, seconds: f64) -> EventBatch {
        let Snapshot { next, events, .. } = self.cache.snapshot();
        let events = iter::once(&KvEvent::Cleared).chain(&events);
        EventBatch { next, payload: format.encode(events, &self.config, seconds) }
    }

    /// What the prefix cache knows now, for a subscriber that has not heard all events.
    pub fn snapshot(&self) -> Snapshot {
        self.cache.snapshot()
    }

    /// Lets a pinned prefix be evicted. False: there is no such pin.
    pub fn unpin(&mut self, name: u64) -> bool {
        self.record(|| Input::Unpin { name });
        self.cache.unpin(name)
    }

    fn forget_contents(&mut self) {
        self.cache.forget();
        // What runs tells of its blocks again, lest their children's names have no beginning.
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

    /// What was computed with other weights is of no use to anyone.
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
