//! A pause of all requests, or of those that have not begun.

use pyllm_scheduler::{Config, Pause, PolicyName, Reason, Request, replay};

use crate::engine::{Engine, config, request};

const POLICIES: [PolicyName; 5] =
    [PolicyName::Fcfs, PolicyName::Priority, PolicyName::Shortest, PolicyName::Fair, PolicyName::Custom];

fn pause(engine: &mut Engine, pause: Pause) {
    let settings = Config { pause, ..engine.scheduler.config().clone() };
    engine.scheduler.reconfigure(settings).expect("a pause is live");
    engine.scheduler.audit().expect("the books add up");
}

#[test]
fn a_pause_of_all_has_no_plan_and_ends_no_request() {
    for policy in POLICIES {
        let mut engine = Engine::new(config(policy, 256, 1));
        engine.add(request(1, 20, 20));
        engine.add(request(2, 20, 20));
        engine.steps(2);
        let before = engine.served[&1].num_tokens();
        pause(&mut engine, Pause::All);
        assert!(engine.step().is_empty(), "{policy:?}");
        assert_eq!((engine.reason(1), engine.reason(2)), (Some(Reason::Paused), Some(Reason::Paused)));
        assert_eq!(engine.served[&1].num_tokens(), before);
        pause(&mut engine, Pause::None);
        assert_eq!(engine.step()[0].request, 1, "{policy:?}");
    }
}

#[test]
fn what_has_begun_ends_while_new_requests_are_paused() {
    for policy in POLICIES {
        // Too few blocks for both: the second is preempted, and begins again before the pause ends.
        let mut engine = Engine::new(config(policy, 16, 4));
        engine.add(Request { arrival: -2.0, ..request(1, 20, 30) });
        engine.add(Request { arrival: -1.0, ..request(2, 20, 30) });
        engine.steps(3);
        assert_eq!(engine.scheduler.num_begun(), 2, "{policy:?}");
        pause(&mut engine, Pause::New);
        engine.add(Request { priority: -9, arrival: -9.0, policy_key: -9.0, ..request(3, 2, 2) });
        while engine.scheduler.num_begun() > 0 {
            assert!(engine.step().iter().all(|row| row.request != 3), "{policy:?}");
            assert_eq!(engine.reason(3), Some(Reason::Paused), "{policy:?}");
        }
        assert!(engine.step().is_empty(), "{policy:?}");
        assert_eq!(engine.served[&1].num_tokens() + engine.served[&2].num_tokens(), 60, "{policy:?}");
        pause(&mut engine, Pause::None);
        assert_eq!(engine.step()[0].request, 3, "{policy:?}");
    }
}

#[test]
fn a_recording_keeps_pauses() {
    let mut engine = Engine::new(config(PolicyName::Fcfs, 64, 2));
    engine.scheduler.start_recording().expect("nothing has happened");
    engine.add(request(1, 20, 20));
    engine.steps(2);
    pause(&mut engine, Pause::All);
    engine.step();
    pause(&mut engine, Pause::None);
    engine.steps(2);
    let recording = engine.scheduler.take_recording();
    let played = replay(&recording).expect("it decides the same");
    assert_eq!(Some(played.hash), engine.scheduler.decisions_hash());
}
