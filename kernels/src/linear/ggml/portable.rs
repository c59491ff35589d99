//! The micro-kernel in plain Rust, for expanded panels.

use super::tile::{InputFactors, Tile, Weights};
use crate::linear::dots;
use crate::linear::format::GROUP;
use crate::linear::output::{PANEL, STEP_BYTES, STEP_FEATURES};

/// # Safety
///
/// See `IntegerFormat::multiply`; the panel is expanded.
pub(super) unsafe fn multiply<W: Weights>(tile: &Tile) {
    // SAFETY: as the caller promises.
    unsafe {
        let panel = std::slice::from_raw_parts(tile.panel, tile.num_chunks * W::GROUP_BYTES);
        for row in tile.parts(1) {
            let mut sums = [0.0; PANEL];
            for (chunk, group) in panel.chunks_exact(W::GROUP_BYTES).enumerate() {
                let x = row.chunk(chunk, 0).cast::<[i8; GROUP]>().read();
                add_group::<W>(&row.chunk_factors(chunk).read(), x, group, &mut sums);
            }
            row.output.store(0, &sums);
        }
    }
}

fn add_group<W: Weights>(factors: &InputFactors, x: [i8; GROUP], group: &[u8], sums: &mut [f32; PANEL]) {
    let (integers, scales) = group.split_at(W::INTEGER_BYTES);
    let factor = |index: usize, column: usize| f32::from_ne_bytes(scales.as_chunks().0[index * PANEL + column]);
    let steps: Vec<_> = integers.as_chunks::<STEP_BYTES>().0.iter().zip(x.as_chunks::<STEP_FEATURES>().0).collect();
    let num_scales = W::ENCODING.scales_per_group;
    for (half, steps) in steps.chunks_exact(steps.len() / num_scales).enumerate() {
        let mut products = [factors.starts[half]; PANEL];
        for (cells, x) in steps {
            dots::portable(&mut products, cells, **x);
        }
        for (column, (sum, product)) in sums.iter_mut().zip(products).enumerate() {
            *sum = (factors.scale * factor(half, column)).mul_add(product as f32, *sum);
        }
    }
    for half in 0..if W::HAS_MIN { num_scales } else { 0 } {
        for (column, sum) in sums.iter_mut().enumerate() {
            *sum = factor(num_scales + half, column).mul_add(factors.scaled_sums[half], *sum);
        }
    }
}
