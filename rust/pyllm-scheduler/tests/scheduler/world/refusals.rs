//! Calls that must be refused, for the right reason, and change nothing.

use pyllm_scheduler::{ClientId, Error, Output, Request, RequestId, StepId};

use super::World;
use crate::calls::Wrong;

type Refused = Result<(), Error>;

impl World {
    /// Makes the call, if the state allows to get it wrong.
    pub(super) fn refused(&mut self, wrong: Wrong) {
        let before = self.scheduler.stats();
        let result = match wrong {
            Wrong::AddTwice { pick } => self.add_twice(pick),
            Wrong::AddInvalid { kind } => Some(self.add_invalid(kind)),
            Wrong::CommitUnknown => Some(self.commit_unknown()),
            Wrong::CommitOutOfOrder => self.commit_out_of_order(),
            Wrong::CommitShape { kind } => self.commit_shape(kind),
            Wrong::TimeGoesBack => self.time_goes_back(),
            Wrong::HoldTwice { pick } => self.hold_twice(pick),
            Wrong::ReleaseNotHeld { pick } => self.release_not_held(pick),
            Wrong::UnknownRequest => Some(self.unknown_request()),
        };
        let Some(result) = result else { return };
        let error = result.expect_err("the call is wrong");
        assert!(!error.to_string().is_empty());
        assert_eq!(self.scheduler.stats(), before, "a refused call changes nothing");
        self.saw("refused calls", 1);
    }

    fn add_twice(&mut self, pick: usize) -> Option<Refused> {
        let index = self.pick(pick)?;
        let known = &self.requests[index];
        if known.dropped || known.samples.iter().all(|sample| sample.finished) {
            return None;
        }
        let again = self.scheduler.add(Request { outputs: Vec::new(), ..known.request.clone() });
        assert!(matches!(again, Err(Error::DuplicateRequest { .. })));
        Some(again)
    }

    fn add_invalid(&mut self, kind: usize) -> Refused {
        let valid = Request { id: RequestId(1 << 40), prompt: vec![1], n: 1, max_tokens: 2, ..Request::default() };
        let output = |length, finished| Output { tokens: vec![1; length], finished };
        let refused = self.scheduler.add(match kind {
            0 => Request { prompt: Vec::new(), ..valid },
            1 => Request { prompt: vec![1, -1], ..valid },
            2 => Request { n: 0, ..valid },
            3 => Request { n: self.config.max_num_seqs + 1, ..valid },
            4 => Request { max_tokens: 0, ..valid },
            5 => Request { arrival: f64::NAN, ..valid },
            6 => Request { outputs: vec![output(0, false); 2], ..valid },
            7 => Request { outputs: vec![output(2, false)], ..valid },
            8 => Request { prompt: vec![1, self.config.vocab_size as i32], ..valid },
            _ => Request { outputs: vec![Output { tokens: vec![i32::MAX], finished: false }], ..valid },
        });
        assert!(matches!(refused, Err(Error::Request(_))), "{refused:?}");
        refused
    }

    fn commit_unknown(&mut self) -> Refused {
        let step = StepId(1 << 40);
        let result = self.scheduler.commit(step, &[0], &[], 0.0).map(drop);
        assert_eq!(result, Err(Error::UnknownStep { step }));
        result
    }

    fn commit_out_of_order(&mut self) -> Option<Refused> {
        let (oldest, newest) = (self.in_flight.front()?, self.in_flight.back()?);
        if oldest.step == newest.step {
            return None;
        }
        let result = self.scheduler.commit(newest.step, &newest.starts, &newest.tokens, 0.0).map(drop);
        assert_eq!(result, Err(Error::OutOfOrder { step: newest.step, oldest: oldest.step }));
        Some(result)
    }

    fn commit_shape(&mut self, kind: usize) -> Option<Refused> {
        let oldest = self.in_flight.front()?;
        let (mut starts, mut tokens) = (oldest.starts.clone(), oldest.tokens.clone());
        match kind {
            0 => starts.clear(),
            1 => starts.push(tokens.len() as i32),
            2 => tokens.push(1),
            3 => starts[0] = i32::MIN,
            _ if tokens.is_empty() => return None,
            _ => tokens[0] = -1,
        }
        let result = self.scheduler.commit(oldest.step, &starts, &tokens, 0.0).map(drop);
        assert!(matches!(result, Err(Error::Sampled { .. })), "{result:?}");
        Some(result)
    }

    fn time_goes_back(&mut self) -> Option<Refused> {
        let has_begun = self.now > 0.0;
        has_begun.then(|| {
            let not_a_time = self.scheduler.schedule(f64::NAN);
            assert!(matches!(not_a_time, Err(Error::Time { .. })));
            self.scheduler.schedule(self.now - 1.0).map(drop)
        })
    }

    fn hold_twice(&mut self, pick: usize) -> Option<Refused> {
        let index = self.pick(pick).filter(|&index| self.requests[index].held)?;
        let request = &self.requests[index].request;
        Some(self.scheduler.hold(request.client, request.id, "again"))
    }

    fn release_not_held(&mut self, pick: usize) -> Option<Refused> {
        let index = self.pick(pick).filter(|&index| !self.requests[index].held)?;
        let request = &self.requests[index].request;
        Some(self.scheduler.release(request.client, request.id))
    }

    fn unknown_request(&mut self) -> Refused {
        let (client, request) = (ClientId(9), RequestId(9));
        assert!(!self.scheduler.abort(client, request, None));
        self.scheduler.drop_client(client);
        assert!(self.scheduler.take_deltas(client).is_none());
        let result = self.scheduler.hold(client, request, "unknown");
        assert_eq!(result, Err(Error::UnknownRequest { client, request }));
        result
    }
}
