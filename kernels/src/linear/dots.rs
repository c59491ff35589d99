//! Sums of a step's integer products, where AVX-512's VNNI does not compute them. Knows neither layouts nor scales.

#[cfg(target_arch = "x86_64")]
pub(super) mod avx2;

use super::output::{PANEL, STEP_BYTES, STEP_FEATURES};

/// Add a step's products with one row to the sums of all columns.
pub(super) fn portable(products: &mut [i32; PANEL], cells: &[u8; STEP_BYTES], x: [i8; STEP_FEATURES]) {
    for (product, cell) in products.iter_mut().zip(cells.as_chunks::<STEP_FEATURES>().0) {
        let dot: i32 = cell.iter().zip(x).map(|(&weight, x)| i32::from(weight) * i32::from(x)).sum();
        *product = product.wrapping_add(dot);
    }
}
