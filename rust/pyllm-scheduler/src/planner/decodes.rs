//! Decodes: rows of one token or with drafts. Longer ones are left for the prefills.

use crate::arena::Key;
use crate::kv::states::States;
use crate::observer::explain::Reason;
use crate::planner::Planning;
use crate::planner::drafts::speculate;
use crate::planner::share::is_due;
use crate::table::sequence::Sequence;

/// The part of a running sequence in the decodes of a step.
enum Part {
    /// No row: its rows in flight come first, or it is another's turn.
    None,
    /// No row, for a reason.
    Cut(Reason),
    /// No row, but its stream waits for the step's end. The reason is none if a row in flight must be committed first.
    Waits(Option<Reason>),
    /// So many uncomputed tokens, or several samples: a chunk for the prefills.
    Lags(u32),
    /// A row of its next token and so many drafts.
    Decodes { num_drafts: u32, is_due: bool },
}

impl Planning<'_> {
    pub(super) fn decodes(&mut self) {
        self.planner.lagging.clear();
        self.choose_wide();
        let mut index = 0;
        while index < self.table.running().len() {
            let key = self.table.running()[index];
            if self.budget.tokens == 0 {
                self.cut(Reason::Budget);
                break;
            }
            match self.part(key, index) {
                Part::None => {}
                Part::Cut(reason) => self.cut(reason),
                Part::Waits(reason) => {
                    self.cut = self.cut.or(reason);
                    self.budget.heed_target(&self.table[key]);
                }
                Part::Lags(num_tokens) => {
                    if self.take_blocks(key, num_tokens) {
                        self.planner.lagging.push(key);
                    } else {
                        self.cut(self.blocks_reason());
                    }
                }
                // Without room the loop continues: each sequence admitted in this plan must have its row.
                Part::Decodes { num_drafts, is_due } => {
                    if self.make_room(key, 1 + num_drafts) {
                        self.plan_row(key, 1 + num_drafts);
                        self.budget.share.take(is_due);
                    } else {
                        self.cut(self.blocks_reason());
                    }
                }
            }
            index += 1;
        }
    }

    /// The part of the running sequence at a place in the order.
    #[inline]
    fn part(&mut self, key: Key<Sequence>, index: usize) -> Part {
        let (sequence, live) = self.table.pair(key);
        if !self.may_have_row(sequence) {
            let is_awaited = sequence.awaits_commit && self.turn.admits(sequence.request);
            return if is_awaited { Part::Waits(None) } else { Part::None };
        }
        let lag = sequence.length() - sequence.num_computed;
        if lag > 1 || sequence.num_samples > 1 {
            return Part::Lags(lag);
        }
        let is_due = is_due(sequence, self.step, self.config);
        if !self.budget.share.admit_decode(is_due) {
            return Part::Waits(Some(Reason::Pipeline));
        }
        let is_wide = self.budget.logprobs.is_wide(&live.request);
        if self.budget.samples == 0 || is_wide && !self.planner.wide.contains(&key) {
            return Part::Cut(Reason::Samples);
        }
        let is_placed = sequence.num_computed < sequence.num_placed;
        if !is_placed && sequence.num_computed >= self.kv.layout().reach(sequence.lowest()) {
            return Part::Cut(Reason::InFlight); // a window only moves on with known tokens
        }
        if self.config.num_speculative_tokens > 0 && self.table.running().len() == 1 {
            return self.part_alone(key, is_wide, is_due);
        }
        let num_drafts = if is_wide { 0 } else { self.num_drafts(sequence, index) };
        Part::Decodes { num_drafts, is_due }
    }

    /// The part of a sequence that runs alone, and may find drafts in its own text.
    fn part_alone(&mut self, key: Key<Sequence>, is_wide: bool, is_due: bool) -> Part {
        let (sequence, live) = self.table.pair_mut(key);
        if speculate(sequence, live, self.config.num_speculative_tokens) {
            return Part::Waits(None);
        }
        let num_drafts = if is_wide { 0 } else { self.num_drafts(&self.table[key], 0) };
        Part::Decodes { num_drafts, is_due }
    }

    /// The number of drafts that a row verifies, of the running sequence at a place in the order. No sequence is
    /// preempted for them.
    fn num_drafts(&self, sequence: &Sequence, index: usize) -> u32 {
        let most = sequence.num_drafts();
        if most == 0 || self.kv.states().is_some() && !States::can_keep(sequence, self.kv.cache()) {
            return 0;
        }
        // Drafts use the budget that is left after every stream's next token.
        let num_others = (self.table.running().len() - index) as u32;
        let left = self.budget.tokens.min(self.budget.samples).saturating_sub(num_others);
        let reach = self.kv.layout().reach(sequence.lowest()) - sequence.num_computed - 1;
        let most = most.min(left).min(reach);
        if most > 0 && self.kv.has_room(sequence, 1 + most) { most } else { 0 }
    }

    /// Gives a sequence the blocks for all its tokens, `lag` of them uncomputed. Forced tokens came after its
    /// admission.
    fn take_blocks(&mut self, key: Key<Sequence>, lag: u32) -> bool {
        let end = self.table[key].num_computed + lag;
        if self.kv.has_blocks(&self.table[key], end) {
            return true;
        }
        let has_room = self.make_room(key, lag);
        if has_room {
            self.kv.extend(&mut self.table[key], end, &mut self.planner.draft);
        }
        has_room
    }

    /// Chooses the streams of many log-probabilities that may have a row, into `wide`: first those that waited longest.
    fn choose_wide(&mut self) {
        let mut wide = std::mem::take(&mut self.planner.wide);
        wide.clear();
        wide.extend(self.table.running().iter().copied().filter(|&key| {
            let (sequence, live) = self.table.pair(key);
            let is_decode = sequence.length() == sequence.num_computed + 1 && self.may_have_row(sequence);
            is_decode && self.budget.logprobs.is_wide(&live.request)
        }));
        wide.sort_by_key(|&key| self.table[key].last_step);
        let mut left = self.budget.logprobs.of_decodes();
        wide.retain(|&key| {
            let rest = left.checked_sub(u64::from(self.table.pair(key).1.request.num_logprobs));
            left = rest.unwrap_or(0);
            rest.is_some()
        });
        self.planner.wide = wide;
    }
}
