//! Memory lent in pieces, and reused once they are returned. Knows no tensor.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Pieces that stay in place for the lifetime of the arena.
#[derive(Default)]
pub(crate) struct Arena(Mutex<Vec<Piece>>);

struct Piece {
    lines: Box<[Line]>,
    lent: bool,
}

/// A cache line.
#[derive(Clone, Copy)]
#[repr(align(64))]
struct Line(#[expect(dead_code, reason = "whoever borrows it reads it")] [u8; 64]);

impl Arena {
    /// A piece of at least `bytes` bytes, zeros at first: its number and its address. None if memory has run out.
    pub(crate) fn lend(&self, bytes: usize) -> Option<(usize, usize)> {
        let num_lines = bytes.div_ceil(size_of::<Line>());
        let mut pieces = self.pieces();
        let free = pieces.iter().position(|piece| !piece.lent && piece.lines.len() == num_lines);
        let index = if let Some(index) = free {
            index
        } else {
            let mut lines = Vec::new();
            lines.try_reserve_exact(num_lines).ok()?;
            lines.resize(num_lines, Line([0; 64]));
            pieces.push(Piece { lines: lines.into(), lent: false });
            pieces.len() - 1
        };
        pieces[index].lent = true;
        Some((index, pieces[index].lines.as_mut_ptr().expose_provenance()))
    }

    pub(crate) fn give_back(&self, index: usize) {
        self.pieces()[index].lent = false;
    }

    /// Whether a byte belongs to the arena, lent or not.
    pub(crate) fn owns(&self, address: usize) -> bool {
        self.pieces().iter().any(|piece| piece.lines.as_ptr_range().contains(&std::ptr::without_provenance(address)))
    }

    /// Bytes of all pieces.
    pub(crate) fn num_bytes(&self) -> usize {
        self.pieces().iter().map(|piece| size_of_val(&*piece.lines)).sum()
    }

    fn pieces(&self) -> MutexGuard<'_, Vec<Piece>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_piece_is_lent_again_once_it_came_back() {
        let arena = Arena::default();
        let (first, address) = arena.lend(100).unwrap();
        let (second, other) = arena.lend(100).unwrap();
        assert_ne!(address, other);
        assert!(address.is_multiple_of(64) && arena.owns(address + 127) && !arena.owns(address - 1));
        arena.give_back(first);
        assert_eq!(arena.lend(128), Some((first, address)));
        assert_eq!(arena.lend(isize::MAX as usize), None);
        assert_ne!(arena.lend(129).unwrap().0, second);
        assert_eq!(arena.num_bytes(), 128 + 128 + 192);
    }
}
