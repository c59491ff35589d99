//! Drafts, right and wrong.

use pyllm_scheduler::{ClientId, Error, RequestId};

use super::World;
use crate::calls::{Drafts, Positions};
use crate::oracle::VOCABULARY;

impl World {
    pub(super) fn propose(&mut self, pick: usize, sample: usize, drafts: Drafts) {
        let Some((index, sample)) = self.pick_sample(pick, sample) else { return };
        let (client, id) = self.name(index);
        let known = &self.requests[index].samples[sample as usize];
        let mut tokens: Vec<i32> = known.expected[known.received.len()..].to_vec();
        tokens.truncate(drafts.num_right);
        let wrong = known.expected.get(known.received.len() + tokens.len()).map_or(0, |next| next + 1);
        tokens.extend((0..drafts.num_wrong as i32).map(|more| (wrong + more) % VOCABULARY as i32));
        match self.scheduler.propose(client, id, sample, &tokens) {
            Ok(()) => assert!(self.requests[index].is_live()),
            Err(error) => self.check_refusal(index, sample, &error, !self.in_flight.is_empty()),
        }
    }

    /// Drafts are only refused without a last token, or if one may be in flight.
    fn check_refusal(&self, index: usize, sample: u32, error: &Error, may_wait: bool) {
        let known = &self.requests[index];
        let one = &known.samples[sample as usize];
        match error {
            Error::UnknownRequest { .. } => assert!(!known.is_live()),
            Error::Sample { .. } => assert!(
                may_wait || known.request.beam_width > 0 || one.is_finished || one.received.is_empty(),
                "{error}"
            ),
            other => panic!("{other}"),
        }
    }

    /// Picks mostly an unfinished sample with output and no step in flight; sometimes any.
    fn pick_sample(&mut self, pick: usize, sample: usize) -> Option<(usize, u32)> {
        if pick % 4 == 0 {
            let index = self.pick(sample)?;
            return Some((index, (pick % self.requests[index].samples.len()) as u32));
        }
        while !self.in_flight.is_empty() {
            self.commit(0.0, Positions::All);
        }
        for client in 0..3 {
            self.take(client);
        }
        let live = self.requests.iter().enumerate().filter(|(_, known)| !known.is_dropped);
        let samples = live.flat_map(|(index, known)| (0..).zip(&known.samples).map(move |(at, one)| (index, at, one)));
        let going_on = samples.filter(|(_, _, one)| !one.is_finished && !one.received.is_empty());
        let candidates: Vec<_> = going_on.map(|(index, at, _)| (index, at)).collect();
        candidates.get(sample.checked_rem(candidates.len())?).copied()
    }

    pub(super) fn name(&self, index: usize) -> (ClientId, RequestId) {
        let request = &self.requests[index].request;
        (request.client, request.id)
    }
}
