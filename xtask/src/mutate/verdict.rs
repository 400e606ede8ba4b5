//! The result of one mutated image, and the totals of all.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

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

/// The maximum number of lines shown of each table.
const LINES_MAX: usize = 40;

/// The number of slowest images shown.
const SLOWEST_MAX: usize = 5;

/// The totals of all images.
#[derive(Default)]
pub(super) struct Tally {
    pub(super) images: u64,
    open: u64,
    sound: u64,
    not_sound_and_readable: u64,
    not_whole: u64,
    extracted: u64,
    mounted: u64,
    resident_bytes_max: u64,
    cpu_ms: u64,
    /// The images with the most CPU time: milliseconds, number, seed.
    slowest: BTreeSet<(u64, u64, String)>,
    seeds: BTreeSet<String>,
    /// By kind of change: the number of images, of those that opened, of valid ones, and of those with read errors.
    kinds: BTreeMap<String, [u64; 4]>,
    read_rules: BTreeMap<String, u64>,
    check_rules: BTreeMap<String, u64>,
    /// By signature: the number of cases, and the first one.
    pub(super) faults: BTreeMap<String, (u64, Fault, Case)>,
}

impl Tally {
    pub(super) fn add(&mut self, case: &Case) {
        let verdict = &case.verdict;
        let is_sound = verdict.is_sound == Some(true);
        self.images += 1;
        self.open += u64::from(verdict.is_open);
        self.sound += u64::from(is_sound);
        self.not_whole += u64::from(verdict.is_open && !verdict.is_whole);
        self.not_sound_and_readable += u64::from(
            verdict.is_open && verdict.is_whole && verdict.is_sound == Some(false) && verdict.errors.is_empty(),
        );
        self.extracted += u64::from(verdict.is_extracted);
        self.mounted += u64::from(verdict.is_mounted);
        self.resident_bytes_max = self.resident_bytes_max.max(verdict.resident_bytes_max);
        self.cpu_ms += verdict.cpu_ms;
        self.slowest.insert((verdict.cpu_ms, verdict.index, verdict.seed.clone()));
        if self.slowest.len() > SLOWEST_MAX {
            self.slowest.pop_first();
        }
        self.seeds.insert(verdict.seed.clone());
        for kind in &verdict.kinds {
            // Fields count with their structure.
            let kind = kind.split('.').next().unwrap_or(kind).to_owned();
            let counts = self.kinds.entry(kind).or_default();
            let has_errors = verdict.is_open && !verdict.errors.is_empty();
            for (count, is) in counts.iter_mut().zip([true, verdict.is_open, is_sound, has_errors]) {
                *count += u64::from(is);
            }
        }
        verdict.errors.iter().for_each(|rule| *self.read_rules.entry(rule.clone()).or_default() += 1);
        verdict.found.iter().for_each(|rule| *self.check_rules.entry(rule.clone()).or_default() += 1);
        for fault in &verdict.faults {
            let new = || {
                eprintln!("image {} ({}): {:?}: {}", verdict.index, verdict.seed, fault.kind, fault.message);
                (0, fault.clone(), case.clone())
            };
            self.faults.entry(fault.signature()).or_insert_with(new).0 += 1;
        }
    }

    /// A progress message of one line.
    pub(super) fn line(&self) -> String {
        let faults: u64 = self.faults.values().map(|(count, ..)| count).sum();
        format!(
            "{} images, {} opened, {} sound, {} extracted, {} mounted; {} MiB at most; {faults} faults of {} kinds",
            self.images,
            self.open,
            self.sound,
            self.extracted,
            self.mounted,
            self.resident_bytes_max >> 20,
            self.faults.len()
        )
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(formatter, "{:<52} {:>8} {:>8} {:>8} {:>8}", "change", "images", "opened", "sound", "errors")?;
        for (kind, [images, open, sound, errors]) in &self.kinds {
            writeln!(formatter, "{kind:<52} {images:>8} {open:>8} {sound:>8} {errors:>8}")?;
        }
        for (title, rules) in [("reading says", &self.read_rules), ("check says", &self.check_rules)] {
            writeln!(formatter, "\n{title}: {} rules", rules.len())?;
            let mut rules: Vec<_> = rules.iter().collect();
            rules.sort_by_key(|(_, count)| std::cmp::Reverse(**count));
            rules.iter().take(LINES_MAX).try_for_each(|(rule, count)| writeln!(formatter, "{count:>8}  {rule}"))?;
        }
        for (cpu_ms, index, seed) in self.slowest.iter().rev() {
            writeln!(formatter, "image {index} of {seed} took {cpu_ms} ms of CPU time")?;
        }
        writeln!(formatter, "{} ms of CPU time per image", self.cpu_ms / self.images.max(1))?;
        writeln!(formatter, "\n{} from {} seeds", self.line(), self.seeds.len())?;
        write!(
            formatter,
            "{} were readable though check found errors; {} were too large to read whole",
            self.not_sound_and_readable, self.not_whole
        )
    }
}
