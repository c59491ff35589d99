//! Blocks by reference count, and the order in which free ones are reused. Every operation is O(1), hashes nothing and
//! allocates nothing. Knows neither contents nor owners of blocks: only whether a block has contents, its depth in a
//! chain, and its number of hits.
//!
//! Free blocks without contents are reused first. The others are in one list per class, in the order they were freed; a
//! class is a level of hits and a depth. The block to evict is, among the lists' first blocks, the one with the lowest
//! sum of the tick at which it was freed and the bonus of its class. A bonus is a share of the pool: a block that was
//! hit often outlives as many later ones as that share has blocks, and no block stays for ever. Superseded blocks have a
//! list of their own, and are reused before these.
//!
//! When a window moves on, a sequence frees its oldest block of the window and takes another one. If several sequences
//! share that block, it becomes free only with the last of them. So for each reference but the first, a free block is
//! reserved: it is counted as owed.
//!
//! A chain's tail is always evicted before its head, except in chains of a window, whose head is useless without the
//! rest. A sequence that refers to a block refers to all blocks before it in the chain, takes them together and frees
//! the tail first. So the head is freed later, is shared at least as often (sharing is a hit whether or not the block
//! was free) and is no deeper: its tick is higher and its bonus no lower than the tail's. While the tail is free, the
//! first block of the tail's list has no higher score than the tail, and is evicted before the head.

use std::marker::PhantomData;

use crate::ids::Block;

/// Blocks of a chain before this one are near its start.
const NUM_NEAR: u32 = 32;
/// Classes of hits: none, 1, 3 and 7 or more.
const NUM_LEVELS: usize = 4;
const HOLDING_NOTHING: usize = 0;
const SUPERSEDED: usize = 1;
const FIRST_CLASS: usize = 2;
const NUM_LISTS: usize = FIRST_CLASS + 2 * NUM_LEVELS;

pub(crate) struct BlockPool<B> {
    entries: Vec<Entry>, // one per block, then the two ends of each list
    bonuses: [u64; NUM_LISTS],
    tick: u64, // cached blocks freed so far
    num_free: u32,
    num_owed: u32,
    block: PhantomData<fn() -> B>,
}

#[derive(Clone, Copy)]
struct Entry {
    references: u32,
    previous: u32,
    next: u32,
    holding: Holding,
    hits: u8,
    in_window: bool,
    tick: u64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Holding {
    Nothing,
    Superseded,
    Far,
    Near,
}

impl<B: Block> BlockPool<B> {
    pub(crate) fn new(num_blocks: u32) -> Self {
        let entry = |at| Entry {
            references: 0,
            previous: at,
            next: at,
            holding: Holding::Nothing,
            hits: 0,
            in_window: false,
            tick: 0,
        };
        let mut pool = Self {
            entries: (0..num_blocks + NUM_LISTS as u32).map(entry).collect(),
            bonuses: std::array::from_fn(|list| bonus(list, u64::from(num_blocks))),
            tick: 0,
            num_free: 0,
            num_owed: 0,
            block: PhantomData,
        };
        for block in (0..num_blocks).rev() {
            pool.link(block);
        }
        pool
    }

    pub(crate) fn num_blocks(&self) -> u32 {
        (self.entries.len() - NUM_LISTS) as u32
    }

    pub(crate) fn num_free(&self) -> u32 {
        self.num_free
    }

    pub(crate) fn references(&self, block: B) -> u32 {
        self.entry(block).references
    }

    pub(crate) fn hits(&self, block: B) -> u8 {
        self.entry(block).hits
    }

    /// Free blocks reserved for sequences that will replace shared blocks of windows.
    pub(crate) fn num_owed(&self) -> u32 {
        self.num_owed
    }

    /// Takes the next free block. The caller calls `forget` if it had contents.
    pub(crate) fn allocate(&mut self, in_window: bool) -> Option<B> {
        let block = self.next_to_go()?;
        self.unlink(block);
        let entry = &mut self.entries[block as usize];
        (entry.references, entry.in_window) = (1, in_window);
        Some(B::new(block))
    }

    /// Adds a reference, and counts a hit.
    pub(crate) fn share(&mut self, block: B) {
        self.hold(block);
        if self.entry(block).holding == Holding::Superseded {
            self.entry_mut(block).holding = Holding::Far;
        }
        self.raise_hits(block, self.hits(block).saturating_add(1));
    }

    /// Adds a reference; a free block is taken from its list.
    pub(crate) fn hold(&mut self, block: B) {
        let Entry { references, in_window, .. } = *self.entry(block);
        if references == 0 {
            self.unlink(block.number());
        } else {
            self.num_owed += u32::from(in_window);
        }
        self.entry_mut(block).references += 1;
    }

    /// Drops a reference. A block without references is free.
    pub(crate) fn free(&mut self, block: B) {
        let entry = self.entry_mut(block);
        entry.references -= 1;
        if entry.references == 0 {
            self.link(block.number());
        } else {
            self.num_owed -= u32::from(self.entry(block).in_window);
        }
    }

    /// Marks a block in use as having contents, at `index` of its chain.
    pub(crate) fn keep(&mut self, block: B, index: u32) {
        self.entry_mut(block).holding = if index < NUM_NEAR { Holding::Near } else { Holding::Far };
    }

    /// Marks a block with contents as of little use, until its next hit.
    pub(crate) fn supersede(&mut self, block: B) {
        let is_free = self.references(block) == 0;
        if is_free {
            self.unlink(block.number());
        }
        self.entry_mut(block).holding = Holding::Superseded;
        if is_free {
            self.link(block.number());
        }
    }

    pub(crate) fn is_superseded(&self, block: B) -> bool {
        self.entry(block).holding == Holding::Superseded
    }

    /// Raises the hits of a block in use to those of its contents on the other tier.
    pub(crate) fn raise_hits(&mut self, block: B, hits: u8) {
        let entry = self.entry_mut(block);
        entry.hits = entry.hits.max(hits);
    }

    /// Marks a block as having no contents.
    pub(crate) fn forget(&mut self, block: B) {
        let is_free = self.references(block) == 0;
        if is_free {
            self.unlink(block.number());
        }
        let entry = self.entry_mut(block);
        entry.holding = Holding::Nothing;
        entry.hits = 0;
        if is_free {
            self.link(block.number());
        }
    }

    /// The free blocks, those without contents first.
    pub(crate) fn free_blocks(&self) -> impl Iterator<Item = B> {
        (0..NUM_LISTS).flat_map(|list| self.list(list)).map(B::new)
    }

    /// See `Scheduler::audit`.
    pub(crate) fn audit(&self) -> Result<(), String> {
        let mut num_linked = 0;
        for list in 0..NUM_LISTS {
            let (mut previous, mut tick) = (self.ends(list), 0);
            for block in self.list(list) {
                let entry = &self.entries[block as usize];
                if entry.references > 0 || entry.list() != list || entry.previous != previous {
                    return Err(format!("free block {block} does not belong where it is, in list {list}"));
                }
                if list != HOLDING_NOTHING && entry.tick <= tick {
                    return Err(format!("free block {block} is out of order in list {list}"));
                }
                (previous, tick) = (block, entry.tick);
                num_linked += 1;
            }
            if self.entries[self.ends(list) as usize].previous != previous {
                return Err(format!("list {list} does not end at its last block"));
            }
        }
        let blocks = &self.entries[..self.num_blocks() as usize];
        let num_unused = blocks.iter().filter(|entry| entry.references == 0).count() as u32;
        let shared = blocks.iter().filter(|entry| entry.in_window).map(|entry| entry.references.saturating_sub(1));
        let num_owed: u32 = shared.sum();
        if (num_linked, num_unused, num_owed) == (self.num_free, self.num_free, self.num_owed) {
            return Ok(());
        }
        Err(format!(
            "{num_linked} blocks are in lists, {num_unused} unused and {num_owed} owed; {} count as free and {} as owed",
            self.num_free, self.num_owed
        ))
    }

    fn next_to_go(&self) -> Option<u32> {
        let first = |list| self.list(list).next();
        first(HOLDING_NOTHING).or_else(|| first(SUPERSEDED)).or_else(|| {
            let candidates = (FIRST_CLASS..NUM_LISTS).filter_map(|list| Some((list, first(list)?)));
            let score = |&(list, block): &(usize, u32)| self.entries[block as usize].tick + self.bonuses[list];
            candidates.min_by_key(score).map(|(_, block)| block)
        })
    }

    fn list(&self, list: usize) -> impl Iterator<Item = u32> {
        let ends = self.ends(list);
        let mut at = ends;
        std::iter::from_fn(move || {
            at = self.entries[at as usize].next;
            (at != ends).then_some(at)
        })
    }

    fn ends(&self, list: usize) -> u32 {
        self.num_blocks() + list as u32
    }

    fn entry(&self, block: B) -> &Entry {
        &self.entries[block.number() as usize]
    }

    fn entry_mut(&mut self, block: B) -> &mut Entry {
        &mut self.entries[block.number() as usize]
    }

    /// Appends a block to its class's list; one without contents is put first, as it may still be in a CPU's cache.
    fn link(&mut self, block: u32) {
        let list = self.entries[block as usize].list();
        let ends = self.ends(list);
        let previous = if list == HOLDING_NOTHING {
            self.entries[block as usize].hits = 0;
            ends
        } else {
            self.tick += 1;
            self.entries[block as usize].tick = self.tick;
            self.entries[ends as usize].previous
        };
        let next = self.entries[previous as usize].next;
        self.entries[block as usize].previous = previous;
        self.entries[block as usize].next = next;
        self.entries[previous as usize].next = block;
        self.entries[next as usize].previous = block;
        self.num_free += 1;
    }

    fn unlink(&mut self, block: u32) {
        let Entry { previous, next, .. } = self.entries[block as usize];
        self.entries[previous as usize].next = next;
        self.entries[next as usize].previous = previous;
        self.num_free -= 1;
    }
}

impl Entry {
    fn list(&self) -> usize {
        let level = ((u32::from(self.hits) + 1).ilog2() as usize).min(NUM_LEVELS - 1);
        match self.holding {
            Holding::Nothing => HOLDING_NOTHING,
            Holding::Superseded => SUPERSEDED,
            Holding::Far => FIRST_CLASS + level,
            Holding::Near => FIRST_CLASS + NUM_LEVELS + level,
        }
    }
}

/// A quarter of the pool per level of hits, and an eighth for blocks near the start of a chain.
fn bonus(list: usize, num_blocks: u64) -> u64 {
    let Some(class) = list.checked_sub(FIRST_CLASS) else { return 0 };
    let (is_near, level) = (class / NUM_LEVELS, class % NUM_LEVELS);
    num_blocks * level as u64 / 4 + num_blocks * is_near as u64 / 8
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;
    use crate::ids::BlockId;

    type Pool = BlockPool<BlockId>;

    /// Takes all free blocks, in the order of reuse.
    fn order(mut pool: Pool) -> Vec<u32> {
        pool.audit().unwrap();
        std::iter::from_fn(|| pool.allocate(false)).map(|block| block.0).collect()
    }

    /// A pool with its first `num_used` blocks in use.
    fn in_use(num_blocks: u32, num_used: u32) -> Pool {
        let mut pool = Pool::new(num_blocks);
        for block in 0..num_used {
            assert_eq!(pool.allocate(false), Some(BlockId(block)));
        }
        pool
    }

    #[test]
    fn what_holds_nothing_goes_first_and_the_rest_in_the_order_of_freeing() {
        let mut pool = in_use(5, 4);
        for block in [2, 0] {
            pool.keep(BlockId(block), 0);
        }
        for block in [2, 1, 0, 3] {
            pool.free(BlockId(block));
        }
        assert_eq!(order(pool), [3, 1, 4, 2, 0]);
    }

    #[test]
    fn a_shared_block_is_free_after_its_last_reference() {
        let mut pool = Pool::new(1);
        let block = pool.allocate(false).unwrap();
        pool.share(block);
        pool.free(block);
        assert_eq!((pool.num_free(), pool.allocate(false)), (0, None));
        pool.free(block);
        assert_eq!((pool.num_free(), pool.references(block)), (1, 0));
    }

    #[test]
    fn a_free_block_is_taken_from_the_middle_of_its_list_and_put_back_at_the_end() {
        let mut pool = in_use(3, 3);
        for block in (0..3).map(BlockId) {
            pool.keep(block, 0);
            pool.free(block);
        }
        pool.hold(BlockId(1));
        assert_eq!(pool.num_free(), 2);
        pool.audit().unwrap();
        pool.free(BlockId(1));
        assert_eq!(order(pool), [0, 2, 1]);
    }

    #[test]
    fn what_was_hit_outlives_a_share_of_the_pool_and_no_more() {
        let mut pool = in_use(8, 8);
        for block in (0..8).map(BlockId) {
            pool.keep(block, 0);
        }
        pool.share(BlockId(0));
        pool.free(BlockId(0));
        for block in 0..8 {
            pool.free(BlockId(block));
        }
        assert_eq!(order(pool), [1, 2, 0, 3, 4, 5, 6, 7]);
    }

    #[test]
    fn the_start_of_a_chain_outlives_what_is_far_from_one() {
        let mut pool = in_use(16, 16);
        for block in 0..16 {
            pool.keep(BlockId(block), if block == 0 { NUM_NEAR - 1 } else { NUM_NEAR });
            pool.free(BlockId(block));
        }
        assert_eq!(order(pool)[..4], [1, 2, 0, 3]);
    }

    #[test]
    fn superseded_blocks_go_before_the_rest_until_their_next_hit() {
        let mut pool = in_use(4, 4);
        for block in (0..4).map(BlockId) {
            pool.keep(block, 0);
        }
        pool.supersede(BlockId(1));
        for block in (0..4).map(BlockId) {
            pool.free(block);
        }
        pool.supersede(BlockId(3));
        pool.supersede(BlockId(2));
        pool.share(BlockId(3));
        pool.free(BlockId(3));
        assert_eq!(order(pool), [1, 2, 0, 3]);
    }

    #[test]
    fn a_forgotten_block_goes_first_and_has_no_hits() {
        let mut pool = in_use(3, 3);
        for block in (0..3).map(BlockId) {
            pool.keep(block, 0);
            pool.share(block);
            pool.free(block);
            pool.free(block);
        }
        pool.forget(BlockId(2));
        assert_eq!(pool.hits(BlockId(2)), 0);
        assert_eq!(order(pool), [2, 0, 1]);
    }

    /// A block's contents: a position in one of several texts with a common start.
    type Node = (u32, u32);

    const NUM_ALIKE: u32 = 20;

    fn node(text: u32, index: u32) -> Node {
        (index, if index < NUM_ALIKE { 0 } else { text })
    }

    fn is_child(child: Node, parent: Node) -> bool {
        child.0 == parent.0 + 1 && (parent.0 < NUM_ALIKE || child.1 == parent.1)
    }

    /// Sequences that share the cached blocks of their text, and compute the rest.
    struct Texts {
        pool: Pool,
        known: BTreeMap<Node, BlockId>,
        running: Vec<Vec<BlockId>>,
    }

    impl Texts {
        fn start(&mut self, text: u32, length: u32) {
            let nodes: Vec<_> = (0..length).map(|index| node(text, index)).collect();
            let found: Vec<_> = nodes.iter().map_while(|node| self.known.get(node).copied()).collect();
            let num_taken = found.iter().filter(|&&block| self.pool.references(block) == 0).count();
            if num_taken + nodes.len() - found.len() > self.pool.num_free() as usize {
                return;
            }
            let mut blocks = found;
            for &block in &blocks {
                self.pool.share(block);
            }
            for &node in &nodes[blocks.len()..] {
                let block = self.pool.allocate(false).unwrap();
                self.evict(block);
                self.pool.keep(block, node.0);
                self.known.insert(node, block);
                blocks.push(block);
            }
            self.running.push(blocks);
        }

        fn evict(&mut self, block: BlockId) {
            let evicted = self.known.iter().find(|(_, known)| **known == block).map(|(&node, _)| node);
            if let Some(node) = evicted {
                self.pool.forget(block);
                self.known.remove(&node);
                let child = self.known.keys().find(|&&child| is_child(child, node));
                assert_eq!(child, None, "{node:?} went before what follows it");
            }
        }

        fn end(&mut self, pick: usize) {
            if let Some(index) = pick.checked_rem(self.running.len()) {
                for block in self.running.remove(index).into_iter().rev() {
                    self.pool.free(block);
                }
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn a_chains_tail_goes_before_its_head(
            num_blocks in 40..120_u32,
            calls in prop::collection::vec((0..3_u32, 0..4_u32, 1..48_u32, any::<usize>()), 1..150),
        ) {
            let mut texts = Texts { pool: Pool::new(num_blocks), known: BTreeMap::new(), running: Vec::new() };
            for (call, text, length, pick) in calls {
                match call {
                    0 => texts.end(pick),
                    _ => texts.start(text, length),
                }
                texts.pool.audit().unwrap();
            }
        }
    }
}
