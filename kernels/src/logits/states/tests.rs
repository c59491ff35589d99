//! A comparison with a naive model, which keeps plain tokens and counts anew each time.

use proptest::prelude::*;

use super::thinking::tests::{forced, thinking};
use super::*;

const NUM_SLOTS: usize = 3;
pub(super) const VOCABULARY: usize = 9;

pub(super) fn plain_rules() -> Rules {
    Rules {
        presence_penalty: 0.0,
        frequency_penalty: 0.0,
        repetition_penalty: 1.0,
        bias: Vec::new(),
        bad_words: Vec::new(),
        min_tokens: 0,
        stop_token_ids: Vec::new(),
        thinking: Thinking::default(),
    }
}

#[derive(Clone, Debug)]
struct Naive {
    rules: Rules,
    tokens: Vec<i32>,
    num_prompt_tokens: usize,
}

#[derive(Clone, Debug)]
enum Call {
    Initialise {
        slot: i32,
        tokens: Vec<i32>,
        num_prompt_tokens: usize,
        rules: Rules,
    },
    Clear(i32),
    Copy(Vec<i32>),
    Push {
        slot: i32,
        tokens: Vec<i32>,
    },
    /// The row's distance from the end of the known tokens, and the number of its tokens that are drafts.
    CatchUp {
        slot: i32,
        before: usize,
        tokens: Vec<i32>,
        num_drafts: usize,
    },
    Edits {
        slot: i32,
        drafts: Vec<i32>,
    },
}

impl Naive {
    fn catch_up(&mut self, first: usize, tokens: &[i32]) -> Readiness {
        for (position, &token) in (first..).zip(tokens) {
            if token < 0 {
                if position >= self.tokens.len() {
                    return Readiness::Stale;
                }
            } else if position >= self.num_prompt_tokens {
                if position < self.tokens.len() && self.tokens[position] != token {
                    self.tokens.truncate(position);
                }
                if position == self.tokens.len() {
                    self.tokens.push(token);
                }
            }
        }
        if self.tokens.len() > first + tokens.len() { Readiness::Stale } else { Readiness::Ready }
    }

    /// Id, bias, repetition penalty and subtracted number of each token with any of these.
    #[expect(clippy::float_cmp, reason = "exactly 1 changes nothing")]
    fn edits(&self, drafts: &[i32]) -> Vec<(i32, f32, f32, f32)> {
        let rules = &self.rules;
        let known = [&self.tokens, drafts].concat();
        let output = &known[self.num_prompt_tokens..];
        if let Some(id) = forced(&rules.thinking, &known[..self.num_prompt_tokens], output) {
            return vec![(id, f32::INFINITY, 1.0, 0.0)];
        }
        let mut edits = Vec::new();
        for id in 0..VOCABULARY as i32 {
            let biases = rules.bias.iter().filter(|&&(biased, _)| biased == id);
            let mut bias: f32 = biases.clone().map(|&(_, value)| value).sum();
            let ends = |word: &Vec<i32>| word.last() == Some(&id) && output.ends_with(&word[..word.len() - 1]);
            let too_early = output.len() < rules.min_tokens && rules.stop_token_ids.contains(&id);
            let is_banned = too_early || rules.bad_words.iter().any(ends);
            if is_banned {
                bias = f32::NEG_INFINITY;
            }
            let repeats = rules.repetition_penalty != 1.0 && known.contains(&id);
            let count = output.iter().filter(|&&token| token == id).count() as u16;
            let penalises = rules.presence_penalty != 0.0 || rules.frequency_penalty != 0.0;
            if biases.count() > 0 || is_banned || repeats || (penalises && count > 0) {
                let repetition = if repeats { rules.repetition_penalty } else { 1.0 };
                let presence = if count > 0 { rules.presence_penalty } else { 0.0 };
                edits.push((id, bias, repetition, rules.frequency_penalty * f32::from(count) + presence));
            }
        }
        edits
    }
}

fn token() -> impl Strategy<Value = i32> {
    0..VOCABULARY as i32
}

fn rules() -> impl Strategy<Value = Rules> {
    let penalty = || prop::sample::select(vec![0.0, 0.0, 0.5, -1.25, 2.0]);
    (
        penalty(),
        penalty(),
        prop::sample::select(vec![1.0, 1.0, 1.5, 0.75]),
        prop::collection::vec((token(), prop::sample::select(vec![-3.0, 0.0, 2.5])), 0..4),
        prop::collection::vec(prop::collection::vec(0..3_i32, 1..4), 0..4),
        0..6_usize,
        prop::collection::vec(token(), 0..3),
        thinking(),
    )
        .prop_map(|(presence, frequency, repetition, bias, bad_words, min_tokens, stop_token_ids, thinking)| {
            Rules {
                presence_penalty: presence,
                frequency_penalty: frequency,
                repetition_penalty: repetition,
                bias,
                bad_words,
                min_tokens,
                stop_token_ids,
                thinking,
            }
        })
}

fn call() -> impl Strategy<Value = Call> {
    let slot = || 0..NUM_SLOTS as i32;
    let tokens = |most| prop::collection::vec(0..4_i32, 0..most);
    let told = prop::collection::vec(prop_oneof![Just(-1), 0..4_i32], 1..5);
    prop_oneof![
        (slot(), tokens(5), tokens(5), rules()).prop_map(|(slot, prompt, output, rules)| Call::Initialise {
            slot,
            tokens: [&*prompt, &*output].concat(),
            num_prompt_tokens: prompt.len(),
            rules
        }),
        slot().prop_map(Call::Clear),
        prop::collection::vec((slot(), slot()), 1..4)
            .prop_map(|pairs| Call::Copy(pairs.into_iter().flat_map(|(from, to)| [from, to]).collect())),
        (slot(), tokens(4)).prop_map(|(slot, tokens)| Call::Push { slot, tokens }),
        (slot(), 0..4_usize, told, 0..3_usize).prop_map(|(slot, before, tokens, num_drafts)| Call::CatchUp {
            slot,
            before,
            tokens,
            num_drafts
        }),
        (slot(), tokens(4)).prop_map(|(slot, drafts)| Call::Edits { slot, drafts }),
    ]
}

fn rows(edits: &Edits) -> Vec<Vec<(i32, f32, f32, f32)>> {
    let edit = |i: usize| (edits.ids[i], edits.bias[i], edits.repetition[i], edits.subtracted[i]);
    edits.starts.windows(2).map(|ends| (ends[0] as usize..ends[1] as usize).map(edit).collect()).collect()
}

proptest! {
    #[test]
    fn every_call_does_what_a_naive_model_does(calls in prop::collection::vec(call(), 1..40)) {
        let mut states = Slots::new(NUM_SLOTS, VOCABULARY);
        let mut naive: Vec<Option<Naive>> = vec![None; NUM_SLOTS];
        for call in calls {
            match call {
                Call::Initialise { slot, tokens, num_prompt_tokens, rules } => {
                    states.initialise(slot, &tokens, num_prompt_tokens, rules.clone()).expect("all fits");
                    naive[slot as usize] = Some(Naive { rules, tokens, num_prompt_tokens });
                }
                Call::Clear(slot) => {
                    states.clear(&[slot]).expect("the slot is there");
                    naive[slot as usize] = None;
                }
                Call::Copy(pairs) => {
                    states.copy(&pairs).expect("the slots are there");
                    for pair in pairs.chunks(2) {
                        naive[pair[1] as usize] = naive[pair[0] as usize].clone();
                    }
                }
                Call::Push { slot, tokens } => {
                    states.push(&[slot], &[0, tokens.len() as i32], &tokens).expect("all fits");
                    if let Some(naive) = &mut naive[slot as usize] {
                        naive.tokens.extend(tokens);
                    }
                }
                Call::CatchUp { slot, before, tokens, num_drafts } => {
                    let known = naive[slot as usize].as_ref().map_or(0, |naive| naive.tokens.len());
                    let first = known.saturating_sub(before);
                    let sampled = (tokens.len() - 1).saturating_sub(num_drafts) as i32;
                    // Beside a row that is not sampled, whose tokens are not used.
                    let step = Step {
                        slots: &[(slot + 1) % NUM_SLOTS as i32, slot],
                        query_starts: &[0, 1, 1 + tokens.len() as i32],
                        sequence_lengths: &[90, (first + tokens.len()) as i32],
                        tokens: &[&[5], &*tokens].concat(),
                        sampled_starts: &[0, 0, 1],
                        logits_rows: &[1 + sampled],
                    };
                    let told = &tokens[..=sampled as usize];
                    let expected = naive[slot as usize].as_mut().map(|naive| naive.catch_up(first, told));
                    let readiness = states.catch_up(step).expect("all fits");
                    prop_assert_eq!(readiness, [Readiness::Plain, expected.unwrap_or(Readiness::Plain)]);
                }
                Call::Edits { slot, drafts } => {
                    let starts = [0, 0, drafts.len() as i32];
                    let edits = states.edits(&[slot, slot], &starts, &drafts).expect("all fits");
                    let expected = naive[slot as usize].as_ref();
                    let expected = [&[][..], &*drafts].map(|drafts| expected.map_or(Vec::new(), |it| it.edits(drafts)));
                    prop_assert_eq!(rows(&edits), expected);
                }
            }
            for (slot, naive) in (0..).zip(&naive) {
                let tokens = states.get(slot).expect("the slot is there").map(|slot| slot.tokens_from(0));
                prop_assert_eq!(tokens, naive.as_ref().map(|naive| naive.tokens.clone()));
            }
        }
    }
}

#[test]
fn tokens_are_given_from_any_position() {
    let mut states = Slots::new(1, VOCABULARY);
    states.initialise(0, &[1, 2, 3, 4], 2, plain_rules()).expect("all fits");
    let slot = states.get(0).expect("the slot is there").expect("it was initialised");
    assert_eq!(slot.len(), 4);
    for start in 0..6 {
        assert_eq!(slot.tokens_from(start), [1, 2, 3, 4][start.min(4)..]);
    }
}

#[test]
fn bans_of_what_is_no_token_hold_by_themselves() {
    let mut states = Slots::new(1, VOCABULARY);
    let rules = Rules {
        bad_words: vec![vec![9], vec![-2], vec![100, 3], vec![4]],
        min_tokens: 1,
        stop_token_ids: vec![9, -1, 5],
        ..plain_rules()
    };
    states.initialise(0, &[], 0, rules).expect("all fits");
    assert_eq!(states.edits(&[0], &[0, 0], &[]).expect("all fits").ids, [4, 5]);
}

#[test]
fn calls_that_do_not_fit_are_refused_and_change_nothing() {
    let mut states = Slots::new(2, VOCABULARY);
    let mut refusal = |rules: Rules, tokens: &[i32], num_prompt_tokens| {
        states.initialise(1, tokens, num_prompt_tokens, rules).expect_err("it does not fit").to_string()
    };
    assert_eq!(refusal(plain_rules(), &[9], 0), "what is known has token 9: give ids from 0 to 8");
    assert_eq!(refusal(plain_rules(), &[1], 2), "what is known has 1 elements: give 2");
    let rules = Rules { presence_penalty: f32::NAN, ..plain_rules() };
    assert_eq!(refusal(rules, &[], 0), "the presence penalty is NaN: it must be finite");
    let rules = Rules { repetition_penalty: 0.0, ..plain_rules() };
    assert_eq!(refusal(rules, &[], 0), "the repetition penalty is 0: it must be finite and above 0");
    let rules = Rules { bias: vec![(9, 1.0)], ..plain_rules() };
    assert_eq!(refusal(rules, &[], 0), "a bias has token 9: give ids from 0 to 8");
    let rules = Rules { bias: vec![(8, f32::INFINITY)], ..plain_rules() };
    assert_eq!(refusal(rules, &[], 0), "a bias is inf: it must be finite");
    let rules = Rules { bad_words: vec![vec![]], ..plain_rules() };
    assert_eq!(refusal(rules, &[], 0), "a bad word has no tokens: leave it out");
    let rules = Rules { thinking: Thinking { ends: vec![vec![]], ..Thinking::default() }, ..plain_rules() };
    assert_eq!(refusal(rules, &[], 0), "a start or an end of reasoning has no tokens: leave it out");
    let rules = Rules { thinking: Thinking { ends: vec![vec![9]], ..Thinking::default() }, ..plain_rules() };
    assert_eq!(refusal(rules, &[], 0), "an end of reasoning has token 9: give ids from 0 to 8");
    assert!(states.get(1).expect("the slot is there").is_none());

    states.initialise(1, &[1, 2], 2, plain_rules()).expect("all fits");
    let step = Step {
        slots: &[1],
        query_starts: &[0, 1],
        sequence_lengths: &[3],
        tokens: &[4],
        sampled_starts: &[0, 1],
        logits_rows: &[0],
    };
    let errors = [
        states.clear(&[0, 2]).expect_err("two slots"),
        states.copy(&[0, 1, 0]).expect_err("an odd number"),
        states.push(&[0, 1], &[0, 1, 2], &[7, -1]).expect_err("no token"),
        states.push(&[1], &[0], &[]).expect_err("no end"),
        states.push(&[1], &[0, 1], &[1, 2]).expect_err("an end too early"),
        states.edits(&[1], &[0, 1], &[9]).expect_err("no token"),
        states.catch_up(Step { sequence_lengths: &[4], ..step }).expect_err("a gap"),
        states.catch_up(Step { sequence_lengths: &[0], ..step }).expect_err("shorter than its tokens"),
        states.catch_up(Step { tokens: &[-2], ..step }).expect_err("no token"),
        states.catch_up(Step { logits_rows: &[1], ..step }).expect_err("another row's"),
    ];
    let texts = errors.map(|error| error.to_string());
    assert_eq!(
        texts.each_ref().map(String::as_str),
        [
            "slot 2: there are 2, from 0 on",
            "pairs of slots has 3 elements: give 4",
            "what is pushed has token -1: give ids from 0 to 8",
            "starts has 1 elements: give 2",
            "starts must rise from 0 to 2",
            "what is drafted has token 9: give ids from 0 to 8",
            "slot 1 knows 2 tokens, and a row begins with a later one, at position 3: \
             initialise the slot with all tokens before",
            "row 0: its sequence is shorter than its tokens",
            "a row has token -2: give ids from 0 to 8",
            "row 0: its first sampled position is not one of its tokens",
        ]
    );
    assert_eq!(states.get(1).expect("the slot is there").map(Slot::len), Some(2));
    assert_eq!(states.catch_up(step).expect("all fits"), [Readiness::Ready]);
}
