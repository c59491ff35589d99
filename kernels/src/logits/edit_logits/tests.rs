use proptest::prelude::*;

use super::*;
use crate::dtype::{DType, elements};

struct Columns {
    starts: Vec<i32>,
    ids: Vec<i32>,
    numbers: [Vec<f32>; 3],
}

impl Columns {
    fn edits(&self) -> Edits {
        let address = |numbers: &Vec<f32>| numbers.as_ptr().expose_provenance();
        Edits {
            starts: Indices(self.starts.as_ptr().expose_provenance()),
            count: self.ids.len(),
            ids: Indices(self.ids.as_ptr().expose_provenance()),
            bias: address(&self.numbers[0]),
            repetition: address(&self.numbers[1]),
            subtracted: address(&self.numbers[2]),
        }
    }
}

fn run(op: EditLogits, isa: Isa, num_threads: usize) -> Result<Vec<f32>, OutOfRange> {
    let mut out = vec![f32::NAN; op.samples * op.vocabulary];
    let op = EditLogits { out: out.as_mut_ptr().expose_provenance(), ..op };
    // SAFETY: the tests point to vectors as long as their sizes say, and ask for what the machine has.
    unsafe { op.run(op.capacity(), isa, &mut Pool::new(num_threads)) }?;
    Ok(out)
}

proptest! {
    #[test]
    fn rows_are_copied_then_masked_then_edited(
        vocabulary in 1..150_usize,
        seed in any::<u32>(),
        rows in prop::collection::vec((0..3_i32, -1..2_i32, 0..6_usize), 0..6),
        words_each in 0..6_usize,
        dtype in prop::sample::select(DType::ALL.to_vec()),
        num_threads in 1..3_usize,
    ) {
        let mut state = seed;
        let mut random = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            state >> 8
        };
        // Quarters, which bfloat16 has exactly.
        let logits: Vec<f32> = (0..3 * vocabulary).map(|_| f32::from((random() % 40) as u8) / 4.0 - 5.0).collect();
        let bytes = elements(dtype, &logits);
        let address = bytes.as_ptr().expose_provenance();
        let masks: Vec<u32> = (0..2 * words_each).map(|_| [0, u32::MAX, random() << 8 | random() & 255][random() as usize % 3]).collect();
        let mut columns = Columns { starts: vec![0], ids: Vec::new(), numbers: Default::default() };
        let mut expected = Vec::new();
        for &(row, mask, num_edits) in &rows {
            let mut edited = logits[row as usize * vocabulary..][..vocabulary].to_vec();
            for (id, logit) in edited.iter_mut().enumerate().filter(|_| mask >= 0) {
                let word = masks[mask as usize * words_each..][..words_each].get(id / 32);
                if word.is_none_or(|word| word >> (id % 32) & 1 == 0) {
                    *logit = f32::NEG_INFINITY;
                }
            }
            for id in (0..vocabulary).step_by(7).take(num_edits) {
                let bias = [0.0, 1.5, f32::NEG_INFINITY][random() as usize % 3];
                let (repetition, subtracted) = (1.0 + f32::from((random() % 2) as u8), f32::from((random() % 3) as u8));
                columns.ids.push(id as i32);
                columns.numbers.iter_mut().zip([bias, repetition, subtracted]).for_each(|(to, number)| to.push(number));
                let logit = edited[id] + bias;
                edited[id] = if logit > 0.0 { logit / repetition } else { logit * repetition } - subtracted;
            }
            columns.starts.push(columns.ids.len() as i32);
            expected.extend(edited);
        }
        let [samples, mask_rows] = [0, 1].map(|which| rows.iter().map(|row| [row.0, row.1][which]).collect::<Vec<_>>());
        let op = EditLogits {
            samples: rows.len(),
            logits: Matrix { dtype, address, stride: vocabulary },
            num_rows: 3,
            vocabulary,
            rows: Indices(samples.as_ptr().expose_provenance()),
            edits: columns.edits(),
            masks: Some(Masks {
                rows: Indices(mask_rows.as_ptr().expose_provenance()),
                address: masks.as_ptr().expose_provenance(),
                count: 2,
                words_each,
            }),
            out: 0,
        };
        for isa in Isa::available() {
            prop_assert_eq!(run(op, isa, num_threads), Ok(expected.clone()));
        }
    }
}

#[test]
fn numbers_that_name_nothing_are_refused() {
    let (logits, rows, mask_rows, masks) = ([0.0_f32; 10], [1], [0], [0_u32]);
    let columns = |starts: &[i32], ids: &[i32]| Columns {
        starts: starts.to_vec(),
        ids: ids.to_vec(),
        numbers: std::array::from_fn(|_| vec![1.0; ids.len()]),
    };
    let op = |rows: &[i32], columns: &Columns, mask_rows: &[i32]| EditLogits {
        samples: 1,
        logits: Matrix { dtype: DType::Float32, address: logits.as_ptr().expose_provenance(), stride: 5 },
        num_rows: 2,
        vocabulary: 5,
        rows: Indices(rows.as_ptr().expose_provenance()),
        edits: columns.edits(),
        masks: Some(Masks {
            rows: Indices(mask_rows.as_ptr().expose_provenance()),
            address: masks.as_ptr().expose_provenance(),
            count: 1,
            words_each: 1,
        }),
        out: 0,
    };
    let good = columns(&[0, 1], &[4]);
    assert!(run(op(&rows, &good, &mask_rows), Isa::used(), 1).is_ok());
    let refusal = |op| run(op, Isa::used(), 1).expect_err("something is not there").to_string();
    assert_eq!(refusal(op(&[2], &good, &mask_rows)), "row of sample 0 is 2: it must be from 0 to 1");
    assert_eq!(refusal(op(&rows, &good, &[1])), "mask of sample 0 is 1: it must be from -1 to 0");
    let wrong = columns(&[0, 1], &[5]);
    assert_eq!(refusal(op(&rows, &wrong, &mask_rows)), "token of edit 0 is 5: it must be from 0 to 4");
    let wrong = columns(&[1, 0], &[4]);
    assert_eq!(refusal(op(&rows, &wrong, &mask_rows)), "start of edits 1 is 0: it must be from 1 to 1");
    let wrong = columns(&[0, 2], &[4]);
    assert_eq!(refusal(op(&rows, &wrong, &mask_rows)), "start of edits 1 is 2: it must be from 0 to 1");
}
