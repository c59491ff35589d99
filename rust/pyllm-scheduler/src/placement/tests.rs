//! Any sequence of calls: the imbalance is bounded, a replay chooses the same, nothing is left behind; and with real
//! schedulers behind it the index is what their caches hold, and tenants are served alike.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;
use crate::config::{Config, KvGroup, PolicyName};
use crate::estimates::core_load::TenantLoad;
use crate::estimates::step_sums::StepSums;
use crate::ids::{ClientId, RequestId};
use crate::kv_cache::events::KvEvent;
use crate::plan::{ALIGNMENT, Plan, SECTIONS};
use crate::request::Request;
use crate::scheduler::Scheduler;

const BLOCK_SIZE: u32 = 4;
const CLIENT: ClientId = ClientId(0);

type Tried = std::result::Result<(), TestCaseError>;

#[derive(Clone, Debug)]
enum Call {
    Add(u32),
    Remove(u32),
    UpdateCore(u32, Told),
    Place(Asked),
    End(u64),
}

/// What a core tells, beside changes that tell of blocks of some of the prompts.
#[derive(Clone, Debug)]
struct Told {
    shares_by_tenant: bool,
    works: Vec<u32>, // by tenant
    step: Option<(u32, f64)>,
    stored: Vec<(u32, u32)>, // which prompt, and how many blocks of it
    clears: bool,
    lag: u64, // requests that the load has not
}

#[derive(Clone, Debug)]
struct Asked {
    prompt: u32,
    length: u32,
    max_tokens: u32,
    num_samples: u32,
    tenant: u32,
    session: u32,
    cores: Vec<u32>,
}

fn told() -> impl Strategy<Value = Told> {
    let works = prop::collection::vec(0..5_000_u32, 0..4);
    let step = prop::option::of((1..3_000_u32, 1e-3..1.0_f64));
    let stored = prop::collection::vec((0..4_u32, 0..12_u32), 0..4);
    (any::<bool>(), works, step, stored, prop::bool::weighted(0.2), 0..4_u64).prop_map(
        |(shares_by_tenant, works, step, stored, clears, lag)| Told {
            shares_by_tenant,
            works,
            step,
            stored,
            clears,
            lag,
        },
    )
}

fn asked() -> impl Strategy<Value = Asked> {
    let cores = prop::collection::vec(0..5_u32, 1..5);
    (0..4_u32, 0..50_u32, 1..300_u32, 1..4_u32, 0..5_u32, 0..3_u32, cores).prop_map(
        |(prompt, length, max_tokens, num_samples, tenant, session, cores)| Asked {
            prompt,
            length,
            max_tokens,
            num_samples,
            tenant,
            session,
            cores,
        },
    )
}

fn calls() -> impl Strategy<Value = Vec<Call>> {
    let call = prop_oneof![
        2 => (0..5_u32).prop_map(Call::Add),
        1 => (0..5_u32).prop_map(Call::Remove),
        4 => (0..5_u32, told()).prop_map(|(core, told)| Call::UpdateCore(core, told)),
        8 => asked().prop_map(Call::Place),
        4 => (0..60_u64).prop_map(Call::End),
    ];
    prop::collection::vec(call, 1..120)
}

fn prompt(of: u32, length: u32) -> Vec<i32> {
    (0..length as i32).map(|position| position * 7 + of as i32).collect()
}

fn tenant(number: u32) -> String {
    if number == 0 { String::new() } else { format!("tenant {number}") }
}

/// The placement under test, and its books kept once more, without a sum that is ever changed.
struct World {
    placement: Placement,
    cores: BTreeMap<u32, Book>,
    next_request: u64,
    recording: Vec<u8>,
}

#[derive(Default)]
struct Book {
    load: Option<CoreLoad>,
    placed: BTreeMap<u64, (String, f64, f64)>, // tenant, weight and work
}

impl Book {
    /// Work until a tenant's request is done.
    fn until_done(&self, tenant: &str, weight: f64, own: f64) -> f64 {
        let mut works: BTreeMap<&str, (f64, f64)> = BTreeMap::new();
        let told = self.load.iter().flat_map(|load| &load.tenants);
        for one in told {
            works.insert(&one.tenant, (one.work, one.weight));
        }
        let shares = self.load.as_ref().is_some_and(|load| load.shares_by_tenant);
        for (tenant, weight, work) in self.placed.values() {
            works.entry(if shares { tenant } else { "" }).or_insert((0.0, *weight)).0 += work;
        }
        let all = own + works.values().map(|(work, _)| work).sum::<f64>();
        if !shares {
            return all;
        }
        let own = own + works.entry(tenant).or_insert((0.0, weight)).0;
        all.min(own * works.values().map(|(_, weight)| weight).sum::<f64>() / weight)
    }
}

impl World {
    fn new() -> Self {
        let mut placement = Placement::new(BLOCK_SIZE, PrefixHash::Blake3, "").unwrap();
        placement.start_recording().unwrap();
        Self { placement, cores: BTreeMap::new(), next_request: 0, recording: Vec::new() }
    }

    fn apply(&mut self, call: Call) -> Tried {
        match call {
            Call::Add(core) => {
                prop_assert_eq!(self.placement.add_core(core).is_err(), self.cores.contains_key(&core));
                self.cores.entry(core).or_default();
            }
            Call::Remove(core) => {
                prop_assert_eq!(self.placement.remove_core(core).is_ok(), self.cores.remove(&core).is_some());
            }
            Call::UpdateCore(core, told) => self.tell(core, &told)?,
            Call::Place(asked) => self.place(&asked)?,
            Call::End(request) => {
                self.placement.ended(request);
                self.cores.values_mut().for_each(|book| drop(book.placed.remove(&request)));
            }
        }
        self.recording.extend(self.placement.take_recording());
        Ok(())
    }

    fn tell(&mut self, core: u32, told: &Told) -> Tried {
        let mut changes = Vec::new();
        if told.clears {
            Change::Cleared.write(&mut changes);
        }
        for &(of, num_blocks) in &told.stored {
            for hash in hashes(&prompt(of, num_blocks * BLOCK_SIZE)) {
                Change::Stored(hash).write(&mut changes);
            }
        }
        let mut steps = StepSums::default();
        if let Some((work, seconds)) = told.step {
            steps.measure(work.into(), seconds);
        }
        let works = told.works.iter().zip(0..).take(if told.shares_by_tenant { usize::MAX } else { 1 });
        let tenants = works.map(|(&work, number)| TenantLoad {
            tenant: tenant(number),
            weight: (number + 1).into(),
            work: work.into(),
        });
        let load = CoreLoad {
            shares_by_tenant: told.shares_by_tenant,
            tenants: tenants.collect(),
            output_length: 100.0,
            steps,
            caches_prefixes: true,
            windows: vec![None],
            ..CoreLoad::default()
        };
        let last = self.next_request.checked_sub(1 + told.lag);
        let taken = self.placement.update_core(core, last, &changes, &load.to_bytes());
        let Some(book) = self.cores.get_mut(&core) else {
            prop_assert!(taken.is_err());
            return Ok(());
        };
        prop_assert!(taken.is_ok());
        book.load = Some(load);
        book.placed.retain(|&request, _| last.is_none_or(|last| request > last));
        Ok(())
    }

    fn place(&mut self, asked: &Asked) -> Tried {
        let tenant = tenant(asked.tenant);
        let request = NewRequest {
            id: self.next_request,
            prompt: prompt(asked.prompt, asked.length),
            max_tokens: asked.max_tokens,
            num_samples: asked.num_samples,
            tenant: tenant.clone(),
            session: if asked.session == 0 { String::new() } else { asked.session.to_string() },
            ..NewRequest::default()
        };
        let speeds = self.placement.speeds;
        let placed = self.placement.place(request, &asked.cores);
        if asked.cores.iter().any(|core| !self.cores.contains_key(core)) {
            prop_assert!(placed.is_err());
            return Ok(());
        }
        let Placed { core, num_cached_tokens } = placed.unwrap();
        prop_assert!(asked.cores.contains(&core));
        prop_assert!(num_cached_tokens < asked.length.max(1) && num_cached_tokens % BLOCK_SIZE == 0);

        let is_told = self.cores.values().any(|book| book.load.is_some());
        let num_outputs = asked.max_tokens.min(if is_told { 100 } else { 128 }) * asked.num_samples;
        let own = |num_cached| work(asked.length - num_cached, num_outputs);
        // What no core has told weighs 1.
        let told = self.cores.values().filter_map(|book| book.load.as_ref()).filter(|load| load.shares_by_tenant);
        let weight = told.flat_map(|load| &load.tenants).find(|one| one.tenant == tenant).map_or(1.0, |one| one.weight);
        let seconds = |core: &u32| match &self.cores[core].load {
            Some(load) => speeds.seconds_per_work(&load.steps),
            None => speeds.unmeasured_seconds(),
        };
        let cost = |core: &u32, own| self.cores[core].until_done(&tenant, weight, own) * seconds(core);
        let chosen = cost(&core, own(num_cached_tokens));
        for other in &asked.cores {
            let least = cost(other, own(0));
            let most = least + choice::tolerance(least, speeds.step_seconds);
            prop_assert!(chosen <= most * (1.0 + 1e-9), "core {core} costs {chosen} and core {other} {least}");
        }
        let placed = (tenant.clone(), weight, own(num_cached_tokens));
        self.cores.get_mut(&core).unwrap().placed.insert(self.next_request, placed);
        self.next_request += 1;
        Ok(())
    }

    /// All requests end, and all cores tell of it.
    fn end(&mut self) -> Tried {
        for request in 0..self.next_request {
            self.apply(Call::End(request))?;
        }
        let told = Told { shares_by_tenant: true, works: vec![], step: None, stored: vec![], clears: false, lag: 0 };
        for core in self.cores.keys().copied().collect::<Vec<_>>() {
            for _ in 0..2 {
                self.apply(Call::UpdateCore(core, told.clone()))?;
            }
        }
        prop_assert_eq!(&self.placement.index.sizes()[1..], [0, 0, 0]);
        for core in self.cores.keys().copied().collect::<Vec<_>>() {
            self.apply(Call::Remove(core))?;
        }
        prop_assert_eq!(self.placement.index.sizes(), [0; 4]);
        prop_assert!(self.placement.cores.iter().all(Option::is_none));
        Ok(())
    }
}

fn hashes(prompt: &[i32]) -> Vec<u64> {
    let mut hasher = BlockHasher::by(PrefixHash::Blake3, "");
    let mut parent = hasher.root(&["", "", "", ""]);
    let short = prompt.chunks_exact(BLOCK_SIZE as usize).map(|tokens| {
        parent = hasher.child(parent, tokens, &[]);
        parent.of(0).short()
    });
    short.collect()
}

/// A scheduler whose workers take a constant time, and what its requests got.
struct Core {
    scheduler: Scheduler,
    number: i64, // of its changes
    now: f64,
    last_request: Option<u64>,
    cached: BTreeMap<u64, i32>,
    tokens: BTreeMap<u64, u32>,
    ended: Vec<u64>,
}

impl Core {
    fn new(config: Config) -> Self {
        let config = Config { block_size: BLOCK_SIZE, vocab_size: 10_000, enable_kv_cache_events: true, ..config };
        Self {
            scheduler: Scheduler::new(config).unwrap(),
            number: -1,
            now: 0.0,
            last_request: None,
            cached: BTreeMap::new(),
            tokens: BTreeMap::new(),
            ended: Vec::new(),
        }
    }

    fn add(&mut self, id: u64, prompt: Vec<i32>, max_tokens: u32, tenant: &str) {
        let tenant = tenant.to_owned();
        let request =
            Request { client: CLIENT, id: RequestId(id), prompt, n: 1, max_tokens, tenant, ..Request::default() };
        self.scheduler.add(request).unwrap();
        self.last_request = Some(id);
    }

    fn commit(&mut self, plan: &Plan) {
        self.now += 0.01;
        let starts = sampled_starts(plan);
        let tokens = vec![9; starts.last().copied().unwrap_or(0) as usize];
        self.scheduler.commit(plan.step, &starts, &tokens, 0.01, None, None).unwrap();
        if let Some(deltas) = self.scheduler.take_deltas(CLIENT) {
            for row in 0..deltas.len() {
                let request = deltas.requests[row];
                self.cached.entry(request).or_insert(deltas.cached_tokens[row]);
                *self.tokens.entry(request).or_default() += deltas.row_tokens(row).len() as u32;
                if deltas.finishes[row] != 0 {
                    self.ended.push(request);
                }
            }
        }
    }

    fn step(&mut self) -> bool {
        let Some(plan) = self.scheduler.schedule(self.now).unwrap() else { return false };
        self.commit(&plan);
        true
    }

    /// Whether there may be more.
    fn tell_part(&mut self, placement: &mut Placement, core: u32) -> bool {
        let report = self.scheduler.load_report(self.number);
        placement.update_core(core, self.last_request, &report.changes, &report.load).unwrap();
        std::mem::replace(&mut self.number, report.next) != report.next
    }

    fn tell(&mut self, placement: &mut Placement, core: u32) {
        while self.tell_part(placement, core) {}
    }

    /// What both tiers hold, as events tell it.
    fn known(&self) -> BTreeSet<u64> {
        let hashes = self.scheduler.snapshot().events.into_iter().filter_map(|event| match event {
            KvEvent::Stored { hash, group, .. } => Some(hash.of(group).short()),
            KvEvent::Removed { .. } | KvEvent::Cleared => None,
        });
        hashes.collect()
    }
}

fn sampled_starts(plan: &Plan) -> Vec<i32> {
    let mut start = 0;
    for ((name, element), count) in SECTIONS.iter().zip(plan.counts) {
        let size = count as usize * if *element == 'B' { 1 } else { 4 };
        if *name == "sampled_starts" {
            let words = plan.buffer[start..start + size].chunks_exact(4);
            return words.map(|word| i32::from_le_bytes(word.try_into().unwrap())).collect();
        }
        start += size.next_multiple_of(ALIGNMENT);
    }
    unreachable!("a plan has this section")
}

#[derive(Clone, Debug)]
enum Act {
    Add { prompt: u32, length: u32, max_tokens: u32 },
    Step,
    Tell,
    TellPart,
    Reset,
    Lose,
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let add = (0..6_u32, 1..60_u32, 1..20_u32);
    let act = prop_oneof![
        4 => add.prop_map(|(prompt, length, max_tokens)| Act::Add { prompt, length, max_tokens }),
        12 => Just(Act::Step),
        4 => Just(Act::Tell),
        4 => Just(Act::TellPart),
        1 => prop::bool::weighted(0.5).prop_map(|resets| if resets { Act::Reset } else { Act::Lose }),
    ];
    prop::collection::vec(act, 1..100)
}

fn small(num_host_blocks: u32, windows: &[Option<u32>]) -> Config {
    Config {
        num_blocks: 60,
        num_host_blocks,
        max_num_seqs: 4,
        max_num_batched_tokens: 32,
        max_model_len: 90,
        kv_groups: windows.iter().map(|&window| KvGroup { window }).collect(),
        ..Config::default()
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_imbalance_is_bounded_a_replay_is_equal_and_nothing_is_left(calls in calls()) {
        let mut world = World::new();
        for call in calls {
            world.apply(call)?;
        }
        let num_choices = world.next_request;
        world.end()?;
        let replayed = Placement::replay(&world.recording).unwrap();
        prop_assert_eq!((replayed.num_choices, replayed.is_truncated), (num_choices, false));
        prop_assert_eq!(Some(replayed.hash), world.placement.choices_hash());
    }

    #[test]
    fn the_index_is_what_the_cores_cache_holds_and_foretells_what_a_request_finds(
        acts in acts(),
        num_host_blocks in prop_oneof![Just(0_u32), Just(20)],
        windows in prop_oneof![
            Just(vec![None]), Just(vec![None, Some(9)]), Just(vec![Some(13), None]), Just(vec![Some(6)]),
        ],
        most_told in 1..50_usize,
    ) {
        let mut core = Core::new(small(num_host_blocks, &windows));
        core.scheduler.limit_changes(100, most_told);
        let mut placement = Placement::new(BLOCK_SIZE, PrefixHash::Blake3, "").unwrap();
        placement.add_core(3).unwrap();
        for (id, act) in (0..).zip(acts) {
            match act {
                Act::Add { prompt: of, length, max_tokens } => core.add(id, prompt(of, length), max_tokens, ""),
                Act::Step => drop(core.step()),
                Act::Reset => core.scheduler.reset_prefix_cache(),
                Act::Lose => core.scheduler.lose_device(),
                Act::TellPart => {
                    let may_be_more = core.tell_part(&mut placement, 3);
                    prop_assert!(may_be_more || placement.index.known(0) == core.known());
                }
                Act::Tell => {
                    core.tell(&mut placement, 3);
                    prop_assert_eq!(placement.index.known(0), core.known());
                }
            }
        }
        while core.step() {}
        core.tell(&mut placement, 3);
        prop_assert_eq!(placement.index.known(0), core.known());
        let mut fresh = Placement::new(BLOCK_SIZE, PrefixHash::Blake3, "").unwrap();
        fresh.add_core(0).unwrap();
        core.number = -1;
        core.tell(&mut fresh, 0);
        prop_assert_eq!(fresh.index.known(0), core.known());

        for id in 1000..1006 {
            let prompt = prompt(id % 6, 50);
            core.tell(&mut fresh, 0);
            let asked = NewRequest { id: id.into(), prompt: prompt.clone(), max_tokens: 1, ..NewRequest::default() };
            let placed = fresh.place(asked, &[0]).unwrap();
            fresh.ended(id.into());
            core.add(id.into(), prompt, 1, "");
            while core.step() {}
            prop_assert_eq!(core.cached[&u64::from(id)], placed.num_cached_tokens as i32);
            // By the second report after its end nothing is expected.
            core.tell(&mut fresh, 0);
            core.tell(&mut fresh, 0);
        }
    }
}

/// The load of a core, as it tells it.
fn load_of(core: &mut Core) -> CoreLoad {
    CoreLoad::from_bytes(&core.scheduler.load_report(core.number).load).unwrap()
}

#[test]
fn a_load_is_the_work_that_is_there_less_what_is_cached_or_will_be() {
    let mut core = Core::new(Config { max_num_seqs: 1, ..small(0, &[None]) });
    let told = |work| [TenantLoad { tenant: String::new(), weight: 1.0, work }];
    assert_eq!(load_of(&mut core).tenants, []);
    for id in 0..3 {
        core.add(id, prompt(0, 50), 10, "");
    }
    // The first will have computed 8 blocks of 4 tokens of the others' prompts, as far as one looks.
    let waiting = work(50, 10) + 2.0 * work(50 - 32, 10);
    assert_eq!(load_of(&mut core).tenants, told(waiting));
    core.step();
    let running = work(50 - 32, 10) + 2.0 * work(50 - 32, 10);
    assert_eq!(load_of(&mut core).tenants, told(running));
    core.step();
    // It has its first token; all its full blocks serve the others.
    let load = load_of(&mut core);
    assert_eq!(load.tenants, told(work(1, 9) + 2.0 * work(50 - 48, 10)));
    assert_eq!((load.num_requests, load.steps.num_steps, load.shares_by_tenant), (3, 2, false));
    while core.step() {}
    let load = load_of(&mut core);
    assert!(load.tenants.is_empty() && load.num_requests == 0 && (load.output_length - 10.0).abs() < 1e-9);
}

#[test]
fn a_load_has_the_work_of_each_tenant_and_its_weight_under_fair() {
    let tenant_weights = [("b".to_owned(), 3)].into();
    let config = Config { policy: PolicyName::Fair, tenant_weights, ..small(0, &[None]) };
    let mut core = Core::new(config);
    core.add(0, prompt(0, 9), 5, "a");
    core.add(1, prompt(1, 9), 5, "b");
    let told = |tenant: &str, weight| TenantLoad { tenant: tenant.to_owned(), weight, work: work(9, 5) };
    assert_eq!(load_of(&mut core).tenants, [told("a", 1.0), told("b", 3.0)]);
}

fn serve(num_cores: u32, tenants: &[(&str, usize)], weights: &[(&str, u32)]) -> BTreeMap<String, u32> {
    let config = Config {
        num_blocks: 400,
        max_num_seqs: 8,
        max_num_batched_tokens: 64,
        max_model_len: 200,
        policy: PolicyName::Fair,
        tenant_weights: weights.iter().map(|&(tenant, weight)| (tenant.to_owned(), weight)).collect(),
        ..Config::default()
    };
    let mut cores: Vec<_> = (0..num_cores).map(|_| Core::new(config.clone())).collect();
    let mut placement = Placement::new(BLOCK_SIZE, PrefixHash::Blake3, "").unwrap();
    for core in 0..num_cores {
        placement.add_core(core).unwrap();
    }
    let all: Vec<_> = (0..num_cores).collect();
    let mut owners: Vec<&str> = Vec::new();
    for _ in 0..600 {
        // Every tenant keeps so many requests going.
        for &(tenant, num_streams) in tenants {
            let ended: BTreeSet<_> = cores.iter().flat_map(|core| &core.ended).collect();
            let num_going =
                owners.iter().zip(0..).filter(|(owner, id)| **owner == tenant && !ended.contains(id)).count();
            for _ in num_going..num_streams {
                let id = owners.len() as u64;
                let prompt = (0..20).map(|position| (id as i32 * 31 + position) % 10_000).collect::<Vec<_>>();
                let request = NewRequest {
                    id,
                    prompt: prompt.clone(),
                    max_tokens: 20,
                    tenant: tenant.to_owned(),
                    ..NewRequest::default()
                };
                let core = placement.place(request, &all).unwrap().core;
                cores[core as usize].add(id, prompt, 20, tenant);
                owners.push(tenant);
            }
        }
        for (number, core) in (0..).zip(&mut cores) {
            core.step();
            core.tell(&mut placement, number);
        }
    }
    let mut served = BTreeMap::new();
    for (request, num_tokens) in cores.iter().flat_map(|core| &core.tokens) {
        *served.entry(owners[*request as usize].to_owned()).or_default() += num_tokens;
    }
    served
}

#[test]
fn equal_tenants_are_served_alike_by_all_cores_together() {
    for num_cores in [1, 2, 3] {
        let served = serve(num_cores, &[("few", 10 * num_cores as usize), ("many", 60 * num_cores as usize)], &[]);
        let share = f64::from(served["few"]) / f64::from(served["few"] + served["many"]);
        assert!((0.45..0.55).contains(&share), "{num_cores} cores: {served:?}");
    }
}

#[test]
fn tenants_are_served_by_their_weights() {
    let served = serve(2, &[("light", 60), ("heavy", 60)], &[("heavy", 3)]);
    let share = f64::from(served["heavy"]) / f64::from(served["light"] + served["heavy"]);
    assert!((0.7..0.8).contains(&share), "{served:?}");
}

#[test]
fn a_burst_with_one_prefix_finds_it_before_any_report() {
    let mut placement = Placement::new(BLOCK_SIZE, PrefixHash::Blake3, "").unwrap();
    for core in 0..2 {
        placement.add_core(core).unwrap();
    }
    let place = |placement: &mut Placement, id| {
        let prompt = [prompt(0, 400), vec![id as i32; 8]].concat();
        placement.place(NewRequest { id, prompt, max_tokens: 10, ..NewRequest::default() }, &[0, 1]).unwrap()
    };
    let placed: Vec<_> = (0..100).map(|id| place(&mut placement, id)).collect();
    let num_cold = placed.iter().filter(|placed| placed.num_cached_tokens == 0).count();
    let num_first = placed.iter().filter(|placed| placed.core == 0).count();
    assert_eq!((num_cold, placed.iter().filter(|placed| placed.num_cached_tokens == 400).count()), (2, 98));
    assert!((40..=60).contains(&num_first), "{num_first}");
}

#[test]
fn all_layers_are_expected_to_have_what_a_request_will_store() {
    let mut placement = Placement::new(BLOCK_SIZE, PrefixHash::Blake3, "").unwrap();
    for core in 0..4 {
        placement.add_core(core).unwrap();
        let windows = vec![None, Some(9), Some(30), Some(5)];
        let load = CoreLoad { caches_prefixes: core < 3, windows, ..CoreLoad::default() };
        placement.update_core(core, None, &[], &load.to_bytes()).unwrap();
    }
    let mut place = |id, core| {
        let request = NewRequest { id, prompt: prompt(0, 201), max_tokens: 1, ..NewRequest::default() };
        placement.place(request, &[core]).unwrap().num_cached_tokens
    };
    let twice: Vec<_> =
        (0..4).map(|core| (place(u64::from(2 * core), core), place(u64::from(2 * core + 1), core))).collect();
    assert_eq!(twice, [(0, 200), (0, 200), (0, 200), (0, 0)]); // the last keeps nothing
}

#[test]
fn what_was_never_computed_is_expected_no_longer_than_its_requests_live() {
    let mut placement = Placement::new(BLOCK_SIZE, PrefixHash::Blake3, "").unwrap();
    placement.add_core(0).unwrap();
    let place = |placement: &mut Placement, id| {
        let request = NewRequest { id, prompt: prompt(0, 40), max_tokens: 1, ..NewRequest::default() };
        placement.place(request, &[0]).unwrap().num_cached_tokens
    };
    assert_eq!((place(&mut placement, 0), place(&mut placement, 1)), (0, 36));
    let load = CoreLoad { caches_prefixes: true, windows: vec![None], ..CoreLoad::default() }.to_bytes();
    // The first was aborted; the second will compute the same.
    placement.ended(0);
    for _ in 0..2 {
        placement.update_core(0, Some(1), &[], &load).unwrap();
    }
    assert_eq!(place(&mut placement, 2), 36);
    placement.ended(1);
    placement.ended(2);
    placement.update_core(0, Some(2), &[], &load).unwrap();
    assert_eq!(place(&mut placement, 3), 36);
    placement.ended(3);
    for _ in 0..2 {
        placement.update_core(0, Some(3), &[], &load).unwrap();
    }
    assert_eq!(placement.index.sizes(), [0; 4]);
}
