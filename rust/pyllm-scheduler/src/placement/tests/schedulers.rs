//! A placement with real schedulers: its index has the contents of their caches, its loads are their work, and tenants
//! get equal service.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;
use crate::config::{Config, KvGroup, PolicyName};
use crate::estimates::core_load::TenantLoad;
use crate::ids::{ClientId, RequestId};
use crate::kv::cache::events::KvEvent;
use crate::plan::{ALIGNMENT, Plan, SECTIONS};
use crate::request::Request;
use crate::scheduler::Scheduler;

const CLIENT: ClientId = ClientId(0);

/// A scheduler whose workers take a constant time, with the results of its requests.
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

    /// Sends a part of a report. True: there may be more.
    fn tell_part(&mut self, placement: &mut Placement, core: u32) -> bool {
        let report = self.scheduler.load_report(self.number);
        placement.update_core(core, self.last_request, &report.changes, &report.load).unwrap();
        std::mem::replace(&mut self.number, report.next) != report.next
    }

    fn tell(&mut self, placement: &mut Placement, core: u32) {
        while self.tell_part(placement, core) {}
    }

    /// The contents of both tiers, by the scheduler's events.
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
    fn the_index_is_what_the_cores_cache_holds_and_foretells_what_a_request_finds(
        acts in acts(),
        num_host_blocks in prop_oneof![Just(0_u32), Just(20)],
        windows in prop_oneof![
            Just(vec![None]), Just(vec![None, Some(9)]), Just(vec![Some(13), None]), Just(vec![Some(6)]),
        ],
        max_told in 1..50_usize,
        num_states in prop_oneof![Just(0_u32), Just(9)],
    ) {
        let num_host_states = num_host_blocks.min(num_states);
        let mut core = Core::new(Config { num_states, num_host_states, ..small(num_host_blocks, &windows) });
        core.scheduler.limit_changes(100, max_told);
        let mut placement = Placement::new(BLOCK_SIZE, PrefixHash::Blake3, "", "").unwrap();
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
        let mut fresh = Placement::new(BLOCK_SIZE, PrefixHash::Blake3, "", "").unwrap();
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
            // After the second report since its end no hash is expected.
            core.tell(&mut fresh, 0);
            core.tell(&mut fresh, 0);
        }
    }
}

/// The load of a core, by its report.
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
    // The first will have computed 8 blocks of 4 tokens of the others' prompts, as far as the lookup goes.
    let waiting = work(50, 10) + 2.0 * work(50 - 32, 10);
    assert_eq!(load_of(&mut core).tenants, told(waiting));
    core.step();
    let running = work(50 - 32, 10) + 2.0 * work(50 - 32, 10);
    assert_eq!(load_of(&mut core).tenants, told(running));
    core.step();
    // It has its first token; the others reuse all its full blocks.
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
    let mut placement = Placement::new(BLOCK_SIZE, PrefixHash::Blake3, "", "").unwrap();
    for core in 0..num_cores {
        placement.add_core(core).unwrap();
    }
    let all: Vec<_> = (0..num_cores).collect();
    let mut owners: Vec<&str> = Vec::new();
    for _ in 0..600 {
        // Every tenant keeps this many requests running.
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
