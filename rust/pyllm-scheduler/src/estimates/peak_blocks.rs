//! Estimates the peak number of blocks of the running sequences, if each grows as expected. After Gong et al.,
//! "Past-Future Scheduler for LLM Serving under SLA Guarantees" (arXiv 2507.10150): the peak is when one of the
//! sequences ends, and the shorter ones have freed theirs by then.

/// The running sequences as admission sees them, kept for one step.
#[derive(Default)]
pub(crate) struct PeakBlocks {
    sequences: Vec<Expected>, // longest remaining first, once `is_sorted`
    total: u64,               // blocks, if all grew and none ended
    held: u64,
    is_sorted: bool,
}

/// A sequence's blocks, and its expected growth.
#[derive(Clone, Copy)]
pub(crate) struct Expected {
    pub(crate) num_blocks: u32,
    pub(crate) num_growing: u32,
}

impl PeakBlocks {
    pub(crate) fn clear(&mut self) {
        self.sequences.clear();
        (self.total, self.held, self.is_sorted) = (0, 0, true);
    }

    pub(crate) fn add(&mut self, one: Expected) {
        self.total += u64::from(one.num_blocks + one.num_growing);
        self.held += u64::from(one.num_blocks);
        self.sequences.push(one);
        self.is_sorted = false;
    }

    /// Whether the peak, with one more sequence, stays within `capacity` blocks. `num_used` blocks are in use now.
    pub(crate) fn fits(&mut self, one: Expected, num_used: u32, capacity: u32) -> bool {
        // Shared blocks count once, and blocks that only pins and loads refer to count, too.
        let limit = u64::from(capacity) + self.held;
        let num_used = u64::from(num_used);
        if num_used + self.total + u64::from(one.num_blocks + one.num_growing) <= limit {
            return true;
        }
        if !self.is_sorted {
            self.sequences.sort_unstable_by_key(|one| std::cmp::Reverse(one.num_growing));
            self.is_sorted = true;
        }
        num_used + self.peak_with(one) <= limit
    }

    /// The peak with one more sequence. At the end of one, all that grow at least as long still run, grown as much.
    fn peak_with(&self, one: Expected) -> u64 {
        let (mut held, mut peak, mut is_in) = (0, 0, false);
        let mut count = 0;
        let mut end = |num_growing: u32, num_blocks: u32| {
            held += u64::from(num_blocks);
            count += 1;
            peak = peak.max(held + count * u64::from(num_growing));
        };
        for other in &self.sequences {
            if !is_in && one.num_growing >= other.num_growing {
                end(one.num_growing, one.num_blocks);
                is_in = true;
            }
            end(other.num_growing, other.num_blocks);
        }
        if !is_in {
            end(one.num_growing, one.num_blocks);
        }
        peak
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn growth(sequences: &[(u32, u32)]) -> PeakBlocks {
        let mut growth = PeakBlocks::default();
        growth.clear();
        for &(num_blocks, num_growing) in sequences {
            growth.add(Expected { num_blocks, num_growing });
        }
        growth
    }

    #[test]
    fn what_ends_early_gives_room_to_what_goes_on() {
        // When the short one ends they have 4 + 1 and 2 + 1 blocks; later the long one alone has 2 + 6.
        let one = Expected { num_blocks: 4, num_growing: 1 };
        assert!(growth(&[(2, 6)]).fits(one, 2, 8));
        assert!(!growth(&[(2, 6)]).fits(one, 2, 7));
    }

    #[test]
    fn blocks_of_pins_and_loads_are_no_room() {
        let one = Expected { num_blocks: 1, num_growing: 1 };
        assert!(growth(&[(2, 2)]).fits(one, 2, 6));
        assert!(!growth(&[(2, 2)]).fits(one, 5, 6));
    }

    #[test]
    fn shared_blocks_count_once() {
        let one = Expected { num_blocks: 0, num_growing: 0 };
        assert!(!growth(&[(4, 2), (4, 2)]).fits(one, 8, 10));
        assert!(growth(&[(4, 2), (4, 2)]).fits(one, 4, 8));
    }
}
