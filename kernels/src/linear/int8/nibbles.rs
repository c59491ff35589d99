//! Widening of 4-bit integers to their 8-bit values. Knows no product.

use std::cell::RefCell;

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::{
    __m512i, _MM_HINT_T0, _mm_prefetch, _mm512_add_epi16, _mm512_and_si512, _mm512_loadu_si512, _mm512_mullo_epi16,
    _mm512_permutexvar_epi16, _mm512_set_epi16, _mm512_set1_epi16, _mm512_srli_epi16, _mm512_store_si512,
    _mm512_ternarylogic_epi32,
};

use super::tile::{CHUNK, Panel, Tile, Weights};
use crate::isa::Isa;
#[cfg(target_arch = "x86_64")]
use crate::linear::PREFETCH;
use crate::linear::format::GROUP;
use crate::linear::output::{PANEL, STEP_BYTES, STEP_FEATURES};
use crate::memory::scratch::Scratch;

/// Bytes of a group's integers in a panel.
pub(super) const INTEGER_BYTES: usize = GROUP * PANEL / 2;
/// Bytes of a group with the two factors of each column.
pub(super) const GROUP_BYTES: usize = INTEGER_BYTES + 2 * PANEL * size_of::<i16>();

pub(super) fn panel_bytes(num_chunks: usize) -> usize {
    num_chunks * (CHUNK / GROUP) * GROUP_BYTES
}

/// The 8-bit value of a 4-bit integer, with 128 added.
#[inline]
pub(super) fn byte(nibble: u8, scale: i16, start: i16) -> u8 {
    (scale.wrapping_mul(i16::from(nibble)).wrapping_add(start).cast_unsigned() >> 8) as u8
}

thread_local! {
    static BYTES: RefCell<Scratch> = RefCell::default();
}

/// Call `run` with the tile on a copy of its integers as bytes.
///
/// # Safety
///
/// See `IntegerFormat::multiply`; the panel is so stored.
pub(super) unsafe fn in_bytes<W: Weights>(tile: &Tile, isa: Isa, run: impl FnOnce(&Tile)) {
    if !W::NIBBLES {
        return run(tile);
    }
    // SAFETY: as the caller promises.
    let panel = unsafe { std::slice::from_raw_parts(tile.panel.integers, panel_bytes(tile.num_chunks)) };
    with_bytes(isa, panel, |bytes| {
        run(&Tile { panel: Panel { integers: bytes.as_ptr(), ..tile.panel }, ..*tile });
    });
}

/// Call `run` with the integers of a panel as bytes, which begin at a cache line.
fn with_bytes(isa: Isa, panel: &[u8], run: impl FnOnce(&[u8])) {
    BYTES.with_borrow_mut(|bytes| {
        let bytes = bytes.bytes(panel.len() / GROUP_BYTES * GROUP * PANEL);
        match isa {
            // SAFETY: whoever names an instruction set has it.
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 | Isa::Avx512Bf16 | Isa::Amx => unsafe { expand_avx512(panel, bytes) },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 | Isa::AvxVnni => unsafe { expand_avx2(panel, bytes) },
            _ => expand_portable(panel, bytes),
        }
        run(bytes);
    });
}

#[inline(always)] // so that it is compiled anew for each instruction set
#[expect(clippy::inline_always, reason = "see above")]
fn expand_portable(panel: &[u8], bytes: &mut [u8]) {
    for (group, bytes) in panel.chunks_exact(GROUP_BYTES).zip(bytes.chunks_exact_mut(GROUP * PANEL)) {
        let (integers, factors) = group.split_at(INTEGER_BYTES);
        let (scales, starts) = factors.as_chunks().0.split_at(PANEL);
        let (lows, highs) = bytes.split_at_mut(INTEGER_BYTES);
        for (index, &pair) in integers.iter().enumerate() {
            let column = index / STEP_FEATURES % PANEL;
            let (scale, start) = (i16::from_ne_bytes(scales[column]), i16::from_ne_bytes(starts[column]));
            lows[index] = byte(pair & 0xf, scale, start);
            highs[index] = byte(pair >> 4, scale, start);
        }
    }
}

/// The portable form, compiled for AVX2.
///
/// # Safety
///
/// This machine has the instructions.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
unsafe fn expand_avx2(panel: &[u8], bytes: &mut [u8]) {
    expand_portable(panel, bytes);
}

/// # Safety
///
/// This machine has the instructions; `bytes` begins at a cache line.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw")]
pub(super) unsafe fn expand_avx512(panel: &[u8], bytes: &mut [u8]) {
    for (group, bytes) in panel.chunks_exact(GROUP_BYTES).zip(bytes.chunks_exact_mut(GROUP * PANEL)) {
        let (lows, highs) = bytes.split_at_mut(INTEGER_BYTES);
        // SAFETY: a group has its factors, and each of its vectors is there; asking for memory that is not there does
        // nothing.
        unsafe {
            let factors = VectorFactors::load(group.as_ptr(), PREFETCH);
            for at in (0..INTEGER_BYTES).step_by(64) {
                _mm_prefetch::<_MM_HINT_T0>(group.as_ptr().wrapping_add(PREFETCH + at).cast());
                let pairs = _mm512_loadu_si512(group.as_ptr().add(at).cast());
                let [low, high] = factors.expand(at % STEP_BYTES / 64, pairs);
                _mm512_store_si512(lows.as_mut_ptr().add(at).cast(), low);
                _mm512_store_si512(highs.as_mut_ptr().add(at).cast(), high);
            }
        }
    }
}

/// The factors of a group in the layout of its integers, for half of a panel each.
#[cfg(target_arch = "x86_64")]
pub(super) struct VectorFactors {
    scales: [__m512i; 2],
    starts: [__m512i; 2],
}

#[cfg(target_arch = "x86_64")]
impl VectorFactors {
    /// # Safety
    ///
    /// The group is valid.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw")]
    pub(super) unsafe fn load(group: *const u8, distance: usize) -> Self {
        let first = _mm512_set_epi16(
            15, 15, 14, 14, 13, 13, 12, 12, 11, 11, 10, 10, 9, 9, 8, 8, 7, 7, 6, 6, 5, 5, 4, 4, 3, 3, 2, 2, 1, 1, 0, 0,
        );
        let second = _mm512_add_epi16(first, _mm512_set1_epi16(16));
        let spread = |factors| [_mm512_permutexvar_epi16(first, factors), _mm512_permutexvar_epi16(second, factors)];
        // SAFETY: as the caller promises; asking for memory that is not there does nothing.
        let [scales, starts] = [INTEGER_BYTES, INTEGER_BYTES + 64].map(|at| unsafe {
            _mm_prefetch::<_MM_HINT_T0>(group.wrapping_add(distance + at).cast());
            _mm512_loadu_si512(group.add(at).cast())
        });
        Self { scales: spread(scales), starts: spread(starts) }
    }

    /// A vector of the low integers and one of the high ones, in bytes.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw")]
    pub(super) fn expand(&self, half: usize, pairs: __m512i) -> [__m512i; 2] {
        let (nibble, high_byte) = (_mm512_set1_epi16(0xf), _mm512_set1_epi16(!0xff));
        let words = |nibbles| _mm512_add_epi16(_mm512_mullo_epi16(nibbles, self.scales[half]), self.starts[half]);
        let join = |even, odd| {
            const EVEN_OR_MASKED_ODD: i32 = 0xf8;
            _mm512_ternarylogic_epi32::<EVEN_OR_MASKED_ODD>(_mm512_srli_epi16::<8>(even), odd, high_byte)
        };
        let low = |words| _mm512_and_si512(words, nibble);
        [
            join(words(low(pairs)), words(low(_mm512_srli_epi16::<8>(pairs)))),
            join(words(low(_mm512_srli_epi16::<4>(pairs))), words(_mm512_srli_epi16::<12>(pairs))),
        ]
    }
}
