//! Vectors of sixteen float32 numbers in the machine's instructions, which are chosen only here. Knows no op: an op is
//! written once, over any `Vector`, and `run` compiles it for each.
//!
//! Every kind of vector has as many lanes and adds them up in the same order. AVX2 and AVX-512 give the same bits;
//! plain Rust rounds a product before it adds, as it has no fused instruction to rely on.
#![expect(clippy::inline_always, reason = "a method takes its caller's instructions only where it is inlined")]

mod portable;
#[cfg(target_arch = "x86_64")]
mod x86;

use crate::dtype::{from_bfloat16, from_float16};
use crate::isa::Isa;
use portable::Portable;
#[cfg(target_arch = "x86_64")]
pub(crate) use x86::Avx512;

/// Numbers in a vector.
pub(crate) const LANES: usize = 16;

/// Sixteen float32 numbers. The existence of a value proves that the machine has its type's instructions, so only
/// functions that create one from other data are unsafe.
pub(crate) trait Vector: Copy {
    /// Number of vectors that fit into registers, beside a few operands.
    const ACCUMULATORS: usize;

    /// # Safety
    ///
    /// The machine has the type's instructions.
    unsafe fn splat(value: f32) -> Self;
    /// # Safety
    ///
    /// See `splat`; `from` points to sixteen numbers.
    unsafe fn load(from: *const f32) -> Self;
    /// # Safety
    ///
    /// See `splat`; `from` points to sixteen numbers.
    unsafe fn load_bfloat16(from: *const u16) -> Self;
    /// # Safety
    ///
    /// See `splat`; `from` points to sixteen numbers.
    unsafe fn load_float16(from: *const u16) -> Self;
    /// Lane `i` of vector `j` is word `j` behind pointer `i`: sixteen words are read behind each.
    ///
    /// # Safety
    ///
    /// See `splat`; the words are valid.
    unsafe fn load_transposed(from: &[*const f32; LANES]) -> [Self; LANES];
    /// # Safety
    ///
    /// There is room for sixteen numbers.
    unsafe fn store(self, to: *mut f32);
    /// Round each to nearest, ties to even.
    ///
    /// # Safety
    ///
    /// There is room for sixteen numbers.
    unsafe fn store_bfloat16(self, to: *mut u16);
    /// Round each to nearest, ties to even.
    ///
    /// # Safety
    ///
    /// There is room for sixteen numbers.
    unsafe fn store_float16(self, to: *mut u16);

    fn add(self, other: Self) -> Self;
    fn sub(self, other: Self) -> Self;
    fn mul(self, other: Self) -> Self;
    fn div(self, other: Self) -> Self;
    /// `self * factor + other`.
    fn mul_add(self, factor: Self, other: Self) -> Self;
    /// The greater one; `other` if either is NaN.
    fn max(self, other: Self) -> Self;
    /// The lesser one; `other` if either is NaN.
    fn min(self, other: Self) -> Self;
    /// Round to the nearest whole number.
    fn round(self) -> Self;
    /// `self * 2^exponent`, for whole exponents from -126 to 127.
    fn scale(self, exponent: Self) -> Self;
    /// The first `count` lanes of `self`, then `other`'s.
    fn first(self, count: usize, other: Self) -> Self;
    /// `self` where `self >= bound`, zero elsewhere.
    fn at_least(self, bound: Self) -> Self;
    /// The lanes where `self >= bound`: bit i is lane i.
    fn lanes_at_least(self, bound: Self) -> u32;
    /// The lanes whose bit is set, and `other`'s where it is not.
    fn select(self, lanes: u32, other: Self) -> Self;
    /// The lower bfloat16 of each word, and the upper one.
    fn bfloat16_pairs(self) -> [Self; 2];
    /// The lower float16 of each word, and the upper one.
    fn float16_pairs(self) -> [Self; 2];
    /// Add lanes `i` and `i + 8`, then lanes `i` and `i + 4` of the result, and so on.
    fn sum(self) -> f32;
    /// The greatest lane.
    fn greatest(self) -> f32;
    /// Lane 0.
    fn lowest(self) -> f32;

    /// The exponential, to a unit or two in the last place; 0 of arguments up to -87, and that of 88 for greater ones.
    /// Weights that hardly differ from 0 would make sums of subnormal numbers, which take ten times as long.
    #[inline(always)]
    fn exp(self) -> Self {
        // SAFETY: `self` exists.
        let constant = |value| unsafe { Self::splat(value) };
        let least = constant(-87.0);
        let x = least.max(constant(88.0).min(self)); // in this order, NaN stays NaN
        let exponent = x.mul(constant(std::f32::consts::LOG2_E)).round();
        // ln 2 in two parts, the first short enough for the product with any exponent to be exact.
        let rest = exponent.mul_add(constant(-0.693_359_4), x);
        let rest = exponent.mul_add(constant(2.121_944_4e-4), rest);
        // exp(r) = 1 + r + r² q(r); q minimises the greatest relative error for |r| up to ln 2 / 2, which is 3e-9.
        let q = constant(0.001_381_461_3).mul_add(rest, constant(0.008_368_71));
        let q = q.mul_add(rest, constant(0.041_668_39));
        let q = q.mul_add(rest, constant(0.166_665_21));
        let q = q.mul_add(rest, constant(0.499_999_94));
        let rest_and_q = q.mul(rest).mul_add(rest, rest);
        constant(0.0).select(least.lanes_at_least(self), rest_and_q.add(constant(1.0)).scale(exponent))
    }

    /// `1 / (1 + exp(-x))`.
    #[inline(always)]
    fn sigmoid(self) -> Self {
        // SAFETY: `self` exists.
        let (zero, one) = unsafe { (Self::splat(0.0), Self::splat(1.0)) };
        one.div(zero.sub(self).exp().add(one))
    }

    /// The sigmoid linear unit, `x * sigmoid(x)`.
    #[inline(always)]
    fn silu(self) -> Self {
        // SAFETY: `self` exists.
        let (zero, one) = unsafe { (Self::splat(0.0), Self::splat(1.0)) };
        self.div(zero.sub(self).exp().add(one))
    }

    /// `log(1 + exp(x))`, to a few units in the last place.
    #[inline(always)]
    fn softplus(self) -> Self {
        // SAFETY: `self` exists.
        let constant = |value| unsafe { Self::splat(value) };
        let (zero, two) = (constant(0.0), constant(2.0));
        // log(1 + t) is twice the area tangent of s = t / (t + 2), which is up to 1/3: s + s³ / 3 + s⁵ / 5 and so on.
        let t = zero.min(self).sub(zero.max(self)).exp();
        let s = t.div(t.add(two));
        let square = s.mul(s);
        let series = square.mul_add(constant(1.0 / 15.0), constant(1.0 / 13.0));
        let series = series.mul_add(square, constant(1.0 / 11.0));
        let series = series.mul_add(square, constant(1.0 / 9.0));
        let series = series.mul_add(square, constant(1.0 / 7.0));
        let series = series.mul_add(square, constant(1.0 / 5.0));
        let series = series.mul_add(square, constant(1.0 / 3.0));
        let logarithm = two.mul(series.mul(square).mul_add(s, s));
        logarithm.add(zero.max(self))
    }

    /// The hyperbolic tangent, to an absolute error of 5e-7.
    #[inline(always)]
    fn tanh(self) -> Self {
        // SAFETY: `self` exists.
        let constant = |value| unsafe { Self::splat(value) };
        constant(1.0).sub(constant(2.0).div(self.add(self).exp().add(constant(1.0))))
    }

    /// The error function, to an absolute error of 1e-6 (Abramowitz and Stegun, 7.1.26).
    #[inline(always)]
    fn erf(self) -> Self {
        // SAFETY: `self` exists.
        let constant = |value| unsafe { Self::splat(value) };
        let (zero, one) = (constant(0.0), constant(1.0));
        let magnitude = zero.sub(self).max(self);
        let t = one.div(magnitude.mul_add(constant(0.327_591_1), one));
        let polynomial = t.mul_add(constant(1.061_405_4), constant(-1.453_152));
        let polynomial = t.mul_add(polynomial, constant(1.421_413_7));
        let polynomial = t.mul_add(polynomial, constant(-0.284_496_74));
        let polynomial = t.mul_add(polynomial, constant(0.254_829_6)).mul(t);
        let erf = one.sub(polynomial.mul(zero.sub(magnitude.mul(magnitude)).exp()));
        erf.select(self.lanes_at_least(zero), zero.sub(erf))
    }
}

/// A storage type of numbers: read into, and written from, lanes of float32.
pub(crate) trait Storage: Copy + Default + Sync {
    /// The number, exactly.
    fn widen(self) -> f32;
    /// # Safety
    ///
    /// See `Vector::load`.
    unsafe fn load<V: Vector>(from: *const Self) -> V;
    /// # Safety
    ///
    /// See `Vector::store`.
    unsafe fn store<V: Vector>(vector: V, to: *mut Self);

    /// The numbers in each word of a vector that was loaded as words: the first, and the second where there are two.
    fn in_words<V: Vector>(words: V) -> [V; 2];

    /// Load sixteen numbers, or as many as are left, and zeros.
    ///
    /// # Safety
    ///
    /// See `Vector::load`, but for `left` numbers where those are fewer.
    #[inline(always)]
    unsafe fn load_up_to<V: Vector>(from: *const Self, left: usize) -> V {
        // SAFETY: as the caller promises; a vector has room for its first lanes.
        unsafe {
            if left >= LANES {
                return Self::load(from);
            }
            let mut numbers = [Self::default(); LANES];
            std::ptr::copy_nonoverlapping(from, numbers.as_mut_ptr(), left);
            Self::load(numbers.as_ptr())
        }
    }

    /// Store sixteen numbers, or as many as there is room for.
    ///
    /// # Safety
    ///
    /// See `Vector::store`, but for `left` numbers where those are fewer.
    #[inline(always)]
    unsafe fn store_up_to<V: Vector>(vector: V, to: *mut Self, left: usize) {
        // SAFETY: as the caller promises.
        unsafe {
            if left >= LANES {
                return Self::store(vector, to);
            }
            let mut numbers = [Self::default(); LANES];
            Self::store(vector, numbers.as_mut_ptr());
            std::ptr::copy_nonoverlapping(numbers.as_ptr(), to, left);
        }
    }
}

impl Storage for f32 {
    fn widen(self) -> f32 {
        self
    }

    #[inline(always)]
    unsafe fn load<V: Vector>(from: *const Self) -> V {
        // SAFETY: as the caller promises.
        unsafe { V::load(from) }
    }

    #[inline(always)]
    unsafe fn store<V: Vector>(vector: V, to: *mut Self) {
        // SAFETY: as the caller promises.
        unsafe { vector.store(to) }
    }

    #[inline(always)]
    fn in_words<V: Vector>(words: V) -> [V; 2] {
        [words; 2]
    }
}

/// The upper half of a float32.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(transparent)]
pub(crate) struct Bfloat16(pub(crate) u16);

impl Storage for Bfloat16 {
    fn widen(self) -> f32 {
        from_bfloat16(self.0)
    }

    #[inline(always)]
    unsafe fn load<V: Vector>(from: *const Self) -> V {
        // SAFETY: as the caller promises.
        unsafe { V::load_bfloat16(from.cast()) }
    }

    #[inline(always)]
    unsafe fn store<V: Vector>(vector: V, to: *mut Self) {
        // SAFETY: as the caller promises.
        unsafe { vector.store_bfloat16(to.cast()) }
    }

    #[inline(always)]
    fn in_words<V: Vector>(words: V) -> [V; 2] {
        words.bfloat16_pairs()
    }
}

/// A sign, five bits of an exponent, and ten of a fraction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(transparent)]
pub(crate) struct Float16(pub(crate) u16);

impl Storage for Float16 {
    fn widen(self) -> f32 {
        from_float16(self.0)
    }

    #[inline(always)]
    unsafe fn load<V: Vector>(from: *const Self) -> V {
        // SAFETY: as the caller promises.
        unsafe { V::load_float16(from.cast()) }
    }

    #[inline(always)]
    unsafe fn store<V: Vector>(vector: V, to: *mut Self) {
        // SAFETY: as the caller promises.
        unsafe { vector.store_float16(to.cast()) }
    }

    #[inline(always)]
    fn in_words<V: Vector>(words: V) -> [V; 2] {
        words.float16_pairs()
    }
}

/// An expression in which a name is the storage type of a dtype: `for_dtype!(dtype, X => self.run_as::<X>())`.
macro_rules! for_dtype {
    ($dtype:expr, $storage:ident => $result:expr) => {
        match $dtype {
            $crate::dtype::DType::Float32 => {
                type $storage = f32;
                $result
            }
            $crate::dtype::DType::Bfloat16 => {
                type $storage = $crate::vector::Bfloat16;
                $result
            }
            $crate::dtype::DType::Float16 => {
                type $storage = $crate::vector::Float16;
                $result
            }
        }
    };
}
pub(crate) use for_dtype;

/// Prefetch memory.
#[inline(always)]
pub(crate) fn prefetch(address: usize, bytes: usize) {
    const LINE_BYTES: usize = 64;
    for offset in (0..bytes).step_by(LINE_BYTES) {
        #[cfg(target_arch = "x86_64")]
        x86::prefetch(std::ptr::without_provenance(address + offset));
        #[cfg(not(target_arch = "x86_64"))]
        let _ = address + offset;
    }
}

/// Part of an op, written over any vector.
pub(crate) trait Kernel: Sync {
    /// Must be `#[inline(always)]`, and all functions that it calls with a vector, too.
    ///
    /// # Safety
    ///
    /// The machine has V's instructions; the kernel's pointers are valid, and nothing else touches the output of
    /// this part.
    unsafe fn run<V: Vector>(&self, part: usize);
}

/// Run a part of a kernel in the instructions of `isa`.
///
/// # Safety
///
/// See `Kernel::run`; the machine has `isa`.
pub(crate) unsafe fn run<K: Kernel>(isa: Isa, kernel: &K, part: usize) {
    // SAFETY: as the caller promises.
    unsafe {
        match isa {
            #[cfg(target_arch = "x86_64")]
            _ if isa >= Isa::Avx512 => x86::run_avx512(kernel, part),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 | Isa::AvxVnni => x86::run_avx2(kernel, part),
            _ => kernel.run::<Portable>(part),
        }
    }
}

#[cfg(test)]
mod tests;
