//! The checkpoints of states: where a prompt ends, where others branch off, at intervals, and after the last block of an
//! output.

use super::*;

fn with_states(num_states: u32, state_checkpoint_blocks: u32) -> Scheduler {
    let config = Config { num_states, state_checkpoint_blocks, ..config(64, 4, 64) };
    Scheduler::new(config).expect("the limits are in range")
}

/// Runs a request alone to its end, whose tokens are all 7; gives its cached tokens and the ends of its first rows.
fn run(scheduler: &mut Scheduler, id: u64, prompt: impl Into<Vec<i32>>, max_tokens: u32) -> (i32, Vec<i32>) {
    scheduler.add(request(id, prompt, max_tokens)).expect("it is valid");
    let first = plan(scheduler);
    let ends = Sections::new(&first).ints("sequence_lengths").to_vec();
    commit(scheduler, &first, 7);
    let before = scheduler.stats();
    while scheduler.stats().num_requests > 0 {
        let next = plan(scheduler);
        commit(scheduler, &next, 7);
    }
    assert_eq!(before.num_states, scheduler.stats().num_free_states);
    (scheduler.take_deltas(CLIENT).expect("there are deltas").cached_tokens[0], ends)
}

fn tokens(range: std::ops::Range<i32>) -> Vec<i32> {
    range.collect()
}

#[test]
fn a_prompt_that_comes_again_continues_from_its_last_full_block() {
    let mut scheduler = with_states(8, 0);
    assert_eq!(run(&mut scheduler, 1, tokens(0..23), 1), (0, vec![20, 23]));
    assert_eq!(run(&mut scheduler, 2, tokens(0..23), 1), (20, vec![23]));
    assert_eq!(run(&mut scheduler, 3, tokens(0..24), 1), (20, vec![24]));
}

#[test]
fn others_continue_where_a_second_one_has_branched_off() {
    let mut scheduler = with_states(16, 0);
    let branch = |id: i32| [tokens(0..13), tokens(50 + id..60 + id)].concat();
    assert_eq!(run(&mut scheduler, 1, branch(1), 1), (0, vec![20, 23]));
    assert_eq!(run(&mut scheduler, 2, branch(12), 1), (0, vec![12, 20, 23]));
    assert_eq!(run(&mut scheduler, 3, branch(24), 1), (12, vec![20, 23]));
}

#[test]
fn a_long_prompt_has_checkpoints_at_intervals() {
    let mut scheduler = with_states(16, 2);
    assert_eq!(run(&mut scheduler, 1, tokens(0..23), 1), (0, vec![8, 16, 20, 23]));
    assert_eq!(run(&mut scheduler, 2, [tokens(0..18), tokens(60..70)].concat(), 1).0, 16);
}

#[test]
fn the_next_turn_continues_from_the_last_full_block_of_the_output() {
    let mut scheduler = with_states(16, 0);
    run(&mut scheduler, 1, tokens(0..6), 20);
    assert_eq!(scheduler.stats().num_cached_states, 2, "of the prompt, and the last one of the output");
    let answer = vec![7; 20];
    assert_eq!(run(&mut scheduler, 2, [tokens(0..6), answer, tokens(30..40)].concat(), 1).0, 24);
}

#[test]
fn a_decode_without_a_boundary_writes_in_place() {
    let mut scheduler = with_states(4, 0);
    scheduler.add(request(1, tokens(0..5), 8)).expect("it is valid");
    let mut states = Vec::new();
    while scheduler.stats().num_requests > 0 {
        let next = plan(&mut scheduler);
        let sections = Sections::new(&next);
        states.extend(
            sections.ints("state_sources").iter().zip(sections.ints("state_destinations")).map(|(a, b)| (*a, *b)),
        );
        commit(&mut scheduler, &next, 7);
    }
    let moved: Vec<_> = states.iter().map(|(source, destination)| source != destination).collect();
    // The checkpoints after 4 and 8 tokens stay as they are.
    assert_eq!(moved, [true, true, false, false, false, true, false, false, false]);
}

#[test]
fn prefixes_end_at_checkpoints_that_are_left() {
    let mut scheduler = with_states(2, 0);
    run(&mut scheduler, 1, tokens(0..23), 1);
    run(&mut scheduler, 2, tokens(40..63), 1);
    assert_eq!(run(&mut scheduler, 3, tokens(0..23), 1).0, 0, "its blocks are there, its state is not");
}
