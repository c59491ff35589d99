//! Chooses the core where a request should finish first, by its queued work, its speed and its cached prefix. Has no
//! clock, no randomness and no I/O; a recording of its inputs gives the same choices. Knows no connections.

mod choice;
mod core_set;
mod core_work;
mod prefix_index;
mod replay;
mod speeds;

use serde::{Deserialize, Serialize};

use crate::config::PrefixHash;
use crate::error::{Error, Result};
use crate::estimates::core_load::{CoreLoad, work};
use crate::estimates::output_lengths::FIRST_LENGTH;
use crate::kv::cache::changes::Change;
use crate::kv::cache::request_hasher::RequestHasher;
use crate::recorder::Recorder;

use choice::{Candidate, choose};
use core_set::{CoreSet, MAX_CORES};
use core_work::CoreWork;
use prefix_index::PrefixIndex;
use replay::{Input, MAGIC, Settings};
use speeds::Speeds;

pub use replay::PlacementReplay;

/// Chooses a core for each request of a client.
pub struct Placement {
    settings: Settings,
    cores: Vec<Option<CoreWork>>, // by bit
    index: PrefixIndex,
    speeds: Speeds,
    last_request: Option<u64>,
    weights_version: String,
    num_inputs: u64,
    recorder: Option<Recorder>,
    // Buffers, kept between calls to reuse their memory.
    hasher: RequestHasher,
    hashes: Vec<u64>,
    candidates: Vec<Candidate>,
}

/// A request to place.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NewRequest {
    /// Its number: unique and increasing.
    pub id: u64,
    /// Its token ids.
    pub prompt: Vec<i32>,
    /// Output tokens per sample.
    pub max_tokens: u32,
    /// Samples.
    pub num_samples: u32,
    /// The tenant that is charged for it.
    pub tenant: String,
    /// See `Request::cache_salt`.
    pub cache_salt: String,
    /// See `Request::adapter`.
    pub adapter: String,
    /// Requests of one session stay on one core where costs are equal; empty: no session.
    pub session: String,
}

/// The core for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placed {
    /// The core.
    pub core: u32,
    /// Tokens of the prompt that are in the core's prefix cache, or will be when the request runs.
    pub num_cached_tokens: u32,
}

impl Placement {
    /// A placement for cores that hash the blocks of their prefix caches in this way.
    ///
    /// Errors: `Config` for a block size of 0.
    pub fn new(
        block_size: u32,
        prefix_hash: PrefixHash,
        prefix_hash_seed: &str,
        cache_namespace: &str,
    ) -> Result<Self> {
        Ok(Self {
            settings: Settings {
                block_size,
                prefix_hash,
                prefix_hash_seed: prefix_hash_seed.to_owned(),
                cache_namespace: cache_namespace.to_owned(),
            },
            cores: Vec::new(),
            index: PrefixIndex::new(),
            speeds: Speeds::default(),
            last_request: None,
            weights_version: String::new(),
            num_inputs: 0,
            recorder: None,
            hasher: RequestHasher::new(block_size, prefix_hash, prefix_hash_seed, cache_namespace)?,
            hashes: Vec::new(),
            candidates: Vec::new(),
        })
    }

    /// Adds a core. Until it reports, it is taken to be empty.
    ///
    /// Errors: `Placement` if it exists already, or there are 64.
    pub fn add_core(&mut self, core: u32) -> Result<()> {
        if self.bit_of(core).is_some() {
            return refuse(format!("core {core} is there already; remove it first if it is another one now"));
        }
        let bit = self.cores.iter().position(Option::is_none).unwrap_or(self.cores.len());
        if bit == MAX_CORES {
            return refuse(format!("there are {MAX_CORES} cores, which is the most; remove one first"));
        }
        self.record(|| Input::AddCore { core });
        self.cores.resize_with(self.cores.len().max(bit + 1), || None);
        self.cores[bit] = Some(CoreWork::new(core, self.settings.block_size));
        self.measure();
        Ok(())
    }

    /// Removes a core and all its requests.
    ///
    /// Errors: `Placement` if the core is not known.
    pub fn remove_core(&mut self, core: u32) -> Result<()> {
        let bit = self.find(core)?;
        self.record(|| Input::RemoveCore { core });
        self.cores[bit] = None;
        self.index.forget(bit);
        self.measure();
        Ok(())
    }

    /// Applies a core's `Scheduler::load_report`. The load includes this client's requests up to `last_request`.
    ///
    /// Errors: `Placement` if the core is not known, or the bytes cannot be decoded.
    pub fn update_core(&mut self, core: u32, last_request: Option<u64>, changes: &[u8], load: &[u8]) -> Result<()> {
        let bit = self.find(core)?;
        let (Some(read_changes), Some(read_load)) = (Change::read_all(changes), CoreLoad::from_bytes(load)) else {
            return refuse(format!(
                "cannot decode the load report of core {core} ({} bytes of changes, {} of load): pass what \
                 Scheduler.load_report of the same pyllm version gave",
                changes.len(),
                load.len()
            ));
        };
        self.record(|| Input::UpdateCore { core, last_request, changes: changes.to_vec(), load: load.to_vec() });
        self.index.change(bit, &read_changes);
        let ended =
            self.cores[bit].as_mut().map(|work| work.take_load(last_request, read_load, self.settings.block_size));
        for request in ended.unwrap_or_default() {
            self.index.end(request);
        }
        self.index.trim();
        self.measure();
        Ok(())
    }

    /// Chooses one of `cores` for a request, which counts as placed from now on.
    ///
    /// Errors: `Placement` for no cores, an unknown core, or an id that is not above all before.
    pub fn place(&mut self, request: NewRequest, cores: &[u32]) -> Result<Placed> {
        if let Some(last) = self.last_request.filter(|&last| request.id <= last) {
            return refuse(format!("request {} comes after request {last}; give each a higher number", request.id));
        }
        let mut among = CoreSet::default();
        for &core in cores {
            among = among.with(CoreSet::of(self.find(core)?));
        }
        self.hash_blocks(&request);
        self.weigh(&request, among);
        let Some(chosen) = choose(&self.candidates, self.speeds.step_seconds, &request.session) else {
            return refuse(format!("there is no core for request {}; give at least one", request.id));
        };
        let placed = Placed { core: chosen.core, num_cached_tokens: chosen.num_cached };
        self.last_request = Some(request.id);
        self.expect(&request, &chosen);
        if let Some(recorder) = &mut self.recorder {
            recorder.decide(&placed.core.to_le_bytes());
            recorder.decide(&placed.num_cached_tokens.to_le_bytes());
        }
        self.record(|| Input::Place { request, cores: cores.to_vec() });
        Ok(placed)
    }

    /// Changes the version of the cores' weights, by which they name blocks from now on.
    pub fn change_weights(&mut self, version: &str) {
        self.record(|| Input::ChangeWeights { version: version.to_owned() });
        version.clone_into(&mut self.weights_version);
    }

    /// Removes a request that has ended, or will not be sent to its core. Unknown requests are ignored.
    pub fn ended(&mut self, request: u64) {
        self.record(|| Input::Ended { request });
        for core in self.cores.iter_mut().flatten() {
            core.end(request);
        }
        let core = self.index.bit_of(request).and_then(|bit| self.cores[bit].as_mut());
        if let Some(request) = core.and_then(|core| core.note_ended(request)) {
            self.index.end(request);
        }
        self.index.trim();
    }

    /// Records every input from now on, for `take_recording`.
    ///
    /// Errors: `NotNew` after the first input, which the recording would lack.
    pub fn start_recording(&mut self) -> Result<()> {
        if self.num_inputs > 0 {
            return Err(Error::NotNew { call: "start_recording" });
        }
        self.recorder = Some(Recorder::new(MAGIC, &self.settings));
        Ok(())
    }

    /// The recorded bytes since the last call; concatenated, the parts are one recording. Empty without recording.
    pub fn take_recording(&mut self) -> Vec<u8> {
        self.recorder.as_mut().map_or(Vec::new(), Recorder::take)
    }

    /// The hash of all choices since recording began.
    pub fn choices_hash(&self) -> Option<u64> {
        self.recorder.as_ref().map(Recorder::hash)
    }

    /// The short hashes of the prompt's full blocks, into `hashes`.
    fn hash_blocks(&mut self, request: &NewRequest) {
        self.hashes.clear();
        let NewRequest { prompt, tenant, cache_salt, adapter, .. } = request;
        let hashes = self.hasher.hashes(prompt, tenant, cache_salt, adapter, &self.weights_version);
        self.hashes.extend(hashes.map(|hash| hash.of(0).short()));
    }

    /// The cost of the request on each core, into `candidates`.
    fn weigh(&mut self, request: &NewRequest, among: CoreSet) {
        let block_size = self.settings.block_size;
        // The last token is always computed, for its logits.
        let num_tokens = request.prompt.len() as u32;
        let most = num_tokens.saturating_sub(1) / block_size;
        let hashes = &self.hashes[..most as usize];
        let mut lengths = [0; MAX_CORES];
        self.index.longest_prefixes(hashes, among, &mut lengths);
        let num_outputs = self.output_length(request).saturating_mul(request.num_samples.max(1));
        let weight = self.cores.iter().flatten().find_map(|core| core.weight(&request.tenant)).unwrap_or(1.0);
        self.candidates.clear();
        for bit in among.iter() {
            let Some(core) = &self.cores[bit] else { continue };
            let length = match core.groups[..] {
                [group] if !group.has_window() && !core.has_states() => lengths[bit],
                _ => self.index.longest_prefix(hashes, bit, &core.groups, core.has_states()),
            };
            let num_cached = length * block_size;
            let seconds = core
                .load
                .as_ref()
                .map_or_else(|| self.speeds.unmeasured_seconds(), |load| self.speeds.seconds_per_work(&load.steps));
            let own_work = work(num_tokens - num_cached, num_outputs);
            let (before, until_done) = core.until_done(&request.tenant, weight, own_work);
            self.candidates.push(Candidate {
                core: core.core,
                bit,
                num_cached,
                num_requests: core.num_requests(),
                before: before * seconds,
                own_work,
                weight,
                own: (until_done - before) * seconds,
            });
        }
    }

    /// Adds the request's work and expected blocks to the chosen core.
    fn expect(&mut self, request: &NewRequest, chosen: &Candidate) {
        let Some(core) = &mut self.cores[chosen.bit] else { return };
        core.place(request.id, &request.tenant, chosen.weight, chosen.own_work);
        if core.load.as_ref().is_none_or(|load| load.caches_prefixes) {
            let groups = 0..core.groups.len() as u64;
            let hashes = self.hashes.iter().flat_map(|hash| groups.clone().map(|group| hash.wrapping_add(group)));
            // Of its checkpoints, the one before its last token is certain.
            let most = (request.prompt.len() as u32).saturating_sub(1) / self.settings.block_size;
            let last = self.hashes[..most as usize].last().filter(|_| core.has_states());
            let state = last.map(|hash| hash.wrapping_add(groups.end));
            self.index.expect(request.id, chosen.bit, hashes.chain(state));
        }
    }

    /// Expected output tokens per sample.
    fn output_length(&self, request: &NewRequest) -> u32 {
        let lengths = self.cores.iter().flatten().filter_map(|core| Some(core.load.as_ref()?.output_length));
        let (sum, count) = lengths.fold((0.0, 0.0), |(sum, count), length| (sum + length, count + 1.0));
        let expected = if count > 0.0 { sum / count } else { FIRST_LENGTH };
        request.max_tokens.min(expected.ceil() as u32).max(1)
    }

    fn measure(&mut self) {
        let loads = self.cores.iter().flatten().filter_map(|core| core.load.as_ref());
        self.speeds = Speeds::of(loads.map(|load| &load.steps));
    }

    fn bit_of(&self, core: u32) -> Option<usize> {
        self.cores.iter().position(|known| known.as_ref().is_some_and(|known| known.core == core))
    }

    fn find(&self, core: u32) -> Result<usize> {
        self.bit_of(core).map_or_else(|| refuse(format!("core {core} is not there; add it first")), Ok)
    }

    fn record(&mut self, input: impl FnOnce() -> Input) {
        self.num_inputs += 1;
        if let Some(recorder) = &mut self.recorder {
            recorder.record(&input());
        }
    }
}

fn refuse<T>(problem: impl Into<String>) -> Result<T> {
    Err(Error::Placement(problem.into()))
}

#[cfg(test)]
mod tests;
