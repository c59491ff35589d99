//! Drafts by prompt lookup, for a sequence that runs alone: a step of a few tokens takes hardly longer than one of one
//! token. Beside other sequences drafts would cost them time.

use crate::planner::prompt_lookup;
use crate::table::sequence::{Beam, LiveRequest, Sequence};

/// Proposes up to `most` drafts to a sequence before its next row, if it has none from the caller. True: it should have
/// no row before the one in flight is committed, as drafts are likely then.
pub(super) fn speculate(sequence: &mut Sequence, live: &LiveRequest, most: u32) -> bool {
    if sequence.is_stateful || sequence.beam != Beam::None || !sequence.drafts.is_empty() {
        return false;
    }
    let most = most.min(sequence.most_drafts()) as usize;
    let request = &live.request;
    prompt_lookup::look_up(&request.prompt, &sequence.output, most, &mut sequence.drafts);
    let stop = sequence.drafts.iter().position(|token| request.stop_token_ids.binary_search(token).is_ok());
    sequence.drafts.truncate(stop.map_or(most, |last| last + 1));
    if sequence.num_in_flight == 0 || sequence.drafts.is_empty() {
        return false;
    }
    sequence.drafts.clear(); // They would follow another token than the next row's.
    true
}
