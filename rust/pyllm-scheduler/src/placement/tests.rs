//! Any sequence of calls: the imbalance is bounded, a replay makes the same choices, and no entry is left behind.

mod schedulers;

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::estimates::core_load::TenantLoad;
use crate::estimates::step_sums::StepSums;

const BLOCK_SIZE: u32 = 4;

type Tried = std::result::Result<(), TestCaseError>;

#[derive(Clone, Debug)]
enum Call {
    Add(u32),
    Remove(u32),
    UpdateCore(u32, Told),
    Place(Asked),
    End(u64),
}

/// The load in a core's report, with changes that have blocks of some of the prompts.
#[derive(Clone, Debug)]
struct Told {
    shares_by_tenant: bool,
    works: Vec<u32>, // by tenant
    step: Option<(u32, f64)>,
    stored: Vec<(u32, u32)>, // number of the prompt, and blocks of it
    clears: bool,
    lag: u64, // requests that the load does not include
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

/// The placement under test, and the expected state, recomputed without running sums.
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
        let mut placement = Placement::new(BLOCK_SIZE, PrefixHash::Blake3, "", "").unwrap();
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
        // A tenant that no core has reported weighs 1.
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

    /// Ends all requests, and sends reports of all cores.
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
    let mut hasher = RequestHasher::new(BLOCK_SIZE, PrefixHash::Blake3, "", "").unwrap();
    hasher.hashes(prompt, "", "", "", "").map(|hash| hash.of(0).short()).collect()
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
}

#[test]
fn blocks_of_another_version_of_the_weights_are_not_expected() {
    let mut placement = Placement::new(BLOCK_SIZE, PrefixHash::Blake3, "", "").unwrap();
    placement.start_recording().unwrap();
    placement.add_core(0).unwrap();
    let cached = |placement: &mut Placement, id| {
        let request = NewRequest { id, prompt: prompt(0, 400), max_tokens: 10, ..NewRequest::default() };
        placement.place(request, &[0]).unwrap().num_cached_tokens
    };
    assert_eq!(cached(&mut placement, 0), 0);
    let known = cached(&mut placement, 1);
    assert!(known > 0);
    placement.change_weights("2");
    assert_eq!((cached(&mut placement, 2), cached(&mut placement, 3)), (0, known));
    placement.change_weights("");
    assert_eq!(cached(&mut placement, 4), known);
    let recording = placement.take_recording();
    assert_eq!(Some(Placement::replay(&recording).unwrap().hash), placement.choices_hash());
}

#[test]
fn a_burst_with_one_prefix_finds_it_before_any_report() {
    let mut placement = Placement::new(BLOCK_SIZE, PrefixHash::Blake3, "", "").unwrap();
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
    let mut placement = Placement::new(BLOCK_SIZE, PrefixHash::Blake3, "", "").unwrap();
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
    let mut placement = Placement::new(BLOCK_SIZE, PrefixHash::Blake3, "", "").unwrap();
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
