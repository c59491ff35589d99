//! The process's single pool of threads. Knows no kernel.

use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::threads::Pool;

/// Null until first used. Its target is never freed, as there may be users.
static POOL: AtomicPtr<Mutex<Pool>> = AtomicPtr::new(ptr::null_mut());

pub(crate) fn pool() -> MutexGuard<'static, Pool> {
    let mut pool = POOL.load(Ordering::Acquire);
    if pool.is_null() {
        let new = Box::into_raw(Box::new(Mutex::new(Pool::new(1))));
        pool = match POOL.compare_exchange(ptr::null_mut(), new, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => new,
            // Another thread was first; a pool of one thread needs no clean-up.
            Err(first) => first,
        };
    }
    // SAFETY: it was made above, and is never freed.
    unsafe { &*pool }.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Makes the next caller create a new pool. The old one stays as it is.
pub(crate) fn forget() {
    POOL.store(ptr::null_mut(), Ordering::Release);
}
