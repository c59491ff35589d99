//! Expansion of a panel in AVX2, for every level of x86: 8 columns at a time.

use std::arch::x86_64::{
    __m256i, _mm_and_si128, _mm_loadl_epi64, _mm_loadu_si128, _mm_set1_epi8, _mm_srli_epi16, _mm256_add_epi8,
    _mm256_and_si256, _mm256_castps_si256, _mm256_castsi256_ps, _mm256_castsi256_si128, _mm256_cmpeq_epi8,
    _mm256_cvtepi32_ps, _mm256_cvtepu8_epi16, _mm256_cvtepu8_epi32, _mm256_cvtepu16_epi32, _mm256_cvtph_ps,
    _mm256_extracti128_si256, _mm256_loadu_si256, _mm256_mul_ps, _mm256_or_si256, _mm256_set_epi32, _mm256_set_epi64x,
    _mm256_set_m128i, _mm256_set1_epi8, _mm256_set1_epi32, _mm256_set1_epi64x, _mm256_set1_ps, _mm256_setr_epi8,
    _mm256_shuffle_epi8, _mm256_shuffle_ps, _mm256_slli_epi16, _mm256_slli_epi32, _mm256_srai_epi32, _mm256_srli_epi16,
    _mm256_storeu_ps, _mm256_storeu_si256, _mm256_sub_epi8, _mm256_xor_si256,
};

use super::panel::{LINE, SUPER_BYTES};
use super::tables::{IQ1, IQ2_S, IQ2_XS, IQ2_XXS, IQ3_S, IQ3_XXS};
use super::{LOWERED, Layout, layout};
use crate::linear::format::{GROUP, GgmlType, SUPER_GROUPS};
use crate::linear::output::{PANEL, STEP_BYTES};

/// Columns in a vector.
const COLUMNS: usize = 8;
/// 8 features have indices of their own: one, or two.
const EIGHTS: usize = GROUP / 8;

/// The entries of a grid: each of 8 features, or of 4.
#[derive(Clone, Copy)]
enum Entries {
    Eights(&'static [u64]),
    Fours(&'static [u32]),
}

/// The compile-time properties of a format.
trait Grid {
    const LAYOUT: Layout;
    const ENTRIES: Entries;
}

macro_rules! grids {
    ($($name:ident: $kind:ident($entries:ident))*) => {
        $(
            struct $name;

            impl Grid for $name {
                const LAYOUT: Layout = layout(GgmlType::$name);
                const ENTRIES: Entries = Entries::$kind(&$entries);
            }
        )*

        /// See `panel::expand`.
        ///
        /// # Safety
        ///
        /// This machine has AVX2 and F16C.
        pub(super) unsafe fn expand(format: GgmlType, panel: &[u8], out: &mut [u8]) {
            // SAFETY: as the caller promises.
            unsafe {
                match format {
                    $(GgmlType::$name => expand_of::<$name>(panel, out),)*
                    _ => unreachable!("a format without a grid"),
                }
            }
        }
    };
}

grids! {
    Iq2Xxs: Eights(IQ2_XXS) Iq2Xs: Eights(IQ2_XS) Iq2S: Eights(IQ2_S) Iq3Xxs: Fours(IQ3_XXS) Iq3S: Fours(IQ3_S)
    Iq1S: Eights(IQ1) Iq1M: Eights(IQ1)
}

/// # Safety
///
/// This machine has AVX2 and F16C.
#[target_feature(enable = "avx2,f16c")]
unsafe fn expand_of<G: Grid>(panel: &[u8], out: &mut [u8]) {
    let factor_bytes = PANEL * 4 * G::LAYOUT.scales;
    let blocks = panel.chunks_exact(G::LAYOUT.super_block_bytes());
    let outs = out.chunks_exact_mut(SUPER_GROUPS * (EIGHTS * 2 * STEP_BYTES + factor_bytes));
    for (block, out) in blocks.zip(outs) {
        let (supers, groups) = block.split_at(SUPER_BYTES);
        let outs = out.chunks_exact_mut(EIGHTS * 2 * STEP_BYTES + factor_bytes);
        for (group, out) in groups.chunks_exact(G::LAYOUT.group_bytes()).zip(outs) {
            let (steps, factors) = out.split_at_mut(EIGHTS * 2 * STEP_BYTES);
            // SAFETY: all slices have the lengths of the layout.
            unsafe {
                for (at, steps) in steps.chunks_exact_mut(2 * STEP_BYTES).enumerate() {
                    expand_eight::<G>(group, at, steps);
                }
                let lines = G::LAYOUT.index_bytes() + G::LAYOUT.sign_bytes() + LINE * G::LAYOUT.high_lines();
                for scale in 0..G::LAYOUT.scales {
                    let bits = line(group.as_ptr().add(lines + LINE * scale));
                    expand_scales::<G>(supers, bits, factors.as_mut_ptr().add(PANEL * 4 * scale).cast());
                }
            }
        }
    }
}

/// Write the two steps of 8 features.
///
/// # Safety
///
/// This machine has AVX2; the group is a whole one, and there is room for two steps.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn expand_eight<G: Grid>(group: &[u8], at: usize, steps: &mut [u8]) {
    let (first_bits, second_bits) = (_mm256_set1_epi32(0x0804_0201), _mm256_set1_epi32(0x8040_2010_u32 as i32));
    let four_of_each = _mm256_setr_epi8(
        0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3, 4, 4, 4, 4, 5, 5, 5, 5, 6, 6, 6, 6, 7, 7, 7, 7,
    );
    // SAFETY: as the caller promises.
    unsafe {
        let indices: [[u16; PANEL]; 2] = match G::ENTRIES {
            Entries::Eights(_) => [indices::<G>(group, at), [0; PANEL]],
            Entries::Fours(_) => [indices::<G>(group, 2 * at), indices::<G>(group, 2 * at + 1)],
        };
        let signs = group.as_ptr().add(G::LAYOUT.index_bytes() + PANEL * at);
        for column in (0..PANEL).step_by(COLUMNS) {
            let mut vectors = look_up::<G>(&indices, column);
            if G::LAYOUT.has_signs {
                let bytes = signs.add(column).cast::<i64>().read_unaligned();
                let signs = _mm256_shuffle_epi8(_mm256_set1_epi64x(bytes), four_of_each);
                for (vector, bits) in vectors.iter_mut().zip([first_bits, second_bits]) {
                    let negative = _mm256_cmpeq_epi8(_mm256_and_si256(signs, bits), bits);
                    // Subtracting 128 from a byte adds it, too.
                    let subtracted = _mm256_xor_si256(negative, _mm256_set1_epi8(-128));
                    *vector = _mm256_sub_epi8(_mm256_xor_si256(*vector, negative), subtracted);
                }
            } else {
                const SHIFT: i32 = 31 - LOWERED.trailing_zeros() as i32;
                let words = _mm256_cvtepu16_epi32(_mm_loadu_si128(indices[0].as_ptr().add(column).cast()));
                let negative = _mm256_srai_epi32::<31>(_mm256_slli_epi32::<SHIFT>(words));
                let ones = _mm256_or_si256(negative, _mm256_set1_epi8(1)); // or -1
                vectors = vectors.map(|vector| _mm256_add_epi8(vector, ones));
            }
            for (vector, step) in vectors.into_iter().zip(steps.chunks_exact_mut(STEP_BYTES)) {
                _mm256_storeu_si256(step.as_mut_ptr().add(4 * column).cast(), vector);
            }
        }
    }
}

/// The entries of 8 columns, the first 4 features and the other 4.
#[inline]
#[target_feature(enable = "avx2")]
fn look_up<G: Grid>(indices: &[[u16; PANEL]; 2], column: usize) -> [__m256i; 2] {
    // The grids' lengths are powers of two; the rest clears the bit of `LOWERED`, and other bits are there in no index.
    match G::ENTRIES {
        Entries::Eights(entries) => {
            let entry = |at: usize| entries[usize::from(indices[0][column + at]) % entries.len()].cast_signed();
            let [first, second] = [0, 2].map(|at| {
                _mm256_castsi256_ps(_mm256_set_epi64x(entry(at + 5), entry(at + 4), entry(at + 1), entry(at)))
            });
            [_mm256_shuffle_ps::<0x88>(first, second), _mm256_shuffle_ps::<0xdd>(first, second)]
                .map(|floats| _mm256_castps_si256(floats))
        }
        Entries::Fours(entries) => [0, 1].map(|half: usize| {
            let entry = |at: usize| entries[usize::from(indices[half][column + at]) % entries.len()].cast_signed();
            _mm256_set_epi32(entry(7), entry(6), entry(5), entry(4), entry(3), entry(2), entry(1), entry(0))
        }),
    }
}

/// An index of all columns.
///
/// # Safety
///
/// This machine has AVX2; the group is a whole one.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn indices<G: Grid>(group: &[u8], at: usize) -> [u16; PANEL] {
    let mut indices = [0; PANEL];
    // SAFETY: as the caller promises.
    unsafe {
        let [first, second] = widened(_mm256_loadu_si256(group.as_ptr().add(PANEL * at).cast()));
        let mut words = [first, second];
        if G::LAYOUT.high_bits > 0 {
            let (place, mask) = (at * G::LAYOUT.high_bits, (1 << G::LAYOUT.high_bits) - 1);
            let lines = G::LAYOUT.index_bytes() + G::LAYOUT.sign_bytes();
            let bits = line(group.as_ptr().add(lines + LINE * (place / 4)));
            let bits = match place % 4 {
                0 => bits,
                1 => _mm256_srli_epi16::<1>(bits),
                2 => _mm256_srli_epi16::<2>(bits),
                _ => _mm256_srli_epi16::<3>(bits),
            };
            let high = widened(_mm256_and_si256(bits, _mm256_set1_epi8(mask)));
            words = [0, 1].map(|half| _mm256_or_si256(words[half], _mm256_slli_epi16::<8>(high[half])));
        }
        _mm256_storeu_si256(indices.as_mut_ptr().cast(), words[0]);
        _mm256_storeu_si256(indices.as_mut_ptr().add(PANEL / 2).cast(), words[1]);
    }
    indices
}

/// # Safety
///
/// This machine has AVX2 and F16C; there are a panel's float16, and room for as many numbers.
#[inline]
#[target_feature(enable = "avx2,f16c")]
unsafe fn expand_scales<G: Grid>(supers: &[u8], bits: __m256i, factors: *mut f32) {
    let mut bytes = [0_u8; PANEL];
    // SAFETY: as the caller promises.
    unsafe {
        _mm256_storeu_si256(
            bytes.as_mut_ptr().cast(),
            _mm256_or_si256(_mm256_add_epi8(bits, bits), _mm256_set1_epi8(1)),
        );
        for column in (0..PANEL).step_by(COLUMNS) {
            let halves = _mm_loadu_si128(supers.as_ptr().add(2 * column).cast());
            let unit = _mm256_mul_ps(_mm256_cvtph_ps(halves), _mm256_set1_ps(G::LAYOUT.unit));
            let odd = _mm256_cvtepu8_epi32(_mm_loadl_epi64(bytes.as_ptr().add(column).cast()));
            _mm256_storeu_ps(factors.add(column), _mm256_mul_ps(unit, _mm256_cvtepi32_ps(odd)));
        }
    }
}

/// A line of 4 bits a column, a byte each.
///
/// # Safety
///
/// This machine has AVX2; the line is valid.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn line(from: *const u8) -> __m256i {
    let mask = _mm_set1_epi8(0xf);
    // SAFETY: as the caller promises.
    let bits = unsafe { _mm_loadu_si128(from.cast()) };
    _mm256_set_m128i(_mm_and_si128(_mm_srli_epi16::<4>(bits), mask), _mm_and_si128(bits, mask))
}

/// Bytes as words.
#[inline]
#[target_feature(enable = "avx2")]
fn widened(bytes: __m256i) -> [__m256i; 2] {
    [_mm256_cvtepu8_epi16(_mm256_castsi256_si128(bytes)), _mm256_cvtepu8_epi16(_mm256_extracti128_si256::<1>(bytes))]
}
