//! Errors of starting threads and processes.

use std::io;

/// An error of starting a thread or a process, with the limits that the error number EAGAIN is about. Its own text is
/// "Resource temporarily unavailable".
pub fn start_error(error: io::Error) -> io::Error {
    match error.kind() {
        io::ErrorKind::WouldBlock => io::Error::new(
            io::ErrorKind::WouldBlock,
            "too many threads and processes (ulimit -u), or too little memory (ulimit -v)",
        ),
        _ => error,
    }
}
