//! Whether standard output was closed when the program started.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use rustix::{
    io::{Errno, fcntl_getfd},
    stdio::stdout,
};

static WAS_CLOSED: AtomicBool = AtomicBool::new(false);

/// Whether the program was started with standard output closed, as by `>&-`. Before `main` runs, the standard library
/// opens `/dev/null` as standard output, so writes do not fail.
pub fn standard_output_was_closed() -> bool {
    WAS_CLOSED.load(Relaxed)
}

extern "C" fn look() {
    WAS_CLOSED.store(fcntl_getfd(stdout()) == Err(Errno::BADF), Relaxed);
}

// SAFETY: the loader calls the functions in this section once, before `main`. `look` ignores its arguments and uses
// nothing that the standard library initialises: one system call and one static.
#[used]
#[unsafe(link_section = ".init_array")]
static LOOK: extern "C" fn() = look;
