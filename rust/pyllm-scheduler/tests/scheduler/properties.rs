//! Any sequence of calls, on small pools and several steps deep: every row reads its own prefix, every request ends with
//! the tokens that it alone decides, the books add up, and nothing is left.

use std::collections::BTreeMap;

use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;

use crate::calls::{calls, config};
use crate::world::World;

const CORNERS: [&str; 12] = [
    "aborts with tokens in flight",
    "block copies",
    "evictions",
    "forks without a slot",
    "hits within a step",
    "merged deltas",
    "preemptions",
    "prefills beside decodes",
    "prefix hits",
    "refused calls",
    "slot copies",
    "tokens in flight",
];

proptest! {
    // A failure prints its smallest case; it becomes a test by name, not a file.
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_sequence_of_calls_gives_every_request_its_own_tokens(
        config in config(), depth in 1..=3_usize, calls in calls(),
    ) {
        let mut world = World::new(config, depth);
        for call in &calls {
            world.call(call);
        }
        world.finish();
    }
}

/// The property above proves nothing about what its cases do not reach.
#[test]
fn the_cases_reach_every_corner() {
    let mut runner = TestRunner::deterministic();
    let mut total = BTreeMap::new();
    for _ in 0..100 {
        let case = (config(), 1..=3_usize, calls()).new_tree(&mut runner).expect("a case");
        let (config, depth, calls) = case.current();
        let mut world = World::new(config, depth);
        for call in &calls {
            world.call(call);
        }
        world.finish();
        for (what, times) in world.seen {
            *total.entry(what).or_default() += times;
        }
    }
    for corner in CORNERS {
        assert!(total.get(corner).is_some_and(|&times: &u64| times > 0), "{corner} is not among {total:?}");
    }
}
