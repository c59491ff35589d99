//! Pins: named lists of contents that stay on the device until they are unpinned. A pin holds the blocks of its
//! contents that are on the device. Knows neither reference counts nor evictions.

use std::collections::{BTreeMap, BTreeSet};

use crate::block_hash::{GroupHash, HashMapByDigest};
use crate::error::{Error, Result};
use crate::ids::BlockId;

pub(crate) struct Pins {
    quota: u32,
    by_name: BTreeMap<u64, Vec<GroupHash>>,
    wishes: HashMapByDigest<Wish>,
    num_held: u32,
}

struct Wish {
    num_pins: u32,
    block: Option<BlockId>,
}

impl Pins {
    pub(crate) fn new(quota: u32) -> Self {
        Self { quota, by_name: BTreeMap::new(), wishes: HashMapByDigest::default(), num_held: 0 }
    }

    /// Blocks that pins hold.
    pub(crate) fn num_held(&self) -> u32 {
        self.num_held
    }

    pub(crate) fn contains(&self, name: u64) -> bool {
        self.by_name.contains_key(&name)
    }

    /// Whether a pin holds this block with these contents.
    pub(crate) fn holds(&self, block: BlockId, key: GroupHash) -> bool {
        self.wishes.get(&key).is_some_and(|wish| wish.block == Some(block))
    }

    /// Adds a pin. Returns the contents in no other pin; the caller calls `hold` for those on the device.
    ///
    /// Errors: `DuplicatePin`; `PinQuota`, also for too many pins.
    pub(crate) fn pin(&mut self, name: u64, mut keys: Vec<GroupHash>) -> Result<Vec<GroupHash>> {
        if self.contains(name) {
            return Err(Error::DuplicatePin { name });
        }
        let mut seen = BTreeSet::new();
        keys.retain(|key| seen.insert((key.group, *key.hash.as_bytes())));
        let mut added = keys.clone();
        added.retain(|key| !self.wishes.contains_key(key));
        let (asked, pinned) = (added.len() as u32, self.wishes.len() as u32);
        let num_pins = self.by_name.len() as u32;
        if asked > self.quota.saturating_sub(pinned) || num_pins >= self.quota {
            return Err(Error::PinQuota { asked, pinned, num_pins, quota: self.quota });
        }
        for &key in &keys {
            self.wishes.entry(key).or_insert(Wish { num_pins: 0, block: None }).num_pins += 1;
        }
        self.by_name.insert(name, keys);
        Ok(added)
    }

    /// Removes a pin. Returns the blocks to free, the last first; none: there is no such pin.
    pub(crate) fn unpin(&mut self, name: u64) -> Option<Vec<BlockId>> {
        let keys = self.by_name.remove(&name)?;
        let mut freed = Vec::new();
        for key in keys.into_iter().rev() {
            let Some(wish) = self.wishes.get_mut(&key) else { continue };
            wish.num_pins -= 1;
            if wish.num_pins == 0 {
                freed.extend(self.wishes.remove(&key).and_then(|wish| wish.block));
            }
        }
        self.num_held -= freed.len() as u32;
        Some(freed)
    }

    /// Holds a block with new contents if a pin lists them. True: the caller adds a reference.
    pub(crate) fn hold(&mut self, block: BlockId, key: GroupHash) -> bool {
        if self.wishes.is_empty() {
            return false;
        }
        let Some(wish) = self.wishes.get_mut(&key) else { return false };
        wish.block = Some(block);
        self.num_held += 1;
        true
    }

    /// Releases all blocks, but keeps the pins. Returns the blocks, every chain's tail first.
    pub(crate) fn release(&mut self) -> Vec<BlockId> {
        let mut released = Vec::new();
        for key in self.by_name.values().flat_map(|keys| keys.iter().rev()) {
            released.extend(self.wishes.get_mut(key).and_then(|wish| wish.block.take()));
        }
        self.num_held = 0;
        released
    }

    /// See `Scheduler::audit`. `find` gives the device's block with these contents.
    pub(crate) fn audit(&self, find: impl Fn(GroupHash) -> Option<BlockId>) -> std::result::Result<(), String> {
        let num_held = self.wishes.values().filter(|wish| wish.block.is_some()).count();
        if num_held != self.num_held as usize {
            return Err(format!("pins hold {num_held} blocks, not {}", self.num_held));
        }
        let num_pins: u32 = self.wishes.values().map(|wish| wish.num_pins).sum();
        let expected = self.by_name.values().map(Vec::len).sum::<usize>();
        if num_pins as usize != expected || self.wishes.len() > self.quota as usize {
            return Err(format!("{num_pins} wishes for {} contents, not {expected}", self.wishes.len()));
        }
        match self.wishes.iter().find(|(key, wish)| wish.block != find(**key)) {
            Some((_, wish)) => Err(format!("a pin holds {:?}, and its contents are elsewhere", wish.block)),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::block_hash::BlockHash;

    fn hashes(names: &[&str]) -> Vec<GroupHash> {
        names.iter().map(|name| BlockHash::root(&[name]).of(0)).collect()
    }

    #[test]
    fn what_two_pins_want_counts_once_and_stays_until_both_are_gone() {
        let mut pins = Pins::new(3);
        assert_eq!(pins.pin(1, hashes(&["a", "b", "b"])), Ok(hashes(&["a", "b"])));
        assert_eq!(pins.pin(2, hashes(&["a", "c"])), Ok(hashes(&["c"])));
        assert_eq!(
            pins.pin(3, hashes(&["a", "d"])),
            Err(Error::PinQuota { asked: 1, pinned: 3, num_pins: 2, quota: 3 })
        );
        for (block, hash) in hashes(&["a", "b"]).into_iter().enumerate() {
            assert!(pins.hold(BlockId(block as u32), hash));
        }
        assert!(!pins.hold(BlockId(9), hashes(&["d"])[0]));
        assert_eq!(pins.unpin(1), Some(vec![BlockId(1)]));
        assert_eq!((pins.num_held(), pins.unpin(1)), (1, None));
        assert_eq!(pins.unpin(2), Some(vec![BlockId(0)]));
    }

    #[test]
    fn released_blocks_come_tail_first_and_are_still_wanted() {
        let mut pins = Pins::new(4);
        pins.pin(1, hashes(&["a", "b"])).unwrap();
        for (block, hash) in hashes(&["a", "b"]).into_iter().enumerate() {
            pins.hold(BlockId(block as u32), hash);
        }
        assert_eq!(pins.release(), [BlockId(1), BlockId(0)]);
        assert_eq!(pins.num_held(), 0);
        assert!(pins.hold(BlockId(3), hashes(&["a"])[0]));
    }
}
