//! The locks of the engine's shared structures: those of the standard library or, with the feature `shuttle`, those of
//! a scheduler that tries many interleavings of threads.

#[cfg(not(feature = "shuttle"))]
pub(crate) use std::sync::{Condvar, Mutex, MutexGuard};

#[cfg(feature = "shuttle")]
pub(crate) use shuttle::sync::{Condvar, Mutex, MutexGuard};
