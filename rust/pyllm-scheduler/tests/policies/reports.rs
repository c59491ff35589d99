//! Reports of all requests at once, and of blocks by owner.

use pyllm_scheduler::{ClientId, Finish, PolicyName, Reason, Request, RequestId};

use crate::engine::{CLIENT, Engine, config, request};

fn engine() -> Engine {
    Engine::new(config(PolicyName::Fcfs, 64, 1))
}

#[test]
fn who_lives_comes_first_and_says_why_it_waits() {
    let mut engine = engine();
    engine.add(Request { name: "first".to_owned(), tenant: "a".to_owned(), ..request(1, 9, 3) });
    engine.add(request(2, 5, 2));
    engine.step();
    let reports = engine.scheduler.requests(usize::MAX, None);
    let [first, second] = &reports[..] else { panic!("both live: {reports:?}") };
    assert_eq!((&first.name[..], &first.tenant[..], first.num_prompt_tokens), ("first", "a", 9));
    assert_eq!((first.num_output_tokens, first.num_blocks, first.scheduled_at), (1, 3, Some(0.0)));
    assert_eq!((second.num_output_tokens, second.num_blocks, second.scheduled_at), (0, 0, None));
    assert_eq!(second.samples[0].reason, Some(Reason::Slots));
    assert_eq!(engine.scheduler.requests(usize::MAX, Some("first")), reports[..1]);
    assert_eq!(engine.scheduler.requests(1, None), reports[..1]);
    let owners = engine.scheduler.block_owners();
    assert_eq!((owners.tenants.get("a"), owners.free), (Some(&3), 61));
}

#[test]
fn who_has_ended_comes_after_latest_first() {
    let mut engine = engine();
    engine.add(request(1, 9, 3));
    engine.add(request(2, 5, 2));
    while !engine.step().is_empty() {}
    engine.add(Request { client: ClientId(7), ..request(3, 4, 100) });
    engine.step();
    engine.scheduler.drop_client(ClientId(7));
    engine.add(request(4, 4, 100));
    engine.scheduler.abort(CLIENT, RequestId(4), None);
    let ended = engine.scheduler.requests(usize::MAX, None).into_iter().map(|report| {
        let (_, finish) = report.ended.expect("nothing lives");
        assert!(report.samples.is_empty());
        (report.id.0, report.num_output_tokens, finish)
    });
    let expected = [(4, 0, Finish::Abort), (3, 1, Finish::Abort), (2, 2, Finish::Length), (1, 3, Finish::Length)];
    assert_eq!(ended.collect::<Vec<_>>(), expected);
}

#[test]
fn only_the_last_thousand_are_kept() {
    let mut engine = engine();
    for id in 0..1010 {
        engine.add(request(id, 1, 1));
        engine.scheduler.abort(CLIENT, RequestId(id), None);
    }
    let reports = engine.scheduler.requests(usize::MAX, None);
    assert_eq!((reports.len(), reports[0].id.0, reports[999].id.0), (1000, 1009, 10));
}

#[test]
fn each_that_has_ended_is_taken_once_oldest_first() {
    let mut engine = engine();
    assert_eq!(engine.scheduler.take_ended(), []);
    let mut end = |ids: std::ops::Range<u64>| {
        for id in ids {
            engine.add(request(id, 1, 1));
            engine.scheduler.abort(CLIENT, RequestId(id), None);
        }
        engine.scheduler.take_ended().iter().map(|report| report.id.0).collect::<Vec<_>>()
    };
    assert_eq!(end(0..3), [0, 1, 2]);
    assert_eq!(end(3..4), [3]);
    assert_eq!(end(4..4), []);
    assert_eq!(end(4..1014), (14..1014).collect::<Vec<_>>());
    assert_eq!(end(1014..1016), [1014, 1015]);
}
