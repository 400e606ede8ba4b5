//! Prints faults of a mounted image, each once.

use std::{
    collections::HashSet,
    sync::{Arc, Mutex, PoisonError},
};

use floe_fuse::FaultSink;

/// After this many different faults, no more are printed: a broken image may have as many as inodes.
const FAULTS_MAX: usize = 64;

/// A sink that prints each fault on stderr, the first time it happens.
pub(crate) fn to_stderr() -> FaultSink {
    let told: Mutex<HashSet<String>> = Mutex::new(HashSet::new());
    Arc::new(move |error| {
        let mut told = told.lock().unwrap_or_else(PoisonError::into_inner);
        if told.len() < FAULTS_MAX && told.insert(error.to_string()) {
            eprintln!("floe: {error}");
            if told.len() == FAULTS_MAX {
                eprintln!("floe: this was the {FAULTS_MAX}th kind of error; further errors are not shown");
            }
        }
    })
}
