//! The sum of all ranks' numbers, in rank order. Knows no transport.
#![expect(clippy::inline_always, reason = "see `Vector`")]

use std::marker::PhantomData;
use std::ptr::{with_exposed_provenance, with_exposed_provenance_mut};

use crate::dtype::DType;
use crate::isa::Isa;
use crate::vector::{self, Kernel, LANES, Storage, Vector, for_dtype};

/// Write the sum of all parts to `own`, which is the part of rank `index`; `parts` has those of the others, as many bytes
/// each, at addresses that are aligned for the dtype.
pub(super) fn add_up(dtype: DType, parts: &[&[u8]], index: usize, own: &mut [u8], isa: Isa) {
    let num_bytes = own.len();
    assert!(parts.iter().enumerate().all(|(rank, part)| rank == index || part.len() == num_bytes));
    let out = own.as_mut_ptr().expose_provenance();
    let mut addresses: Vec<usize> = parts.iter().map(|part| part.as_ptr().expose_provenance()).collect();
    addresses[index] = out;
    let count = num_bytes / dtype.bytes();
    // SAFETY: the parts have as many numbers as `own`; `isa` is one of this machine.
    unsafe {
        for_dtype!(dtype, X => {
            vector::run(isa, &Sum::<X> { addresses: &addresses, out, numbers: PhantomData }, count);
        });
    }
}

struct Sum<'a, X> {
    addresses: &'a [usize],
    out: usize,
    numbers: PhantomData<X>,
}

impl<X: Storage> Kernel for Sum<'_, X> {
    /// The sum of the first `count` numbers.
    #[inline(always)]
    unsafe fn run<V: Vector>(&self, count: usize) {
        let (first, others) = self.addresses.split_first().expect("there is a rank");
        let row = with_exposed_provenance::<X>;
        let out = with_exposed_provenance_mut::<X>(self.out);
        for at in (0..count).step_by(LANES) {
            let left = count - at;
            // SAFETY: as the caller promises; a vector is read from every part before it is written to `out`.
            unsafe {
                let mut total: V = X::load_up_to(row(*first).add(at), left);
                for other in others {
                    let mut rounded = [X::default(); LANES];
                    X::store(total.add(X::load_up_to(row(*other).add(at), left)), rounded.as_mut_ptr());
                    total = X::load(rounded.as_ptr());
                }
                X::store_up_to(total, out.add(at), left);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::dtype::{from_bfloat16, round_to_bfloat16};

    proptest! {
        #[test]
        fn every_instruction_set_adds_in_rank_order_and_rounds_after_each_addition(
            (ranks, own) in (1..5_usize).prop_flat_map(|ranks| (Just(ranks), 0..ranks)),
            bits in prop::collection::vec(any::<[u32; 5]>(), 0..70),
        ) {
            let floats = |rank: usize| bits.iter().map(|each| each[rank]).collect::<Vec<u32>>();
            let halves = |rank: usize| bits.iter().map(|each| (each[rank] >> 16) as u16).collect::<Vec<u16>>();
            for isa in Isa::available() {
                let parts: Vec<_> = (0..ranks).map(floats).collect();
                let mut sum = floats(own);
                let others: Vec<_> = parts.iter().map(|part| bytemuck::cast_slice(part)).collect();
                add_up(DType::Float32, &others, own, bytemuck::cast_slice_mut(&mut sum), isa);
                for (&found, each) in sum.iter().zip(&bits) {
                    let total = each[..ranks].iter().copied().map(f32::from_bits).reduce(|total, next| total + next);
                    let (found, total) = (f32::from_bits(found), total.expect("there is a rank"));
                    prop_assert!(found.to_bits() == total.to_bits() || found.is_nan() && total.is_nan(), "{isa:?}");
                }
                let parts: Vec<_> = (0..ranks).map(halves).collect();
                let mut sum = halves(own);
                let others: Vec<_> = parts.iter().map(|part| bytemuck::cast_slice(part)).collect();
                add_up(DType::Bfloat16, &others, own, bytemuck::cast_slice_mut(&mut sum), isa);
                for (row, &found) in sum.iter().enumerate() {
                    let total = parts
                        .iter()
                        .map(|part| part[row])
                        .reduce(|total, next| round_to_bfloat16(from_bfloat16(total) + from_bfloat16(next)))
                        .expect("there is a rank");
                    let is_none = from_bfloat16(found).is_nan() && from_bfloat16(total).is_nan();
                    prop_assert!(found == total || is_none, "{isa:?}");
                }
            }
        }
    }
}
