//! The locks of the engine's shared structures or, with the feature `shuttle`, those of a scheduler that tries many
//! interleavings of threads.

#[cfg(not(feature = "shuttle"))]
pub(crate) use floe_sync::{Condvar, Mutex, MutexGuard};

#[cfg(feature = "shuttle")]
pub(crate) use self::scheduled::{Condvar, Mutex, MutexGuard};

#[cfg(feature = "shuttle")]
mod scheduled {
    use std::sync::PoisonError;

    pub(crate) use shuttle::sync::MutexGuard;

    #[derive(Debug, Default)]
    pub(crate) struct Mutex<T>(shuttle::sync::Mutex<T>);

    impl<T> Mutex<T> {
        pub(crate) fn new(value: T) -> Self {
            Self(shuttle::sync::Mutex::new(value))
        }

        pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
            self.0.lock().unwrap_or_else(PoisonError::into_inner)
        }
    }

    #[derive(Debug, Default)]
    pub(crate) struct Condvar(shuttle::sync::Condvar);

    impl Condvar {
        pub(crate) fn new() -> Self {
            Self(shuttle::sync::Condvar::new())
        }

        pub(crate) fn wait<'mutex, T>(&self, guard: MutexGuard<'mutex, T>) -> MutexGuard<'mutex, T> {
            self.0.wait(guard).unwrap_or_else(PoisonError::into_inner)
        }

        pub(crate) fn notify_one(&self) {
            self.0.notify_one();
        }

        pub(crate) fn notify_all(&self) {
            self.0.notify_all();
        }
    }
}
