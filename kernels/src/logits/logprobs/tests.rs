use proptest::prelude::*;

use super::*;
use crate::dtype::{DType, elements};

type Told = (Vec<i32>, Vec<f32>, Vec<i32>);

fn run(op: Logprobs, isa: Isa, num_threads: usize) -> Result<Told, OutOfRange> {
    let entries = op.samples * (1 + op.num_top);
    let (mut ids, mut values, mut ranks) = (vec![-1; entries], vec![f32::NAN; entries], vec![-1; op.samples]);
    let op = Logprobs {
        ids: ids.as_mut_ptr().expose_provenance(),
        values: values.as_mut_ptr().expose_provenance(),
        ranks: ranks.as_mut_ptr().expose_provenance(),
        ..op
    };
    // SAFETY: the tests point to vectors as long as their sizes say, and ask for what the machine has.
    unsafe { op.run(op.capacity(), isa, &mut Pool::new(num_threads)) }?;
    Ok((ids, values, ranks))
}

fn op(logits: usize, dtype: DType, shape: (usize, usize), rows: &[i32], chosen: &[i32], num_top: usize) -> Logprobs {
    Logprobs {
        samples: rows.len(),
        logits: Matrix { dtype, address: logits, stride: shape.1 },
        num_rows: shape.0,
        vocabulary: shape.1,
        rows: Indices(rows.as_ptr().expose_provenance()),
        chosen: Indices(chosen.as_ptr().expose_provenance()),
        num_top,
        ids: 0,
        values: 0,
        ranks: 0,
    }
}

proptest! {
    #[test]
    fn they_are_what_sorting_and_double_precision_say(
        steps in prop::collection::vec(prop_oneof![4 => (-30..30_i8).prop_map(Some), 1 => Just(None)], 1..600),
        chosen in any::<prop::sample::Index>(),
        top in any::<prop::sample::Index>(),
        dtype in prop::sample::select(DType::ALL.to_vec()),
    ) {
        prop_assume!(steps.iter().any(Option::is_some));
        // Quarters, which bfloat16 has exactly, and of which many are equal.
        let logits: Vec<f32> = steps.iter().map(|step| step.map_or(f32::NEG_INFINITY, |step| f32::from(step) / 4.0)).collect();
        let bytes = elements(dtype, &logits);
        let address = bytes.as_ptr().expose_provenance();
        let (chosen, num_top) = (chosen.index(logits.len()), top.index(logits.len() + 1));
        let mut order: Vec<usize> = (0..logits.len()).collect();
        order.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]));
        let total: f64 = logits.iter().map(|&logit| f64::from(logit).exp()).sum();
        let expected: Vec<usize> = std::iter::once(chosen).chain(order.into_iter().take(num_top)).collect();
        let rank = logits.iter().filter(|&&logit| logit >= logits[chosen]).count();
        let token = [chosen as i32];
        for isa in Isa::available() {
            let op = op(address, dtype, (1, logits.len()), &[0], &token, num_top);
            let (ids, values, ranks) = run(op, isa, 1).expect("the row is there");
            prop_assert_eq!(ids, expected.iter().map(|&id| id as i32).collect::<Vec<_>>());
            prop_assert_eq!(ranks, [rank as i32]);
            for (value, &id) in values.into_iter().zip(&expected) {
                let exact = f64::from(logits[id]) - total.ln();
                let is_near = (f64::from(value) - exact).abs() < 2e-6 || (value.is_infinite() && exact.is_infinite());
                prop_assert!(is_near, "{value} for {exact}");
            }
        }
    }
}

#[test]
fn rows_are_the_same_alone_and_on_any_threads() {
    let logits: Vec<f32> = (0..5 * 700_u32).map(|i| f32::from((i * 37 % 701) as u16) / 90.0).collect();
    let address = logits.as_ptr().expose_provenance();
    let (rows, chosen) = ([4, 0, 2, 2], [3, 699, 0, 1]);
    let together = run(op(address, DType::Float32, (5, 700), &rows, &chosen, 3), Isa::used(), 1).expect("all there");
    assert_eq!(run(op(address, DType::Float32, (5, 700), &rows, &chosen, 3), Isa::used(), 3), Ok(together.clone()));
    for sample in 0..4 {
        let one = sample..=sample;
        let alone = op(address, DType::Float32, (5, 700), &rows[one.clone()], &chosen[one], 3);
        let (ids, values, ranks) = run(alone, Isa::used(), 2).expect("all there");
        assert_eq!(ids, together.0[4 * sample..][..4]);
        assert_eq!(values, together.1[4 * sample..][..4]);
        assert_eq!(ranks, together.2[sample..=sample]);
    }
}

#[test]
fn logits_that_are_no_numbers_are_the_least() {
    let logits = [f32::NAN, 1.0, f32::NEG_INFINITY, 1.0, f32::NAN];
    for isa in Isa::available() {
        let op = op(logits.as_ptr().expose_provenance(), DType::Float32, (1, 5), &[0], &[4], 5);
        let (ids, values, ranks) = run(op, isa, 1).expect("the row is there");
        assert_eq!(ids, [4, 1, 3, 0, 2, 4]);
        let half = -std::f32::consts::LN_2;
        let none = f32::NEG_INFINITY;
        assert_eq!(values, [none, half, half, none, none, none]);
        assert_eq!(ranks, [5]);
    }
}

#[test]
fn a_token_that_is_not_there_is_refused() {
    let logits = [0.0_f32; 6];
    let refusal = |rows: &[i32], chosen: &[i32]| {
        let op = op(logits.as_ptr().expose_provenance(), DType::Float32, (2, 3), rows, chosen, 1);
        run(op, Isa::used(), 1).expect_err("something is not there").to_string()
    };
    assert_eq!(refusal(&[2], &[0]), "row of sample 0 is 2: it must be from 0 to 1");
    assert_eq!(refusal(&[1], &[3]), "token of sample 0 is 3: it must be from 0 to 2");
    assert_eq!(refusal(&[1], &[-1]), "token of sample 0 is -1: it must be from 0 to 2");
}
