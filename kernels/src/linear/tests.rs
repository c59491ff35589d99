use proptest::prelude::*;

use super::tile::round_to_bfloat16;
use super::*;

fn elements(element: Element, numbers: &[f32]) -> Vec<u8> {
    match element {
        Element::Float32 => bytemuck::cast_slice(numbers).to_vec(),
        Element::Bfloat16 => numbers.iter().flat_map(|&number| round_to_bfloat16(number).to_ne_bytes()).collect(),
    }
}

fn numbers(element: Element, bytes: &[u8]) -> Vec<f32> {
    match element {
        Element::Float32 => bytes.chunks_exact(4).map(bytemuck::pod_read_unaligned).collect(),
        Element::Bfloat16 => {
            let halves = bytes.chunks_exact(2).map(bytemuck::pod_read_unaligned::<u16>);
            halves.map(|half| f32::from_bits(u32::from(half) << 16)).collect()
        }
    }
}

fn run(linear: &Linear, isa: Isa, num_threads: usize, x: &[u8], packed: &[u8]) -> Vec<u8> {
    let num_rows = x.len() / linear.element.bytes() / linear.in_features;
    let mut out = vec![0xff; num_rows * linear.out_features * linear.element.bytes()];
    linear.run(isa, &mut Pool::new(num_threads), x, packed, &mut out);
    out
}

prop_compose! {
    fn products()(
        bfloat16 in any::<bool>(), rows in 1..30_usize, in_features in 1..70_usize, out_features in 1..100_usize
    )(
        weight in prop::collection::vec(-2.0..2.0_f32, in_features * out_features),
        x in prop::collection::vec(-2.0..2.0_f32, rows * in_features),
        bfloat16 in Just(bfloat16), in_features in Just(in_features), out_features in Just(out_features),
    ) -> (Linear, Vec<u8>, Vec<u8>) {
        let element = if bfloat16 { Element::Bfloat16 } else { Element::Float32 };
        (Linear { element, in_features, out_features }, elements(element, &weight), elements(element, &x))
    }
}

fn packed(linear: &Linear, weight: &[u8]) -> Vec<u8> {
    let mut packed = vec![0xff; linear.packed_bytes()];
    linear.pack(weight, &mut packed);
    packed
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn every_kernel_computes_the_product((linear, weight, x) in products()) {
        let packed = packed(&linear, &weight);
        let (w, rows) = (numbers(linear.element, &weight), numbers(linear.element, &x));
        let tolerance = if linear.element == Element::Float32 { 1e-5 } else { 1e-2 };
        for isa in Isa::available() {
            let out = numbers(linear.element, &run(&linear, isa, 1, &x, &packed));
            let expected = rows.chunks_exact(linear.in_features).flat_map(|row| {
                w.chunks_exact(linear.in_features).map(|column| {
                    row.iter().zip(column).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum::<f64>()
                })
            });
            for (out, expected) in out.into_iter().zip(expected) {
                prop_assert!((f64::from(out) - expected).abs() <= tolerance * (1.0 + expected.abs() * 2.0), "{isa:?}");
            }
        }
    }

    #[test]
    fn a_row_is_the_same_alone_and_among_others((linear, weight, x) in products(), num_threads in 1..4_usize) {
        let packed = packed(&linear, &weight);
        for isa in Isa::available() {
            let alone = x.chunks_exact(linear.in_features * linear.element.bytes());
            let alone: Vec<u8> = alone.flat_map(|row| run(&linear, isa, 1, row, &packed)).collect();
            prop_assert_eq!(&run(&linear, isa, num_threads, &x, &packed), &alone, "{:?}", isa);
        }
    }

    #[test]
    fn rows_come_out_as_they_were_packed((linear, weight, _) in products()) {
        let packed = packed(&linear, &weight);
        let row_bytes = linear.in_features * linear.element.bytes();
        let mut out = vec![0; row_bytes];
        for (row, expected) in weight.chunks_exact(row_bytes).enumerate() {
            linear.unpack_row(&packed, row, &mut out);
            prop_assert_eq!(&out, expected);
        }
    }
}

#[test]
fn many_rows_are_cut_into_blocks_and_tiles() {
    let linear = Linear { element: Element::Float32, in_features: 3, out_features: 33 };
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
        assert_eq!(numbers(Element::Float32, &run(&linear, isa, 3, bytemuck::cast_slice(&x), &packed)), expected);
    }
}

#[test]
fn no_rows_are_no_work() {
    let linear = Linear { element: Element::Bfloat16, in_features: 5, out_features: 7 };
    let packed = packed(&linear, &[0; 70]);
    assert_eq!(run(&linear, Isa::best(), 2, &[], &packed), Vec::<u8>::new());
}

#[test]
fn parts_are_as_equal_as_can_be() {
    let parts: Vec<_> = equal_parts(2..34, 12).collect();
    assert_eq!(parts, [2..12, 12..23, 23..34]);
    assert_eq!(equal_parts(5..5, 3).count(), 0);
}

#[test]
fn rounding_to_bfloat16_goes_to_the_nearest_even() {
    let cases =
        [(1.0, 0x3f80), (1.003_906_25, 0x3f80), (1.011_718_75, 0x3f82), (f32::INFINITY, 0x7f80), (3.4e38, 0x7f80)];
    for (value, expected) in cases {
        assert_eq!(round_to_bfloat16(value), expected, "{value}");
    }
    assert!(f32::from_bits(u32::from(round_to_bfloat16(f32::from_bits(0x7f80_0001))) << 16).is_nan());
}
