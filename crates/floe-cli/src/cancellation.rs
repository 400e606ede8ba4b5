//! Work that a signal ends.

use std::{
    sync::{Arc, atomic::AtomicBool},
    thread,
    time::Duration,
};

use signal_hook::{
    consts::{SIGABRT, SIGINT, SIGTERM},
    flag,
    iterator::Signals,
};

use crate::{ending_signals::heeded, exit::Exit, fail::Fail};

/// A flag that SIGINT and SIGTERM set, unless they are ignored. A second signal ends the program at once.
///
/// # Errors
/// Signals cannot be watched for.
pub(crate) fn on_signals() -> Result<Arc<AtomicBool>, Fail> {
    let cancel = Arc::new(AtomicBool::new(false));
    for signal in heeded(&[SIGINT, SIGTERM]) {
        let code = Exit::Interrupted.code().into();
        let armed = flag::register_conditional_shutdown(signal, code, Arc::clone(&cancel))
            .and_then(|_| flag::register(signal, Arc::clone(&cancel)));
        armed.map_err(|error| Fail::failed(format!("cannot watch for signals: {error}")))?;
    }
    Ok(cancel)
}

/// Ends the program with `code` where it would abort: memory that is refused then ends it like any other failure, after
/// the one line that the standard library writes. A core dump would tell nobody more.
///
/// # Errors
/// Signals cannot be watched for.
pub(crate) fn exit_on_abort(code: u8) -> Result<(), Fail> {
    let armed = flag::register_conditional_shutdown(SIGABRT, code.into(), Arc::new(AtomicBool::new(true)));
    armed.map(drop).map_err(|error| Fail::failed(format!("cannot watch for signals: {error}")))
}

/// Ends the program some time after a signal, if it has not ended by then: a codec that works on a large block, or a read
/// of a pipe, looks at no flag. `cleanup` is called before, and gives what is said.
///
/// # Errors
/// Signals cannot be watched for, or there can be no thread.
pub(crate) fn end_after_signal(
    patience: Duration,
    cleanup: impl FnOnce() -> String + Send + 'static,
) -> Result<(), Fail> {
    let failed = |error: std::io::Error| Fail::failed(format!("cannot watch for signals: {error}"));
    let mut signals = Signals::new(heeded(&[SIGINT, SIGTERM])).map_err(failed)?;
    let watch = move || {
        if signals.forever().next().is_some() {
            thread::sleep(patience);
            eprintln!("floe: {}", cleanup());
            std::process::exit(Exit::Interrupted.code().into());
        }
    };
    thread::Builder::new().name("floe-signals".into()).spawn(watch).map(drop).map_err(failed)
}
