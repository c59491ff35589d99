//! The name of a block's contents: a chained BLAKE3 digest of its tokens, all tokens before them, and the extra keys
//! that set one prefix cache apart from another. Knows no blocks.

use std::hash::{BuildHasherDefault, Hash, Hasher};

/// A map keyed by digests, which are uniform already: their first eight bytes are the hash, with the group in them.
pub(crate) type HashMapByDigest<T> = std::collections::HashMap<GroupHash, T, BuildHasherDefault<FirstBytes>>;

const ROOT_CONTEXT: &str = "pyllm 2025 prefix cache root: extra keys";

/// Names the contents of a full block: its tokens, all before them, and what sets its prefix cache apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockHash([u8; 32]);

/// Names what one group of layers keeps of these contents, which is in a block of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GroupHash {
    pub(crate) hash: BlockHash,
    pub(crate) group: u32,
}

/// A full block's name and what it follows.
#[derive(Clone, Copy)]
pub(crate) struct Content<'a> {
    pub(crate) hash: BlockHash,
    pub(crate) parent: BlockHash,              // the root for the first block
    pub(crate) index: u32,                     // of the block in its chain
    pub(crate) tokens: (&'a [i32], &'a [i32]), // head and tail, read only if events are enabled
}

impl BlockHash {
    /// The digest.
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// The parent of a sequence's first block. Each key is preceded by its length, so that no two lists read the same.
    pub(crate) fn root(extra_keys: &[&str]) -> Self {
        let mut hasher = blake3::Hasher::new_derive_key(ROOT_CONTEXT);
        for key in extra_keys {
            hasher.update(&(key.len() as u64).to_le_bytes());
            hasher.update(key.as_bytes());
        }
        Self(*hasher.finalize().as_bytes())
    }

    /// The block after this one. `message` is working space.
    pub(crate) fn child<'a>(self, tokens: impl Iterator<Item = &'a i32>, message: &mut Vec<u8>) -> Self {
        message.clear();
        message.extend_from_slice(&self.0);
        message.extend(tokens.flat_map(|token| token.to_le_bytes()));
        Self(*blake3::hash(message).as_bytes())
    }

    /// Of the block of this group.
    pub(crate) fn of(self, group: u32) -> GroupHash {
        GroupHash { hash: self, group }
    }
}

impl Hash for GroupHash {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let mut first = [0; 8];
        first.copy_from_slice(&self.hash.0[..8]);
        // The map takes its place from the low bits and a tag from the high ones.
        state.write_u64(u64::from_le_bytes(first).wrapping_add(u64::from(self.group)));
    }
}

#[derive(Default)]
pub(crate) struct FirstBytes(u64);

impl Hasher for FirstBytes {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write_u64(&mut self, value: u64) {
        self.0 = value;
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(byte);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chain(extra_keys: &[&str], blocks: &[&[i32]]) -> BlockHash {
        let mut message = Vec::new();
        blocks.iter().fold(BlockHash::root(extra_keys), |parent, tokens| parent.child(tokens.iter(), &mut message))
    }

    #[test]
    fn a_hash_names_all_tokens_from_the_start() {
        assert_eq!(chain(&["", ""], &[&[1, 2], &[3, 4]]), chain(&["", ""], &[&[1, 2], &[3, 4]]));
        assert_ne!(chain(&["", ""], &[&[1, 2], &[3, 4]]), chain(&["", ""], &[&[1, 9], &[3, 4]]));
        assert_ne!(chain(&["", ""], &[&[1, 2]]), chain(&["", ""], &[&[3, 4], &[1, 2]]));
    }

    #[test]
    fn extra_keys_set_chains_apart_by_place_and_length() {
        let keys = [["", "", ""], ["a", "", ""], ["", "a", ""], ["", "", "a"], ["ab", "c", ""], ["a", "bc", ""]];
        let chains = keys.map(|keys| chain(&keys, &[&[1]]));
        for (index, one) in chains.iter().enumerate() {
            assert!(chains[index + 1..].iter().all(|other| other != one));
        }
    }
}
