//! A pipeline of several stages: as many steps in flight, with about equal work, and no stream waits for long.

use std::collections::{HashMap, VecDeque};

use proptest::prelude::*;
use pyllm_scheduler::{Config, Plan, PolicyName, Reason, RequestId};

use crate::cases::cases;
use crate::engine::{CLIENT, Engine, Row, config, request};

/// An engine of `stages` stages that keeps `depth` steps in flight.
struct Pipeline {
    engine: Engine,
    depth: usize,
    in_flight: VecDeque<(Plan, Vec<Row>)>,
}

impl Pipeline {
    fn new(stages: u32, depth: usize, settings: Config) -> Self {
        let engine = Engine::new(Config { pipeline_parallel_size: stages, ..settings });
        Self { engine, depth, in_flight: VecDeque::new() }
    }

    fn plan(&mut self) -> Option<Vec<Row>> {
        let (plan, rows) = self.engine.plan()?;
        self.in_flight.push_back((plan, rows.clone()));
        Some(rows)
    }

    fn commit(&mut self) {
        if let Some((plan, rows)) = self.in_flight.pop_front() {
            self.engine.commit(&plan, &rows);
        }
    }

    /// Plans while there is room, and commits the oldest step. Gives the rows of each planned step.
    fn turn(&mut self) -> Vec<Vec<Row>> {
        let mut planned = Vec::new();
        while self.in_flight.len() < self.depth {
            let Some(rows) = self.plan() else { break };
            planned.push(rows);
        }
        self.commit();
        planned
    }

    fn turns(&mut self, count: usize) -> Vec<Vec<Row>> {
        (0..count).flat_map(|_| self.turn()).collect()
    }
}

fn settings(max_num_batched_tokens: u32) -> Config {
    Config { max_num_batched_tokens, max_model_len: 1024, ..config(PolicyName::Fcfs, 500, 64) }
}

fn num_tokens(step: &[Row]) -> i32 {
    step.iter().map(|row| row.num_tokens).sum()
}

#[test]
fn streams_that_come_together_are_spread_over_the_steps_in_flight() {
    let mut pipeline = Pipeline::new(4, 4, settings(256));
    for id in 0..32 {
        pipeline.engine.add(request(id, 8, 100));
    }
    let first = pipeline.turn();
    assert_eq!(first.iter().map(|step| num_tokens(step)).collect::<Vec<_>>(), [64; 4]);
    let steps = pipeline.turns(40);
    assert!(steps.iter().all(|step| step.len() == 8 && num_tokens(step) == 8), "{steps:?}");
    assert_eq!(pipeline.in_flight.len(), 3); // one was committed just now
}

#[test]
fn the_chunks_of_one_prompt_follow_one_another_and_its_tokens_do_not() {
    let mut pipeline = Pipeline::new(4, 4, settings(256));
    pipeline.engine.add(request(1, 400, 3));
    let chunks: Vec<_> = pipeline.turn().iter().map(|step| (step[0].start, step[0].num_tokens)).collect();
    assert_eq!(chunks, [(0, 100), (100, 100), (200, 100), (300, 100)]);
    assert!(pipeline.turns(3).is_empty());
    assert_eq!(pipeline.turns(2).len(), 2);
    assert!(pipeline.engine.is_finished(1));
}

#[test]
fn a_short_prompt_is_not_cut_into_crumbs() {
    let mut pipeline = Pipeline::new(4, 4, settings(256));
    pipeline.engine.add(request(1, 40, 1));
    let chunks: Vec<_> = pipeline.turn().iter().map(|step| num_tokens(step)).collect();
    assert_eq!(chunks, [32, 8]); // an eighth of the budget
}

#[test]
fn what_has_no_share_in_a_step_knows_it() {
    let mut pipeline = Pipeline::new(2, 2, settings(64));
    for id in 0..4 {
        pipeline.engine.add(request(id, 1, 50));
    }
    pipeline.turns(3);
    let (_, rows) = pipeline.engine.plan().expect("two streams are due");
    let planned: Vec<_> = rows.iter().map(|row| row.request).collect();
    assert_eq!(planned.len(), 2);
    assert!((0..4).filter(|id| !planned.contains(id)).all(|id| pipeline.engine.reason(id) == Some(Reason::InFlight)));
    pipeline.engine.add(request(5, 200, 1));
    pipeline.engine.add(request(6, 200, 1));
    let (_, rows) = pipeline.engine.plan().expect("a prompt waits");
    assert_eq!(num_tokens(&rows), 64); // earlier plans have ended no prompt
    let mut wide = Pipeline::new(2, 2, settings(256));
    wide.engine.add(request(5, 200, 1));
    wide.engine.add(request(6, 200, 1));
    let (_, rows) = wide.engine.plan().expect("two prompts wait");
    assert_eq!((num_tokens(&rows), wide.engine.reason(6)), (200, Some(Reason::Pipeline)));
}

#[test]
fn a_step_of_a_request_that_is_by_itself_leaves_the_others_whole() {
    let mut pipeline = Pipeline::new(4, 1, settings(256));
    for id in 0..16 {
        pipeline.engine.add(request(id, 8, 100));
    }
    pipeline.turns(8);
    pipeline.engine.scheduler.isolate(CLIENT, RequestId(3)).expect("it is live");
    let mut plan = || pipeline.engine.plan().expect("all are free").1.len();
    assert_eq!([plan(), plan()], [1, 15]);
}

proptest! {
    #![proptest_config(cases(32))]

    /// With any arrivals and ends, and any number of steps in flight: no step has more decodes than its share, and a
    /// stream that could have a row has one within as many steps as there are stages.
    #[test]
    fn every_step_has_its_share_and_every_stream_its_turn(
        stages in 2..6_u32,
        depth in 1..8_usize,
        policy in prop::sample::select(vec![PolicyName::Fcfs, PolicyName::Fair, PolicyName::Shortest]),
        calls in prop::collection::vec((1..20_i32, 2..30_u32, 0..6_usize), 1..30),
    ) {
        let mut pipeline = Pipeline::new(stages, depth, Config { policy, ..settings(128) });
        let mut waited = HashMap::<u64, u32>::new();
        for (id, &(prompt_length, max_tokens, turns)) in calls.iter().enumerate() {
            pipeline.engine.add_now(request(id as u64, prompt_length, max_tokens));
            for _ in 0..turns {
                // Streams, which may have decodes now.
                let is_stream = |pipeline: &Pipeline, id| pipeline.engine.num_tokens(id) > 0;
                let streams: Vec<_> = (0..=id as u64).filter(|&id| is_stream(&pipeline, id)).collect();
                let live = streams.iter().filter(|&&id| !pipeline.engine.is_finished(id));
                let in_flight: Vec<_> = pipeline.in_flight.iter().flat_map(|(_, rows)| rows).collect();
                let is_free = |id: &u64| !in_flight.iter().any(|row| row.request == *id);
                let mut free: Vec<_> = live.copied().filter(is_free).collect();
                let mut planned = Vec::new();
                while pipeline.in_flight.len() < depth {
                    let Some(step) = pipeline.plan() else { break };
                    let num_running = pipeline.engine.scheduler.stats().num_running as u32;
                    let num_decodes = step.iter().filter(|row| streams.contains(&row.request)).count() as u32;
                    prop_assert!(num_decodes <= num_running.div_ceil(stages), "{step:?} of {num_running}");
                    planned.push(step);
                }
                for step in planned {
                    free.retain(|id| !step.iter().any(|row| row.request == *id));
                    for row in &step {
                        waited.insert(row.request, 0);
                    }
                    for &id in &free {
                        let steps = waited.entry(id).or_default();
                        *steps += 1;
                        prop_assert!(*steps <= 2 * stages, "request {id} waits for {steps} steps");
                    }
                }
                pipeline.commit();
            }
        }
        for _ in 0..10_000 {
            if pipeline.engine.scheduler.stats().num_requests == 0 {
                break;
            }
            pipeline.turn();
        }
        prop_assert_eq!(pipeline.engine.scheduler.stats().num_requests, 0);
    }
}

/// Seconds of a stage, per step and per token in it.
const STEP_SECONDS: f64 = 1.0;
const TOKEN_SECONDS: f64 = 0.01;

/// The share of the stages' time in which none computes, with streams of several lengths: each that ends is followed by
/// another.
fn bubbles(stages: u32, num_streams: u64) -> f64 {
    let mut pipeline = Pipeline::new(stages, stages as usize, settings(256));
    let mut is_free_at = vec![0.0_f64; stages as usize];
    let (mut ends, mut busy, mut now, mut next_id) = (VecDeque::new(), 0.0, 0.0, 0);
    let (mut begun_at, num_steps) = (0.0, 1200);
    for number in 0..num_steps {
        while (pipeline.engine.scheduler.stats().num_requests) < num_streams {
            let length = 4 + (next_id * 7 % 13) as i32;
            pipeline.engine.add_now(request(next_id, length, 20 + (next_id * 29 % 61) as u32));
            next_id += 1;
        }
        while pipeline.in_flight.len() < stages as usize {
            let Some(rows) = pipeline.plan() else { break };
            let seconds = STEP_SECONDS + TOKEN_SECONDS * f64::from(num_tokens(&rows));
            let mut ready = now;
            for free in &mut is_free_at {
                ready = free.max(ready) + seconds;
                *free = ready;
                busy += if number > 200 { seconds } else { 0.0 };
            }
            ends.push_back(ready);
        }
        now = ends.pop_front().expect("a step is in flight");
        pipeline.commit();
        begun_at = if number == 200 { now } else { begun_at };
    }
    1.0 - busy / (f64::from(stages) * (now - begun_at))
}

#[test]
fn four_stages_of_32_streams_wait_for_less_than_a_tenth_of_the_time() {
    let (even, few) = (bubbles(4, 32), bubbles(4, 2));
    assert!((0.0..0.1).contains(&even), "{even}");
    assert!(few > 0.45, "two streams cannot keep four stages busy: {few}");
}
