//! systemd's journal, by its native protocol (systemd.io/JOURNAL_NATIVE_PROTOCOL).
//!
//! Existing crates send each message to the address of the journal's socket, which the sandbox forbids. This module
//! connects once, before the process confines itself; the keeper forwards the messages of a confined process.

use std::{
    env,
    fs::File,
    io,
    os::{
        fd::{AsFd, OwnedFd},
        unix::{fs::MetadataExt, net::UnixDatagram},
    },
};

use floe_fuse::Relay;
use rustix::net::{SendFlags, send};

/// The socket of the journal.
const SOCKET: &str = "/run/systemd/journal/socket";

/// The severity of a message, as syslog(3) has them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Priority {
    Error = 3,
    Info = 6,
}

/// A connection to the journal.
#[derive(Debug)]
pub(crate) struct Journal {
    socket: OwnedFd,
}

impl Journal {
    /// Connects.
    ///
    /// # Errors
    /// This machine has no journal.
    pub(crate) fn connect() -> io::Result<Self> {
        let socket = UnixDatagram::unbound()?;
        socket.connect(SOCKET)?;
        // A journal that does not take messages must not block the keeper, which shares this setting.
        socket.set_nonblocking(true)?;
        Ok(Self { socket: socket.into() })
    }

    /// Puts a relay between this connection and the journal. Without descriptors for it, there is no connection any more.
    pub(crate) fn relayed(self) -> Option<(Self, Relay)> {
        let (socket, relay) = Relay::new(self.socket).ok()?;
        Some((Self { socket }, relay))
    }

    /// Writes an entry. If the journal does not accept it, it is lost.
    pub(crate) fn send(&self, priority: Priority, message: &str, fields: &[(&str, &str)]) {
        let level = (priority as u8).to_string();
        let always = [("MESSAGE", message), ("PRIORITY", &level), ("SYSLOG_IDENTIFIER", "floe")];
        let mut entry = Vec::new();
        for (name, value) in always.iter().chain(fields) {
            add_field(&mut entry, name, value);
        }
        // A journal that does not take messages must not block a mount.
        let _ = send(&self.socket, &entry, SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
    }
}

/// Whether an output of this process goes to the journal: `JOURNAL_STREAM` has its device and inode numbers.
pub(crate) fn has(output: &impl AsFd) -> bool {
    let Some(stream) = env::var("JOURNAL_STREAM").ok() else { return false };
    let metadata = output.as_fd().try_clone_to_owned().map(File::from).and_then(|output| output.metadata());
    metadata.is_ok_and(|metadata| stream == format!("{}:{}", metadata.dev(), metadata.ino()))
}

/// Adds a field: in a line of its own, or with its length if the value has several lines.
fn add_field(entry: &mut Vec<u8>, name: &str, value: &str) {
    entry.extend_from_slice(name.as_bytes());
    if value.contains('\n') {
        entry.push(b'\n');
        entry.extend_from_slice(&(value.len() as u64).to_le_bytes());
    } else {
        entry.push(b'=');
    }
    entry.extend_from_slice(value.as_bytes());
    entry.push(b'\n');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_encoded_as_the_journal_reads_them() {
        for (value, expected) in
            [("text", &b"NAME=text\n"[..]), ("", b"NAME=\n"), ("a\nb", b"NAME\n\x03\0\0\0\0\0\0\0a\nb\n")]
        {
            let mut entry = Vec::new();
            add_field(&mut entry, "NAME", value);
            assert_eq!(entry, expected, "{value:?}");
        }
    }
}
