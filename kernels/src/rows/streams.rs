//! Several residual streams of a token side by side (alternating updates, arXiv 2301.13310): their prediction and
//! correction, additions, and magnitudes; and the largest of normally distributed numbers.
#![expect(clippy::inline_always, reason = "see `Vector`")]

use std::marker::PhantomData;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::arrays::Array;
use crate::execution::execute;
use crate::isa::Isa;
use crate::op::{Extent, Matrix, Op, OutOfRange, run_rows};
use crate::threads::Pool;
use crate::vector::{Kernel, LANES, Storage, Vector, for_dtype};

/// The least mean of squares that a magnitude is of.
const LEAST_SQUARE: f32 = 1e-5;

/// The new streams; other matrices have the dtype of x.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Change {
    /// Stream i and the sum over j of `coefficients[i * count + j]` times stream j.
    Predict { coefficients: Matrix },
    /// Stream i and `1 + coefficients[i]` times the difference of `activated` and the stream `active`; `scaled` is the new
    /// stream `active` times `scale`, one row for all.
    Correct { activated: Matrix, coefficients: Matrix, active: usize, scale: Matrix, scaled: Matrix },
    /// Each stream and `other`.
    Add { other: Matrix },
    /// The only stream, then the numbers of `others`, which are `width`.
    Join { others: Matrix, width: usize },
    /// Each stream, with the root mean square of `other`.
    Match { other: Matrix },
    /// `max(0, x - mean - multiplier * deviation)` of the only stream.
    TopK { multiplier: f32 },
}

/// Write the change of the streams in x, `count` of `size` features, to out, which is x unless it has an own argument.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Streams {
    pub(crate) change: Change,
    pub(crate) tokens: usize,
    pub(crate) count: usize,
    pub(crate) size: usize,
    pub(crate) x: Matrix,
    pub(crate) out: Matrix,
}

/// The predicted streams in `out`.
#[pyfunction]
pub(crate) fn predict_streams(py: Python<'_>, x: Array, coefficients: Array, out: Array) -> PyResult<()> {
    let ([tokens, _], [_, squared]) = (x.dimensions("x")?, coefficients.dimensions("coefficients")?);
    let count = squared.isqrt();
    let rows = coefficients.matrix_of("coefficients", x.dtype("x")?, [tokens, count * count])?;
    execute_change(py, Change::Predict { coefficients: rows }, count, &x, &out, &[&x, &coefficients, &out])
}

/// The corrected streams in `out`, and the scaled active one in `scaled`.
#[pyfunction]
#[expect(clippy::too_many_arguments, reason = "an op has what its function in Python says")]
pub(crate) fn correct_streams(
    py: Python<'_>,
    x: Array,
    activated: Array,
    coefficients: Array,
    active: usize,
    scale: Array,
    out: Array,
    scaled: Array,
) -> PyResult<()> {
    let dtype = x.dtype("x")?;
    let ([tokens, width], [_, count]) = (x.dimensions("x")?, coefficients.dimensions("coefficients")?);
    if active >= count {
        return Err(PyValueError::new_err(format!("stream {active} is active, of {count}")));
    }
    let shape @ [_, size] = [tokens, width / count];
    scale.check_dtype("scale", dtype)?;
    let change = Change::Correct {
        activated: activated.matrix_of("activated", dtype, shape)?,
        coefficients: coefficients.matrix_of("coefficients", dtype, [tokens, count])?,
        active,
        scale: scale.vector("scale", size)?,
        scaled: scaled.matrix_of("scaled", dtype, shape)?,
    };
    execute_change(py, change, count, &x, &out, &[&x, &activated, &coefficients, &scale, &out, &scaled])
}

/// Add `other` to each stream of x.
#[pyfunction]
pub(crate) fn add_to_streams(py: Python<'_>, x: Array, other: Array) -> PyResult<()> {
    let (rows, count) = read_other(&x, &other)?;
    execute_change(py, Change::Add { other: rows }, count, &x, &x, &[&x, &other])
}

/// The stream x, then those in `others`, in `out`.
#[pyfunction]
pub(crate) fn join_streams(py: Python<'_>, x: Array, others: Array, out: Array) -> PyResult<()> {
    let ([tokens, size], [_, width]) = (x.dimensions("x")?, others.dimensions("others")?);
    let dtype = x.dtype("x")?;
    let change = Change::Join { others: others.matrix_of("others", dtype, [tokens, width])?, width };
    let (rows, out_rows) = (x.matrix("x", [tokens, size])?, out.matrix_of("out", dtype, [tokens, size + width])?);
    let op = Streams { change, tokens, count: 1, size, x: rows, out: out_rows };
    // SAFETY: the arrays have the shapes that the op expects, and live as long as it.
    unsafe { execute(py, op, &[&x, &others, &out]) }
}

/// Give each stream of x the magnitude of `other`.
#[pyfunction]
pub(crate) fn match_magnitudes(py: Python<'_>, x: Array, other: Array) -> PyResult<()> {
    let (rows, count) = read_other(&x, &other)?;
    execute_change(py, Change::Match { other: rows }, count, &x, &x, &[&x, &other])
}

/// `max(0, x - mean - multiplier * deviation)` in x.
#[pyfunction]
pub(crate) fn gaussian_top_k(py: Python<'_>, x: Array, multiplier: f32) -> PyResult<()> {
    execute_change(py, Change::TopK { multiplier }, 1, &x, &x, &[&x])
}

fn read_other(x: &Array, other: &Array) -> PyResult<(Matrix, usize)> {
    let ([_, size], [tokens, width]) = (other.dimensions("other")?, x.dimensions("x")?);
    if size == 0 || !width.is_multiple_of(size) {
        return Err(PyValueError::new_err(format!("{width} features are not those of streams of {size}")));
    }
    Ok((other.matrix_of("other", x.dtype("x")?, [tokens, size])?, width / size))
}

fn execute_change(
    py: Python<'_>,
    change: Change,
    count: usize,
    x: &Array,
    out: &Array,
    arrays: &[&Array],
) -> PyResult<()> {
    let shape @ [tokens, width] = x.dimensions("x")?;
    let size = width.checked_div(count).unwrap_or(0);
    if size == 0 || size * count != width {
        return Err(PyValueError::new_err(format!("{width} features are not those of {count} streams")));
    }
    let (x, out) = (x.matrix("x", shape)?, out.matrix_of("out", x.dtype("x")?, shape)?);
    // SAFETY: the arrays have the shapes that the op expects, and live as long as it.
    unsafe { execute(py, Streams { change, tokens, count, size, x, out }, arrays) }
}

impl Op for Streams {
    fn name(&self) -> &'static str {
        match self.change {
            Change::Predict { .. } => "predict_streams",
            Change::Correct { .. } => "correct_streams",
            Change::Add { .. } => "add_to_streams",
            Change::Join { .. } => "join_streams",
            Change::Match { .. } => "match_magnitudes",
            Change::TopK { .. } => "gaussian_top_k",
        }
    }

    fn capacity(&self) -> Extent {
        Extent { tokens: self.tokens, rows: usize::MAX }
    }

    unsafe fn run(&self, extent: Extent, isa: Isa, pool: &mut Pool) -> Result<(), OutOfRange> {
        // SAFETY: as the caller promises.
        unsafe {
            for_dtype!(self.x.dtype, X => {
                let kernel = Row::<X> { op: self, elements: PhantomData };
                run_rows(&kernel, extent.tokens, self.count * self.size, isa, pool, &|_| {});
            });
        }
        Ok(())
    }
}

struct Row<'a, X> {
    op: &'a Streams,
    elements: PhantomData<X>,
}

impl<X: Storage> Kernel for Row<'_, X> {
    #[inline(always)]
    unsafe fn run<V: Vector>(&self, row: usize) {
        let Streams { change, count, size, x, out, .. } = *self.op;
        let (x, out) = (x.row::<X>(row), out.row::<X>(row));
        // SAFETY: as the caller promises.
        unsafe {
            match change {
                Change::Predict { coefficients } => {
                    let coefficients = std::slice::from_raw_parts(coefficients.row::<X>(row), count * count);
                    for (stream, coefficients) in coefficients.chunks_exact(count).enumerate() {
                        for at in (0..size).step_by(LANES) {
                            let mut sum: V = X::load_up_to(x.add(stream * size + at), size - at);
                            for (other, coefficient) in coefficients.iter().enumerate() {
                                let number: V = X::load_up_to(x.add(other * size + at), size - at);
                                sum = number.mul_add(V::splat(coefficient.widen()), sum);
                            }
                            X::store_up_to(sum, out.add(stream * size + at), size - at);
                        }
                    }
                }
                Change::Correct { activated, coefficients, active, scale, scaled } => {
                    let coefficients = std::slice::from_raw_parts(coefficients.row::<X>(row), count);
                    let (activated, scaled) = (activated.row::<X>(row), scaled.row::<X>(row));
                    for at in (0..size).step_by(LANES) {
                        let left = size - at;
                        let predicted: V = X::load_up_to(x.add(active * size + at), left);
                        let difference = X::load_up_to::<V>(activated.add(at), left).sub(predicted);
                        for (stream, coefficient) in coefficients.iter().enumerate() {
                            let number: V = X::load_up_to(x.add(stream * size + at), left);
                            let corrected = difference.mul_add(V::splat(1.0 + coefficient.widen()), number);
                            X::store_up_to(corrected, out.add(stream * size + at), left);
                            if stream == active {
                                let scale: V = X::load_up_to(scale.row::<X>(0).add(at), left);
                                X::store_up_to(corrected.mul(scale), scaled.add(at), left);
                            }
                        }
                    }
                }
                Change::Add { other } => {
                    let other = other.row::<X>(row);
                    for at in (0..size).step_by(LANES) {
                        let added: V = X::load_up_to(other.add(at), size - at);
                        for stream in 0..count {
                            let number = x.add(stream * size + at);
                            X::store_up_to(X::load_up_to::<V>(number, size - at).add(added), number, size - at);
                        }
                    }
                }
                Change::Join { others, width } => {
                    for (from, to, count) in [(x.cast_const(), out, size), (others.row(row), out.add(size), width)] {
                        std::ptr::copy_nonoverlapping(from, to, count);
                    }
                }
                Change::Match { other } => {
                    let magnitude = moments::<V, X>(other.row::<X>(row), size, 0.0).1.sqrt();
                    for stream in 0..count {
                        let numbers = x.add(stream * size);
                        let square = moments::<V, X>(numbers, size, 0.0).1.max(LEAST_SQUARE);
                        let factor = V::splat(magnitude / square.sqrt());
                        for at in (0..size).step_by(LANES) {
                            let number: V = X::load_up_to(numbers.add(at), size - at);
                            X::store_up_to(number.mul(factor), numbers.add(at), size - at);
                        }
                    }
                }
                Change::TopK { multiplier } => {
                    let (mean, _) = moments::<V, X>(x, size, 0.0);
                    let (_, variance) = moments::<V, X>(x, size, mean);
                    let (cutoff, zero) = (V::splat(mean + multiplier * variance.sqrt()), V::splat(0.0));
                    for at in (0..size).step_by(LANES) {
                        let number: V = X::load_up_to(x.add(at), size - at);
                        X::store_up_to(zero.max(number.sub(cutoff)), x.add(at), size - at);
                    }
                }
            }
        }
    }
}

/// The mean of numbers, and that of the squares of their differences from `centre`.
///
/// # Safety
///
/// See `Kernel::run`; `count` numbers are valid.
#[inline(always)]
unsafe fn moments<V: Vector, X: Storage>(numbers: *const X, count: usize, centre: f32) -> (f32, f32) {
    // SAFETY: as the caller promises.
    unsafe {
        let (zero, centre) = (V::splat(0.0), V::splat(centre));
        let (mut sum, mut squares) = (zero, zero);
        for at in (0..count).step_by(LANES) {
            let number: V = X::load_up_to(numbers.add(at), count - at);
            let difference = number.sub(centre).first((count - at).min(LANES), zero);
            sum = sum.add(number);
            squares = difference.mul_add(difference, squares);
        }
        #[expect(clippy::cast_precision_loss, reason = "no layer is as wide as 2^24")]
        let count = count as f32;
        (sum.sum() / count, squares.sum() / count)
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
        fn every_kernel_changes_every_stream(
            pairs in prop::collection::vec((-3.0..3.0_f32, -3.0..3.0_f32, -3.0..3.0_f32), 2..70),
            mut coefficients in prop::collection::vec(-2.0..2.0_f32, 4),
        ) {
            let (size, count) = (pairs.len(), pairs.iter().map(|_| 1.0).sum::<f32>());
            let streams: Vec<f32> = pairs.iter().map(|pair| pair.0).chain(pairs.iter().map(|pair| pair.1)).collect();
            let mut other: Vec<f32> = pairs.iter().map(|pair| pair.2).collect();
            let square = |numbers: &[f32]| numbers.iter().map(|number| number * number).sum::<f32>() / count;
            let mean = streams[..size].iter().sum::<f32>() / count;
            let centred: Vec<f32> = streams[..size].iter().map(|number| number - mean).collect();
            let cutoff = mean + 0.5 * square(&centred).sqrt();
            let mut scaled = vec![f32::NAN; size];
            let changes = [
                Change::Predict { coefficients: rows(&mut coefficients) },
                Change::Correct {
                    activated: rows(&mut other),
                    coefficients: rows(&mut coefficients),
                    active: 1,
                    scale: rows(&mut other),
                    scaled: rows(&mut scaled),
                },
                Change::Add { other: rows(&mut other) },
                Change::Match { other: rows(&mut other) },
            ];
            for isa in Isa::available() {
                for change in changes {
                    let mut x = streams.clone();
                    let mut found = vec![f32::NAN; 2 * size];
                    let in_place = matches!(change, Change::Add { .. } | Change::Match { .. });
                    let out = if in_place { rows(&mut x) } else { rows(&mut found) };
                    let op = Streams { change, tokens: 1, count: 2, size, x: rows(&mut x), out };
                    // SAFETY: every address is of a vector above; the test asks for what the machine has.
                    unsafe { op.run(op.capacity(), isa, &mut Pool::new(1)) }.expect("there is no index");
                    if in_place {
                        std::mem::swap(&mut x, &mut found);
                    }
                    for (index, &number) in found.iter().enumerate() {
                        let (stream, at) = (index / size, index % size);
                        let (before, like) = (streams[index], other[at]);
                        let expected = match change {
                            Change::Predict { .. } => {
                                before + coefficients[2 * stream] * streams[at] + coefficients[2 * stream + 1] * streams[size + at]
                            }
                            Change::Correct { .. } => before + (1.0 + coefficients[stream]) * (like - streams[size + at]),
                            Change::Add { .. } => before + like,
                            _ => before * (square(&other) / square(&streams[stream * size..][..size]).max(1e-5)).sqrt(),
                        };
                        prop_assert!((number - expected).abs() <= 1e-4 * (1.0 + expected.abs()), "{isa:?} {change:?}");
                        if stream == 1 && matches!(change, Change::Correct { .. }) {
                            prop_assert!((scaled[at] - number * like).abs() <= 1e-4 * (1.0 + number.abs()), "{isa:?}");
                        }
                    }
                }
                let mut x = streams[..size].to_vec();
                let change = Change::TopK { multiplier: 0.5 };
                let op = Streams { change, tokens: 1, count: 1, size, x: rows(&mut x), out: rows(&mut x) };
                // SAFETY: as above.
                unsafe { op.run(op.capacity(), isa, &mut Pool::new(1)) }.expect("there is no index");
                for (&found, &before) in x.iter().zip(&streams) {
                    prop_assert!((found - (before - cutoff).max(0.0)).abs() <= 1e-4, "{isa:?}");
                }
            }
        }
    }
}
