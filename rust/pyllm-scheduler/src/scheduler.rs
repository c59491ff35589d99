//! The scheduler's state, and the calls that add and end requests. Planning, admission, preemption and commit are in
//! the files beside; blocks are in `kv_cache`, output for clients in `deltas`.

mod admission;
mod audit;
mod beams;
mod commit;
mod deadlines;
mod explain;
mod holds;
mod isolation;
mod loads;
mod load_report;
mod planning;
mod preemption;
mod prompt_logprobs;
mod ranking;
mod request_reports;
mod saves;
mod settings;
mod speculation;
mod stats;
mod step_scope;

use std::collections::{BTreeMap, HashMap, VecDeque};

use crate::arena::{Arena, Key};
use crate::beam_search::BeamSearch;
use crate::config::Config;
use crate::error::{Error, Result};
use crate::estimates::output_lengths::OutputLengths;
use crate::estimates::peak_blocks::PeakBlocks;
use crate::estimates::step_sums::StepSums;
use crate::estimates::step_times::StepTimes;
use crate::ids::{BlockId, ClientId, LoadId, RequestId, Slot, StepId};
use crate::kv_cache::hash::{BlockHash, BlockHasher};
use crate::kv_cache::{CacheLimits, FoundChain, FoundStart, KvCache};
use crate::kv_layout::KvLayout;
use crate::output::deltas::{Delta, DeltaColumns, Outbox};
use crate::plan::Draft;
use crate::policy::{Policy, policy};
use crate::queue::{Queue, QueueKey};
use crate::recorder::{Input, MAGIC, Recorder};
use crate::request::{Finish, Request};
use crate::sequence::{Beam, Chain, EndedSamples, LiveRequest, Sample, Sequence, State};

pub use explain::{Decision, Explanation, Reason};
pub use load_report::LoadReport;
pub use loads::Load;
pub use request_reports::{BlockOwners, RequestReport};
pub use stats::{Stats, TenantService};

/// Decides the work of every step. See the crate's documentation for the rules.
pub struct Scheduler {
    config: Config,
    layout: KvLayout,
    policy: Box<dyn Policy>,
    outbox: Outbox,
    requests: Arena<LiveRequest>,
    request_keys: HashMap<(ClientId, RequestId), Key<LiveRequest>>,
    deadlines: BTreeMap<(u64, u64), Key<LiveRequest>>, // by time, as integers in the same order, and serial
    sequences: Arena<Sequence>,
    queue: Queue<Sequence>,
    running: Vec<Key<Sequence>>, // in the order of the policy, first to be served first
    num_held: usize,
    isolated: Option<isolation::Isolated>,
    num_paused: usize,
    num_swapped_out: usize, // in the queue, with their keys and values on the host
    cache: KvCache,
    free_slots: Vec<Slot>,
    slot_copies: Vec<(Slot, Slot)>, // (source, destination), for the next plan
    loads: BTreeMap<LoadId, loads::Loading>,
    new_loads: Vec<Load>,
    num_loading: usize, // sequences that wait for a load, and loads whose sequences ended
    next_load: LoadId,
    steps: VecDeque<Step>, // in flight, oldest first
    next_step: StepId,
    next_serial: u64,
    now: f64,
    committed_at: f64, // time of the last commit, by `now` and measured step times
    times: StepTimes,
    step_sums: StepSums, // charged work of the steps
    output_lengths: OutputLengths,
    counters: Stats, // its gauges stay 0
    decisions: explain::Decisions,
    ended: VecDeque<RequestReport>, // the last ones, oldest first
    num_ended_untaken: usize,       // of these, those not yet given by `take_ended`
    num_inputs: u64,
    packed_load: load_report::PackedLoad,
    recorder: Option<Recorder>,
    // Buffers, kept between calls to reuse their memory.
    draft: Draft,
    spare_rows: Vec<Vec<Row>>,
    hasher: BlockHasher,
    found: FoundStart, // by the last lookup in the prefix cache
    peak_blocks: PeakBlocks,
    lagging: Vec<Key<Sequence>>,
    wide: Vec<Key<Sequence>>,
    reordered: Vec<(QueueKey, Key<Sequence>)>,
    copied: Vec<BlockId>, // by the plan in progress, each with one reference of its own
    forked: Vec<(Key<Sequence>, usize)>, // each with the index of its sampled token
}

/// A planned step.
struct Step {
    id: StepId,
    rows: Vec<Row>,
    num_tokens: u32,
    num_prefill_tokens: u32,
    planned_at: f64,
    loads: Vec<LoadId>, // that its rows read
}

/// A sequence's row in a step.
#[derive(Clone, Copy)]
struct Row {
    sequence: Key<Sequence>,
    num_samples: u32,
    /// Whether all positions except the first verify drafts.
    is_verifying: bool,
    is_stateful: bool,
    gives: Gives,
}

/// The result of a row that samples.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Gives {
    Tokens,
    /// The candidates of a beam, from its first position.
    Candidates,
    Embedding,
}

impl Scheduler {
    /// Errors: `Error::Config` for a limit that is out of range.
    pub fn new(config: Config) -> Result<Self> {
        config.validate()?;
        let layout = KvLayout::new(&config);
        Ok(Self {
            policy: policy(config.policy),
            outbox: Outbox::new(),
            requests: Arena::new(),
            request_keys: HashMap::new(),
            deadlines: BTreeMap::new(),
            sequences: Arena::new(),
            queue: Queue::new(),
            running: Vec::new(),
            num_held: 0,
            isolated: None,
            num_paused: 0,
            num_swapped_out: 0,
            cache: KvCache::new(cache_limits(&config, &layout)),
            free_slots: all_slots(&config),
            slot_copies: Vec::new(),
            loads: BTreeMap::new(),
            new_loads: Vec::new(),
            num_loading: 0,
            next_load: LoadId(0),
            steps: VecDeque::new(),
            next_step: StepId(0),
            next_serial: 0,
            now: f64::NEG_INFINITY,
            committed_at: f64::NEG_INFINITY,
            times: StepTimes::default(),
            step_sums: StepSums::default(),
            output_lengths: OutputLengths::new(),
            counters: Stats::default(),
            decisions: explain::Decisions::default(),
            ended: VecDeque::new(),
            num_ended_untaken: 0,
            num_inputs: 0,
            packed_load: load_report::PackedLoad::default(),
            recorder: None,
            draft: Draft::new(config.kv_groups.len(), config.max_num_seqs),
            spare_rows: Vec::new(),
            hasher: BlockHasher::new(&config),
            found: FoundStart { chains: vec![FoundChain::default(); layout.groups.len()], ..FoundStart::default() },
            peak_blocks: PeakBlocks::default(),
            lagging: Vec::new(),
            wide: Vec::new(),
            reordered: Vec::new(),
            copied: Vec::new(),
            forked: Vec::new(),
            layout,
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
        request.validate(&self.config, &self.layout)?;
        self.record(|| Input::Add(Box::new(request.clone())));
        request.stop_token_ids.sort_unstable();
        request.stop_token_ids.dedup();
        let outputs = std::mem::take(&mut request.outputs);

        let root = self.hasher.root(&LiveRequest::extra_keys(&request, &self.config));
        let prompt_hashes =
            if self.config.enable_prefix_caching { self.hash_prompt(root, &request.prompt) } else { Vec::new() };
        let serial = self.next_serial;
        self.next_serial += 1;
        let client = self.outbox.open(request.client);
        let lane = self.open_lane(&request.tenant);
        let num_unfinished = outputs.iter().filter(|output| !output.finished).count() as u32;
        let (samples, num_unfinished) = match outputs[..] {
            [] => (vec![Sample::Unforked; request.n as usize], request.n),
            _ => (vec![Sample::Finished; request.n as usize], num_unfinished),
        };
        let ended_tokens = outputs.iter().filter(|output| output.finished).map(|output| output.tokens.len() as u32);
        let ended = EndedSamples { num_output_tokens: ended_tokens.sum(), ..EndedSamples::default() };
        let has_output = outputs.iter().any(|output| !output.tokens.is_empty());
        let expected_output = request.max_tokens.min(self.output_lengths.mean().ceil() as u32);
        let deadline = request.deadline;
        let max_length = request.max_length(&self.config);
        let search = (request.beam_width > 0).then(|| BeamSearch::new(&request, max_length));
        let live = LiveRequest {
            request,
            client,
            lane,
            serial,
            root,
            prompt_hashes,
            samples,
            num_unfinished,
            holders: Vec::new(),
            offer: None,
            search,
            expected_output,
            scheduled_at: None,
            has_output,
            num_preemptions: 0,
            ended,
        };
        let key = self.requests.insert(live);
        self.request_keys.insert(name, key);
        if let Some(deadline) = deadline {
            self.deadlines.insert((ranking::ordered(deadline), serial), key);
        }
        if outputs.is_empty() {
            self.start(key, 0, self.requests[key].request.n, Vec::new());
        }
        for (sample, output) in outputs.into_iter().enumerate().filter(|(_, output)| !output.finished) {
            self.start(key, sample as u32, 1, output.tokens);
        }
        Ok(())
    }

    /// Ends a request, or one sample of it, with a final delta; a beam search ends as a whole. False: no such request
    /// lives; it has probably finished.
    pub fn abort(&mut self, client: ClientId, request: RequestId, sample: Option<u32>) -> bool {
        let Some(&key) = self.request_keys.get(&(client, request)) else { return false };
        self.record(|| Input::Abort { client, request, sample });
        let live = &self.requests[key];
        let all = 0..live.samples.len() as u32;
        let samples = match sample {
            None => all,
            Some(sample) if live.search.is_some() && all.contains(&sample) => all,
            Some(sample) => sample..sample.saturating_add(1),
        };
        self.outbox.begin_round();
        let mut found = false;
        for sample in samples {
            found |= self.finish_sample(key, sample, Finish::Abort);
        }
        self.forget_ended();
        self.settle();
        found
    }

    /// Ends all requests of a disconnected client, and drops its deltas.
    pub fn drop_client(&mut self, client: ClientId) {
        self.record(|| Input::DropClient { client });
        let owned = self.requests.iter().filter(|(_, live)| live.request.client == client);
        let keys: Vec<_> = owned.map(|(key, _)| key).collect();
        for key in keys {
            for sequence in live_sequences(&self.requests[key]) {
                self.requests[key].note_ended(&self.sequences[sequence]);
                self.remove_sequence(sequence);
            }
            self.remove_request(key, Finish::Abort);
        }
        self.forget_ended();
        self.outbox.remove(client);
    }

    /// The request of a row in a step in flight; `None` if it has ended meanwhile.
    ///
    /// Errors: `UnknownStep`, `Sampled` for a row that the step does not have.
    pub fn request_of(&self, step: StepId, row: usize) -> Result<Option<(ClientId, RequestId)>> {
        let Some(planned) = self.steps.iter().find(|planned| planned.id == step) else {
            return Err(Error::UnknownStep { step });
        };
        let Some(of) = planned.rows.get(row) else {
            let problem = format!("it names row {row}, and the plan has {}", planned.rows.len());
            return Err(Error::Sampled { step, problem });
        };
        let request = self.sequences.get(of.sequence).map(|sequence| &self.requests[sequence.request].request);
        Ok(request.map(|request| (request.client, request.id)))
    }

    /// The requests of the rows of a step in flight, in order, without those that have ended meanwhile.
    ///
    /// Errors: `UnknownStep`.
    pub fn requests_of(&self, step: StepId) -> Result<impl Iterator<Item = (ClientId, RequestId)>> {
        let planned = self.steps.iter().rfind(|planned| planned.id == step).ok_or(Error::UnknownStep { step })?;
        let sequences = planned.rows.iter().filter_map(|row| self.sequences.get(row.sequence));
        Ok(sequences.map(|sequence| {
            let Request { client, id, .. } = self.requests[sequence.request].request;
            (client, id)
        }))
    }

    /// The requests with rows in the steps in flight that have not ended meanwhile, each once, in the order of rows.
    pub fn requests_in_flight(&self) -> Vec<(ClientId, RequestId)> {
        let rows = self.steps.iter().flat_map(|step| &step.rows);
        let mut requests = Vec::new();
        for sequence in rows.filter_map(|row| self.sequences.get(row.sequence)) {
            let Request { client, id, .. } = self.requests[sequence.request].request;
            if !requests.contains(&(client, id)) {
                requests.push((client, id));
            }
        }
        requests
    }

    /// The expected duration of a step in flight, from measured steps; none if they do not suffice.
    ///
    /// Errors: `UnknownStep`.
    pub fn expected_seconds(&self, step: StepId) -> Result<Option<f64>> {
        let planned = self.steps.iter().find(|planned| planned.id == step).ok_or(Error::UnknownStep { step })?;
        Ok(self.times.step_seconds(planned.num_prefill_tokens))
    }

    /// The tokens of a request: its prompt, and the output of each sample that is a sequence of its own.
    ///
    /// Errors: `UnknownRequest`.
    pub fn history(&self, client: ClientId, request: RequestId) -> Result<(&[i32], Vec<&[i32]>)> {
        let live = &self.requests[self.find(client, request)?];
        let outputs = live_sequences(live).into_iter().map(|key| &self.sequences[key].output[..]);
        Ok((&live.request.prompt, outputs.collect()))
    }

    /// The clients with pending deltas, longest waiting first.
    pub fn pending_clients(&self) -> &[ClientId] {
        self.outbox.pending()
    }

    /// A client's new output since the last call, one row per sample.
    pub fn take_deltas(&mut self, client: ClientId) -> Option<&DeltaColumns> {
        self.outbox.take(client)
    }

    /// Handles the loss of the device: running sequences return to the queue, to be recomputed from their tokens; the
    /// steps in flight will never be committed; all blocks, of device and host, lose their contents. If host memory
    /// survived, `restore_host_blocks` restores its contents.
    pub fn lose_device(&mut self) {
        self.record(|| Input::LoseDevice);
        for sequence in self.sequences.values_mut() {
            sequence.chains.fill(Chain::default());
            sequence.written.forget();
            (sequence.num_computed, sequence.num_placed) = (0, 0);
            sequence.num_in_flight = 0;
            sequence.awaits_commit = false;
            sequence.may_share = false;
            sequence.load = None;
            sequence.num_awaited = 0;
            if sequence.state == State::Swapped {
                sequence.state = State::Preempted;
            }
        }
        self.num_swapped_out = 0;
        for key in std::mem::take(&mut self.running) {
            self.enqueue(key, State::Preempted);
        }
        let loading = self.sequences.iter().filter(|(_, sequence)| sequence.state == State::Loading);
        for key in loading.map(|(key, _)| key).collect::<Vec<_>>() {
            self.enqueue(key, State::Waiting);
        }
        self.loads.clear();
        self.num_loading = 0;
        self.new_loads.clear();
        self.spare_rows.extend(self.steps.drain(..).map(|step| step.rows));
        self.slot_copies.clear();
        self.free_slots = all_slots(&self.config);
        self.cache.clear();
        self.has_room_again();
    }

    /// Records every input from now on, for `take_recording`.
    ///
    /// Errors: `NotNew` after the first input, which the recording would lack.
    pub fn start_recording(&mut self) -> Result<()> {
        if self.num_inputs > 0 {
            return Err(Error::NotNew { call: "start_recording" });
        }
        self.recorder = Some(Recorder::new(MAGIC, &self.config));
        Ok(())
    }

    /// The recorded bytes since the last call; concatenated, the parts are one recording. Empty without recording.
    pub fn take_recording(&mut self) -> Vec<u8> {
        self.recorder.as_mut().map_or(Vec::new(), Recorder::take)
    }

    /// The hash of all decisions since recording began.
    pub fn decisions_hash(&self) -> Option<u64> {
        self.recorder.as_ref().map(Recorder::hash)
    }

    fn find(&self, client: ClientId, request: RequestId) -> Result<Key<LiveRequest>> {
        self.request_keys.get(&(client, request)).copied().ok_or(Error::UnknownRequest { client, request })
    }

    fn record(&mut self, input: impl FnOnce() -> Input) {
        self.num_inputs += 1;
        if let Some(recorder) = &mut self.recorder {
            recorder.record(&input());
        }
    }

    fn hash_prompt(&mut self, root: BlockHash, prompt: &[i32]) -> Vec<BlockHash> {
        let blocks = prompt.chunks_exact(self.config.block_size as usize);
        let chain = blocks.scan(root, |parent, tokens| {
            *parent = self.hasher.child(*parent, tokens, &[]);
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
            seed: live.request.seed,
            tpot_target: live.request.tpot_target,
            num_prompt_tokens: live.request.prompt.len() as u32,
            max_length: live.request.max_length(&self.config),
            beam: if live.search.is_some() { Beam::Computing } else { Beam::None },
            is_stateful: live.request.stateful,
            num_prompt_told: 1,
            service: self.queue.request_floor(live.lane),
            last_token_at: live.request.arrival,
            output,
            chains: vec![Chain::default(); self.config.kv_groups.len()].into(),
            ..Sequence::default()
        });
        live.samples[sample as usize] = Sample::Live(key);
        self.enqueue(key, State::Waiting);
    }

    /// Puts a sequence into the queue, unless it has nothing to compute yet.
    fn enqueue(&mut self, key: Key<Sequence>, state: State) {
        let sequence = &mut self.sequences[key];
        sequence.since = self.decisions.num_made();
        if sequence.beam == Beam::Waiting {
            self.pause(key);
        } else {
            sequence.state = state;
            self.num_swapped_out += usize::from(state == State::Swapped);
            self.take_place(key);
        }
    }

    /// Inserts a sequence into the queue by its key.
    fn take_place(&mut self, key: Key<Sequence>) {
        let queue_key = self.queue_key(key);
        let sequence = &mut self.sequences[key];
        sequence.queue_key = queue_key;
        self.queue.insert(self.requests[sequence.request].lane, queue_key, key, sequence.service);
    }

    /// Takes a sequence out of the queue; the caller changes its state.
    fn dequeue(&mut self, key: Key<Sequence>) {
        let sequence = &self.sequences[key];
        self.num_swapped_out -= usize::from(sequence.state == State::Swapped);
        self.queue.remove(self.requests[sequence.request].lane, &sequence.queue_key);
    }

    /// Frees the blocks and the slot of a sequence.
    fn vacate(&mut self, key: Key<Sequence>) {
        let sequence = &mut self.sequences[key];
        for chain in &mut sequence.chains {
            self.cache.free_chain(&mut chain.blocks);
            self.cache.free_host(&mut chain.host_blocks);
            (chain.first, chain.host_first) = (0, 0);
        }
        sequence.written.forget();
        (sequence.num_computed, sequence.num_placed) = (0, 0);
        sequence.may_share = false;
        if let State::Running(slot) = sequence.state {
            self.slot_copies.retain(|&(_, destination)| destination != slot);
            self.free_slots.push(slot);
        }
    }

    /// Ends a sample with a final delta. False: it has ended before. The caller removes it from `running`.
    fn finish_sample(&mut self, key: Key<LiveRequest>, sample: u32, finish: Finish) -> bool {
        // The samples before this one may have been the last.
        let Some(live) = self.requests.get(key) else { return false };
        let mut offset = 0;
        let mut cached_tokens = 0;
        match live.samples.get(sample as usize) {
            None | Some(Sample::Finished) => return false,
            Some(Sample::Unforked) => {}
            Some(Sample::Live(sequence)) => {
                let sequence = &self.sequences[*sequence];
                // Beams send no deltas.
                offset = if live.search.is_some() { 0 } else { sequence.output.len() };
                cached_tokens = sequence.cached_tokens.unwrap_or(0);
            }
        }
        let delta = Delta {
            request: live.request.id,
            sample,
            offset: offset as i32,
            tokens: &[],
            logprobs: None,
            embedding: &[],
            finish,
            cached_tokens,
        };
        self.outbox.push(live.client, &delta);
        if let Some(recorder) = &mut self.recorder {
            recorder.record_finish(live.request.id, sample, finish, offset);
        }
        self.hand_over(key, sample);
        self.end_sample(key, sample, finish);
        true
    }

    /// If other samples wait for this sequence to compute their prompt, the next of them takes it over.
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

    /// Removes a sample's sequence, and with the last sample the request. The caller removes it from `running`.
    fn end_sample(&mut self, key: Key<LiveRequest>, sample: u32, finish: Finish) {
        let live = &mut self.requests[key];
        let ended = std::mem::replace(&mut live.samples[sample as usize], Sample::Finished);
        live.num_unfinished -= 1;
        let is_last = live.num_unfinished == 0;
        if let Sample::Live(sequence) = ended {
            live.note_ended(&self.sequences[sequence]);
            self.remove_sequence(sequence);
        }
        if is_last {
            self.remove_request(key, finish);
        }
    }

    fn remove_sequence(&mut self, key: Key<Sequence>) {
        self.vacate(key);
        match self.sequences[key].state {
            State::Waiting | State::Preempted | State::Swapped => self.dequeue(key),
            State::Held => self.num_held -= 1,
            State::Paused => self.num_paused -= 1,
            State::Loading | State::Running(_) => {}
        }
        self.sequences.remove(key);
    }

    fn remove_request(&mut self, key: Key<LiveRequest>, finish: Finish) {
        self.end_isolation_of(key);
        if let Some(live) = self.requests.remove(key) {
            self.request_keys.remove(&(live.request.client, live.request.id));
            if let Some(deadline) = live.request.deadline {
                self.deadlines.remove(&(ranking::ordered(deadline), live.serial));
            }
            self.queue.close(live.lane);
            self.outbox.close(live.client);
            self.keep_report(live, finish);
        }
    }

    /// Removes ended sequences from `running`.
    fn forget_ended(&mut self) {
        self.running.retain(|&key| self.sequences.contains(key));
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

fn cache_limits(config: &Config, layout: &KvLayout) -> CacheLimits {
    CacheLimits {
        groups: layout.groups.clone(),
        block_size: config.block_size,
        num_blocks: config.num_blocks,
        num_host_blocks: config.num_host_blocks,
        max_pinned_blocks: config.max_pinned_blocks,
        max_saving_blocks: config.max_saving_blocks,
        enable_prefix_caching: config.enable_prefix_caching,
        enable_events: config.enable_kv_cache_events,
        incarnation: config.incarnation,
    }
}

/// All slots, the lowest last, as it is taken first.
fn all_slots(config: &Config) -> Vec<Slot> {
    (0..config.max_num_seqs).rev().map(Slot).collect()
}
