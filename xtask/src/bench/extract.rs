//! Extraction and checks of whole images.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use floe_testkit::{corpus::Format, run_bounded, target_dir};

use super::{
    contender::first_line,
    report::Report,
    results::Results,
    setting::{Setting, Subject},
    workload::Measurement,
};
use crate::task_error::{During, Outcome, TaskError};

/// The time limit of one run.
const TIME_MAX: Duration = Duration::from_secs(3_600);

/// Extract whole images: `floe extract` against fsck.erofs --extract or unsquashfs. With --check, only decode and check
/// them: `floe check` against fsck.erofs --extract without a target. Interleaved, with a cold image.
///
/// For some minutes, ext4 does not reuse the numbers of deleted inodes, but examines them again for each new file, so
/// earlier runs slow down later ones. A --target in memory, or on a file system made for each run, avoids that.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    setting: Setting,
    /// Check instead of extracting
    #[arg(long)]
    check: bool,
    /// The target directory of extractions; one in memory excludes the disk
    #[arg(long, value_name = "DIR")]
    target: Option<PathBuf>,
}

/// A program that extracts or checks images.
struct Extractor {
    name: &'static str,
    version: String,
    program: PathBuf,
    /// The arguments before the image; `{target}` is replaced by the directory.
    arguments: &'static [&'static str],
}

/// Runs the benchmark and prints the results.
pub(crate) fn run(arguments: &Arguments) -> Outcome {
    let floe = arguments.setting.contest.floe()?;
    let mut reports = Vec::new();
    for subject in arguments.setting.subjects()? {
        let (extractors, absent) = arguments.extractors(subject.image.format, &floe)?;
        let results = measure(arguments, &subject, &extractors)?;
        let versions = extractors.into_iter().map(|extractor| (extractor.name.to_owned(), extractor.version)).collect();
        reports.push(Report::new(&subject, versions, absent, results)?);
    }
    Report::print(&reports, &arguments.setting.contest)
}

fn measure(arguments: &Arguments, subject: &Subject, extractors: &[Extractor]) -> Outcome<Results> {
    let title = if arguments.check { "check" } else { "extract" };
    let mut results = Results::default();
    for round in 0..arguments.setting.contest.rounds {
        let mut order: Vec<&Extractor> = extractors.iter().collect();
        if round % 2 == 1 {
            order.reverse();
        }
        for extractor in order {
            eprintln!("round {}: {title}: {}", round + 1, extractor.name);
            let scratch = arguments.target.clone().unwrap_or_else(|| target_dir().join("bench"));
            fs::create_dir_all(&scratch).during(scratch.display())?;
            let folder = tempfile::tempdir_in(&scratch).during(scratch.display())?;
            arguments.setting.drop_caches(&subject.image.path)?;
            let mut command = extractor.command(&subject.image.path, &folder.path().join("tree"));
            let run = run_bounded(&mut command, TIME_MAX).during(extractor.program.display())?;
            if run.status.success() {
                let measurements = vec![
                    Measurement::less("s", run.elapsed.as_secs_f64()),
                    Measurement::less("peak RSS MiB", run.resident_bytes_max as f64 / f64::from(1 << 20)),
                ];
                results.add(title, extractor.name, measurements);
            } else {
                let words = run.stderr.lines().next().unwrap_or_default();
                results.add_failure(format!("{title}: {}: {}: {words}", extractor.name, run.status));
            }
        }
    }
    Ok(results)
}

impl Arguments {
    fn extractors(&self, format: Format, floe: &Path) -> Outcome<(Vec<Extractor>, Vec<String>)> {
        let (peer, floe_arguments, peer_arguments): (_, &[&str], &[&str]) = match (self.check, format) {
            (false, Format::Erofs) => (
                "fsck.erofs",
                &["extract", "--quiet", "-C", "{target}"],
                &["--extract={target}", "--preserve", "--xattrs"],
            ),
            (false, Format::Squashfs) => {
                ("unsquashfs", &["extract", "--quiet", "-C", "{target}"], &["-no-progress", "-quiet", "-d", "{target}"])
            }
            (true, Format::Erofs) => ("fsck.erofs", &["check"], &["--extract"]),
            (true, Format::Squashfs) => {
                return Err(TaskError::new("no reference tool checks SquashFS images; leave out --check"));
            }
        };
        let (mut extractors, mut absent) = (Vec::new(), Vec::new());
        let version = first_line(Command::new(floe).arg("--version"))?;
        extractors.push(Extractor { name: "floe", version, program: floe.to_path_buf(), arguments: floe_arguments });
        match self.setting.contest.peer(peer) {
            Ok(program) => {
                let option = if peer == "unsquashfs" { "-version" } else { "--version" };
                let version = first_line(Command::new(&program).arg(option))?;
                extractors.push(Extractor { name: peer, version, program, arguments: peer_arguments });
            }
            Err(reason) => absent.push(reason),
        }
        extractors.retain(|extractor| self.setting.contest.takes(extractor.name));
        Ok((extractors, absent))
    }
}

impl Extractor {
    fn command(&self, image: &Path, target: &Path) -> Command {
        let mut command = Command::new(&self.program);
        let target = target.to_string_lossy();
        command.args(self.arguments.iter().map(|argument| argument.replace("{target}", &target))).arg(image);
        command
    }
}
