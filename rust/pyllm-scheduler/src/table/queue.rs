//! The queue of waiting sequences, in lanes: one per tenant if the policy shares by tenant, else one for all. Each lane
//! is ordered by rank; the lane with the least service is next. A lane that was empty starts no lower than the lanes
//! that waited meanwhile, so idle time earns nothing.

use std::collections::{BTreeMap, HashMap};

use crate::arena::{Arena, Key};
use crate::policy::Rank;

/// The order within a lane: by rank, then by insertion and sample.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct QueueKey {
    pub(crate) rank: Rank,
    pub(crate) serial: u64,
    pub(crate) sample: u32,
}

/// A queue of items of type `T`, which are keys in an arena.
pub(crate) struct Queue<T> {
    lanes: Arena<Lane<T>>,
    by_tenant: HashMap<String, Key<Lane<T>>>,
    /// The lanes with waiting sequences, least service first.
    waiting: BTreeMap<(u64, u64), Key<Lane<T>>>, // by service and lane's number
    /// The lanes without requests whose service is still above the start of new lanes.
    idle: BTreeMap<(u64, u64), Key<Lane<T>>>,
    next_number: u64,
    /// The service of each lane under equal service for all: it grows with each charge, divided by the weight of the
    /// lanes with requests. A new lane starts here, so that a stream of new tenants cannot starve the others.
    virtual_time: u64,
    active_weight: u64, // of the lanes that have requests
    num_waiting: usize,
}

pub(crate) struct Lane<T> {
    tenant: String,
    number: u64,
    weight: u64,
    service: u64, // in SERVICE_UNIT / weight
    /// The most service that a request of this lane had when it was queued. New requests start there, so that they do
    /// not overtake a preempted one for ever.
    request_floor: u64,
    num_requests: u32,
    queue: BTreeMap<QueueKey, Key<T>>,
}

/// Units of service per token, so that a division by a weight loses little.
pub(crate) const SERVICE_UNIT: u64 = 1 << 20;

impl<T> Queue<T> {
    pub(crate) fn new() -> Self {
        Self {
            lanes: Arena::new(),
            by_tenant: HashMap::new(),
            waiting: BTreeMap::new(),
            idle: BTreeMap::new(),
            next_number: 0,
            virtual_time: 0,
            active_weight: 0,
            num_waiting: 0,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.num_waiting
    }

    /// The tenant's lane, with one request more. The weight applies from now on.
    pub(crate) fn open(&mut self, tenant: &str, weight: u32) -> Key<Lane<T>> {
        let key = match self.by_tenant.get(tenant) {
            Some(&key) => key,
            None => self.add_lane(tenant, weight),
        };
        self.set_weight(key, weight);
        let lane = &mut self.lanes[key];
        self.idle.remove(&(lane.service, lane.number));
        if lane.num_requests == 0 {
            self.active_weight += lane.weight;
        }
        lane.num_requests += 1;
        key
    }

    /// Removes one request from the lane's count. A lane is forgotten once a new one would start no lower.
    pub(crate) fn close(&mut self, key: Key<Lane<T>>) {
        let lane = &mut self.lanes[key];
        lane.num_requests -= 1;
        if lane.num_requests == 0 {
            self.active_weight -= lane.weight;
            self.idle.insert((lane.service, lane.number), key);
            self.forget_idle();
        }
    }

    pub(crate) fn set_weight(&mut self, key: Key<Lane<T>>, weight: u32) {
        let lane = &mut self.lanes[key];
        let before = std::mem::replace(&mut lane.weight, u64::from(weight));
        if lane.num_requests > 0 {
            self.active_weight = self.active_weight + lane.weight - before;
        }
    }

    /// Queues a sequence whose request has received `request_service`.
    pub(crate) fn insert(&mut self, key: Key<Lane<T>>, queue_key: QueueKey, sequence: Key<T>, request_service: u64) {
        let lane = &self.lanes[key];
        if lane.queue.is_empty() {
            let service = lane.service.max(self.start());
            let lane = &mut self.lanes[key];
            lane.service = service;
            self.waiting.insert((service, lane.number), key);
        }
        let lane = &mut self.lanes[key];
        lane.request_floor = lane.request_floor.max(request_service);
        lane.queue.insert(queue_key, sequence);
        self.num_waiting += 1;
    }

    pub(crate) fn remove(&mut self, key: Key<Lane<T>>, queue_key: &QueueKey) {
        let lane = &mut self.lanes[key];
        if lane.queue.remove(queue_key).is_some() {
            self.num_waiting -= 1;
            if lane.queue.is_empty() {
                self.waiting.remove(&(lane.service, lane.number));
            }
        }
    }

    /// The next sequence.
    pub(crate) fn first(&self) -> Option<Key<T>> {
        let (_, &lane) = self.waiting.first_key_value()?;
        self.lanes[lane].queue.first_key_value().map(|(_, &sequence)| sequence)
    }

    /// The next sequence that `may_be` accepts.
    pub(crate) fn first_of(&self, mut may_be: impl FnMut(Key<T>) -> bool) -> Option<Key<T>> {
        let queued = self.waiting.values().flat_map(|&lane| self.lanes[lane].queue.values());
        queued.copied().find(|&sequence| may_be(sequence))
    }

    /// Removes the next sequence, as given by `first`.
    pub(crate) fn take_first(&mut self, key: Key<Lane<T>>, queue_key: &QueueKey) {
        self.virtual_time = self.virtual_time.max(self.lanes[key].service);
        self.remove(key, queue_key);
        self.forget_idle();
    }

    /// Charges the lane for service, in tokens weighted by cost.
    pub(crate) fn charge(&mut self, key: Key<Lane<T>>, cost: u64) {
        let lane = &mut self.lanes[key];
        let before = (lane.service, lane.number);
        lane.service += cost * SERVICE_UNIT / lane.weight;
        self.virtual_time += cost * SERVICE_UNIT / self.active_weight;
        if !lane.queue.is_empty() {
            self.waiting.remove(&before);
            self.waiting.insert((lane.service, lane.number), key);
        }
    }

    pub(crate) fn service(&self, key: Key<Lane<T>>) -> u64 {
        self.lanes[key].service
    }

    /// The service at which a new request of the lane starts.
    pub(crate) fn request_floor(&self, key: Key<Lane<T>>) -> u64 {
        self.lanes[key].request_floor
    }

    /// Tenants, each with its service in service units and its number of waiting sequences.
    pub(crate) fn lanes(&self) -> impl Iterator<Item = (&str, u64, usize)> {
        self.lanes.iter().map(|(_, lane)| (lane.tenant.as_str(), lane.service, lane.queue.len()))
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (Key<Lane<T>>, &QueueKey, Key<T>)> {
        self.lanes.iter().flat_map(|(key, lane)| lane.queue.iter().map(move |(queue_key, &one)| (key, queue_key, one)))
    }

    /// See `Scheduler::audit`.
    pub(crate) fn audit(&self, num_requests: usize) -> Result<(), String> {
        let counted: usize = self.lanes.iter().map(|(_, lane)| lane.queue.len()).sum();
        let requests: usize = self.lanes.iter().map(|(_, lane)| lane.num_requests as usize).sum();
        let place = |(key, lane): (Key<Lane<T>>, &Lane<T>)| ((lane.service, lane.number), key);
        let backlogged = self.lanes.iter().filter(|(_, lane)| !lane.queue.is_empty());
        let waiting: BTreeMap<_, _> = backlogged.map(place).collect();
        let idle: BTreeMap<_, _> = self.lanes.iter().filter(|(_, lane)| lane.num_requests == 0).map(place).collect();
        let holds = counted == self.num_waiting
            && requests == num_requests
            && waiting == self.waiting
            && idle == self.idle
            && self.by_tenant.len() == self.lanes.len();
        if holds { Ok(()) } else { Err("the lanes of the queue do not add up".to_owned()) }
    }

    fn add_lane(&mut self, tenant: &str, weight: u32) -> Key<Lane<T>> {
        let number = self.next_number;
        self.next_number += 1;
        let key = self.lanes.insert(Lane {
            tenant: tenant.to_owned(),
            number,
            weight: u64::from(weight),
            service: 0,
            request_floor: 0,
            num_requests: 0,
            queue: BTreeMap::new(),
        });
        self.by_tenant.insert(tenant.to_owned(), key);
        key
    }

    /// The service at which a lane starts to wait: no lower than the first waiting lane's.
    fn start(&self) -> u64 {
        self.waiting.first_key_value().map_or(0, |(place, _)| place.0).max(self.virtual_time)
    }

    fn forget_idle(&mut self) {
        let start = self.start();
        while let Some((&place, &key)) = self.idle.first_key_value().filter(|(place, _)| place.0 <= start) {
            self.idle.remove(&place);
            if let Some(lane) = self.lanes.remove(key) {
                self.by_tenant.remove(&lane.tenant);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue_key(serial: u64) -> QueueKey {
        QueueKey { rank: (0, 0), serial, sample: 0 }
    }

    fn sequence(arena: &mut Arena<()>) -> Key<()> {
        arena.insert(())
    }

    #[test]
    fn the_lane_with_the_least_service_is_next() {
        let (mut queue, mut arena) = (Queue::new(), Arena::new());
        let sequences: Vec<_> = (0..3).map(|_| sequence(&mut arena)).collect();
        let (one, two) = (queue.open("one", 1), queue.open("two", 2));
        queue.insert(one, queue_key(0), sequences[0], 0);
        queue.insert(two, queue_key(1), sequences[1], 0);
        queue.charge(one, 10);
        queue.charge(two, 18); // of twice the weight
        assert!(queue.first() == Some(sequences[1]));
        queue.charge(two, 4);
        assert!(queue.first() == Some(sequences[0]));
    }

    #[test]
    fn a_newcomer_starts_with_those_that_wait() {
        let (mut queue, mut arena) = (Queue::new(), Arena::new());
        let sequences: Vec<_> = (0..2).map(|_| sequence(&mut arena)).collect();
        let old = queue.open("old", 1);
        queue.insert(old, queue_key(0), sequences[0], 0);
        queue.charge(old, 100);
        let new = queue.open("new", 1);
        queue.insert(new, queue_key(1), sequences[1], 0);
        assert_eq!(queue.service(new), queue.service(old));
    }

    #[test]
    fn a_request_starts_no_lower_than_what_its_lane_has_queued() {
        let (mut queue, mut arena) = (Queue::new(), Arena::new());
        let lane = queue.open("", 1);
        queue.insert(lane, queue_key(0), sequence(&mut arena), 70);
        queue.insert(lane, queue_key(1), sequence(&mut arena), 20);
        assert_eq!(queue.request_floor(lane), 70);
    }

    #[test]
    fn idle_lanes_are_forgotten_when_they_would_be_lifted() {
        let (mut queue, mut arena) = (Queue::new(), Arena::new());
        let (ahead, other) = (queue.open("ahead", 1), queue.open("other", 1));
        queue.charge(ahead, 5);
        queue.close(ahead);
        assert_eq!(queue.lanes().count(), 2);
        let waits = sequence(&mut arena);
        queue.charge(other, 9);
        queue.insert(other, queue_key(0), waits, 0);
        queue.take_first(other, &queue_key(0));
        assert_eq!(queue.lanes().map(|lane| lane.0).collect::<Vec<_>>(), ["other"]);
        assert_eq!(queue.audit(1), Ok(()));
    }
}
