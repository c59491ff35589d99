//! Activations, with or without a gate: the sigmoid linear unit, and the Gaussian error one (arXiv 1606.08415), in the
//! gated form of arXiv 2002.05202, and with limits; gpt-oss's, whose gate and factor are clamped; the rectifier and its
//! square; and xIELU (arXiv 2411.13010).
#![expect(clippy::inline_always, reason = "see `Vector`")]

use std::marker::PhantomData;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedStr;

use crate::arrays::Array;
use crate::execution::execute;
use crate::isa::Isa;
use crate::op::{Extent, Matrix, Op, OutOfRange, RowWriter, run_rows};
use crate::threads::Pool;
use crate::vector::{Kernel, LANES, Storage, Vector, for_dtype};

/// The function of a number.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Kind {
    Silu,
    /// GELU by the error function.
    Gelu,
    /// GELU by the hyperbolic tangent.
    GeluTanh,
    Relu,
    /// The square of the rectifier.
    Relu2,
    /// `positive * x² + beta * x` of x above 0, else `negative * (exp(min(x, epsilon)) - 1 - x) + beta * x`.
    Xielu {
        positive: f32,
        negative: f32,
        beta: f32,
        epsilon: f32,
    },
    /// `(up + 1) * gate * sigmoid(alpha * gate)`, the gate up to the limit and up between the limits; always gated.
    ClampedSwiglu {
        limit: f32,
        alpha: f32,
    },
    /// `gate * sigmoid(gate)` up to the limit, times up between the limits; always gated.
    LimitedSwiglu {
        limit: f32,
    },
}

/// `out = kind(x) * up`, or without up `out = kind(x)`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Activation {
    pub(crate) kind: Kind,
    pub(crate) tokens: usize,
    /// Width of a row of out.
    pub(crate) width: usize,
    pub(crate) x: Matrix,
    pub(crate) up: Option<Matrix>,
    pub(crate) out: Matrix,
}

/// A name; or a `ClampedSwiglu`, an `Xielu` or a `LimitedSwiglu` of Python.
impl<'py> FromPyObject<'_, 'py> for Kind {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        let Ok(name) = object.extract::<PyBackedStr>() else {
            return Ok(match object.extract()? {
                Parameters::Gate { limit, alpha } => Self::ClampedSwiglu { limit, alpha },
                Parameters::Xielu { positive, negative, beta, epsilon } => {
                    Self::Xielu { positive, negative, beta, epsilon }
                }
                Parameters::Limited { limit } => Self::LimitedSwiglu { limit },
            });
        };
        match &*name {
            "silu" => Ok(Self::Silu),
            "gelu" => Ok(Self::Gelu),
            "gelu_tanh" => Ok(Self::GeluTanh),
            "relu" => Ok(Self::Relu),
            "relu2" => Ok(Self::Relu2),
            name => {
                Err(PyValueError::new_err(format!("no activation {name:?}: use silu, gelu, gelu_tanh, relu or relu2")))
            }
        }
    }
}

/// The parameters of an activation, as Python has them; the first that an object has.
#[derive(FromPyObject)]
enum Parameters {
    Gate { limit: f32, alpha: f32 },
    Xielu { positive: f32, negative: f32, beta: f32, epsilon: f32 },
    Limited { limit: f32 },
}

/// `kind(gate) * up` in `out`, x being the gate, and each of its rows then up, unless that is given; not gated, `kind(x)`.
#[pyfunction]
pub(crate) fn activation(
    py: Python<'_>,
    x: Array,
    kind: Kind,
    gated: bool,
    up: Option<Array>,
    out: Array,
) -> PyResult<()> {
    let [tokens, wide] = x.dimensions("x")?;
    if (up.is_some() || kind.is_gated()) && !gated {
        return Err(PyValueError::new_err("up or a clamped gate is given: it needs gated=True"));
    }
    let is_beside = gated && up.is_none();
    if is_beside && !wide.is_multiple_of(2) {
        return Err(PyValueError::new_err(format!(
            "x is {wide} wide: it must be a gate and as much to multiply it with"
        )));
    }
    let width = if is_beside { wide / 2 } else { wide };
    let (gate, out_rows) = (x.rows("x")?, out.matrix_of("out", x.dtype("x")?, [tokens, width])?);
    let up_rows = match &up {
        Some(up) => Some(up.matrix_of("up", gate.dtype, [tokens, width])?),
        None => gated.then(|| gate.columns_from(width)),
    };
    let arrays: Vec<_> = [&x, &out].into_iter().chain(&up).collect();
    // SAFETY: the arrays have the shapes that the op expects, and live as long as it.
    unsafe { execute(py, Activation { kind, tokens, width, x: gate, up: up_rows, out: out_rows }, &arrays) }
}

impl Op for Activation {
    fn name(&self) -> &'static str {
        "activation"
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

impl RowWriter for Activation {
    fn out(&self) -> Matrix {
        self.out
    }

    unsafe fn write(&self, num_tokens: usize, isa: Isa, pool: &mut Pool, then: &(dyn Fn(usize) + Sync)) {
        // SAFETY: as the caller promises.
        unsafe { for_dtype!(self.x.dtype, X => self.run_as::<X>(num_tokens, isa, pool, then)) }
    }
}

impl Activation {
    /// # Safety
    ///
    /// See `RowWriter::write`; x is made of X.
    unsafe fn run_as<X: Storage>(&self, num_tokens: usize, isa: Isa, pool: &mut Pool, then: &(dyn Fn(usize) + Sync)) {
        let kernel = Activate::<X>::new(self);
        // SAFETY: as the caller promises.
        unsafe { run_rows(&kernel, num_tokens, 2 * self.width, isa, pool, then) }
    }
}

/// The activation of a row.
pub(crate) struct Activate<'a, X> {
    op: &'a Activation,
    dtype: PhantomData<X>,
}

impl<'a, X> Activate<'a, X> {
    /// An activation of rows of X.
    pub(crate) fn new(op: &'a Activation) -> Self {
        Self { op, dtype: PhantomData }
    }
}

impl<X: Storage> Kernel for Activate<'_, X> {
    #[inline(always)]
    unsafe fn run<V: Vector>(&self, row: usize) {
        // SAFETY: as the caller promises.
        unsafe { self.run_with::<V>(row, None) };
    }
}

impl<X: Storage> Activate<'_, X> {
    /// The same for a gate and an up with biases.
    ///
    /// # Safety
    ///
    /// See `Kernel::run`; the biases are as wide as out.
    #[inline(always)]
    pub(crate) unsafe fn run_with<V: Vector>(&self, row: usize, biases: Option<[*const X; 2]>) {
        let Activation { kind, width, x, up, out, .. } = *self.op;
        // SAFETY: as the caller promises.
        unsafe {
            let gate = x.row::<X>(row);
            let (up, out) = (up.map(|up| up.row::<X>(row)), out.row::<X>(row));
            for at in (0..width).step_by(LANES) {
                let left = width - at;
                let mut gate: V = X::load_up_to(gate.add(at), left);
                let mut up = up.map_or_else(|| V::splat(1.0), |up| X::load_up_to(up.add(at), left));
                if let Some([of_gate, of_up]) = biases {
                    gate = gate.add(X::load_up_to(of_gate.add(at), left));
                    up = up.add(X::load_up_to(of_up.add(at), left));
                }
                X::store_up_to(kind.of(gate, up), out.add(at), left);
            }
        }
    }
}

impl Kind {
    /// Whether it takes a gate and what to multiply it with.
    pub(crate) fn is_gated(self) -> bool {
        matches!(self, Self::ClampedSwiglu { .. } | Self::LimitedSwiglu { .. })
    }

    /// A function rather than a closure: a closure that is not inlined is compiled without the vector's instructions.
    #[inline(always)]
    fn of<V: Vector>(self, gate: V, up: V) -> V {
        match self {
            Self::Silu => gate.silu().mul(up),
            Self::Gelu => gelu(gate).mul(up),
            Self::GeluTanh => gelu_tanh(gate).mul(up),
            Self::Relu => relu(gate).mul(up),
            Self::Relu2 => {
                let rectified = relu(gate);
                rectified.mul(rectified).mul(up)
            }
            Self::Xielu { positive, negative, beta, epsilon } => xielu(gate, positive, negative, beta, epsilon).mul(up),
            Self::ClampedSwiglu { limit, alpha } => clamped_swiglu(gate, up, limit, alpha),
            Self::LimitedSwiglu { limit } => limited_swiglu(gate, up, limit),
        }
    }
}

#[inline(always)]
fn gelu<V: Vector>(x: V) -> V {
    // SAFETY: x exists.
    let (half, one, factor) = unsafe { (V::splat(0.5), V::splat(1.0), V::splat(std::f32::consts::FRAC_1_SQRT_2)) };
    x.mul(half).mul(x.mul(factor).erf().add(one))
}

/// `x * (1 + tanh(z)) / 2`, which is `x * sigmoid(2 z)`.
#[inline(always)]
fn gelu_tanh<V: Vector>(x: V) -> V {
    // SAFETY: x exists.
    let (zero, one, cubic, factor) =
        unsafe { (V::splat(0.0), V::splat(1.0), V::splat(0.044_715), V::splat(1.595_769)) };
    let twice_z = x.mul(x).mul(x).mul_add(cubic, x).mul(factor);
    x.div(zero.sub(twice_z).exp().add(one))
}

#[inline(always)]
fn relu<V: Vector>(x: V) -> V {
    // SAFETY: x exists.
    unsafe { V::splat(0.0) }.max(x) // in this order, NaN stays NaN
}

/// Near 0 the exponential less 1 has few exact bits, but `beta * x` is far greater there.
#[inline(always)]
fn xielu<V: Vector>(x: V, positive: f32, negative: f32, beta: f32, epsilon: f32) -> V {
    // SAFETY: x exists.
    let constant = |value| unsafe { V::splat(value) };
    let (zero, linear) = (constant(0.0), x.mul(constant(beta)));
    let below = constant(epsilon).min(x).exp().sub(constant(1.0)).sub(x).mul_add(constant(negative), linear);
    let above = x.mul(x).mul_add(constant(positive), linear);
    below.select(zero.lanes_at_least(x), above)
}

#[inline(always)]
fn clamped_swiglu<V: Vector>(gate: V, up: V, limit: f32, alpha: f32) -> V {
    // SAFETY: the gate exists.
    let (zero, one, alpha) = unsafe { (V::splat(0.0), V::splat(1.0), V::splat(alpha)) };
    // SAFETY: as above.
    let (least, most) = unsafe { (V::splat(-limit), V::splat(limit)) };
    let (gate, up) = (most.min(gate), least.max(most.min(up))); // in this order, NaN stays NaN
    gate.div(zero.sub(gate.mul(alpha)).exp().add(one)).mul(up.add(one))
}

#[inline(always)]
fn limited_swiglu<V: Vector>(gate: V, up: V, limit: f32) -> V {
    // SAFETY: the gate exists.
    let (least, most) = unsafe { (V::splat(-limit), V::splat(limit)) };
    most.min(gate.silu()).mul(least.max(most.min(up))) // in this order, NaN stays NaN
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::dtype::DType;

    /// The activation of a gate, times up.
    fn expected(kind: Kind, x: f64, up: f64) -> f64 {
        let activated = match kind {
            Kind::ClampedSwiglu { limit, alpha } => {
                let (limit, alpha) = (f64::from(limit), f64::from(alpha));
                let gate = x.min(limit);
                return (up.clamp(-limit, limit) + 1.0) * gate / (1.0 + (-alpha * gate).exp());
            }
            Kind::LimitedSwiglu { limit } => {
                let limit = f64::from(limit);
                return (x / (1.0 + (-x).exp())).min(limit) * up.clamp(-limit, limit);
            }
            Kind::Silu => x / (1.0 + (-x).exp()),
            Kind::Gelu => x * 0.5 * (1.0 + erf(x * std::f64::consts::FRAC_1_SQRT_2)),
            Kind::GeluTanh => {
                let z = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044_715 * x.powi(3));
                x * 0.5 * (1.0 + z.tanh())
            }
            Kind::Relu => x.max(0.0),
            Kind::Relu2 => x.max(0.0).powi(2),
            Kind::Xielu { positive, negative, beta, epsilon } => {
                let linear = f64::from(beta) * x;
                if x > 0.0 {
                    f64::from(positive) * x * x + linear
                } else {
                    f64::from(negative) * (x.min(f64::from(epsilon)).exp_m1() - x) + linear
                }
            }
        };
        activated * up
    }

    /// The error function by its series, which converges for every number.
    fn erf(x: f64) -> f64 {
        let (mut term, mut sum) = (x, x);
        for n in 1..400 {
            term *= -x * x / f64::from(n);
            sum += term / f64::from(2 * n + 1);
        }
        sum * std::f64::consts::FRAC_2_SQRT_PI
    }

    proptest! {
        #[test]
        fn every_kernel_computes_every_kind(
            x in prop::collection::vec((-4.0..4.0_f32, -3.0..3.0_f32), 1..150), gated: bool,
        ) {
            let width = x.len();
            let numbers: Vec<f32> = x.iter().map(|pair| pair.0).chain(x.iter().map(|pair| pair.1)).collect();
            let clamped = Kind::ClampedSwiglu { limit: 1.5, alpha: 1.702 };
            let xielu = Kind::Xielu { positive: 0.8, negative: 1.3, beta: 0.5, epsilon: -1e-6 };
            let limited = Kind::LimitedSwiglu { limit: 1.5 };
            for kind in [Kind::Silu, Kind::Gelu, Kind::GeluTanh, Kind::Relu, Kind::Relu2, xielu, clamped, limited] {
                let gated = gated || kind.is_gated();
                let mut fused = Vec::new();
                for isa in Isa::available() {
                    let mut out = vec![f32::NAN; width];
                    let rows = |address| Matrix { dtype: DType::Float32, address, stride: 0 };
                    let op = Activation {
                        kind,
                        tokens: 1,
                        width,
                        x: rows(numbers.as_ptr().expose_provenance()),
                        up: gated.then(|| rows(numbers[width..].as_ptr().expose_provenance())),
                        out: rows(out.as_mut_ptr().expose_provenance()),
                    };
                    // SAFETY: x has twice as many numbers as out; the test asks for what the machine has.
                    unsafe { op.run(op.capacity(), isa, &mut Pool::new(1)) }.expect("there is no index");
                    for (&out, &(x, up)) in out.iter().zip(&x) {
                        let factor = if gated { f64::from(up) } else { 1.0 };
                        let expected = expected(kind, f64::from(x), factor);
                        let tolerance = 4e-6_f64.max(3e-7 * expected.abs());
                        let error = (f64::from(out) - expected).abs();
                        prop_assert!(error < tolerance, "{isa:?} {kind:?}: {x} gives {out}");
                    }
                    if isa > Isa::Portable {
                        fused.push(out);
                    }
                }
                prop_assert!(fused.windows(2).all(|pair| pair[0] == pair[1]), "AVX2 and AVX-512 differ");
            }
        }

        #[test]
        fn the_sigmoid_linear_unit_is_near_in_proportion(x in prop::collection::vec(-30.0..30.0_f32, 1..150)) {
            let (width, x) = (x.len(), [x.clone(), x].concat());
            for isa in Isa::available() {
                let mut out = vec![f32::NAN; width];
                let rows = |address| Matrix { dtype: DType::Float32, address, stride: 0 };
                let op = Activation {
                    kind: Kind::Silu,
                    tokens: 1,
                    width,
                    x: rows(x.as_ptr().expose_provenance()),
                    up: Some(rows(x[width..].as_ptr().expose_provenance())),
                    out: rows(out.as_mut_ptr().expose_provenance()),
                };
                // SAFETY: x has twice as many numbers as out; the test asks for what the machine has.
                unsafe { op.run(op.capacity(), isa, &mut Pool::new(1)) }.expect("there is no index");
                for (&out, &x) in out.iter().zip(&x) {
                    let expected = f64::from(x).powi(2) / (1.0 + f64::from(-x).exp());
                    prop_assert!((f64::from(out) - expected).abs() <= 1e-6 * expected.abs() + 1e-30, "{isa:?}: {x}");
                }
            }
        }
    }
}
