//! New output for each client, as columns that wait here until the client takes them: the rows of a slow client merge
//! instead of queueing. Knows clients by id, but not how tokens came about.

use std::collections::HashMap;

use crate::arena::{Arena, Key};
use crate::ids::{ClientId, RequestId};
use crate::output::embeddings::Embeddings;
use crate::output::logprobs::{LogprobEntries, LogprobView};
use crate::output::start_times::{StartTime, StartTimes};
use crate::request::Finish;

/// One row per sample with new output, and one before it for new log-probabilities of its prompt. Row i's tokens are
/// `tokens[token_starts[i]..token_starts[i + 1]]`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DeltaColumns {
    /// Request ids.
    pub requests: Vec<u64>,
    /// Sample indices.
    pub samples: Vec<i32>,
    /// Position of the row's first new token in its sample's output; negative for tokens of the prompt, which come with
    /// their log-probabilities.
    pub offsets: Vec<i32>,
    /// Start of each row's tokens, then the end of the last row's.
    pub token_starts: Vec<i32>,
    /// The new tokens.
    pub tokens: Vec<i32>,
    /// `Finish` codes.
    pub finishes: Vec<u8>,
    /// Prompt tokens found in the prefix cache when the sample was first admitted.
    pub cached_tokens: Vec<i32>,
    /// Log-probabilities of `tokens`.
    pub logprobs: LogprobEntries,
    /// Embeddings of the rows that have one, which are the last of their request.
    pub embeddings: Embeddings,
    /// Start times of the rows that begin a request's output.
    pub start_times: StartTimes,
}

/// New output of one sample.
pub(crate) struct Delta<'a> {
    pub(crate) request: RequestId,
    pub(crate) sample: u32,
    pub(crate) offset: i32,
    pub(crate) tokens: &'a [i32],
    pub(crate) logprobs: Option<LogprobView<'a>>, // of at least these tokens
    pub(crate) embedding: &'a [f32],
    pub(crate) finish: Finish,
    pub(crate) cached_tokens: u32,
}

pub(crate) struct Client {
    id: ClientId,
    num_requests: usize,
    columns: DeltaColumns,
    rounds: u32, // of `Outbox::begin_round` since the columns were taken
    round: u64,
}

pub(crate) struct Outbox {
    clients: Arena<Client>,
    keys: HashMap<ClientId, Key<Client>>,
    pending: Vec<ClientId>, // with columns that are not empty, longest waiting first
    taken: DeltaColumns,
    round: u64,
}

impl Outbox {
    pub(crate) fn new() -> Self {
        let taken = DeltaColumns::new();
        Self { clients: Arena::new(), keys: HashMap::new(), pending: Vec::new(), taken, round: 0 }
    }

    /// The client's key, with one request more.
    pub(crate) fn open(&mut self, id: ClientId) -> Key<Client> {
        let clients = &mut self.clients;
        let new = || Client { id, num_requests: 0, columns: DeltaColumns::new(), rounds: 0, round: 0 };
        let key = *self.keys.entry(id).or_insert_with(|| clients.insert(new()));
        self.clients[key].num_requests += 1;
        key
    }

    /// Removes one request from the client's count. The client is forgotten when it has neither requests nor deltas.
    pub(crate) fn close(&mut self, key: Key<Client>) {
        self.clients[key].num_requests -= 1;
        self.forget_idle(key);
    }

    /// Forgets a client and its deltas. Its requests are removed before.
    pub(crate) fn remove(&mut self, id: ClientId) {
        if let Some(key) = self.keys.remove(&id) {
            self.clients.remove(key);
            self.pending.retain(|&pending| pending != id);
        }
    }

    /// Starts a round, in which every sample has at most one row.
    pub(crate) fn begin_round(&mut self) {
        self.round += 1;
    }

    pub(crate) fn push(&mut self, key: Key<Client>, delta: &Delta<'_>) {
        let client = &mut self.clients[key];
        if client.columns.is_empty() {
            self.pending.push(client.id);
        }
        if client.round != self.round {
            client.round = self.round;
            client.rounds += 1;
        }
        client.columns.push(delta);
    }

    /// Sets the start time of the last pushed row, which begins its request's output.
    pub(crate) fn tell_start(&mut self, key: Key<Client>, time: StartTime) {
        let columns = &mut self.clients[key].columns;
        columns.start_times.push(columns.len() - 1, time);
    }

    pub(crate) fn pending(&self) -> &[ClientId] {
        &self.pending
    }

    /// A client's deltas since its last call, one row per sample.
    pub(crate) fn take(&mut self, id: ClientId) -> Option<&DeltaColumns> {
        let key = *self.keys.get(&id)?;
        let client = &mut self.clients[key];
        if client.columns.is_empty() {
            return None;
        }
        self.taken.clear();
        std::mem::swap(&mut self.taken, &mut client.columns);
        self.taken.logprobs.complete(self.taken.tokens.len());
        if std::mem::take(&mut client.rounds) > 1 {
            self.taken = self.taken.merged();
        }
        self.taken.logprobs.complete(self.taken.tokens.len());
        self.taken.embeddings.complete(self.taken.len());
        self.pending.retain(|&pending| pending != id);
        self.forget_idle(key);
        Some(&self.taken)
    }

    /// See `Scheduler::audit`.
    pub(crate) fn audit(&self, num_requests: usize) -> Result<(), String> {
        let clients = || self.clients.iter().map(|(_, client)| client);
        let counted: usize = clients().map(|client| client.num_requests).sum();
        let idle = clients().filter(|client| client.num_requests == 0 && client.columns.is_empty()).count();
        let pending = clients().filter(|client| !client.columns.is_empty()).count();
        let found = (counted, idle, pending, self.keys.len());
        let expected = (num_requests, 0, self.pending.len(), self.clients.len());
        if found == expected { Ok(()) } else { Err(format!("the outbox counts {found:?}, not {expected:?}")) }
    }

    fn forget_idle(&mut self, key: Key<Client>) {
        let client = &self.clients[key];
        if client.num_requests == 0 && client.columns.is_empty() {
            self.keys.remove(&client.id);
            self.clients.remove(key);
        }
    }
}

impl DeltaColumns {
    fn new() -> Self {
        Self { token_starts: vec![0], ..Self::default() }
    }

    /// Number of rows.
    pub fn len(&self) -> usize {
        self.requests.len()
    }

    /// Whether there are no rows.
    pub fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    /// The new tokens of a row.
    pub fn row_tokens(&self, row: usize) -> &[i32] {
        &self.tokens[self.token_starts[row] as usize..self.token_starts[row + 1] as usize]
    }

    fn push(&mut self, delta: &Delta<'_>) {
        self.embeddings.push(self.len(), delta.embedding);
        self.requests.push(delta.request.0);
        self.samples.push(delta.sample as i32);
        self.offsets.push(delta.offset);
        if let Some(logprobs) = delta.logprobs {
            self.logprobs.push(self.tokens.len(), logprobs, delta.tokens.len());
        }
        self.tokens.extend_from_slice(delta.tokens);
        self.token_starts.push(self.tokens.len() as i32);
        self.finishes.push(delta.finish as u8);
        self.cached_tokens.push(delta.cached_tokens as i32);
    }

    fn clear(&mut self) {
        self.requests.clear();
        self.samples.clear();
        self.offsets.clear();
        self.token_starts.truncate(1);
        self.tokens.clear();
        self.finishes.clear();
        self.cached_tokens.clear();
        self.logprobs.clear();
        self.embeddings.clear();
        self.start_times.clear();
    }

    /// The same deltas with one row per sample: its later tokens and finish join its first row. Log-probabilities of
    /// its prompt keep a row of their own, which may not be adjacent to the output of a resumed sample.
    fn merged(&self) -> Self {
        let mut order: Vec<usize> = (0..self.len()).collect();
        let name = |row: usize| (self.requests[row], self.samples[row], self.offsets[row] >= 0);
        order.sort_by_key(|&row| name(row)); // stable: a sample's rows stay in order
        let mut previous = None;
        let mut merged = Self::new();
        for row in order {
            if let Some(logprobs) = self.logprobs.view(self.token_starts[row] as usize) {
                merged.logprobs.push(merged.tokens.len(), logprobs, self.row_tokens(row).len());
            }
            if previous.replace(name(row)) == Some(name(row)) {
                let end = merged.len();
                merged.tokens.extend_from_slice(self.row_tokens(row));
                merged.token_starts[end] = merged.tokens.len() as i32;
                merged.finishes[end - 1] = self.finishes[row];
                merged.cached_tokens[end - 1] = self.cached_tokens[row];
            } else {
                // A row with an embedding is its request's only row.
                merged.embeddings.push(merged.len(), self.embeddings.row(row));
                merged.requests.push(self.requests[row]);
                merged.samples.push(self.samples[row]);
                merged.offsets.push(self.offsets[row]);
                merged.tokens.extend_from_slice(self.row_tokens(row));
                merged.token_starts.push(merged.tokens.len() as i32);
                merged.finishes.push(self.finishes[row]);
                merged.cached_tokens.push(self.cached_tokens[row]);
            }
            if let Some(time) = self.start_times.of(row) {
                merged.start_times.push(merged.len() - 1, time);
            }
        }
        merged
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn delta(request: u64, offset: i32, tokens: &[i32], finish: Finish) -> Delta<'_> {
        let request = RequestId(request);
        Delta { request, sample: 0, offset, tokens, logprobs: None, embedding: &[], finish, cached_tokens: 0 }
    }

    #[test]
    fn the_rows_of_a_slow_client_merge() {
        let mut outbox = Outbox::new();
        let key = outbox.open(ClientId(3));
        for (offset, token) in [10, 11, 12].into_iter().enumerate() {
            outbox.begin_round();
            for request in [8, 7] {
                let finish = if token == 12 && request == 8 { Finish::Stop } else { Finish::None };
                outbox.push(key, &delta(request, offset as i32, &[token], finish));
            }
        }
        assert_eq!(outbox.pending(), [ClientId(3)]);
        let columns = outbox.take(ClientId(3)).unwrap();
        assert_eq!(columns.requests, [7, 8]);
        assert_eq!(columns.offsets, [0, 0]);
        assert_eq!(columns.token_starts, [0, 3, 6]);
        assert_eq!(columns.tokens, [10, 11, 12, 10, 11, 12]);
        assert_eq!(columns.finishes, [0, 1]);
        assert!(outbox.take(ClientId(3)).is_none() && outbox.pending().is_empty());
    }

    #[test]
    fn log_probabilities_stay_with_their_tokens_when_rows_merge() {
        let mut outbox = Outbox::new();
        let key = outbox.open(ClientId(3));
        let entries =
            LogprobEntries { starts: vec![0, 1, 3], ids: vec![1, 2, 3], values: vec![-1.0; 3], ranks: vec![4, 5, 6] };
        for (request, offset) in [(8, -4), (7, 0), (8, -2), (8, 3), (8, 5), (9, 0)] {
            outbox.begin_round();
            let logprobs = if request == 8 { entries.view(0) } else { None };
            outbox.push(key, &Delta { logprobs, ..delta(request, offset, &[10, 11], Finish::None) });
        }
        let columns = outbox.take(ClientId(3)).unwrap();
        assert_eq!((&columns.requests[..], &columns.offsets[..]), (&[7, 8, 8, 9][..], &[0, -4, 3, 0][..]));
        assert_eq!(columns.token_starts, [0, 2, 6, 10, 12]);
        assert_eq!(columns.logprobs.starts, [0, 0, 0, 1, 3, 4, 6, 7, 9, 10, 12, 12, 12]);
        assert_eq!(columns.logprobs.ids, [1, 2, 3].repeat(4));
        outbox.push(key, &delta(7, 2, &[12], Finish::None));
        assert_eq!(outbox.take(ClientId(3)).unwrap().logprobs, LogprobEntries::default());
    }

    #[test]
    fn embeddings_stay_with_their_rows_when_others_merge() {
        let mut outbox = Outbox::new();
        let key = outbox.open(ClientId(3));
        for round in 0..2 {
            outbox.begin_round();
            outbox.push(key, &delta(9, round, &[10], Finish::None));
            let embedding: &[f32] = if round == 0 { &[0.5, 2.0] } else { &[0.25] };
            let request = 8 - round as u64;
            outbox.push(key, &Delta { embedding, ..delta(request, 0, &[], Finish::Stop) });
        }
        let columns = outbox.take(ClientId(3)).unwrap();
        assert_eq!((&columns.requests[..], &columns.tokens[..]), (&[7, 8, 9][..], &[10, 10][..]));
        let expected = Embeddings { starts: vec![0, 1, 3, 3], values: vec![0.25, 0.5, 2.0] };
        assert_eq!(columns.embeddings, expected);
        outbox.push(key, &delta(7, 2, &[12], Finish::None));
        assert_eq!(outbox.take(ClientId(3)).unwrap().embeddings, Embeddings::default());
    }

    #[test]
    fn start_times_stay_with_their_rows_when_others_merge() {
        let mut outbox = Outbox::new();
        let key = outbox.open(ClientId(3));
        let time = |seconds| StartTime { queue: seconds, prefill: 2.0 * seconds };
        for (request, offset, seconds) in
            [(9, 0, 9.0), (8, -2, 0.0), (9, 1, 0.0), (8, 0, 8.0), (8, 1, 0.0), (7, 4, 0.0)]
        {
            outbox.begin_round();
            outbox.push(key, &delta(request, offset, &[10, 11], Finish::None));
            if offset == 0 {
                outbox.tell_start(key, time(seconds));
            }
        }
        let columns = outbox.take(ClientId(3)).unwrap();
        assert_eq!((&columns.requests[..], &columns.offsets[..]), (&[7, 8, 8, 9][..], &[4, -2, 0, 0][..]));
        assert_eq!(columns.start_times.rows, [2, 3]);
        assert_eq!((columns.start_times.of(2), columns.start_times.of(3)), (Some(time(8.0)), Some(time(9.0))));
        outbox.push(key, &delta(7, 6, &[12], Finish::None));
        assert_eq!(outbox.take(ClientId(3)).unwrap().start_times, StartTimes::default());
    }

    #[test]
    fn a_client_is_forgotten_with_its_last_request_and_deltas() {
        let mut outbox = Outbox::new();
        let key = outbox.open(ClientId(1));
        outbox.push(key, &delta(1, 0, &[5], Finish::Length));
        outbox.close(key);
        assert_eq!(outbox.clients.len(), 1);
        assert!(outbox.take(ClientId(1)).is_some());
        assert_eq!((outbox.clients.len(), outbox.keys.len()), (0, 0));
    }
}
