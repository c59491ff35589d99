//! An engine without a model: the scheduler's calls in a loop, with its own clock, and tokens computed from request and
//! position. Records the output of every request. Knows no policy.

use std::collections::{BTreeMap, HashMap};

use pyllm_scheduler::{
    ALIGNMENT, ClientId, Config, DeltaColumns, Explanation, Finish, Plan, PolicyName, Reason, Request, RequestId,
    SECTIONS, Scheduler,
};

pub const CLIENT: ClientId = ClientId(0);
pub const VOCABULARY: u32 = 1000;

pub struct Engine {
    pub scheduler: Scheduler,
    pub now: f64,
    /// Seconds per step, and per token in it.
    pub step_seconds: f64,
    pub token_seconds: f64,
    /// Whether the scheduler gets the times of steps.
    pub tells_seconds: bool,
    pub served: BTreeMap<u64, Served>,
    pub num_steps: u32,
    slots: HashMap<i32, u64>,
}

/// The output of a request.
#[derive(Clone, Debug, Default)]
pub struct Served {
    /// Prompt tokens that were cached at its first admission.
    pub cached: Option<u32>,
    pub num_admissions: u32,
    /// Times of its output tokens.
    pub token_times: Vec<f64>,
    pub finish: Option<u8>,
}

impl Served {
    pub fn num_tokens(&self) -> usize {
        self.token_times.len()
    }
}

/// A request's part in a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    pub request: u64,
    pub start: i32,
    pub num_tokens: i32,
}

pub fn config(policy: PolicyName, num_blocks: u32, max_num_seqs: u32) -> Config {
    Config {
        block_size: 4,
        num_blocks,
        max_num_seqs,
        max_num_batched_tokens: 64,
        max_model_len: 256,
        vocab_size: VOCABULARY,
        policy,
        ..Config::default()
    }
}

/// A prompt that shares no block with those of other ids.
pub fn request(id: u64, prompt_length: i32, max_tokens: u32) -> Request {
    Request {
        client: CLIENT,
        id: RequestId(id),
        prompt: (0..prompt_length).map(|position| token(id + 500, position)).collect(),
        n: 1,
        max_tokens,
        sampling: id.to_le_bytes().to_vec(),
        ..Request::default()
    }
}

/// The token at a position of a request.
pub fn token(request: u64, position: i32) -> i32 {
    let mixed = (request << 20 | position as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    ((mixed >> 32) % u64::from(VOCABULARY)) as i32
}

impl Engine {
    pub fn new(config: Config) -> Self {
        Self {
            scheduler: Scheduler::new(config).expect("the settings are in range"),
            now: 0.0,
            step_seconds: 1.0 / 64.0,
            token_seconds: 0.0,
            tells_seconds: false,
            served: BTreeMap::new(),
            num_steps: 0,
            slots: HashMap::new(),
        }
    }

    pub fn add(&mut self, request: Request) {
        self.served.insert(request.id.0, Served::default());
        self.scheduler.add(request).expect("the request fits");
    }

    /// Like `add`, with the current time as arrival.
    pub fn add_now(&mut self, request: Request) {
        self.add(Request { arrival: self.now, ..request });
    }

    /// Schedules, runs and commits a step. No rows: nothing may run.
    pub fn step(&mut self) -> Vec<Row> {
        let Some((plan, rows)) = self.plan() else {
            self.take_deltas();
            return Vec::new();
        };
        self.commit(&plan, &rows);
        rows
    }

    /// Schedules a step.
    pub fn plan(&mut self) -> Option<(Plan, Vec<Row>)> {
        let plan = self.scheduler.schedule(self.now).expect("time goes on")?;
        let rows = self.rows(&plan);
        for row in &rows {
            let served = self.served.get_mut(&row.request).expect("it was added");
            served.cached.get_or_insert(row.start as u32);
        }
        Some((plan, rows))
    }

    /// Runs and commits the oldest step.
    pub fn commit(&mut self, plan: &Plan, rows: &[Row]) {
        let seconds = self.step_seconds + self.token_seconds * f64::from(plan.num_tokens());
        self.now += seconds;
        self.num_steps += 1;
        let starts = ints(plan, "sampled_starts");
        let sampled = rows.iter().zip(starts.windows(2)).flat_map(|(row, range)| {
            let next = token(row.request, row.start + row.num_tokens);
            vec![next; (range[1] - range[0]) as usize]
        });
        let tokens: Vec<_> = sampled.collect();
        let told = if self.tells_seconds { seconds } else { 0.0 };
        self.scheduler.commit(plan.step, &starts, &tokens, told, None, None).expect("the step is due");
        self.take_deltas();
        self.scheduler.audit().expect("the books add up");
    }

    pub fn steps(&mut self, count: u32) {
        for _ in 0..count {
            self.step();
        }
    }

    /// Runs until no request is left.
    pub fn finish(&mut self) {
        while self.scheduler.stats().num_requests > 0 {
            assert!(!self.step().is_empty(), "something is left and nothing runs");
        }
    }

    /// Steps until the request has ended. Panics after `most`.
    pub fn finish_request(&mut self, id: u64, most: u32, mut before_each: impl FnMut(&mut Self)) -> u32 {
        for step in 0..most {
            if self.served[&id].finish.is_some() {
                return step;
            }
            before_each(self);
            self.step();
        }
        panic!("request {id} has not ended after {most} steps: {:?}", self.explain(id));
    }

    pub fn num_tokens(&self, id: u64) -> usize {
        self.served[&id].num_tokens()
    }

    pub fn is_finished(&self, id: u64) -> bool {
        self.served[&id].finish.is_some()
    }

    pub fn explain(&self, id: u64) -> Vec<Explanation> {
        self.scheduler.explain(CLIENT, RequestId(id)).unwrap_or_default()
    }

    /// The reason for which the request's first sample got no tokens in the last step.
    pub fn reason(&self, id: u64) -> Option<Reason> {
        self.explain(id)[0].reason
    }

    pub fn state(&self, id: u64) -> &'static str {
        self.explain(id).first().map_or("finished", |explanation| explanation.state)
    }

    /// Its ended requests, in the order of their last tokens.
    pub fn order_of_ends(&self) -> Vec<u64> {
        let ended = self.served.iter().filter(|(_, served)| served.finish.is_some());
        let mut ended: Vec<_> = ended.map(|(&id, served)| (served.token_times.last().copied(), id)).collect();
        ended.sort_by(|one, other| one.partial_cmp(other).expect("times are numbers"));
        ended.into_iter().map(|(_, id)| id).collect()
    }

    fn rows(&mut self, plan: &Plan) -> Vec<Row> {
        for copy in ints(plan, "slot_copies").chunks_exact(2) {
            self.slots.insert(copy[1], self.slots[&copy[0]]);
        }
        let names = bytes(plan, "sampling").chunks_exact(8);
        for (slot, name) in ints(plan, "slot_inits").into_iter().zip(names) {
            let request = u64::from_le_bytes(name.try_into().expect("eight bytes"));
            self.slots.insert(slot, request);
            self.served.get_mut(&request).expect("it was added").num_admissions += 1;
        }
        let (starts, positions) = (ints(plan, "query_starts"), ints(plan, "positions"));
        let slots = ints(plan, "slots");
        let rows = slots.iter().zip(starts.windows(2)).map(|(slot, range)| Row {
            request: self.slots[slot],
            start: positions[range[0] as usize],
            num_tokens: range[1] - range[0],
        });
        rows.collect()
    }

    fn take_deltas(&mut self) {
        let Some(deltas) = self.scheduler.take_deltas(CLIENT) else { return };
        note(&mut self.served, deltas, self.now);
    }
}

fn note(served: &mut BTreeMap<u64, Served>, deltas: &DeltaColumns, now: f64) {
    for row in 0..deltas.len() {
        let served = served.get_mut(&deltas.requests[row]).expect("it was added");
        served.token_times.extend(deltas.row_tokens(row).iter().map(|_| now));
        if deltas.finishes[row] != Finish::None as u8 {
            served.finish = Some(deltas.finishes[row]);
        }
    }
}

/// A section of int32.
pub fn ints(plan: &Plan, name: &str) -> Vec<i32> {
    let words = bytes(plan, name).chunks_exact(4);
    words.map(|word| i32::from_le_bytes(word.try_into().expect("four bytes"))).collect()
}

/// The bytes of a section.
pub fn bytes<'a>(plan: &'a Plan, name: &str) -> &'a [u8] {
    let mut end = 0_usize;
    for ((section, element), count) in SECTIONS.into_iter().zip(plan.counts) {
        let start = end.next_multiple_of(ALIGNMENT);
        end = start + count as usize * if element == 'B' { 1 } else { 4 };
        if section == name {
            return &plan.buffer[start..end];
        }
    }
    panic!("a plan has no section {name}");
}
