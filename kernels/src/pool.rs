//! The one pool of threads of this process. Knows no kernel.

use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::threads::Pool;

/// Null until it is asked for. What it points to is never freed: somebody may have it.
static POOL: AtomicPtr<Mutex<Pool>> = AtomicPtr::new(ptr::null_mut());

pub(crate) fn pool() -> MutexGuard<'static, Pool> {
    let mut pool = POOL.load(Ordering::Acquire);
    if pool.is_null() {
        let new = Box::into_raw(Box::new(Mutex::new(Pool::new(1))));
        pool = match POOL.compare_exchange(ptr::null_mut(), new, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => new,
            // Another thread was first; a pool of one thread has nothing to give back.
            Err(first) => first,
        };
    }
    // SAFETY: it was made above, and is never freed.
    unsafe { &*pool }.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What there is stays as it is; the next who asks for it makes a new one.
pub(crate) fn forget() {
    POOL.store(ptr::null_mut(), Ordering::Release);
}
