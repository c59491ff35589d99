//! Names of blocks' contents: chained digests of a block's tokens, all tokens before them, and the extra keys that
//! separate prefix caches. BLAKE3, or vLLM's `sha256_cbor`, whose names others can compute. Knows no blocks.

use std::hash::{BuildHasherDefault, Hash, Hasher};

use sha2::{Digest, Sha256};

use crate::config::{Config, PrefixHash};

/// A map keyed by digests, which are uniform: their first eight bytes, with the group added, serve as the hash.
pub(crate) type HashMapByDigest<T> = std::collections::HashMap<GroupHash, T, BuildHasherDefault<FirstBytes>>;

/// A set of digests.
pub(crate) type DigestSet = std::collections::HashSet<GroupHash, BuildHasherDefault<FirstBytes>>;

/// A map keyed by `GroupHash::short`.
pub(crate) type HashMapByShort<T> = std::collections::HashMap<u64, T, BuildHasherDefault<FirstBytes>>;

const ROOT_CONTEXT: &str = "pyllm 2026 prefix cache root: namespace, extra keys";

/// The name of a full block's contents: its tokens, all tokens before them, and the extra keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockHash([u8; 32]);

/// The name of one group's keys and values for these contents, which are in a block of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GroupHash {
    pub(crate) hash: BlockHash,
    pub(crate) group: u32,
}

/// A full block's name and its parent.
#[derive(Clone, Copy)]
pub(crate) struct Content<'a> {
    pub(crate) hash: BlockHash,
    pub(crate) parent: BlockHash,              // the root for the first block
    pub(crate) index: u32,                     // of the block in its chain
    pub(crate) tokens: (&'a [i32], &'a [i32]), // head and tail, read only if events are enabled
    pub(crate) adapter: &'a str,               // empty: none; likewise
}

impl BlockHash {
    /// The digest.
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// The hash with these bytes, as from `as_bytes`.
    pub(crate) fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// The name of the group's block.
    pub(crate) fn of(self, group: u32) -> GroupHash {
        GroupHash { hash: self, group }
    }

    fn first_bytes(&self) -> u64 {
        let mut first = [0; 8];
        first.copy_from_slice(&self.0[..8]);
        u64::from_le_bytes(first)
    }
}

#[cfg(test)]
impl BlockHash {
    /// A root by BLAKE3.
    pub(crate) fn root(extra_keys: &[&str]) -> Self {
        BlockHasher::new(&Config::default()).root(extra_keys)
    }

    /// A child by BLAKE3.
    pub(crate) fn child(self, tokens: &[i32]) -> Self {
        BlockHasher::new(&Config::default()).child(self, tokens, &[])
    }
}

/// Computes the names of blocks, by one algorithm.
pub(crate) struct BlockHasher {
    seed: Option<BlockHash>, // the root of vLLM's chains; none: BLAKE3
    namespace: String,       // of BLAKE3's chains
    message: Vec<u8>,
}

impl BlockHasher {
    pub(crate) fn new(config: &Config) -> Self {
        Self::by(config.prefix_hash, &config.prefix_hash_seed, &config.cache_namespace)
    }

    pub(crate) fn by(prefix_hash: PrefixHash, prefix_hash_seed: &str, namespace: &str) -> Self {
        let mut message = Vec::new();
        let seed = (prefix_hash == PrefixHash::Sha256Cbor).then(|| {
            cbor::text(&mut message, prefix_hash_seed);
            BlockHash(Sha256::digest(&message).into())
        });
        Self { seed, namespace: namespace.to_owned(), message }
    }

    /// The parent of a sequence's first block: for BLAKE3 a digest of the namespace and the extra keys, each after its
    /// length so that no two lists have equal bytes. vLLM has no such keys: if all are empty, the chain is vLLM's.
    pub(crate) fn root(&mut self, extra_keys: &[&str]) -> BlockHash {
        let Some(seed) = self.seed else {
            let mut hasher = blake3::Hasher::new_derive_key(ROOT_CONTEXT);
            for key in [&&self.namespace[..]].into_iter().chain(extra_keys) {
                hasher.update(&(key.len() as u64).to_le_bytes());
                hasher.update(key.as_bytes());
            }
            return BlockHash(*hasher.finalize().as_bytes());
        };
        if extra_keys.iter().all(|key| key.is_empty()) {
            return seed;
        }
        self.begin(seed);
        cbor::array(&mut self.message, 0);
        cbor::array(&mut self.message, extra_keys.len());
        for key in extra_keys {
            cbor::text(&mut self.message, key);
        }
        BlockHash(Sha256::digest(&self.message).into())
    }

    /// The name of the block after `parent`, whose tokens are in two parts. The parent is BLAKE3's key, so 16 tokens
    /// take one call of its compression function, not two.
    pub(crate) fn child(&mut self, parent: BlockHash, head: &[i32], tail: &[i32]) -> BlockHash {
        if self.seed.is_some() {
            self.begin(parent);
            cbor::array(&mut self.message, head.len() + tail.len());
            cbor::tokens(&mut self.message, head);
            cbor::tokens(&mut self.message, tail);
            cbor::null(&mut self.message);
            return BlockHash(Sha256::digest(&self.message).into());
        }
        if tail.is_empty() {
            return BlockHash(*blake3::keyed_hash(&parent.0, bytemuck::cast_slice(head)).as_bytes());
        }
        self.message.clear();
        self.message.extend_from_slice(bytemuck::cast_slice(head));
        self.message.extend_from_slice(bytemuck::cast_slice(tail));
        BlockHash(*blake3::keyed_hash(&parent.0, &self.message).as_bytes())
    }

    fn begin(&mut self, parent: BlockHash) {
        self.message.clear();
        cbor::array(&mut self.message, 3);
        cbor::bytes(&mut self.message, &parent.0);
    }
}

/// The parts of canonical CBOR (RFC 8949) in the input of a block's digest.
mod cbor {
    /// Unsigned integers. Token ids have all lengths, so branches on the length would be mispredicted.
    pub(super) fn tokens(message: &mut Vec<u8>, tokens: &[i32]) {
        let mut end = message.len();
        message.resize(end + 8 * tokens.len(), 0);
        for &token in tokens {
            let value = token as u32;
            let size = usize::from(value >= 24) + usize::from(value >= 0x100) + usize::from(value >= 0x1_0000);
            let length = [1, 2, 3, 5][size];
            let encoded = [0, 0x18, 0x19, 0x1a][size] << 56 | u64::from(value) << (64 - 8 * length);
            message[end..end + 8].copy_from_slice(&encoded.to_be_bytes());
            end += length;
        }
        message.truncate(end);
    }

    pub(super) fn bytes(message: &mut Vec<u8>, value: &[u8]) {
        head(message, 2, value.len() as u64);
        message.extend_from_slice(value);
    }

    pub(super) fn text(message: &mut Vec<u8>, value: &str) {
        head(message, 3, value.len() as u64);
        message.extend_from_slice(value.as_bytes());
    }

    pub(super) fn array(message: &mut Vec<u8>, length: usize) {
        head(message, 4, length as u64);
    }

    pub(super) fn null(message: &mut Vec<u8>) {
        message.push(0xf6);
    }

    fn head(message: &mut Vec<u8>, kind: u8, value: u64) {
        let kind = kind << 5;
        match value {
            0..24 => message.push(kind | value as u8),
            24..0x100 => message.extend_from_slice(&[kind | 0x18, value as u8]),
            0x100..0x1_0000 => {
                message.push(kind | 0x19);
                message.extend_from_slice(&(value as u16).to_be_bytes());
            }
            0x1_0000..0x1_0000_0000 => {
                message.push(kind | 0x1a);
                message.extend_from_slice(&(value as u32).to_be_bytes());
            }
            _ => {
                message.push(kind | 0x1b);
                message.extend_from_slice(&value.to_be_bytes());
            }
        }
    }
}

impl GroupHash {
    /// The name in eight bytes, for uses that tolerate collisions.
    pub(crate) fn short(&self) -> u64 {
        // The hash map uses the low bits for the bucket and the high ones for a tag.
        self.hash.first_bytes().wrapping_add(u64::from(self.group))
    }
}

impl Hash for GroupHash {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.short());
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

    fn hasher(prefix_hash: PrefixHash) -> BlockHasher {
        BlockHasher::new(&Config { prefix_hash, prefix_hash_seed: "0".to_owned(), ..Config::default() })
    }

    fn chain_by(prefix_hash: PrefixHash, extra_keys: &[&str], blocks: &[&[i32]]) -> BlockHash {
        let mut hasher = hasher(prefix_hash);
        blocks.iter().fold(hasher.root(extra_keys), |parent, tokens| hasher.child(parent, &tokens[..1], &tokens[1..]))
    }

    fn chain(extra_keys: &[&str], blocks: &[&[i32]]) -> BlockHash {
        chain_by(PrefixHash::Blake3, extra_keys, blocks)
    }

    fn hex(hash: BlockHash) -> String {
        blake3::Hash::from_bytes(hash.0).to_hex().to_string()
    }

    /// The expected digests are those of `cbor2.dumps(..., canonical=True)` and `hashlib.sha256`, as vLLM calls them.
    #[test]
    fn sha256_cbor_gives_the_names_that_vllm_gives() {
        let chain = |blocks: &[&[i32]]| hex(chain_by(PrefixHash::Sha256Cbor, &["", ""], blocks));
        let numbers: Vec<i32> = (0..16).collect();
        assert_eq!(chain(&[]), "4e1195df020de59e0d65a33a4279f1183e7ae4e5d980e309f8b55adff2e61c3e");
        let first: &[i32] = &[1, 2, 300, 70000];
        assert_eq!(chain(&[first]), "0bd7b58f2ebe08691f697f880e09dffc2d55c4f30d92bec1101e1ec2751812af");
        assert_eq!(chain(&[first, &numbers]), "6f477cf882739e18b6c8b77bd231908f800d57def321725e98d61e5ee4d17710");
        let lengths: &[i32] = &[0, 23, 24, 255, 256, 65535, 65536, i32::MAX]; // longer encodings start here
        assert_eq!(chain(&[lengths]), "946e7cc9f82671eb436b48a434e33c2b8bc9bd9eb03ef4b721002a2fa2fef37c");
        let salted = hex(hasher(PrefixHash::Sha256Cbor).root(&["t", "s", "a", ""]));
        assert_eq!(salted, "a8d017d0b4848d1e772c92cbad96e8f15bfcb0c8d8685c63ebc33fdf1e340072");
        let seed = "x".repeat(300);
        let config = Config { prefix_hash: PrefixHash::Sha256Cbor, prefix_hash_seed: seed, ..Config::default() };
        let root = hex(BlockHasher::new(&config).root(&[]));
        assert_eq!(root, "6868369228ecdc2519fd815756a7d898a80d1f81ed5cd98cc91e749edc70252d");
    }

    #[test]
    fn a_hash_names_all_tokens_from_the_start() {
        assert_eq!(chain(&["", ""], &[&[1, 2], &[3, 4]]), chain(&["", ""], &[&[1, 2], &[3, 4]]));
        assert_ne!(chain(&["", ""], &[&[1, 2], &[3, 4]]), chain(&["", ""], &[&[1, 9], &[3, 4]]));
        assert_ne!(chain(&["", ""], &[&[1, 2]]), chain(&["", ""], &[&[3, 4], &[1, 2]]));
    }

    #[test]
    fn a_namespace_sets_chains_apart_but_for_those_that_are_named_as_vllm_does() {
        let root = |prefix_hash, namespace: &str| {
            let config = Config { prefix_hash, cache_namespace: namespace.to_owned(), ..Config::default() };
            BlockHasher::new(&config).root(&["a", ""])
        };
        assert_ne!(root(PrefixHash::Blake3, "one"), root(PrefixHash::Blake3, "two"));
        assert_ne!(root(PrefixHash::Blake3, "a"), root(PrefixHash::Blake3, ""));
        assert_eq!(root(PrefixHash::Sha256Cbor, "one"), root(PrefixHash::Sha256Cbor, "two"));
    }

    #[test]
    fn extra_keys_set_chains_apart_by_place_and_length() {
        let keys = [["", "", ""], ["a", "", ""], ["", "a", ""], ["", "", "a"], ["ab", "c", ""], ["a", "bc", ""]];
        for algorithm in [PrefixHash::Blake3, PrefixHash::Sha256Cbor] {
            let chains = keys.map(|keys| chain_by(algorithm, &keys, &[&[1]]));
            for (index, one) in chains.iter().enumerate() {
                assert!(chains[index + 1..].iter().all(|other| other != one));
            }
        }
    }
}
