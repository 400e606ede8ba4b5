//! Reads through mounts.

use std::{collections::HashMap, path::Path, time::Duration};

use floe_testkit::corpus::Format;

use super::{
    contender::Contender,
    kept,
    listing::{self, ListedFile},
    report::Report,
    requests,
    results::Results,
    session::Session,
    setting::{Setting, Subject},
    subject::{Image, SourceTree},
    workload::{self, Measurement, Scene, SubjectKind, Workload},
};
use crate::task_error::{Outcome, TaskError};

/// Read through mounts: Floe over FUSE ("floe") and with the kernel's EROFS in front ("front"), against erofsfuse or
/// squashfuse_ll, and the kernel, with a loop device ("kernel-loop") and without. Rounds are interleaved. Before each
/// run the image is unmounted and its pages are dropped, as root all caches of the machine. The table shows medians,
/// and in parentheses how many times better Floe is. Unavailable peers are skipped with a message.
///
/// With --mounts, each contender mounts the image several times in turn, and the table shows each mount apart. Floe then
/// keeps the metadata of fronts, and a later mount begins once they are kept.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    setting: Setting,
    /// Only these workloads: whole-tree, random-1, random-8, find-N, stat-wide. Only if named: stat, loader, open-1, open-8
    /// and by-path, which use the names of a list and list no directory; find-size and compare
    #[arg(long, value_delimiter = ',')]
    workload: Vec<String>,
    /// The duration of random reads and random opens, in seconds
    #[arg(long, default_value_t = 4.0)]
    seconds: f64,
    /// The number of parallel finds
    #[arg(long, value_delimiter = ',', default_values_t = [8])]
    finds: Vec<usize>,
    /// How often a contender mounts the image
    #[arg(long, default_value_t = 1)]
    mounts: usize,
    /// Show how many requests Floe answered, by opcode, instead of the speed
    #[arg(long)]
    requests: bool,
    /// Another Floe, with options of `floe mount`: NAME=OPTIONS
    #[arg(long, value_name = "NAME=OPTIONS", allow_hyphen_values = true)]
    variant: Vec<String>,
}

/// Runs the benchmark and prints the results.
pub(crate) fn run(arguments: &Arguments) -> Outcome {
    let workloads = arguments.workloads()?;
    let floe = arguments.setting.contest.floe()?;
    let mut reports = Vec::new();
    for subject in arguments.setting.subjects()? {
        let (contenders, absent) = arguments.contenders(subject.image.format, &floe)?;
        let results = measure(arguments, &subject, &contenders, &workloads)?;
        let versions = contenders.into_iter().map(|contender| (contender.name, contender.version)).collect();
        reports.push(Report::new(&subject, versions, absent, results)?);
    }
    Report::print(&reports, &arguments.setting.contest)
}

fn measure(
    arguments: &Arguments,
    subject: &Subject,
    contenders: &[Contender],
    workloads: &[Box<dyn Workload>],
) -> Outcome<Results> {
    let mut images: HashMap<SubjectKind, (Image, Vec<ListedFile>)> = HashMap::new();
    for kind in [SubjectKind::Tree, SubjectKind::Wide] {
        if !workloads.iter().any(|workload| workload.subject() == kind) {
            continue;
        }
        let image = match kind {
            SubjectKind::Tree => subject.image.clone(),
            SubjectKind::Wide => SourceTree::wide()?
                .image(subject.image.format, &subject.options, |name| arguments.setting.contest.peer(name))?,
        };
        let first = contenders.first().ok_or(TaskError::new("no contender is left to measure"))?;
        let session = Session::new(first, &image.path, image.format)?;
        let files = listing::list(&session.path())?;
        images.insert(kind, (image, files));
    }
    let mut results = Results::default();
    for round in 0..arguments.setting.contest.rounds {
        for workload in workloads {
            let (image, files) = &images[&workload.subject()];
            // The order changes between rounds.
            let mut order: Vec<&Contender> = contenders.iter().collect();
            if round % 2 == 1 {
                order.reverse();
            }
            for contender in order {
                let trial = Trial { arguments, contender, image, files, workload: workload.as_ref(), round };
                trial.run(&mut results)?;
            }
        }
    }
    Ok(results)
}

/// A workload of one contender in one round.
struct Trial<'run> {
    arguments: &'run Arguments,
    contender: &'run Contender,
    image: &'run Image,
    files: &'run [ListedFile],
    workload: &'run dyn Workload,
    round: u64,
}

impl Trial<'_> {
    /// Mounts the image as often as the arguments say, and runs the workload on each mount, cold.
    fn run(&self, results: &mut Results) -> Outcome {
        let mounts = self.arguments.mounts;
        let cache = tempfile::Builder::new().prefix("floe-bench-cache-").tempdir()?;
        let keeping = self.contender.keeping(cache.path());
        let contender = if mounts > 1 { &keeping } else { self.contender };
        for mount in 1..=mounts {
            let title = match mounts {
                1 => self.workload.title(),
                _ => format!("{}, mount {mount}", self.workload.title()),
            };
            eprintln!("round {}: {title}: {}", self.round + 1, contender.name);
            self.arguments.setting.drop_caches(&self.image.path)?;
            let session = Session::new(contender, &self.image.path, self.image.format)?;
            match self.measure(contender, &session) {
                Ok(measurements) => results.add(&title, &contender.name, measurements),
                Err(error) => results.add_failure(format!("{title}: {}: {error:?}", contender.name)),
            }
            if mount < mounts {
                kept::wait(cache.path());
            }
        }
        Ok(())
    }

    fn measure(&self, contender: &Contender, session: &Session) -> Outcome<Vec<Measurement>> {
        let mount = session.path();
        let scene = Scene {
            mount: &mount,
            files: self.files,
            tree: self.image.tree.as_deref(),
            round: self.round,
            duration: Duration::from_secs_f64(self.arguments.seconds),
        };
        let mut measurements = self.workload.run(&scene)?;
        if self.arguments.requests {
            return contender.program_of_floe().map_or(Ok(Vec::new()), |floe| requests::count(floe, &mount));
        }
        let resident = session.resident_mib_max();
        measurements.extend(resident.map(|mib| Measurement::less("peak RSS MiB", mib)));
        Ok(measurements)
    }
}

impl Arguments {
    fn workloads(&self) -> Outcome<Vec<Box<dyn Workload>>> {
        let mut workloads = workload::all(&self.finds);
        let unknown = |name: &&String| !workloads.iter().any(|workload| workload.name() == **name);
        if let Some(name) = self.workload.iter().find(unknown) {
            let names: Vec<String> = workloads.iter().map(|workload| workload.name()).collect();
            return Err(TaskError::new(format!("unknown workload {name}; use one of {}", names.join(", "))));
        }
        workloads.retain(|workload| match self.workload.is_empty() {
            true => workload.is_default(),
            false => self.workload.contains(&workload.name()),
        });
        Ok(workloads)
    }

    fn contenders(&self, format: Format, floe: &Path) -> Outcome<(Vec<Contender>, Vec<String>)> {
        let front = |kind: &str| ["-o".to_owned(), format!("front={kind}")];
        let mut contenders = vec![Contender::floe("floe", floe, &front("fuse"))?];
        // Only root may mount the kernel's EROFS.
        if rustix::process::geteuid().is_root() {
            // Without what an earlier round kept.
            contenders.push(Contender::floe("front", floe, &front("kernel,front-metadata=render"))?);
        }
        for variant in &self.variant {
            let (name, options) =
                variant.split_once('=').ok_or(TaskError::new(format!("{variant} is not NAME=OPTIONS")))?;
            // A variant differs from the Floe that it is compared with only in its own options.
            let options = front("fuse").into_iter().chain(options.split_whitespace().map(str::to_owned));
            let options: Vec<String> = options.collect();
            contenders.push(Contender::floe(name, floe, &options)?);
        }
        let (peers, absent) = Contender::peers(format, &self.setting.contest);
        contenders.extend(peers);
        contenders.retain(|contender| self.setting.contest.takes(&contender.name));
        Ok((contenders, absent))
    }
}
