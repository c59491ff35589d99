//! Requests as their clients know them: from the call to add them, through their output, to their end.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};

use pyllm_scheduler::{ClientId, Config, DeltaColumns, Error, Finish, Output, Pooling, Request, RequestId, Retention};

use super::World;
use super::logprobs::check_logprobs;
use super::steps::InFlight;
use crate::calls::{Add, Prompt};
use crate::oracle::{self, VOCABULARY};

pub(super) struct Known {
    pub(super) request: Request,
    pub(super) holders: BTreeSet<&'static str>,
    pub(super) is_dropped: bool,
    pub(super) samples: Vec<KnownSample>,
    /// Calls of `schedule` before it was added.
    pub(super) num_schedules: usize,
    /// Quarters of an offered load that would succeed.
    pub(super) offer: Option<usize>,
    pub(super) logprobs: bool,
    /// Whether log-probabilities of its prompt include the token after a chunk; none if it does not ask for any.
    pub(super) tells_ahead: Option<bool>,
    /// Rows with start times; a resumed request counts as having one.
    pub(super) num_starts: u32,
    /// Prompt tokens that a worker has summed up for a mean embedding.
    pub(super) num_added: Cell<usize>,
}

pub(super) struct KnownSample {
    pub(super) expected: Vec<i32>,
    pub(super) finish: Finish,
    pub(super) received: Vec<i32>,
    pub(super) is_finished: bool,
    /// Its finish reason if a call or a deadline ended it.
    pub(super) ended: Option<Finish>,
    /// Its tokens when it was added, or forked.
    pub(super) num_given: usize,
    /// Prompt tokens whose log-probabilities it has received, counting the first.
    pub(super) num_told: usize,
}

impl Known {
    /// Whether it is live, provided that all its deltas have been taken.
    pub(super) fn is_live(&self) -> bool {
        !self.is_dropped && self.samples.iter().any(|sample| !sample.is_finished)
    }

    pub(super) fn is_held(&self) -> bool {
        !self.holders.is_empty()
    }

    /// Ends a sample, or all. False: it has ended before.
    pub(super) fn end(&mut self, sample: Option<u32>, finish: Finish) -> bool {
        let samples = self.samples.iter_mut().enumerate();
        let concerned = samples.filter(|(index, _)| sample.is_none_or(|sample| sample as usize == *index));
        let mut live = concerned.filter(|(_, sample)| !sample.is_finished).peekable();
        let any = live.peek().is_some();
        live.for_each(|(_, sample)| sample.ended = Some(finish));
        any
    }
}

impl KnownSample {
    pub(super) fn new(request: &Request, sample: u32, given: &[i32], config: &Config) -> Self {
        Self::expecting(oracle::generate(request, sample, given, config), given.len())
    }

    /// The samples of a fresh request.
    fn all(request: &Request, config: &Config) -> Vec<Self> {
        match request.beam_width {
            0 => (0..request.n).map(|sample| Self::new(request, sample, &[], config)).collect(),
            _ => oracle::search(request, config).into_iter().map(|found| Self::expecting(found, 0)).collect(),
        }
    }

    fn expecting((expected, finish): (Vec<i32>, Finish), num_given: usize) -> Self {
        Self { expected, finish, received: Vec::new(), is_finished: false, ended: None, num_given, num_told: 1 }
    }
}

impl World {
    pub(super) fn add(&mut self, add: &Add) {
        let mut request = self.request(add);
        let mut samples = if self.has_room(&request) { KnownSample::all(&request, &self.config) } else { Vec::new() };
        let resume = add.resume.as_ref().filter(|_| request.beam_width == 0 && request.pooling == Pooling::None);
        if let Some(resume) = resume {
            for (sample, &(finished, length)) in samples.iter_mut().zip(resume) {
                let length = if finished { sample.expected.len() } else { length.min(sample.expected.len() - 1) };
                sample.is_finished = finished;
                sample.received = sample.expected[..length].to_vec();
                sample.num_given = length;
                request.outputs.push(Output { tokens: sample.received.clone(), finished });
            }
        }
        let given = request.clone();
        match self.scheduler.add(given) {
            Ok(()) => {
                assert!(self.fits(&request));
                let resumed = samples.iter().filter(|sample| !sample.is_finished && resume.is_some());
                let lengths = resumed.map(|sample| request.prompt.len() + sample.received.len());
                self.added_tokens += lengths.sum::<usize>().max(request.prompt.len()) as u64;
                let num_schedules = self.num_schedules;
                let num_starts = u32::from(samples.iter().any(|sample| !sample.received.is_empty()));
                let tells_ahead = add.prompt_logprobs.filter(|_| request.prompt_logprobs);
                self.requests.push(Known {
                    request,
                    holders: BTreeSet::new(),
                    is_dropped: false,
                    samples,
                    num_schedules,
                    offer: None,
                    logprobs: add.logprobs,
                    tells_ahead,
                    num_starts,
                    num_added: Cell::new(0),
                });
                if let Some(offer) = add.offer {
                    self.offer(self.requests.len() - 1, offer);
                }
            }
            Err(Error::PromptTooLong { .. }) => assert!(!self.has_room(&request)),
            Err(Error::NeverFits { needed, num_blocks, max_pinned_blocks, .. }) => {
                assert!(!self.fits(&request) && needed > num_blocks - max_pinned_blocks);
            }
            Err(Error::Request(_)) => assert!(request.outputs.iter().all(|output| output.finished)),
            Err(other) => panic!("a request that fits is refused: {other}"),
        }
    }

    fn request(&self, add: &Add) -> Request {
        let index = self.requests.len() as u32;
        let n = add.n.min(self.config.max_num_seqs);
        let pooling = add.pooling && add.length_penalty.is_none();
        let samples = !pooling && add.length_penalty.is_none();
        let n = if pooling { 1 } else { n };
        Request {
            client: ClientId(add.client),
            id: RequestId(u64::from(index)),
            n,
            pooling: match (pooling, add.stateful) {
                (false, _) => Pooling::None,
                (true, false) => Pooling::Last,
                (true, true) => Pooling::Mean,
            },
            beam_width: if add.length_penalty.is_some() { n } else { 0 },
            length_penalty: add.length_penalty.unwrap_or(1.0),
            seed: add.seed,
            max_tokens: if pooling { 0 } else { add.max_tokens },
            min_tokens: if pooling { 0 } else { add.min_tokens.min(add.max_tokens) },
            stop_token_ids: add
                .stop_every
                .filter(|_| !pooling)
                .map_or(Vec::new(), |every| (0..VOCABULARY as i32).rev().step_by(every).collect()),
            sampling: index.to_le_bytes().to_vec(),
            arrival: f64::from(add.arrival),
            deadline: add.deadline.map(f64::from),
            ttft_target: add.ttft_target,
            tpot_target: add.tpot_target,
            priority: add.priority,
            policy_key: add.policy_key,
            stateful: add.stateful && samples,
            prompt_logprobs: add.prompt_logprobs.is_some() && samples,
            num_logprobs: [0, 1, 10_000, self.config.most_logprobs() as u32 / n][(add.seed / 4 % 4) as usize],
            kv_cache_retention: [Retention::None, Retention::Default, Retention::Default, Retention::Long]
                [(add.seed % 4) as usize],
            ..request(Prompt { adapter: if self.config.max_loras > 0 { add.prompt.adapter } else { 0 }, ..add.prompt })
        }
    }

    fn fits(&self, request: &Request) -> bool {
        let longest = oracle::longest(request, &self.config);
        let num_blocks = self.config.num_blocks - self.config.max_pinned_blocks;
        super::beams::num_blocks(request, longest - 1, &self.config, self.largest_chunk) <= num_blocks
    }

    /// Whether the context has room for its prompt, and for a token of output if it asks for any.
    fn has_room(&self, request: &Request) -> bool {
        request.prompt.len() + usize::from(request.pooling == Pooling::None) <= self.config.max_model_len as usize
    }

    pub(super) fn take(&mut self, client: u32) {
        self.take_recording();
        let pending = self.scheduler.pending_clients().contains(&ClientId(client));
        let Some(deltas) = self.scheduler.take_deltas(ClientId(client)) else {
            assert!(!pending);
            return;
        };
        assert!(pending && !deltas.is_empty());
        let of_prompt = deltas.offsets.iter().map(|&offset| offset < 0);
        let mut rows: Vec<_> = deltas.requests.iter().zip(&deltas.samples).zip(of_prompt).collect();
        rows.sort_unstable();
        rows.dedup();
        assert_eq!(rows.len(), deltas.len(), "one row a sample, and one of its prompt");
        for (request, num_starts) in starts(deltas) {
            let known = &mut self.requests[request as usize];
            known.num_starts += num_starts;
            assert_eq!(known.num_starts, 1, "a request begins once, with its first output");
            *self.seen.entry("outputs that begin").or_default() += u64::from(num_starts);
        }
        for row in 0..deltas.len() {
            let known = &mut self.requests[deltas.requests[row] as usize];
            assert!(known.request.client == ClientId(client) && !known.is_dropped);
            assert!((0..=known.request.prompt.len() as i32).contains(&deltas.cached_tokens[row]));
            check_logprobs(known, deltas, row);
            if deltas.offsets[row] < 0 {
                known.hear_prompt(deltas, row);
                continue;
            }
            if known.request.beam_width > 0 {
                assert_ne!(deltas.finishes[row], Finish::None as u8, "of beams the end alone is told");
                let is_one_of_several = known.request.beam_width > 1 && !deltas.row_tokens(row).is_empty();
                *self.seen.entry("answers of several beams").or_default() += u64::from(is_one_of_several);
            }
            let sample = &mut known.samples[deltas.samples[row] as usize];
            assert!(!sample.is_finished, "nothing comes after the end");
            assert_eq!(deltas.offsets[row] as usize, sample.received.len(), "no token is lost or repeated");
            let tokens = deltas.row_tokens(row);
            *self.seen.entry("merged deltas").or_default() += u64::from(tokens.len() > 1);
            sample.received.extend_from_slice(tokens);
            assert!(sample.expected.starts_with(&sample.received), "the tokens depend on the request alone");
            let is_whole = sample.received.len() == sample.expected.len();
            let finish = sample.ended.unwrap_or(if is_whole { sample.finish } else { Finish::None });
            assert_eq!(deltas.finishes[row], finish as u8);
            sample.is_finished = finish != Finish::None;
            let pooled = known.request.pooling != Pooling::None && finish == Finish::Stop;
            let embedding = if pooled { &oracle::embed(&known.request)[..] } else { &[] };
            assert_eq!(
                deltas.embeddings.row(row),
                embedding,
                "what pools ends with its embedding, and nothing else does"
            );
            let is_longest = known.request.prompt.len() == self.config.max_model_len as usize;
            *self.seen.entry("embeddings").or_default() += u64::from(pooled);
            *self.seen.entry("embeddings of a whole context").or_default() += u64::from(pooled && is_longest);
        }
    }

    pub(super) fn abort(&mut self, pick: usize, sample: Option<u32>) {
        let Some(index) = self.pick(pick) else { return };
        let known = &mut self.requests[index];
        let is_of_beams = known.request.beam_width > 0 && sample.is_some_and(|sample| sample < known.request.n);
        let expected = !known.is_dropped && known.end(sample.filter(|_| !is_of_beams), Finish::Abort);
        let (client, id) = (known.request.client, known.request.id);
        let in_flight = self.in_flight.iter().any(InFlight::samples);
        assert_eq!(self.scheduler.abort(client, id, sample), expected);
        self.saw("aborts with tokens in flight", u64::from(expected && in_flight));
        self.take(client.0);
        let known = &self.requests[index];
        assert!(known.is_dropped || known.samples.iter().all(|sample| sample.is_finished || sample.ended.is_none()));
    }

    /// Ends the requests that the scheduler is about to end by deadline. Gives their number.
    pub(super) fn expire(&mut self) -> u64 {
        let mut num_expired = 0;
        for index in 0..self.requests.len() {
            if self.requests[index].request.deadline.is_some_and(|deadline| deadline <= self.now) {
                self.take(self.requests[index].request.client.0);
                self.note_deadline(index);
                let known = &mut self.requests[index];
                num_expired += u64::from(known.is_live() && known.end(None, Finish::Deadline));
                known.holders.clear();
            }
        }
        num_expired
    }

    fn note_deadline(&mut self, index: usize) {
        let (client, id) = self.name(index);
        for one in self.scheduler.explain(client, id).unwrap_or_default() {
            self.saw(
                match one.state {
                    "running" => "deadlines of what runs",
                    "held" => "deadlines of what is held",
                    "loading" => "deadlines of what loads",
                    "swapped" => "deadlines of what is swapped",
                    _ => "deadlines of what waits",
                },
                1,
            );
        }
    }

    pub(super) fn hold(&mut self, pick: usize, holder: &'static str) {
        if let Some(index) = self.pick(pick) {
            self.set_hold(index, holder, true);
        }
    }

    pub(super) fn release(&mut self, pick: usize, holder: &'static str) {
        if let Some(index) = self.pick(pick) {
            self.set_hold(index, holder, false);
        }
    }

    /// Holds or releases a request whose deltas have all been taken.
    pub(super) fn set_hold(&mut self, index: usize, holder: &'static str, hold: bool) {
        let known = &mut self.requests[index];
        let (client, id) = (known.request.client, known.request.id);
        let result =
            if hold { self.scheduler.hold(client, id, holder) } else { self.scheduler.release(client, id, holder) };
        if known.is_live() && known.holders.contains(holder) != hold {
            assert_eq!(result, Ok(()));
            if hold {
                known.holders.insert(holder);
                self.end_isolation_of(index);
            } else {
                known.holders.remove(holder);
            }
            let is_left = !hold && self.requests[index].is_held();
            self.saw("releases by one of several holders", u64::from(is_left));
        } else {
            assert!(result.is_err());
            if !known.is_live() {
                known.holders.clear();
            }
        }
    }

    pub(super) fn drop_client(&mut self, client: u32) {
        self.scheduler.drop_client(ClientId(client));
        for known in self.requests.iter_mut().filter(|known| known.request.client == ClientId(client)) {
            known.is_dropped = true;
            known.holders.clear();
        }
        assert!(self.scheduler.take_deltas(ClientId(client)).is_none());
    }

    /// One of the last requests, with all its deltas taken, so that it is known whether it is live.
    pub(super) fn pick(&mut self, pick: usize) -> Option<usize> {
        let back = 1 + pick.checked_rem(self.requests.len().min(8))?;
        let index = self.requests.len() - back;
        self.take(self.requests[index].request.client.0);
        Some(index)
    }
}

/// The requests with output, each with its number of rows with start times.
fn starts(deltas: &DeltaColumns) -> BTreeMap<u64, u32> {
    let mut starts = BTreeMap::new();
    for row in 0..deltas.len() {
        let is_output = deltas.offsets[row] >= 0 && !deltas.row_tokens(row).is_empty();
        let start = deltas.start_times.of(row);
        if is_output || !deltas.embeddings.row(row).is_empty() {
            *starts.entry(deltas.requests[row]).or_default() += u32::from(start.is_some());
        } else {
            assert_eq!(start, None, "nothing begins without output");
        }
        assert!(start.is_none_or(|time| deltas.offsets[row] == 0 && time.queue >= 0.0 && time.prefill >= 0.0));
    }
    starts
}

/// A request with this prompt and default parameters.
pub(super) fn request(prompt: Prompt) -> Request {
    let name = |is_named: bool, name: &str| if is_named { name } else { "" }.to_owned();
    Request {
        prompt: (0..prompt.length as i32).map(|position| prompt.text * 100 + position % 50).collect(),
        tenant: prompt.tenant.to_owned(),
        cache_salt: name(prompt.salt, "salt"),
        adapter: name(prompt.adapter > 0, &format!("adapter {}", prompt.adapter)),
        adapter_number: prompt.adapter,
        ..Request::default()
    }
}
