//! Admission: the watermark of free blocks, and room for the expected growth of running sequences.

use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::TestRunner;

use pyllm_scheduler::{Config, PolicyName, Reason, Stats};

use crate::engine::{Engine, config, request};

#[test]
fn the_watermark_is_left_free_while_anything_runs() {
    let settings = Config { watermark: 0.25, ..config(PolicyName::Fcfs, 16, 8) };
    let mut engine = Engine::new(settings);
    engine.add(request(1, 40, 1)); // ten blocks
    engine.add(request(2, 12, 1)); // three, and four of the watermark
    engine.step();
    assert_eq!((engine.num_tokens(1), engine.num_tokens(2)), (1, 0));
    engine.step();
    assert_eq!(engine.num_tokens(2), 1);
}

#[test]
fn the_watermark_admits_what_just_leaves_it() {
    let settings = Config { watermark: 0.25, ..config(PolicyName::Fcfs, 17, 8) };
    let mut engine = Engine::new(settings);
    engine.add(request(1, 40, 2));
    engine.add(request(2, 12, 2));
    engine.step();
    assert_eq!(engine.num_tokens(2), 1);
}

#[test]
fn the_watermark_does_not_stop_what_runs_alone() {
    let settings = Config { watermark: 0.9, ..config(PolicyName::Fcfs, 16, 8) };
    let mut engine = Engine::new(settings);
    engine.add(request(1, 60, 4));
    engine.finish();
    assert_eq!(engine.num_tokens(1), 4);
}

#[test]
fn growth_that_is_known_preempts_nothing() {
    let settings = Config { expected_growth: 1.0, ..config(PolicyName::Fcfs, 8, 8) };
    let mut engine = Engine::new(settings);
    engine.add(request(1, 4, 20)); // six blocks at its end
    engine.add(request(2, 4, 20)); // as many, at the same time
    engine.step();
    assert_eq!(engine.reason(2), Some(Reason::Growth));
    engine.finish();
    assert_eq!(engine.scheduler.stats().num_preemptions, 0);
}

/// Runs a mix of 300 requests through few blocks.
fn run(expected_growth: f64, mix: &[(i32, u32)]) -> Stats {
    let settings = Config { expected_growth, enable_prefix_caching: false, ..config(PolicyName::Fcfs, 40, 16) };
    let mut engine = Engine::new(settings);
    for (id, &(prompt_length, max_tokens)) in mix.iter().enumerate() {
        engine.add(request(id as u64, prompt_length, max_tokens));
    }
    engine.finish();
    assert!(mix.iter().enumerate().all(|(id, &(_, tokens))| engine.num_tokens(id as u64) == tokens as usize));
    engine.scheduler.stats()
}

#[test]
fn room_for_growth_saves_preemptions() {
    let mut runner = TestRunner::deterministic();
    let mix = proptest::collection::vec((1..40_i32, 1..60_u32), 300);
    let mix = mix.new_tree(&mut runner).expect("a mix").current();
    let [without, half, with] = [0.0, 0.5, 1.0].map(|growth| run(growth, &mix));
    let [none, some, most] = [without, half, with].map(|stats| stats.num_preemptions);
    assert!(most < some && some < none, "{none} preemptions without room, {some} with half, {most} with all of it");
    let [computed, saving] = [without, with].map(|stats| stats.num_computed_tokens);
    assert!(saving < computed, "{saving} tokens computed with room, {computed} without");
}
