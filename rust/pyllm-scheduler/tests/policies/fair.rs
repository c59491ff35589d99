//! Fair: two backlogged tenants get the same service by weight, up to the last admissions.

use std::collections::BTreeMap;

use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;

use pyllm_scheduler::{Config, PolicyName, Request, RequestId};

use crate::cases::cases;
use crate::engine::{CLIENT, Engine, config, request};

const TENANTS: [&str; 3] = ["a", "b", "c"];
const LONGEST_PROMPT: i32 = 24;
const LONGEST_OUTPUT: u32 = 12;

#[derive(Clone, Debug)]
enum Call {
    Add { tenant: usize, count: u32, prompt_length: i32, max_tokens: u32, is_shared: bool },
    Steps(u32),
    Abort(usize),
}

fn call() -> impl Strategy<Value = Call> {
    let add = (0..TENANTS.len(), 1..=6_u32, 1..=LONGEST_PROMPT, 1..=LONGEST_OUTPUT, any::<bool>());
    let add = add.prop_map(|(tenant, count, prompt_length, max_tokens, is_shared)| Call::Add {
        tenant,
        count,
        prompt_length,
        max_tokens,
        is_shared,
    });
    prop_oneof![6 => add, 6 => (1..=12_u32).prop_map(Call::Steps), 1 => any::<usize>().prop_map(Call::Abort)]
}

fn settings() -> impl Strategy<Value = Config> {
    (9..40_u32, 1..=4_u32, 8..=64_u32, prop::collection::vec(1..=4_u32, TENANTS.len())).prop_map(
        |(num_blocks, max_num_seqs, max_num_batched_tokens, weights)| Config {
            max_num_batched_tokens,
            tenant_weights: TENANTS.map(str::to_owned).into_iter().zip(weights).collect(),
            ..config(PolicyName::Fair, num_blocks, max_num_seqs)
        },
    )
}

/// Tenants' service, counted from plans and output.
struct Books {
    engine: Engine,
    tenant_of: BTreeMap<u64, usize>,
    prompt_lengths: BTreeMap<u64, u32>,
    /// For each pair of tenants, since both are backlogged: the least and the greatest lead of the first.
    ahead: BTreeMap<(usize, usize), (f64, f64)>,
    widest: f64, // lead, as a share of its bound
    most_service: f64,
}

impl Books {
    fn new(config: Config) -> Self {
        Self {
            engine: Engine::new(config),
            tenant_of: BTreeMap::new(),
            prompt_lengths: BTreeMap::new(),
            ahead: BTreeMap::new(),
            widest: 0.0,
            most_service: 0.0,
        }
    }

    fn call(&mut self, call: &Call) {
        match *call {
            Call::Add { tenant, count, prompt_length, max_tokens, is_shared } => {
                for _ in 0..count {
                    let id = self.tenant_of.len() as u64;
                    let text = request(if is_shared { 0 } else { id }, prompt_length, max_tokens).prompt;
                    self.tenant_of.insert(id, tenant);
                    self.prompt_lengths.insert(id, prompt_length as u32);
                    let tenant = TENANTS[tenant].to_owned();
                    self.engine.add_now(Request { prompt: text, tenant, ..request(id, prompt_length, max_tokens) });
                    self.check();
                }
            }
            Call::Steps(count) => {
                for _ in 0..count {
                    self.engine.step();
                    self.check();
                }
            }
            Call::Abort(pick) => {
                if let Some(id) = pick.checked_rem(self.tenant_of.len()) {
                    self.engine.scheduler.abort(CLIENT, RequestId(id as u64), None);
                    self.check();
                }
            }
        }
    }

    fn weight(&self, tenant: usize) -> f64 {
        f64::from(self.engine.scheduler.config().tenant_weights[TENANTS[tenant]])
    }

    /// Tokens weighted by cost, divided by the tenant's weight.
    fn service(&self, tenant: usize) -> f64 {
        let owned = self.tenant_of.iter().filter(|(_, owner)| **owner == tenant);
        let costs = owned.map(|(id, _)| {
            let served = &self.engine.served[id];
            served.cached.map_or(0, |cached| self.prompt_lengths[id] - cached) + 2 * served.num_tokens() as u32
        });
        f64::from(costs.sum::<u32>()) / self.weight(tenant)
    }

    /// Maximum lead of a counter over another tenant's that waits. Since the tenant's last admission, when its counter
    /// was lowest, it rose by the admitted input, and by the output of all its running sequences. Theorem 4.4 of Sheng
    /// et al. (arXiv 2401.00588) has the larger of the two, as its M, the tokens that can run at once, includes the
    /// input; here M is output only, so they add up. A new tenant starts at the mean of the others, so it may lead by
    /// as much as any of them, which is most with the least weight.
    fn bound(&self) -> f64 {
        let most_output = self.engine.scheduler.config().max_num_seqs * LONGEST_OUTPUT; // M
        let least_weight = (0..TENANTS.len()).map(|tenant| self.weight(tenant)).fold(f64::INFINITY, f64::min);
        f64::from(LONGEST_PROMPT as u32 + 2 * most_output) / least_weight
    }

    fn check(&mut self) {
        let tenants = self.engine.scheduler.tenants();
        let backlogged = |index: usize| {
            let lane = tenants.iter().find(|lane| lane.tenant == TENANTS[index]);
            lane.filter(|lane| lane.num_waiting > 0).map(|lane| f64::from(lane.service as u32))
        };
        for (one, other) in [(0, 1), (0, 2), (1, 2)] {
            let (Some(counter), Some(other_counter)) = (backlogged(one), backlogged(other)) else {
                self.ahead.remove(&(one, other));
                continue;
            };
            let bound = self.bound();
            // Lemma 4.3: the counters themselves; they are rounded down.
            let distance = (counter - other_counter).abs();
            assert!(distance <= bound + 1.0, "{counter} and {other_counter} are more than {bound} apart");
            // Theorem 4.4: the service since any time from which on both were backlogged.
            let service = self.service(one);
            let ahead = service - self.service(other);
            let (least, most) = self.ahead.entry((one, other)).or_insert((ahead, ahead));
            (*least, *most) = (least.min(ahead), most.max(ahead));
            let gap = *most - *least;
            assert!(gap <= 2.0 * bound + 1e-9, "a gap of {gap} is above twice {bound}");
            self.widest = self.widest.max(gap / (2.0 * bound));
            self.most_service = self.most_service.max(service);
        }
    }
}

proptest! {
    #![proptest_config(cases(128))]

    #[test]
    fn backlogged_tenants_get_the_same_service_by_weight(
        config in settings(), calls in prop::collection::vec(call(), 1..60),
    ) {
        let mut books = Books::new(config);
        for call in &calls {
            books.call(call);
        }
    }
}

/// The property above proves nothing about states that its cases do not reach.
#[test]
fn the_cases_reach_wide_gaps_preemptions_and_hits() {
    let mut runner = TestRunner::deterministic();
    let (mut widest, mut preemptions, mut hits, mut most_service) = (0.0_f64, 0, 0, 0.0_f64);
    for _ in 0..60 {
        let case = (settings(), prop::collection::vec(call(), 40..60)).new_tree(&mut runner).expect("a case");
        let (config, calls) = case.current();
        let mut books = Books::new(config);
        for call in &calls {
            books.call(call);
        }
        let stats = books.engine.scheduler.stats();
        preemptions += stats.num_preemptions;
        hits += stats.prefix_hits;
        widest = widest.max(books.widest);
        most_service = most_service.max(books.most_service);
    }
    assert!(preemptions > 0 && hits > 0, "{preemptions} preemptions, {hits} hits");
    assert!(widest > 0.25, "gaps reach {widest} of their bound, and service {most_service}");
}

fn tenant(name: &str, request: Request) -> Request {
    Request { tenant: name.to_owned(), ..request }
}

fn service(engine: &Engine, name: &str) -> u64 {
    let tenants = engine.scheduler.tenants();
    tenants.iter().find(|lane| lane.tenant == name).map_or(0, |lane| lane.service)
}

#[test]
fn weights_divide_a_long_backlog() {
    let weights = [("one".to_owned(), 1), ("three".to_owned(), 3)].into();
    let mut engine = Engine::new(Config { tenant_weights: weights, ..config(PolicyName::Fair, 64, 4) });
    for id in 0..400 {
        let name = if id % 2 == 0 { "one" } else { "three" };
        engine.add(tenant(name, request(id, 8, 8)));
    }
    engine.steps(300);
    let tokens = |rest: u64| -> usize { (0..400).filter(|id| id % 2 == rest).map(|id| engine.num_tokens(id)).sum() };
    let (one, three) = (tokens(0), tokens(1));
    // Either may lead by the service of four slots: 4 * (8 + 2 * 8), or 32 output tokens.
    assert!(engine.scheduler.stats().num_waiting > 50);
    assert!(three.abs_diff(3 * one) <= 4 * 32, "{one} to {three}");
}

#[test]
fn idleness_is_not_saved_up() {
    let mut engine = Engine::new(config(PolicyName::Fair, 64, 2));
    for id in 0..100 {
        engine.add(tenant("busy", request(id, 4, 4)));
    }
    engine.steps(60);
    let had = service(&engine, "busy");
    assert!(had > 300, "{had}");
    for id in 100..200 {
        engine.add(tenant("new", request(id, 4, 4)));
    }
    assert_eq!(service(&engine, "new"), had);
    engine.steps(60);
    let (busy, new) = (service(&engine, "busy"), service(&engine, "new"));
    // Two slots, each with 4 of input and 4 tokens of output at 2.
    assert!(busy > had + 100 && busy.abs_diff(new) <= 2 * 12, "{busy} and {new}");
}

#[test]
fn a_tenants_requests_progress_in_balance() {
    let settings = config(PolicyName::Fair, 128, 8);
    let mut engine = Engine::new(settings.clone());
    for id in 0..8 {
        engine.add(request(id, 1, 40));
    }
    engine.step();
    let few_tokens = Config { max_num_batched_tokens: 3, ..settings };
    engine.scheduler.reconfigure(few_tokens).expect("the setting is live");
    for _ in 0..80 {
        engine.step();
        let tokens = (0..8).map(|id| engine.num_tokens(id));
        let (least, most) = (tokens.clone().min(), tokens.max());
        assert!(most <= least.map(|least| least + 1), "{least:?} to {most:?}");
    }
}

#[test]
fn preemption_charges_nothing_twice() {
    let mut engine = Engine::new(Config { enable_prefix_caching: false, ..config(PolicyName::Fair, 6, 3) });
    engine.add(request(9, 1, 1));
    engine.scheduler.hold(CLIENT, RequestId(9), "so that the tenant is remembered").expect("it is there");
    for id in 0..3 {
        engine.add(request(id, 6, 10));
    }
    engine.steps(60);
    assert!((0..3).all(|id| engine.is_finished(id)));
    assert!(engine.scheduler.stats().num_preemptions > 0);
    assert_eq!(service(&engine, ""), 3 * (6 + 2 * 10));
}

#[test]
fn what_the_cache_has_is_not_charged() {
    let mut engine = Engine::new(config(PolicyName::Fair, 64, 1));
    let prompt = request(0, 16, 1).prompt;
    for id in 0..2 {
        engine.add(tenant("a", Request { prompt: prompt.clone(), ..request(id, 16, 1) }));
    }
    engine.add(tenant("a", request(2, 1, 1)));
    engine.step();
    let first = service(&engine, "a");
    assert_eq!(first, 16 + 2);
    engine.step();
    assert_eq!(service(&engine, "a") - first, 4 + 2);
}
