//! Whether the program was started without a standard output.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use rustix::{
    io::{Errno, fcntl_getfd},
    stdio::stdout,
};

static WAS_CLOSED: AtomicBool = AtomicBool::new(false);

/// Whether the program was started with standard output closed, as by `>&-`. Before `main` runs, the standard library opens
/// `/dev/null` in its place, so that nothing written is an error any more.
pub fn standard_output_was_closed() -> bool {
    WAS_CLOSED.load(Relaxed)
}

extern "C" fn look() {
    WAS_CLOSED.store(fcntl_getfd(stdout()) == Err(Errno::BADF), Relaxed);
}

// SAFETY: the loader calls the functions in this section once, before `main`, with arguments that `look` ignores. It uses
// nothing that the standard library sets up: a system call and a static.
#[used]
#[unsafe(link_section = ".init_array")]
static LOOK: extern "C" fn() = look;
