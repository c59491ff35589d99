//! Blocks by reference count, the free ones in an intrusive list from first to be reused to last. Every operation is
//! O(1), hashes nothing and allocates nothing. Knows neither what a block holds nor who refers to it.

use crate::ids::BlockId;

pub(crate) struct BlockPool {
    references: Vec<u32>,
    links: Vec<Link>, // one a block, and the list's two ends as one more
    num_free: u32,
}

#[derive(Clone, Copy)]
struct Link {
    previous: u32,
    next: u32,
}

impl BlockPool {
    pub(crate) fn new(num_blocks: u32) -> Self {
        let ends = num_blocks;
        let links = (0..=ends)
            .map(|index| Link {
                previous: if index == 0 { ends } else { index - 1 },
                next: if index == ends { 0 } else { index + 1 },
            })
            .collect();
        Self { references: vec![0; num_blocks as usize], links, num_free: num_blocks }
    }

    pub(crate) fn num_blocks(&self) -> u32 {
        self.references.len() as u32
    }

    pub(crate) fn num_free(&self) -> u32 {
        self.num_free
    }

    pub(crate) fn references(&self, block: BlockId) -> u32 {
        self.references[block.0 as usize]
    }

    /// Takes the free block that is first to be reused.
    pub(crate) fn allocate(&mut self) -> Option<BlockId> {
        let first = self.links[self.ends()].next;
        if first == self.num_blocks() {
            return None;
        }
        self.unlink(first);
        self.references[first as usize] = 1;
        Some(BlockId(first))
    }

    /// Adds a reference; a free block is taken from the list.
    pub(crate) fn share(&mut self, block: BlockId) {
        if self.references(block) == 0 {
            self.unlink(block.0);
        }
        self.references[block.0 as usize] += 1;
    }

    /// Drops a reference. A block without any is free: the last to be reused if it is worth `keep`ing, else the first.
    pub(crate) fn free(&mut self, block: BlockId, keep: bool) {
        let references = &mut self.references[block.0 as usize];
        *references -= 1;
        if *references > 0 {
            return;
        }
        let ends = self.ends();
        let previous = if keep { self.links[ends].previous } else { ends as u32 };
        let next = self.links[previous as usize].next;
        self.links[block.0 as usize] = Link { previous, next };
        self.links[previous as usize].next = block.0;
        self.links[next as usize].previous = block.0;
        self.num_free += 1;
    }

    /// The free blocks, first to be reused first.
    pub(crate) fn free_blocks(&self) -> impl Iterator<Item = BlockId> {
        let ends = self.num_blocks();
        let mut at = ends;
        std::iter::from_fn(move || {
            at = self.links[at as usize].next;
            (at != ends).then_some(BlockId(at))
        })
    }

    fn ends(&self) -> usize {
        self.references.len()
    }

    fn unlink(&mut self, block: u32) {
        let Link { previous, next } = self.links[block as usize];
        self.links[previous as usize].next = next;
        self.links[next as usize].previous = previous;
        self.num_free -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order(pool: &BlockPool) -> Vec<u32> {
        pool.free_blocks().map(|block| block.0).collect()
    }

    #[test]
    fn kept_blocks_are_reused_last_and_the_others_first() {
        let mut pool = BlockPool::new(4);
        let blocks: Vec<_> = (0..3).filter_map(|_| pool.allocate()).collect();
        pool.free(blocks[0], true);
        pool.free(blocks[1], false);
        pool.free(blocks[2], true);
        assert_eq!(order(&pool), [1, 3, 0, 2]);
    }

    #[test]
    fn a_shared_block_is_free_after_its_last_reference() {
        let mut pool = BlockPool::new(1);
        let block = pool.allocate().unwrap();
        pool.share(block);
        pool.free(block, true);
        assert_eq!((pool.num_free(), pool.allocate()), (0, None));
        pool.free(block, true);
        assert_eq!((pool.num_free(), pool.references(block)), (1, 0));
    }

    #[test]
    fn sharing_a_free_block_takes_it_from_the_middle_of_the_list() {
        let mut pool = BlockPool::new(3);
        pool.share(BlockId(1));
        assert_eq!(order(&pool), [0, 2]);
        assert_eq!(pool.num_free(), 2);
    }
}
