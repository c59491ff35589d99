use super::routing::Scores;
use super::*;
use crate::linear::{Format, Row, Scales, Source};
use crate::threads::pool::pool;

const HIDDEN: usize = 64;
const SIZE: usize = 32;
const EXPERTS: usize = 5;

fn number(seed: usize) -> f32 {
    let mixed = (seed as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40;
    f32::from((mixed >> 8) as u16) / 65_536.0 - 0.5
}

fn numbers(seed: usize, count: usize) -> Vec<f32> {
    (0..count).map(|index| number(seed * 1_000_003 + index)).collect()
}

/// The matrices of all experts, as numbers and packed.
struct Weights {
    numbers: Vec<f32>,
    linear: Linear,
    packed: Vec<u8>,
    /// [experts, outputs]
    bias: Vec<f32>,
}

impl Weights {
    fn new(seed: usize, out_features: usize, in_features: usize) -> Self {
        let (numbers, bias) =
            (numbers(seed, EXPERTS * out_features * in_features), numbers(seed + 10, EXPERTS * out_features));
        let whole =
            Linear { format: Format::Float, dtype: DType::Float32, in_features, out_features: EXPERTS * out_features };
        let source = Source::Elements(DType::Float32);
        let rows = numbers.chunks_exact(in_features).map(|row| row.as_ptr().expose_provenance());
        let rows: Vec<_> = rows.map(|address| Row { source, address, scales: Scales::default() }).collect();
        let mut packed = vec![0; whole.packed_bytes()];
        // SAFETY: the rows are there.
        unsafe { whole.pack(&rows, &mut packed, &mut pool()) }.expect("floats are packed from floats");
        Self { numbers, linear: whole.split(EXPERTS).expect("panels are whole"), packed, bias }
    }

    fn matrices(&self) -> ExpertMatrices {
        let Linear { out_features, .. } = self.linear;
        let address = self.bias.as_ptr().expose_provenance();
        let bias = Matrix { dtype: DType::Float32, address, stride: out_features };
        ExpertMatrices { linear: self.linear, packed: self.packed.as_ptr().expose_provenance(), bias: Some(bias) }
    }

    fn times(&self, expert: usize, x: &[f64]) -> Vec<f64> {
        let Linear { in_features, out_features, .. } = self.linear;
        let rows =
            self.numbers[expert * out_features * in_features..][..out_features * in_features].chunks(in_features);
        let bias = &self.bias[expert * out_features..];
        rows.zip(bias)
            .map(|(row, &bias)| f64::from(bias) + row.iter().zip(x).map(|(&w, x)| f64::from(w) * x).sum::<f64>())
            .collect()
    }
}

struct Model {
    gate: Weights,
    up: Weights,
    down: Weights,
}

impl Model {
    fn new() -> Self {
        Self {
            gate: Weights::new(1, SIZE, HIDDEN),
            up: Weights::new(2, SIZE, HIDDEN),
            down: Weights::new(3, HIDDEN, SIZE),
        }
    }

    fn run(&self, router: Router, x: &[f32], logits: &[f32], isa: Isa, num_threads: usize) -> Vec<f32> {
        let tokens = x.len() / HIDDEN;
        let mut out = vec![f32::NAN; x.len()];
        let matrix = |address, stride| Matrix { dtype: DType::Float32, address, stride };
        let op = Experts {
            tokens,
            x: matrix(x.as_ptr().expose_provenance(), HIDDEN),
            logits: matrix(logits.as_ptr().expose_provenance(), EXPERTS),
            router,
            kind: KIND,
            gate: Some(self.gate.matrices()),
            up: self.up.matrices(),
            down: self.down.matrices(),
            out: matrix(out.as_mut_ptr().expose_provenance(), HIDDEN),
        };
        // SAFETY: every address is of a vector above, as long as the sizes say; the tests ask for what the machine has.
        unsafe { op.run(op.capacity(), isa, &mut Pool::new(num_threads)) }.expect("there are no indices");
        out
    }

    fn expected(&self, active: usize, x: &[f32], logits: &[f32]) -> Vec<f64> {
        let x: Vec<f64> = x.iter().copied().map(f64::from).collect();
        let mut order: Vec<_> = (0..EXPERTS).collect();
        order.sort_by(|&one, &other| logits[other].total_cmp(&logits[one]));
        let weights: Vec<f64> = logits.iter().map(|&logit| f64::from(logit).exp()).collect();
        let total: f64 = order[..active].iter().map(|&expert| weights[expert]).sum();
        let mut out = vec![0.0; HIDDEN];
        for &expert in &order[..active] {
            let (gate, up) = (self.gate.times(expert, &x), self.up.times(expert, &x));
            let inner: Vec<_> = gate.iter().zip(up).map(|(&gate, up)| activated(gate, up)).collect();
            let result = self.down.times(expert, &inner);
            out.iter_mut().zip(result).for_each(|(out, result)| *out += weights[expert] / total * result);
        }
        out
    }
}

/// The activation of gpt-oss.
const KIND: Kind = Kind::ClampedSwiglu { limit: LIMIT, alpha: 1.702 };
const LIMIT: f32 = 0.75;

fn activated(gate: f64, up: f64) -> f64 {
    let limit = f64::from(LIMIT);
    let gate = gate.min(limit);
    (up.clamp(-limit, limit) + 1.0) * gate / (1.0 + (-f64::from(1.702_f32) * gate).exp())
}

fn router(active: usize) -> Router {
    Router {
        num_experts: EXPERTS,
        active,
        scores: Scores::Softmax,
        normalised: true,
        factor: 1.0,
        weighs_inputs: false,
        correction: None,
        expert_factors: None,
        groups: None,
        first: 0,
        count: EXPERTS,
    }
}

#[test]
fn a_token_is_the_weighted_sum_of_its_experts_and_the_same_alone() {
    let model = Model::new();
    let (x, logits) = (numbers(4, 41 * HIDDEN), numbers(5, 41 * EXPERTS));
    for isa in Isa::available() {
        let together = model.run(router(2), &x, &logits, isa, 2);
        for (token, (x, logits)) in x.chunks(HIDDEN).zip(logits.chunks(EXPERTS)).enumerate() {
            let found = &together[token * HIDDEN..(token + 1) * HIDDEN];
            let far = found
                .iter()
                .zip(model.expected(2, x, logits))
                .find(|&(&one, other)| (f64::from(one) - other).abs() > 1e-4);
            assert_eq!(far, None, "{isa:?}, token {token}");
            assert_eq!(model.run(router(2), x, logits, isa, 1), found, "{isa:?}, token {token}");
        }
    }
}

#[test]
fn the_results_of_all_ranks_add_up() {
    let model = Model::new();
    let (x, logits) = (numbers(4, 9 * HIDDEN), numbers(5, 9 * EXPERTS));
    let whole = model.run(router(3), &x, &logits, Isa::used(), 1);
    // A rank has only its experts' matrices; the others are left out here.
    let part = |first: usize, count: usize| {
        let skip = |weights: &Weights| {
            let matrices = weights.matrices();
            let bias = matrices.bias.map(|bias| Matrix { address: bias.row::<f32>(first).addr(), ..bias });
            ExpertMatrices { packed: matrices.packed + first * weights.linear.packed_bytes(), bias, ..matrices }
        };
        let mut out = vec![0.0_f32; x.len()];
        let matrix = |address, stride| Matrix { dtype: DType::Float32, address, stride };
        let op = Experts {
            tokens: 9,
            x: matrix(x.as_ptr().expose_provenance(), HIDDEN),
            logits: matrix(logits.as_ptr().expose_provenance(), EXPERTS),
            router: Router { first, count, ..router(3) },
            kind: KIND,
            gate: Some(skip(&model.gate)),
            up: skip(&model.up),
            down: skip(&model.down),
            out: matrix(out.as_mut_ptr().expose_provenance(), HIDDEN),
        };
        // SAFETY: as above.
        unsafe { op.run(op.capacity(), Isa::used(), &mut Pool::new(1)) }.expect("there are no indices");
        out
    };
    let sums: Vec<_> = part(0, 2).iter().zip(part(2, 3)).map(|(one, other)| one + other).collect();
    assert!(sums.iter().zip(&whole).all(|(one, other)| (one - other).abs() < 1e-5));
}

#[test]
fn no_tokens_are_no_work() {
    assert!(Model::new().run(router(2), &[], &[], Isa::used(), 1).is_empty());
}
