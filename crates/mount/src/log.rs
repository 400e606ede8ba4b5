//! The log of a mount: remarks to the caller, or systemd's journal, by its native protocol
//! (systemd.io/JOURNAL_NATIVE_PROTOCOL).
//!
//! Existing crates send each message to the address of the journal's socket, which the sandbox forbids. This module connects
//! once, before the process confines itself; the keeper forwards the messages of a confined process.

use std::{
    collections::HashSet,
    env, fmt,
    fs::File,
    io,
    os::{
        fd::{AsFd, OwnedFd},
        unix::{fs::MetadataExt, net::UnixDatagram},
    },
    path::Path,
    sync::Arc,
};

use floe::Error;
use floe_fuse::FaultSink;
use floe_image::ShownName;
use floe_keeper::Relay;
use floe_sync::Mutex;
use rustix::{
    net::{SendFlags, send},
    process::Pid,
};

/// The number of different faults that are logged: a broken image may have one for each inode.
const FAULTS_MAX: usize = 64;

/// Receives messages for the user, each one line: the mount works, but not quite as requested.
pub type Remarks = Arc<dyn Fn(&str) + Send + Sync>;

/// The log of a mount while it is served.
///
/// A mount whose standard error is the journal writes entries with fields there, as does one in the background, whose
/// standard error is closed once it works. Others make remarks to the caller.
pub(crate) struct MountLog {
    journal: Option<Journal>,
    image: String,
    mountpoint: String,
    remarks: Remarks,
}

impl MountLog {
    /// Opens the log of a mount.
    pub(crate) fn open(image: &Path, mountpoint: &Path, is_background: bool, remarks: Remarks) -> Self {
        let to_journal = is_background || has(&io::stderr());
        let journal = to_journal.then(Journal::connect).and_then(Result::ok);
        Self { journal, image: image.shown().to_string(), mountpoint: mountpoint.shown().to_string(), remarks }
    }

    /// The log of a mount of the service, all of whose messages are remarks.
    pub(crate) fn of_remarks(image: &Path, mountpoint: &Path, remarks: Remarks) -> Self {
        Self { journal: None, image: image.shown().to_string(), mountpoint: mountpoint.shown().to_string(), remarks }
    }

    /// Lets the keeper send the messages to the journal. Returns the relay for it, if there is a journal.
    pub(crate) fn relay(&mut self) -> Option<Relay> {
        let (journal, relay) = self.journal.take()?.relayed()?;
        self.journal = Some(journal);
        Some(relay)
    }

    /// Whether standard output is the journal, which would repeat logged lines.
    pub(crate) fn has_standard_output(&self) -> bool {
        self.journal.is_some() && has(&io::stdout())
    }

    /// Tells the user that something is not quite as requested.
    pub(crate) fn remark(&self, message: fmt::Arguments<'_>) {
        (self.remarks)(&message.to_string());
    }

    /// Logs an event of normal operation; only the journal has these.
    pub(crate) fn event(&self, message: &str) {
        if let Some(journal) = &self.journal {
            journal.send(Priority::Info, message, &self.fields());
        }
    }

    /// Logs an error.
    pub(crate) fn error(&self, message: &str) {
        self.write(message, &self.fields());
    }

    /// A sink that logs each fault of the image the first time that it happens.
    pub(crate) fn faults(self: &Arc<Self>) -> FaultSink {
        let logged: Mutex<HashSet<String>> = Mutex::new(HashSet::new());
        let log = Arc::clone(self);
        Arc::new(move |error| {
            let mut logged = logged.lock();
            if logged.len() < FAULTS_MAX && logged.insert(error.to_string()) {
                log.fault(error);
                if logged.len() == FAULTS_MAX {
                    log.error(&format!("{FAULTS_MAX} different faults are logged; further ones will not be"));
                }
            }
        })
    }

    fn fault(&self, error: &Error) {
        let (kind, rule, place) = match error {
            Error::Io { place, .. } => ("io", None, Some(place)),
            Error::Corrupt { rule, place } => ("corrupt", Some(*rule), Some(place)),
            Error::Unsupported { .. } => ("unsupported", None, None),
            Error::NoMemory => ("no-memory", None, None),
            _ => ("other", None, None),
        };
        let nid = place.and_then(|place| place.nid).map(|nid| nid.to_string());
        let offset = place.and_then(|place| place.offset).map(|offset| offset.to_string());
        let known = [("FLOE_RULE", rule), ("FLOE_NID", nid.as_deref()), ("FLOE_OFFSET", offset.as_deref())];
        let mut fields = self.fields().to_vec();
        fields.push(("FLOE_FAULT", kind));
        fields.extend(known.into_iter().filter_map(|(name, value)| Some((name, value?))));
        self.write(&error.to_string(), &fields);
    }

    fn write(&self, message: &str, fields: &[(&str, &str)]) {
        match &self.journal {
            Some(journal) => journal.send(Priority::Error, message, fields),
            None => (self.remarks)(message),
        }
    }

    fn fields(&self) -> [(&str, &str); 2] {
        [("FLOE_IMAGE", &self.image), ("FLOE_MOUNTPOINT", &self.mountpoint)]
    }
}

/// The socket of the journal.
const SOCKET: &str = "/run/systemd/journal/socket";

/// The name of the program in the entries.
const IDENTIFIER: &str = "floe";

/// The severity of a message, as syslog(3) has them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Priority {
    Error = 3,
    Info = 6,
}

impl Priority {
    const ALL: [Self; 2] = [Self::Error, Self::Info];

    /// Its number as text.
    fn level(self) -> String {
        (self as u8).to_string()
    }
}

/// A connection to the journal.
#[derive(Debug)]
struct Journal {
    socket: OwnedFd,
}

impl Journal {
    /// Connects.
    ///
    /// # Errors
    /// This machine has no journal.
    fn connect() -> io::Result<Self> {
        let socket = UnixDatagram::unbound()?;
        socket.connect(SOCKET)?;
        // A journal that does not take messages must not block the keeper, which shares this setting.
        socket.set_nonblocking(true)?;
        Ok(Self { socket: socket.into() })
    }

    /// Puts a relay between this connection and the journal. Without descriptors for it, there is no connection any more.
    fn relayed(self) -> Option<(Self, Relay)> {
        let (socket, relay) = Relay::new(self.socket, permits).ok()?;
        Some((Self { socket }, relay))
    }

    /// Writes an entry. If the journal does not accept it, it is lost.
    fn send(&self, priority: Priority, message: &str, fields: &[(&str, &str)]) {
        let level = priority.level();
        let always = [("MESSAGE", message), ("PRIORITY", &level), ("SYSLOG_IDENTIFIER", IDENTIFIER)];
        let mut entry = Vec::new();
        for (name, value) in always.iter().chain(fields) {
            add_field(&mut entry, name, value);
        }
        // A journal that does not take messages must not block a mount.
        let _ = send(&self.socket, &entry, SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
    }
}

/// Whether an output of this process goes to the journal: `JOURNAL_STREAM` has its device and inode numbers.
fn has(output: &impl AsFd) -> bool {
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

/// Whether a confined process may send this: an entry as [`Journal::send`] makes it.
fn permits(entry: &[u8], descriptors: usize, _sender: Pid) -> bool {
    let is_permitted = |(name, value): (&[u8], &[u8])| match name {
        b"MESSAGE" => true,
        b"PRIORITY" => Priority::ALL.iter().any(|priority| priority.level().as_bytes() == value),
        b"SYSLOG_IDENTIFIER" => value == IDENTIFIER.as_bytes(),
        name => name.starts_with(b"FLOE_"),
    };
    descriptors == 0 && fields(entry).is_some_and(|fields| fields.into_iter().all(is_permitted))
}

/// The names and values of the fields of an entry; `None` if it is none.
fn fields(mut entry: &[u8]) -> Option<Vec<(&[u8], &[u8])>> {
    let mut fields = Vec::new();
    while !entry.is_empty() {
        let end = entry.iter().position(|byte| matches!(byte, b'=' | b'\n'))?;
        let (name, rest) = (&entry[..end], &entry[end + 1..]);
        let (value, rest) = if entry[end] == b'=' {
            rest.split_at_checked(rest.iter().position(|byte| *byte == b'\n')?)?
        } else {
            let (len, rest) = rest.split_first_chunk()?;
            rest.split_at_checked(usize::try_from(u64::from_le_bytes(*len)).ok()?)?
        };
        fields.push((name, value));
        entry = rest.strip_prefix(b"\n")?;
    }
    Some(fields)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_confined_process_sends_only_entries_of_its_own() {
        let mut usual = Vec::new();
        for (name, value) in [("MESSAGE", "a\nb"), ("PRIORITY", "3"), ("SYSLOG_IDENTIFIER", "floe"), ("FLOE_NID", "1")]
        {
            add_field(&mut usual, name, value);
        }
        let with = |field: &[u8]| [&usual, field].concat();
        for (entry, descriptors, expected) in [
            (usual.clone(), 0, true),
            (with(b"FLOE_IMAGE=\n"), 0, true),
            (usual.clone(), 1, false),
            (with(b"PRIORITY=0\n"), 0, false),
            (with(b"PRIORITY\n\x01\0\0\0\0\0\0\x000\n"), 0, false),
            (with(b"SYSLOG_IDENTIFIER=sshd\n"), 0, false),
            (with(b"OBJECT_PID=1\n"), 0, false),
            (with(b"MESSAGE\n\x09\0\0\0\0\0\0\0a\n"), 0, false),
            (with(b"MESSAGE\n\xff\xff\xff\xff\xff\xff\xff\xffa\n"), 0, false),
            (with(b"MESSAGE=a"), 0, false),
            (with(b"MESSAGE\n"), 0, false),
        ] {
            let text = String::from_utf8_lossy(&entry).into_owned();
            assert_eq!(permits(&entry, descriptors, rustix::process::getpid()), expected, "{text} {descriptors}");
        }
    }

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
