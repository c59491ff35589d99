//! Groups of layers with windows: blocks kept, freed, reserved and found again.

use pyllm_scheduler::{Config, Error, KvEvent, KvGroup, Request, Scheduler};

use super::{commit, config, plan, request, run_to_the_end};
use crate::sections::Sections;

const FULL: KvGroup = KvGroup { window: None };
const WINDOW: KvGroup = KvGroup { window: Some(6) };

/// A scheduler with blocks and chunks of four tokens: a window of 6 has at most four blocks.
fn windowed(num_blocks: u32, kv_groups: &[KvGroup]) -> Result<Scheduler, Error> {
    Scheduler::new(Config {
        kv_groups: kv_groups.to_vec(),
        long_prefill_token_threshold: 4,
        ..config(num_blocks, 4, 64)
    })
}

#[test]
fn a_prompt_takes_the_blocks_of_its_windows_as_it_lets_others_go() -> Result<(), Error> {
    let mut scheduler = windowed(64, &[FULL, WINDOW, WINDOW])?;
    scheduler.add(request(1, (0..40).collect::<Vec<_>>(), 8))?;
    let mut used = Vec::new();
    while scheduler.stats().num_requests > 0 {
        let plan = plan(&mut scheduler);
        used.push(scheduler.stats().num_used_blocks);
        assert_eq!(Sections::new(&plan).ints("slot_mapping").len(), 3 * plan.num_tokens() as usize);
        commit(&mut scheduler, &plan, 5);
        scheduler.audit().expect("the books add up");
    }
    // Ten blocks of the full group from the start, and four of each window; then three of each, and an eleventh and a
    // twelfth of the full group.
    assert_eq!(used, [[18; 10].as_slice(), &[17; 4], &[18; 3]].concat());
    Ok(())
}

#[test]
fn the_longest_sequence_is_the_longest_that_is_let_in() -> Result<(), Error> {
    let mut scheduler = windowed(18, &[FULL, WINDOW, WINDOW])?;
    assert_eq!(scheduler.longest_sequence(), Some(40));
    assert!(matches!(scheduler.add(request(1, [1; 41], 2)), Err(Error::NeverFits { needed: 19, num_blocks: 18, .. })));
    scheduler.add(request(1, [1; 40], 1))?;
    run_to_the_end(&mut scheduler, 5);
    assert_eq!(windowed(4, &[WINDOW])?.longest_sequence(), None);
    Ok(())
}

#[test]
fn what_is_admitted_never_waits_for_blocks_however_much_it_shares() -> Result<(), Error> {
    let mut scheduler = windowed(16, &[WINDOW, WINDOW])?;
    let prompt: Vec<i32> = (0..40).collect();
    for (id, arrival) in [(1, 1.0), (2, 2.0), (3, 3.0)] {
        scheduler.add(Request { arrival, ..request(id, prompt.clone(), 1) })?;
    }
    let mut num_steps = 0;
    while scheduler.stats().num_requests > 0 {
        let plan = plan(&mut scheduler);
        commit(&mut scheduler, &plan, 5);
        scheduler.audit().expect("the books add up");
        num_steps += 1;
    }
    let stats = scheduler.stats();
    assert_eq!(stats.num_preemptions, 0);
    assert!(stats.prefix_hits > 0 && num_steps < 30, "{stats:?} after {num_steps} steps");
    Ok(())
}

#[test]
fn a_prefix_is_found_where_its_last_window_is_known() -> Result<(), Error> {
    let mut scheduler = windowed(64, &[FULL, WINDOW])?;
    let prompt: Vec<i32> = (0..24).collect();
    scheduler.add(request(1, prompt.clone(), 1))?;
    run_to_the_end(&mut scheduler, 5);
    scheduler.add(request(2, [&prompt[..20], &[77; 9]].concat(), 1))?;
    let first = plan(&mut scheduler);
    let sections = Sections::new(&first);
    assert_eq!(sections.ints("positions")[0], 20);
    // Positions 15 to 20 are read: blocks 3 and 4 of the window are shared, and no block before them is in the table.
    let rows = sections.ints("table_slots").iter().zip(sections.ints("table_indices"));
    let of_window: Vec<_> = rows.filter(|(row, _)| **row >= 4).map(|(_, index)| *index).collect();
    assert_eq!(of_window, [3, 4, 5, 6]);
    commit(&mut scheduler, &first, 5);
    assert_eq!(run_to_the_end(&mut scheduler, 5).cached_tokens, [20]);
    Ok(())
}

#[test]
fn a_window_that_is_gone_leaves_an_earlier_start_or_none() -> Result<(), Error> {
    // Each prompt of 17 tokens has five blocks of the full group, and frees three or four of the window.
    let mut scheduler = windowed(11, &[FULL, WINDOW])?;
    let prompt: Vec<i32> = (0..17).collect();
    scheduler.add(request(1, prompt.clone(), 1))?;
    run_to_the_end(&mut scheduler, 5);
    scheduler.add(request(2, [50; 13], 1))?; // takes the blocks that were freed first
    run_to_the_end(&mut scheduler, 5);
    scheduler.add(request(3, prompt, 1))?;
    let hits = scheduler.stats().prefix_hits;
    run_to_the_end(&mut scheduler, 5);
    assert!(scheduler.stats().prefix_hits - hits <= 12);
    scheduler.audit().expect("the books add up");
    Ok(())
}

#[test]
fn events_name_the_group() -> Result<(), Error> {
    let groups = vec![FULL, WINDOW];
    let mut scheduler =
        Scheduler::new(Config { kv_groups: groups, enable_kv_cache_events: true, ..config(16, 1, 64) })?;
    scheduler.add(request(1, [1, 2, 3, 4, 5], 1))?;
    run_to_the_end(&mut scheduler, 5);
    let groups = scheduler.events(0, 9).events.into_iter().map(|event| match event {
        KvEvent::Stored { group, .. } => group,
        other => panic!("{other:?}"),
    });
    assert_eq!(groups.collect::<Vec<_>>(), [0, 1]);
    Ok(())
}
