//! Any sequence of calls, on small pools and several steps deep: every row reads its own prefix, every request ends
//! with the tokens that it alone determines, the counts are consistent, no request starves, and nothing is left behind.

use std::collections::BTreeMap;

use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;

use crate::calls::{Case, case, searching_case, state_case};
use crate::world;

const CORNERS: [&str; 100] = [
    "adapters evicted",
    "adapters kept for running requests alone",
    "adapters loaded",
    "aborts with tokens in flight",
    "accepted drafts",
    "block copies",
    "chunks within a window",
    "damaged recordings that are refused",
    "deadlines",
    "deadlines of what is held",
    "deadlines of what is swapped",
    "deadlines of what loads",
    "deadlines of what runs",
    "deadlines of what waits",
    "dropped saves",
    "embeddings",
    "embeddings of a whole context",
    "ends under custom",
    "ends under fair",
    "ends under fcfs",
    "ends under priority",
    "ends under shortest",
    "evictions",
    "failed loads",
    "forks that are not ready",
    "forks without a slot",
    "histories with output",
    "deadlines without a step",
    "hits foreseen",
    "hits foreseen within a window",
    "hits within a step",
    "host blocks that outlive the device",
    "isolations",
    "loads that requests wait for",
    "loads within a step",
    "loads of outputs",
    "losses while something is pinned",
    "losses while something is saved",
    "losses while something loads",
    "losses while the host is in use",
    "merged deltas",
    "outputs that begin",
    "other policies while requests wait",
    "other weights while requests run",
    "pauses of what runs",
    "pinned blocks",
    "pins",
    "pins beyond the quota",
    "preemptions",
    "preemptions by priority",
    "preemptions by size",
    "preemptions to be computed anew",
    "preemptions to the host",
    "prefills beside decodes",
    "prefix hits",
    "prefix hits on the host",
    "prompts told of in pieces",
    "refused calls",
    "releases by one of several holders",
    "rejected drafts",
    "replays",
    "rows on failed loads",
    "rows within a window",
    "rows that are not ready",
    "rows that are stale",
    "rows that force",
    "rows of a pipeline",
    "rows with drafts that are not ready",
    "rows with drafts that force",
    "saves",
    "saves for longer than before",
    "saves that end",
    "slot copies",
    "steps beside what is isolated",
    "steps of what is isolated",
    "steps that only swap",
    "swaps in",
    "swaps in of what has outlived the device",
    "swaps out",
    "tokens in flight",
    "tokens of prompts told of",
    // Reasons, by name.
    "adapters",
    "blocks",
    "budget",
    "forking",
    "grammar",
    "growth",
    "held",
    "in_flight",
    "inter_token_target",
    "loading",
    "pipeline",
    "policy",
    "preempting",
    "isolation",
    "paused",
    "samples",
    "siblings",
    "slots",
    "watermark",
];

const SEARCHING_CORNERS: [&str; 16] = [
    "adapters",
    "adapters evicted",
    "answers of several beams",
    "aborts with tokens in flight",
    "block copies",
    "forks without a slot",
    "losses of what pauses",
    "paused beams",
    "preemptions of what waits for siblings",
    "preemptions to be computed anew",
    "preemptions to the host",
    "replays",
    "siblings",
    "slot copies",
    "steps beside what is isolated",
    "steps of what is isolated",
];

const STATE_CORNERS: [&str; 34] = [
    "accepted drafts",
    "aborts with tokens in flight",
    "block copies",
    "checkpoints",
    "chunks within a window",
    "evictions",
    "forks without a slot",
    "hits foreseen",
    "hits within a step",
    "loads of states",
    "other weights while requests run",
    "paused beams",
    "pinned states",
    "pins beyond the states",
    "preemptions",
    "preemptions to be computed anew",
    "preemptions to the host",
    "prefix hits",
    "prefix hits on the host",
    "rejected drafts",
    "replays",
    "rows of a pipeline",
    "rows that are not ready",
    "rows that are stale",
    "rows that force",
    "rows with drafts that are not ready",
    "rows within a window",
    "saves of states",
    "several rows of a sequence",
    "state swaps in",
    "state swaps in of what has outlived the device",
    "state swaps out",
    "states",
    "states swapped out without a name",
];

proptest! {
    // A failure prints its smallest case, which becomes a named test, not a file.
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_sequence_of_calls_gives_every_request_its_own_tokens(case in case()) {
        world::run(&case);
    }

    #[test]
    fn every_row_of_a_model_with_states_reads_the_state_of_all_tokens_before_it(case in state_case()) {
        world::run(&case);
    }

    #[test]
    fn beam_searches_end_with_their_answers_where_their_beams_have_no_room_together(case in searching_case()) {
        world::run(&case);
    }
}

/// The property above proves nothing about states that its cases do not reach.
#[test]
fn the_cases_reach_every_corner() {
    check_corners(case(), 800, &CORNERS);
}

#[test]
fn the_cases_with_states_reach_theirs() {
    check_corners(state_case(), 400, &STATE_CORNERS);
}

#[test]
fn the_cases_of_beam_searches_reach_theirs() {
    check_corners(searching_case(), 100, &SEARCHING_CORNERS);
}

fn check_corners(cases: impl Strategy<Value = Case>, number: usize, corners: &[&str]) {
    let mut runner = TestRunner::deterministic();
    let mut total = BTreeMap::new();
    for _ in 0..number {
        let case = cases.new_tree(&mut runner).expect("a case").current();
        for (what, times) in world::run(&case) {
            *total.entry(what).or_default() += times;
        }
    }
    for corner in corners {
        assert!(total.get(corner).is_some_and(|&times: &u64| times > 0), "{corner} is not among {total:?}");
    }
}
