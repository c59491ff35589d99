//! The scheduler itself: what lives, what waits and what runs, and the calls that change it from outside. Planning,
//! admission and commit are in the files beside; what blocks hold is in `kv_cache`, what clients hear in `deltas`.

mod admission;
mod audit;
mod commit;
mod planning;
mod stats;

use std::collections::{BTreeMap, HashMap, VecDeque};

use crate::arena::{Arena, Key};
use crate::config::Config;
use crate::deltas::{Delta, DeltaColumns, Outbox};
use crate::error::{Error, Result};
use crate::hash::BlockHash;
use crate::ids::{BlockId, ClientId, RequestId, Slot, StepId};
use crate::kv_cache::KvCache;
use crate::plan::Draft;
use crate::request::{Finish, Request};
use crate::sequence::{LiveRequest, QueueKey, Sample, Sequence, State};

pub use stats::Stats;

/// Decides what every step computes. See the crate's page for the rules.
pub struct Scheduler {
    config: Config,
    outbox: Outbox,
    requests: Arena<LiveRequest>,
    request_keys: HashMap<(ClientId, RequestId), Key<LiveRequest>>,
    sequences: Arena<Sequence>,
    waiting: BTreeMap<QueueKey, Key<Sequence>>,
    running: Vec<Key<Sequence>>, // in the order of admission
    num_held: usize,
    cache: KvCache,
    free_slots: Vec<Slot>,
    slot_copies: Vec<(Slot, Slot)>, // (source, destination), for the next plan
    steps: VecDeque<Step>,          // in flight, oldest first
    next_step: StepId,
    next_serial: u64,
    now: f64,
    counters: Counters,
    // Working space, kept between calls for its memory alone.
    draft: Draft,
    spare_rows: Vec<Vec<Row>>,
    message: Vec<u8>,
    found: Vec<BlockId>,
    copied: Vec<BlockId>, // by the plan being made, each with one reference of its own
    forked: Vec<(Key<Sequence>, i32)>,
}

/// A planned step.
struct Step {
    id: StepId,
    rows: Vec<Row>,
}

/// A sequence's part in a step.
#[derive(Clone, Copy)]
struct Row {
    sequence: Key<Sequence>,
    num_samples: u32,
}

#[derive(Default)]
struct Counters {
    num_preemptions: u64,
    prefix_queries: u64,
    prefix_hits: u64,
    num_computed_tokens: u64,
    num_steps: u64,
}

impl Scheduler {
    /// Errors: `Error::Config` for a limit out of its range.
    pub fn new(config: Config) -> Result<Self> {
        config.validate()?;
        Ok(Self {
            outbox: Outbox::new(),
            requests: Arena::new(),
            request_keys: HashMap::new(),
            sequences: Arena::new(),
            waiting: BTreeMap::new(),
            running: Vec::new(),
            num_held: 0,
            cache: KvCache::new(config.num_blocks, config.enable_prefix_caching),
            free_slots: all_slots(&config),
            slot_copies: Vec::new(),
            steps: VecDeque::new(),
            next_step: StepId(0),
            next_serial: 0,
            now: f64::NEG_INFINITY,
            counters: Counters::default(),
            draft: Draft::default(),
            spare_rows: Vec::new(),
            message: Vec::new(),
            found: Vec::new(),
            copied: Vec::new(),
            forked: Vec::new(),
            config,
        })
    }

    /// Queues a request, fresh or resumed.
    ///
    /// Errors: `DuplicateRequest`, `PromptTooLong`, `NeverFits`, or `Request` for a field that is not valid.
    pub fn add(&mut self, mut request: Request) -> Result<()> {
        let name = (request.client, request.id);
        if self.request_keys.contains_key(&name) {
            return Err(Error::DuplicateRequest { client: name.0, request: name.1 });
        }
        request.validate(&self.config)?;
        request.stop_token_ids.sort_unstable();
        request.stop_token_ids.dedup();
        let outputs = std::mem::take(&mut request.outputs);

        let root = BlockHash::root(&[&request.tenant, &request.cache_salt, &request.adapter]);
        let prompt_hashes =
            if self.config.enable_prefix_caching { self.hash_prompt(root, &request.prompt) } else { Vec::new() };
        let serial = self.next_serial;
        self.next_serial += 1;
        let client = self.outbox.open(request.client);
        let num_unfinished = outputs.iter().filter(|output| !output.finished).count() as u32;
        let (samples, num_unfinished) = match outputs[..] {
            [] => (vec![Sample::Unforked; request.n as usize], request.n),
            _ => (vec![Sample::Finished; request.n as usize], num_unfinished),
        };
        let live = LiveRequest { request, client, serial, root, prompt_hashes, samples, num_unfinished, hold: None };
        let key = self.requests.insert(live);
        self.request_keys.insert(name, key);
        if outputs.is_empty() {
            self.start(key, 0, self.requests[key].request.n, Vec::new());
        }
        for (sample, output) in outputs.into_iter().enumerate().filter(|(_, output)| !output.finished) {
            self.start(key, sample as u32, 1, output.tokens);
        }
        Ok(())
    }

    /// Ends a request, or one sample of it, with a final delta. False: it is not there, and has probably finished.
    pub fn abort(&mut self, client: ClientId, request: RequestId, sample: Option<u32>) -> bool {
        let Some(&key) = self.request_keys.get(&(client, request)) else { return false };
        let samples = match sample {
            Some(sample) => sample..sample.saturating_add(1),
            None => 0..self.requests[key].request.n,
        };
        self.outbox.begin_round();
        let mut found = false;
        for sample in samples {
            found |= self.abort_sample(key, sample);
        }
        self.running.retain(|&key| self.sequences.contains(key));
        found
    }

    /// Keeps a request from running until `release`: it leaves the queue, and what runs of it is preempted.
    ///
    /// Errors: `UnknownRequest`, `AlreadyHeld`.
    pub fn hold(&mut self, client: ClientId, request: RequestId, reason: &str) -> Result<()> {
        let key = self.find(client, request)?;
        let live = &mut self.requests[key];
        if let Some(reason) = &live.hold {
            return Err(Error::AlreadyHeld { request, reason: reason.clone() });
        }
        live.hold = Some(reason.to_owned());
        for key in live_sequences(&self.requests[key]) {
            if let State::Running(_) = self.sequences[key].state {
                self.running.retain(|&running| running != key);
                self.preempt(key);
            }
            let sequence = &mut self.sequences[key];
            self.waiting.remove(&sequence.queue_key);
            sequence.state = State::Held;
            self.num_held += 1;
        }
        Ok(())
    }

    /// Puts a held request back to where it was in the queue.
    ///
    /// Errors: `UnknownRequest`, `NotHeld`.
    pub fn release(&mut self, client: ClientId, request: RequestId) -> Result<()> {
        let key = self.find(client, request)?;
        if self.requests[key].hold.take().is_none() {
            return Err(Error::NotHeld { request });
        }
        for key in live_sequences(&self.requests[key]) {
            self.num_held -= 1;
            self.enqueue(key);
        }
        Ok(())
    }

    /// Ends all requests of a client that is gone, and forgets its deltas.
    pub fn drop_client(&mut self, client: ClientId) {
        let owned = self.requests.iter().filter(|(_, live)| live.request.client == client);
        let keys: Vec<_> = owned.map(|(key, _)| key).collect();
        for key in keys {
            for sequence in live_sequences(&self.requests[key]) {
                self.remove_sequence(sequence);
            }
            self.remove_request(key);
        }
        self.running.retain(|&key| self.sequences.contains(key));
        self.outbox.remove(client);
    }

    /// The clients that have deltas to take, longest waiting first.
    pub fn pending_clients(&self) -> &[ClientId] {
        self.outbox.pending()
    }

    /// What is new for a client since the last call, one row a sample.
    pub fn take_deltas(&mut self, client: ClientId) -> Option<&DeltaColumns> {
        self.outbox.take(client)
    }

    /// The device and all it held are gone: what ran returns to its place in the queue, to be computed anew from its
    /// tokens; the steps in flight will never be committed; no block holds anything.
    pub fn lose_device(&mut self) {
        for key in std::mem::take(&mut self.running) {
            self.enqueue(key);
        }
        for sequence in self.sequences.values_mut() {
            sequence.blocks.clear();
            sequence.num_computed = 0;
            sequence.num_in_flight = 0;
        }
        self.spare_rows.extend(self.steps.drain(..).map(|step| step.rows));
        self.slot_copies.clear();
        self.free_slots = all_slots(&self.config);
        self.cache.clear();
    }

    fn find(&self, client: ClientId, request: RequestId) -> Result<Key<LiveRequest>> {
        self.request_keys.get(&(client, request)).copied().ok_or(Error::UnknownRequest { client, request })
    }

    fn hash_prompt(&mut self, root: BlockHash, prompt: &[i32]) -> Vec<BlockHash> {
        let blocks = prompt.chunks_exact(self.config.block_size as usize);
        let chain = blocks.scan(root, |parent, tokens| {
            *parent = parent.child(tokens.iter(), &mut self.message);
            Some(*parent)
        });
        chain.collect()
    }

    /// Queues a sequence of a new request.
    fn start(&mut self, request: Key<LiveRequest>, sample: u32, num_samples: u32, output: Vec<i32>) {
        let live = &mut self.requests[request];
        let key = self.sequences.insert(Sequence {
            request,
            sample,
            num_samples,
            state: State::Waiting,
            queue_key: live.queue_key(sample),
            num_prompt_tokens: live.request.prompt.len() as u32,
            max_length: live.request.max_length(&self.config),
            num_computed: 0,
            num_in_flight: 0,
            cached_tokens: None,
            last_step: StepId(0),
            output,
            blocks: Vec::new(),
            num_stored: 0,
            output_hashes: Vec::new(),
        });
        live.samples[sample as usize] = Sample::Live(key);
        self.enqueue(key);
    }

    fn enqueue(&mut self, key: Key<Sequence>) {
        let sequence = &mut self.sequences[key];
        sequence.state = State::Waiting;
        self.waiting.insert(sequence.queue_key, key);
    }

    /// Takes everything but its tokens from a running sequence, which the caller has removed from `running`.
    fn preempt(&mut self, key: Key<Sequence>) {
        self.vacate(key);
        self.enqueue(key);
        self.counters.num_preemptions += 1;
    }

    /// Frees the blocks and the slot of a running sequence.
    fn vacate(&mut self, key: Key<Sequence>) {
        let sequence = &mut self.sequences[key];
        if let State::Running(slot) = sequence.state {
            self.cache.free_chain(&mut sequence.blocks);
            sequence.num_computed = 0;
            self.slot_copies.retain(|&(_, destination)| destination != slot);
            self.free_slots.push(slot);
        }
    }

    fn abort_sample(&mut self, key: Key<LiveRequest>, sample: u32) -> bool {
        // The samples before this one may have been the last.
        let Some(live) = self.requests.get(key) else { return false };
        let mut offset = 0;
        let mut cached_tokens = 0;
        match live.samples.get(sample as usize) {
            None | Some(Sample::Finished) => return false,
            Some(Sample::Unforked) => {}
            Some(Sample::Live(sequence)) => {
                let sequence = &self.sequences[*sequence];
                offset = sequence.output.len() as u32;
                cached_tokens = sequence.cached_tokens.unwrap_or(0);
            }
        }
        let delta =
            Delta { request: live.request.id, sample, offset, tokens: &[], finish: Finish::Abort, cached_tokens };
        self.outbox.push(live.client, &delta);
        self.hand_over(key, sample);
        self.end_sample(key, sample);
        true
    }

    /// If other samples wait for this one's sequence to compute their prompt, it becomes the next one's.
    fn hand_over(&mut self, key: Key<LiveRequest>, sample: u32) {
        let live = &mut self.requests[key];
        let Sample::Live(sequence) = live.samples[sample as usize] else { return };
        let mut later = sample as usize + 1..live.samples.len();
        if let Some(heir) = later.find(|&later| matches!(live.samples[later], Sample::Unforked)) {
            live.samples[heir] = Sample::Live(sequence);
            live.samples[sample as usize] = Sample::Unforked;
            self.sequences[sequence].sample = heir as u32;
        }
    }

    /// Removes a sample's sequence, and with the last sample the request. The caller tidies `running`.
    fn end_sample(&mut self, key: Key<LiveRequest>, sample: u32) {
        let live = &mut self.requests[key];
        let ended = std::mem::replace(&mut live.samples[sample as usize], Sample::Finished);
        live.num_unfinished -= 1;
        let is_last = live.num_unfinished == 0;
        if let Sample::Live(sequence) = ended {
            self.remove_sequence(sequence);
        }
        if is_last {
            self.remove_request(key);
        }
    }

    fn remove_sequence(&mut self, key: Key<Sequence>) {
        self.vacate(key);
        if let Some(sequence) = self.sequences.remove(key) {
            match sequence.state {
                State::Waiting => drop(self.waiting.remove(&sequence.queue_key)),
                State::Held => self.num_held -= 1,
                State::Running(_) => {}
            }
        }
    }

    fn remove_request(&mut self, key: Key<LiveRequest>) {
        if let Some(live) = self.requests.remove(key) {
            self.request_keys.remove(&(live.request.client, live.request.id));
            self.outbox.close(live.client);
        }
    }
}

/// The sequences of a request, in the order of its samples.
fn live_sequences(live: &LiveRequest) -> Vec<Key<Sequence>> {
    let live = live.samples.iter().filter_map(|sample| match sample {
        Sample::Live(key) => Some(*key),
        Sample::Unforked | Sample::Finished => None,
    });
    live.collect()
}

/// The lowest last, to be taken first.
fn all_slots(config: &Config) -> Vec<Slot> {
    (0..config.max_num_seqs).rev().map(Slot).collect()
}
