//! The sum of all ranks' numbers, in rank order. Knows no transport.
#![expect(clippy::inline_always, reason = "see `Vector`")]

use std::marker::PhantomData;
use std::ptr::{with_exposed_provenance, with_exposed_provenance_mut};

use crate::dtype::DType;
use crate::isa::Isa;
use crate::vector::{self, Bfloat16, Kernel, LANES, Storage, Vector};

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
        match dtype {
            DType::Float32 => vector::run(isa, &Sum::<f32> { addresses: &addresses, out, numbers: PhantomData }, count),
            DType::Bfloat16 => {
                vector::run(isa, &Sum::<Bfloat16> { addresses: &addresses, out, numbers: PhantomData }, count);
            }
        }
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
