//! Cancellation of work by signals, and which signals end the program.

use std::{
    fs, io,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread,
    time::Duration,
};

use floe::remote::RemoteProcess;
use floe_image::start_error;
use signal_hook::{
    consts::{SIGABRT, SIGHUP, SIGINT, SIGTERM},
    flag,
    iterator::Signals,
};

use crate::fail::{Exit, Fail};

/// The signals that end a program in an orderly way.
const ENDING: &[i32] = &[SIGHUP, SIGINT, SIGTERM];

/// How long reads of a remote image may continue after a signal, and the interval of checks of the flag.
const REMOTE_PATIENCE: Duration = Duration::from_secs(1);
const FLAG_INTERVAL: Duration = Duration::from_millis(100);

/// Returns a flag that SIGHUP, SIGINT and SIGTERM set, unless they are ignored. A second signal ends the program at once.
///
/// # Errors
/// Signal handlers cannot be installed.
pub(crate) fn on_signals() -> Result<Arc<AtomicBool>, Fail> {
    let cancel = Arc::new(AtomicBool::new(false));
    for signal in unless_ignored(ENDING) {
        let code = Exit::Interrupted.code().into();
        let armed = flag::register_conditional_shutdown(signal, code, Arc::clone(&cancel))
            .and_then(|_| flag::register(signal, Arc::clone(&cancel)));
        armed.map_err(|error| Fail::failed(format!("cannot install signal handlers: {error}")))?;
    }
    Ok(cancel)
}

/// Makes an abort end the program with `code` instead of SIGABRT. A refused allocation then ends the program like any
/// other failure, after the one line that the standard library writes. A core dump would add nothing.
///
/// # Errors
/// Signal handlers cannot be installed.
pub(crate) fn exit_on_abort(code: u8) -> Result<(), Fail> {
    let armed = flag::register_conditional_shutdown(SIGABRT, code.into(), Arc::new(AtomicBool::new(true)));
    armed.map(drop).map_err(|error| Fail::failed(format!("cannot install signal handlers: {error}")))
}

/// Ends the program some time after a signal if it is still running, because a codec that decodes a large block, or a
/// read of a pipe, does not check the flag. Calls `cleanup` first, which returns the message to print; `None` means that the
/// work is done, and the program ends by itself.
///
/// # Errors
/// Signal handlers cannot be installed, or no thread can be started.
pub(crate) fn end_after_signal(
    patience: Duration,
    cleanup: impl FnOnce() -> Option<String> + Send + 'static,
) -> Result<(), Fail> {
    let failed = |error: io::Error| Fail::failed(format!("cannot install signal handlers: {error}"));
    let mut signals = Signals::new(unless_ignored(ENDING)).map_err(failed)?;
    let watch = move || {
        if signals.forever().next().is_some() {
            thread::sleep(patience);
            if let Some(message) = cleanup() {
                say!("floe: {message}");
                std::process::exit(Exit::Interrupted.code().into());
            }
        }
    };
    thread::Builder::new().name("floe-signals".into()).spawn(watch).map(drop).map_err(not_started)
}

/// Ends the process that fetches a remote image soon after the flag is set: its reads may wait long for a server that cannot be
/// reached. They fail then, and the program looks at the flag. A confined process may do this.
///
/// # Errors
/// No thread can be started.
pub(crate) fn end_fetching_after(cancel: Arc<AtomicBool>, remote: Arc<RemoteProcess>) -> Result<(), Fail> {
    let watch = move || {
        while !cancel.load(Relaxed) {
            thread::sleep(FLAG_INTERVAL);
        }
        thread::sleep(REMOTE_PATIENCE);
        remote.end();
    };
    thread::Builder::new().name("floe-cancel".into()).spawn(watch).map(drop).map_err(not_started)
}

fn not_started(error: io::Error) -> Fail {
    Fail::failed(format!("cannot start a thread: {}", start_error(error)))
}

/// Returns those of `signals` that the program handles: all that were not ignored when it started. nohup ignores
/// SIGHUP, and a shell without job control ignores SIGINT for background programs. Ignored signals stay ignored.
pub(crate) fn unless_ignored(signals: &[i32]) -> Vec<i32> {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = ignored(&status);
    signals.iter().copied().filter(|signal| ignored & (1 << (signal - 1)) == 0).collect()
}

/// The set of ignored signals in the text of `/proc/self/status`; the lowest bit is signal 1.
fn ignored(status: &str) -> u64 {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mask_is_found() {
        for (status, expected) in
            [("Name:\tfloe\nSigIgn:\t0000000000001003\nSigCgt:\t0\n", 0x1003), ("Name:\tSigIgn: 1\n", 0), ("", 0)]
        {
            assert_eq!(ignored(status), expected, "{status}");
        }
    }
}
