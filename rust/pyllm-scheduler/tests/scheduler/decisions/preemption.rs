//! Preemption: its victims and its beneficiaries.

use pyllm_scheduler::{Config, Error, PolicyName, Request, RequestId, Scheduler};

use super::{CLIENT, commit, config, plan, request, run_to_the_end};
use crate::sections::Sections;

#[test]
fn a_token_that_fills_a_block_of_a_swapped_sequence_is_taken() -> Result<(), Error> {
    let mut scheduler = Scheduler::new(Config { num_host_blocks: 4, ..config(8, 2, 64) })?;
    scheduler.add(request(1, [1, 2, 3], 3))?;
    let first = plan(&mut scheduler);
    let second = plan(&mut scheduler); // computes the fourth token, whose id is not known yet
    scheduler.hold(CLIENT, RequestId(1), "test")?;
    let stats = scheduler.stats();
    assert_eq!((stats.num_swapped, stats.num_swapped_out), (1, 0)); // it is held, and does not wait
    commit(&mut scheduler, &first, 7);
    commit(&mut scheduler, &second, 8);
    scheduler.release(CLIENT, RequestId(1), "test")?;
    assert_eq!(scheduler.stats().num_swapped_out, 1);
    let third = plan(&mut scheduler);
    assert_eq!(Sections::new(&third).ints("tokens"), [8]);
    assert_eq!(scheduler.stats().num_swapped_out, 0);
    commit(&mut scheduler, &third, 9);
    assert_eq!(run_to_the_end(&mut scheduler, 0).tokens, [7, 8, 9]);
    Ok(())
}

#[test]
fn slots_without_a_token_and_runs_of_free_blocks_are_counted() -> Result<(), Error> {
    let mut scheduler = Scheduler::new(Config { num_host_blocks: 4, ..config(8, 2, 64) })?;
    scheduler.add(request(1, [1, 2, 3, 4, 5], 3))?;
    let first = plan(&mut scheduler);
    let found = scheduler.fragmentation();
    assert_eq!((found.device.num_empty_slots, found.device.longest_free_run), (3, 6));
    assert_eq!((found.host.num_empty_slots, found.host.num_free_runs, found.host.longest_free_run), (0, 1, 4));
    commit(&mut scheduler, &first, 7);
    scheduler.hold(CLIENT, RequestId(1), "test")?;
    let found = scheduler.fragmentation();
    assert_eq!((found.device.num_empty_slots, found.host.num_empty_slots), (0, 3));
    Ok(())
}

#[test]
fn the_blocks_of_dropped_drafts_are_not_brought_back() -> Result<(), Error> {
    let limits = Config { num_host_blocks: 4, enable_prefix_caching: false, ..config(4, 2, 64) };
    let mut scheduler = Scheduler::new(limits)?;
    scheduler.add(request(1, [1, 2, 3], 12))?;
    let first = plan(&mut scheduler);
    commit(&mut scheduler, &first, 7);
    scheduler.propose(CLIENT, RequestId(1), 0, &[1; 9])?;
    let drafts = plan(&mut scheduler);
    scheduler.hold(CLIENT, RequestId(1), "test")?;
    commit(&mut scheduler, &drafts, 9); // four blocks are on the host, and tokens for two
    scheduler.add(request(2, [2; 7], 2))?;
    let other = plan(&mut scheduler);
    scheduler.release(CLIENT, RequestId(1), "test")?;
    let both = plan(&mut scheduler);
    let ins = Sections::new(&both).swaps().iter().filter(|swap| swap.from_host).count();
    assert_eq!((both.num_rows(), ins), (2, 1));
    commit(&mut scheduler, &other, 5);
    Ok(())
}

#[test]
fn what_took_the_place_of_another_has_a_row_though_the_first_has_no_room() -> Result<(), Error> {
    let limits = Config { policy: PolicyName::Priority, max_pinned_blocks: 2, ..config(5, 3, 64) };
    let mut scheduler = Scheduler::new(limits)?;
    let pinned = Request { priority: 2, ..request(2, [2; 8], 2) };
    scheduler.pin(1, &pinned)?;
    scheduler.add(request(1, [1; 8], 3))?;
    scheduler.add(pinned)?;
    scheduler.add(Request { priority: 3, ..request(3, [3; 3], 2) })?;
    let first = plan(&mut scheduler);
    commit(&mut scheduler, &first, 9);
    // It gets the third's slot and block, which the first needs for itself, and the second has none to give.
    scheduler.add(Request { priority: 1, ..request(4, [4; 3], 2) })?;
    let second = plan(&mut scheduler);
    let sections = Sections::new(&second);
    assert_eq!((sections.ints("tokens"), sections.slot_inits().len()), (&[4; 3][..], 1));
    commit(&mut scheduler, &second, 9);
    run_to_the_end(&mut scheduler, 9);
    Ok(())
}
