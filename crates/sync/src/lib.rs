//! Locks that ignore poisoning.
//!
//! A lock of the standard library is poisoned by a thread that panics while it holds the lock, and each later use has to say
//! what follows. In Floe, a panic ends one request or one task, and what a lock guards is consistent wherever its holder can
//! panic. [`Mutex`], [`RwLock`] and [`Condvar`] are the locks of the standard library without that question, with the methods
//! that Floe uses and the same guards. [`Turns`] are locks by key.
#![forbid(unsafe_code)]

mod turns;

use std::{
    sync::{self, PoisonError, TryLockError},
    time::Duration,
};

pub use std::sync::{MutexGuard, RwLockReadGuard, RwLockWriteGuard, WaitTimeoutResult};

pub use turns::{Turn, Turns};

/// [`std::sync::Mutex`] without poisoning.
#[derive(Debug, Default)]
pub struct Mutex<T: ?Sized>(sync::Mutex<T>);

impl<T> Mutex<T> {
    /// Creates a mutex.
    pub const fn new(value: T) -> Self {
        Self(sync::Mutex::new(value))
    }

    /// Returns the value.
    pub fn into_inner(self) -> T {
        self.0.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T: ?Sized> Mutex<T> {
    /// Locks the mutex, and waits for that if necessary.
    #[inline]
    pub fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks the mutex if no thread holds it.
    #[inline]
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        match self.0.try_lock() {
            Ok(guard) => Some(guard),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// The value, which no other thread can use.
    pub fn get_mut(&mut self) -> &mut T {
        self.0.get_mut().unwrap_or_else(PoisonError::into_inner)
    }
}

/// [`std::sync::RwLock`] without poisoning.
#[derive(Debug, Default)]
pub struct RwLock<T: ?Sized>(sync::RwLock<T>);

impl<T> RwLock<T> {
    /// Creates a lock.
    pub const fn new(value: T) -> Self {
        Self(sync::RwLock::new(value))
    }
}

impl<T: ?Sized> RwLock<T> {
    /// Locks for reading, and waits for that if necessary.
    #[inline]
    pub fn read(&self) -> RwLockReadGuard<'_, T> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks for writing, and waits for that if necessary.
    #[inline]
    pub fn write(&self) -> RwLockWriteGuard<'_, T> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }
}

/// [`std::sync::Condvar`] for a [`Mutex`]. The methods that wait take and return the guard; those with a `time` also return
/// whether it has passed.
#[derive(Debug, Default)]
pub struct Condvar(sync::Condvar);

impl Condvar {
    /// Creates a condition variable.
    pub const fn new() -> Self {
        Self(sync::Condvar::new())
    }

    /// Wakes one of the threads that wait.
    pub fn notify_one(&self) {
        self.0.notify_one();
    }

    /// Wakes all threads that wait.
    pub fn notify_all(&self) {
        self.0.notify_all();
    }

    /// Waits until the thread is woken, which can happen for no reason.
    pub fn wait<'mutex, T>(&self, guard: MutexGuard<'mutex, T>) -> MutexGuard<'mutex, T> {
        self.0.wait(guard).unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits while `condition` is true.
    pub fn wait_while<'mutex, T>(
        &self,
        guard: MutexGuard<'mutex, T>,
        condition: impl FnMut(&mut T) -> bool,
    ) -> MutexGuard<'mutex, T> {
        self.0.wait_while(guard, condition).unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until the thread is woken, at most for `time`.
    pub fn wait_timeout<'mutex, T>(
        &self,
        guard: MutexGuard<'mutex, T>,
        time: Duration,
    ) -> (MutexGuard<'mutex, T>, WaitTimeoutResult) {
        self.0.wait_timeout(guard, time).unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits while `condition` is true, at most for `time`.
    pub fn wait_timeout_while<'mutex, T>(
        &self,
        guard: MutexGuard<'mutex, T>,
        time: Duration,
        condition: impl FnMut(&mut T) -> bool,
    ) -> (MutexGuard<'mutex, T>, WaitTimeoutResult) {
        self.0.wait_timeout_while(guard, time, condition).unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::{
        panic::{AssertUnwindSafe, catch_unwind},
        thread,
    };

    use super::*;

    #[test]
    fn a_panic_does_not_poison() {
        let mut mutex = Mutex::new(1);
        let lock = RwLock::new(1);
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            let _guards = (mutex.lock(), lock.write());
            panic!("while the locks are held");
        }));
        assert!(panicked.is_err());
        *mutex.lock() += 1;
        *lock.write() += 1;
        assert_eq!((*mutex.lock(), *lock.read()), (2, 2));
        assert_eq!(*mutex.get_mut(), 2);
        assert_eq!(mutex.try_lock().map(|value| *value), Some(2));
        assert_eq!(mutex.into_inner(), 2);
    }

    #[test]
    fn waits_end_with_the_condition_or_the_time() {
        let (mutex, changed) = (Mutex::new(false), Condvar::new());
        let (guard, result) = changed.wait_timeout_while(mutex.lock(), Duration::from_millis(1), |is_set| !*is_set);
        assert!(result.timed_out() && !*guard && mutex.try_lock().is_none());
        drop(guard);
        thread::scope(|scope| {
            scope.spawn(|| {
                *mutex.lock() = true;
                changed.notify_all();
            });
            assert!(*changed.wait_while(mutex.lock(), |is_set| !*is_set));
        });
    }
}
