use pyllm_scheduler::{HostBlock, HostBlockId, replay};

use super::*;

/// Settings for two prompts of four blocks, on a device with room for one of them.
fn with_host() -> Config {
    Config { num_host_blocks: 8, ..config(5, 1, 32) }
}

fn prompt(text: i32) -> Vec<i32> {
    (0..17).map(|position| 20 * text + position).collect()
}

/// Computes both prompts in turns. Gives the cached tokens each time, and updates the host's names.
fn ask_twice(scheduler: &mut Scheduler, first_id: u64, host: &mut [Option<HostBlock>]) -> Vec<i32> {
    let mut cached = Vec::new();
    for id in first_id..first_id + 4 {
        scheduler.add(request(id, prompt(id as i32 % 2), 1)).expect("it fits");
        while scheduler.stats().num_requests > 0 {
            let plan = plan(scheduler);
            for swap in Sections::new(&plan).swaps().iter().filter(|swap| !swap.from_host) {
                let block = HostBlockId(swap.host as u32);
                host[swap.host] = swap.name.map(|(hash, group, index)| HostBlock { block, group, index, hash });
            }
            commit(scheduler, &plan, 3);
        }
        cached.extend(&scheduler.take_deltas(CLIENT).expect("there is news").cached_tokens);
    }
    cached
}

#[test]
fn what_was_on_the_host_is_found_after_the_loss_of_the_device_and_by_the_next_scheduler() -> Result<(), Error> {
    let mut host = vec![None; 8];
    let mut first = Scheduler::new(with_host())?;
    assert_eq!(ask_twice(&mut first, 0, &mut host)[2..], [16, 16]);
    let kept: Vec<HostBlock> = host.iter().copied().flatten().collect();
    first.lose_device();
    assert_eq!(first.stats().num_cached_host_blocks, 0);
    first.restore_host_blocks(kept.clone())?;
    let cached = ask_twice(&mut first, 4, &mut host.clone());

    let mut next = Scheduler::new(with_host())?;
    next.start_recording()?;
    next.restore_host_blocks(kept.clone())?;
    assert_eq!(ask_twice(&mut next, 4, &mut host), cached);
    assert_eq!(cached, [16, 16, 16, 16]);
    let stats = replay(&next.take_recording())?.stats;
    assert_eq!((stats.host_prefix_hits, stats.num_requests), (next.stats().host_prefix_hits, 0));
    assert!(stats.host_prefix_hits > 0);
    Ok(())
}

#[test]
fn what_cannot_be_on_the_host_is_refused_and_changes_nothing() -> Result<(), Error> {
    let block = |number, group| HostBlock { block: HostBlockId(number), group, index: 0, hash: [number as u8; 32] };
    let mut scheduler = Scheduler::new(with_host())?;
    scheduler.restore_host_blocks(vec![block(3, 0)])?;
    let before = scheduler.stats();
    for (wrong, problem) in [
        (vec![block(8, 0)], "host block 8 is none of 8;"),
        (vec![block(0, 1)], "group 1 is none of 1;"),
        (vec![block(1, 0), block(0, 0), block(1, 0)], "host block 1 is named twice;"),
        (vec![block(2, 0), block(3, 0)], "host block 3 is in use, or holds something known;"),
    ] {
        let error = scheduler.restore_host_blocks(wrong).expect_err("it is wrong");
        assert!(error.to_string().starts_with(problem), "{error}");
        assert_eq!(scheduler.stats(), before);
    }
    Ok(())
}

#[test]
fn nothing_is_restored_without_prefix_caching() -> Result<(), Error> {
    let mut scheduler = Scheduler::new(Config { enable_prefix_caching: false, ..with_host() })?;
    scheduler.restore_host_blocks(vec![HostBlock { block: HostBlockId(0), group: 0, index: 0, hash: [1; 32] }])?;
    assert_eq!((scheduler.stats().num_cached_host_blocks, scheduler.stats().num_free_host_blocks), (0, 8));
    Ok(())
}
