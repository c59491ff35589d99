use proptest::prelude::*;

use super::*;
use crate::dtype::{DType, elements};

fn sampling(logits: usize, dtype: DType, shape: (usize, usize), parameters: Option<Parameters>) -> Sampling {
    let (num_rows, vocabulary) = shape;
    let logits = Matrix { dtype, address: logits, stride: vocabulary };
    Sampling { samples: num_rows, logits, num_rows, vocabulary, rows: None, parameters, out: 0 }
}

fn run(op: Sampling, isa: Isa, num_threads: usize) -> Vec<i32> {
    let mut out = vec![-1_i32; op.samples];
    let op = Sampling { out: out.as_mut_ptr().expose_provenance(), ..op };
    // SAFETY: the tests point to vectors as long as their sizes say, and ask for what the machine has.
    unsafe { op.run(op.capacity(), isa, &mut Pool::new(num_threads)) }.expect("the rows are there");
    out
}

proptest! {
    #[test]
    fn the_first_of_the_greatest_logits_is_found(
        logits in prop::collection::vec(-20..20_i8, 1..3000), dtype in prop::sample::select(DType::ALL.to_vec()), num_threads in 1..3_usize,
    ) {
        let numbers: Vec<f32> = logits.iter().map(|&logit| logit.into()).collect();
        let bytes = elements(dtype, &numbers);
        let address = bytes.as_ptr().expose_provenance();
        let greatest = logits.iter().max();
        let first = logits.iter().position(|logit| Some(logit) == greatest).map(|index| index as i32);
        for isa in Isa::available() {
            let op = sampling(address, dtype, (1, logits.len()), None);
            prop_assert_eq!(run(op, isa, num_threads).first().copied(), first);
        }
    }

    #[test]
    fn top_k_and_top_p_keep_what_sorting_says(
        steps in prop::collection::vec(0..40_u8, 1..2000), top_k in 0..50_usize, top_p in 0.01..1.2_f64, uniform in 0.0..1.0_f64,
    ) {
        // Few different weights, so that cuts go through equal ones; sixteenths, so that every sum is exact.
        let weights: Vec<f32> = steps.iter().map(|&step| f32::from(step.saturating_sub(23)) / 16.0).collect();
        prop_assume!(weights.iter().any(|&weight| weight > 0.0));
        let mut order: Vec<usize> = (0..weights.len()).filter(|&index| weights[index] > 0.0).collect();
        order.sort_by(|&a, &b| weights[b].total_cmp(&weights[a]).then(a.cmp(&b)));
        order.truncate(if top_k > 0 { top_k } else { order.len() });
        let total: f64 = order.iter().map(|&index| f64::from(weights[index])).sum();
        let mut before = 0.0;
        let mut kept: Vec<usize> = order
            .into_iter()
            .take_while(|&index| {
                let wanted = before < top_p * total || top_p >= 1.0;
                before += f64::from(weights[index]);
                wanted
            })
            .collect();
        kept.sort_unstable();
        let target = uniform * kept.iter().map(|&index| f64::from(weights[index])).sum::<f64>();
        let mut sum = 0.0;
        let chosen = kept.iter().copied().find(|&index| {
            sum += f64::from(weights[index]);
            sum > target
        });
        let weighted = (0..).zip(&weights).filter(|&(_, &weight)| weight > 0.0);
        let mut candidates: Vec<Candidate> = weighted.map(|(id, &weight)| Candidate { weight, id }).collect();
        limit(&mut candidates, Limits { top_k, top_p }, weights.iter().map(|&weight| f64::from(weight)).sum());
        prop_assert_eq!(choose(&candidates, uniform), chosen);
    }
}

#[test]
fn logits_that_are_no_numbers_do_not_count() {
    let logits = [f32::NAN, f32::NEG_INFINITY, 1.0, f32::NAN, 2.0];
    for isa in Isa::available() {
        let op = sampling(logits.as_ptr().expose_provenance(), DType::Float32, (1, 5), None);
        assert_eq!(run(op, isa, 1), [4]);
        let op = sampling(logits.as_ptr().expose_provenance(), DType::Float32, (2, 1), None);
        assert_eq!(run(op, isa, 1), [-1, -1], "where none does, there is nothing to choose");
    }
}

#[test]
fn a_row_that_is_not_there_is_refused() {
    let (logits, rows, mut out) = ([0.0_f32; 6], [1, 2], [-1_i32; 2]);
    let op = Sampling {
        samples: 2,
        rows: Some(Indices(rows.as_ptr().expose_provenance())),
        out: out.as_mut_ptr().expose_provenance(),
        ..sampling(logits.as_ptr().expose_provenance(), DType::Float32, (2, 3), None)
    };
    // SAFETY: two samples of two rows of three logits, as the sizes say.
    let error = unsafe { op.run(op.capacity(), Isa::used(), &mut Pool::new(1)) };
    assert_eq!(error.expect_err("there is no row 2").to_string(), "row of sample 1 is 2: it must be from 0 to 1");
    assert_eq!(out, [-1, -1]);
}
