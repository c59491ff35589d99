//! A recording replays to the recorded decisions, also after truncation; changes to it are noticed or harmless.

use proptest::prelude::*;
use proptest::sample::{Index, select};

use pyllm_scheduler::{Config, Error, PolicyName, Replay, Request, RequestId, replay};

use crate::cases::cases;
use crate::engine::{CLIENT, Engine, config, request};

#[derive(Clone, Debug)]
enum Call {
    Add { prompt_length: i32, n: u32, max_tokens: u32, deadline: Option<f64>, tenant: bool },
    Steps(u32),
    Abort(u64),
    Hold(u64),
    Release(u64),
    Propose(u64),
    Offer { pick: u64, asynchronous: bool },
    FinishLoads,
    Switch(PolicyName),
    ResetPrefixCache,
    Pin(u64),
    Unpin(u64),
    LoseDevice,
}

fn call() -> impl Strategy<Value = Call> {
    let policies = vec![PolicyName::Fcfs, PolicyName::Priority, PolicyName::Shortest, PolicyName::Fair];
    let add = (1..20_i32, 1..3_u32, 1..12_u32, prop::option::of(0.0..2.0), any::<bool>());
    let pick = || 0..30_u64;
    prop_oneof![
        8 => add.prop_map(|(prompt_length, n, max_tokens, deadline, tenant)| Call::Add {
            prompt_length, n, max_tokens, deadline, tenant,
        }),
        8 => (1..5_u32).prop_map(Call::Steps),
        1 => pick().prop_map(Call::Abort),
        1 => pick().prop_map(Call::Hold),
        2 => pick().prop_map(Call::Release),
        2 => pick().prop_map(Call::Propose),
        2 => (pick(), any::<bool>()).prop_map(|(pick, asynchronous)| Call::Offer { pick, asynchronous }),
        2 => Just(Call::FinishLoads),
        1 => select(policies).prop_map(Call::Switch),
        1 => Just(Call::ResetPrefixCache),
        1 => pick().prop_map(Call::Pin),
        1 => pick().prop_map(Call::Unpin),
        1 => Just(Call::LoseDevice),
    ]
}

fn calls() -> impl Strategy<Value = Vec<Call>> {
    prop::collection::vec(call(), 1..60)
}

/// Makes the calls; refused ones change nothing and are not recorded.
fn record(calls: &[Call]) -> (Vec<u8>, Replay) {
    let settings = Config {
        num_host_blocks: 8,
        max_pinned_blocks: 4,
        swap_block_seconds: 0.001,
        ..config(PolicyName::Fcfs, 24, 3)
    };
    let mut engine = Engine::new(settings);
    engine.tells_seconds = true;
    engine.scheduler.start_recording().expect("nothing has happened yet");
    let mut recording = Vec::new();
    for call in calls {
        make(&mut engine, call);
        recording.extend(engine.scheduler.take_recording()); // in parts
    }
    let stats = engine.scheduler.stats();
    let hash = engine.scheduler.decisions_hash().expect("it is recording");
    let recorded = Replay { num_entries: 0, num_steps: stats.num_steps, hash, is_truncated: false, stats };
    (recording, recorded)
}

fn make(engine: &mut Engine, call: &Call) {
    let next = engine.served.len() as u64;
    match *call {
        Call::Add { prompt_length, n, max_tokens, deadline, tenant } => engine.add_now(Request {
            n,
            deadline: deadline.map(|seconds| engine.now + seconds),
            tenant: if tenant { "tenant" } else { "" }.to_owned(),
            ..request(next, prompt_length, max_tokens)
        }),
        Call::Steps(count) => engine.steps(count),
        Call::Abort(id) => drop(engine.scheduler.abort(CLIENT, RequestId(id), None)),
        Call::Hold(id) => drop(engine.scheduler.hold(CLIENT, RequestId(id), "test")),
        Call::Release(id) => drop(engine.scheduler.release(CLIENT, RequestId(id), "test")),
        Call::Propose(id) => drop(engine.scheduler.propose(CLIENT, RequestId(id), 0, &[1, 2])),
        Call::Offer { pick, asynchronous } => {
            drop(engine.scheduler.offer_load(CLIENT, RequestId(pick), 8, asynchronous));
        }
        Call::FinishLoads => {
            for load in engine.scheduler.take_loads() {
                drop(engine.scheduler.finish_load(load.id, load.num_tokens));
            }
        }
        Call::Switch(policy) => {
            let settings = Config { policy, ..engine.scheduler.config().clone() };
            engine.scheduler.reconfigure(settings).expect("the policy is live");
        }
        Call::ResetPrefixCache => engine.scheduler.reset_prefix_cache(),
        Call::Pin(name) => drop(engine.scheduler.pin(name, &request(name, 8, 1))),
        Call::Unpin(name) => drop(engine.scheduler.unpin(name)),
        Call::LoseDevice => engine.scheduler.lose_device(),
    }
}

proptest! {
    #![proptest_config(cases(96))]

    #[test]
    fn a_recording_gives_the_same_decisions(calls in calls()) {
        let (recording, recorded) = record(&calls);
        let replayed = replay(&recording).expect("it was recorded by this version");
        prop_assert_eq!(Replay { num_entries: replayed.num_entries, ..recorded }, replayed);
    }

    #[test]
    fn a_cut_recording_gives_what_it_has(calls in calls(), cut in any::<Index>()) {
        let (recording, _) = record(&calls);
        let whole = replay(&recording).expect("it was recorded by this version");
        let cut = cut.index(recording.len());
        match replay(&recording[..cut]) {
            Ok(part) => {
                prop_assert!(part.num_entries <= whole.num_entries && part.num_steps <= whole.num_steps);
                prop_assert!(part.is_truncated || part.num_entries < whole.num_entries);
            }
            // Only the settings at the start, without which there is no scheduler, must be complete.
            Err(Error::Replay { entry, .. }) => prop_assert!(entry == 0 && cut < 200, "entry {} of {} bytes", entry, cut),
            Err(other) => panic!("{other}"),
        }
    }

    #[test]
    fn a_changed_byte_is_noticed_or_does_no_harm(calls in calls(), place in any::<Index>(), change in 1..=255_u8) {
        let (mut recording, _) = record(&calls);
        let whole = replay(&recording).expect("it was recorded by this version");
        let place = place.index(recording.len());
        recording[place] ^= change;
        match replay(&recording) {
            Ok(changed) if changed.is_truncated => prop_assert!(changed.num_entries < whole.num_entries),
            // If every entry was read, every plan was as recorded.
            Ok(changed) => prop_assert_eq!((changed.num_steps, changed.hash), (whole.num_steps, whole.hash)),
            Err(error) => prop_assert!(matches!(error, Error::Replay { .. } | Error::Config(_)), "{}", error),
        }
    }
}

#[test]
fn an_entry_that_does_not_read_is_no_end() {
    let (recording, _) = record(&[Call::Steps(1), Call::ResetPrefixCache, Call::Steps(1)]);
    let whole = replay(&recording).expect("it was recorded by this version");
    assert_eq!((whole.num_entries, whole.is_truncated), (3, false));
    // The last entry is a `schedule`: its length, the input's number, eight bytes of time, and the hash.
    let number = recording.len() - (1 + 8 + 1);
    let mut damaged = recording.clone();
    damaged[number] = 0x7f;
    let error = replay(&damaged).expect_err("there is no such input");
    assert!(matches!(error, Error::Replay { entry: 2, .. }), "{error}");
    assert!(replay(&recording[..recording.len() - 1]).expect("it is only cut").is_truncated);
}

#[test]
fn only_a_new_scheduler_is_recorded() {
    let mut engine = Engine::new(config(PolicyName::Fcfs, 24, 3));
    engine.step();
    assert!(matches!(engine.scheduler.start_recording(), Err(Error::NotNew { .. })));
    assert!(engine.scheduler.take_recording().is_empty());
}
