//! The table of live requests: their sequences, the queue, the running order, slots and deadlines. Every change of a
//! sequence's state is a method here. Knows no block, no step and no client's output.

pub(crate) mod adapter_slots;
mod audit;
pub(crate) mod beam_search;
pub(crate) mod held_states;
pub(crate) mod queue;
pub(crate) mod ranking;
pub(crate) mod sequence;
mod slots;

use std::collections::{BTreeMap, HashMap};
use std::ops::{Index, IndexMut};

use crate::arena::{Arena, Key};
use crate::block_hash::BlockHash;
use crate::config::Config;
use crate::error::{Error, Result};
use crate::estimates::Estimates;
use crate::ids::{ClientId, RequestId, Slot, StepId};
use crate::output::deltas::Client;
use crate::policy::ordered;
use crate::request::{Output, Request};
use crate::table::adapter_slots::AdapterSlots;
use crate::table::beam_search::BeamSearch;
use crate::table::queue::{Queue, QueueKey};
use crate::table::ranking::Ranking;
use crate::table::sequence::{Beam, Chain, EndedSamples, LiveRequest, Sample, Sequence, State};
use crate::table::slots::Slots;

pub(crate) struct Table {
    requests: Arena<LiveRequest>,
    request_keys: HashMap<(ClientId, RequestId), Key<LiveRequest>>,
    deadlines: BTreeMap<(u64, u64), Key<LiveRequest>>, // by time, as integers in the same order, and serial
    sequences: Arena<Sequence>,
    queue: Queue<Sequence>,
    running: Vec<Key<Sequence>>, // in the order of the policy, first to be served first
    num_held: usize,
    num_paused: usize,
    num_swapped_out: usize, // in the queue, with their keys and values on the host
    slots: Slots,
    adapter_slots: AdapterSlots,
    ranking: Ranking,
    estimates: Estimates,
    now: f64,
    next_serial: u64,
    num_decisions: u64,                        // since the start, those without a plan included
    reordered: Vec<(QueueKey, Key<Sequence>)>, // a buffer, kept to reuse its memory
}

/// Requests, and their ends.
impl Table {
    pub(crate) fn new(config: &Config) -> Self {
        Self {
            requests: Arena::new(),
            request_keys: HashMap::new(),
            deadlines: BTreeMap::new(),
            sequences: Arena::new(),
            queue: Queue::new(),
            running: Vec::new(),
            num_held: 0,
            num_paused: 0,
            num_swapped_out: 0,
            slots: Slots::new(config.max_num_seqs),
            adapter_slots: AdapterSlots::new(config.max_loras),
            ranking: Ranking::new(config),
            estimates: Estimates::new(),
            now: f64::NEG_INFINITY,
            next_serial: 0,
            num_decisions: 0,
            reordered: Vec::new(),
        }
    }

    /// Errors: `UnknownRequest`.
    pub(crate) fn find(&self, client: ClientId, request: RequestId) -> Result<Key<LiveRequest>> {
        self.request_keys.get(&(client, request)).copied().ok_or(Error::UnknownRequest { client, request })
    }

    /// Adds a request, and queues its samples without the finished ones of `outputs`. `root` and `prompt_hashes` name
    /// its blocks.
    pub(crate) fn add(
        &mut self,
        config: &Config,
        request: Request,
        outputs: Vec<Output>,
        client: Key<Client>,
        (root, prompt_hashes): (BlockHash, Vec<BlockHash>),
    ) {
        let name = (request.client, request.id);
        let serial = self.next_serial;
        self.next_serial += 1;
        let num_unfinished = outputs.iter().filter(|output| !output.finished).count() as u32;
        let (samples, num_unfinished) = match outputs[..] {
            [] => (vec![Sample::Unforked; request.n as usize], request.n),
            _ => (vec![Sample::Finished; request.n as usize], num_unfinished),
        };
        let ended_tokens = outputs.iter().filter(|output| output.finished).map(|output| output.tokens.len() as u32);
        let deadline = request.deadline;
        let max_length = request.max_length(config);
        let live = LiveRequest {
            client,
            lane: self.ranking.open_lane(&mut self.queue, &request.tenant, config),
            serial,
            root,
            prompt_hashes,
            samples,
            num_unfinished,
            holders: Vec::new(),
            offer: None,
            search: (request.beam_width > 0).then(|| BeamSearch::new(&request, max_length)),
            expected_output: request.max_tokens.min(self.estimates.output_lengths.mean().ceil() as u32),
            scheduled_at: None,
            has_output: outputs.iter().any(|output| !output.tokens.is_empty()),
            num_preemptions: 0,
            ended: EndedSamples { num_output_tokens: ended_tokens.sum(), ..EndedSamples::default() },
            request,
        };
        let n = live.request.n;
        let key = self.requests.insert(live);
        self.request_keys.insert(name, key);
        if let Some(deadline) = deadline {
            self.deadlines.insert((ordered(deadline), serial), key);
        }
        if outputs.is_empty() {
            self.start(config, key, 0, n, Vec::new());
        }
        for (sample, output) in outputs.into_iter().enumerate().filter(|(_, output)| !output.finished) {
            self.start(config, key, sample as u32, 1, output.tokens);
        }
    }

    /// Queues a sequence of a new request.
    fn start(&mut self, config: &Config, request: Key<LiveRequest>, sample: u32, num_samples: u32, output: Vec<i32>) {
        let live = &mut self.requests[request];
        let key = self.sequences.insert(Sequence {
            request,
            sample,
            num_samples,
            seed: live.request.seed,
            tpot_target: live.request.tpot_target,
            num_prompt_tokens: live.request.prompt.len() as u32,
            max_length: live.request.max_length(config),
            beam: if live.search.is_some() { Beam::Computing } else { Beam::None },
            is_stateful: live.request.stateful,
            num_prompt_told: 1,
            service: self.queue.request_floor(live.lane),
            last_token_at: live.request.arrival,
            output,
            chains: vec![Chain::default(); config.kv_groups.len()].into(),
            ..Sequence::default()
        });
        live.samples[sample as usize] = Sample::Live(key);
        self.enqueue(key, State::Waiting);
    }

    /// Adds a sequence for another sample of a request. It runs in the slot, is held with its request, or is queued to
    /// be computed again.
    pub(crate) fn add_fork(&mut self, mut sequence: Sequence, slot: Option<Slot>) {
        let (request, sample) = (sequence.request, sequence.sample);
        sequence.since = self.num_decisions;
        sequence.state = slot.map_or(State::Held, State::Running);
        let key = self.sequences.insert(sequence);
        let live = &mut self.requests[request];
        live.samples[sample as usize] = Sample::Live(key);
        if slot.is_some() {
            self.use_adapter(key);
            self.insert_running(key);
        } else if live.holders.is_empty() {
            self.enqueue(key, State::Preempted);
        } else {
            self.num_held += 1;
        }
    }

    /// Frees the slot of a sequence, if it runs; the caller changes its state.
    pub(crate) fn leave_slot(&mut self, key: Key<Sequence>) {
        if let State::Running(slot) = self.sequences[key].state {
            self.slots.free(slot);
            let adapter = self.requests[self.sequences[key].request].request.adapter_number;
            if adapter > 0 {
                self.adapter_slots.leave(adapter);
            }
        }
    }

    /// Removes a sequence that has neither blocks nor a slot. `forget_ended` removes it from the running order.
    pub(crate) fn remove_sequence(&mut self, key: Key<Sequence>) {
        self.leave_place(key);
        self.sequences.remove(key);
    }

    /// Removes a request without sequences.
    pub(crate) fn remove_request(&mut self, key: Key<LiveRequest>) -> Option<LiveRequest> {
        let live = self.requests.remove(key)?;
        self.request_keys.remove(&(live.request.client, live.request.id));
        if let Some(deadline) = live.request.deadline {
            self.deadlines.remove(&(ordered(deadline), live.serial));
        }
        self.queue.close(live.lane);
        Some(live)
    }

    /// Removes ended sequences from the running order.
    pub(crate) fn forget_ended(&mut self) {
        self.running.retain(|&key| self.sequences.contains(key));
    }

    pub(crate) fn now(&self) -> f64 {
        self.now
    }

    /// Errors: `Time` if the clock goes back.
    pub(crate) fn set_time(&mut self, now: f64) -> Result<()> {
        if !now.is_finite() || now < self.now {
            return Err(Error::Time { now, previous: self.now });
        }
        self.now = now;
        Ok(())
    }

    /// Takes the next request whose deadline has passed.
    pub(crate) fn take_expired(&mut self) -> Option<Key<LiveRequest>> {
        let first = self.deadlines.first_entry()?;
        (first.key().0 <= ordered(self.now)).then(|| first.remove())
    }

    pub(crate) fn estimates_mut(&mut self) -> &mut Estimates {
        &mut self.estimates
    }

    /// Counts a decision of the planner; what is queued from now on waits since then. `lacks_adapter`: a sequence in the
    /// queue lacks a slot of the device for its adapter.
    pub(crate) fn note_decision(&mut self, lacks_adapter: bool) {
        self.num_decisions += 1;
        self.adapter_slots.note_decision(lacks_adapter);
    }
}

/// Lookups.
impl Table {
    pub(crate) fn num_requests(&self) -> usize {
        self.requests.len()
    }

    pub(crate) fn num_sequences(&self) -> usize {
        self.sequences.len()
    }

    pub(crate) fn num_held(&self) -> usize {
        self.num_held
    }

    pub(crate) fn num_paused(&self) -> usize {
        self.num_paused
    }

    pub(crate) fn num_swapped_out(&self) -> usize {
        self.num_swapped_out
    }

    pub(crate) fn num_free_slots(&self) -> usize {
        self.slots.num_free()
    }

    pub(crate) fn requests(&self) -> impl Iterator<Item = (Key<LiveRequest>, &LiveRequest)> {
        self.requests.iter()
    }

    pub(crate) fn requests_mut(&mut self) -> impl Iterator<Item = &mut LiveRequest> {
        self.requests.values_mut()
    }

    pub(crate) fn sequences(&self) -> impl Iterator<Item = (Key<Sequence>, &Sequence)> {
        self.sequences.iter()
    }

    pub(crate) fn sequences_mut(&mut self) -> impl Iterator<Item = &mut Sequence> {
        self.sequences.values_mut()
    }

    pub(crate) fn request(&self, key: Key<LiveRequest>) -> Option<&LiveRequest> {
        self.requests.get(key)
    }

    pub(crate) fn sequence(&self, key: Key<Sequence>) -> Option<&Sequence> {
        self.sequences.get(key)
    }

    pub(crate) fn sequence_mut(&mut self, key: Key<Sequence>) -> Option<&mut Sequence> {
        self.sequences.get_mut(key)
    }

    /// A sequence with its request.
    pub(crate) fn pair(&self, key: Key<Sequence>) -> (&Sequence, &LiveRequest) {
        let sequence = &self.sequences[key];
        (sequence, &self.requests[sequence.request])
    }

    /// A sequence with its request, both to be changed.
    pub(crate) fn pair_mut(&mut self, key: Key<Sequence>) -> (&mut Sequence, &mut LiveRequest) {
        let sequence = &mut self.sequences[key];
        let live = &mut self.requests[sequence.request];
        (sequence, live)
    }

    pub(crate) fn queue(&self) -> &Queue<Sequence> {
        &self.queue
    }

    pub(crate) fn ranking(&self) -> &Ranking {
        &self.ranking
    }

    /// The running sequences in the order of the policy, first to be served first.
    pub(crate) fn running(&self) -> &[Key<Sequence>] {
        &self.running
    }

    /// The slots of the device for adapters.
    pub(crate) fn adapter_slots(&self) -> &AdapterSlots {
        &self.adapter_slots
    }

    /// The slot of the device that a running sequence's adapter is in; none if it has no adapter.
    pub(crate) fn adapter_slot(&self, key: Key<Sequence>) -> Option<u32> {
        match self.pair(key).1.request.adapter_number {
            0 => None,
            adapter => self.adapter_slots.find(adapter),
        }
    }

    /// Whether a sequence of a request runs.
    pub(crate) fn has_running(&self, live: &LiveRequest) -> bool {
        let runs = |sample: &Sample| matches!(sample, Sample::Live(key) if self.sequences[*key].slot().is_some());
        live.samples.iter().any(runs)
    }

    /// Whether a waiting sequence had no slot of the device for its adapter at the last decision.
    pub(crate) fn lacked_adapter(&self, key: Key<Sequence>) -> bool {
        let adapter = self.pair(key).1.request.adapter_number;
        adapter > 0 && self.adapter_slots.lacked(adapter)
    }

    /// Whether the slot of a waiting sequence's adapter was to become free for a sequence before it at the last
    /// decision.
    pub(crate) fn was_kept_from_adapter(&self, key: Key<Sequence>) -> bool {
        let (_, live) = self.pair(key);
        self.adapter_slots.drained(live.request.adapter_number) && !self.has_running(live)
    }

    pub(crate) fn estimates(&self) -> &Estimates {
        &self.estimates
    }

    /// Number of decisions since the start.
    pub(crate) fn num_decisions(&self) -> u64 {
        self.num_decisions
    }
}

/// States of sequences.
impl Table {
    /// Puts a sequence into the queue; a beam that waits for its siblings pauses outside, as it has nothing to compute.
    pub(crate) fn enqueue(&mut self, key: Key<Sequence>, state: State) {
        let sequence = &mut self.sequences[key];
        sequence.since = self.num_decisions;
        if sequence.beam == Beam::Waiting {
            sequence.state = State::Paused;
            self.num_paused += 1;
        } else {
            sequence.state = state;
            self.num_swapped_out += usize::from(state == State::Swapped);
            self.take_place(key);
        }
    }

    /// Inserts a sequence into the queue by its rank.
    fn take_place(&mut self, key: Key<Sequence>) {
        let (sequence, live) = (&self.sequences[key], &self.requests[self.sequences[key].request]);
        let queue_key = self.ranking.queue_key(sequence, live, &self.queue, &self.estimates);
        let sequence = &mut self.sequences[key];
        sequence.queue_key = queue_key;
        self.queue.insert(live.lane, queue_key, key, sequence.service);
    }

    /// Takes a sequence out of its place in the queue, among the held or the paused; the caller changes its state.
    fn leave_place(&mut self, key: Key<Sequence>) {
        let sequence = &self.sequences[key];
        match sequence.state {
            State::Waiting | State::Preempted | State::Swapped => {
                self.num_swapped_out -= usize::from(sequence.state == State::Swapped);
                self.queue.remove(self.requests[sequence.request].lane, &sequence.queue_key);
            }
            State::Held => self.num_held -= 1,
            State::Paused => self.num_paused -= 1,
            State::Loading | State::Running(_) => {}
        }
    }

    /// Takes a sequence out of the queue for admission. It is the first, unless it is `out_of_order`.
    pub(crate) fn take_from_queue(&mut self, key: Key<Sequence>, out_of_order: bool) {
        let sequence = &self.sequences[key];
        let lane = self.requests[sequence.request].lane;
        self.num_swapped_out -= usize::from(sequence.state == State::Swapped);
        if out_of_order {
            self.queue.remove(lane, &sequence.queue_key);
        } else {
            self.queue.take_first(lane, &sequence.queue_key);
        }
    }

    /// A sequence that was taken from the queue waits for an asynchronous load.
    pub(crate) fn begin_loading(&mut self, key: Key<Sequence>) {
        self.sequences[key].state = State::Loading;
    }

    /// Gives a sequence that was taken from the queue a slot, which the caller has seen to be free, from `step` on.
    pub(crate) fn run(&mut self, key: Key<Sequence>, step: StepId) -> Slot {
        let slot = self.slots.take().expect("the caller has looked");
        self.use_adapter(key);
        let sequence = &mut self.sequences[key];
        sequence.state = State::Running(slot);
        sequence.admitted = step;
        self.insert_running(key);
        slot
    }

    /// Counts a sequence that is about to run as a user of its adapter.
    fn use_adapter(&mut self, key: Key<Sequence>) {
        let live = &self.requests[self.sequences[key].request];
        let adapter = live.request.adapter_number;
        if adapter > 0 {
            let is_first = !self.has_running(live);
            self.adapter_slots.enter(adapter, is_first);
        }
    }

    /// The pending loads of adapters, each a slot of the device and the adapter's number, for the next plan.
    pub(crate) fn take_adapter_loads(&mut self) -> impl Iterator<Item = (u32, u32)> {
        self.adapter_slots.take_loads()
    }

    /// Removes a sequence from the running order; the caller queues it.
    pub(crate) fn stop_running(&mut self, key: Key<Sequence>) {
        if let Some(place) = self.running.iter().rposition(|&running| running == key) {
            self.running.remove(place);
        }
    }

    /// A slot with a copy of the source's state; none if all are taken.
    pub(crate) fn copy_slot(&mut self, source: Slot) -> Option<Slot> {
        let slot = self.slots.take()?;
        self.slots.copy(source, slot);
        Some(slot)
    }

    /// The pending copies of slots, each a source and a destination, for the next plan.
    pub(crate) fn take_slot_copies(&mut self) -> impl Iterator<Item = (Slot, Slot)> {
        self.slots.take_copies()
    }

    /// Sets a queued, paused or loading sequence aside until `release`.
    pub(crate) fn hold(&mut self, key: Key<Sequence>) {
        self.leave_place(key);
        self.sequences[key].state = State::Held;
        self.num_held += 1;
    }

    /// Queues a held sequence.
    pub(crate) fn release(&mut self, key: Key<Sequence>) {
        self.num_held -= 1;
        let state = if self.sequences[key].is_on_host() { State::Swapped } else { State::Waiting };
        self.enqueue(key, state);
    }

    /// A beam has its candidates, and needs no row until its siblings have theirs.
    pub(crate) fn await_siblings(&mut self, key: Key<Sequence>) {
        self.sequences[key].beam = Beam::Waiting;
        if self.sequences[key].state.is_queued() {
            self.leave_place(key);
            self.sequences[key].state = State::Paused;
            self.num_paused += 1;
        }
    }

    /// Queues a beam that goes on, if it was paused.
    pub(crate) fn resume(&mut self, key: Key<Sequence>) {
        let sequence = &self.sequences[key];
        if sequence.state == State::Paused {
            let queued = if sequence.is_on_host() { State::Swapped } else { State::Preempted };
            self.num_paused -= 1;
            self.enqueue(key, queued);
        }
    }

    /// Counts `cost` as service of a sequence and its tenant.
    pub(crate) fn charge(&mut self, key: Key<Sequence>, cost: u64) {
        let sequence = &mut self.sequences[key];
        sequence.service += cost;
        if self.ranking.shares_by_tenant() {
            self.queue.charge(self.requests[sequence.request].lane, cost);
        }
    }

    /// Sets all sequences back to their tokens after the loss of the device, and queues those that ran or loaded.
    pub(crate) fn lose_device(&mut self) {
        for sequence in self.sequences.values_mut() {
            sequence.lose_device();
        }
        self.num_swapped_out = 0;
        for key in std::mem::take(&mut self.running) {
            self.enqueue(key, State::Preempted);
        }
        let loading = self.sequences.iter().filter(|(_, sequence)| sequence.state == State::Loading);
        for key in loading.map(|(key, _)| key).collect::<Vec<_>>() {
            self.enqueue(key, State::Waiting);
        }
        self.slots.clear();
        self.adapter_slots.clear();
    }

    /// Ends the run of all sequences; the caller queues them, in this order.
    pub(crate) fn stop_all(&mut self) -> Vec<Key<Sequence>> {
        std::mem::take(&mut self.running)
    }

    /// Sets all sequences, which have no blocks, back to their tokens.
    pub(crate) fn recompute_all(&mut self) {
        for sequence in self.sequences.values_mut() {
            sequence.num_computed = 0;
            sequence.output_hashes.clear();
            if sequence.state == State::Swapped {
                sequence.state = State::Preempted;
            }
        }
        self.num_swapped_out = 0;
    }
}

/// The order of the policy.
impl Table {
    /// Inserts a sequence into the running order by its rank.
    fn insert_running(&mut self, key: Key<Sequence>) {
        let queue_key = self.sequences[key].queue_key;
        let place = self.running.partition_point(|&running| self.sequences[running].queue_key < queue_key);
        self.running.insert(place, key);
    }

    /// Sorts the running order by the policy, if ranks change as sequences run.
    pub(crate) fn order_running(&mut self) {
        if !self.running_order_is_stale() {
            return;
        }
        let (mut last, mut is_sorted) = (None, true);
        for index in 0..self.running.len() {
            let key = self.running[index];
            let queue_key = self.running_key(key).expect("the policy ranks what runs");
            self.sequences[key].queue_key = queue_key;
            is_sorted &= last < Some(queue_key);
            last = Some(queue_key);
        }
        if !is_sorted {
            self.sort_running();
        }
    }

    fn sort_running(&mut self) {
        let Self { reordered, running, sequences, .. } = self;
        reordered.clear();
        reordered.extend(running.iter().map(|&key| (sequences[key].queue_key, key)));
        reordered.sort_unstable_by_key(|&(queue_key, _)| queue_key);
        running.clear();
        running.extend(reordered.iter().map(|&(_, key)| key));
    }

    /// Whether the running order must be sorted by `order_running` first.
    fn running_order_is_stale(&self) -> bool {
        self.running.first().is_some_and(|&first| self.running_key(first).is_some())
    }

    fn running_key(&self, key: Key<Sequence>) -> Option<QueueKey> {
        let (sequence, live) = self.pair(key);
        self.ranking.running_key(sequence, live, &self.queue, &self.estimates)
    }

    /// Follows a change of settings from `before`: a new policy reorders the queue and the running sequences.
    pub(crate) fn reconfigure(&mut self, before: &Config, config: &Config) {
        if before.policy != config.policy {
            self.change_policy(config);
        } else if before.tenant_weights != config.tenant_weights && self.ranking.shares_by_tenant() {
            for (_, live) in self.requests.iter() {
                self.queue.set_weight(live.lane, ranking::weight(&live.request.tenant, config));
            }
        }
    }

    fn change_policy(&mut self, config: &Config) {
        self.ranking = Ranking::new(config);
        let waiting: Vec<_> = self.queue.iter().map(|(_, _, key)| key).collect();
        self.queue = Queue::new();
        for live in self.requests.values_mut() {
            live.lane = self.ranking.open_lane(&mut self.queue, &live.request.tenant, config);
        }
        for key in waiting {
            self.take_place(key);
        }
        for index in 0..self.running.len() {
            let key = self.running[index];
            let (sequence, live) = self.pair(key);
            let queue_key = self.ranking.queue_key(sequence, live, &self.queue, &self.estimates);
            self.sequences[key].queue_key = queue_key;
        }
        self.sort_running();
    }
}

impl Index<Key<Sequence>> for Table {
    type Output = Sequence;

    fn index(&self, key: Key<Sequence>) -> &Sequence {
        &self.sequences[key]
    }
}

impl IndexMut<Key<Sequence>> for Table {
    fn index_mut(&mut self, key: Key<Sequence>) -> &mut Sequence {
        &mut self.sequences[key]
    }
}

impl Index<Key<LiveRequest>> for Table {
    type Output = LiveRequest;

    fn index(&self, key: Key<LiveRequest>) -> &LiveRequest {
        &self.requests[key]
    }
}

impl IndexMut<Key<LiveRequest>> for Table {
    fn index_mut(&mut self, key: Key<LiveRequest>) -> &mut LiveRequest {
        &mut self.requests[key]
    }
}
