//! Root mean square and layer normalisation (arXiv 1910.07467, 1607.06450), alone or after the addition to the residual
//! stream.
#![expect(clippy::inline_always, reason = "see `Vector`")]

use std::marker::PhantomData;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::arrays::Array;
use crate::execution::execute;
use crate::isa::Isa;
use crate::op::{Extent, Matrix, Op, OutOfRange, RowWriter, run_rows};
use crate::threads::Pool;
use crate::vector::{Kernel, LANES, Storage, Vector, for_dtype};

/// Independent partial sums, so that additions need not wait for each other.
const SUMS: usize = 4;

/// `out = normalised(x) * weight + bias`; with a stream, `stream.sum = factor * x + stream.residual` is normalised.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Norm {
    pub(crate) tokens: usize,
    pub(crate) hidden: usize,
    /// The features of a row that are normalised alone, as wide as the weight; they divide `hidden`.
    pub(crate) group: usize,
    pub(crate) epsilon: f32,
    /// Whether the mean is subtracted first, as in a layer norm.
    pub(crate) centred: bool,
    pub(crate) x: Matrix,
    /// One row.
    pub(crate) weight: Matrix,
    /// One row, of the dtype of the weight.
    pub(crate) bias: Option<Matrix>,
    pub(crate) out: Matrix,
    pub(crate) stream: Option<Stream>,
}

/// The residual stream before and after; with the dtype of x.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stream {
    /// The factor of x.
    pub(crate) factor: f32,
    pub(crate) residual: Matrix,
    pub(crate) sum: Matrix,
}

/// The root mean square norm of x, or with `centred` a layer norm.
#[pyfunction]
#[pyo3(signature = (x, weight, epsilon, centred, out, bias=None))]
pub(crate) fn norm(
    py: Python<'_>,
    x: Array,
    weight: Array,
    epsilon: f32,
    centred: bool,
    out: Array,
    bias: Option<Array>,
) -> PyResult<()> {
    let op = read_norm(&x, &weight, bias.as_ref(), epsilon, centred, &out)?;
    let arrays: Vec<_> = [&x, &weight, &out].into_iter().chain(&bias).collect();
    // SAFETY: the arrays have the shapes that the op expects, and live as long as it.
    unsafe { execute(py, op, &arrays) }
}

/// `factor * x + residual` in `sum`, and its norm in `out`.
#[pyfunction]
#[pyo3(signature = (x, residual, factor, weight, epsilon, centred, out, sum, bias=None))]
#[expect(clippy::too_many_arguments, reason = "an op has what its function in Python says")]
pub(crate) fn add_norm(
    py: Python<'_>,
    x: Array,
    residual: Array,
    factor: f32,
    weight: Array,
    epsilon: f32,
    centred: bool,
    out: Array,
    sum: Array,
    bias: Option<Array>,
) -> PyResult<()> {
    let op = read_norm(&x, &weight, bias.as_ref(), epsilon, centred, &out)?;
    weight.vector("weight", op.hidden)?;
    let stream = |name, array: &Array| array.matrix_of(name, op.x.dtype, [op.tokens, op.hidden]);
    let stream = Stream { factor, residual: stream("residual", &residual)?, sum: stream("sum", &sum)? };
    let arrays: Vec<_> = [&x, &residual, &weight, &out, &sum].into_iter().chain(&bias).collect();
    // SAFETY: as above.
    unsafe { execute(py, Norm { stream: Some(stream), ..op }, &arrays) }
}

fn read_norm(
    x: &Array,
    weight: &Array,
    bias: Option<&Array>,
    epsilon: f32,
    centred: bool,
    out: &Array,
) -> PyResult<Norm> {
    let shape @ [tokens, hidden] = x.dimensions("x")?;
    let group = if centred { hidden } else { weight.len() };
    if group == 0 || !hidden.is_multiple_of(group) {
        return Err(PyValueError::new_err(format!("a weight of {group} features does not divide x's {hidden}")));
    }
    let weight = weight.vector("weight", group)?;
    let bias = match bias {
        Some(bias) => {
            bias.check_dtype("bias", weight.dtype)?;
            Some(bias.vector("bias", group)?)
        }
        None => None,
    };
    let (x, out) = (x.matrix("x", shape)?, out.matrix_of("out", x.dtype("x")?, shape)?);
    Ok(Norm { tokens, hidden, group, epsilon, centred, x, weight, bias, out, stream: None })
}

impl Op for Norm {
    fn name(&self) -> &'static str {
        "norm"
    }

    fn capacity(&self) -> Extent {
        Extent { tokens: self.tokens, rows: usize::MAX }
    }

    unsafe fn run(&self, extent: Extent, isa: Isa, pool: &mut Pool) -> Result<(), OutOfRange> {
        // SAFETY: as the caller promises.
        unsafe { self.write(extent.tokens, isa, pool, &|_| {}) };
        Ok(())
    }

    fn as_row_writer(&self) -> Option<&dyn RowWriter> {
        Some(self)
    }
}

impl RowWriter for Norm {
    fn out(&self) -> Matrix {
        self.out
    }

    unsafe fn write(&self, num_tokens: usize, isa: Isa, pool: &mut Pool, then: &(dyn Fn(usize) + Sync)) {
        // SAFETY: as the caller promises.
        unsafe {
            for_dtype!(self.x.dtype, X => {
                for_dtype!(self.weight.dtype, W => self.run_as::<X, W>(num_tokens, isa, pool, then));
            });
        }
    }
}

impl Norm {
    /// # Safety
    ///
    /// See `RowWriter::write`; x and the weight are made of X and W.
    unsafe fn run_as<X: Storage, W: Storage>(
        &self,
        num_tokens: usize,
        isa: Isa,
        pool: &mut Pool,
        then: &(dyn Fn(usize) + Sync),
    ) {
        // SAFETY: as the caller promises.
        unsafe {
            if self.centred {
                let kernel = Normalise::<X, W, true> { norm: self, elements: PhantomData };
                run_rows(&kernel, num_tokens, self.hidden, isa, pool, then);
            } else {
                let kernel = Normalise::<X, W, false> { norm: self, elements: PhantomData };
                run_rows(&kernel, num_tokens, self.hidden, isa, pool, then);
            }
        }
    }
}

struct Normalise<'a, X, W, const CENTRED: bool> {
    norm: &'a Norm,
    elements: PhantomData<(X, W)>,
}

impl<X: Storage, W: Storage, const CENTRED: bool> Kernel for Normalise<'_, X, W, CENTRED> {
    #[inline(always)]
    unsafe fn run<V: Vector>(&self, row: usize) {
        let Norm { hidden, group, epsilon, x, weight, bias, out, stream, .. } = *self.norm;
        // SAFETY: as the caller promises.
        unsafe {
            let mut x = x.row::<X>(row);
            if let Some(Stream { factor, residual, sum }) = stream {
                let factor = V::splat(factor);
                let (residual, total) = (residual.row::<X>(row), sum.row::<X>(row));
                for at in (0..hidden).step_by(LANES) {
                    let a: V = X::load_up_to(x.add(at), hidden - at);
                    let b = X::load_up_to(residual.add(at), hidden - at);
                    X::store_up_to(a.mul_add(factor, b), total.add(at), hidden - at);
                }
                x = total;
            }
            #[expect(clippy::cast_precision_loss, reason = "no model is as wide as 2^24")]
            let size = group as f32;
            let zero = V::splat(0.0);
            let (weight, bias) = (weight.row::<W>(0), bias.map(|bias| bias.row::<W>(0)));
            for first in (0..hidden).step_by(group) {
                let (x, out) = (x.add(first), out.row::<X>(row).add(first));
                let centre =
                    if CENTRED { V::splat(sum_up::<V, X>(x, group, |sum, x, _| sum.add(x)) / size) } else { zero };
                let squares = sum_up::<V, X>(x, group, |sum, x, left| {
                    let x = if CENTRED { x.sub(centre).first(left.min(LANES), zero) } else { x };
                    x.mul_add(x, sum)
                });
                let inverse_rms = V::splat(1.0 / (squares / size + epsilon).sqrt());
                for at in (0..group).step_by(LANES) {
                    let x: V = X::load_up_to(x.add(at), group - at);
                    let x = if CENTRED { x.sub(centre) } else { x };
                    let mut scaled = x.mul(inverse_rms).mul(W::load_up_to(weight.add(at), group - at));
                    if let Some(bias) = bias {
                        scaled = scaled.add(W::load_up_to(bias.add(at), group - at));
                    }
                    X::store_up_to(scaled, out.add(at), group - at);
                }
            }
        }
    }
}

/// The sum over a row: `add` takes a partial sum, some numbers, and the number of elements from their first on.
///
/// # Safety
///
/// See `Kernel::run`; `count` numbers are valid.
#[inline(always)]
unsafe fn sum_up<V: Vector, X: Storage>(row: *const X, count: usize, add: impl Fn(V, V, usize) -> V) -> f32 {
    // SAFETY: as the caller promises.
    unsafe {
        let mut sums = [V::splat(0.0); SUMS];
        for first in (0..count).step_by(SUMS * LANES) {
            for (index, sum) in sums.iter_mut().enumerate() {
                let at = first + index * LANES;
                if at < count {
                    *sum = add(*sum, X::load_up_to(row.add(at), count - at), count - at);
                }
            }
        }
        sums[0].add(sums[1]).add(sums[2].add(sums[3])).sum()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::dtype::DType;

    fn rows(numbers: &mut [f32]) -> Matrix {
        Matrix { dtype: DType::Float32, address: numbers.as_mut_ptr().expose_provenance(), stride: numbers.len() }
    }

    proptest! {
        #[test]
        fn every_kernel_normalises_the_sum(
            numbers in prop::collection::vec((-9.0..9.0_f32, -9.0..9.0_f32, -2.0..2.0_f32), 1..150),
        ) {
            let hidden = numbers.len();
            let mut x: Vec<f32> = numbers.iter().map(|number| number.0).collect();
            let mut residual: Vec<f32> = numbers.iter().map(|number| number.1).collect();
            let mut weight: Vec<f32> = numbers.iter().map(|number| number.2).collect();
            let mut bias: Vec<f32> = weight.iter().map(|weight| 1.0 - 2.0 * weight).collect();
            let size = f64::from(hidden as u32);
            for (factor, centred, biased) in [(1.0, false, false), (0.5, true, false), (0.5, true, true)] {
                let sum: Vec<f32> = numbers.iter().map(|number| factor * number.0 + number.1).collect();
                let centre = if centred { sum.iter().map(|&sum| f64::from(sum)).sum::<f64>() / size } else { 0.0 };
                let mean = sum.iter().map(|&sum| (f64::from(sum) - centre).powi(2)).sum::<f64>() / size;
                let mut fused = Vec::new();
                for isa in Isa::available() {
                    let (mut out, mut total) = (vec![f32::NAN; hidden], vec![f32::NAN; hidden]);
                    let stream = Some(Stream { factor, residual: rows(&mut residual), sum: rows(&mut total) });
                    let op = Norm {
                        tokens: 1,
                        hidden,
                        group: hidden,
                        epsilon: 1e-5,
                        centred,
                        x: rows(&mut x),
                        weight: rows(&mut weight),
                        bias: biased.then(|| rows(&mut bias)),
                        out: rows(&mut out),
                        stream,
                    };
                    // SAFETY: every row is a vector of as many numbers; the test asks for what the machine has.
                    unsafe { op.run(op.capacity(), isa, &mut Pool::new(1)) }.expect("there is no index");
                    prop_assert_eq!(&total, &sum);
                    for (((&out, &sum), &weight), &bias) in out.iter().zip(&sum).zip(&weight).zip(&bias) {
                        let bias = if biased { f64::from(bias) } else { 0.0 };
                        let expected = (f64::from(sum) - centre) / (mean + 1e-5).sqrt() * f64::from(weight) + bias;
                        // A mean rounded to float32 is off by as much as the numbers around it are.
                        let tolerance = if centred { 2e-6 * (1.0 + 9.0 / (mean + 1e-5).sqrt()) } else { 1e-6 };
                        let error = (f64::from(out) - expected).abs();
                        prop_assert!(error <= tolerance * (1.0 + expected.abs()), "{isa:?}");
                    }
                    if isa > Isa::Portable {
                        fused.push(out);
                    }
                }
                prop_assert!(fused.windows(2).all(|pair| pair[0] == pair[1]), "AVX2 and AVX-512 differ");
            }
        }
    }
}
