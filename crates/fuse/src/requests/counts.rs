//! How many requests there were.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::Relaxed},
};

use floe_fuse_wire::Opcode;
use floe_image::Error;

/// A kind of request that the kernel makes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[expect(missing_docs, reason = "they are the requests of FUSE, and named as there")]
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

/// Why a request got an error that is not the answer to what it asks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FaultKind {
    /// The source could not be read.
    Source,
    /// The image breaks a rule of its format.
    Corrupt,
    /// The image uses what this reader does not know.
    Unsupported,
    /// There was no memory.
    NoMemory,
    /// Anything else: a panic, a wrong kind of inode.
    Other,
    /// Its deadline passed.
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

    /// The kind that an opcode is counted as; none where it is not counted.
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

    /// The name in tables.
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

    /// The name in tables.
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

/// How many requests there were of each kind, and how many of them failed. Clones count together.
#[derive(Clone, Debug, Default)]
pub struct RequestCounts {
    counts: Arc<Counts>,
}

#[derive(Debug, Default)]
struct Counts {
    requests: [AtomicU64; RequestKind::ALL.len()],
    faults: [AtomicU64; FaultKind::ALL.len()],
}

impl RequestCounts {
    /// How many requests of a kind came.
    pub fn of(&self, kind: RequestKind) -> u64 {
        self.counts.requests[kind as usize].load(Relaxed)
    }

    /// How many requests failed for a reason.
    pub fn faults_of(&self, kind: FaultKind) -> u64 {
        self.counts.faults[kind as usize].load(Relaxed)
    }

    pub(crate) fn note(&self, kind: RequestKind) {
        self.counts.requests[kind as usize].fetch_add(1, Relaxed);
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
