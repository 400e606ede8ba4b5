//! Counters of requests.

use std::sync::{
    Arc,
    atomic::{AtomicU32, AtomicU64, Ordering::Relaxed},
};

use floe_fuse_wire::Opcode;
use floe_image::Error;

/// A kind of FUSE request that is counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[expect(missing_docs, reason = "named after the requests of FUSE")]
pub enum RequestKind {
    Lookup,
    Forget,
    Getattr,
    Readlink,
    Open,
    Read,
    Opendir,
    Readdir,
    Readdirplus,
    Statfs,
    Getxattr,
    Listxattr,
    Lseek,
}

/// The cause of a failed request, other than regular negative replies such as `ENOENT`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FaultKind {
    /// The source could not be read.
    Source,
    /// The image breaks a rule of its format.
    Corrupt,
    /// The image uses a feature that this reader does not support.
    Unsupported,
    /// Memory was exhausted.
    NoMemory,
    /// Any other cause: a panic, a wrong type of inode.
    Other,
    /// The deadline of the request passed.
    Overdue,
}

impl RequestKind {
    /// All kinds.
    pub const ALL: [Self; 13] = [
        Self::Lookup,
        Self::Forget,
        Self::Getattr,
        Self::Readlink,
        Self::Open,
        Self::Read,
        Self::Opendir,
        Self::Readdir,
        Self::Readdirplus,
        Self::Statfs,
        Self::Getxattr,
        Self::Listxattr,
        Self::Lseek,
    ];

    /// The kind of request for an opcode, or `None` if it is not counted.
    pub(crate) const fn of(opcode: Opcode) -> Option<Self> {
        Some(match opcode {
            Opcode::LOOKUP => Self::Lookup,
            Opcode::FORGET | Opcode::BATCH_FORGET => Self::Forget,
            Opcode::GETATTR => Self::Getattr,
            Opcode::READLINK => Self::Readlink,
            Opcode::OPEN => Self::Open,
            Opcode::READ => Self::Read,
            Opcode::OPENDIR => Self::Opendir,
            Opcode::READDIR => Self::Readdir,
            Opcode::READDIRPLUS => Self::Readdirplus,
            Opcode::STATFS => Self::Statfs,
            Opcode::GETXATTR => Self::Getxattr,
            Opcode::LISTXATTR => Self::Listxattr,
            Opcode::LSEEK => Self::Lseek,
            _ => return None,
        })
    }

    /// The name of the kind in tables.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Lookup => "lookup",
            Self::Forget => "forget",
            Self::Getattr => "getattr",
            Self::Readlink => "readlink",
            Self::Open => "open",
            Self::Read => "read",
            Self::Opendir => "opendir",
            Self::Readdir => "readdir",
            Self::Readdirplus => "readdirplus",
            Self::Statfs => "statfs",
            Self::Getxattr => "getxattr",
            Self::Listxattr => "listxattr",
            Self::Lseek => "lseek",
        }
    }
}

impl FaultKind {
    /// All kinds.
    pub const ALL: [Self; 6] =
        [Self::Source, Self::Corrupt, Self::Unsupported, Self::NoMemory, Self::Other, Self::Overdue];

    /// The name of the kind in tables.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Source => "source",
            Self::Corrupt => "corrupt",
            Self::Unsupported => "unsupported",
            Self::NoMemory => "no_memory",
            Self::Other => "other",
            Self::Overdue => "overdue",
        }
    }
}

/// Counts requests by kind and failures by cause. Clones share their counters.
#[derive(Clone, Debug, Default)]
pub struct RequestCounts {
    counts: Arc<Counts>,
}

#[derive(Debug, Default)]
struct Counts {
    requests: [AtomicU64; RequestKind::ALL.len()],
    faults: [AtomicU64; FaultKind::ALL.len()],
    /// The id of the thread that looks up the names of a launch; 0 if there is none.
    walker: AtomicU32,
    /// The requests of that thread.
    walked: [AtomicU64; RequestKind::ALL.len()],
}

impl RequestCounts {
    /// The number of requests of a kind.
    pub fn of(&self, kind: RequestKind) -> u64 {
        self.counts.requests[kind as usize].load(Relaxed)
    }

    /// The number of all requests.
    pub fn total(&self) -> u64 {
        self.counts.requests.iter().map(|count| count.load(Relaxed)).sum()
    }

    /// The number of requests that failed from a cause.
    pub fn faults_of(&self, kind: FaultKind) -> u64 {
        self.counts.faults[kind as usize].load(Relaxed)
    }

    /// The number of requests of a kind by the thread that looks up the names of a launch.
    pub fn walked_of(&self, kind: RequestKind) -> u64 {
        self.counts.walked[kind as usize].load(Relaxed)
    }

    /// Sets the id of the thread that looks up the names of a launch. Its requests are also counted separately, and are not
    /// touches.
    pub fn set_walker(&self, thread: u32) {
        self.counts.walker.store(thread, Relaxed);
    }

    /// Whether `thread` looks up the names of a launch.
    pub(crate) fn is_walker(&self, thread: u32) -> bool {
        thread != 0 && self.counts.walker.load(Relaxed) == thread
    }

    pub(crate) fn note(&self, kind: RequestKind, caller: u32) {
        self.counts.requests[kind as usize].fetch_add(1, Relaxed);
        if self.is_walker(caller) {
            self.counts.walked[kind as usize].fetch_add(1, Relaxed);
        }
    }

    pub(crate) fn note_error(&self, error: &Error) {
        let kind = match error {
            Error::Io { .. } => FaultKind::Source,
            Error::Corrupt { .. } => FaultKind::Corrupt,
            Error::Unsupported { .. } => FaultKind::Unsupported,
            Error::NoMemory => FaultKind::NoMemory,
            _ => FaultKind::Other,
        };
        self.counts.faults[kind as usize].fetch_add(1, Relaxed);
    }

    pub(crate) fn note_overdue(&self, count: usize) {
        self.counts.faults[FaultKind::Overdue as usize].fetch_add(count as u64, Relaxed);
    }
}
