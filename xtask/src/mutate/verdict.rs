//! What came of one mutated image.

use serde::{Deserialize, Serialize};

use super::recipe::Recipe;

/// What came of one mutated image.
#[derive(Clone, Default, Debug, Serialize, Deserialize)]
pub(super) struct Verdict {
    /// Its number.
    pub(super) index: u64,
    pub(super) seed: String,
    /// What was changed.
    pub(super) kinds: Vec<String>,
    pub(super) is_open: bool,
    /// Whether `check` found no error; `None` where it was not asked.
    pub(super) is_sound: Option<bool>,
    /// Whether all of it was looked at.
    pub(super) is_whole: bool,
    /// Whether it was extracted.
    pub(super) is_extracted: bool,
    /// Whether it went through the program and a mount.
    pub(super) is_mounted: bool,
    /// The rules of the errors that reading gave.
    pub(super) errors: Vec<String>,
    /// The rules that `check` found broken.
    pub(super) found: Vec<String>,
    /// The most memory that was resident, in bytes.
    pub(super) resident_bytes_max: u64,
    /// How much time of CPUs the library took for it, in milliseconds.
    pub(super) cpu_ms: u64,
    /// What no image may cause.
    pub(super) faults: Vec<Fault>,
}

/// Something that no image may cause.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct Fault {
    pub(super) kind: FaultKind,
    /// What happened.
    pub(super) words: String,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum FaultKind {
    /// A panic.
    Panic,
    /// The process ended by itself.
    Crash,
    /// It took too long.
    Hang,
    /// It took too much memory.
    Memory,
    /// `check` found no error, and it does not read.
    Unsound,
    /// Two ways of reading do not give the same.
    Differs,
    /// What is said is not as it should be.
    Words,
}

/// A recipe and what came of it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Case {
    pub(super) recipe: Recipe,
    pub(super) verdict: Verdict,
}

impl Fault {
    pub(super) fn new(kind: FaultKind, words: impl Into<String>) -> Self {
        Self { kind, words: words.into() }
    }

    /// What faults of the same cause have in common.
    pub(super) fn signature(&self) -> String {
        const LEN_MAX: usize = 160;
        let words = match self.kind {
            FaultKind::Hang | FaultKind::Memory | FaultKind::Crash => "",
            _ => self.words.lines().next().unwrap_or_default(),
        };
        let without_places = words.split(" (").next().unwrap_or_default();
        let words = without_places.chars().filter(|letter| !letter.is_ascii_digit()).take(LEN_MAX);
        format!("{:?}: {}", self.kind, words.collect::<String>())
    }
}
