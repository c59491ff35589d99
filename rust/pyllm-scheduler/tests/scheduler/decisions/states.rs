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

fn pin(scheduler: &mut Scheduler, name: u64, prompt: Vec<i32>) {
    scheduler.pin(name, &request(0, prompt, 1)).expect("there is room for it");
}

fn with_pins(num_states: u32) -> Scheduler {
    let config = Config { num_states, max_pinned_blocks: 16, ..config(64, 4, 64) };
    Scheduler::new(config).expect("the limits are in range")
}

#[test]
fn a_pinned_prefix_keeps_the_checkpoint_at_its_end_which_its_first_request_leaves() {
    let mut scheduler = with_pins(4);
    pin(&mut scheduler, 5, tokens(0..9));
    let of = |id: i32| [tokens(0..9), tokens(50 + id..60 + id)].concat();
    assert_eq!(run_pinned(&mut scheduler, 1, of(1)), (0, vec![8, 16, 19]));
    for id in 2..6 {
        run_pinned(&mut scheduler, id, tokens(70 - 3 * id as i32..90 - 3 * id as i32));
    }
    assert_eq!(run_pinned(&mut scheduler, 7, of(20)).0, 8, "the others' states were evicted, not this one");
    assert_eq!(scheduler.stats().num_pinned_states, 1);
    assert!(scheduler.unpin(5));
    assert_eq!((scheduler.stats().num_pinned_states, scheduler.stats().num_free_states), (0, 4));
}

#[test]
fn a_pin_holds_the_longest_checkpoint_within_until_there_is_a_longer_one() {
    let mut scheduler = with_pins(8);
    run_pinned(&mut scheduler, 1, tokens(0..10));
    pin(&mut scheduler, 5, tokens(0..17));
    assert_eq!(scheduler.stats().num_pinned_states, 1, "that after 8 tokens");
    run_pinned(&mut scheduler, 2, tokens(0..20));
    assert_eq!((scheduler.stats().num_pinned_states, scheduler.stats().num_free_states), (1, 7));
    scheduler.reset_prefix_cache();
    assert_eq!((scheduler.stats().num_pinned_states, scheduler.stats().num_free_states), (0, 8));
}

#[test]
fn pins_leave_half_of_the_states_to_sequences() {
    let mut scheduler = with_pins(5);
    pin(&mut scheduler, 1, tokens(0..4));
    pin(&mut scheduler, 2, tokens(10..14));
    let refused = scheduler.pin(3, &request(0, tokens(20..24), 1)).expect_err("there are two");
    assert_eq!(refused, pyllm_scheduler::Error::PinnedStates { num_pins: 2, quota: 2 });
    scheduler.unpin(1);
    pin(&mut scheduler, 3, tokens(20..24));
}

/// Runs a request of one token alone; gives its cached tokens and the ends of its rows.
fn run_pinned(scheduler: &mut Scheduler, id: u64, prompt: Vec<i32>) -> (i32, Vec<i32>) {
    scheduler.add(request(id, prompt, 1)).expect("it is valid");
    let only = plan(scheduler);
    commit(scheduler, &only, 7);
    let ends = Sections::new(&only).ints("sequence_lengths").to_vec();
    (scheduler.take_deltas(CLIENT).expect("there are deltas").cached_tokens[0], ends)
}

#[test]
fn a_checkpoint_that_the_device_evicts_comes_back_from_the_host() {
    let config = Config { num_states: 2, num_host_states: 4, num_host_blocks: 8, ..config(64, 4, 64) };
    let mut scheduler = Scheduler::new(config).expect("the limits are in range");
    run(&mut scheduler, 1, tokens(0..23), 1);
    run(&mut scheduler, 2, tokens(40..63), 1);
    assert_eq!(scheduler.stats().num_cached_host_states, 1);
    scheduler.add(request(3, tokens(0..23), 1)).expect("it is valid");
    let first = plan(&mut scheduler);
    let sections = Sections::new(&first);
    let swaps = sections.state_swaps();
    assert_eq!(swaps.iter().map(|swap| swap.from_host).collect::<Vec<_>>(), [false, true]);
    assert_eq!(sections.ints("state_sources"), [swaps[1].block as i32]);
    commit(&mut scheduler, &first, 7);
    assert_eq!(scheduler.take_deltas(CLIENT).expect("there are deltas").cached_tokens, [20]);
}

#[test]
fn a_sequence_that_is_swapped_out_continues_from_its_own_state() {
    let config = Config { num_states: 6, num_host_states: 2, num_host_blocks: 8, ..config(4, 2, 64) };
    let mut scheduler = Scheduler::new(config).expect("the limits are in range");
    scheduler.add(request(1, tokens(0..7), 6)).expect("it is valid");
    scheduler.add(request(2, tokens(20..27), 6)).expect("it is valid");
    let mut swapped = Vec::new();
    while scheduler.stats().num_requests > 0 {
        let next = plan(&mut scheduler);
        let sections = Sections::new(&next);
        for swap in sections.state_swaps().iter().filter(|swap| swap.from_host) {
            swapped.push(sections.ints("tokens").to_vec());
            assert_eq!(sections.ints("state_sources"), [swap.block as i32]);
        }
        commit(&mut scheduler, &next, 7);
    }
    assert_eq!(swapped, [[7]], "it computes its last token alone");
    let stats = scheduler.stats();
    assert_eq!((stats.num_swapped, stats.num_free_states, stats.num_free_host_states), (1, 6, 2));
}
