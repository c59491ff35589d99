//! Ranks of one machine, through a file in memory. Each rank writes its bytes to slots of its own, then the number of the
//! round; the others wait for that number, read, and write the number of the round that they have read.
//!
//! Whoever waits spins shortly and then sleeps in a futex. Each rank locks its byte of the file until it ends, however it
//! ends, by which the others see that there is nothing to wait for.

use std::fs::{File, OpenOptions};
use std::hint::spin_loop;
use std::io;
use std::os::fd::AsRawFd;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::{MAX_BYTES, Pattern, Place, RankError, Result, Transport};

/// Rounds whose bytes are kept: a rank begins a round while others read its bytes of the round before.
const NUM_SLOTS: usize = 2;

/// Time to spin: longer than ranks with equal work are apart, short enough to leave a shared processor to others.
const SPIN: Duration = Duration::from_micros(50);
/// Spinning time after which a waiting thread yields its processor: it may be the one that the awaited rank needs.
const POLITE: Duration = Duration::from_micros(5);
/// Time after which a sleeping thread looks whether the awaited rank is still there.
const NAP: Duration = Duration::from_millis(100);

/// Parts of the file begin at multiples of this, which pages of every size divide.
const ALIGNMENT: usize = 64 << 10;
/// Bytes before a message: its size.
const MESSAGE_HEADER: usize = 64;

/// A number that only grows, for which other ranks can wait.
#[repr(C)]
struct Counter {
    value: AtomicU32,
    num_sleeping: AtomicU32,
}

impl Counter {
    fn has_reached(&self, target: u32) -> bool {
        self.value.load(Ordering::SeqCst).wrapping_sub(target).cast_signed() >= 0
    }

    fn set(&self, value: u32) {
        self.value.store(value, Ordering::SeqCst);
        if self.num_sleeping.load(Ordering::SeqCst) > 0 {
            self.wake();
        }
    }

    fn wake(&self) {
        // SAFETY: the address is valid; the other arguments are those of FUTEX_WAKE.
        unsafe { libc::syscall(libc::SYS_futex, self.value.as_ptr(), libc::FUTEX_WAKE, i32::MAX) };
    }

    /// Sleep until it is set, or for a nap; maybe shorter.
    fn sleep(&self, target: u32) {
        self.num_sleeping.fetch_add(1, Ordering::SeqCst);
        let seen = self.value.load(Ordering::SeqCst);
        if seen.wrapping_sub(target).cast_signed() < 0 {
            let nap = libc::timespec { tv_sec: 0, tv_nsec: NAP.subsec_nanos().into() };
            // SAFETY: the addresses are valid; the other arguments are those of FUTEX_WAIT.
            unsafe { libc::syscall(libc::SYS_futex, self.value.as_ptr(), libc::FUTEX_WAIT, seen, &raw const nap) };
        }
        self.num_sleeping.fetch_sub(1, Ordering::SeqCst);
    }
}

/// The state of one rank, which only that rank writes.
#[repr(C, align(128))]
struct Progress {
    /// The last round for which this rank has given its bytes.
    given: Counter,
    /// The last round of which this rank needs no more bytes.
    taken: Counter,
    /// Messages to the next stage so far.
    sent: Counter,
    /// Messages of the stage before that were read.
    received: Counter,
    has_left: AtomicU32,
    /// Pattern and size of the bytes in each slot.
    slots: [AtomicU64; NUM_SLOTS],
}

/// See the module.
pub(super) struct SharedMemory {
    place: Place,
    timeout: Duration,
    /// An open file of this rank alone, which holds the lock.
    file: File,
    memory: Mapping,
    messages: Option<Messages>,
    round: u32,
    num_sent: u32,
    num_received: u32,
}

struct Messages {
    memory: Mapping,
    count: usize,
    max_bytes: usize,
}

impl SharedMemory {
    /// Map a file in memory that all ranks have; the first ones make it large enough. It is not used before all ranks
    /// have come so far.
    pub(super) fn new(descriptor: i32, place: Place, timeout: Duration) -> io::Result<Self> {
        // Another rank's descriptor is for the same open file, and a lock belongs to an open file.
        let file = OpenOptions::new().read(true).write(true).open(format!("/proc/self/fd/{descriptor}"))?;
        lock_of(&file, libc::F_OFD_SETLK, place.rank)?;
        let memory = Mapping::of(&file, 0, slots_end(place))?;
        Ok(Self { place, timeout, file, memory, messages: None, round: 0, num_sent: 0, num_received: 0 })
    }

    fn progress(&self, rank: usize) -> &Progress {
        // SAFETY: the memory begins with as many as there are ranks, is aligned to a page, and zeros are valid at first.
        unsafe { self.memory.address.cast::<Progress>().add(rank).as_ref() }
    }

    fn slot(&self, rank: usize) -> *mut u8 {
        let number = rank * NUM_SLOTS + self.round as usize % NUM_SLOTS;
        // SAFETY: the memory has as many slots for each rank.
        unsafe { self.memory.address.add(slots_start(self.place) + number * MAX_BYTES).as_ptr() }
    }

    fn header(&self, rank: usize) -> &AtomicU64 {
        &self.progress(rank).slots[self.round as usize % NUM_SLOTS]
    }

    /// Wait until a counter of another rank has reached a number.
    fn wait(&self, rank: usize, counter: impl Fn(&Progress) -> &Counter, target: u32) -> Result<()> {
        let progress = self.progress(rank);
        let counter = counter(progress);
        let started = Instant::now();
        loop {
            for _ in 0..64 {
                if counter.has_reached(target) {
                    return Ok(());
                }
                spin_loop();
            }
            match started.elapsed() {
                waited if waited < POLITE => {}
                waited if waited < SPIN => thread::yield_now(),
                waited => {
                    // It may have left after it set the counter.
                    if (progress.has_left.load(Ordering::SeqCst) > 0 || self.has_ended(rank)?)
                        && !counter.has_reached(target)
                    {
                        return Err(RankError::Ended(rank));
                    }
                    if waited > self.timeout {
                        return Err(RankError::Late(rank, self.timeout.as_secs_f64()));
                    }
                    counter.sleep(target);
                }
            }
        }
    }

    fn has_ended(&self, rank: usize) -> io::Result<bool> {
        Ok(lock_of(&self.file, libc::F_OFD_GETLK, rank)? == libc::F_UNLCK)
    }

    /// The header and the bytes of message `number` of a rank.
    fn message(&self, sender: usize, number: u32) -> (NonNull<u8>, usize) {
        let Messages { memory, count, max_bytes } = self.messages.as_ref().expect("`allocate_messages` comes first");
        let index = sender * count + number as usize % count;
        // SAFETY: the memory has as many messages for each rank before the last stage.
        (unsafe { memory.address.add(index * (MESSAGE_HEADER + max_bytes)) }, *max_bytes)
    }
}

impl Transport for SharedMemory {
    fn give(&mut self, pattern: Pattern, own: &[u8]) -> Result<()> {
        self.round = self.round.wrapping_add(1);
        let before = self.round.wrapping_sub(NUM_SLOTS as u32);
        for rank in self.place.stage().filter(|&rank| rank != self.place.rank) {
            self.wait(rank, |progress| &progress.taken, before)?;
        }
        // SAFETY: a slot has room for a round's bytes, and no other rank reads those of two rounds ago any longer.
        unsafe { ptr::copy_nonoverlapping(own.as_ptr(), self.slot(self.place.rank), own.len()) };
        self.header(self.place.rank).store(header(pattern, own.len()), Ordering::Relaxed);
        self.progress(self.place.rank).given.set(self.round);
        Ok(())
    }

    fn take(&mut self, pattern: Pattern, num_bytes: usize, use_bytes: &mut dyn FnMut(&[&[u8]])) -> Result<()> {
        let own = self.place.index();
        if !pattern.gives(own) {
            self.round = self.round.wrapping_add(1);
        }
        let mut pieces: Vec<&[u8]> = Vec::with_capacity(self.place.size);
        for (index, rank) in self.place.stage().enumerate() {
            if !pattern.takes(own, index) {
                pieces.push(&[]);
                continue;
            }
            self.wait(rank, |progress| &progress.given, self.round)?;
            check(rank, self.header(rank).load(Ordering::Relaxed), header(pattern, num_bytes))?;
            // SAFETY: the rank has written as many bytes, and writes there again when this one has taken them.
            pieces.push(unsafe { std::slice::from_raw_parts(self.slot(rank), num_bytes) });
        }
        use_bytes(&pieces);
        self.progress(self.place.rank).taken.set(self.round);
        Ok(())
    }

    fn allocate_messages(&mut self, num_messages: usize, max_bytes: usize) -> Result<()> {
        let max_bytes = max_bytes.next_multiple_of(MESSAGE_HEADER);
        let num_senders = self.place.num_ranks() - self.place.size;
        let bytes = (num_senders * num_messages * (MESSAGE_HEADER + max_bytes)).max(1);
        let memory = Mapping::of(&self.file, slots_end(self.place), bytes)?;
        self.messages = Some(Messages { memory, count: num_messages, max_bytes });
        Ok(())
    }

    fn send(&mut self, parts: &[&[u8]]) -> Result<()> {
        let after = self.place.after().expect("the last stage sends nothing");
        let (message, max_bytes) = self.message(self.place.rank, self.num_sent);
        let num_bytes = parts.iter().map(|part| part.len()).sum::<usize>();
        assert!(num_bytes <= max_bytes, "a message of {num_bytes} bytes in room for {max_bytes}");
        let count = self.messages.as_ref().map_or(0, |messages| messages.count) as u32;
        self.num_sent = self.num_sent.wrapping_add(1);
        self.wait(after, |progress| &progress.received, self.num_sent.wrapping_sub(count))?;
        let mut to = message;
        // SAFETY: there is room, as checked above, and the next stage has read the message that was there.
        unsafe {
            to.cast::<u64>().write(num_bytes as u64);
            to = to.add(MESSAGE_HEADER);
            for part in parts {
                ptr::copy_nonoverlapping(part.as_ptr(), to.as_ptr(), part.len());
                to = to.add(part.len());
            }
        }
        self.progress(self.place.rank).sent.set(self.num_sent);
        Ok(())
    }

    fn receive(&mut self, parts: &mut [&mut [u8]]) -> Result<()> {
        let before = self.place.before().expect("the first stage receives nothing");
        let (message, _) = self.message(before, self.num_received);
        self.num_received = self.num_received.wrapping_add(1);
        self.wait(before, |progress| &progress.sent, self.num_received)?;
        let num_bytes = parts.iter().map(|part| part.len()).sum::<usize>() as u64;
        // SAFETY: the message was written, and is not written again before it was read.
        unsafe {
            check(before, message.cast::<u64>().read(), num_bytes)?;
            let mut from = message.add(MESSAGE_HEADER);
            for part in parts {
                ptr::copy_nonoverlapping(from.as_ptr(), part.as_mut_ptr(), part.len());
                from = from.add(part.len());
            }
        }
        self.progress(self.place.rank).received.set(self.num_received);
        Ok(())
    }
}

impl Drop for SharedMemory {
    fn drop(&mut self) {
        let own = self.progress(self.place.rank);
        own.has_left.store(1, Ordering::SeqCst);
        for counter in [&own.given, &own.taken, &own.sent, &own.received] {
            counter.wake();
        }
    }
}

/// Pattern and size of a rank's bytes in one number.
fn header(pattern: Pattern, num_bytes: usize) -> u64 {
    (pattern as u64) << 32 | num_bytes as u64
}

fn check(rank: usize, found: u64, expected: u64) -> Result<()> {
    if found == expected {
        return Ok(());
    }
    let size = u64::from(u32::MAX);
    let text = if found >> 32 == expected >> 32 {
        format!("gave {} bytes, and this rank expected {}", found & size, expected & size)
    } else {
        "takes part in another collective than this rank".to_owned()
    };
    Err(RankError::Differs(rank, text))
}

fn slots_start(place: Place) -> usize {
    (place.num_ranks() * size_of::<Progress>()).next_multiple_of(ALIGNMENT)
}

fn slots_end(place: Place) -> usize {
    slots_start(place) + place.num_ranks() * NUM_SLOTS * MAX_BYTES
}

/// Take or look for the lock of a rank; the kind of lock in its way.
fn lock_of(file: &File, command: i32, rank: usize) -> io::Result<i32> {
    let mut lock = libc::flock {
        l_type: libc::F_WRLCK as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: rank as libc::off_t,
        l_len: 1,
        l_pid: 0,
    };
    // SAFETY: the descriptor is open, and the commands take a lock by its address.
    if unsafe { libc::fcntl(file.as_raw_fd(), command, &raw mut lock) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(lock.l_type.into())
}

/// Part of a file, as shared memory of zeros at first.
struct Mapping {
    address: NonNull<u8>,
    bytes: usize,
}

// SAFETY: it is memory that belongs to no thread.
unsafe impl Send for Mapping {}

impl Mapping {
    /// Map a part of a file. Every rank makes the file as large as the part needs; none does so for a later part yet.
    fn of(file: &File, start: usize, bytes: usize) -> io::Result<Self> {
        if file.metadata()?.len() < (start + bytes) as u64 {
            file.set_len((start + bytes) as u64)?;
        }
        // SAFETY: a new mapping, at an address that the kernel chooses.
        let address = unsafe {
            let access = libc::PROT_READ | libc::PROT_WRITE;
            libc::mmap(ptr::null_mut(), bytes, access, libc::MAP_SHARED, file.as_raw_fd(), start as libc::off_t)
        };
        if address == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Self { address: NonNull::new(address.cast()).expect("a mapping has an address"), bytes })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: it was mapped so, and nothing refers to it any longer.
        unsafe { libc::munmap(self.address.as_ptr().cast(), self.bytes) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtype::DType;
    use crate::isa::Isa;
    use crate::ranks::Ranks;

    /// Two ranks that have had so many rounds.
    fn ranks(rounds: u32) -> [Ranks; 2] {
        // SAFETY: the name ends with a zero.
        let descriptor = unsafe { libc::memfd_create(c"ranks".as_ptr(), 0) };
        let found = [0, 1].map(|rank| {
            let place = Place { rank, size: 2, num_stages: 1 };
            let mut memory = SharedMemory::new(descriptor, place, Duration::from_secs(60)).expect("a file in memory");
            memory.round = rounds;
            memory.progress(rank).given.set(rounds);
            memory.progress(rank).taken.set(rounds);
            Ranks::new(place, Box::new(memory))
        });
        // SAFETY: it was opened above.
        unsafe { libc::close(descriptor) };
        found
    }

    #[test]
    fn rounds_go_on_when_their_number_begins_again() {
        for rounds in [0, u32::MAX - 3, i32::MAX as u32 - 3] {
            let [mut first, mut second] = ranks(rounds);
            let sums = |ranks: &mut Ranks| {
                let sums = (0..8_u8).map(|number| {
                    let mut part = f32::from(number).to_ne_bytes();
                    ranks.sum(DType::Float32, &mut part, Isa::Portable).expect("the other rank is there");
                    f32::from_ne_bytes(part)
                });
                sums.collect::<Vec<_>>()
            };
            let expected: Vec<_> = (0..8_u8).map(|number| 2.0 * f32::from(number)).collect();
            thread::scope(|scope| {
                let other = scope.spawn(|| sums(&mut second));
                assert_eq!(sums(&mut first), expected);
                assert_eq!(other.join().expect("no panic"), expected);
            });
        }
    }

    #[test]
    fn a_rank_that_has_left_wakes_those_that_sleep() {
        let [first, mut second] = ranks(0);
        thread::scope(|scope| {
            let waiting = scope.spawn(move || second.broadcast(&mut [0]));
            drop(first);
            assert!(matches!(waiting.join().expect("no panic"), Err(RankError::Ended(0))));
        });
    }
}
