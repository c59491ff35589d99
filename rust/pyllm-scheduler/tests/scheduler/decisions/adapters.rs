//! Adapters: their slots of the device, and the order in which sequences with different ones run.

use pyllm_scheduler::{BatchFormat, Config, Error, KvEvent, PolicyName, Reason, Request, RequestId, Scheduler};

use super::{CLIENT, commit, config, plan, request, run_to_the_end};
use crate::sections::Sections;

fn with_slots(max_loras: u32) -> Scheduler {
    Scheduler::new(Config { max_loras, ..config(64, 4, 64) }).expect("the limits are in range")
}

/// A request for some tokens with an adapter; 0: without.
fn of(adapter: u32, id: u64, max_tokens: u32) -> Request {
    let name = if adapter > 0 { format!("adapter {adapter}") } else { String::new() };
    Request {
        adapter: name,
        adapter_number: adapter,
        arrival: f64::from(id as u32),
        ..request(id, [id as i32], max_tokens)
    }
}

fn reason(scheduler: &Scheduler, id: u64) -> Option<Reason> {
    scheduler.explain(CLIENT, RequestId(id)).expect("it is live")[0].reason
}

/// Plans and commits a step. Gives the prompts that begin in it, each one token.
fn begun(scheduler: &mut Scheduler) -> Vec<i32> {
    let next = plan(scheduler);
    let sections = Sections::new(&next);
    let begun = sections.ints("tokens").iter().zip(sections.ints("positions")).filter(|(_, position)| **position == 0);
    let begun = begun.map(|(token, _)| *token).collect();
    commit(scheduler, &next, 90);
    begun
}

#[test]
fn a_plan_loads_an_adapter_once_and_names_its_slot() -> Result<(), Error> {
    let mut scheduler = with_slots(2);
    for (id, adapter) in [(1, 7), (2, 0), (3, 7), (4, 9)] {
        scheduler.add(of(adapter, id, 8))?;
    }
    let first = plan(&mut scheduler);
    let sections = Sections::new(&first);
    assert_eq!(sections.ints("adapter_loads"), [0, 7, 1, 9]);
    assert_eq!(sections.ints("adapter_slots"), [0, -1, 0, 1]);
    commit(&mut scheduler, &first, 90);
    let second = plan(&mut scheduler);
    assert!(Sections::new(&second).ints("adapter_loads").is_empty());
    assert_eq!(scheduler.adapter_counts(), [(7, 2, 0), (9, 1, 0)]);
    Ok(())
}

#[test]
fn without_slots_a_plan_names_none() -> Result<(), Error> {
    let mut scheduler = with_slots(0);
    scheduler.add(of(0, 1, 1))?;
    let only = plan(&mut scheduler);
    assert_eq!(only.counts[only.counts.len() - 2..], [0, 0]);
    assert_eq!(scheduler.adapter_counts(), []);
    Ok(())
}

#[test]
fn the_least_recently_used_adapter_is_replaced_and_comes_again_when_it_is_wanted() -> Result<(), Error> {
    let mut scheduler = with_slots(2);
    let mut loads = Vec::new();
    for (id, adapter) in [(1, 7), (2, 8), (3, 7), (4, 9), (5, 7), (6, 8)] {
        scheduler.add(of(adapter, id, 1))?;
        let only = plan(&mut scheduler);
        loads.push(Sections::new(&only).pairs("adapter_loads"));
        commit(&mut scheduler, &only, 90);
    }
    assert_eq!(loads, [vec![(0, 7)], vec![(1, 8)], vec![], vec![(1, 9)], vec![], vec![(1, 8)]]);
    assert_eq!(scheduler.adapter_counts(), [(7, 0, 0), (8, 0, 0)]);
    Ok(())
}

#[test]
fn what_lacks_a_slot_lets_others_pass() -> Result<(), Error> {
    let mut scheduler = with_slots(2);
    for (id, adapter) in [(1, 7), (2, 8), (3, 9), (4, 10), (5, 8), (6, 0)] {
        scheduler.add(of(adapter, id, 8))?;
    }
    assert_eq!(begun(&mut scheduler), [1, 2, 5, 6]);
    assert_eq!((reason(&scheduler, 3), reason(&scheduler, 4)), (Some(Reason::Adapters), Some(Reason::Adapters)));
    assert_eq!(scheduler.decisions().last().and_then(|decision| decision.stop), Some(Reason::Slots));
    assert_eq!(scheduler.adapter_counts(), [(7, 1, 0), (8, 2, 0), (9, 0, 1), (10, 0, 1)]);
    scheduler.abort(CLIENT, RequestId(6), None);
    scheduler.schedule(0.0)?;
    assert_eq!(scheduler.decisions().last().and_then(|decision| decision.stop), Some(Reason::Adapters));
    Ok(())
}

#[test]
fn a_slot_becomes_free_for_the_first_that_lacks_one() -> Result<(), Error> {
    let mut scheduler = with_slots(2);
    scheduler.add(of(7, 1, 3))?;
    scheduler.add(of(8, 2, 20))?;
    begun(&mut scheduler);
    scheduler.add(of(9, 3, 8))?;
    scheduler.add(of(7, 4, 8))?; // would keep its adapter in use, the least recently used one
    scheduler.add(of(8, 5, 1))?;
    assert_eq!(begun(&mut scheduler), [5]);
    assert_eq!((reason(&scheduler, 3), reason(&scheduler, 4)), (Some(Reason::Adapters), Some(Reason::Adapters)));
    assert_eq!(begun(&mut scheduler), []);
    let next = plan(&mut scheduler);
    assert_eq!(Sections::new(&next).ints("adapter_loads"), [0, 9]);
    commit(&mut scheduler, &next, 90);
    assert_eq!((reason(&scheduler, 3), reason(&scheduler, 4)), (None, Some(Reason::Adapters)));
    run_to_the_end(&mut scheduler, 90);
    Ok(())
}

#[test]
fn a_running_request_gets_its_other_samples_while_its_slot_is_to_become_free() -> Result<(), Error> {
    let mut scheduler = Scheduler::new(Config { max_loras: 1, ..config(64, 2, 64) })?;
    scheduler.add(Request { n: 2, max_tokens: 4, ..of(7, 1, 4) })?;
    scheduler.add(of(0, 2, 2))?;
    let first = plan(&mut scheduler);
    commit(&mut scheduler, &first, 90); // its second sample finds no free slot
    scheduler.add(Request { arrival: 0.0, ..of(9, 3, 4) })?;
    scheduler.add(of(7, 4, 4))?;
    let second = plan(&mut scheduler);
    commit(&mut scheduler, &second, 90);
    plan(&mut scheduler);
    let samples = scheduler.explain(CLIENT, RequestId(1))?;
    assert_eq!(samples.iter().map(|sample| sample.state).collect::<Vec<_>>(), ["running", "running"]);
    assert_eq!((reason(&scheduler, 3), reason(&scheduler, 4)), (Some(Reason::Adapters), Some(Reason::Adapters)));
    assert_eq!(scheduler.adapter_counts(), [(7, 2, 1), (9, 0, 1)]);
    Ok(())
}

#[test]
fn the_loss_of_the_device_loses_the_adapters() -> Result<(), Error> {
    let mut scheduler = with_slots(2);
    scheduler.add(of(7, 1, 8))?;
    begun(&mut scheduler);
    scheduler.lose_device();
    assert_eq!(scheduler.adapter_counts(), [(7, 0, 1)]);
    let again = plan(&mut scheduler);
    assert_eq!(Sections::new(&again).ints("adapter_loads"), [0, 7]);
    Ok(())
}

#[test]
fn a_preempted_sequence_is_not_one_of_its_adapters_users() -> Result<(), Error> {
    let mut scheduler = with_slots(1);
    scheduler.add(of(7, 1, 8))?;
    begun(&mut scheduler);
    scheduler.hold(CLIENT, RequestId(1), "test")?;
    assert_eq!(scheduler.adapter_counts(), [(7, 0, 1)]);
    scheduler.add(of(8, 2, 1))?;
    assert_eq!(begun(&mut scheduler), [2]);
    scheduler.release(CLIENT, RequestId(1), "test")?;
    let again = plan(&mut scheduler);
    assert_eq!(Sections::new(&again).ints("adapter_loads"), [0, 7]);
    Ok(())
}

#[test]
fn nothing_is_preempted_for_an_adapters_slot() -> Result<(), Error> {
    let settings = Config { max_loras: 1, policy: PolicyName::Priority, ..config(64, 2, 64) };
    let mut scheduler = Scheduler::new(settings)?;
    for id in [1, 2] {
        scheduler.add(Request { priority: 2, ..of(7, id, 8) })?;
    }
    begun(&mut scheduler);
    scheduler.add(Request { priority: 0, ..of(8, 3, 8) })?;
    scheduler.add(Request { priority: 1, ..of(0, 4, 8) })?; // preempts the last that runs
    assert_eq!(begun(&mut scheduler), [4]);
    assert_eq!(scheduler.stats().num_preemptions, 1);
    assert_eq!(reason(&scheduler, 3), Some(Reason::Adapters));
    Ok(())
}

#[test]
fn an_isolated_request_gets_a_slot_before_others() -> Result<(), Error> {
    let mut scheduler = with_slots(1);
    scheduler.add(of(7, 1, 4))?;
    begun(&mut scheduler);
    scheduler.add(of(8, 3, 2))?;
    scheduler.isolate(CLIENT, RequestId(3))?;
    scheduler.add(of(7, 2, 4))?;
    let mut order = Vec::new();
    while scheduler.stats().num_requests > 0 {
        order.extend(begun(&mut scheduler));
    }
    assert_eq!(order, [3, 2]);
    Ok(())
}

#[test]
fn events_name_the_adapter_of_a_block() -> Result<(), Error> {
    let settings = Config { max_loras: 1, enable_kv_cache_events: true, ..config(64, 4, 64) };
    let mut scheduler = Scheduler::new(settings)?;
    for (id, adapter) in [(1, 7), (2, 0)] {
        scheduler.add(Request { prompt: vec![5; 9], ..of(adapter, id, 1) })?;
    }
    run_to_the_end(&mut scheduler, 90);
    let adapters = scheduler.events(0, 99).events.into_iter().map(|event| match event {
        KvEvent::Stored { adapter, .. } => adapter,
        other => panic!("{other:?}"),
    });
    assert_eq!(adapters.collect::<Vec<_>>(), ["adapter 7", "adapter 7", "", ""]);
    let batch = scheduler.event_batch(0, BatchFormat::default(), 0.0).expect("there are events");
    let name = b"adapter 7";
    let num_named = batch.payload.windows(name.len()).filter(|window| window == name).count();
    assert_eq!(num_named, 1, "both of its blocks are in one event");
    Ok(())
}

#[test]
fn an_adapter_has_a_text_a_number_and_room() {
    let mut without = with_slots(0);
    let mut with = with_slots(1);
    let refused = |scheduler: &mut Scheduler, request| match scheduler.add(request) {
        Err(Error::Request(problem)) => problem,
        other => panic!("{other:?}"),
    };
    assert!(refused(&mut without, of(7, 1, 1)).contains("max_loras is 0"));
    assert!(refused(&mut with, Request { adapter: String::new(), ..of(7, 1, 1) }).contains("adapter_number 7"));
    assert!(refused(&mut with, Request { adapter_number: 0, ..of(7, 1, 1) }).contains("adapter_number 0"));
    let other = Config { max_loras: 2, ..with.config().clone() };
    assert_eq!(with.reconfigure(other), Err(Error::Fixed { setting: "max_loras" }));
    assert!(Scheduler::new(Config { max_loras: Config::MAX_LORAS + 1, ..config(64, 4, 64) }).is_err());
}
