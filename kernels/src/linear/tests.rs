use proptest::prelude::*;

use super::format::GROUP;
use super::ggml::grid::tables;
use super::*;
use crate::dtype::{elements, from_float16, numbers};
use crate::isa::Isa;
use crate::op::{Matrix, RowWriter};

fn formats() -> Vec<Format> {
    let int8 = [Int8Source::Elements, Int8Source::Q4_0, Int8Source::Q4_1].map(Format::Int8);
    [Format::Float].into_iter().chain(int8).chain(GgmlType::ALL.map(Format::Ggml)).collect()
}

/// The default source of a linear.
fn source_of(linear: &Linear) -> Source {
    match linear.format {
        Format::Float | Format::Int8(Int8Source::Elements) => Source::Elements(linear.dtype),
        Format::Int8(Int8Source::Q4_0) => Source::Ggml(GgmlType::Q4_0),
        Format::Int8(Int8Source::Q4_1) => Source::Ggml(GgmlType::Q4_1),
        Format::Ggml(format) => Source::Ggml(format),
    }
}

fn row_bytes(linear: &Linear) -> usize {
    source_of(linear).row_bytes(linear.in_features)
}

fn packed(linear: &Linear, weight: &[u8]) -> Vec<u8> {
    packed_from(linear, source_of(linear), weight).0
}

fn row_at(source: Source, address: usize) -> Row {
    Row { source, address, scales: Scales::default() }
}

/// The packed matrix, and the first row with numbers that are not finite.
fn packed_from(linear: &Linear, source: Source, weight: &[u8]) -> (Vec<u8>, Option<usize>) {
    let rows = weight.chunks_exact(source.row_bytes(linear.in_features));
    let rows: Vec<Row> = rows.map(|row| row_at(source, row.as_ptr().expose_provenance())).collect();
    let mut packed = vec![0xff; linear.packed_bytes()];
    // SAFETY: the rows are there.
    let odd = unsafe { linear.pack(&rows, &mut packed, &mut Pool::new(2)) };
    (packed, odd.expect("the source is one of the format's"))
}

fn run(linear: &Linear, isa: Isa, num_threads: usize, x: &[u8], packed: &[u8]) -> Vec<u8> {
    let num_rows = x.len() / linear.in_bytes();
    run_product(linear, x.as_ptr(), num_rows, packed, |product| {
        // SAFETY: the lengths are as the linear says, and the instructions are available ones.
        unsafe { product.run(num_rows, isa, &mut Pool::new(num_threads)) };
    })
}

/// The output of a product.
fn run_product(linear: &Linear, x: *const u8, num_rows: usize, packed: &[u8], run: impl FnOnce(&Product)) -> Vec<u8> {
    let out_bytes = linear.out_features * linear.dtype.bytes();
    let mut out = vec![0xff; num_rows * out_bytes];
    run(&Product { linear: *linear, x, packed: packed.as_ptr(), out: out.as_mut_ptr(), out_stride: out_bytes });
    out
}

/// Writes the rows of x, which are copied from elsewhere.
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

/// The groups of a quantised row, parsed as plainly as possible, after ggml's `dequantize_row_*`.
fn groups(format: GgmlType, row: &[u8]) -> Vec<Group> {
    row.chunks_exact(format.block_bytes()).flat_map(|block| groups_of_block(format, block)).collect()
}

fn groups_of_block(format: GgmlType, block: &[u8]) -> Vec<Group> {
    let half = |at: usize| from_float16(u16::from_ne_bytes([block[at], block[at + 1]]));
    let lows_then_highs = |bytes: &[u8]| -> Vec<i32> {
        bytes.iter().map(|byte| byte & 0xf).chain(bytes.iter().map(|byte| byte >> 4)).map(i32::from).collect()
    };
    let less = |integers: Vec<i32>, offset: i32| integers.into_iter().map(|integer| integer - offset).collect();
    let fifth = |mut integers: Vec<i32>, bits: &[u8]| {
        for (at, integer) in integers.iter_mut().enumerate() {
            *integer |= i32::from(bits[at / 8] >> (at % 8) & 1) << 4;
        }
        integers
    };
    let looked_up = |places: Vec<i32>| -> Vec<i32> {
        let numbers = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];
        places.into_iter().map(|place| numbers[place as usize]).collect()
    };
    match format {
        GgmlType::Mxfp4 => {
            let twice = |place: i32| {
                let magnitude = [0, 1, 2, 3, 4, 6, 8, 12][place as usize & 7];
                if place & 8 == 0 { magnitude } else { -magnitude }
            };
            let scale = 2.0_f64.powi(i32::from(block[0]) - 128) as f32;
            vec![(scale, 0.0, lows_then_highs(&block[1..]).into_iter().map(twice).collect())]
        }
        GgmlType::Q8_0 => vec![(half(0), 0.0, block[2..].iter().map(|&q| i32::from(q as i8)).collect())],
        GgmlType::Q4_0 => vec![(half(0), 0.0, less(lows_then_highs(&block[2..]), 8))],
        GgmlType::Q4_1 => vec![(half(0), half(2), lows_then_highs(&block[4..]))],
        GgmlType::Q5_0 => vec![(half(0), 0.0, less(fifth(lows_then_highs(&block[6..]), &block[2..6]), 16))],
        GgmlType::Q5_1 => vec![(half(0), half(2), fifth(lows_then_highs(&block[8..]), &block[4..8]))],
        GgmlType::Iq4Nl => vec![(half(0), 0.0, looked_up(lows_then_highs(&block[2..])))],
        GgmlType::Iq4Xs => (0..8)
            .map(|group| {
                let high = i32::from(u16::from_le_bytes([block[2], block[3]])) >> (2 * group) & 3;
                let low = i32::from(block[4 + group / 2]) >> (4 * (group % 2)) & 0xf;
                let integers = looked_up(lows_then_highs(&block[8 + 16 * group..][..16]));
                (half(0) * ((low | high << 4) - 32) as f32, 0.0, integers)
            })
            .collect(),
        GgmlType::Q4K | GgmlType::Q5K => (0..8)
            .map(|group| {
                let six = &block[4..16];
                let (scale, min) = if group < 4 {
                    (six[group] & 63, six[group + 4] & 63)
                } else {
                    (six[group + 4] & 0xf | (six[group - 4] >> 6) << 4, six[group + 4] >> 4 | (six[group] >> 6) << 4)
                };
                let start = if format == GgmlType::Q4K { 16 } else { 48 };
                let integers = (0..32).map(|at| {
                    let low = block[start + group / 2 * 32 + at] >> (4 * (group % 2)) & 0xf;
                    let high = if format == GgmlType::Q5K { block[16 + at] >> group & 1 } else { 0 };
                    i32::from(low | high << 4)
                });
                (half(0) * f32::from(scale), -half(2) * f32::from(min), integers.collect())
            })
            .collect(),
        GgmlType::Q2K => (0..16)
            .map(|group| {
                let integers = (0..16).map(|at| {
                    let byte = block[16 + group / 8 * 32 + group % 2 * 16 + at];
                    i32::from(byte >> (2 * (group / 2 % 4)) & 3)
                });
                let (scale, min) = (block[group] & 0xf, block[group] >> 4);
                (half(80) * f32::from(scale), -half(82) * f32::from(min), integers.collect())
            })
            .collect(),
        GgmlType::Q3K => (0..16)
            .map(|group| {
                let six = &block[96..108];
                let low = six[group % 8] >> (4 * (group / 8)) & 0xf;
                let high = six[8 + group % 4] >> (2 * (group / 4)) & 3;
                let integers = (0..16).map(|at| {
                    let within = group % 2 * 16 + at;
                    let low = block[32 + group / 8 * 32 + within] >> (2 * (group / 2 % 4)) & 3;
                    i32::from(low) - if block[within] >> (group / 2) & 1 == 0 { 4 } else { 0 }
                });
                (half(108) * f32::from((low | high << 4) as i8 - 32), 0.0, integers.collect())
            })
            .collect(),
        GgmlType::Q6K => (0..16)
            .map(|group| {
                let (part, quarter) = (group / 8, group / 2 % 4);
                let integers = (0..16).map(|at| {
                    let within = group % 2 * 16 + at;
                    let low = block[64 * part + quarter % 2 * 32 + within] >> (quarter / 2 * 4) & 0xf;
                    let high = block[128 + 32 * part + within] >> (2 * quarter) & 3;
                    i32::from(low | high << 4) - 32
                });
                (half(208) * f32::from(block[192 + group] as i8), 0.0, integers.collect())
            })
            .collect(),
        _ => groups_of_a_grid(format, block),
    }
}

/// The same of a block of a format with a grid: 8 features after the other, then joined to groups.
fn groups_of_a_grid(format: GgmlType, block: &[u8]) -> Vec<Group> {
    let word = |at: usize| u16::from_le_bytes([block[at], block[at + 1]]);
    let long = |at: usize| u32::from(word(at)) | u32::from(word(at + 2)) << 16;
    let byte = |at: usize| usize::from(block[at]);
    let nibble = |at: usize, index: usize| u16::from(block[at + index / 2] >> (index % 2 * 4) & 0xf);
    // The eighth sign makes the number of signs even.
    let with_parity = |seven: u32| seven & 127 | ((seven & 127).count_ones() & 1) << 7;
    let signed = |entry: &[u8], signs: u32| -> Vec<i32> {
        let sign = |at: usize| if signs >> at & 1 == 1 { -1 } else { 1 };
        entry.iter().enumerate().map(|(at, &magnitude)| sign(at) * i32::from(magnitude)).collect()
    };
    let two = |first: u32, second: u32| [first.to_le_bytes(), second.to_le_bytes()].concat();
    let raised = |entry: u64, is_lowered: bool| -> Vec<i32> {
        let entry = entry.to_le_bytes();
        entry.iter().map(|&number| i32::from(number) - 128 + if is_lowered { -1 } else { 1 }).collect()
    };
    // The scale of 8 features, without the block's, and their integers.
    let eight = |at: usize| -> (u16, Vec<i32>) {
        let (group, within) = (at / 4, at % 4);
        match format {
            GgmlType::Iq2Xxs => {
                let bits = long(6 + 8 * group);
                let entry = tables::IQ2_XXS[byte(2 + 8 * group + within)];
                ((bits >> 28) as u16, signed(&entry.to_le_bytes(), with_parity(bits >> (7 * within))))
            }
            GgmlType::Iq2Xs => {
                let word = word(2 + 2 * at);
                let entry = tables::IQ2_XS[usize::from(word % 512)];
                (nibble(66, at / 2), signed(&entry.to_le_bytes(), with_parity(u32::from(word / 512))))
            }
            GgmlType::Iq2S => {
                let entry = tables::IQ2_S[byte(2 + at) + (byte(66 + group) >> (2 * within) & 3) * 256];
                (nibble(74, at / 2), signed(&entry.to_le_bytes(), u32::from(block[34 + at])))
            }
            GgmlType::Iq3Xxs => {
                let bits = long(66 + 4 * group);
                let entry = two(tables::IQ3_XXS[byte(2 + 2 * at)], tables::IQ3_XXS[byte(3 + 2 * at)]);
                ((bits >> 28) as u16, signed(&entry, with_parity(bits >> (7 * within))))
            }
            GgmlType::Iq3S => {
                let high = |index: usize| (byte(66 + group) >> index & 1) * 256;
                let entry = two(
                    tables::IQ3_S[byte(2 + 2 * at) + high(2 * within)],
                    tables::IQ3_S[byte(3 + 2 * at) + high(2 * within + 1)],
                );
                (nibble(106, group), signed(&entry, u32::from(block[74 + at])))
            }
            GgmlType::Iq1S => {
                let high = word(34 + 2 * group);
                let entry = tables::IQ1[byte(2 + at) + usize::from(high >> (3 * within) & 7) * 256];
                (high >> 12 & 7, raised(entry, high >> 15 == 1))
            }
            GgmlType::Iq1M => {
                let high = nibble(32, at);
                let entry = tables::IQ1[byte(at) + usize::from(high & 7) * 256];
                (word(48 + at / 8 * 2) >> (3 * (at / 2 % 4)) & 7, raised(entry, high >> 3 == 1))
            }
            _ => unreachable!("a format without a grid"),
        }
    };
    let (scale, unit) = match format {
        GgmlType::Iq1M => ((0..4).map(|at| (word(48 + 2 * at) >> 12) << (4 * at)).sum(), 0.125),
        GgmlType::Iq3S => (word(0), 1.0),
        GgmlType::Iq3Xxs => (word(0), 0.25),
        _ => (word(0), 0.125),
    };
    let eights_of_a_scale = 4 / format.encoding().scales_per_group;
    (0..32)
        .step_by(eights_of_a_scale)
        .map(|first| {
            let integers = (first..first + eights_of_a_scale).flat_map(|at| eight(at).1).collect();
            (from_float16(scale) * unit * f32::from(2 * eight(first).0 + 1), 0.0, integers)
        })
        .collect()
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
    // From 0 to 15, with the minimum adjusted.
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

/// The specified result of a product, operation by operation; none for elements.
fn specified(linear: &Linear, weight: &[u8], x: &[u8]) -> Option<Vec<u8>> {
    match linear.format {
        Format::Float => None,
        Format::Int8(source) => Some(specified_int8(linear, source, weight, x)),
        Format::Ggml(format) => Some(specified_by_groups(linear, format, weight, x)),
    }
}

fn specified_int8(linear: &Linear, source: Int8Source, weight: &[u8], x: &[u8]) -> Vec<u8> {
    let weight: Vec<_> = weight.chunks_exact(row_bytes(linear)).map(|row| int8_row(linear, source, row)).collect();
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
    let weight: Vec<_> = weight.chunks_exact(row_bytes(linear)).map(|row| groups(format, row)).collect();
    let mut out = Vec::new();
    for row in x.chunks_exact(linear.in_bytes()) {
        let x: Vec<_> = numbers(linear.dtype, row).chunks(GROUP).map(quantised_group).collect();
        for weight in &weight {
            let mut sum = 0.0_f32;
            let groups_per_scale = weight.len() / x.len();
            for ((x_scale, x), groups) in x.iter().zip(weight.chunks_exact(groups_per_scale)) {
                let parts = || groups.iter().zip(x.chunks_exact(GROUP / groups_per_scale));
                for ((scale, _, integers), x) in parts() {
                    let dot: i32 = x.iter().zip(integers).map(|(x, integer)| x * integer).sum();
                    sum = (x_scale * scale).mul_add(dot as f32, sum);
                }
                if format.encoding().has_min {
                    for ((_, min, _), x) in parts() {
                        sum = min.mul_add(x_scale * x.iter().sum::<i32>() as f32, sum);
                    }
                }
            }
            out.extend(elements(linear.dtype, &[sum]));
        }
    }
    out
}

/// Offsets of a block's float16 numbers.
fn halves(format: GgmlType) -> &'static [usize] {
    match format {
        GgmlType::Mxfp4 => &[], // its scale is a byte
        GgmlType::Q4_1 | GgmlType::Q5_1 | GgmlType::Q4K | GgmlType::Q5K => &[0, 2],
        GgmlType::Q2K => &[80, 82],
        GgmlType::Q3K => &[108],
        GgmlType::Q6K => &[208],
        GgmlType::Iq1M => &[54], // its highest 4 bits
        _ => &[0],
    }
}

/// Makes random bytes a valid matrix of blocks, by limiting each float16.
fn with_tame_scales(format: GgmlType, mut weight: Vec<u8>) -> Vec<u8> {
    for block in weight.chunks_exact_mut(format.block_bytes()) {
        for at in halves(format) {
            block[at + 1] &= 0xbf; // less than 2
        }
        if format == GgmlType::Mxfp4 {
            block[0] = 96 + block[0] % 32; // up to a half
        }
    }
    weight
}

prop_compose! {
    fn products()(
        dtype in prop::sample::select(DType::ALL.to_vec()),
        format in prop::sample::select(formats()),
        in_features in prop_oneof![1..140_usize, (1..5_usize).prop_map(|groups| groups * GROUP)],
        (rows, out_features) in (1..70_usize, 1..100_usize),
    )(
        numbers in prop::collection::vec(-2.0..2.0_f32, in_features * out_features),
        bytes in prop::collection::vec(any::<u8>(), in_features.div_ceil(256) * 8 * 34 * out_features),
        x in prop::collection::vec(-2.0..2.0_f32, rows * in_features.next_multiple_of(256)),
        dtype in Just(dtype), format in Just(format), rows in Just(rows), in_features in Just(in_features),
        out_features in Just(out_features),
    ) -> (Linear, Vec<u8>, Vec<u8>) {
        let mut linear = Linear { format, dtype, in_features, out_features };
        linear.in_features = in_features.next_multiple_of(format.block_features());
        let weight = match source_of(&linear) {
            Source::Ggml(blocks) => with_tame_scales(blocks, bytes[..row_bytes(&linear) * out_features].to_vec()),
            _ => elements(dtype, &numbers),
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
    fn rows_of_groups_are_those_of_each_matrix_alone(
        (linear, weight, x) in products(), lengths in prop::collection::vec(0..40_usize, 1..5), num_threads in 1..4_usize,
    ) {
        let linear = Linear { out_features: linear.out_features.next_multiple_of(PANEL), ..linear };
        let rows: Vec<_> = weight.chunks_exact(row_bytes(&linear)).cycle().take(linear.out_features + lengths.len()).collect();
        let matrices: Vec<_> = (0..lengths.len())
            .map(|matrix| packed(&linear, &rows[matrix..][..linear.out_features].concat()))
            .collect();
        let inputs: Vec<_> = x.chunks_exact(linear.in_bytes()).collect();
        let (mut groups, mut all) = (Vec::new(), Vec::new());
        for (matrix, &length) in lengths.iter().enumerate().filter(|&(_, &length)| length > 0) {
            let start = all.len() / linear.in_bytes();
            (0..length).for_each(|row| all.extend_from_slice(inputs[(matrix + row) % inputs.len()]));
            all.resize(all.len().next_multiple_of(GROUP_ROWS * linear.in_bytes()), 0xff);
            groups.push(RowGroup { rows: start..start + length, matrix });
        }
        let (num_rows, all_packed) = (all.len() / linear.in_bytes(), matrices.concat());
        for isa in Isa::available() {
            let out = run_product(&linear, all.as_ptr(), num_rows, &all_packed, |product| {
                // SAFETY: the lengths are as the linear says, and the instructions are available ones.
                unsafe { product.run_groups(&groups, isa, &mut Pool::new(num_threads)) };
            });
            for RowGroup { rows, matrix } in &groups {
                let x = &all[rows.start * linear.in_bytes()..rows.end * linear.in_bytes()];
                let out_bytes = linear.out_features * linear.dtype.bytes();
                let found = &out[rows.start * out_bytes..rows.end * out_bytes];
                prop_assert_eq!(found, &run(&linear, isa, 1, x, &matrices[*matrix])[..], "{:?}", isa);
            }
        }
    }

    #[test]
    fn rows_come_out_as_they_were_packed((linear, weight, _) in products()) {
        let packed = packed(&linear, &weight);
        let indices: Vec<i32> = (0..linear.out_features as i32).rev().collect();
        let out = look_up(&linear, &packed, &indices).expect("all of these are there");
        for (&index, out) in indices.iter().zip(out.chunks_exact(linear.in_bytes())) {
            let row = &weight[index as usize * row_bytes(&linear)..][..row_bytes(&linear)];
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
        dtype in prop::sample::select(DType::ALL.to_vec()),
        (groups, rows, out_features) in (1..6_usize, 1..40_usize, 1..70_usize),
        bytes in prop::collection::vec(any::<u8>(), 18 * 6 * 70),
        x in prop::collection::vec(-2.0..2.0_f32, 40 * 6 * GROUP),
    ) {
        let four = Linear { format: Format::Int8(Int8Source::Q4_0), dtype, in_features: groups * GROUP, out_features };
        let eight = Linear { format: Format::Int8(Int8Source::Elements), ..four };
        let mut weight = bytes[..row_bytes(&four) * out_features].to_vec();
        for (index, block) in weight.chunks_exact_mut(18).enumerate() {
            block[1] &= 0xbf; // less than 2
            if index % groups == 0 {
                // A column of scale 1, by which floats are multiplied and divided without rounding.
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

/// Checks the error of float sums in any order: each of n roundings is off by at most 2⁻²⁴ of the sum of the products'
/// magnitudes (Higham, Accuracy and Stability of Numerical Algorithms, section 3.1), and one to bfloat16 by 2⁻⁸.
fn close_to_the_product(linear: &Linear, weight: &[u8], x: &[u8], packed: &[u8]) -> Result<(), TestCaseError> {
    let (w, rows) = (numbers(linear.dtype, weight), numbers(linear.dtype, x));
    let of_a_sum = f64::from(u32::try_from(linear.in_features + 1).expect("few features")) * 2.0_f64.powi(-24);
    let of_an_output = match linear.dtype {
        DType::Float32 => 0.0,
        DType::Bfloat16 => 2.0_f64.powi(-8),
        DType::Float16 => 2.0_f64.powi(-11),
    };
    let of_a_tiny_output = if linear.dtype == DType::Float16 { 2.0_f64.powi(-25) } else { 0.0 };
    for isa in Isa::available() {
        let out = numbers(linear.dtype, &run(linear, isa, 1, x, packed));
        let columns = |row| w.chunks_exact(linear.in_features).map(move |column| (row, column));
        for (out, (row, column)) in out.into_iter().zip(rows.chunks_exact(linear.in_features).flat_map(columns)) {
            let products = row.iter().zip(column).map(|(&a, &b): (&f32, &f32)| f64::from(a) * f64::from(b));
            let (sum, magnitudes) =
                products.fold((0.0, 0.0), |(sum, all), product| (sum + product, all + product.abs()));
            let tolerance =
                of_a_sum * magnitudes * (1.0 + of_an_output) + of_an_output * f64::abs(sum) + of_a_tiny_output;
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
    for format in formats() {
        let linear = Linear { format, dtype: DType::Float32, in_features: 256, out_features: 5 };
        let packed = packed(&linear, &vec![0x11; row_bytes(&linear) * 5]);
        let mut x = vec![1.0_f32; 256 * 40];
        x[256 * 7 + 3] = f32::NAN;
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
    unsafe { product.run(2, Isa::used(), &mut Pool::new(1)) };
    assert_eq!(out.map(f32::to_bits), [1.0, 2.0, 0.0, 10.0, 20.0, 0.0].map(f32::to_bits));
}

#[test]
fn no_rows_are_no_work() {
    for format in formats() {
        let linear = Linear { format, dtype: DType::Bfloat16, in_features: 256, out_features: 7 };
        let packed = packed(&linear, &vec![0; row_bytes(&linear) * 7]);
        assert_eq!(run(&linear, Isa::used(), 2, &[], &packed), Vec::<u8>::new());
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
        assert!(check(format, 100).unwrap_err().contains("100 inputs do not fill blocks of 32"));
    }
    for (format, expected) in [
        (Format::Ggml(GgmlType::Q4K), "q4_k cannot be packed from rows of q8_0: give rows of q4_k"),
        (Format::Int8(Int8Source::Q4_1), "int8 cannot be packed from rows of q8_0: give rows of q4_1"),
    ] {
        let linear = Linear { format, dtype: DType::Float32, in_features: 256, out_features: 1 };
        let rows = [row_at(Source::Ggml(GgmlType::Q8_0), 0)];
        let mut packed = vec![0; linear.packed_bytes()];
        // SAFETY: a row at 0 is zeros.
        let error = unsafe { linear.pack(&rows, &mut packed, &mut Pool::new(1)) }.unwrap_err();
        assert_eq!(error, expected);
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

#[test]
fn rows_come_from_anywhere_and_what_is_not_finite_is_named() {
    let linear = |format| Linear { format, dtype: DType::Bfloat16, in_features: 256, out_features: 3 };
    for format in formats().into_iter().map(linear) {
        let source = source_of(&format);
        let row_bytes = row_bytes(&format);
        let weight = vec![0x11; row_bytes * 3];
        let whole = packed(&format, &weight);
        let row = |index: usize| row_at(source, weight[index * row_bytes..].as_ptr().expose_provenance());
        let mut reversed = vec![0; format.packed_bytes()];
        // SAFETY: the rows are there.
        let odd = unsafe { format.pack(&[row(2), row(1), row(0)], &mut reversed, &mut Pool::new(2)) };
        assert_eq!((odd, &reversed), (Ok(None), &whole));
        // SAFETY: as above; a row at 0 is zeros.
        let odd = unsafe { format.pack(&[row(0), row_at(source, 0), row(1)], &mut reversed, &mut Pool::new(1)) };
        assert_eq!(odd, Ok(None));
        let zeros = look_up(&format, &reversed, &[1]).expect("it is there");
        assert_eq!(numbers(DType::Bfloat16, &zeros), [0.0; 256], "{format:?}");
        let places: Vec<Vec<usize>> = match source {
            Source::Ggml(GgmlType::Iq1M) => vec![vec![52, 54]], // 4 bits of an exponent in each
            Source::Ggml(blocks) => halves(blocks).iter().map(|&at| vec![at]).collect(),
            _ => vec![vec![40]],
        };
        for at in places {
            let mut damaged = weight.clone();
            for at in &at {
                damaged[row_bytes + at..][..2].fill(0xff);
            }
            assert_eq!(packed_from(&format, source, &damaged).1, Some(1), "{format:?} at {at:?}");
        }
    }
}

#[test]
fn exponents_may_be_as_small_and_as_large_as_numbers_allow() {
    let format = Format::Ggml(GgmlType::Mxfp4);
    let block =
        |exponent: u8, place: u8| -> Vec<u8> { std::iter::once(exponent).chain([place | place << 4; 16]).collect() };
    for (exponent, place) in [(0, 1), (0, 15), (1, 7), (2, 9), (252, 15), (253, 13), (254, 2), (254, 0)] {
        let weight = block(exponent, place);
        let linear = Linear { format, dtype: DType::Float32, in_features: GROUP, out_features: 1 };
        let (packed, odd) = packed_from(&linear, source_of(&linear), &weight);
        assert_eq!(odd, None, "{exponent}, {place}");
        let magnitude = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0][usize::from(place & 7)];
        let number = if place & 8 == 0 { magnitude } else { -magnitude } * 2.0_f64.powi(i32::from(exponent) - 127);
        let expected = elements(DType::Float32, &[number as f32; GROUP]);
        assert_eq!(look_up(&linear, &packed, &[0]), Ok(expected), "{exponent}, {place}");
        let mut x = [0.0_f32; GROUP];
        x[3] = 0.25;
        let x: &[u8] = bytemuck::cast_slice(&x);
        let expected = specified_by_groups(&linear, GgmlType::Mxfp4, &weight, x);
        for isa in Isa::available() {
            assert_eq!(run(&linear, isa, 1, x, &packed), expected, "{isa:?}: {exponent}, {place}");
        }
    }
    let linear = Linear { format, dtype: DType::Float32, in_features: GROUP, out_features: 2 };
    for (exponent, place) in [(255, 0), (255, 3), (254, 7), (253, 15), (254, 6)] {
        let weight = [block(127, 3), block(exponent, place)].concat();
        assert_eq!(packed_from(&linear, source_of(&linear), &weight).1, Some(1), "{exponent}, {place}");
    }
}

#[test]
fn floats_are_packed_from_any_source() {
    for blocks in GgmlType::ALL {
        let source = Source::Ggml(blocks);
        let weight: Vec<u8> = (0..source.row_bytes(256) * 2).map(|at| (at * 7 % 251) as u8).collect();
        let weight = with_tame_scales(blocks, weight);
        let linear = Linear { format: Format::Float, dtype: DType::Float32, in_features: 256, out_features: 2 };
        let (packed, odd) = packed_from(&linear, source, &weight);
        assert_eq!(odd, None);
        let kept = Linear { format: Format::Ggml(blocks), ..linear };
        let expected = look_up(&kept, &self::packed(&kept, &weight), &[0, 1]);
        assert_eq!(look_up(&linear, &packed, &[0, 1]), expected, "{blocks:?}");
    }
    let linear = Linear { format: Format::Float, dtype: DType::Bfloat16, in_features: 2, out_features: 1 };
    let (packed, _) = packed_from(&linear, Source::Elements(DType::Float16), &[0x00, 0x3c, 0x00, 0xc5]);
    assert_eq!(look_up(&linear, &packed, &[0]), Ok(elements(DType::Bfloat16, &[1.0, -5.0])));
}

/// Rows of bytes, with scales for every `features` features.
fn scaled(source: Source, bytes: &[u8], scales: &[f32], num_rows: usize, features: usize) -> Vec<Row> {
    let (row_bytes, row_scales) = (bytes.len() / num_rows, scales.len() / num_rows);
    let row = |row: usize| Row {
        source,
        address: bytes[row * row_bytes..].as_ptr().expose_provenance(),
        scales: Scales { address: scales[row * row_scales..].as_ptr().expose_provenance(), features },
    };
    (0..num_rows).map(row).collect()
}

#[test]
fn bytes_are_multiplied_with_the_scales_of_their_row_and_group() {
    let bytes = [1, 0xfe, 127, 0x80, 5, 6, 7, 8, 9, 10];
    let scales = [1.0, 10.0, 100.0, 0.5, 0.25, 2.0];
    let mut out = [0.0; 10];
    let rows = scaled(Source::Int8, &bytes, &scales, 2, 2);
    // SAFETY: the rows and their scales are there.
    unsafe { read_rows(&rows, 5, &mut out, &mut Pool::new(1)) };
    let expected = [1.0, -2.0, 1270.0, -1280.0, 500.0, 3.0, 3.5, 2.0, 2.25, 20.0];
    assert_eq!(out.map(f32::to_bits), expected.map(f32::to_bits));
    let rows = scaled(Source::Float8, &[0x38, 0xb8, 0x7e, 0x40, 0x01, 0x00], &[2.0, 3.0], 1, 4);
    let mut out = [0.0; 6];
    // SAFETY: as above.
    unsafe { read_rows(&rows, 6, &mut out, &mut Pool::new(1)) };
    assert_eq!(out.map(f32::to_bits), [2.0, -2.0, 896.0, 4.0, 3.0 / 512.0, 0.0].map(f32::to_bits));
}

#[test]
fn integers_with_one_scale_are_kept() {
    let int8 = Format::Int8(Int8Source::Elements);
    let linear = Linear { format: int8, dtype: DType::Float32, in_features: 200, out_features: 2 };
    let bytes: Vec<u8> = (0..400).map(|at| if at < 200 { (at % 8) as u8 } else { 0x80 }).collect();
    let pack = |scales: [f32; 2]| {
        let rows = scaled(Source::Int8, &bytes, &scales, 2, 200);
        let mut packed = vec![0xff; linear.packed_bytes()];
        // SAFETY: the rows and their scales are there.
        let odd = unsafe { linear.pack(&rows, &mut packed, &mut Pool::new(1)) };
        (packed, odd)
    };
    let (packed, odd) = pack([0.3, 7.0]);
    assert_eq!(odd, Ok(None));
    let expected: Vec<f32> =
        (0..400).map(|at| if at < 200 { 0.3 * f32::from((at % 8) as u8) } else { -896.0 }).collect();
    assert_eq!(look_up(&linear, &packed, &[0, 1]), Ok(elements(DType::Float32, &expected)));
    // Inputs that are whole numbers up to 127 × 128 are not rounded: every sum is exact, on every instruction set.
    let mut x = vec![16_256.0_f32; 200];
    x[1] = -16_256.0;
    let exact = -128.0 * 7.0 * 16_256.0 * 198.0;
    for isa in Isa::available() {
        let products = numbers(DType::Float32, &run(&linear, isa, 1, bytemuck::cast_slice(&x), &packed));
        assert_eq!(products[1].to_bits(), f32::to_bits(exact), "{isa:?}");
    }
    assert_eq!(pack([0.3, f32::NAN]).1, Ok(Some(1)));
}
