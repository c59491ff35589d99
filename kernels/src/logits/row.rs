//! A row of logits, read in blocks. Knows no op: sampling and log-probabilities both begin with the greatest logit of
//! each block, since none of the n greatest logits is below the n-th greatest of those.
#![expect(clippy::inline_always, reason = "see `Vector`")]

use crate::vector::{LANES, Storage, Vector};

/// Logits of a block.
pub(crate) const BLOCK: usize = 4 * LANES;

/// Contiguous logits.
#[derive(Clone, Copy)]
pub(crate) struct Row<L> {
    pub(crate) logits: *const L,
    pub(crate) vocabulary: usize,
}

// SAFETY: a thread makes these for itself.
unsafe impl<L> Sync for Row<L> {}

impl<L: Storage> Row<L> {
    pub(crate) fn num_blocks(&self) -> usize {
        self.vocabulary.div_ceil(BLOCK)
    }

    /// The logits of a block; minus infinity for NaN, and beyond the end.
    ///
    /// # Safety
    ///
    /// The logits are valid, and the machine has V's instructions.
    #[inline(always)]
    pub(crate) unsafe fn block<V: Vector>(&self, block: usize) -> [V; 4] {
        // SAFETY: as the caller promises.
        unsafe {
            let lowest = V::splat(f32::NEG_INFINITY);
            let mut vectors = [lowest; 4];
            for (index, vector) in vectors.iter_mut().enumerate() {
                let at = block * BLOCK + index * LANES;
                if at + LANES <= self.vocabulary {
                    *vector = L::load::<V>(self.logits.add(at)).max(lowest);
                } else if at < self.vocabulary {
                    let left = self.vocabulary - at;
                    *vector = L::load_up_to::<V>(self.logits.add(at), left).first(left, lowest).max(lowest);
                }
            }
            vectors
        }
    }

    /// A logit; minus infinity for NaN.
    ///
    /// # Safety
    ///
    /// The logit is valid.
    pub(crate) unsafe fn logit(&self, id: usize) -> f32 {
        // SAFETY: as the caller promises.
        let logit = unsafe { self.logits.add(id).read() }.widen();
        if logit.is_nan() { f32::NEG_INFINITY } else { logit }
    }

    /// The ids of a block.
    pub(crate) fn ids(&self, block: usize) -> std::ops::Range<usize> {
        block * BLOCK..((block + 1) * BLOCK).min(self.vocabulary)
    }
}

/// The greatest lane of a block.
#[inline(always)]
pub(crate) fn greatest<V: Vector>([a, b, c, d]: [V; 4]) -> f32 {
    a.max(b).max(c.max(d)).greatest()
}

/// The `count`-th greatest of the blocks' greatest logits, below which none of the `count` greatest logits lies; minus
/// infinity if there are fewer blocks.
pub(crate) fn least_of_greatest(maxima: &[f32], count: usize, sorted: &mut Vec<f32>) -> f32 {
    if count == 0 || count > maxima.len() {
        return f32::NEG_INFINITY;
    }
    sorted.clear();
    sorted.extend_from_slice(maxima);
    *sorted.select_nth_unstable_by(count - 1, |a, b| b.total_cmp(a)).1
}
