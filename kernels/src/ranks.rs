//! Collectives of the ranks that share one model, and messages between its pipeline stages, over shared memory or TCP.
//!
//! They know bytes and no tensors; only a sum knows its dtype. A failed exchange is not repeated: ranks may differ after
//! it, so every later call fails, too.

pub(crate) mod exchange;
mod shared_memory;
mod sockets;
mod sum;

use std::fmt::{self, Display};
use std::io;

use crate::dtype::DType;
use crate::isa::Isa;
use sum::add_up;

/// Most bytes of a rank in one round: few enough to stay in the L2 cache until the other ranks have read them.
const MAX_BYTES: usize = 256 << 10;

/// The ranks of a model: `num_stages` pipeline stages of `size` ranks each, in this order; and one of them, `rank`.
#[derive(Clone, Copy, Debug)]
struct Place {
    rank: usize,
    size: usize,
    num_stages: usize,
}

impl Place {
    fn num_ranks(self) -> usize {
        self.size * self.num_stages
    }

    /// The ranks of this rank's stage.
    fn stage(self) -> std::ops::Range<usize> {
        let first = self.rank / self.size * self.size;
        first..first + self.size
    }

    /// The index of this rank in its stage.
    fn index(self) -> usize {
        self.rank % self.size
    }

    /// The rank with the same index in the stage before.
    fn before(self) -> Option<usize> {
        self.rank.checked_sub(self.size)
    }

    /// The rank with the same index in the next stage.
    fn after(self) -> Option<usize> {
        Some(self.rank + self.size).filter(|&rank| rank < self.num_ranks())
    }
}

/// The ranks of a stage that take bytes from others in a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pattern {
    /// Every rank takes those of all others.
    ToAll = 1,
    /// The first rank takes those of all others.
    ToFirst = 2,
    /// All others take those of the first rank.
    FromFirst = 3,
}

impl Pattern {
    fn takes(self, taker: usize, giver: usize) -> bool {
        taker != giver
            && match self {
                Self::ToAll => true,
                Self::ToFirst => taker == 0,
                Self::FromFirst => giver == 0,
            }
    }

    fn gives(self, rank: usize) -> bool {
        match self {
            Self::ToAll => true,
            Self::ToFirst => rank != 0,
            Self::FromFirst => rank == 0,
        }
    }
}

/// The reason why an exchange failed. Ranks are counted over all stages.
#[derive(Debug)]
enum RankError {
    /// A rank has ended, or its connection.
    Ended(usize),
    /// A rank did not come to the exchange within this many seconds.
    Late(usize, f64),
    /// A rank gave something else than this rank expected.
    Differs(usize, String),
    /// The operating system refused something.
    System(io::Error),
    /// An earlier exchange failed.
    Broken(String),
}

impl Display for RankError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ended(rank) => write!(formatter, "rank {rank} has ended"),
            Self::Late(rank, seconds) => write!(formatter, "rank {rank} did not answer within {seconds} s"),
            Self::Differs(rank, text) => write!(formatter, "rank {rank} {text}"),
            Self::System(error) => write!(formatter, "the ranks cannot exchange data: {error}"),
            Self::Broken(text) => write!(formatter, "an earlier exchange of this rank failed: {text}"),
        }
    }
}

impl From<io::Error> for RankError {
    fn from(error: io::Error) -> Self {
        Self::System(error)
    }
}

type Result<T> = std::result::Result<T, RankError>;

/// The connection of a rank to the others. Each round is a `give`, by the ranks that give, and then a `take` by all.
trait Transport: Send {
    /// Give at most `MAX_BYTES` bytes to the ranks that take them. It may return before they have.
    fn give(&mut self, pattern: Pattern, own: &[u8]) -> Result<()>;

    /// Wait for the other ranks' bytes, `num_bytes` of each, and call `use_bytes` with those of all ranks of the stage,
    /// in rank order; they are empty for this rank, and for ranks from which it takes nothing.
    fn take(&mut self, pattern: Pattern, num_bytes: usize, use_bytes: &mut dyn FnMut(&[&[u8]])) -> Result<()>;

    /// Make room for `num_messages` messages to the next stage, of at most `max_bytes`. All ranks give the same numbers.
    fn allocate_messages(&mut self, num_messages: usize, max_bytes: usize) -> Result<()>;

    /// Send the parts to the next stage as one message. It waits only if there is room for no more.
    fn send(&mut self, parts: &[&[u8]]) -> Result<()>;

    /// Wait for the next message of the stage before, which has parts of these sizes.
    fn receive(&mut self, parts: &mut [&mut [u8]]) -> Result<()>;
}

/// One rank, and its collectives. All ranks of a stage call the same ones, in the same order, with equal sizes.
struct Ranks {
    place: Place,
    /// None once an exchange has failed: the other ranks learn that this one takes no further part.
    transport: Option<Box<dyn Transport>>,
    failure: String,
}

impl Ranks {
    fn new(place: Place, transport: Box<dyn Transport>) -> Self {
        Self { place, transport: Some(transport), failure: String::new() }
    }

    /// Write the parts of all ranks to `whole`, in rank order.
    fn all_gather(&mut self, part: &[u8], whole: &mut [u8]) -> Result<()> {
        self.gather_by(Pattern::ToAll, part, part.len(), Some(whole))
    }

    /// Write the rows of all ranks to the first rank's `whole`, side by side in rank order.
    fn gather(&mut self, part: &[u8], row_bytes: usize, whole: Option<&mut [u8]>) -> Result<()> {
        self.gather_by(Pattern::ToFirst, part, row_bytes, whole)
    }

    fn gather_by(
        &mut self,
        pattern: Pattern,
        part: &[u8],
        row_bytes: usize,
        mut whole: Option<&mut [u8]>,
    ) -> Result<()> {
        let Place { size, .. } = self.place;
        let own = self.place.index();
        for (number, piece) in part.chunks(MAX_BYTES).enumerate() {
            let at = number * MAX_BYTES;
            self.exchange(|transport| {
                if pattern.gives(own) {
                    transport.give(pattern, piece)?;
                }
                transport.take(pattern, piece.len(), &mut |pieces| {
                    for (rank, &other) in pieces.iter().enumerate() {
                        if let Some(whole) = whole.as_deref_mut() {
                            place_rows(if rank == own { piece } else { other }, at, row_bytes, (rank, size), whole);
                        }
                    }
                })
            })?;
        }
        Ok(())
    }

    /// Overwrite `bytes` with those of the first rank.
    fn broadcast(&mut self, bytes: &mut [u8]) -> Result<()> {
        let is_first = self.place.index() == 0;
        for piece in bytes.chunks_mut(MAX_BYTES) {
            self.exchange(|transport| {
                if is_first {
                    transport.give(Pattern::FromFirst, piece)?;
                }
                transport.take(Pattern::FromFirst, piece.len(), &mut |pieces| {
                    if !is_first {
                        piece.copy_from_slice(pieces[0]);
                    }
                })
            })?;
        }
        Ok(())
    }

    /// Overwrite `part`, numbers of a dtype, with the sum of all ranks' parts: in rank order, rounded after each
    /// addition.
    fn sum(&mut self, dtype: DType, part: &mut [u8], isa: Isa) -> Result<()> {
        let own = self.place.index();
        for piece in part.chunks_mut(MAX_BYTES) {
            self.exchange(|transport| {
                transport.give(Pattern::ToAll, piece)?;
                transport.take(Pattern::ToAll, piece.len(), &mut |pieces| add_up(dtype, pieces, own, piece, isa))
            })?;
        }
        Ok(())
    }

    fn allocate_messages(&mut self, num_messages: usize, max_bytes: usize) -> Result<()> {
        self.exchange(|transport| transport.allocate_messages(num_messages, max_bytes))
    }

    fn send(&mut self, parts: &[&[u8]]) -> Result<()> {
        self.exchange(|transport| transport.send(parts))
    }

    fn receive(&mut self, parts: &mut [&mut [u8]]) -> Result<()> {
        self.exchange(|transport| transport.receive(parts))
    }

    fn exchange(&mut self, exchange: impl FnOnce(&mut dyn Transport) -> Result<()>) -> Result<()> {
        let Some(transport) = &mut self.transport else {
            return Err(RankError::Broken(self.failure.clone()));
        };
        exchange(&mut **transport).inspect_err(|error| {
            self.failure = error.to_string();
            self.transport = None;
        })
    }
}

/// Write a rank's bytes, which begin at byte `at` of its rows, to rows that have those of all ranks side by side.
fn place_rows(mut bytes: &[u8], mut at: usize, row_bytes: usize, (rank, size): (usize, usize), whole: &mut [u8]) {
    while !bytes.is_empty() {
        let (row, column) = (at / row_bytes, at % row_bytes);
        let (now, later) = bytes.split_at(bytes.len().min(row_bytes - column));
        let start = (row * size + rank) * row_bytes + column;
        whole[start..start + now.len()].copy_from_slice(now);
        (bytes, at) = (later, at + now.len());
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn rows_are_placed_side_by_side_in_pieces_of_any_size(
            rows in 1..5_usize,
            row_bytes in 1..9_usize,
            size in 1..4_usize,
            piece in 1..40_usize,
        ) {
            let parts: Vec<Vec<u8>> = (0..size).map(|rank| vec![rank as u8; rows * row_bytes]).collect();
            let mut whole = vec![u8::MAX; size * rows * row_bytes];
            for (rank, part) in parts.iter().enumerate() {
                for (number, bytes) in part.chunks(piece).enumerate() {
                    place_rows(bytes, number * piece, row_bytes, (rank, size), &mut whole);
                }
            }
            let rank_of = |at: usize| (at / row_bytes % size) as u8;
            prop_assert!(whole.iter().enumerate().all(|(at, &byte)| byte == rank_of(at)));
        }
    }

    #[test]
    fn a_rank_exchanges_with_its_stage_and_its_neighbours() {
        let place = |rank| Place { rank, size: 2, num_stages: 3 };
        assert_eq!((place(3).stage(), place(3).index()), (2..4, 1));
        assert_eq!((place(3).before(), place(3).after()), (Some(1), Some(5)));
        assert_eq!((place(1).before(), place(4).after()), (None, None));
    }
}
