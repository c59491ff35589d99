//! A core's trace of a step, in memory that outlives the core; `pyllm/supervision/step_trace.py` reads it. Knows no
//! ring of traces.

use std::cell::Cell;

use pyllm_scheduler::{ClientId, RequestId};

/// Words before the rows: a checksum, the step, its tokens and its rows.
const HEAD: usize = 6;
/// Words of a row: its client and its request.
const ROW: usize = 3;

/// Writes a trace, with as many of the rows as fit; `None` if even its head does not fit.
///
/// The writer may die at any word. The checksum, FNV-1a over the words of the rows and then of the head, does not match
/// then.
pub(crate) fn write(
    note: &[Cell<u32>],
    step: u64,
    num_tokens: u32,
    rows: impl Iterator<Item = (ClientId, RequestId)>,
) -> Option<()> {
    let (head, body) = note.split_at_checked(HEAD)?;
    let mut sum = 0xcbf2_9ce4_8422_2325_u64;
    let mut set = |cell: &Cell<u32>, word: u32| {
        cell.set(word);
        sum = (sum ^ u64::from(word)).wrapping_mul(0x0100_0000_01b3);
    };
    let mut places = body.chunks_exact(ROW);
    let mut num_rows = 0;
    for (ClientId(client), RequestId(request)) in rows {
        num_rows += 1;
        if let Some([first, second, third]) = places.next() {
            set(first, client);
            set(second, request as u32);
            set(third, (request >> 32) as u32);
        }
    }
    for (cell, word) in head[2..].iter().zip([step as u32, (step >> 32) as u32, num_tokens, num_rows]) {
        set(cell, word);
    }
    head[0].set(sum as u32);
    head[1].set((sum >> 32) as u32);
    Some(())
}
