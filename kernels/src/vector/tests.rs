#![expect(clippy::inline_always, reason = "see `Vector`")]

use proptest::prelude::*;

use std::marker::PhantomData;

use super::*;
use crate::dtype::{round_to_bfloat16, round_to_float16};

/// A function of numbers, in vectors of any kind.
struct Map<'a, F> {
    input: &'a [f32],
    out: *mut f32,
    op: F,
}

// SAFETY: the tests use one thread.
unsafe impl<F> Sync for Map<'_, F> {}

trait Operation {
    fn apply<V: Vector>(&self, input: V) -> V;
}

impl<F: Operation> Kernel for Map<'_, F> {
    #[inline(always)]
    unsafe fn run<V: Vector>(&self, _: usize) {
        for at in (0..self.input.len()).step_by(LANES) {
            let left = self.input.len() - at;
            // SAFETY: there are as many outputs as inputs.
            unsafe {
                f32::store_up_to(
                    self.op.apply::<V>(f32::load_up_to(&raw const self.input[at], left)),
                    self.out.add(at),
                    left,
                );
            }
        }
    }
}

fn map(isa: Isa, input: &[f32], op: impl Operation) -> Vec<f32> {
    let mut out = vec![f32::NAN; input.len()];
    // SAFETY: there are as many outputs as inputs; the tests ask for what the machine has.
    unsafe { run(isa, &Map { input, out: out.as_mut_ptr(), op }, 0) };
    out
}

struct Exp;

impl Operation for Exp {
    #[inline(always)]
    fn apply<V: Vector>(&self, input: V) -> V {
        input.exp()
    }
}

struct Tanh;

impl Operation for Tanh {
    #[inline(always)]
    fn apply<V: Vector>(&self, input: V) -> V {
        input.tanh()
    }
}

struct Softplus;

impl Operation for Softplus {
    #[inline(always)]
    fn apply<V: Vector>(&self, input: V) -> V {
        input.softplus()
    }
}

struct Erf;

impl Operation for Erf {
    #[inline(always)]
    fn apply<V: Vector>(&self, input: V) -> V {
        input.erf()
    }
}

/// The error function by its series, which converges for every number.
fn erf(x: f64) -> f64 {
    let (mut term, mut sum) = (x, x);
    for n in 1..200 {
        term *= -x * x / f64::from(n);
        sum += term / f64::from(2 * n + 1);
    }
    sum * std::f64::consts::FRAC_2_SQRT_PI
}

struct Sum;

impl Operation for Sum {
    #[inline(always)]
    fn apply<V: Vector>(&self, input: V) -> V {
        // SAFETY: `input` exists.
        unsafe { V::splat(input.sum()) }
    }
}

struct Greatest;

impl Operation for Greatest {
    #[inline(always)]
    fn apply<V: Vector>(&self, input: V) -> V {
        // SAFETY: `input` exists.
        unsafe { V::splat(input.greatest()) }
    }
}

struct Transpose<'a> {
    rows: &'a [f32],
    out: *mut f32,
}

// SAFETY: the tests use one thread.
unsafe impl Sync for Transpose<'_> {}

impl Kernel for Transpose<'_> {
    #[inline(always)]
    unsafe fn run<V: Vector>(&self, _: usize) {
        // SAFETY: the test gives sixteen rows of sixteen.
        unsafe {
            let rows = std::array::from_fn(|row| self.rows[row * LANES..].as_ptr());
            for (column, vector) in V::load_transposed(&rows).into_iter().enumerate() {
                vector.store(self.out.add(column * LANES));
            }
        }
    }
}

proptest! {
    #[test]
    fn tanh_and_erf_are_near_those_of_64_bits(input in prop::collection::vec(-4.0..4.0_f32, 1..40)) {
        for isa in Isa::available() {
            for (&x, found) in input.iter().zip(map(isa, &input, Tanh)) {
                prop_assert!((f64::from(found) - f64::from(x).tanh()).abs() < 5e-7, "{isa:?}: tanh({x}) is {found}");
            }
            for (&x, found) in input.iter().zip(map(isa, &input, Erf)) {
                prop_assert!((f64::from(found) - erf(f64::from(x))).abs() < 1e-6, "{isa:?}: erf({x}) is {found}");
            }
        }
    }
}

#[test]
fn softplus_is_near_in_proportion() {
    let input: Vec<f32> = (-860..1000_i16).map(|tenth| f32::from(tenth) / 10.0).collect();
    for isa in Isa::available() {
        for (&x, found) in input.iter().zip(map(isa, &input, Softplus)) {
            let expected = f64::from(x).exp().ln_1p();
            assert!((f64::from(found) - expected).abs() <= 1e-6 * expected, "{isa:?}: softplus({x}) is {found}");
        }
        let ends = map(isa, &[-100.0, f32::NEG_INFINITY, f32::INFINITY, f32::NAN], Softplus);
        assert_eq!(ends[..3], [0.0, 0.0, f32::INFINITY]);
        assert!(ends[3].is_nan());
    }
}

#[test]
fn tanh_and_erf_end_at_one_and_keep_what_is_not_a_number() {
    let input = [f32::INFINITY, f32::NEG_INFINITY, 100.0, -100.0, 0.0];
    for isa in Isa::available() {
        assert_eq!(map(isa, &input, Tanh), [1.0, -1.0, 1.0, -1.0, 0.0]);
        assert_eq!(map(isa, &input[2..4], Erf), [1.0, -1.0]);
        assert!(map(isa, &[f32::NAN], Tanh)[0].is_nan());
    }
}

proptest! {
    #[test]
    fn exp_is_right_to_two_units(x in prop::collection::vec(-86.99..88.0_f32, 1..40)) {
        for isa in Isa::available() {
            for (&x, out) in x.iter().zip(map(isa, &x, Exp)) {
                let expected = f64::from(x).exp();
                prop_assert!((f64::from(out) - expected).abs() <= expected * 2.4e-7, "{isa:?}: exp({x}) is {out}");
            }
        }
    }

    #[test]
    fn lanes_add_up_in_one_order(x in prop::array::uniform16(-1e3..1e3_f32)) {
        let mut expected = x;
        for half in [8, 4, 2, 1] {
            for lane in 0..half {
                expected[lane] += expected[lane + half];
            }
        }
        let greatest = x.into_iter().fold(f32::NEG_INFINITY, f32::max);
        for isa in Isa::available() {
            prop_assert_eq!(map(isa, &x, Sum)[0].to_bits(), expected[0].to_bits());
            prop_assert_eq!(map(isa, &x, Greatest)[0].to_bits(), greatest.to_bits());
        }
    }
}

#[test]
fn exp_at_its_ends() {
    for isa in Isa::available() {
        let out = map(isa, &[0.0, -0.0, f32::NEG_INFINITY, f32::INFINITY, f32::NAN], Exp);
        assert_eq!(out[..2], [1.0, 1.0]);
        assert_eq!(out[2].to_bits(), 0);
        assert!(out[3] > 1e38 && out[3].is_finite());
        assert!(out[4].is_nan());
    }
}

struct RoundTo<X>(PhantomData<X>);

impl<X: Storage> Operation for RoundTo<X> {
    #[inline(always)]
    fn apply<V: Vector>(&self, input: V) -> V {
        let mut rounded = [X::default(); LANES];
        // SAFETY: `input` exists, and there is room for sixteen numbers.
        unsafe {
            X::store(input, rounded.as_mut_ptr());
            X::load(rounded.as_ptr())
        }
    }
}

proptest! {
    #[test]
    fn numbers_are_stored_as_one_alone_is(bits in prop::collection::vec(any::<u32>(), 1..40), exponent in 96..144_u32) {
        // Numbers of all sizes, and of one that float16 has.
        let near = |bits: u32| f32::from_bits(bits & 0x807f_ffff | exponent << 23);
        let input: Vec<f32> = bits.iter().flat_map(|&bits| [f32::from_bits(bits), near(bits)]).collect();
        for isa in Isa::available() {
            for (&x, found) in input.iter().zip(map(isa, &input, RoundTo::<Bfloat16>(PhantomData))) {
                prop_assert_eq!(found.to_bits(), from_bfloat16(round_to_bfloat16(x)).to_bits(), "{:?}: {}", isa, x);
            }
            for (&x, found) in input.iter().zip(map(isa, &input, RoundTo::<Float16>(PhantomData))) {
                prop_assert_eq!(found.to_bits(), from_float16(round_to_float16(x)).to_bits(), "{:?}: {}", isa, x);
            }
        }
    }
}

struct AtLeast(f32);

impl Operation for AtLeast {
    #[inline(always)]
    fn apply<V: Vector>(&self, input: V) -> V {
        // SAFETY: `input` exists.
        let (bound, zero) = unsafe { (V::splat(self.0), V::splat(0.0)) };
        input.select(input.lanes_at_least(bound), zero)
    }
}

proptest! {
    #[test]
    fn lanes_are_told_and_selected_one_by_one(
        x in prop::array::uniform16(prop_oneof![-3..3_i8, Just(100)]), bound in -3..3_i8,
    ) {
        let x = x.map(|x| if x == 100 { f32::NAN } else { x.into() });
        let bound = f32::from(bound);
        let expected = x.map(|x| if x >= bound { x } else { 0.0 });
        for isa in Isa::available() {
            prop_assert_eq!(map(isa, &x, AtLeast(bound)), expected);
        }
    }
}

#[test]
fn a_square_is_transposed() {
    let square: Vec<f32> = (0..256_u16).map(f32::from).collect();
    let expected: Vec<f32> = (0..256).map(|at| square[at % LANES * LANES + at / LANES]).collect();
    for isa in Isa::available() {
        let mut out = vec![0.0; 256];
        let kernel = Transpose { rows: &square, out: out.as_mut_ptr() };
        // SAFETY: both have sixteen rows of sixteen.
        unsafe { run(isa, &kernel, 0) };
        assert_eq!(out, expected, "{isa:?}");
    }
}
