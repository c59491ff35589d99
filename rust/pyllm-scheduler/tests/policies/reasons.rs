//! Explanations: every reason comes from one small state, and from no other.

use proptest::prelude::*;

use pyllm_scheduler::{Config, Decision, Explanation, Finish, Plan, PolicyName, Reason, Request, RequestId};

use crate::cases::cases;
use crate::engine::{CLIENT, Engine, config, ints, request};

fn fcfs(num_blocks: u32, max_num_seqs: u32) -> Engine {
    Engine::new(config(PolicyName::Fcfs, num_blocks, max_num_seqs))
}

fn schedule(engine: &mut Engine) -> Plan {
    engine.scheduler.schedule(engine.now).expect("time goes on").expect("something may run")
}

fn commit(engine: &mut Engine, plan: &Plan) {
    let starts = ints(plan, "sampled_starts");
    let tokens = vec![7; *starts.last().expect("there is one more start than rows") as usize];
    engine.scheduler.commit(plan.step, &starts, &tokens, 0.0, None, None).expect("the step is due");
}

fn last_decision(engine: &Engine) -> Decision {
    *engine.scheduler.decisions().last().expect("a step was decided")
}

#[test]
fn new_is_what_came_since_the_last_step() {
    let mut engine = fcfs(64, 1);
    engine.add(request(1, 4, 8));
    assert_eq!(engine.reason(1), Some(Reason::New));
    engine.step();
    engine.add(request(2, 4, 8));
    assert_eq!((engine.reason(1), engine.reason(2)), (None, Some(Reason::New)));
    engine.step();
    assert_eq!(engine.reason(2), Some(Reason::Slots));
}

#[test]
fn new_is_what_was_released_since_the_last_step() {
    let mut engine = fcfs(64, 4);
    engine.add(request(1, 4, 8));
    engine.step();
    engine.scheduler.hold(CLIENT, RequestId(1), "grammar").expect("it is there");
    engine.scheduler.release(CLIENT, RequestId(1), "grammar").expect("it is held");
    assert_eq!((engine.state(1), engine.reason(1)), ("waiting", Some(Reason::New)));
}

#[test]
fn another_policy_does_not_make_new_what_waits() {
    let mut engine = fcfs(64, 1);
    engine.add(request(1, 4, 8));
    engine.add(request(2, 4, 8));
    engine.step();
    let fair = Config { policy: PolicyName::Fair, ..engine.scheduler.config().clone() };
    engine.scheduler.reconfigure(fair).expect("the policy is live");
    assert_eq!(engine.reason(2), Some(Reason::Slots));
}

#[test]
fn held_is_what_the_caller_holds() {
    let mut engine = fcfs(64, 1);
    engine.add(request(1, 4, 8));
    engine.scheduler.hold(CLIENT, RequestId(1), "grammar").expect("it is there");
    let [Explanation { state, reason, hold, .. }] = &engine.explain(1)[..] else { panic!("one sample") };
    assert_eq!((*state, *reason, hold.as_deref()), ("held", Some(Reason::Held), Some("grammar")));
}

#[test]
fn loading_is_what_waits_for_its_keys_and_values() {
    let mut engine = fcfs(64, 1);
    engine.add(request(1, 12, 8));
    engine.scheduler.offer_load(CLIENT, RequestId(1), 8, true).expect("it waits");
    assert_eq!(engine.scheduler.schedule(0.0), Ok(None));
    assert_eq!((engine.state(1), engine.reason(1)), ("loading", Some(Reason::Loading)));
    let load = engine.scheduler.take_loads()[0].id;
    engine.scheduler.finish_load(load, 8).expect("it is under way");
    assert_eq!(engine.reason(1), Some(Reason::New));
}

#[test]
fn forking_is_a_sample_whose_prompt_another_computes() {
    let mut engine = fcfs(64, 4);
    engine.add(Request { n: 2, ..request(1, 80, 8) });
    engine.step();
    let reasons: Vec<_> = engine.explain(1).iter().map(|sample| sample.reason).collect();
    assert_eq!(reasons, [None, Some(Reason::Forking)]);
    engine.step();
    engine.step();
    assert!(engine.explain(1).iter().all(|sample| sample.reason.is_none()));
}

#[test]
fn in_flight_is_what_a_step_decides() {
    let mut engine = fcfs(64, 4);
    engine.add(Request { n: 2, ..request(1, 4, 8) });
    engine.add(request(2, 4, 8));
    let first = schedule(&mut engine);
    let _second = schedule(&mut engine); // the first request forks by the commit of the first step
    assert_eq!((engine.reason(1), engine.reason(2)), (Some(Reason::InFlight), None));
    commit(&mut engine, &first);
    assert_eq!(engine.reason(1), Some(Reason::InFlight));
}

#[test]
fn in_flight_is_what_was_taken_back_with_a_token_on_its_way() {
    let mut engine = fcfs(64, 4);
    engine.add(request(1, 4, 8));
    let _first = schedule(&mut engine);
    engine.scheduler.hold(CLIENT, RequestId(1), "grammar").expect("it is there");
    engine.scheduler.release(CLIENT, RequestId(1), "grammar").expect("it is held");
    assert_eq!(engine.scheduler.schedule(0.0), Ok(None));
    assert_eq!((engine.state(1), engine.reason(1)), ("waiting", Some(Reason::InFlight)));
}

#[test]
fn budget_is_what_the_step_has_no_tokens_for() {
    let mut engine = fcfs(64, 4);
    engine.add(request(1, 64, 8));
    engine.add(request(2, 4, 8));
    engine.step();
    assert_eq!((engine.reason(1), engine.reason(2)), (None, Some(Reason::Budget)));
}

#[test]
fn budget_is_also_what_runs_without_tokens() {
    let mut engine = fcfs(64, 4);
    engine.add(request(1, 4, 8));
    engine.add(request(2, 4, 8));
    engine.step();
    let one_token = Config { max_num_batched_tokens: 1, ..engine.scheduler.config().clone() };
    engine.scheduler.reconfigure(one_token).expect("the setting is live");
    engine.step();
    assert_eq!((engine.reason(1), engine.reason(2)), (None, Some(Reason::Budget)));
}

/// A stream with a target that leaves one block per step, after measured steps.
fn with_a_target() -> Engine {
    let mut engine = Engine::new(Config { inter_token_target: 1e-6, ..config(PolicyName::Fcfs, 64, 4) });
    engine.tells_seconds = true;
    engine.token_seconds = 0.001;
    engine.add(request(1, 4, 40));
    engine.steps(3);
    engine
}

#[test]
fn inter_token_target_is_what_streams_cannot_wait_for() {
    let mut engine = with_a_target();
    engine.add(request(2, 8, 8));
    engine.add(request(3, 8, 8));
    engine.step();
    assert_eq!((engine.reason(2), engine.reason(3)), (None, Some(Reason::InterTokenTarget)));
}

#[test]
fn inter_token_target_is_also_what_runs_without_tokens() {
    let mut engine = Engine::new(config(PolicyName::Fcfs, 64, 4));
    engine.tells_seconds = true;
    engine.token_seconds = 0.001;
    engine.add(request(1, 4, 40));
    engine.steps(3);
    let threshold = Config { long_prefill_token_threshold: 4, ..engine.scheduler.config().clone() };
    engine.scheduler.reconfigure(threshold.clone()).expect("the setting is live");
    engine.add(request(2, 30, 8));
    engine.add(request(3, 30, 8));
    engine.step();
    engine.scheduler.reconfigure(Config { inter_token_target: 1e-6, ..threshold }).expect("the setting is live");
    engine.step();
    assert_eq!(
        (engine.state(3), engine.reason(2), engine.reason(3)),
        ("running", None, Some(Reason::InterTokenTarget))
    );
}

#[test]
fn samples_is_what_the_step_has_no_positions_for() {
    let mut engine = fcfs(64, 3);
    for id in 1..4 {
        engine.add(Request { n: 3, ..request(id, 4, 8) });
    }
    let _plan = schedule(&mut engine);
    assert_eq!((engine.reason(2), engine.reason(3)), (None, Some(Reason::Samples)));
}

#[test]
fn slots_is_what_has_no_slot() {
    let mut engine = fcfs(64, 1);
    engine.add(request(1, 4, 8));
    engine.add(request(2, 4, 8));
    engine.step();
    assert_eq!(engine.reason(2), Some(Reason::Slots));
}

#[test]
fn blocks_is_what_has_no_place() {
    let mut engine = fcfs(8, 4);
    engine.add(request(1, 20, 8));
    engine.add(request(2, 16, 8));
    engine.step();
    assert_eq!(engine.reason(2), Some(Reason::Blocks));
}

#[test]
fn states_is_what_has_no_state_to_write_to() {
    let mut engine = Engine::new(Config { num_states: 2, ..config(PolicyName::Fcfs, 64, 4) });
    (1..4).for_each(|id| engine.add(request(id, 3, 8)));
    engine.step();
    assert_eq!((engine.reason(2), engine.reason(3)), (None, Some(Reason::States)));
}

#[test]
fn watermark_is_what_would_sink_below_it() {
    let mut engine = Engine::new(Config { watermark: 0.5, ..config(PolicyName::Fcfs, 8, 4) });
    engine.add(request(1, 8, 2));
    engine.add(request(2, 12, 8));
    engine.step();
    assert_eq!(engine.reason(2), Some(Reason::Watermark));
}

#[test]
fn growth_is_what_would_take_the_room_of_what_runs() {
    let mut engine = Engine::new(Config { expected_growth: 1.0, ..config(PolicyName::Fcfs, 8, 4) });
    engine.add(request(1, 4, 20));
    engine.add(request(2, 4, 20));
    engine.step();
    assert_eq!(engine.reason(2), Some(Reason::Growth));
}

#[test]
fn preempting_is_what_comes_next_while_a_step_takes_back() {
    let mut engine = fcfs(4, 4);
    engine.add(request(1, 7, 8));
    engine.add(request(2, 7, 8));
    while engine.scheduler.stats().num_preemptions == 0 {
        engine.step();
    }
    assert_eq!((engine.state(2), engine.reason(2)), ("preempted", Some(Reason::Preempting)));
    engine.step();
    assert_eq!(engine.reason(2), Some(Reason::Blocks));
}

#[test]
fn policy_is_what_comes_after_another_that_waits() {
    let mut engine = fcfs(64, 1);
    for id in 1..4 {
        engine.add(request(id, 4, 8));
    }
    engine.step();
    assert_eq!((engine.reason(2), engine.reason(3)), (Some(Reason::Slots), Some(Reason::Policy)));
}

#[test]
fn what_has_finished_has_no_reason() {
    let mut engine = fcfs(64, 4);
    engine.add(Request { n: 2, ..request(1, 4, 8) });
    engine.step();
    engine.scheduler.abort(CLIENT, RequestId(1), Some(1));
    let last = engine.explain(1).pop().expect("two samples");
    assert_eq!((last.state, last.reason), ("finished", None));
    assert_eq!(engine.scheduler.take_deltas(CLIENT).map(|deltas| deltas.finishes[0]), Some(Finish::Abort as u8));
}

/// Whether the figures of the last decision confirm its reason.
fn is_borne_out(reason: Reason, settings: &Config, decision: &Decision) -> bool {
    match reason {
        Reason::Budget => decision.num_tokens == settings.max_num_batched_tokens,
        Reason::InterTokenTarget => settings.inter_token_target > 0.0 && decision.num_prefill_tokens > 0,
        Reason::Slots => decision.num_running == settings.max_num_seqs,
        Reason::Blocks | Reason::Policy => decision.num_running > 0,
        Reason::Watermark => settings.watermark > 0.0 && decision.num_free_blocks > 0,
        Reason::Growth => settings.expected_growth > 0.0 && decision.num_free_blocks > 0,
        Reason::Preempting => decision.num_preempted > 0,
        // No request here has states, is held, isolated, loaded, in flight or in a pipeline, comes after the step, or has more than
        // one sample.
        Reason::New
        | Reason::Held
        | Reason::Loading
        | Reason::Forking
        | Reason::Siblings
        | Reason::InFlight
        | Reason::Grammar
        | Reason::Paused
        | Reason::Isolation
        | Reason::Pipeline
        | Reason::Samples
        | Reason::States
        | Reason::Adapters => false,
    }
}

proptest! {
    #![proptest_config(cases(64))]

    /// After every step, a sequence has tokens or a reason, which the decision confirms.
    #[test]
    fn reasons_agree_with_the_decision(
        num_blocks in 12..40_u32,
        max_num_batched_tokens in 4..40_u32,
        watermark in prop::sample::select(vec![0.0, 0.2]),
        expected_growth in prop::sample::select(vec![0.0, 1.0]),
        inter_token_target in prop::sample::select(vec![0.0, 0.02]),
        policy in prop::sample::select(vec![PolicyName::Fcfs, PolicyName::Fair, PolicyName::Shortest]),
        calls in prop::collection::vec((1..20_i32, 1..20_u32, 0..5_u32), 1..30),
    ) {
        let settings = Config {
            max_num_batched_tokens, watermark, expected_growth, inter_token_target,
            ..config(policy, num_blocks, 4)
        };
        let mut engine = Engine::new(settings.clone());
        engine.tells_seconds = true;
        engine.token_seconds = 0.001;
        for (id, &(prompt_length, max_tokens, steps)) in calls.iter().enumerate() {
            engine.add_now(request(id as u64, prompt_length, max_tokens));
            for _ in 0..steps {
                let rows = engine.step();
                let decision = last_decision(&engine);
                for id in 0..=id as u64 {
                    let Some(explanation) = engine.explain(id).pop() else { continue };
                    let row = rows.iter().find(|row| row.request == id);
                    prop_assert_eq!(explanation.num_tokens, row.map_or(0, |row| row.num_tokens as u32));
                    prop_assert_eq!(explanation.reason.is_none(), row.is_some());
                    let holds = explanation.reason.is_none_or(|reason| is_borne_out(reason, &settings, &decision));
                    prop_assert!(holds, "{:?} after {:?}", explanation, decision);
                }
            }
        }
    }
}
