//! The message of a test that is skipped.

use std::{
    env,
    io::{self, Write},
    thread,
};

/// Prints to stderr that the calling test, or a part of it, was skipped, and why.
///
/// # Panics
/// `FLOE_NO_SKIP=1`.
pub fn skipped(reason: &str) {
    let thread = thread::current();
    let test = thread.name().unwrap_or("a test");
    assert!(env::var_os("FLOE_NO_SKIP").is_none_or(|value| value != "1"), "{test} may not be skipped, but {reason}");
    // Written to the handle, because the harness captures the output of macros. In one piece, because other threads
    // write too.
    let _ = io::stderr().write_all(format!("skipped: {test}, because {reason}\n").as_bytes());
}
