//! The locks that the engine's shared structures use: the standard library's, or, with the feature `shuttle`, those of a
//! scheduler that tries many orders of their threads.

#[cfg(not(feature = "shuttle"))]
pub(crate) use std::sync::{Condvar, Mutex, MutexGuard};

#[cfg(feature = "shuttle")]
pub(crate) use shuttle::sync::{Condvar, Mutex, MutexGuard};
