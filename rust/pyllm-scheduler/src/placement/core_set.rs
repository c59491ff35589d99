//! A set of up to 64 cores, each a bit: its position in a placement's table.

/// Maximum number of cores in a placement.
pub(crate) const MAX_CORES: usize = 64;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CoreSet(u64);

impl CoreSet {
    pub(crate) fn of(bit: usize) -> Self {
        Self(1 << bit)
    }

    pub(crate) fn is_empty(self) -> bool {
        self.0 == 0
    }

    pub(crate) fn contains(self, bit: usize) -> bool {
        self.0 & (1 << bit) != 0
    }

    pub(crate) fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    pub(crate) fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    pub(crate) fn and(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// The bits, lowest first.
    pub(crate) fn iter(self) -> impl Iterator<Item = usize> {
        let mut rest = self.0;
        std::iter::from_fn(move || {
            let bit = rest.trailing_zeros() as usize;
            rest &= rest.wrapping_sub(1);
            (bit < MAX_CORES).then_some(bit)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_has_its_bits_in_order() {
        let all = [63, 0, 5].map(CoreSet::of).into_iter().fold(CoreSet::default(), CoreSet::with);
        assert_eq!(all.iter().collect::<Vec<_>>(), [0, 5, 63]);
        assert_eq!(all.without(CoreSet::of(5)).and(all).iter().collect::<Vec<_>>(), [0, 63]);
        assert!(CoreSet::default().iter().next().is_none() && all.contains(63) && !all.contains(62));
    }
}
