//! Products with low-rank matrices (`LoRA`, arXiv 2106.09685), each row with those of its adapter, which are added to the
//! output of a linear. Rows of one adapter are computed together, as in Punica (arXiv 2310.18547).
//!
//! An element of a product is one sum in float32, in an order that follows from the matrices' shapes alone.
#![expect(clippy::inline_always, reason = "see `Vector`")]

use std::marker::PhantomData;
use std::mem;
use std::ops::Range;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::arrays::Array;
use crate::dtype::DType;
use crate::execution::execute;
use crate::isa::Isa;
use crate::op::{Extent, Indices, Matrix, Op, OutOfRange, check_range};
use crate::threads::Pool;
use crate::vector::{self, Kernel, LANES, Storage, Vector, for_dtype};

/// Rows of an adapter that are computed by one task: whole tiles of 1, 2, 3 and 4.
const ROWS_AT_ONCE: usize = 12;
/// Rows of `down` for a task, and columns of `up`.
const RANKS_AT_ONCE: usize = 4;
const COLUMNS_AT_ONCE: usize = 128;
/// Fewer products than this are not worth another thread.
const PRODUCTS_A_TASK: usize = 16 << 10;
/// More tasks than this for each thread balance nothing better.
const TASKS_A_THREAD: usize = 16;

/// `out += up.T @ (down @ x)` for each row, with the matrices of its adapter.
#[derive(Clone, Debug)]
pub(crate) struct AddLora {
    tokens: usize,
    in_features: usize,
    num_adapters: usize,
    max_rank: usize,
    parts: Vec<Part>,
    x: Matrix,
    out: Matrix,
    adapters: Indices,
    /// `[adapters * parts * max_rank, in_features]`
    down: Matrix,
    /// `[adapters * max_rank, out_features]`
    up: Matrix,
    /// `[adapters, parts]`
    ranks: Indices,
}

/// Columns of the output, with a rank of their own.
#[derive(Clone, Debug)]
struct Part {
    columns: Range<usize>,
    /// Tasks of the parts before it.
    first_task: usize,
}

/// `LoraMatrices` of Python.
#[derive(FromPyObject)]
pub(crate) struct LoraArrays {
    down: Array,
    up: Array,
    ranks: Array,
    sizes: Vec<usize>,
}

#[pyfunction]
pub(crate) fn add_lora(py: Python<'_>, x: Array, out: Array, adapters: Array, matrices: LoraArrays) -> PyResult<()> {
    let (dtype, shape @ [tokens, in_features]) = (x.dtype("x")?, x.dimensions("x")?);
    let LoraArrays { down, up, ranks, sizes } = &matrices;
    let [num_adapters, max_rank, out_features] = up.dimensions("up")?;
    if sizes.iter().sum::<usize>() != out_features {
        return Err(PyValueError::new_err(format!("up has {out_features} columns, and the parts {sizes:?}")));
    }
    let of_down = [num_adapters, sizes.len() * max_rank, in_features];
    let [num_tokens] = adapters.dimensions("adapters")?;
    if num_tokens < tokens {
        return Err(PyValueError::new_err(format!("adapters of {num_tokens} tokens, and x has {tokens}")));
    }
    let table = |name, array: &Array, shape: [usize; 3]| {
        let address = array.elements(name, dtype.name(), &shape)?;
        PyResult::Ok(Matrix { dtype, address, stride: shape[2] })
    };
    let op = AddLora {
        tokens,
        in_features,
        num_adapters,
        max_rank,
        parts: parts_of(sizes),
        x: x.matrix("x", shape)?,
        out: out.matrix_of("out", dtype, [tokens, out_features])?,
        adapters: adapters.indices("adapters", &[num_tokens])?,
        down: table("down", down, of_down)?,
        up: table("up", up, [num_adapters, max_rank, out_features])?,
        ranks: ranks.indices("ranks", &[num_adapters, sizes.len()])?,
    };
    // SAFETY: the arrays have the shapes that the op expects, and live as long as it.
    unsafe { execute(py, op, &[&x, &out, &adapters, down, up, ranks]) }
}

fn parts_of(sizes: &[usize]) -> Vec<Part> {
    let (mut column, mut task) = (0, 0);
    let part = |&size: &usize| {
        let part = Part { columns: column..column + size, first_task: task };
        column += size;
        task += size.div_ceil(COLUMNS_AT_ONCE);
        part
    };
    sizes.iter().map(part).collect()
}

impl Op for AddLora {
    fn name(&self) -> &'static str {
        "add_lora"
    }

    fn capacity(&self) -> Extent {
        Extent { tokens: self.tokens, rows: usize::MAX }
    }

    unsafe fn run(&self, extent: Extent, isa: Isa, pool: &mut Pool) -> Result<(), OutOfRange> {
        // SAFETY: as the caller promises.
        let adapters = unsafe { self.adapters.first(extent.tokens) };
        check_range("adapter of token", adapters, -1..self.num_adapters as i64)?;
        if adapters.iter().all(|&adapter| adapter < 0) {
            return Ok(());
        }
        // SAFETY: as the caller promises.
        let ranks = unsafe { self.ranks.first(self.num_adapters * self.parts.len()) };
        check_range("rank of the adapters' parts", ranks, 0..self.max_rank as i64 + 1)?;
        let batch = Batch::of(adapters);
        // SAFETY: as the caller promises; the indices are valid.
        unsafe { for_dtype!(self.x.dtype, X => self.run_as::<X>(&batch, ranks, isa, pool)) }
        Ok(())
    }
}

impl AddLora {
    /// # Safety
    ///
    /// See `Op::run`; x is made of X.
    unsafe fn run_as<X: Storage>(&self, batch: &Batch, ranks: &[i32], isa: Isa, pool: &mut Pool) {
        let stride = self.parts.len() * self.max_rank;
        let mut memory = mem::take(&mut pool.scratch);
        let address = memory.bytes(batch.tokens.len() * stride * size_of::<f32>()).as_mut_ptr().expose_provenance();
        let call = Call { op: self, batch, ranks, inner: Matrix { dtype: DType::Float32, address, stride } };
        let rows = batch.tokens.len().min(ROWS_AT_ONCE);
        // SAFETY: as the caller promises; a task writes numbers that no other task has.
        unsafe {
            let tasks = self.parts.len() * self.max_rank.div_ceil(RANKS_AT_ONCE);
            let down = Down::<X> { call: &call, elements: PhantomData };
            run_tasks(&down, batch.groups.len() * tasks, rows * RANKS_AT_ONCE * self.in_features, isa, pool);
            let up = Up::<X> { call: &call, elements: PhantomData };
            let columns = COLUMNS_AT_ONCE.min(self.up.stride);
            run_tasks(&up, batch.groups.len() * self.column_tasks(), rows * columns * self.max_rank, isa, pool);
        }
        pool.scratch = memory;
    }

    /// Tasks that the columns of some rows are divided into.
    fn column_tasks(&self) -> usize {
        self.parts.last().map_or(0, |part| part.first_task + part.columns.len().div_ceil(COLUMNS_AT_ONCE))
    }
}

/// Run a kernel's parts of about `products` products each, many together if these are few.
///
/// # Safety
///
/// See `Kernel::run`, for every part; the machine has `isa`.
unsafe fn run_tasks<K: Kernel>(kernel: &K, parts: usize, products: usize, isa: Isa, pool: &mut Pool) {
    let least = parts.div_ceil(pool.num_threads() * TASKS_A_THREAD);
    let parts_a_task = (PRODUCTS_A_TASK / products.max(1)).max(least).max(1);
    pool.run(parts.div_ceil(parts_a_task), &|task| {
        for part in task * parts_a_task..parts.min((task + 1) * parts_a_task) {
            // SAFETY: as the caller promises.
            unsafe { vector::run(isa, kernel, part) };
        }
    });
}

/// The tokens with adapters, sorted by adapter.
struct Batch {
    tokens: Vec<(i32, u32)>,
    groups: Vec<Group>,
}

/// Some tokens of one adapter, as a range of those of the batch.
struct Group {
    adapter: usize,
    rows: Range<usize>,
}

impl Batch {
    fn of(adapters: &[i32]) -> Self {
        let pairs = adapters.iter().copied().zip(0_u32..);
        let mut tokens: Vec<_> = pairs.filter(|&(adapter, _)| adapter >= 0).collect();
        tokens.sort_unstable();
        let mut groups = Vec::with_capacity(tokens.len());
        let mut start = 0;
        for same in tokens.chunk_by(|one, other| one.0 == other.0) {
            for rows in same.chunks(ROWS_AT_ONCE) {
                groups.push(Group { adapter: rows[0].0 as usize, rows: start..start + rows.len() });
                start += rows.len();
            }
        }
        Self { tokens, groups }
    }
}

/// The arguments of both products.
struct Call<'a> {
    op: &'a AddLora,
    batch: &'a Batch,
    ranks: &'a [i32],
    /// The products with `down`: float32, a row for each token of the batch.
    inner: Matrix,
}

impl Call<'_> {
    fn rank(&self, adapter: usize, part: usize) -> usize {
        self.ranks[adapter * self.op.parts.len() + part] as usize
    }

    /// The rows of a matrix that some tokens of the batch have.
    #[inline(always)]
    fn rows_of<X, const ROWS: usize>(&self, matrix: &Matrix, first: usize) -> [*mut X; ROWS] {
        let mut rows = [std::ptr::null_mut(); ROWS];
        for (row, &(_, token)) in rows.iter_mut().zip(&self.batch.tokens[first..first + ROWS]) {
            *row = matrix.row::<X>(token as usize);
        }
        rows
    }
}

/// A product of some rows, a few rows at a time.
trait Product {
    /// The product of `ROWS` rows of the batch, with `ROWS * COUNT` sums at once.
    ///
    /// # Safety
    ///
    /// See `Kernel::run`.
    unsafe fn multiply<V: Vector, const ROWS: usize, const COUNT: usize>(&self, row: usize);

    /// Multiply all rows: as many at once as registers have room for.
    ///
    /// # Safety
    ///
    /// See `Kernel::run`.
    #[inline(always)]
    unsafe fn multiply_all<V: Vector>(&self, rows: Range<usize>) {
        let Range { start: mut row, end } = rows;
        // SAFETY: as the caller promises.
        unsafe {
            while V::ACCUMULATORS >= 16 && end - row >= 4 {
                self.multiply::<V, 4, 4>(row);
                row += 4;
            }
            while V::ACCUMULATORS >= 6 && end - row >= 3 {
                self.multiply::<V, 3, 2>(row);
                row += 3;
            }
            while end - row >= 2 {
                self.multiply::<V, 2, 2>(row);
                row += 2;
            }
            if row < end {
                self.multiply::<V, 1, 4>(row);
            }
        }
    }
}

/// Products of some rows with some rows of `down`.
struct Down<'a, X> {
    call: &'a Call<'a>,
    elements: PhantomData<X>,
}

impl<X: Storage> Kernel for Down<'_, X> {
    #[inline(always)]
    unsafe fn run<V: Vector>(&self, task: usize) {
        let AddLora { max_rank, in_features, down, ref parts, .. } = *self.call.op;
        let tasks_a_part = max_rank.div_ceil(RANKS_AT_ONCE);
        let (task, first) = (task / tasks_a_part, task % tasks_a_part * RANKS_AT_ONCE);
        let (group, part) = (&self.call.batch.groups[task / parts.len()], task % parts.len());
        let count = self.call.rank(group.adapter, part).saturating_sub(first).min(RANKS_AT_ONCE);
        if count == 0 {
            return;
        }
        let column = part * max_rank + first;
        let weights = down.row::<X>(group.adapter * parts.len() * max_rank + column).cast_const();
        let out = self.call.inner.columns_from(column);
        let product = DownProduct { call: self.call, weights, features: in_features, count, out };
        // SAFETY: as the caller promises.
        unsafe { product.multiply_all::<V>(group.rows.clone()) };
    }
}

/// `count` rows of weights.
struct DownProduct<'a, X> {
    call: &'a Call<'a>,
    weights: *const X,
    features: usize,
    count: usize,
    out: Matrix,
}

impl<X: Storage> Product for DownProduct<'_, X> {
    #[inline(always)]
    unsafe fn multiply<V: Vector, const ROWS: usize, const COUNT: usize>(&self, row: usize) {
        let x = self.call.rows_of(&self.call.op.x, row);
        let whole = self.count - self.count % COUNT;
        // SAFETY: as the caller promises.
        unsafe {
            for first in (0..whole).step_by(COUNT) {
                self.dots::<V, ROWS, COUNT>(x, row, first);
            }
            for first in whole..self.count {
                self.dots::<V, ROWS, 1>(x, row, first);
            }
        }
    }
}

impl<X: Storage> DownProduct<'_, X> {
    /// The products of some rows of x with some rows of weights.
    ///
    /// # Safety
    ///
    /// See `Kernel::run`.
    #[inline(always)]
    unsafe fn dots<V: Vector, const ROWS: usize, const COUNT: usize>(
        &self,
        x: [*mut X; ROWS],
        row: usize,
        first: usize,
    ) {
        // SAFETY: as the caller promises.
        unsafe {
            let weights = self.weights.add(first * self.features);
            let mut sums = [[V::splat(0.0); COUNT]; ROWS];
            let whole = self.features - self.features % LANES;
            for at in (0..whole).step_by(LANES) {
                add_dots(&mut sums, x, weights, self.features, at..at + LANES);
            }
            if whole < self.features {
                add_dots(&mut sums, x, weights, self.features, whole..self.features);
            }
            for (index, sums) in sums.iter().enumerate() {
                let out = self.out.row::<f32>(row + index).add(first);
                for (column, sum) in sums.iter().enumerate() {
                    *out.add(column) = sum.sum();
                }
            }
        }
    }
}

/// Add the products of up to sixteen features to sums of `COUNT` rows of weights each.
///
/// # Safety
///
/// See `Kernel::run`.
#[inline(always)]
unsafe fn add_dots<V: Vector, X: Storage, const ROWS: usize, const COUNT: usize>(
    sums: &mut [[V; COUNT]; ROWS],
    x: [*mut X; ROWS],
    weights: *const X,
    stride: usize,
    features: Range<usize>,
) {
    // SAFETY: as the caller promises.
    unsafe {
        let mut inputs = [V::splat(0.0); ROWS];
        for (input, x) in inputs.iter_mut().zip(x) {
            *input = X::load_up_to(x.add(features.start), features.len());
        }
        for column in 0..COUNT {
            let weight: V = X::load_up_to(weights.add(column * stride + features.start), features.len());
            for (sums, input) in sums.iter_mut().zip(inputs) {
                sums[column] = input.mul_add(weight, sums[column]);
            }
        }
    }
}

/// Products of some rows with some columns of `up`, which are added to the output.
struct Up<'a, X> {
    call: &'a Call<'a>,
    elements: PhantomData<X>,
}

impl<X: Storage> Kernel for Up<'_, X> {
    #[inline(always)]
    unsafe fn run<V: Vector>(&self, task: usize) {
        let AddLora { max_rank, up, ref parts, .. } = *self.call.op;
        let (group, task) = (task / self.call.op.column_tasks(), task % self.call.op.column_tasks());
        let group = &self.call.batch.groups[group];
        let part = parts.partition_point(|part| part.first_task <= task) - 1;
        let rank = self.call.rank(group.adapter, part);
        if rank == 0 {
            return;
        }
        let Part { ref columns, first_task } = parts[part];
        let start = columns.start + (task - first_task) * COLUMNS_AT_ONCE;
        let product = UpProduct {
            call: self.call,
            inner: self.call.inner.columns_from(part * max_rank),
            weights: up.row::<X>(group.adapter * max_rank).wrapping_add(start),
            rank,
            out: self.call.op.out.columns_from(start),
            columns: COLUMNS_AT_ONCE.min(columns.end - start),
        };
        // SAFETY: as the caller promises.
        unsafe { product.multiply_all::<V>(group.rows.clone()) };
    }
}

/// `rank` rows and some columns of weights.
struct UpProduct<'a, X> {
    call: &'a Call<'a>,
    inner: Matrix,
    weights: *const X,
    rank: usize,
    out: Matrix,
    columns: usize,
}

impl<X: Storage> Product for UpProduct<'_, X> {
    #[inline(always)]
    unsafe fn multiply<V: Vector, const ROWS: usize, const COUNT: usize>(&self, row: usize) {
        let out = self.call.rows_of(&self.out, row);
        let whole = self.columns - self.columns % (COUNT * LANES);
        // SAFETY: as the caller promises.
        unsafe {
            for first in (0..whole).step_by(COUNT * LANES) {
                self.add_to::<V, ROWS, COUNT>(out, row, first, COUNT * LANES);
            }
            for first in (whole..self.columns).step_by(LANES) {
                self.add_to::<V, ROWS, 1>(out, row, first, self.columns - first);
            }
        }
    }
}

impl<X: Storage> UpProduct<'_, X> {
    /// Add the products with some columns to the output: `COUNT` vectors, of which `left` columns exist.
    ///
    /// # Safety
    ///
    /// See `Kernel::run`.
    #[inline(always)]
    unsafe fn add_to<V: Vector, const ROWS: usize, const COUNT: usize>(
        &self,
        out: [*mut X; ROWS],
        row: usize,
        first: usize,
        left: usize,
    ) {
        // SAFETY: as the caller promises.
        unsafe {
            let mut sums = [[V::splat(0.0); COUNT]; ROWS];
            for rank in 0..self.rank {
                let weights = self.weights.add(rank * self.call.op.up.stride + first);
                let mut factors = [V::splat(0.0); ROWS];
                for (index, factor) in factors.iter_mut().enumerate() {
                    *factor = V::splat(*self.inner.row::<f32>(row + index).add(rank));
                }
                for vector in 0..COUNT {
                    let weight: V = X::load_up_to(weights.add(vector * LANES), left - vector * LANES);
                    for (sums, factor) in sums.iter_mut().zip(factors) {
                        sums[vector] = factor.mul_add(weight, sums[vector]);
                    }
                }
            }
            for (out, sums) in out.into_iter().zip(sums) {
                for (vector, sum) in sums.into_iter().enumerate() {
                    let (to, left) = (out.add(first + vector * LANES), left - vector * LANES);
                    X::store_up_to(X::load_up_to::<V>(to, left).add(sum), to, left);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtype::{elements, numbers};

    const TOKENS: usize = 40;
    const SIZES: [usize; 2] = [37, 150];
    const OUT: usize = SIZES[0] + SIZES[1];
    const IN: usize = 71;
    const MAX_RANK: usize = 9;
    /// The third adapter has no rows for one part, and uses less than there is for the other.
    const RANKS: [[i32; 2]; 3] = [[9, 9], [1, 4], [0, 6]];

    fn number(seed: usize) -> f32 {
        let mixed = (seed as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40;
        f32::from((mixed >> 8) as u16) / 65_536.0 - 0.5
    }

    fn many(seed: usize, count: usize, dtype: DType) -> Vec<u8> {
        elements(dtype, &(0..count).map(|index| number(seed * 1_000_003 + index)).collect::<Vec<_>>())
    }

    /// The arrays of an op.
    struct Case {
        dtype: DType,
        x: Vec<u8>,
        out: Vec<u8>,
        down: Vec<u8>,
        up: Vec<u8>,
        adapters: Vec<i32>,
    }

    impl Case {
        fn new(dtype: DType) -> Self {
            // Runs of 13 tokens, more than are computed at once, then adapters in turn; -1 is none.
            let adapters = (0..TOKENS as i32).map(|token| if token < 26 { token / 13 } else { token % 4 - 1 });
            Self {
                dtype,
                x: many(1, TOKENS * IN, dtype),
                out: many(2, TOKENS * OUT, dtype),
                down: many(3, RANKS.len() * 2 * MAX_RANK * IN, dtype),
                up: many(4, RANKS.len() * MAX_RANK * OUT, dtype),
                adapters: adapters.collect(),
            }
        }

        fn run(&self, tokens: Range<usize>, isa: Isa, num_threads: usize) -> Result<Vec<u8>, OutOfRange> {
            let mut out =
                self.out[tokens.start * OUT * self.dtype.bytes()..tokens.end * OUT * self.dtype.bytes()].to_vec();
            let matrix =
                |address: *const u8, stride| Matrix { dtype: self.dtype, address: address.expose_provenance(), stride };
            let x = self.x[tokens.start * IN * self.dtype.bytes()..].as_ptr();
            let op = AddLora {
                tokens: tokens.len(),
                in_features: IN,
                num_adapters: RANKS.len(),
                max_rank: MAX_RANK,
                parts: parts_of(&SIZES),
                x: matrix(x, IN),
                out: matrix(out.as_mut_ptr(), OUT),
                adapters: Indices(self.adapters[tokens.start..].as_ptr().expose_provenance()),
                down: matrix(self.down.as_ptr(), IN),
                up: matrix(self.up.as_ptr(), OUT),
                ranks: Indices(RANKS.as_ptr().expose_provenance()),
            };
            // SAFETY: the arrays have these sizes; the test asks for what the machine has.
            unsafe { op.run(op.capacity(), isa, &mut Pool::new(num_threads)) }?;
            Ok(out)
        }

        /// The formula in float64.
        fn expected(&self) -> Vec<f64> {
            let [x, out, down, up] = [&self.x, &self.out, &self.down, &self.up]
                .map(|bytes| numbers(self.dtype, bytes).into_iter().map(f64::from).collect::<Vec<_>>());
            let mut total = out;
            for (token, &adapter) in self.adapters.iter().enumerate().filter(|(_, adapter)| **adapter >= 0) {
                let adapter = adapter as usize;
                for (part, columns) in [0..SIZES[0], SIZES[0]..OUT].into_iter().enumerate() {
                    for rank in 0..RANKS[adapter][part] as usize {
                        let down = &down[((adapter * 2 + part) * MAX_RANK + rank) * IN..][..IN];
                        let inner: f64 = down.iter().zip(&x[token * IN..]).map(|(down, x)| down * x).sum();
                        for column in columns.clone() {
                            total[token * OUT + column] += inner * up[(adapter * MAX_RANK + rank) * OUT + column];
                        }
                    }
                }
            }
            total
        }
    }

    #[test]
    fn every_kernel_adds_the_products_of_a_row_with_its_adapter_alone() {
        for dtype in DType::ALL {
            let case = Case::new(dtype);
            let expected = case.expected();
            // Half a unit in the last place of numbers below 4.
            let tolerance = if dtype == DType::Float32 { 1e-5 } else { 8e-3 };
            let mut fused = Vec::new();
            for isa in Isa::available() {
                let all = case.run(0..TOKENS, isa, 1).expect("the indices are valid");
                for (number, expected) in numbers(dtype, &all).into_iter().zip(&expected) {
                    let error = (f64::from(number) - expected).abs();
                    assert!(error <= tolerance * (1.0 + expected.abs()), "{isa:?}: {number} for {expected}");
                }
                assert_eq!(case.run(0..TOKENS, isa, 3).as_ref(), Ok(&all), "{isa:?} on three threads");
                let row_bytes = OUT * dtype.bytes();
                for (token, row) in all.chunks_exact(row_bytes).enumerate() {
                    assert_eq!(case.run(token..token + 1, isa, 1).as_deref(), Ok(row), "{isa:?}, {token}");
                    if case.adapters[token] < 0 {
                        assert_eq!(row, &case.out[token * row_bytes..][..row_bytes]);
                    }
                }
                if isa > Isa::Portable {
                    fused.push(all);
                }
            }
            assert!(fused.windows(2).all(|pair| pair[0] == pair[1]), "fused instructions give the same bits");
        }
    }

    #[test]
    fn tokens_of_an_adapter_are_in_groups_wherever_they_are() {
        let adapters: Vec<_> = (0..30).map(|token| token % 2 * 4 - 1).chain([3; 4]).collect();
        let batch = Batch::of(&adapters);
        let sizes: Vec<_> = batch.groups.iter().map(|group| (group.adapter, group.rows.clone())).collect();
        assert_eq!(sizes, [(3, 0..12), (3, 12..19)]);
        let tokens: Vec<_> = batch.tokens.iter().map(|&(_, token)| token as usize).collect();
        assert_eq!(tokens, (1..30).step_by(2).chain(30..34).collect::<Vec<_>>());
    }

    #[test]
    fn an_adapter_that_is_in_no_table_is_refused() {
        let mut case = Case::new(DType::Float32);
        for number in [3, -2] {
            case.adapters[5] = number;
            let refused =
                OutOfRange::Index { what: "adapter of token", index: 5, number: number.into(), from: -1, to: 2 };
            assert_eq!(case.run(0..TOKENS, Isa::used(), 1), Err(refused));
        }
    }
}
