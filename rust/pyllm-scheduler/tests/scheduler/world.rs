//! A simulation of clients, the scheduler and a device, with several steps in flight. It makes the calls, records every
//! client's output, and compares it with the oracle's answer of when the request was added.

mod beams;
mod drafts;
mod isolation;
mod loads;
mod logprobs;
mod model;
mod pins;
mod reasons;
mod recording;
mod refusals;
mod requests;
mod saves;
mod settings;
mod steps;
mod subscriber;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use pyllm_scheduler::{Config, LoadId, Pause, PolicyName, SaveId, Scheduler, Stats};

use crate::calls::{Call, Case, Positions};
use crate::device::Device;
use crate::names::Name;
use isolation::Alone;
use loads::Pending;
use requests::Known;
use saves::Saving;
use steps::InFlight;
use subscriber::Subscriber;

pub struct World {
    config: Config,     // as last changed
    largest_chunk: u32, // by the first settings
    scheduler: Scheduler,
    device: Device,
    depth: usize,
    moods: u64,
    in_flight: VecDeque<InFlight>,
    requests: Vec<Known>,
    alone: Option<Alone>,
    loads: BTreeMap<LoadId, Pending>,
    saves: BTreeMap<SaveId, Saving>,
    saved_with_default: BTreeSet<(Name, u32)>, // with the group
    pins: BTreeMap<u64, Vec<(Name, u32)>>,     // with the group
    subscriber: Subscriber,
    recording: Option<Vec<u8>>,
    now: f64,
    num_schedules: usize,
    added_tokens: u64,
    /// Events with their counts, so that a test can tell that they happened.
    seen: BTreeMap<&'static str, u64>,
}

/// Makes all calls of a case and runs all requests to their ends. Gives the events with their counts.
pub fn run(case: &Case) -> BTreeMap<&'static str, u64> {
    let mut world = World::new(case);
    for call in &case.calls {
        world.call(call);
    }
    world.finish();
    world.replay(case.damage);
    world.seen
}

impl World {
    fn new(case: &Case) -> Self {
        let config = case.config.clone();
        let mut scheduler = Scheduler::new(config.clone()).expect("the limits are in range");
        if case.is_recorded {
            scheduler.start_recording().expect("nothing has happened");
        }
        Self {
            largest_chunk: match config.long_prefill_token_threshold {
                0 => config.max_num_batched_tokens,
                threshold => threshold.min(config.max_num_batched_tokens),
            },
            device: Device::new(&config),
            depth: case.depth,
            moods: case.moods,
            in_flight: VecDeque::new(),
            requests: Vec::new(),
            alone: None,
            loads: BTreeMap::new(),
            saves: BTreeMap::new(),
            saved_with_default: BTreeSet::new(),
            pins: BTreeMap::new(),
            subscriber: Subscriber::new(&config),
            recording: case.is_recorded.then(Vec::new),
            now: 0.0,
            num_schedules: 0,
            added_tokens: 0,
            seen: BTreeMap::new(),
            scheduler,
            config,
        }
    }

    fn call(&mut self, call: &Call) {
        match call {
            Call::Add(add) => self.add(add),
            Call::Schedule { after } => self.schedule(*after),
            Call::Commit { seconds, positions } => self.commit(*seconds, *positions),
            Call::Take { client } => self.take(*client),
            Call::Abort { pick, sample } => self.abort(*pick, *sample),
            Call::Hold { pick, holder } => self.hold(*pick, holder),
            Call::Release { pick, holder } => self.release(*pick, holder),
            Call::Isolate { pick } => self.isolate(*pick),
            Call::Expire { after } => self.expire_only(*after),
            Call::DropClient { client } => self.drop_client(*client),
            Call::LoseDevice => self.lose_device(),
            Call::Reconfigure(change) => self.reconfigure(*change),
            Call::Propose { pick, sample, drafts } => self.propose(*pick, *sample, *drafts),
            Call::OfferLoad { pick, offer } => self.offer_load(*pick, *offer),
            Call::FinishLoad { pick } => self.finish_load(*pick),
            Call::TakeSaves => self.take_saves(),
            Call::FinishSave { pick } => self.finish_save(*pick),
            Call::Pin { name, prompt } => self.pin(*name, *prompt),
            Call::Unpin { name } => self.unpin(*name),
            Call::ResetPrefixCache => self.reset_prefix_cache(),
            Call::Pause(pause) => self.pause(*pause),
            Call::Wrong(wrong) => self.refused(*wrong),
        }
        self.audit();
    }

    /// Runs all requests to their ends, and checks that nothing is left.
    fn finish(&mut self) {
        self.pause(Pause::None);
        for client in 0..3 {
            self.take(client);
        }
        for index in 0..self.requests.len() {
            for holder in self.requests[index].holders.clone() {
                self.set_hold(index, holder, false);
            }
        }
        for _ in 0..20_000 {
            if self.scheduler.stats().num_requests == 0 && self.in_flight.is_empty() && self.loads.is_empty() {
                break;
            }
            for _ in 0..self.depth {
                self.schedule(0.5);
            }
            self.finish_load(0);
            self.take_saves();
            for save in self.saves.keys().copied().collect::<Vec<_>>() {
                self.end_save(save);
            }
            self.commit(0.0, Positions::All);
            self.audit();
        }
        // Swaps of ended sequences may still be pending.
        self.schedule(0.0);
        self.commit(0.0, Positions::All);
        for client in 0..3 {
            self.take(client);
        }
        let unfinished = self.requests.iter().filter(|known| known.is_live());
        assert_eq!(unfinished.count(), 0, "every request comes to its end");
        self.check_prompts_told();
        let stats = self.scheduler.stats();
        let Stats { num_requests, num_running, num_waiting, num_held, num_paused, num_loading, .. } = stats;
        assert_eq!([num_requests, num_running, num_waiting, num_held, num_paused, num_loading], [0; 6]);
        assert_eq!(self.scheduler.num_uncomputed_tokens(), 0);
        assert!(self.scheduler.pending_clients().is_empty());
        for name in 0..4 {
            self.unpin(name);
        }
        self.take_saves();
        for save in self.saves.keys().copied().collect::<Vec<_>>() {
            self.end_save(save);
        }
        self.audit();
        let stats = self.scheduler.stats();
        assert_eq!((stats.num_used_blocks, stats.num_free_host_blocks), (0, stats.num_host_blocks));
        assert_eq!((stats.num_free_states, stats.num_free_host_states), (stats.num_states, stats.num_host_states));
        self.saw("checkpoints", stats.num_cached_states);
        assert!(stats.prefix_queries <= self.added_tokens, "a sequence is looked up at its first admission only");
        assert!(stats.num_uncached_tokens <= self.added_tokens, "its tokens are computed for the first time once");
        assert_eq!(stats.num_ended_preemptions, stats.num_preemptions);
        let counts: Vec<u64> = stats.accepted_drafts.named().map(|(_, count)| count).collect();
        let num_rows = counts[counts.len() - 1];
        assert_eq!(counts.into_iter().map(|count| num_rows - count).sum::<u64>(), stats.num_accepted_drafts);
        let policy = match self.config.policy {
            PolicyName::Fcfs => "ends under fcfs",
            PolicyName::Priority => "ends under priority",
            PolicyName::Shortest => "ends under shortest",
            PolicyName::Fair => "ends under fair",
            PolicyName::Custom => "ends under custom",
        };
        self.saw(policy, 1);
        self.saw("preemptions", stats.num_preemptions);
        self.saw("preemptions to the host", stats.num_swapped);
        self.saw("preemptions to be computed anew", stats.num_preemptions - stats.num_swapped);
        self.saw("prefix hits", stats.prefix_hits);
        self.saw("prefix hits on the host", stats.host_prefix_hits);
        self.saw("accepted drafts", stats.num_accepted_drafts);
        self.saw("rejected drafts", stats.num_drafts - stats.num_accepted_drafts);
        self.saw("failed loads", stats.num_failed_loads);
        self.saw("dropped saves", stats.num_dropped_saves);
    }

    fn saw(&mut self, what: &'static str, times: u64) {
        *self.seen.entry(what).or_default() += times;
    }

    fn audit(&mut self) {
        if let Err(problem) = self.scheduler.audit() {
            panic!("the books do not add up: {problem}");
        }
        self.check_isolation();
        self.check_adapters();
        let stats = self.scheduler.stats();
        assert_eq!(stats.num_free_blocks + stats.num_used_blocks, stats.num_blocks);
        let device = self.scheduler.fragmentation().device;
        assert!(device.num_empty_slots <= stats.num_used_blocks * u64::from(self.config.block_size));
        assert!(device.longest_free_run <= stats.num_free_blocks && device.num_free_runs <= stats.num_free_blocks);
        let num_awaited = self.loads.values().filter(|pending| pending.step.is_none()).count();
        assert_eq!(stats.num_loading, num_awaited as u64);
        assert_eq!(stats.num_saving_blocks, self.saves.len() as u64);
        let waiting: u64 = self.scheduler.tenants().iter().map(|tenant| tenant.num_waiting).sum();
        assert_eq!(waiting, stats.num_waiting);
        let owners = self.scheduler.block_owners();
        let owned = owners.tenants.values().sum::<u32>() + owners.pinned + owners.in_transit + owners.free;
        assert_eq!(u64::from(owned), stats.num_blocks);
        let reports = self.scheduler.requests(usize::MAX, None);
        assert_eq!(reports.iter().filter(|report| report.ended.is_none()).count() as u64, stats.num_requests);
        self.hear();
        self.subscriber.compare(&self.scheduler.snapshot(), &stats, &self.config);
        self.audit_pins(&stats);
    }

    fn hear(&mut self) {
        let events = self.scheduler.events(self.subscriber.next(), usize::MAX);
        self.subscriber.hear(&events, &self.config);
    }
}
