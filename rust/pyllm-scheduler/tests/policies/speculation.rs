//! Prompt lookup for a stream that runs alone: any engine of any depth gives the same tokens, in fewer steps where the
//! text repeats itself. Beside others there are no drafts.

use std::collections::{BTreeMap, HashMap, VecDeque};

use proptest::prelude::*;

use pyllm_scheduler::{Config, Plan, PolicyName, Request, Scheduler, Stats};

use crate::cases::cases;
use crate::engine::{CLIENT, bytes, config, ints, request};

/// The token at a position of a text that repeats itself after `period` tokens. If `period` is above 4, some tokens are
/// unique.
fn token(period: i32, position: i32) -> i32 {
    if period > 4 && position % 11 == 10 { 200 + position } else { position % period + 10 * period }
}

const NOBODYS: i32 = 999;

struct Engine {
    scheduler: Scheduler,
    depth: usize,
    stateful: bool, // whether requests are stateful
    stop_token_ids: Vec<i32>,
    /// Seconds per step, and per prefill token in it.
    step_seconds: f64,
    token_seconds: f64,
    in_flight: VecDeque<Plan>,
    periods: HashMap<i32, i32>, // by slot
    outputs: BTreeMap<u64, Vec<i32>>,
    /// Tokens of each row, by step.
    row_lengths: Vec<Vec<i32>>,
}

impl Engine {
    fn new(num_speculative_tokens: u32, depth: usize) -> Self {
        let settings = Config { num_speculative_tokens, ..config(PolicyName::Fcfs, 64, 4) };
        Self {
            scheduler: Scheduler::new(settings).expect("the settings are in range"),
            depth,
            stateful: false,
            stop_token_ids: Vec::new(),
            step_seconds: 0.0,
            token_seconds: 0.0,
            in_flight: VecDeque::new(),
            periods: HashMap::new(),
            outputs: BTreeMap::new(),
            row_lengths: Vec::new(),
        }
    }

    fn add(&mut self, period: i32, prompt_length: i32, max_tokens: u32) {
        let id = self.outputs.len() as u64;
        self.outputs.insert(id, Vec::new());
        let prompt = (0..prompt_length).map(|position| token(period, position)).collect();
        let sampling = i64::from(period).to_le_bytes().to_vec();
        let (stateful, stop_token_ids) = (self.stateful, self.stop_token_ids.clone());
        self.scheduler
            .add(Request { prompt, sampling, stateful, stop_token_ids, ..request(id, 0, max_tokens) })
            .expect("the request fits");
    }

    /// Plans as many steps as may be in flight, and commits the oldest. False: no request is left.
    fn step(&mut self) -> bool {
        while self.in_flight.len() < self.depth {
            let Some(plan) = self.scheduler.schedule(0.0).expect("time stands still") else { break };
            let starts = ints(&plan, "query_starts");
            self.row_lengths.push(starts.windows(2).map(|range| range[1] - range[0]).collect());
            self.in_flight.push_back(plan);
        }
        let Some(plan) = self.in_flight.pop_front() else { return false };
        let periods = bytes(&plan, "sampling").chunks_exact(8).map(|period| i32::from(period[0]));
        self.periods.extend(ints(&plan, "slot_inits").into_iter().zip(periods));
        let (positions, logits_rows) = (ints(&plan, "positions"), ints(&plan, "logits_rows"));
        let (slots, starts) = (ints(&plan, "slots"), ints(&plan, "sampled_starts"));
        let inputs = ints(&plan, "tokens");
        let mut tokens = Vec::new();
        for (slot, range) in slots.iter().zip(starts.windows(2)) {
            let mut is_right = true;
            for &row in &logits_rows[range[0] as usize..range[1] as usize] {
                let (input, position) = (inputs[row as usize], positions[row as usize]);
                is_right &= input == -1 || input == token(self.periods[slot], position);
                tokens.push(if is_right { token(self.periods[slot], position + 1) } else { NOBODYS });
            }
        }
        let num_prefill = f64::from(plan.num_tokens() - tokens.len() as u32);
        let seconds = self.step_seconds + self.token_seconds * num_prefill;
        self.scheduler.commit(plan.step, &starts, &tokens, seconds, None, None).expect("the step is due");
        self.scheduler.audit().expect("the books add up");
        if let Some(deltas) = self.scheduler.take_deltas(CLIENT) {
            for row in 0..deltas.len() {
                let output = self.outputs.get_mut(&deltas.requests[row]).expect("it was added");
                output.extend_from_slice(deltas.row_tokens(row));
            }
        }
        true
    }

    fn finish(&mut self) -> Stats {
        while self.step() {}
        self.scheduler.stats()
    }
}

#[test]
fn a_stream_alone_takes_fewer_steps_where_its_text_repeats_itself() {
    for depth in 1..=3 {
        let mut engine = Engine::new(5, depth);
        engine.add(4, 12, 60);
        let stats = engine.finish();
        assert_eq!(engine.outputs[&0], (12..72).map(|position| token(4, position)).collect::<Vec<_>>());
        // The first token comes with the prompt; then each step gives up to six.
        assert!(stats.num_steps <= 1 + depth as u64 + 10, "{} steps at depth {depth}", stats.num_steps);
        assert!(stats.num_accepted_drafts >= 40 && stats.num_accepted_drafts == stats.num_drafts, "{stats:?}");
    }
}

#[test]
fn what_was_guessed_wrong_is_computed_again() {
    let mut engine = Engine::new(5, 2);
    engine.add(6, 40, 60);
    let stats = engine.finish();
    assert_eq!(engine.outputs[&0], (40..100).map(|position| token(6, position)).collect::<Vec<_>>());
    assert!(0 < stats.num_accepted_drafts && stats.num_accepted_drafts < stats.num_drafts, "{stats:?}");
}

#[test]
fn what_waits_for_its_drafts_keeps_its_target_when_another_comes() {
    let settings = Config {
        num_speculative_tokens: 5,
        inter_token_target: 0.010,
        max_num_batched_tokens: 64,
        ..config(PolicyName::Fcfs, 64, 4)
    };
    let mut engine = Engine { scheduler: Scheduler::new(settings).expect("in range"), ..Engine::new(0, 2) };
    engine.step_seconds = 0.005;
    engine.token_seconds = 0.001; // per prompt token
    engine.add(4, 40, 100);
    engine.add(6, 30, 2);
    for _ in 0..12 {
        engine.step();
    }
    engine.row_lengths.clear();
    engine.add(7, 150, 1);
    for _ in 0..6 {
        engine.step();
    }
    let longest = engine.row_lengths.iter().flatten().max();
    assert!(longest <= Some(&8), "{:?}", engine.row_lengths);
}

#[test]
fn nothing_is_drafted_after_a_stop_token() {
    let mut engine = Engine::new(5, 1);
    engine.stop_token_ids = vec![token(4, 13)];
    engine.add(4, 12, 60);
    let stats = engine.finish();
    assert_eq!(engine.outputs[&0], [token(4, 12), token(4, 13)]);
    assert_eq!((stats.num_drafts, stats.num_accepted_drafts), (1, 1));
    let rows: Vec<_> = stats.accepted_drafts.named().take(2).collect();
    assert_eq!(rows, [("accepted_drafts_le_0", 0), ("accepted_drafts_le_1", 1)]);
}

#[test]
fn nothing_is_drafted_beside_others() {
    let mut engine = Engine::new(5, 2);
    engine.add(4, 12, 30);
    engine.add(5, 15, 30);
    engine.finish();
    let beside: Vec<_> = engine.row_lengths.iter().filter(|rows| rows.len() == 2).collect();
    assert!(beside.len() >= 29, "{:?}", engine.row_lengths);
    assert!(beside[1..].iter().all(|rows| rows[..] == [1, 1]), "{:?}", engine.row_lengths);
    assert!(engine.outputs.values().all(|output| output.len() == 30));
}

#[test]
fn nothing_is_drafted_for_what_is_stateful_nor_where_it_is_not_asked_for() {
    for (num_speculative_tokens, stateful) in [(0, false), (5, true)] {
        let mut engine = Engine::new(num_speculative_tokens, 2);
        engine.stateful = stateful;
        engine.add(4, 12, 30);
        assert_eq!(engine.finish().num_drafts, 0);
        assert_eq!(engine.outputs[&0].len(), 30);
    }
}

proptest! {
    #![proptest_config(cases(128))]

    #[test]
    fn every_stream_has_its_own_tokens(
        streams in prop::collection::vec((1..9_i32, 1..40_i32, 1..60_u32, 0..30_usize), 1..5),
        num_speculative_tokens in 0..=16_u32,
        depth in 1..=3_usize,
    ) {
        let mut engine = Engine::new(num_speculative_tokens, depth);
        for &(period, prompt_length, max_tokens, num_steps) in &streams {
            engine.add(period, prompt_length, max_tokens);
            for _ in 0..num_steps {
                engine.step();
            }
        }
        let stats = engine.finish();
        prop_assert!(stats.num_accepted_drafts <= stats.num_drafts);
        for (id, &(period, prompt_length, max_tokens, _)) in (0..).zip(&streams) {
            let expected: Vec<_> = (prompt_length..prompt_length + max_tokens as i32).map(|at| token(period, at)).collect();
            prop_assert_eq!(&engine.outputs[&id], &expected);
        }
    }
}
