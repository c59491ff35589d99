//! Clients, the scheduler and a device, with several steps in flight. It makes the calls, keeps what every client has
//! heard, and compares all of it with what the oracle said when the request was added.

mod refusals;

use std::collections::{BTreeMap, VecDeque};

use pyllm_scheduler::{ClientId, Config, Error, Finish, Output, Request, RequestId, Scheduler, Stats, StepId, uniform};

use crate::calls::{Add, Call};
use crate::device::{Device, Row};
use crate::oracle::{self, Prefix, VOCABULARY};
use crate::sections::Sections;

pub struct World {
    config: Config,
    scheduler: Scheduler,
    device: Device,
    depth: usize,
    in_flight: VecDeque<InFlight>,
    requests: Vec<Known>,
    now: f64,
    added_tokens: u64,
    /// What has happened and how often, so that a test can tell that it did.
    pub seen: BTreeMap<&'static str, u64>,
}

struct InFlight {
    step: StepId,
    starts: Vec<i32>,
    tokens: Vec<i32>,
}

/// A request as its client knows it.
struct Known {
    request: Request,
    held: bool,
    dropped: bool,
    samples: Vec<KnownSample>,
}

struct KnownSample {
    expected: Vec<i32>,
    finish: Finish,
    received: Vec<i32>,
    finished: bool,
    aborted: bool,
}

impl World {
    pub fn new(config: Config, depth: usize) -> Self {
        Self {
            scheduler: Scheduler::new(config.clone()).expect("the limits are in range"),
            device: device(&config),
            config,
            depth,
            in_flight: VecDeque::new(),
            requests: Vec::new(),
            now: 0.0,
            added_tokens: 0,
            seen: BTreeMap::new(),
        }
    }

    pub fn call(&mut self, call: &Call) {
        match call {
            Call::Add(add) => self.add(add),
            Call::Schedule => self.schedule(),
            Call::Commit => self.commit(),
            Call::Take { client } => self.take(*client),
            Call::Abort { pick, sample } => self.abort(*pick, *sample),
            Call::Hold { pick } => self.hold(*pick, true),
            Call::Release { pick } => self.hold(*pick, false),
            Call::DropClient { client } => self.drop_client(*client),
            Call::LoseDevice => self.lose_device(),
            Call::Wrong(wrong) => self.refused(*wrong),
        }
        self.audit();
    }

    /// Lets everything run to its end, and checks that nothing is left.
    pub fn finish(&mut self) {
        for pick in 0..self.requests.len() {
            if self.requests[pick].held {
                self.hold(pick, false);
            }
        }
        for _ in 0..20_000 {
            if self.scheduler.stats().num_requests == 0 && self.in_flight.is_empty() {
                break;
            }
            for _ in 0..self.depth {
                self.schedule();
            }
            self.commit();
            self.audit();
        }
        for client in 0..3 {
            self.take(client);
        }
        let unfinished = |known: &&Known| !known.dropped && known.samples.iter().any(|sample| !sample.finished);
        assert_eq!(self.requests.iter().filter(unfinished).count(), 0, "every request comes to its end");
        let stats = self.scheduler.stats();
        let Stats { num_requests, num_running, num_waiting, num_held, num_used_blocks, .. } = stats;
        assert_eq!([num_requests, num_running, num_waiting, num_held, num_used_blocks], [0; 5]);
        assert!(self.scheduler.pending_clients().is_empty());
        assert!(stats.prefix_queries <= self.added_tokens, "a sequence is looked up at its first admission only");
        self.saw("preemptions", stats.num_preemptions);
        self.saw("prefix hits", stats.prefix_hits);
    }

    fn add(&mut self, add: &Add) {
        let mut request = self.request(add);
        let samples = (0..request.n).map(|sample| {
            let (expected, finish) = oracle::generate(&request, sample, &self.config);
            KnownSample { expected, finish, received: Vec::new(), finished: false, aborted: false }
        });
        let mut samples: Vec<_> =
            if request.prompt.len() < self.config.max_model_len as usize { samples.collect() } else { Vec::new() };
        if let Some(resume) = &add.resume {
            for (sample, &(finished, length)) in samples.iter_mut().zip(resume) {
                let length = if finished { sample.expected.len() } else { length.min(sample.expected.len() - 1) };
                sample.finished = finished;
                sample.received = sample.expected[..length].to_vec();
                request.outputs.push(Output { tokens: sample.received.clone(), finished });
            }
        }
        let given = request.clone();
        match self.scheduler.add(given) {
            Ok(()) => {
                assert!(self.fits(&request));
                let resumed = samples.iter().filter(|sample| !sample.finished && add.resume.is_some());
                let lengths = resumed.map(|sample| request.prompt.len() + sample.received.len());
                self.added_tokens += lengths.sum::<usize>().max(request.prompt.len()) as u64;
                self.requests.push(Known { request, held: false, dropped: false, samples });
            }
            Err(Error::PromptTooLong { num_tokens, .. }) => {
                assert!(num_tokens >= self.config.max_model_len as usize);
            }
            Err(Error::NeverFits { needed, num_blocks, .. }) => {
                assert!(!self.fits(&request) && needed > num_blocks);
            }
            Err(Error::Request(_)) => assert!(request.outputs.iter().all(|output| output.finished)),
            Err(other) => panic!("a request that fits is refused: {other}"),
        }
    }

    fn request(&self, add: &Add) -> Request {
        let index = self.requests.len() as u32;
        Request {
            client: ClientId(add.client),
            id: RequestId(u64::from(index)),
            prompt: (0..add.prompt_length as i32).map(|position| add.text * 100 + position % 50).collect(),
            n: add.n.min(self.config.max_num_seqs),
            seed: add.seed,
            max_tokens: add.max_tokens,
            stop_token_ids: add
                .stop_every
                .map_or(Vec::new(), |every| (0..VOCABULARY as i32).rev().step_by(every).collect()),
            sampling: index.to_le_bytes().to_vec(),
            arrival: f64::from(add.arrival),
            tenant: if add.tenant { "tenant" } else { "" }.to_owned(),
            cache_salt: if add.salt { "salt" } else { "" }.to_owned(),
            adapter: if add.adapter { "adapter" } else { "" }.to_owned(),
            ..Request::default()
        }
    }

    fn fits(&self, request: &Request) -> bool {
        let longest = (request.prompt.len() as u32 + request.max_tokens).min(self.config.max_model_len);
        (longest - 1).div_ceil(self.config.block_size) <= self.config.num_blocks
    }

    fn schedule(&mut self) {
        if self.in_flight.len() == self.depth {
            return;
        }
        let before = self.scheduler.stats();
        self.now += 0.5;
        let Some(plan) = self.scheduler.schedule(self.now).expect("time goes on") else {
            let may_run = before.num_running + before.num_waiting > 0;
            assert!(!self.in_flight.is_empty() || !may_run, "nothing is in flight, and yet nothing runs");
            return;
        };
        let sections = Sections::new(&plan);
        assert!(plan.num_tokens() <= self.config.max_num_batched_tokens, "the budget is kept");
        let requests = &self.requests;
        let root = |request: &[u8]| Prefix::empty(&known(requests, request).request);
        let rows = self.device.execute(&sections, root);
        for row in &rows {
            self.check_row(row);
        }
        self.note(&sections, &before);
        let tokens: Vec<i32> = rows.iter().flat_map(|row| &row.sampled).copied().collect();
        let starts = sections.ints("sampled_starts").to_vec();
        self.in_flight.push_back(InFlight { step: plan.step, starts, tokens });
    }

    /// A row reads the beginning of one of its request's samples, and draws that sample's number.
    fn check_row(&self, row: &Row) {
        let known = known(&self.requests, &row.request);
        assert!(!known.held && !known.dropped);
        let request = &known.request;
        let reads = |sample: &KnownSample| {
            let whole = || request.prompt.iter().chain(&sample.expected);
            // Steps planned before a stop token was known go past it; what they compute is dropped.
            row.context.len() < whole().count() + self.depth && row.context.iter().zip(whole()).all(|(a, b)| a == b)
        };
        let longest = (request.prompt.len() as u32 + request.max_tokens).min(self.config.max_model_len);
        assert!(row.context.len() < longest as usize, "the last token that there can be is never computed");
        let samples = known.samples.iter().enumerate().filter(|(_, sample)| reads(sample));
        let samples: Vec<u32> = samples.map(|(index, _)| index as u32).collect();
        assert!(!samples.is_empty(), "a row reads what no sample of its request has: {:?}", row.context);
        let position = (row.context.len() as u32).saturating_sub(request.prompt.len() as u32);
        let number = |sample: &u32| uniform(request.seed, position, *sample).to_bits();
        let drawn: Vec<u32> = row.uniforms.iter().map(|uniform| uniform.to_bits()).collect();
        match drawn[..] {
            [] => {}
            [one] => assert!(samples.iter().any(|sample| number(sample) == one), "a number of another sample"),
            _ => assert_eq!(drawn, (0..request.n).map(|sample| number(&sample)).collect::<Vec<_>>()),
        }
    }

    fn note(&mut self, sections: &Sections, before: &Stats) {
        let after = self.scheduler.stats();
        let lengths: Vec<usize> = sections.ranges("query_starts").iter().map(ExactSizeIterator::len).collect();
        let preempted = after.num_preemptions > before.num_preemptions;
        assert!(!preempted || sections.slot_inits().is_empty(), "nothing is admitted by a step that preempts");
        let is_mixed = lengths.contains(&1) && lengths.iter().any(|&length| length > 1);
        self.saw("tokens in flight", sections.ints("tokens").iter().filter(|&&token| token == -1).count() as u64);
        self.saw("block copies", sections.pairs("block_copies").len() as u64);
        self.saw("slot copies", sections.pairs("slot_copies").len() as u64);
        self.saw("prefills beside decodes", u64::from(is_mixed));
        self.saw("evictions", u64::from(after.num_cached_blocks < before.num_cached_blocks));
        self.saw("hits within a step", u64::from(before.num_steps == 0 && after.prefix_hits > 0));
    }

    fn saw(&mut self, what: &'static str, times: u64) {
        *self.seen.entry(what).or_default() += times;
    }

    fn commit(&mut self) {
        let Some(step) = self.in_flight.pop_front() else { return };
        let before = self.scheduler.stats();
        let waiting = before.num_waiting + before.num_held;
        let clients =
            self.scheduler.commit(step.step, &step.starts, &step.tokens, 0.0).expect("the step is due").to_vec();
        assert_eq!(clients, self.scheduler.pending_clients());
        let after = self.scheduler.stats();
        self.saw("forks without a slot", u64::from(after.num_waiting + after.num_held > waiting));
    }

    fn take(&mut self, client: u32) {
        let pending = self.scheduler.pending_clients().contains(&ClientId(client));
        let Some(deltas) = self.scheduler.take_deltas(ClientId(client)) else {
            assert!(!pending);
            return;
        };
        assert!(pending && !deltas.is_empty());
        let mut rows: Vec<_> = deltas.requests.iter().zip(&deltas.samples).collect();
        rows.sort_unstable();
        rows.dedup();
        assert_eq!(rows.len(), deltas.len(), "one row a sample");
        for row in 0..deltas.len() {
            let known = &mut self.requests[deltas.requests[row] as usize];
            assert!(known.request.client == ClientId(client) && !known.dropped);
            assert!((0..=known.request.prompt.len() as i32).contains(&deltas.cached_tokens[row]));
            let sample = &mut known.samples[deltas.samples[row] as usize];
            assert!(!sample.finished, "nothing comes after the end");
            assert_eq!(deltas.offsets[row] as usize, sample.received.len(), "no token is lost or repeated");
            let tokens = deltas.row_tokens(row);
            *self.seen.entry("merged deltas").or_default() += u64::from(tokens.len() > 1);
            sample.received.extend_from_slice(tokens);
            assert!(sample.expected.starts_with(&sample.received), "the tokens depend on the request alone");
            let whole = sample.received.len() == sample.expected.len();
            let expected = match (sample.aborted, whole) {
                (true, _) => Finish::Abort,
                (false, true) => sample.finish,
                (false, false) => Finish::None,
            };
            assert_eq!(deltas.finishes[row], expected as u8);
            sample.finished = expected != Finish::None;
        }
    }

    fn abort(&mut self, pick: usize, sample: Option<u32>) {
        let Some(index) = self.pick(pick) else { return };
        let known = &mut self.requests[index];
        let mut expected = false;
        for (index, known) in known.samples.iter_mut().enumerate() {
            if !known.finished && sample.is_none_or(|sample| sample as usize == index) {
                known.aborted = true;
                expected = true;
            }
        }
        let (client, id) = (known.request.client, known.request.id);
        let in_flight: usize = self.in_flight.iter().map(|step| step.tokens.len()).sum();
        assert_eq!(self.scheduler.abort(client, id, sample), expected && !known.dropped);
        self.saw("aborts with tokens in flight", u64::from(expected && in_flight > 0));
        self.take(client.0);
        let known = &self.requests[index];
        assert!(known.dropped || known.samples.iter().all(|sample| sample.finished || !sample.aborted));
    }

    fn hold(&mut self, pick: usize, hold: bool) {
        let Some(index) = self.pick(pick) else { return };
        let known = &mut self.requests[index];
        let (client, id) = (known.request.client, known.request.id);
        let live = !known.dropped && known.samples.iter().any(|sample| !sample.finished);
        let result = if hold { self.scheduler.hold(client, id, "test") } else { self.scheduler.release(client, id) };
        if live && known.held != hold {
            assert_eq!(result, Ok(()));
            known.held = hold;
        } else {
            assert!(result.is_err());
            known.held &= live;
        }
    }

    fn drop_client(&mut self, client: u32) {
        self.scheduler.drop_client(ClientId(client));
        for known in self.requests.iter_mut().filter(|known| known.request.client == ClientId(client)) {
            known.dropped = true;
            known.held = false;
        }
        assert!(self.scheduler.take_deltas(ClientId(client)).is_none());
    }

    fn lose_device(&mut self) {
        self.scheduler.lose_device();
        self.device = device(&self.config);
        let stats = self.scheduler.stats();
        assert_eq!((stats.num_used_blocks, stats.num_cached_blocks, stats.num_running), (0, 0, 0));
        for InFlight { step, starts, tokens } in std::mem::take(&mut self.in_flight) {
            let late = self.scheduler.commit(step, &starts, &tokens, 0.0).map(<[ClientId]>::to_vec);
            assert_eq!(late, Err(Error::UnknownStep { step }));
        }
    }

    /// A request there has been, with all its news heard, so that the world knows whether it is live.
    fn pick(&mut self, pick: usize) -> Option<usize> {
        let index = pick.checked_rem(self.requests.len())?;
        self.take(self.requests[index].request.client.0);
        Some(index)
    }

    fn audit(&self) {
        if let Err(problem) = self.scheduler.audit() {
            panic!("the books do not add up: {problem}");
        }
        let stats = self.scheduler.stats();
        assert_eq!(stats.num_free_blocks + stats.num_used_blocks, stats.num_blocks);
    }
}

fn device(config: &Config) -> Device {
    Device::new(config.block_size as usize, config.num_blocks as usize, config.max_num_seqs as usize)
}

fn known<'a>(requests: &'a [Known], sampling: &[u8]) -> &'a Known {
    let index = u32::from_le_bytes(sampling.try_into().expect("the bytes that the request was added with"));
    &requests[index as usize]
}
