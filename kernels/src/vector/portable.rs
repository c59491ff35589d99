//! Vectors in plain Rust.
#![expect(clippy::inline_always, reason = "see `Vector`")]

use super::{LANES, Vector};
use crate::dtype::{from_float16, round_to_bfloat16, round_to_float16};

#[derive(Clone, Copy)]
pub(super) struct Portable([f32; LANES]);

impl Portable {
    #[inline(always)]
    fn with(mut self, other: Self, op: impl Fn(f32, f32) -> f32) -> Self {
        for (lane, other) in self.0.iter_mut().zip(other.0) {
            *lane = op(*lane, other);
        }
        self
    }
}

impl Vector for Portable {
    const ACCUMULATORS: usize = 4;

    #[inline(always)]
    unsafe fn splat(value: f32) -> Self {
        Self([value; LANES])
    }

    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        // SAFETY: as the caller promises.
        Self(unsafe { from.cast::<[f32; LANES]>().read_unaligned() })
    }

    #[inline(always)]
    unsafe fn load_bfloat16(from: *const u16) -> Self {
        // SAFETY: as the caller promises.
        let halves = unsafe { from.cast::<[u16; LANES]>().read_unaligned() };
        Self(halves.map(|half| f32::from_bits(u32::from(half) << 16)))
    }

    #[inline(always)]
    unsafe fn load_float16(from: *const u16) -> Self {
        // SAFETY: as the caller promises.
        Self(unsafe { from.cast::<[u16; LANES]>().read_unaligned() }.map(from_float16))
    }

    #[inline(always)]
    unsafe fn load_transposed(from: &[*const f32; LANES]) -> [Self; LANES] {
        let mut vectors = [Self([0.0; LANES]); LANES];
        for (lane, &from) in from.iter().enumerate() {
            // SAFETY: as the caller promises.
            let words = unsafe { from.cast::<[f32; LANES]>().read_unaligned() };
            vectors.iter_mut().zip(words).for_each(|(vector, word)| vector.0[lane] = word);
        }
        vectors
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        // SAFETY: as the caller promises.
        unsafe { to.cast::<[f32; LANES]>().write_unaligned(self.0) }
    }

    #[inline(always)]
    unsafe fn store_bfloat16(self, to: *mut u16) {
        // SAFETY: as the caller promises.
        unsafe { to.cast::<[u16; LANES]>().write_unaligned(self.0.map(round_to_bfloat16)) }
    }

    #[inline(always)]
    unsafe fn store_float16(self, to: *mut u16) {
        // SAFETY: as the caller promises.
        unsafe { to.cast::<[u16; LANES]>().write_unaligned(self.0.map(round_to_float16)) }
    }

    #[inline(always)]
    fn add(self, other: Self) -> Self {
        self.with(other, |a, b| a + b)
    }

    #[inline(always)]
    fn sub(self, other: Self) -> Self {
        self.with(other, |a, b| a - b)
    }

    #[inline(always)]
    fn mul(self, other: Self) -> Self {
        self.with(other, |a, b| a * b)
    }

    #[inline(always)]
    fn div(self, other: Self) -> Self {
        self.with(other, |a, b| a / b)
    }

    #[inline(always)]
    fn mul_add(self, factor: Self, other: Self) -> Self {
        self.mul(factor).add(other)
    }

    #[inline(always)]
    fn max(self, other: Self) -> Self {
        self.with(other, |a, b| if a > b { a } else { b })
    }

    #[inline(always)]
    fn min(self, other: Self) -> Self {
        self.with(other, |a, b| if a < b { a } else { b })
    }

    #[inline(always)]
    fn round(self) -> Self {
        Self(self.0.map(f32::round_ties_even))
    }

    #[inline(always)]
    fn scale(self, exponent: Self) -> Self {
        self.with(exponent, |a, exponent| a * f32::from_bits(((exponent as i32 + 127) as u32) << 23))
    }

    #[inline(always)]
    fn first(self, count: usize, other: Self) -> Self {
        let mut lanes = other.0;
        lanes[..count].copy_from_slice(&self.0[..count]);
        Self(lanes)
    }

    #[inline(always)]
    fn at_least(self, bound: Self) -> Self {
        self.with(bound, |a, bound| if a >= bound { a } else { 0.0 })
    }

    #[inline(always)]
    fn lanes_at_least(self, bound: Self) -> u32 {
        let lanes = self.0.into_iter().zip(bound.0).enumerate();
        lanes.fold(0, |bits, (lane, (a, bound))| bits | u32::from(a >= bound) << lane)
    }

    #[inline(always)]
    fn select(self, lanes: u32, other: Self) -> Self {
        let mut selected = other.0;
        for (lane, (to, own)) in selected.iter_mut().zip(self.0).enumerate() {
            if lanes >> lane & 1 == 1 {
                *to = own;
            }
        }
        Self(selected)
    }

    #[inline(always)]
    fn bfloat16_pairs(self) -> [Self; 2] {
        let bits = self.0.map(f32::to_bits);
        [Self(bits.map(|bits| f32::from_bits(bits << 16))), Self(bits.map(|bits| f32::from_bits(bits & 0xffff_0000)))]
    }

    #[inline(always)]
    fn float16_pairs(self) -> [Self; 2] {
        [0, 16].map(|shift| Self(self.0.map(|word| from_float16((word.to_bits() >> shift) as u16))))
    }

    #[inline(always)]
    fn sum(self) -> f32 {
        let mut lanes = self.0;
        for half in [8, 4, 2, 1] {
            for lane in 0..half {
                lanes[lane] += lanes[lane + half];
            }
        }
        lanes[0]
    }

    #[inline(always)]
    fn greatest(self) -> f32 {
        self.0.into_iter().reduce(|a, b| if a > b { a } else { b }).unwrap_or(f32::NEG_INFINITY)
    }

    #[inline(always)]
    fn lowest(self) -> f32 {
        self.0[0]
    }
}
