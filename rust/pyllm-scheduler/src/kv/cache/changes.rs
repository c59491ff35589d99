//! Changes of the KV cache's contents, for the placement of requests: a bounded log of numbered changes, kept from the
//! first request for it, and its encoding. It has short names only, each known on some tier or on none; if two contents
//! share a name, a placement may be worse. Knows neither blocks nor tokens: `events.rs` has those.

use std::collections::VecDeque;

/// Number of changes kept for readers.
const CAPACITY: usize = 1 << 17;

/// Maximum number of changes, or blocks of a snapshot, in one answer.
const MAX_TOLD: usize = 1 << 14;

/// Bytes of a change: a tag, and eight bytes of the name.
const LENGTH: usize = 9;

/// A change of the contents known on either tier. Names are `GroupHash::short`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// All contents were forgotten.
    Cleared,
    /// The contents are on one of the tiers now, possibly copied from the other.
    Stored(u64),
    /// The contents are on no tier any more.
    Removed(u64),
}

impl Change {
    pub(crate) fn write(self, bytes: &mut Vec<u8>) {
        let (tag, name) = match self {
            Self::Cleared => (0, 0),
            Self::Stored(name) => (1, name),
            Self::Removed(name) => (2, name),
        };
        bytes.push(tag);
        bytes.extend_from_slice(&name.to_le_bytes());
    }

    /// Decodes changes encoded by `write`; none if the bytes are invalid.
    pub(crate) fn read_all(bytes: &[u8]) -> Option<Vec<Self>> {
        let changes = bytes.chunks(LENGTH).map(|change| {
            let (tag, name) = change.split_first()?;
            let name = u64::from_le_bytes(name.try_into().ok()?);
            match tag {
                0 => Some(Self::Cleared),
                1 => Some(Self::Stored(name)),
                2 => Some(Self::Removed(name)),
                _ => None,
            }
        });
        changes.collect()
    }
}

/// A log of changes, empty before `begin`.
pub(crate) struct ChangeLog {
    recent: Option<VecDeque<Change>>, // up to `next`
    next: u64,
    capacity: usize,
    pub(crate) max_told: usize,
}

impl ChangeLog {
    pub(crate) fn new() -> Self {
        Self::with_limits(CAPACITY, MAX_TOLD)
    }

    pub(crate) fn with_limits(capacity: usize, max_told: usize) -> Self {
        Self { recent: None, next: 0, capacity, max_told }
    }

    /// Keeps changes from now on. The caller sends the contents already known.
    pub(crate) fn begin(&mut self) {
        self.recent.get_or_insert_default();
    }

    pub(crate) fn is_kept(&self) -> bool {
        self.recent.is_some()
    }

    pub(crate) fn push(&mut self, change: Change) {
        let Some(recent) = &mut self.recent else { return };
        if recent.len() == self.capacity {
            recent.pop_front();
        }
        recent.push_back(change);
        self.next += 1;
    }

    /// The number of the next change.
    pub(crate) fn next(&self) -> u64 {
        self.next
    }

    /// The changes from number `first` on; none if some of them are too old, or `first` is in the future.
    pub(crate) fn since(&self, first: u64) -> Option<impl Iterator<Item = Change>> {
        let recent = self.recent.as_ref()?;
        let oldest = self.next - recent.len() as u64;
        let skipped = first.checked_sub(oldest).filter(|_| first <= self.next)?;
        Some(recent.range(skipped as usize..).copied())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_read_as_they_were_written() {
        let changes = [Change::Stored(7), Change::Cleared, Change::Removed(u64::MAX)];
        let mut bytes = Vec::new();
        for change in changes {
            change.write(&mut bytes);
        }
        assert_eq!(Change::read_all(&bytes), Some(changes.to_vec()));
        assert_eq!(Change::read_all(&bytes[..26]), None);
        assert_eq!(Change::read_all(&[3; 9]), None);
    }

    #[test]
    fn changes_are_numbered_from_the_first_that_was_asked_for_and_the_oldest_are_dropped() {
        let mut log = ChangeLog::with_limits(2, 1);
        log.push(Change::Stored(1));
        assert!(log.since(0).is_none() && log.next() == 0);
        log.begin();
        for name in 1..4 {
            log.push(Change::Stored(name));
        }
        let since = |first| log.since(first).map(Iterator::collect::<Vec<_>>);
        assert_eq!((since(0), since(4)), (None, None));
        assert_eq!((since(2), since(3)), (Some(vec![Change::Stored(3)]), Some(vec![])));
    }
}
