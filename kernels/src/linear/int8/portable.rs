//! The micro-kernel in plain Rust.

use super::tile::{CHUNK, PLANES, Tile};
use crate::linear::dots;
use crate::linear::output::{PANEL, STEP_BYTES, STEP_FEATURES};

/// # Safety
///
/// See `IntegerFormat::multiply`, with integers in bytes.
pub(super) unsafe fn multiply(tile: &Tile) {
    // SAFETY: as the caller promises.
    unsafe {
        let scales = tile.panel.scales.cast::<[f32; PANEL]>().read_unaligned();
        for row in tile.parts(1) {
            let factors = row.factors.read();
            let mut products = factors.starts.map(|start| [start; PANEL]);
            let mut weights = row.panel.integers.cast::<[u8; STEP_BYTES]>();
            for chunk in 0..row.num_chunks {
                let x: [_; PLANES] = std::array::from_fn(|plane| row.chunk(chunk, plane).cast::<[i8; CHUNK]>().read());
                for step in 0..CHUNK / STEP_FEATURES {
                    let cells = weights.read();
                    weights = weights.add(1);
                    for (products, x) in products.iter_mut().zip(&x) {
                        dots::portable(products, &cells, x.as_chunks().0[step]);
                    }
                }
            }
            let [high, low] = products;
            let sums = std::array::from_fn(|column| {
                factors.scale * scales[column] * 128.0_f32.mul_add(high[column] as f32, low[column] as f32)
            });
            row.output.store(0, &sums);
        }
    }
}
