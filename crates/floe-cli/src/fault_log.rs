//! What goes wrong while an image is mounted, told once.

use std::{
    collections::HashSet,
    sync::{Arc, Mutex, PoisonError},
};

use floe_fuse::FaultSink;

/// After so many different faults nothing more is told: a broken image has as many as it has inodes.
const FAULTS_MAX: usize = 64;

/// A sink that prints each fault on stderr, the first time it happens.
pub(crate) fn to_stderr() -> FaultSink {
    let told: Mutex<HashSet<String>> = Mutex::new(HashSet::new());
    Arc::new(move |error| {
        let mut told = told.lock().unwrap_or_else(PoisonError::into_inner);
        if told.len() < FAULTS_MAX && told.insert(error.to_string()) {
            eprintln!("floe: {error}");
            if told.len() == FAULTS_MAX {
                eprintln!("floe: that was the {FAULTS_MAX}th kind of error: no further ones are shown");
            }
        }
    })
}
