//! A pool of permanent threads for independent tasks: each thread runs its share in order, then takes unclaimed tasks
//! of others. Knows no kernel. The caller takes part, so a pool of one thread starts none.
//!
//! A thread takes the tasks of its own share from the first on, and those of others from the last. So if all threads
//! take part, each reads memory in order, and the same memory as in the run before; a sleeping or descheduled thread
//! delays nobody as long as it has claimed no task. A job ends when `unfinished` is 0. Waiting threads prefetch the
//! memory that their share of the next job will read.

pub(crate) mod pool;

use std::cell::UnsafeCell;
use std::hint::spin_loop;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::memory::scratch::Scratch;
use crate::vector::prefetch;

/// Time to spin: long enough for the next layer's kernel, short enough to leave a shared processor to others.
const SPIN: Duration = Duration::from_micros(50);

/// Spinning time after which a waiting thread yields its processor: it may be the one that the awaited thread needs.
const POLITE: Duration = Duration::from_micros(5);

/// Bytes per prefetch.
const LINE: usize = 64;
/// Lines to prefetch between two checks of the awaited condition.
const LINES_AT_ONCE: usize = 8;
/// Maximum number of bytes to prefetch per thread, as they should stay in the L2 cache until they are needed.
const MAX_BYTES_AHEAD: usize = 256 << 10;

/// A fixed number of threads, the caller's included.
pub(crate) struct Pool {
    /// Scratch memory that a kernel keeps between its runs of tasks.
    pub(crate) scratch: Scratch,
    /// Scratch memory shared by several products of one op.
    pub(crate) rows: Scratch,
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
}

impl Pool {
    /// Start `num_threads - 1` threads.
    pub(crate) fn new(num_threads: usize) -> Self {
        let shared = Arc::new(Shared::new(num_threads));
        let start = |thread| {
            let shared = Arc::clone(&shared);
            thread::spawn(move || shared.work(thread))
        };
        let workers = (1..num_threads).map(start).collect();
        Self { scratch: Scratch::default(), rows: Scratch::default(), shared, workers }
    }

    pub(crate) fn num_threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Call `task` with every number below `num_tasks`, in no order, and return when all calls have.
    ///
    /// # Panics
    ///
    /// If a task panicked.
    pub(crate) fn run(&mut self, num_tasks: usize, task: &Task<'_>) {
        if self.workers.is_empty() || num_tasks < 2 {
            (0..num_tasks).for_each(task);
            return;
        }
        self.shared.run(num_tasks, task);
    }

    /// Announce that a later job will read this memory, a part in each task.
    pub(crate) fn announce(&self, memory: Memory) {
        self.shared.coming.set(memory);
    }

    /// Run work with many jobs in quick succession, with threads that stay awake.
    pub(crate) fn keep_awake<R>(&mut self, work: impl FnOnce(&mut Self) -> R) -> R {
        struct Rest(Arc<Shared>, bool);
        impl Drop for Rest {
            fn drop(&mut self) {
                self.0.awake.store(self.1, Ordering::SeqCst);
            }
        }
        let _rest = Rest(Arc::clone(&self.shared), self.shared.awake.swap(true, Ordering::SeqCst));
        work(self)
    }

    /// Set whether threads wait for the next job awake. The caller still sleeps if a job takes long to end, as the
    /// thread that it waits for may need its processor.
    pub(crate) fn stay_awake(&self, awake: bool) {
        self.shared.awake.store(awake, Ordering::SeqCst);
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.closing.store(true, Ordering::SeqCst);
        drop(self.shared.lock());
        self.shared.work_came.notify_all();
        for worker in self.workers.drain(..) {
            // A worker catches panics of its tasks, and reports them to the caller.
            let _ = worker.join();
        }
    }
}

type Task<'a> = dyn Fn(usize) + Sync + 'a;

/// Contiguous parts of equal size.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Memory {
    pub(crate) address: usize,
    pub(crate) part_bytes: usize,
    pub(crate) parts: usize,
}

struct Shared {
    job: UnsafeCell<Option<&'static Task<'static>>>,
    /// Number of jobs so far, by which a thread sees that a new one has come.
    num_jobs: AtomicUsize,
    /// One for each thread, the caller's first.
    shares: Box<[Share]>,
    unfinished: AtomicUsize,
    coming: Coming,
    panicked: AtomicBool,
    closing: AtomicBool,
    awake: AtomicBool,
    // Sleepers hold the lock from their last check of the awaited condition until they sleep.
    sleep: Mutex<()>,
    num_sleeping: AtomicUsize,
    work_came: Condvar,
    caller_sleeps: AtomicBool,
    work_ended: Condvar,
}

// SAFETY: `job` alone is not `Sync`. It is written by the one caller (`Pool::run` takes `&mut`) while no task is
// unfinished, and read only by a thread that has claimed a task of the job, which is unfinished then. The claim
// acquires what the caller released when it set the share.
unsafe impl Sync for Shared {}
// SAFETY: the job is a reference to something `Sync`.
unsafe impl Send for Shared {}

impl Shared {
    fn new(num_threads: usize) -> Self {
        Self {
            job: UnsafeCell::new(None),
            num_jobs: AtomicUsize::new(0),
            shares: (0..num_threads).map(|_| Share::default()).collect(),
            unfinished: AtomicUsize::new(0),
            coming: Coming::default(),
            panicked: AtomicBool::new(false),
            closing: AtomicBool::new(false),
            awake: AtomicBool::new(false),
            sleep: Mutex::new(()),
            num_sleeping: AtomicUsize::new(0),
            work_came: Condvar::new(),
            caller_sleeps: AtomicBool::new(false),
            work_ended: Condvar::new(),
        }
    }

    fn run(&self, num_tasks: usize, task: &Task<'_>) {
        debug_assert_eq!(self.unfinished.load(Ordering::SeqCst), 0);
        assert!(u32::try_from(num_tasks).is_ok(), "a job of {num_tasks} tasks: a share counts up to 2^32");
        // SAFETY: the reference outlives its use: it is called for claimed tasks only, and this function returns when
        // every task is finished. Nobody reads `job` now, as no task is unfinished.
        unsafe { *self.job.get() = Some(std::mem::transmute::<&Task<'_>, &'static Task<'static>>(task)) };
        self.unfinished.store(num_tasks, Ordering::SeqCst);
        for (thread, share) in self.shares.iter().enumerate() {
            share.set(share_of(thread, self.shares.len(), num_tasks));
        }
        self.num_jobs.fetch_add(1, Ordering::SeqCst);
        if self.num_sleeping.load(Ordering::SeqCst) > 0 {
            drop(self.lock());
            self.work_came.notify_all();
        }
        self.take_part(0);
        if !self.spin_until(0, || self.unfinished.load(Ordering::SeqCst) == 0) {
            let mut guard = self.lock();
            self.caller_sleeps.store(true, Ordering::SeqCst);
            while self.unfinished.load(Ordering::SeqCst) > 0 {
                guard = self.work_ended.wait(guard).unwrap_or_else(PoisonError::into_inner);
            }
            self.caller_sleeps.store(false, Ordering::SeqCst);
        }
        assert!(!self.panicked.swap(false, Ordering::SeqCst), "a task of a kernel panicked");
    }

    fn work(&self, thread: usize) {
        let came = |seen| self.num_jobs.load(Ordering::SeqCst) != seen || self.closing.load(Ordering::SeqCst);
        while !self.closing.load(Ordering::SeqCst) {
            let seen = self.num_jobs.load(Ordering::SeqCst);
            self.take_part(thread);
            if self.spin_until(thread, || came(seen)) || self.awake.load(Ordering::SeqCst) {
                continue;
            }
            let mut guard = self.lock();
            self.num_sleeping.fetch_add(1, Ordering::SeqCst);
            while !came(seen) {
                guard = self.work_came.wait(guard).unwrap_or_else(PoisonError::into_inner);
            }
            self.num_sleeping.fetch_sub(1, Ordering::SeqCst);
        }
    }

    /// Run tasks as long as there are unclaimed ones.
    fn take_part(&self, thread: usize) {
        let mut num_run = 0;
        while let Some(index) = self.claim(thread) {
            // SAFETY: the claimed task keeps the job from ending, and with it what it points to.
            let task = unsafe { *self.job.get() };
            if catch_unwind(AssertUnwindSafe(|| task.expect("a job with tasks has a function")(index))).is_err() {
                self.panicked.store(true, Ordering::SeqCst);
            }
            num_run += 1;
        }
        let ended = num_run > 0 && self.unfinished.fetch_sub(num_run, Ordering::SeqCst) == num_run;
        if ended && self.caller_sleeps.load(Ordering::SeqCst) {
            drop(self.lock());
            self.work_ended.notify_one();
        }
    }

    fn claim(&self, thread: usize) -> Option<usize> {
        let (before, from) = self.shares.split_at(thread);
        let (own, after) = from.split_first().expect("every thread has a share");
        own.claim_first().or_else(|| after.iter().chain(before).find_map(Share::claim_last))
    }

    /// Whether `done` became true within `SPIN`.
    fn spin_until(&self, thread: usize, done: impl Fn() -> bool) -> bool {
        let started = Instant::now();
        let mut lines = self.coming.share_of(thread, self.shares.len()).step_by(LINE);
        loop {
            for _ in 0..64 {
                if done() {
                    return true;
                }
                lines.by_ref().take(LINES_AT_ONCE).for_each(|line| prefetch(line, LINE));
                spin_loop();
            }
            let waited = started.elapsed();
            if waited > SPIN {
                return false;
            }
            if waited > POLITE {
                thread::yield_now();
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, ()> {
        self.sleep.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A thread's unclaimed tasks, as the first and the end: 32 bits each. On its own cache lines, as mostly only its
/// thread accesses it.
#[derive(Default)]
#[repr(align(128))]
struct Share(AtomicU64);

impl Share {
    fn set(&self, tasks: Range<usize>) {
        self.0.store((tasks.start as u64) << 32 | tasks.end as u64, Ordering::SeqCst);
    }

    fn claim_first(&self) -> Option<usize> {
        let claimed = self.update(|first, end| (first + 1, end))?;
        Some((claimed >> 32) as usize)
    }

    fn claim_last(&self) -> Option<usize> {
        let claimed = self.update(|first, end| (first, end - 1))?;
        Some((claimed & u64::from(u32::MAX)) as usize - 1)
    }

    /// The previous value of the share, unless it was empty.
    fn update(&self, take: impl Fn(u64, u64) -> (u64, u64)) -> Option<u64> {
        let less = |share: u64| {
            let (first, end) = (share >> 32, share & u64::from(u32::MAX));
            (first < end).then(|| take(first, end)).map(|(first, end)| first << 32 | end)
        };
        self.0.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less).ok()
    }
}

/// Memory that a later job will read. It may be read while another is set: prefetching an invalid address does nothing.
#[derive(Default)]
struct Coming {
    address: AtomicUsize,
    part_bytes: AtomicUsize,
    parts: AtomicUsize,
}

impl Coming {
    fn set(&self, memory: Memory) {
        self.address.store(memory.address, Ordering::Relaxed);
        self.part_bytes.store(memory.part_bytes, Ordering::Relaxed);
        self.parts.store(memory.parts, Ordering::Relaxed);
    }

    /// The first addresses of a thread's share.
    fn share_of(&self, thread: usize, num_threads: usize) -> Range<usize> {
        let parts = share_of(thread, num_threads, self.parts.load(Ordering::Relaxed));
        let part_bytes = self.part_bytes.load(Ordering::Relaxed);
        let start = self.address.load(Ordering::Relaxed).wrapping_add(parts.start.wrapping_mul(part_bytes));
        start..start.saturating_add(parts.len().saturating_mul(part_bytes).min(MAX_BYTES_AHEAD))
    }
}

/// A thread's share of `num_tasks`.
fn share_of(thread: usize, num_threads: usize, num_tasks: usize) -> Range<usize> {
    num_tasks * thread / num_threads..num_tasks * (thread + 1) / num_threads
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_task_runs_once_in_every_job() {
        for num_threads in [1, 2, 3, 8] {
            let mut pool = Pool::new(num_threads);
            assert_eq!(pool.num_threads(), num_threads);
            for num_tasks in (0..50).chain([1000]) {
                let runs: Vec<_> = (0..num_tasks).map(|_| AtomicUsize::new(0)).collect();
                pool.run(num_tasks, &|task| {
                    runs[task].fetch_add(1, Ordering::Relaxed);
                });
                assert!(runs.iter().all(|runs| runs.load(Ordering::Relaxed) == 1));
            }
        }
    }

    #[test]
    fn threads_take_part_side_by_side() {
        // Each task waits for the other: one thread alone would never end.
        let arrived = AtomicUsize::new(0);
        Pool::new(2).run(2, &|_| {
            arrived.fetch_add(1, Ordering::SeqCst);
            while arrived.load(Ordering::SeqCst) < 2 {
                thread::yield_now();
            }
        });
    }

    #[test]
    fn threads_that_stay_awake_do_every_job_and_may_rest_after_a_panic() {
        let mut pool = Pool::new(3);
        let sum = AtomicUsize::new(0);
        pool.keep_awake(|pool| {
            for _ in 0..50 {
                pool.run(4, &|task| {
                    sum.fetch_add(task, Ordering::Relaxed);
                });
            }
        });
        assert_eq!(sum.into_inner(), 300);
        let failed = catch_unwind(AssertUnwindSafe(|| pool.keep_awake(|_| panic!("between two jobs"))));
        assert!(failed.is_err());
        assert!(!pool.shared.awake.load(Ordering::SeqCst));
        pool.stay_awake(true);
        pool.keep_awake(|pool| pool.run(4, &|_| {}));
        assert!(pool.shared.awake.load(Ordering::SeqCst), "whoever kept them awake lets them rest");
        pool.stay_awake(false);
    }

    #[test]
    fn a_panic_reaches_the_caller_and_the_pool_lives_on() {
        let mut pool = Pool::new(3);
        let failed = catch_unwind(AssertUnwindSafe(|| pool.run(20, &|task| assert_ne!(task, 7))));
        assert!(failed.is_err());
        let sum = AtomicUsize::new(0);
        pool.run(10, &|task| {
            sum.fetch_add(task, Ordering::Relaxed);
        });
        assert_eq!(sum.into_inner(), 45);
    }
}
