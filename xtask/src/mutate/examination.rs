//! Runs one image through the library, under limits: opens, walks, reads, checks and extracts it.

use std::{
    collections::BTreeMap,
    fs,
    panic::{AssertUnwindSafe, catch_unwind},
    path::Path,
    sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
};

use floe::{
    CheckOptions, EngineOptions, ExtractEvent, ExtractOptions, ExtractWarningCause, FileType, Image,
    MetadataCacheDesign, Offset, OpenOptions, Parts, Severity, VolumeOptions, WorkerMode,
};
use floe_sync::Mutex;

use super::{
    Stage,
    seed::Seed,
    survey::{self, Seen, Survey},
    verdict::{Fault, FaultKind, Verdict},
};
use crate::task_error::Outcome;

/// The budget of the caches in bytes.
const BUDGET_BYTES: u64 = 8 << 20;

/// The memory limit of one image beyond the budget.
const MEMORY_BYTES_MAX: u64 = 64 << 20;

/// An extraction is cancelled after this many bytes.
const EXTRACTED_BYTES_MAX: u64 = 32 << 20;

/// The read sizes: aligned to blocks; and so small that a read begins in each block of a file, at different offsets, because
/// each entry of an index can lead elsewhere.
const PIECE_BYTES: [usize; 2] = [128 << 10, 2_731];

/// The messages of panics on any thread.
static PANICS: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// The examination of one image.
pub(super) struct Examination<'a> {
    pub(super) path: &'a Path,
    pub(super) seed: &'a Seed,
    pub(super) stages: &'a [Stage],
    /// An empty directory.
    pub(super) scratch: &'a Path,
}

/// Records panics instead of printing them.
pub(super) fn remember_panics() {
    std::panic::set_hook(Box::new(|panic| {
        let mut panics = PANICS.lock();
        panics.push(panic.to_string().replace('\n', " "));
    }));
}

impl Examination<'_> {
    /// Runs the requested stages; returns what the image shows, for comparison with a mount.
    pub(super) fn run(&self, verdict: &mut Verdict) -> Survey {
        // Resets the kernel's peak counter; if that fails, the peak of the process counts.
        let _ = fs::write("/proc/self/clear_refs", "5");
        let mut survey = Survey::default();
        let started = cpu_ms();
        let outcome = catch_unwind(AssertUnwindSafe(|| self.examine(verdict, &mut survey)));
        if let Ok(Err(error)) = outcome {
            verdict.faults.push(Fault::new(FaultKind::Message, error.to_string()));
        }
        let panics = std::mem::take(&mut *PANICS.lock());
        verdict.faults.extend(panics.into_iter().map(|words| Fault::new(FaultKind::Panic, words)));
        verdict.cpu_ms = cpu_ms() - started;
        verdict.resident_bytes_max = resident_bytes_max();
        if verdict.resident_bytes_max > BUDGET_BYTES + MEMORY_BYTES_MAX {
            let words = format!("{} MiB were resident", verdict.resident_bytes_max >> 20);
            verdict.faults.push(Fault::new(FaultKind::Memory, words));
        }
        survey
    }

    fn asks(&self, stage: Stage) -> bool {
        self.stages.contains(&stage)
    }

    fn options(&self) -> OpenOptions {
        let engine = EngineOptions {
            cache_bytes: BUDGET_BYTES / 2,
            reserved_pages: 256,
            metadata_cache: MetadataCacheDesign::Sharded { block_count: 64 },
            workers: WorkerMode::Inline,
            ..EngineOptions::default()
        };
        let volume = VolumeOptions { read_around: false, ..VolumeOptions::default() };
        let (offset, devices) = (Offset::At(self.seed.offset), self.seed.devices.clone());
        OpenOptions { offset, devices, engine, volume, ..OpenOptions::default() }
    }

    fn examine(&self, verdict: &mut Verdict, survey: &mut Survey) -> Outcome {
        let image = match Image::open(self.path, &self.options()) {
            Ok(image) => Some(image),
            Err(error) => {
                one_line(&error.to_string(), verdict);
                verdict.errors.push(open_rule(&error));
                None
            }
        };
        verdict.is_open = image.is_some();
        if let Some(image) = image.as_ref().filter(|_| self.asks(Stage::Walk)) {
            *survey = Survey::new(image, self.asks(Stage::Read), PIECE_BYTES[0]);
            verdict.is_whole = survey.is_whole && self.asks(Stage::Read);
            survey.errors.values().for_each(|words| one_line(words, verdict));
            verdict.errors.extend(survey.errors.keys().cloned());
        }
        if self.asks(Stage::Check) {
            self.check(verdict);
            if verdict.is_sound == Some(true)
                && let Some(error) = verdict.errors.first()
            {
                let place = survey.errors.values().next().cloned().unwrap_or_default();
                verdict.faults.push(Fault::new(FaultKind::Unsound, format!("{error} ({place})")));
            }
        }
        // Findings have no places here, so any warning counts.
        if let Some(place) = survey.hidden_xattr.as_ref().filter(|_| verdict.is_sound == Some(true))
            && !verdict.found.iter().any(|rule| rule.starts_with("warning: "))
        {
            verdict.faults.push(Fault::new(FaultKind::Unsound, format!("a listed xattr is not found ({place})")));
        }
        let Some(image) = image else { return Ok(()) };
        if verdict.is_sound == Some(true) && self.asks(Stage::Read) {
            let again = Survey::new(&image, true, PIECE_BYTES[1]);
            compare("read again", &survey.entries, &again.entries, verdict);
        }
        // Most invalid images take the same path through an extraction.
        if self.asks(Stage::Extract) && (verdict.is_sound == Some(true) || verdict.index.is_multiple_of(8)) {
            self.extract(&image, survey, verdict);
        }
        Ok(())
    }

    fn check(&self, verdict: &mut Verdict) {
        const RULES_MAX: usize = 64;
        let found: Mutex<BTreeMap<String, Severity>> = Mutex::default();
        let tell = |finding: &floe::Finding| {
            let mut found = found.lock();
            if found.len() < RULES_MAX {
                let rule: String = finding.rule.chars().filter(|letter| !letter.is_ascii_digit()).collect();
                found.insert(rule, finding.severity);
            }
        };
        let options = CheckOptions { jobs: 1, data: true };
        match floe::check(self.path, &self.options(), &options, &tell, &AtomicBool::new(false)) {
            Ok(summary) => verdict.is_sound = Some(summary.errors == 0),
            Err(error) => {
                one_line(&error.to_string(), verdict);
                verdict.is_sound = Some(false);
                verdict.found.push(open_rule(&error));
            }
        }
        let found = found.into_inner();
        let words = found.into_iter().map(|(rule, severity)| match severity {
            Severity::Error => rule,
            Severity::Warning => format!("warning: {rule}"),
        });
        verdict.found.extend(words);
    }

    fn extract(&self, image: &Image, survey: &Survey, verdict: &mut Verdict) {
        let target = self.scratch.join("tree");
        let (cancel, written) = (AtomicBool::new(false), AtomicU64::new(0));
        let warnings: Mutex<Vec<String>> = Mutex::default();
        let (outside, of_image) = (AtomicBool::new(false), AtomicBool::new(false));
        let tell = |event: ExtractEvent<'_>| match event {
            ExtractEvent::Written(bytes) => {
                let is_enough = written.fetch_add(bytes, Relaxed) > EXTRACTED_BYTES_MAX;
                cancel.fetch_or(is_enough, Relaxed);
            }
            ExtractEvent::Warning(warning) => {
                match warning.cause {
                    ExtractWarningCause::Image(_) => of_image.store(true, Relaxed),
                    _ => outside.store(true, Relaxed),
                }
                warnings.lock().push(format!("{}", warning.cause));
            }
            _ => {}
        };
        let options = ExtractOptions { jobs: 1, ..ExtractOptions::default() };
        let outcome = floe::extract(image, Parts::All, &target, &options, &tell, &cancel);
        verdict.is_extracted = true;
        let warnings = warnings.into_inner();
        warnings.iter().for_each(|words| one_line(words, verdict));
        let is_whole = !cancel.into_inner() && !outside.into_inner() && outcome.is_ok();
        if verdict.is_sound == Some(true) && of_image.into_inner() {
            let first = warnings.first().cloned().unwrap_or_default();
            verdict.faults.push(Fault::new(FaultKind::Unsound, format!("extracting gives: {first}")));
        } else if verdict.is_sound == Some(true) && is_whole && verdict.is_whole {
            compare("extracted", &survey.entries, &survey::directory(&target), verdict);
        }
        let made = fs::read_dir(self.scratch).into_iter().flatten().count();
        if made > usize::from(target.exists()) {
            verdict.faults.push(Fault::new(FaultKind::Differs, "a file was created outside the target"));
        }
        let _ = fs::remove_dir_all(&target);
    }
}

/// Records where another way of reading differs from a survey.
pub(super) fn compare(
    way: &str,
    expected: &BTreeMap<Vec<u8>, Seen>,
    found: &BTreeMap<Vec<u8>, Seen>,
    verdict: &mut Verdict,
) {
    let is_shown = |seen: &&Seen| matches!(seen.file_type, FileType::Regular | FileType::Symlink | FileType::Directory);
    for (path, expected) in expected.iter().filter(|(_, seen)| is_shown(seen)) {
        let name = String::from_utf8_lossy(path);
        let words = match found.get(path) {
            None => format!("{way}: a {:?} is missing ({name})", expected.file_type),
            Some(found) if found.file_type != expected.file_type => {
                format!("{way}: is a {:?}, not a {:?} ({name})", found.file_type, expected.file_type)
            }
            Some(found) if expected.file_type == FileType::Regular && found.size != expected.size => {
                format!("{way}: the size differs ({name}: {} and {})", expected.size, found.size)
            }
            Some(found) if found.digest != expected.digest => {
                format!("{way}: a {:?} differs ({name})", expected.file_type)
            }
            Some(_) => continue,
        };
        verdict.faults.push(Fault::new(FaultKind::Differs, words));
        return;
    }
}

fn one_line(words: &str, verdict: &mut Verdict) {
    if words.is_empty() || words.contains('\n') {
        verdict.faults.push(Fault::new(FaultKind::Message, format!("not one line: {words:?}")));
    }
}

fn open_rule(error: &floe::OpenError) -> String {
    match error {
        floe::OpenError::Image { error, .. } => format!("open: {}", survey::rule(error)),
        other => {
            let words: String = format!("{other:?}").chars().take_while(|letter| letter.is_alphanumeric()).collect();
            format!("open: {words}")
        }
    }
}

fn resident_bytes_max() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    kib.unwrap_or(0) << 10
}

/// The CPU time of this process so far, in milliseconds.
fn cpu_ms() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.tv_sec.unsigned_abs() * 1000 + time.tv_nsec.unsigned_abs() / 1_000_000
}
