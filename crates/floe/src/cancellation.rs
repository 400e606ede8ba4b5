//! Work that a signal ends.

use std::{
    sync::{Arc, atomic::AtomicBool},
    thread,
    time::Duration,
};

use signal_hook::{
    consts::{SIGINT, SIGTERM},
    flag,
    iterator::Signals,
};

use crate::{exit::Exit, fail::Fail};

/// A flag that SIGINT and SIGTERM set. A second signal ends the program at once.
///
/// # Errors
/// Signals cannot be watched for.
pub(crate) fn on_signals() -> Result<Arc<AtomicBool>, Fail> {
    let cancel = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        let code = Exit::Interrupted.code().into();
        let armed = flag::register_conditional_shutdown(signal, code, Arc::clone(&cancel))
            .and_then(|_| flag::register(signal, Arc::clone(&cancel)));
        armed.map_err(|error| Fail::failed(format!("cannot watch for signals: {error}")))?;
    }
    Ok(cancel)
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
    let mut signals = Signals::new([SIGINT, SIGTERM]).map_err(failed)?;
    let watch = move || {
        if signals.forever().next().is_some() {
            thread::sleep(patience);
            eprintln!("floe: {}", cleanup());
            std::process::exit(Exit::Interrupted.code().into());
        }
    };
    thread::Builder::new().name("floe-signals".into()).spawn(watch).map(drop).map_err(failed)
}
