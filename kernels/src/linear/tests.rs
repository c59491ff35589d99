use proptest::prelude::*;

use super::*;
use crate::dtype::{from_bfloat16, from_float16, round_to_bfloat16};
use crate::op::Matrix;

const FORMATS: [Format; 7] = [
    Format::Float,
    Format::Int8(Int8Source::Elements),
    Format::Int8(Int8Source::Q4_0),
    Format::Int8(Int8Source::Q4_1),
    Format::Ggml(GgmlType::Q8_0),
    Format::Ggml(GgmlType::Q4_0),
    Format::Ggml(GgmlType::Q4_1),
];

fn elements(dtype: DType, numbers: &[f32]) -> Vec<u8> {
    match dtype {
        DType::Float32 => bytemuck::cast_slice(numbers).to_vec(),
        DType::Bfloat16 => numbers.iter().flat_map(|&number| round_to_bfloat16(number).to_ne_bytes()).collect(),
    }
}

fn numbers(dtype: DType, bytes: &[u8]) -> Vec<f32> {
    match dtype {
        DType::Float32 => bytes.chunks_exact(4).map(bytemuck::pod_read_unaligned).collect(),
        DType::Bfloat16 => bytes.chunks_exact(2).map(bytemuck::pod_read_unaligned).map(from_bfloat16).collect(),
    }
}

fn packed(linear: &Linear, weight: &[u8]) -> Vec<u8> {
    let mut packed = vec![0xff; linear.packed_bytes()];
    linear.pack(weight, &mut packed);
    packed
}

fn run(linear: &Linear, isa: Isa, num_threads: usize, x: &[u8], packed: &[u8]) -> Vec<u8> {
    let num_rows = x.len() / linear.in_bytes();
    run_product(linear, x.as_ptr(), num_rows, packed, |product| {
        // SAFETY: the lengths are as the linear says, and the instructions are available ones.
        unsafe { product.run(num_rows, isa, &mut Pool::new(num_threads)) };
    })
}

/// What a product writes when it is run.
fn run_product(linear: &Linear, x: *const u8, num_rows: usize, packed: &[u8], run: impl FnOnce(&Product)) -> Vec<u8> {
    let out_bytes = linear.out_features * linear.dtype.bytes();
    let mut out = vec![0xff; num_rows * out_bytes];
    run(&Product { linear: *linear, x, packed: packed.as_ptr(), out: out.as_mut_ptr(), out_stride: out_bytes });
    out
}

/// Writes the rows of x, which are elsewhere before.
struct Copier<'a> {
    from: &'a [u8],
    row_bytes: usize,
    out: Matrix,
}

impl RowWriter for Copier<'_> {
    fn out(&self) -> Matrix {
        self.out
    }

    unsafe fn write(&self, num_tokens: usize, _: Isa, pool: &mut Pool, then: &(dyn Fn(usize) + Sync)) {
        pool.run(num_tokens, &|row| {
            let from = &self.from[row * self.row_bytes..][..self.row_bytes];
            // SAFETY: there is room for the row, which no other task has.
            unsafe {
                self.out.row::<u8>(0).add(row * self.row_bytes).copy_from_nonoverlapping(from.as_ptr(), from.len());
            };
            then(row);
        });
    }
}

fn run_after_writer(linear: &Linear, isa: Isa, num_threads: usize, from: &[u8], packed: &[u8]) -> Vec<u8> {
    let (num_rows, mut x) = (from.len() / linear.in_bytes(), vec![0xff; from.len()]);
    let first = x.as_mut_ptr();
    let out = Matrix { dtype: linear.dtype, address: first.expose_provenance(), stride: linear.in_features };
    let writer = Copier { from, row_bytes: linear.in_bytes(), out };
    run_product(linear, first, num_rows, packed, |product| {
        assert_eq!(product.takes_rows_of(&writer), linear.format != Format::Float);
        let mut pool = Pool::new(num_threads);
        // SAFETY: the lengths are as the linear says, and the instructions are available ones.
        unsafe {
            if product.takes_rows_of(&writer) {
                product.run_after(Some(&writer), num_rows, isa, &mut pool);
            } else {
                writer.write(num_rows, isa, &mut pool, &|_| {});
                product.run(num_rows, isa, &mut pool);
            }
        }
    })
}

fn look_up(linear: &Linear, packed: &[u8], indices: &[i32]) -> Result<Vec<u8>, i32> {
    let mut out = vec![0xff; indices.len() * linear.in_bytes()];
    let indices_bytes: &[u8] = bytemuck::cast_slice(indices);
    let lookup =
        Lookup { linear: *linear, packed: packed.as_ptr(), indices: indices_bytes.as_ptr(), out: out.as_mut_ptr() };
    // SAFETY: the lengths are as the linear says.
    unsafe { lookup.run(indices.len(), &mut Pool::new(2)) }.map(|()| out)
}

/// One group of weights: scale, minimum, integers.
type Group = (f32, f32, Vec<i32>);

/// A row of a quantised matrix, read as plainly as can be.
fn groups(format: GgmlType, row: &[u8]) -> Vec<Group> {
    let half = |bytes: &[u8]| from_float16(u16::from_ne_bytes([bytes[0], bytes[1]]));
    let nibbles = |bytes: &[u8], offset: i32| {
        let lows = bytes.iter().map(|byte| i32::from(byte & 0xf) - offset);
        lows.chain(bytes.iter().map(|byte| i32::from(byte >> 4) - offset)).collect()
    };
    match format {
        GgmlType::Q8_0 => {
            let group = |block: &[u8]| (half(block), 0.0, block[2..].iter().map(|&q| i32::from(q as i8)).collect());
            row.chunks_exact(34).map(group).collect()
        }
        GgmlType::Q4_0 => row.chunks_exact(18).map(|block| (half(block), 0.0, nibbles(&block[2..], 8))).collect(),
        GgmlType::Q4_1 => {
            row.chunks_exact(20).map(|block| (half(block), half(&block[2..]), nibbles(&block[4..], 0))).collect()
        }
    }
}

fn quantised_group(numbers: &[f32]) -> (f32, Vec<i32>) {
    integers(numbers, 127.0)
}

fn integers(numbers: &[f32], steps: f32) -> (f32, Vec<i32>) {
    let largest = numbers.iter().fold(0.0_f32, |largest, number| largest.max(number.abs()));
    let inverse = if largest == 0.0 { 0.0 } else { steps / largest };
    (largest / steps, numbers.iter().map(|number| (number * inverse).round_ties_even() as i32).collect())
}

/// A row of a matrix as int8: its scale and its integers.
fn int8_row(linear: &Linear, source: Int8Source, row: &[u8]) -> (f32, Vec<i32>) {
    let Some(format) = source.blocks() else {
        return integers(&numbers(linear.dtype, row), 127.0);
    };
    // From 0 to 15, with the minimum that this leaves.
    let groups: Vec<Group> = groups(format, row)
        .into_iter()
        .map(|(scale, min, integers)| match format {
            GgmlType::Q4_0 => (scale, -8.0 * scale, integers.iter().map(|integer| integer + 8).collect()),
            _ => (scale, min, integers),
        })
        .collect();
    let largest =
        groups.iter().fold(0.0_f32, |largest, (scale, min, _)| largest.max(min.abs()).max((15.0 * scale + min).abs()));
    let column_scale = largest / 127.0;
    let steps = |number: f32| if largest == 0.0 { 0 } else { (256.0 * number / column_scale).round_ties_even() as i32 };
    let integers = groups.iter().flat_map(|(scale, min, integers)| {
        integers.iter().map(|integer| (steps(*scale) * integer + steps(*min) + 128) >> 8)
    });
    (column_scale, integers.collect())
}

/// What a product is said to be, operation by operation; None of elements.
fn specified(linear: &Linear, weight: &[u8], x: &[u8]) -> Option<Vec<u8>> {
    match linear.format {
        Format::Float => None,
        Format::Int8(source) => Some(specified_int8(linear, source, weight, x)),
        Format::Ggml(format) => Some(specified_by_groups(linear, format, weight, x)),
    }
}

fn specified_int8(linear: &Linear, source: Int8Source, weight: &[u8], x: &[u8]) -> Vec<u8> {
    let weight: Vec<_> = weight.chunks_exact(linear.row_bytes()).map(|row| int8_row(linear, source, row)).collect();
    let dot = |a: &[i32], b: &[i32]| a.iter().zip(b).map(|(a, b)| a * b).sum::<i32>() as f32;
    let mut out = Vec::new();
    for row in x.chunks_exact(linear.in_bytes()) {
        let (x_scale, x) = integers(&numbers(linear.dtype, row), 127.0 * 128.0);
        let high: Vec<i32> = x.iter().map(|x| (x + 64) >> 7).collect();
        let low: Vec<i32> = x.iter().zip(&high).map(|(x, high)| x - 128 * high).collect();
        for (scale, weight) in &weight {
            let sum = x_scale * scale * 128.0_f32.mul_add(dot(&high, weight), dot(&low, weight));
            out.extend(elements(linear.dtype, &[sum]));
        }
    }
    out
}

fn specified_by_groups(linear: &Linear, format: GgmlType, weight: &[u8], x: &[u8]) -> Vec<u8> {
    let weight: Vec<_> = weight.chunks_exact(linear.row_bytes()).map(|row| groups(format, row)).collect();
    let mut out = Vec::new();
    for row in x.chunks_exact(linear.in_bytes()) {
        let x: Vec<_> = numbers(linear.dtype, row).chunks(GROUP).map(quantised_group).collect();
        for weight in &weight {
            let mut sum = 0.0_f32;
            for ((x_scale, x), (scale, min, integers)) in x.iter().zip(weight) {
                let dot: i32 = x.iter().zip(integers).map(|(x, integer)| x * integer).sum();
                sum = (x_scale * scale).mul_add(dot as f32, sum);
                if format == GgmlType::Q4_1 {
                    sum = min.mul_add(x_scale * x.iter().sum::<i32>() as f32, sum);
                }
            }
            out.extend(elements(linear.dtype, &[sum]));
        }
    }
    out
}

/// Any bytes are a matrix of blocks, once each scale is a number that is not too large.
fn with_tame_scales(linear: &Linear, format: GgmlType, mut weight: Vec<u8>) -> Vec<u8> {
    let (scale, min) = format.scale_bytes();
    for block in weight.chunks_exact_mut(linear.row_bytes() / (linear.in_features / GROUP)) {
        for half in block[..scale + min].chunks_exact_mut(2) {
            half[1] &= 0xbf; // less than 2
        }
    }
    weight
}

prop_compose! {
    fn products()(
        bfloat16 in any::<bool>(),
        format in prop::sample::select(FORMATS.to_vec()),
        in_features in prop_oneof![1..140_usize, (1..5_usize).prop_map(|groups| groups * GROUP)],
        (rows, out_features) in (1..70_usize, 1..100_usize),
    )(
        numbers in prop::collection::vec(-2.0..2.0_f32, in_features * out_features),
        bytes in prop::collection::vec(any::<u8>(), in_features.div_ceil(GROUP) * 34 * out_features),
        x in prop::collection::vec(-2.0..2.0_f32, rows * in_features.next_multiple_of(GROUP)),
        bfloat16 in Just(bfloat16), format in Just(format), rows in Just(rows), in_features in Just(in_features),
        out_features in Just(out_features),
    ) -> (Linear, Vec<u8>, Vec<u8>) {
        let dtype = if bfloat16 { DType::Bfloat16 } else { DType::Float32 };
        let mut linear = Linear { format, dtype, in_features, out_features };
        let weight = match linear.blocks() {
            None => elements(dtype, &numbers),
            Some(format) => {
                linear.in_features = in_features.next_multiple_of(GROUP);
                let length = linear.row_bytes() * out_features;
                with_tame_scales(&linear, format, bytes[..length].to_vec())
            }
        };
        let x = elements(dtype, &x[..rows * linear.in_features]);
        (linear, weight, x)
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn every_kernel_computes_the_product((linear, weight, x) in products()) {
        let packed = packed(&linear, &weight);
        let Some(expected) = specified(&linear, &weight, &x) else {
            return close_to_the_product(&linear, &weight, &x, &packed);
        };
        for isa in Isa::available() {
            prop_assert_eq!(&run(&linear, isa, 1, &x, &packed), &expected, "{:?}", isa);
        }
    }

    #[test]
    fn a_row_is_the_same_alone_and_among_others((linear, weight, x) in products(), num_threads in 1..4_usize) {
        let packed = packed(&linear, &weight);
        for isa in Isa::available() {
            let alone = x.chunks_exact(linear.in_bytes());
            let alone: Vec<u8> = alone.flat_map(|row| run(&linear, isa, 1, row, &packed)).collect();
            prop_assert_eq!(&run(&linear, isa, num_threads, &x, &packed), &alone, "{:?}", isa);
        }
    }

    #[test]
    fn rows_that_are_taken_where_they_are_written_are_the_same((linear, weight, x) in products(), num_threads in 1..4_usize) {
        let packed = packed(&linear, &weight);
        for isa in Isa::available() {
            let expected = run(&linear, isa, 1, &x, &packed);
            prop_assert_eq!(&run_after_writer(&linear, isa, num_threads, &x, &packed), &expected, "{:?}", isa);
        }
    }

    #[test]
    fn rows_come_out_as_they_were_packed((linear, weight, _) in products()) {
        let packed = packed(&linear, &weight);
        let indices: Vec<i32> = (0..linear.out_features as i32).rev().collect();
        let out = look_up(&linear, &packed, &indices).expect("all of these are there");
        for (&index, out) in indices.iter().zip(out.chunks_exact(linear.in_bytes())) {
            let row = &weight[index as usize * linear.row_bytes()..][..linear.row_bytes()];
            let plain: Vec<f32> = match linear.format {
                Format::Float => numbers(linear.dtype, row),
                Format::Int8(source) => {
                    let (scale, integers) = int8_row(&linear, source, row);
                    integers.into_iter().map(|integer| scale * integer as f32).collect()
                }
                Format::Ggml(format) => groups(format, row)
                    .into_iter()
                    .flat_map(|(scale, min, integers)| {
                        integers.into_iter().map(move |integer| scale * integer as f32 + min)
                    })
                    .collect(),
            };
            prop_assert_eq!(numbers(linear.dtype, out), numbers(linear.dtype, &elements(linear.dtype, &plain)));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn products_with_four_bits_are_those_with_eight(
        bfloat16 in any::<bool>(),
        (groups, rows, out_features) in (1..6_usize, 1..40_usize, 1..70_usize),
        bytes in prop::collection::vec(any::<u8>(), 18 * 6 * 70),
        x in prop::collection::vec(-2.0..2.0_f32, 40 * 6 * GROUP),
    ) {
        let dtype = if bfloat16 { DType::Bfloat16 } else { DType::Float32 };
        let four = Linear { format: Format::Int8(Int8Source::Q4_0), dtype, in_features: groups * GROUP, out_features };
        let eight = Linear { format: Format::Int8(Int8Source::Elements), ..four };
        let mut weight = bytes[..four.row_bytes() * out_features].to_vec();
        for (index, block) in weight.chunks_exact_mut(18).enumerate() {
            block[1] &= 0xbf; // less than 2
            if index % groups == 0 {
                // Of a column of the scale 1, which floats are multiplied and divided by without rounding.
                block[..3].copy_from_slice(&[0xf0, 0x4b, 0]); // 127 / 8, and its first integer is -8
            }
        }
        let four_bits = packed(&four, &weight);
        let indices: Vec<i32> = (0..out_features as i32).collect();
        let eight_bits = packed(&eight, &look_up(&four, &four_bits, &indices).expect("all of these are there"));
        let x = elements(dtype, &x[..rows * four.in_features]);
        for isa in Isa::available() {
            prop_assert_eq!(run(&four, isa, 1, &x, &four_bits), run(&eight, isa, 1, &x, &eight_bits), "{:?}", isa);
        }
    }
}

/// As close as sums of floats in any order can be: each of n roundings is off by at most 2⁻²⁴ of the sum of the products'
/// magnitudes (Higham, Accuracy and Stability of Numerical Algorithms, section 3.1), and one to bfloat16 by 2⁻⁸.
fn close_to_the_product(linear: &Linear, weight: &[u8], x: &[u8], packed: &[u8]) -> Result<(), TestCaseError> {
    let (w, rows) = (numbers(linear.dtype, weight), numbers(linear.dtype, x));
    let of_a_sum = f64::from(u32::try_from(linear.in_features + 1).expect("few features")) * 2.0_f64.powi(-24);
    let of_an_output = if linear.dtype == DType::Float32 { 0.0 } else { 2.0_f64.powi(-8) };
    for isa in Isa::available() {
        let out = numbers(linear.dtype, &run(linear, isa, 1, x, packed));
        let columns = |row| w.chunks_exact(linear.in_features).map(move |column| (row, column));
        for (out, (row, column)) in out.into_iter().zip(rows.chunks_exact(linear.in_features).flat_map(columns)) {
            let products = row.iter().zip(column).map(|(&a, &b): (&f32, &f32)| f64::from(a) * f64::from(b));
            let (sum, magnitudes) =
                products.fold((0.0, 0.0), |(sum, all), product| (sum + product, all + product.abs()));
            let tolerance = of_a_sum * magnitudes * (1.0 + of_an_output) + of_an_output * f64::abs(sum);
            prop_assert!((f64::from(out) - sum).abs() <= tolerance, "{isa:?}: {out} and not {sum}");
        }
    }
    Ok(())
}

#[test]
fn many_rows_are_cut_into_blocks_and_tiles() {
    let linear = Linear { format: Format::Float, dtype: DType::Float32, in_features: 3, out_features: 33 };
    let weight: Vec<f32> = (0..99_u8).map(f32::from).collect();
    let x: Vec<f32> = (0..3 * 500).map(|index| f32::from((index % 7) as u8)).collect();
    let packed = packed(&linear, bytemuck::cast_slice(&weight));
    let expected: Vec<f32> = x
        .chunks_exact(3)
        .flat_map(|row| {
            weight.chunks_exact(3).map(|column| row[0] * column[0] + row[1] * column[1] + row[2] * column[2])
        })
        .collect();
    for isa in Isa::available() {
        assert_eq!(numbers(DType::Float32, &run(&linear, isa, 3, bytemuck::cast_slice(&x), &packed)), expected);
    }
}

#[test]
fn sums_of_the_largest_integers_are_exact() {
    let in_features = MAX_INT8_FEATURES;
    let format = Format::Int8(Int8Source::Elements);
    let linear = Linear { format, dtype: DType::Float32, in_features, out_features: 2 };
    let weight: Vec<f32> = [127.0, -127.0].iter().flat_map(|&number| vec![number; in_features]).collect();
    let packed = packed(&linear, bytemuck::cast_slice(&weight));
    let x = vec![127.0_f32; 3 * in_features];
    let expected = (127 * 127 * in_features) as f32;
    for isa in Isa::available() {
        let out = numbers(DType::Float32, &run(&linear, isa, 2, bytemuck::cast_slice(&x), &packed));
        assert_eq!(out, [expected, -expected, expected, -expected, expected, -expected], "{isa:?}");
    }
}

#[test]
fn what_is_not_a_number_stays_in_its_row() {
    for format in FORMATS {
        let linear = Linear { format, dtype: DType::Float32, in_features: 64, out_features: 5 };
        let packed = packed(&linear, &vec![0x11; linear.row_bytes() * 5]);
        let mut x = vec![1.0_f32; 64 * 40];
        x[64 * 7 + 3] = f32::NAN;
        for isa in Isa::available() {
            let out = numbers(DType::Float32, &run(&linear, isa, 1, bytemuck::cast_slice(&x), &packed));
            for (row, out) in out.chunks_exact(5).enumerate() {
                assert!(out.iter().all(|out| out.is_nan() == (row == 7)), "{isa:?} {format:?} {row}");
            }
        }
    }
}

#[test]
fn outputs_may_lie_apart() {
    let linear = Linear { format: Format::Float, dtype: DType::Float32, in_features: 1, out_features: 2 };
    let packed = packed(&linear, bytemuck::cast_slice(&[1.0_f32, 2.0]));
    let (x, mut out) = ([1.0_f32, 10.0], [0.0_f32; 6]);
    let (x, first) = (x.as_ptr().cast(), out.as_mut_ptr().cast());
    let product = Product { linear, x, packed: packed.as_ptr(), out: first, out_stride: 12 };
    // SAFETY: two rows of two features, 12 bytes apart, are in `out`.
    unsafe { product.run(2, Isa::best(), &mut Pool::new(1)) };
    assert_eq!(out.map(f32::to_bits), [1.0, 2.0, 0.0, 10.0, 20.0, 0.0].map(f32::to_bits));
}

#[test]
fn no_rows_are_no_work() {
    for format in FORMATS {
        let linear = Linear { format, dtype: DType::Bfloat16, in_features: 64, out_features: 7 };
        let packed = packed(&linear, &vec![0; linear.row_bytes() * 7]);
        assert_eq!(run(&linear, Isa::best(), 2, &[], &packed), Vec::<u8>::new());
        assert_eq!(look_up(&linear, &packed, &[]), Ok(Vec::new()));
    }
}

#[test]
fn rows_that_are_not_there_are_named() {
    let linear = Linear { format: Format::Float, dtype: DType::Float32, in_features: 1, out_features: 2 };
    let packed = packed(&linear, &[0; 8]);
    assert_eq!(look_up(&linear, &packed, &[1, 2]), Err(2));
    assert_eq!(look_up(&linear, &packed, &[0, -1]), Err(-1));
}

#[test]
fn what_cannot_be_packed_is_refused() {
    let check = |format, in_features| Linear { format, dtype: DType::Float32, in_features, out_features: 1 }.check();
    for format in [Format::Ggml(GgmlType::Q4_0), Format::Int8(Int8Source::Q4_1)] {
        assert_eq!(check(format, 96), Ok(()));
        assert!(check(format, 100).unwrap_err().contains("100 inputs in groups of 32"));
    }
    let int8 = Format::Int8(Int8Source::Elements);
    assert_eq!(check(int8, MAX_INT8_FEATURES), Ok(()));
    assert!(check(int8, MAX_INT8_FEATURES + 1).is_err());
    assert!(check(int8, 0).is_err());
}

#[test]
fn parts_are_as_equal_as_can_be() {
    let parts: Vec<_> = equal_parts(2..34, 12).collect();
    assert_eq!(parts, [2..12, 12..23, 23..34]);
    assert_eq!(equal_parts(5..5, 3).count(), 0);
}
