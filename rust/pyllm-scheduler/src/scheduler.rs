//! The calls of the scheduler. Each checks its arguments, records itself, and passes the work to the parts: the table of
//! sequences, their keys and values, the planner, the commit, and the observer.

use std::iter;

use crate::block_hash::BlockHash;
use crate::commit::Commit;
use crate::commit::check::StepResult;
use crate::config::Config;
use crate::error::{Error, Result};
use crate::ids::{ClientId, LoadId, RequestId, SaveId, StepId};
use crate::kv::Kv;
use crate::kv::cache::event_batch::{BatchFormat, EventBatch};
use crate::kv::cache::events::{Events, KvEvent, Snapshot};
use crate::kv::cache::fragmentation::Fragmentation;
use crate::kv::cache::host_block::HostBlock;
use crate::kv::cache::saves::Save;
use crate::kv::loads::Load;
use crate::observer::Observer;
use crate::observer::explain::{Decision, Explainer, Explanation};
use crate::observer::load_report::{LoadReport, changes, pack_load};
use crate::observer::reports::{BlockOwners, RequestReport, block_owners};
use crate::observer::stats::{Stats, TenantService, adapter_counts, fragmentation, tenants};
use crate::output::deltas::{DeltaColumns, Outbox};
use crate::output::embeddings::Embeddings;
use crate::output::logprobs::Logprobs;
use crate::plan::Plan;
use crate::planner::Planner;
use crate::planner::preempt::preempt;
use crate::recorder::Input;
use crate::request::{Request, tokens_are_ids};
use crate::steps::Steps;
use crate::table::Table;
use crate::table::sequence::{LiveRequest, Offer, Sample, Sequence, State};

/// Decides the work of every step. See the crate's documentation for the rules.
pub struct Scheduler {
    config: Config,
    table: Table,
    kv: Kv,
    steps: Steps,
    planner: Planner,
    outbox: Outbox,
    observer: Observer,
}

/// Requests.
impl Scheduler {
    /// Errors: `Error::Config` for a limit that is out of range.
    pub fn new(config: Config) -> Result<Self> {
        config.validate()?;
        Ok(Self {
            table: Table::new(&config),
            kv: Kv::new(&config),
            steps: Steps::default(),
            planner: Planner::new(&config),
            outbox: Outbox::new(),
            observer: Observer::new(),
            config,
        })
    }

    /// Queues a request, fresh or resumed.
    ///
    /// Errors: `DuplicateRequest`, `PromptTooLong`, `NeverFits`, or `Request` for a field that is not valid.
    pub fn add(&mut self, mut request: Request) -> Result<()> {
        if self.table.find(request.client, request.id).is_ok() {
            return Err(Error::DuplicateRequest { client: request.client, request: request.id });
        }
        request.validate(&self.config, self.kv.layout())?;
        self.observer.record(|| Input::Add(Box::new(request.clone())));
        request.stop_token_ids.sort_unstable();
        request.stop_token_ids.dedup();
        let outputs = std::mem::take(&mut request.outputs);
        let hashes = self.kv.hash_request(&request, &self.config);
        let client = self.outbox.open(request.client);
        self.table.add(&self.config, request, outputs, client, hashes);
        Ok(())
    }

    /// Ends a request, or one sample of it, with a final delta; a beam search ends as a whole. False: no such request
    /// lives; it has probably finished.
    pub fn abort(&mut self, client: ClientId, request: RequestId, sample: Option<u32>) -> bool {
        let Ok(key) = self.table.find(client, request) else { return false };
        self.observer.record(|| Input::Abort { client, request, sample });
        let found = self.committing().abort(key, sample);
        self.planner.turns_mut().settle(&self.table);
        found
    }

    /// Ends all requests of a disconnected client, and drops its deltas.
    pub fn drop_client(&mut self, client: ClientId) {
        self.observer.record(|| Input::DropClient { client });
        self.committing().drop_client(client);
    }

    /// Ends the requests at their deadline, as `schedule` does, for times in which no step can be planned.
    ///
    /// Errors: `Time`.
    pub fn expire(&mut self, now: f64) -> Result<()> {
        self.table.set_time(now)?;
        self.observer.record(|| Input::Expire { now });
        self.committing().end_expired();
        Ok(())
    }

    /// Keeps a request from running until the same holder's `release`: it leaves the queue, and its running sequences
    /// are preempted. Each holder has a name and releases its own hold.
    ///
    /// Errors: `UnknownRequest`, `AlreadyHeld` by this holder.
    pub fn hold(&mut self, client: ClientId, request: RequestId, holder: &str) -> Result<()> {
        let key = self.table.find(client, request)?;
        let holders = &mut self.table[key].holders;
        if holders.iter().any(|one| one == holder) {
            return Err(Error::AlreadyHeld { request, holder: holder.to_owned() });
        }
        let is_first = holders.is_empty();
        holders.push(holder.to_owned());
        self.observer.record(|| Input::Hold { client, request, holder: holder.to_owned() });
        self.planner.turns_mut().end_isolation_of(key);
        let sequences = if is_first { self.table[key].sequences() } else { Vec::new() };
        for key in sequences {
            if self.table[key].slot().is_some() {
                preempt(key, &mut self.table, &mut self.kv, &mut self.observer);
            }
            self.table.hold(key);
        }
        Ok(())
    }

    /// Ends a holder's hold. After the last one the request returns to its place in the queue.
    ///
    /// Errors: `UnknownRequest`, `NotHeld` by this holder.
    pub fn release(&mut self, client: ClientId, request: RequestId, holder: &str) -> Result<()> {
        let key = self.table.find(client, request)?;
        let holders = &mut self.table[key].holders;
        let Some(place) = holders.iter().position(|one| one == holder) else {
            return Err(Error::NotHeld { request, holder: holder.to_owned() });
        };
        holders.remove(place);
        let is_free = holders.is_empty();
        self.observer.record(|| Input::Release { client, request, holder: holder.to_owned() });
        if is_free {
            for key in self.table[key].sequences() {
                self.table.release(key);
            }
        }
        Ok(())
    }

    /// Separates this request's rows from all others', step by step, until each of its live samples has one more token,
    /// or it ends, or is held from now on. If it is held already, the isolation begins after the release.
    ///
    /// Errors: `UnknownRequest`, `AlreadyIsolated` if any request is isolated.
    pub fn isolate(&mut self, client: ClientId, request: RequestId) -> Result<()> {
        let key = self.table.find(client, request)?;
        if let Some((client, request)) = self.isolated() {
            return Err(Error::AlreadyIsolated { client, request });
        }
        self.planner.turns_mut().isolate(key, &self.table);
        self.observer.record(|| Input::Isolate { client, request });
        Ok(())
    }

    /// The isolated request, if any.
    pub fn isolated(&self) -> Option<(ClientId, RequestId)> {
        self.planner.turns().isolated(&self.table).map(LiveRequest::name)
    }

    /// The tokens of a request: its prompt, and the output of each sample that is a sequence of its own.
    ///
    /// Errors: `UnknownRequest`.
    pub fn history(&self, client: ClientId, request: RequestId) -> Result<(&[i32], Vec<&[i32]>)> {
        let live = &self.table[self.table.find(client, request)?];
        let outputs = live.sequences().into_iter().map(|key| &self.table[key].output[..]);
        Ok((&live.request.prompt, outputs.collect()))
    }

    /// Proposes tokens after a sample's last known one. Its next row computes the drafts too, and samples a token after
    /// each; `commit` keeps those that were sampled, so that drafts change no answer. They replace earlier drafts, and
    /// are dropped with the next token.
    ///
    /// Errors: `UnknownRequest`, `Sample`, `Request` for an invalid token id.
    pub fn propose(&mut self, client: ClientId, request: RequestId, sample: u32, drafts: &[i32]) -> Result<()> {
        let refuse = |problem| Err(Error::Sample { request, sample, problem });
        let live = &self.table[self.table.find(client, request)?];
        let key = match live.samples.get(sample as usize) {
            _ if live.search.is_some() => return refuse("is a beam, which goes on by its candidates alone"),
            Some(Sample::Live(key)) => *key,
            Some(Sample::Unforked) => return refuse("has not begun"),
            Some(Sample::Finished) | None => return refuse("has ended or was never"),
        };
        tokens_are_ids("drafts", drafts, self.config.vocab_size)?;
        let sequence = &mut self.table[key];
        if sequence.num_in_flight > 0 || sequence.num_samples > 1 || sequence.output.is_empty() {
            return refuse(
                "has no known last token to propose after; propose after a commit, with no step of it in flight",
            );
        }
        drafts.clone_into(&mut sequence.drafts);
        self.observer.record(|| Input::Propose { client, request, sample, drafts: drafts.to_vec() });
        Ok(())
    }
}

/// Steps and output.
impl Scheduler {
    /// Plans the next step, or `None` if none is possible before a commit or a new request. May be called again before
    /// the step is committed. `now` is in seconds of a clock that never goes back.
    ///
    /// Errors: `Time`.
    pub fn schedule(&mut self, now: f64) -> Result<Option<Plan>> {
        self.table.set_time(now)?;
        self.committing().end_expired();
        let Self { config, table, kv, steps, planner, observer, .. } = self;
        let plan = planner.plan(config, table, kv, steps, observer);
        observer.record_plan(now, plan.as_ref());
        Ok(plan)
    }

    /// Commits the oldest step in flight: row i of its plan sampled `tokens[starts[i]..starts[i + 1]]`. A row with
    /// drafts may have sampled fewer positions than planned, at least one; drafts are accepted while they equal the
    /// sampled tokens. A row of a stateful request may have no tokens, and its last one is planned again; or, if it has
    /// one sample, any number, all of which count: the accepted drafts, the sampled token, and tokens that are forced
    /// to follow. A beam continues with the candidates of its row's first position; its sampled token does not count.
    /// Tokens of sequences that ended meanwhile are dropped. A row of a pooling request ends it, with its row of
    /// `embeddings`; without `embeddings`, as in a replay, clients get none. `seconds` is the measured duration of the
    /// step, 0 if unknown. Gives the clients with pending deltas.
    ///
    /// Errors: `UnknownStep`, `OutOfOrder`, `Sampled`.
    pub fn commit(
        &mut self,
        step: StepId,
        starts: &[i32],
        tokens: &[i32],
        seconds: f64,
        logprobs: Option<&Logprobs>,
        embeddings: Option<&Embeddings>,
    ) -> Result<&[ClientId]> {
        let (planned, oldest) = (self.steps.find(step)?, self.steps.oldest());
        if step != oldest {
            return Err(Error::OutOfOrder { step, oldest });
        }
        let result = StepResult { starts, tokens, logprobs, embeddings };
        if let Err(problem) = result.check(planned, &self.table, &self.config) {
            return Err(Error::Sampled { step, problem });
        }
        let deciding = self.observer.is_recording().then(|| result.deciding(planned, &self.table)).flatten();
        self.observer.record(|| Input::Commit {
            step,
            starts: starts.to_vec(),
            tokens: tokens.to_vec(),
            seconds,
            logprobs: deciding,
        });
        if let Some(planned) = self.steps.pop() {
            self.committing().commit(&planned, result, seconds);
            self.steps.recycle(planned.rows);
        }
        self.planner.turns_mut().settle(&self.table);
        Ok(self.outbox.pending())
    }

    /// The clients with pending deltas, longest waiting first.
    pub fn pending_clients(&self) -> &[ClientId] {
        self.outbox.pending()
    }

    /// A client's new output since the last call, one row per sample.
    pub fn take_deltas(&mut self, client: ClientId) -> Option<&DeltaColumns> {
        self.outbox.take(client)
    }

    /// The request of a row in a step in flight; `None` if it has ended meanwhile.
    ///
    /// Errors: `UnknownStep`, `Sampled` for a row that the step does not have.
    pub fn request_of(&self, step: StepId, row: usize) -> Result<Option<(ClientId, RequestId)>> {
        let planned = self.steps.find(step)?;
        let Some(of) = planned.rows.get(row) else {
            let problem = format!("it names row {row}, and the plan has {}", planned.rows.len());
            return Err(Error::Sampled { step, problem });
        };
        Ok(self.table.sequence(of.sequence).map(|sequence| self.table[sequence.request].name()))
    }

    /// The requests of the rows of a step in flight, in order, without those that have ended meanwhile.
    ///
    /// Errors: `UnknownStep`.
    pub fn requests_of(&self, step: StepId) -> Result<impl Iterator<Item = (ClientId, RequestId)>> {
        let sequences = self.steps.find(step)?.rows.iter().filter_map(|row| self.table.sequence(row.sequence));
        Ok(sequences.map(|sequence| self.table[sequence.request].name()))
    }

    /// The requests with rows in the steps in flight that have not ended meanwhile, each once, in the order of rows.
    pub fn requests_in_flight(&self) -> Vec<(ClientId, RequestId)> {
        let rows = self.steps.iter().flat_map(|step| &step.rows);
        let mut requests = Vec::new();
        for sequence in rows.filter_map(|row| self.table.sequence(row.sequence)) {
            let name = self.table[sequence.request].name();
            if !requests.contains(&name) {
                requests.push(name);
            }
        }
        requests
    }

    /// The expected duration of a step in flight, from measured steps; none if they do not suffice.
    ///
    /// Errors: `UnknownStep`.
    pub fn expected_seconds(&self, step: StepId) -> Result<Option<f64>> {
        let planned = self.steps.find(step)?;
        Ok(self.table.estimates().times.step_seconds(planned.num_prefill_tokens))
    }

    /// Handles the loss of the device: running sequences return to the queue, to be recomputed from their tokens; the
    /// steps in flight will never be committed; all blocks, of device and host, lose their contents. If host memory
    /// survived, `restore_host_blocks` restores its contents.
    pub fn lose_device(&mut self) {
        self.observer.record(|| Input::LoseDevice);
        self.table.lose_device();
        self.steps.clear();
        self.kv.clear();
        self.planner.turns_mut().has_room_again();
    }

    fn committing(&mut self) -> Commit<'_> {
        Commit {
            table: &mut self.table,
            kv: &mut self.kv,
            outbox: &mut self.outbox,
            observer: &mut self.observer,
            next_step: self.steps.next(),
            block_size: self.config.block_size,
        }
    }
}

/// Settings, and the prefix cache.
impl Scheduler {
    /// The current settings.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Length in tokens of the longest sequence that fits into the KV cache; none if windows let any length fit.
    pub fn longest_sequence(&self) -> Option<u32> {
        self.kv.layout().longest_sequence(self.config.num_blocks)
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
        self.observer.record(|| Input::Reconfigure(Box::new(config.clone())));
        let before = std::mem::replace(&mut self.config, config);
        if before.weights_version != self.config.weights_version {
            self.kv.change_weights(&mut self.table, &self.config);
        }
        self.table.reconfigure(&before, &self.config);
        Ok(())
    }

    /// Empties the prefix cache. Running sequences keep their blocks.
    pub fn reset_prefix_cache(&mut self) {
        self.observer.record(|| Input::ResetPrefixCache);
        self.kv.forget_contents(&mut self.table);
    }

    /// Restores the contents of these host blocks, which survived on every rank; the others are empty. Call it on a new
    /// scheduler, or after `lose_device` if the host's memory has survived. Of two blocks with the same contents the
    /// first stays; nothing is restored without prefix caching.
    ///
    /// Errors: `HostBlock` for a block or group that does not exist, and for a block that is named twice, in use, or
    /// has known contents.
    pub fn restore_host_blocks(&mut self, blocks: Vec<HostBlock>) -> Result<()> {
        if let Some(problem) = self.kv.cache().cannot_restore(&blocks) {
            return Err(Error::HostBlock { problem });
        }
        self.observer.record(|| Input::RestoreHostBlocks { blocks: blocks.clone() });
        self.kv.cache_mut().restore_host(blocks);
        Ok(())
    }

    /// Keeps the full blocks of a prefix from eviction: those that are cached now, and the others once they are
    /// computed. The prefix is that of requests with this tenant, cache salt and adapter. Gives the number of its full
    /// blocks.
    ///
    /// Errors: `Disabled` without prefix caching, `DuplicatePin`, `PinQuota`, `Request` for an invalid token id or no
    /// full block.
    pub fn pin(&mut self, name: u64, of: &Request) -> Result<u32> {
        let num_blocks = self.kv.pin(name, of, &self.config)?;
        self.observer.record(|| Input::Pin { name, of: Box::new(of.clone()) });
        Ok(num_blocks)
    }

    /// Removes a pin. False: there is no such pin.
    pub fn unpin(&mut self, name: u64) -> bool {
        self.observer.record(|| Input::Unpin { name });
        self.kv.cache_mut().unpin(name)
    }

    /// At most `limit` events of the prefix cache from number `first` on. The last 100,000 are kept; none unless
    /// `enable_kv_cache_events`.
    pub fn events(&self, first: u64, limit: usize) -> Events {
        self.kv.cache().events(first, limit)
    }

    /// All events from number `first` on, as a batch of vLLM; the whole cache if some of them were dropped; none if
    /// there are no events.
    pub fn event_batch(&self, first: u64, format: BatchFormat, seconds: f64) -> Option<EventBatch> {
        let (found, events) = self.kv.cache().events_since(first);
        if found != first {
            return Some(self.snapshot_batch(format, seconds));
        }
        let next = first + events.len() as u64;
        (next > first).then(|| EventBatch { next, payload: format.encode(events, &self.config, seconds) })
    }

    /// The contents of the prefix cache, as a batch of vLLM that begins with `AllBlocksCleared`.
    pub fn snapshot_batch(&self, format: BatchFormat, seconds: f64) -> EventBatch {
        let Snapshot { next, events, .. } = self.snapshot();
        let events = iter::once(&KvEvent::Cleared).chain(&events);
        EventBatch { next, payload: format.encode(events, &self.config, seconds) }
    }

    /// The contents of the prefix cache, for a subscriber that has missed events.
    pub fn snapshot(&self) -> Snapshot {
        self.kv.cache().snapshot()
    }
}

/// Loads and saves of keys and values.
impl Scheduler {
    /// The number of a request's tokens that the prefix cache has now, and the names of all full blocks that could be
    /// loaded, from the first on: those of the prompt, and of the output if there is one unfinished sample. Without
    /// prefix caching there are none.
    ///
    /// Errors: `UnknownRequest`.
    pub fn known_prefix(&mut self, client: ClientId, request: RequestId) -> Result<(u32, Vec<BlockHash>)> {
        let live = &self.table[self.table.find(client, request)?];
        match live.sequences().first() {
            Some(&first) if self.kv.shares_prefix(live) => {
                let (sequence, live) = self.table.pair_mut(first);
                Ok(self.kv.known_prefix(sequence, live, &self.steps))
            }
            _ => Ok((0, Vec::new())),
        }
    }

    /// Expected seconds to compute `num_tokens` of a prompt; none before any measurement.
    pub fn prefill_seconds(&self, num_tokens: u32) -> Option<f64> {
        let times = &self.table.estimates().times;
        times.is_measured().then(|| times.prefill_seconds(num_tokens))
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
        let key = self.table.find(client, request)?;
        // A sequence that was preempted, or lost its blocks with the device, starts like a new one.
        let starts = |sequence: &Sequence| {
            let has_place = matches!(sequence.state(), State::Running(_) | State::Loading) || sequence.is_on_host();
            !has_place && sequence.num_in_flight == 0
        };
        if !self.table[key].sequences().into_iter().all(|key| starts(&self.table[key])) {
            return Err(Error::TooLate { request });
        }
        self.table[key].offer = Some(Offer { num_tokens, asynchronous });
        self.observer.record(|| Input::OfferLoad { client, request, num_tokens, asynchronous });
        Ok(())
    }

    /// The loads that plans have started since the last call.
    pub fn take_loads(&mut self) -> Vec<Load> {
        self.kv.take_loads()
    }

    /// Ends a load, with its first `num_tokens` tokens in place; fewer than all is a failure. The success of a load
    /// that a step reads need not be reported: the step's commit implies it.
    ///
    /// Errors: `UnknownLoad`.
    pub fn finish_load(&mut self, load: LoadId, num_tokens: u32) -> Result<()> {
        let ended = self.kv.end_load(load, num_tokens, &mut self.table, &self.steps)?;
        self.observer.record(|| Input::FinishLoad { load, num_tokens });
        self.observer.load_ended(ended);
        Ok(())
    }

    /// Begins saves of blocks that committed steps have filled, up to the limit. Each block is kept, and no step writes
    /// it, until `finish_save` or `lose_device`. Blocks beyond the limit, or evicted before, are not saved: a later
    /// request computes them.
    pub fn take_saves(&mut self) -> Vec<Save> {
        let committed = self.steps.oldest();
        if !self.kv.cache().has_saves(committed) {
            return Vec::new();
        }
        self.observer.record(|| Input::TakeSaves);
        let saves = self.kv.cache_mut().take_saves(committed);
        self.observer.saves_begun(saves.len());
        saves
    }

    /// Ends a save, with or without success.
    ///
    /// Errors: `UnknownSave`.
    pub fn finish_save(&mut self, save: SaveId) -> Result<()> {
        if !self.kv.cache_mut().finish_save(save) {
            return Err(Error::UnknownSave { save });
        }
        self.observer.record(|| Input::FinishSave { save });
        Ok(())
    }
}

/// Recordings and reports.
impl Scheduler {
    /// Records every input from now on, for `take_recording`.
    ///
    /// Errors: `NotNew` after the first input, which the recording would lack.
    pub fn start_recording(&mut self) -> Result<()> {
        self.observer.start_recording(&self.config)
    }

    /// The recorded bytes since the last call; concatenated, the parts are one recording. Empty without recording.
    pub fn take_recording(&mut self) -> Vec<u8> {
        self.observer.take_recording()
    }

    /// The hash of all decisions since recording began.
    pub fn decisions_hash(&self) -> Option<u64> {
        self.observer.decisions_hash()
    }

    /// The last decisions, oldest first, at most 1,024.
    pub fn decisions(&self) -> impl ExactSizeIterator<Item = &Decision> {
        self.observer.decisions().iter()
    }

    /// The state of each sample of a request, with its reason.
    ///
    /// Errors: `UnknownRequest`.
    pub fn explain(&self, client: ClientId, request: RequestId) -> Result<Vec<Explanation>> {
        let key = self.table.find(client, request)?;
        Ok(self.explainer().explain(&self.table[key]))
    }

    /// The live requests, in order of arrival, and the last 1,000 that have ended, latest first: at most `limit` of
    /// them, and only those of a `name` if one is given.
    pub fn requests(&self, limit: usize, name: Option<&str>) -> Vec<RequestReport> {
        self.explainer().reports(self.observer.ended(), limit, name)
    }

    /// The requests that have ended since the last call, oldest first; at most the last 1,000.
    pub fn take_ended(&mut self) -> Vec<RequestReport> {
        self.observer.ended_mut().take()
    }

    /// The live requests that have begun: a part of each was computed, here or on an earlier core. Takes time linear in
    /// the number of requests.
    pub fn num_begun(&self) -> u64 {
        self.table.requests().filter(|(_, live)| live.has_begun()).count() as u64
    }

    /// The requests that `num_begun` counts, in no particular order.
    pub fn begun_requests(&self) -> Vec<(ClientId, RequestId)> {
        let begun = self.table.requests().filter(|(_, live)| live.has_begun());
        begun.map(|(_, live)| live.name()).collect()
    }

    /// The live requests, in no particular order.
    pub fn live_requests(&self) -> Vec<(ClientId, RequestId)> {
        self.table.requests().map(|(_, live)| live.name()).collect()
    }

    /// The device blocks by owner. Takes time proportional to the blocks in use.
    pub fn block_owners(&self) -> BlockOwners {
        block_owners(&self.table, &self.kv)
    }

    /// Gauges and counters, in constant time.
    pub fn stats(&self) -> Stats {
        self.observer.counters().with_gauges(&self.config, &self.table, &self.kv)
    }

    /// Known tokens of all sequences that are not computed yet: of prompts, of preempted sequences, and the last token
    /// of each sequence before its next step. Takes time linear in the number of sequences.
    pub fn num_uncomputed_tokens(&self) -> u64 {
        self.table.sequences().map(|(_, one)| u64::from(one.num_uncomputed())).sum()
    }

    /// Fragmentation of the KV blocks, on the device and on the host. Takes some 2 ns per block.
    pub fn fragmentation(&self) -> Fragmentation {
        fragmentation(&self.config, &self.table, &self.kv)
    }

    /// The adapters that have a live request or a slot of the device, by number, each with its running sequences and
    /// its others, held ones included. Takes time linear in the number of sequences.
    pub fn adapter_counts(&self) -> Vec<(u32, u32, u32)> {
        adapter_counts(&self.table)
    }

    /// The tenants with requests or remembered service; under a policy that does not share, one without a name.
    pub fn tenants(&self) -> Vec<TenantService> {
        tenants(&self.table)
    }

    /// Changes of the prefix cache from `number` on, and the load. With -1, or a number that is too old, a snapshot: it
    /// clears everything, then adds the stored blocks. The first call starts the log of changes.
    pub fn load_report(&mut self, number: i64) -> LoadReport {
        let (next, changes) = changes(number, self.kv.cache_mut());
        let Self { config, table, kv, observer, .. } = self;
        let load = observer.packed_load(table.num_sequences(), || pack_load(config, table, kv));
        LoadReport { next, changes, load }
    }

    /// See `KvCache::limit_changes`.
    #[cfg(test)]
    pub(crate) fn limit_changes(&mut self, capacity: usize, max_told: usize) {
        self.kv.cache_mut().limit_changes(capacity, max_told);
    }

    /// Recounts all numbers that are kept in two places. Takes time linear in the state; never needed in operation.
    ///
    /// Errors: the first mismatch, which is a bug of this crate.
    pub fn audit(&self) -> std::result::Result<(), String> {
        self.kv.audit(&self.table)?;
        self.table.audit()?;
        self.steps.audit(self.table.sequences(), self.config.pipeline_parallel_size > 1)?;
        self.outbox.audit(self.table.num_requests())
    }

    fn explainer(&self) -> Explainer<'_> {
        Explainer {
            decisions: self.observer.decisions(),
            table: &self.table,
            next_step: self.steps.next(),
            is_pipelined: self.config.pipeline_parallel_size > 1,
            pause: self.config.pause,
        }
    }
}
