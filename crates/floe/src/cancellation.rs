//! Work that a signal ends.

use std::sync::{Arc, atomic::AtomicBool};

use signal_hook::{
    consts::{SIGINT, SIGTERM},
    flag,
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
