//! Calls that must be refused, for the right reason, and change nothing.

use pyllm_scheduler::{
    ClientId, Config, Embeddings, Error, LoadId, Output, Pooling, PrefixHash, Request, RequestId, StepId, replay,
};

use super::World;
use super::requests::Known;
use super::steps::InFlight;
use crate::calls::{Positions, Wrong};

type Refused = Result<(), Error>;

impl World {
    /// Makes the call, if the state allows a wrong one.
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
            Wrong::UnknownRequest { kind } => Some(self.unknown_request(kind)),
            Wrong::FixedSetting { kind } => Some(self.fixed_setting(kind)),
            Wrong::BadSetting { kind } => Some(self.bad_setting(kind)),
            Wrong::BadToken { kind } => self.bad_token(kind),
            Wrong::UnknownSample { pick, kind } => self.unknown_sample(pick, kind),
            Wrong::UnknownLoad => Some(self.unknown_load()),
            Wrong::WithoutPrefixCaching { pick, kind } => self.without_prefix_caching(pick, kind),
            Wrong::RecordingLate => self.recording_late(),
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
        if !known.is_live() {
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
            9 => Request { min_tokens: 3, ..valid },
            10 => Request { deadline: Some(f64::INFINITY), ..valid },
            11 => Request { ttft_target: Some(0.0), ..valid },
            12 => Request { tpot_target: Some(-1.0), ..valid },
            13 => Request { policy_key: f64::NAN, ..valid },
            14 => Request { beam_width: 2, ..valid },
            15 => Request { pooling: Pooling::Last, ..valid },
            16 => Request { pooling: Pooling::Last, max_tokens: 0, n: 2, ..valid },
            17 => Request { pooling: Pooling::Last, max_tokens: 0, stateful: true, ..valid },
            18 => Request { adapter_number: 1, ..valid },
            19 => Request { adapter: "one".to_owned(), ..valid },
            20 if self.config.max_loras == 0 => Request { adapter: "one".to_owned(), adapter_number: 1, ..valid },
            21 => Request { pooling: Pooling::Last, max_tokens: 0, outputs: vec![output(0, false)], ..valid },
            _ => Request { outputs: vec![Output { tokens: vec![i32::MAX], finished: false }], ..valid },
        });
        assert!(matches!(refused, Err(Error::Request(_))), "{refused:?}");
        refused
    }

    fn commit_unknown(&mut self) -> Refused {
        let step = StepId(1 << 40);
        let result = self.scheduler.commit(step, &[0], &[], 0.0, None, None).map(drop);
        assert_eq!(result, Err(Error::UnknownStep { step }));
        result
    }

    fn commit_out_of_order(&mut self) -> Option<Refused> {
        let (oldest, newest) = (self.in_flight.front()?, self.in_flight.back()?);
        if oldest.step == newest.step {
            return None;
        }
        let (starts, tokens, logprobs) = newest.result(Positions::All);
        let result = self.scheduler.commit(newest.step, &starts, &tokens, 0.0, logprobs.as_ref(), None).map(drop);
        assert_eq!(result, Err(Error::OutOfOrder { step: newest.step, oldest: oldest.step }));
        Some(result)
    }

    fn commit_shape(&mut self, kind: usize) -> Option<Refused> {
        let oldest = self.in_flight.front()?;
        let (mut starts, mut tokens, mut logprobs) = oldest.result(Positions::All);
        let mut embeddings = oldest.embeddings();
        match (kind, &mut logprobs) {
            (0, _) => starts.clear(),
            (1, _) => starts.push(tokens.len() as i32),
            (2, _) => tokens.push(1),
            (3, _) => starts[0] = i32::MIN,
            (4, _) if starts.len() > 2 => starts[1] = i32::MAX,
            (5, Some(logprobs)) => logprobs.prompt_starts.truncate(1),
            (6, Some(logprobs)) => logprobs.entries.starts.push(0),
            (7, Some(logprobs)) => logprobs.entries.starts[1] = -1,
            (8, Some(logprobs)) => logprobs.entries.ids[0] = -1,
            (9, Some(logprobs)) => logprobs.entries.ranks.clear(),
            (10, Some(logprobs)) => logprobs.prompt_tokens.push(1),
            (11, _) if embeddings.is_some() => embeddings = Some(Embeddings { starts: vec![0], values: Vec::new() }),
            _ => {
                // Tokens of an ended sequence's row may be anything.
                let row = self.first_sampled(oldest, &starts)?;
                tokens[starts[row] as usize] = -1;
            }
        }
        let (logprobs, embeddings) = (logprobs.as_ref(), embeddings.as_ref());
        let result = self.scheduler.commit(oldest.step, &starts, &tokens, 0.0, logprobs, embeddings).map(drop);
        assert!(matches!(result, Err(Error::Sampled { .. })), "{result:?}");
        Some(result)
    }

    /// A row with tokens whose sequence has not ended.
    fn first_sampled(&self, step: &InFlight, starts: &[i32]) -> Option<usize> {
        let mut rows = (0..starts.len() - 1).filter(|&row| starts[row] < starts[row + 1]);
        rows.find(|&row| self.scheduler.request_of(step.step, row).expect("it is in flight").is_some())
    }

    fn time_goes_back(&mut self) -> Option<Refused> {
        (self.num_schedules > 0).then(|| {
            let not_a_time = self.scheduler.schedule(f64::NAN);
            assert!(matches!(not_a_time, Err(Error::Time { .. })));
            self.scheduler.schedule(self.now - 1.0).map(drop)
        })
    }

    fn hold_twice(&mut self, pick: usize) -> Option<Refused> {
        let index = self.pick(pick).filter(|&index| self.requests[index].is_held())?;
        let Known { request, holders, .. } = &self.requests[index];
        Some(self.scheduler.hold(request.client, request.id, holders.first()?))
    }

    fn release_not_held(&mut self, pick: usize) -> Option<Refused> {
        let index = self.pick(pick).filter(|&index| self.requests[index].is_live())?;
        let request = &self.requests[index].request;
        Some(self.scheduler.release(request.client, request.id, "nobody"))
    }

    fn unknown_request(&mut self, kind: usize) -> Refused {
        let (client, request) = (ClientId(9), RequestId(9));
        assert!(!self.scheduler.abort(client, request, None));
        self.scheduler.drop_client(client);
        assert!(self.scheduler.take_deltas(client).is_none());
        let result = match kind {
            0 => self.scheduler.hold(client, request, "unknown"),
            1 => self.scheduler.release(client, request, "unknown"),
            2 => self.scheduler.propose(client, request, 0, &[1]),
            3 => self.scheduler.explain(client, request).map(drop),
            _ if self.config.enable_prefix_caching => self.scheduler.offer_load(client, request, 1, true),
            _ => self.scheduler.hold(client, request, "unknown"),
        };
        assert_eq!(result, Err(Error::UnknownRequest { client, request }));
        result
    }

    fn fixed_setting(&mut self, kind: usize) -> Refused {
        let Config { block_size, num_blocks, num_host_blocks, max_num_seqs, max_model_len, .. } = self.config;
        let Config { enable_prefix_caching, enable_kv_cache_events, incarnation, .. } = self.config;
        let config = self.config.clone();
        let other = match kind {
            0 => Config { block_size: block_size + 1, ..config },
            1 => Config { num_blocks: num_blocks + 1, ..config },
            2 => Config { num_host_blocks: num_host_blocks + 1, ..config },
            3 => Config { max_num_seqs: max_num_seqs + 1, ..config },
            4 => Config { max_model_len: max_model_len + 1, ..config },
            5 => Config { vocab_size: 1, ..config },
            6 => Config { enable_prefix_caching: !enable_prefix_caching, ..config },
            7 => Config { max_pinned_blocks: num_blocks - 1, ..config },
            8 => Config { enable_kv_cache_events: !enable_kv_cache_events, ..config },
            9 => Config { incarnation: !incarnation, ..config },
            10 => Config { num_speculative_tokens: (self.config.num_speculative_tokens + 1) % 17, ..config },
            11 => Config { prefix_hash: PrefixHash::Sha256Cbor, ..config },
            12 => Config { prefix_hash_seed: "another".to_owned(), ..config },
            13 => Config { separate_outputs: true, ..config },
            14 => Config { max_loras: self.config.max_loras + 1, ..config },
            15 => Config {
                whole_prompts: true,
                max_num_batched_tokens: max_model_len,
                long_prefill_token_threshold: 0,
                ..config
            },
            _ => Config { swap_block_seconds: 0.5, ..config },
        };
        // The other changes of a refused call are not made either.
        let result = self.scheduler.reconfigure(Config { weights_version: "another".to_owned(), ..other });
        assert!(matches!(result, Err(Error::Fixed { .. })), "{result:?}");
        assert_eq!(self.scheduler.config(), &self.config);
        result
    }

    fn bad_setting(&mut self, kind: usize) -> Refused {
        let config = self.config.clone();
        let result = self.scheduler.reconfigure(match kind {
            0 => Config { max_num_batched_tokens: 0, ..config },
            1 => Config { inter_token_target: f64::NAN, ..config },
            2 => Config { watermark: 1.0, ..config },
            3 => Config { expected_growth: -0.5, ..config },
            4 => Config { tenant_weights: [("one".to_owned(), 0)].into(), ..config },
            5 => Config { tenant_weights: [("one".to_owned(), Config::MAX_TENANT_WEIGHT + 1)].into(), ..config },
            _ => Config { inter_token_target: f64::INFINITY, ..config },
        });
        assert!(matches!(result, Err(Error::Config(_))), "{result:?}");
        assert_eq!(self.scheduler.config(), &self.config);
        result
    }

    fn bad_token(&mut self, kind: usize) -> Option<Refused> {
        let token = self.config.vocab_size as i32;
        if kind == 0 {
            let of = Request { prompt: vec![0, token], ..Request::default() };
            return self.config.enable_prefix_caching.then(|| self.scheduler.pin(9, &of).map(drop));
        }
        for client in 0..3 {
            self.take(client);
        }
        let goes_on = |sample: &super::requests::KnownSample| !sample.is_finished && !sample.received.is_empty();
        let mut live = self.requests.iter().filter(|known| !known.is_dropped);
        let (known, sample) = live.find_map(|known| Some((known, known.samples.iter().position(goes_on)?)))?;
        let (client, id, sample) = (known.request.client, known.request.id, sample as u32);
        let wrong = if kind == 1 { -1 } else { token };
        let result = self.scheduler.propose(client, id, sample, &[0, wrong]);
        assert!(matches!(result, Err(Error::Request(_))), "{result:?}");
        Some(result)
    }

    fn unknown_sample(&mut self, pick: usize, kind: usize) -> Option<Refused> {
        let index = self.pick(pick).filter(|&index| self.requests[index].is_live())?;
        let (client, id) = self.name(index);
        let sample = self.requests[index].samples.len() as u32;
        let sample = if kind == 0 { sample } else { u32::MAX };
        let result = self.scheduler.propose(client, id, sample, &[1]);
        assert!(matches!(result, Err(Error::Sample { .. })), "{result:?}");
        assert!(!self.scheduler.abort(client, id, Some(u32::MAX)));
        Some(result)
    }

    fn unknown_load(&mut self) -> Refused {
        let load = LoadId(1 << 40);
        let result = self.scheduler.finish_load(load, 0);
        assert_eq!(result, Err(Error::UnknownLoad { load }));
        result
    }

    fn without_prefix_caching(&mut self, pick: usize, kind: usize) -> Option<Refused> {
        if self.config.enable_prefix_caching {
            return None;
        }
        let index = self.pick(pick)?;
        let (client, id) = self.name(index);
        let result = match kind {
            0 => self.scheduler.offer_load(client, id, 4, true),
            _ => self.scheduler.pin(0, &self.requests[index].request.clone()).map(drop),
        };
        assert!(matches!(result, Err(Error::Disabled { .. })), "{result:?}");
        Some(result)
    }

    fn recording_late(&mut self) -> Option<Refused> {
        assert!(matches!(replay(b"no recording"), Err(Error::Replay { .. })));
        (self.num_schedules > 0).then(|| self.scheduler.start_recording())
    }
}
