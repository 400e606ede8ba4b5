//! The totals of all images.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use super::verdict::{Case, Fault};

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
