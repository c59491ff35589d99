//! Expansion of a panel to bytes with float32 factors, which costs less than unpacking it again for every few rows.
//!
//! The integers are the same and the factors exact, so products are bitwise those with the packed panel.

use std::cell::RefCell;

use super::panel::{PAIRS, factor};
use super::tile::{Tile, Weights};
use crate::isa::Isa;
use crate::linear::format::SUPER_GROUPS;
use crate::linear::output::{PANEL, STEP_BYTES};
use crate::memory::scratch::Scratch;

thread_local! {
    static EXPANDED: RefCell<Scratch> = RefCell::default();
}

/// Call `run` with the tile on an expanded copy of its panel.
///
/// # Safety
///
/// See `IntegerFormat::multiply`; the panel's weights are these.
pub(super) unsafe fn expanded<W: Weights>(tile: &Tile, isa: Isa, run: impl FnOnce(&Tile)) {
    let bytes = W::ENCODING.panel_bytes(tile.num_chunks);
    // SAFETY: as the caller promises.
    let panel = unsafe { std::slice::from_raw_parts(tile.panel, bytes) };
    let expand = |out: &mut [u8]| match isa {
        // SAFETY: whoever names an instruction set has it.
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 | Isa::Avx512Bf16 | Isa::Amx => unsafe { super::avx512::expand::<W>(panel, out) },
        _ => expand::<W>(panel, out),
    };
    in_scratch(tile, tile.num_chunks * W::Expanded::GROUP_BYTES, expand, run);
}

/// Call `run` with the tile on a panel that `expand` fills.
pub(super) fn in_scratch(tile: &Tile, bytes: usize, expand: impl FnOnce(&mut [u8]), run: impl FnOnce(&Tile)) {
    EXPANDED.with_borrow_mut(|scratch| {
        let out = scratch.bytes(bytes);
        expand(out);
        run(&Tile { panel: out.as_ptr(), ..*tile });
    });
}

fn expand<W: Weights>(panel: &[u8], out: &mut [u8]) {
    let groups = if W::IN_SUPER_BLOCKS { SUPER_GROUPS } else { 1 };
    let blocks = panel.chunks_exact(W::ENCODING.panel_bytes(groups));
    for (block, out) in blocks.zip(out.chunks_exact_mut(groups * W::Expanded::GROUP_BYTES)) {
        let (supers, packed) = block.split_at(W::SUPER_BYTES);
        for (group, out) in packed.chunks_exact(W::GROUP_BYTES).zip(out.chunks_exact_mut(W::Expanded::GROUP_BYTES)) {
            let (integers, factors) = group.split_at(W::INTEGER_BYTES);
            let (out_integers, out_factors) = out.split_at_mut(W::Expanded::INTEGER_BYTES);
            expand_integers::<W>(integers, out_integers);
            expand_factors::<W>(supers, factors, out_factors);
        }
    }
}

fn expand_integers<W: Weights>(integers: &[u8], out: &mut [u8]) {
    if W::ENCODING.bits == 8 {
        return out.copy_from_slice(integers);
    }
    let high_bits = W::ENCODING.bits - 4;
    let (lows, highs) = out.split_at_mut(PAIRS * STEP_BYTES);
    let steps = lows.chunks_exact_mut(STEP_BYTES).zip(highs.chunks_exact_mut(STEP_BYTES));
    for (pair, (low, high)) in steps.enumerate() {
        let nibbles = &integers[pair * STEP_BYTES..][..STEP_BYTES];
        if high_bits > 0 {
            let place = pair * high_bits;
            let rest = &integers[(PAIRS + place / 4) * STEP_BYTES..][..STEP_BYTES];
            let mask = ((1 << high_bits) - 1) << 4;
            for at in 0..STEP_BYTES {
                let rest = rest[at] >> (place % 4);
                low[at] = nibbles[at] & 0xf | rest & mask;
                high[at] = nibbles[at] >> 4 | rest << 4 & mask;
            }
        } else {
            for at in 0..STEP_BYTES {
                (low[at], high[at]) = (nibbles[at] & 0xf, nibbles[at] >> 4);
            }
        }
        if let Some(codebook) = W::ENCODING.unsigned_codebook() {
            for byte in low.iter_mut().chain(high) {
                *byte = codebook[usize::from(*byte)];
            }
        }
    }
}

fn expand_factors<W: Weights>(supers: &[u8], factors: &[u8], out: &mut [u8]) {
    for (at, out) in out.as_chunks_mut().0.iter_mut().enumerate() {
        *out = factor(W::ENCODING, supers, factors, at / PANEL, at % PANEL).to_ne_bytes();
    }
}
