//! The result of one mutated image.

use serde::{Deserialize, Serialize};

use super::recipe::Recipe;

/// The result of one mutated image.
#[derive(Clone, Default, Debug, Serialize, Deserialize)]
pub(super) struct Verdict {
    /// Its number.
    pub(super) index: u64,
    pub(super) seed: String,
    /// The kinds of its changes.
    pub(super) kinds: Vec<String>,
    pub(super) is_open: bool,
    /// Whether `check` found no error; `None` if it was not run.
    pub(super) is_sound: Option<bool>,
    /// Whether everything was visited.
    pub(super) is_whole: bool,
    /// Whether it was extracted.
    pub(super) is_extracted: bool,
    /// Whether it ran through the program and a mount.
    pub(super) is_mounted: bool,
    /// The rules of read errors.
    pub(super) errors: Vec<String>,
    /// The rules that `check` reported.
    pub(super) found: Vec<String>,
    /// The peak resident memory in bytes.
    pub(super) resident_bytes_max: u64,
    /// The CPU time of the library in milliseconds.
    pub(super) cpu_ms: u64,
    /// The faults.
    pub(super) faults: Vec<Fault>,
}

/// Behaviour that no image may cause.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct Fault {
    pub(super) kind: FaultKind,
    /// The description.
    pub(super) message: String,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum FaultKind {
    /// A panic.
    Panic,
    /// The process exited unexpectedly.
    Crash,
    /// A time limit was exceeded.
    Hang,
    /// The memory limit was exceeded.
    Memory,
    /// `check` found no error, but reading fails.
    Unsound,
    /// Two ways of reading disagree.
    Differs,
    /// A message is malformed.
    Message,
}

/// A recipe and its result.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Case {
    pub(super) recipe: Recipe,
    pub(super) verdict: Verdict,
}

impl Fault {
    pub(super) fn new(kind: FaultKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into() }
    }

    /// The common part of faults with the same cause.
    pub(super) fn signature(&self) -> String {
        const LEN_MAX: usize = 160;
        let words = match self.kind {
            FaultKind::Hang | FaultKind::Memory | FaultKind::Crash => "",
            _ => self.message.lines().next().unwrap_or_default(),
        };
        let without_places = words.split(" (").next().unwrap_or_default();
        let words = without_places.chars().filter(|letter| !letter.is_ascii_digit()).take(LEN_MAX);
        format!("{:?}: {}", self.kind, words.collect::<String>())
    }
}
