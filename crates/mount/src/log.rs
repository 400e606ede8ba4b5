//! The log of a mount: remarks to the caller, or systemd's journal.

use std::{collections::HashSet, fmt, io, path::Path, sync::Arc};

use floe::Error;
use floe_fuse::FaultSink;
use floe_image::ShownName;
use floe_keeper::Relay;
use floe_sync::Mutex;

use crate::journal::{self, Journal, Priority};

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
        let to_journal = is_background || journal::has(&io::stderr());
        let journal = to_journal.then(Journal::connect).and_then(Result::ok);
        Self { journal, image: image.shown().to_string(), mountpoint: mountpoint.shown().to_string(), remarks }
    }

    /// Lets the keeper send the messages to the journal. Returns the relay for it, if there is a journal.
    pub(crate) fn relay(&mut self) -> Option<Relay> {
        let (journal, relay) = self.journal.take()?.relayed()?;
        self.journal = Some(journal);
        Some(relay)
    }

    /// Whether standard output is the journal, which would repeat logged lines.
    pub(crate) fn has_standard_output(&self) -> bool {
        self.journal.is_some() && journal::has(&io::stdout())
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
