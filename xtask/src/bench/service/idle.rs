//! Many idle mounts.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use floe_testkit::{corpus::Format, skip::Need};

use super::{
    broker::Broker,
    fleet::{Fleet, Makers, Rest},
    front::Front,
    image_set::{Content, ImageSet},
    stand::Stand,
};
use crate::{
    bench::{contender::Contender, report::Report, results::Results, setting::Contest},
    task_error::{Outcome, TaskError},
};

/// The names of the contenders, in the order of the table.
const CONTENDERS: [&str; 6] =
    ["service-front", "service-fuse", "process-front", "process-fuse", "fuse-peers", "kernel-loop"];

/// What each generated image contains.
const CONTENT: Content = Content { image_count: 0, file_count: 40, file_bytes_max: 100_000 };

/// Mount many images and leave them idle: by the service and by a process for each mount, with the kernel's EROFS in front and
/// through FUSE, by squashfuse_ll and erofsfuse, and by the kernel through loop devices. Each contender's mounts grow from one number to the
/// next. Memory, threads, descriptors and wake-ups are those of all its processes; wake-ups are voluntary context switches;
/// kernel memory is what the kernel cannot reclaim on the whole machine, compared with the time before. Times of mounts are those since the last number.
/// Afterwards, one mount of each image is read and compared. In parentheses: how many times better the first contender is. Needs
/// root.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// A directory with images of either format [generated ones, EROFS and SquashFS in turn]
    #[arg(long, value_name = "DIR")]
    images: Option<PathBuf>,
    /// The number of generated images
    #[arg(long, value_name = "COUNT", default_value_t = 50, conflicts_with = "images")]
    generate: usize,
    /// The numbers of mounts
    #[arg(long, value_delimiter = ',', default_values_t = [1, 20, 200, 1000])]
    counts: Vec<usize>,
    /// How long wake-ups are counted, in seconds
    #[arg(long, default_value_t = 60.0)]
    idle_seconds: f64,
    /// How long mounts rest before, in seconds: Floe keeps metadata of fronts five seconds after the mount
    #[arg(long, default_value_t = 12.0)]
    rest_seconds: f64,
    /// The largest number of mounts with a process for each
    #[arg(long, value_name = "COUNT", default_value_t = 200)]
    processes_max: usize,
    #[command(flatten)]
    contest: Contest,
}

/// Runs the benchmark and prints the results.
pub(crate) fn run(arguments: &Arguments) -> Outcome {
    if let Some(missing) = [Need::Root, Need::Fuse].into_iter().find_map(Need::missing) {
        return Err(TaskError::new(missing));
    }
    let report = measure(arguments)?;
    Report::print(&[report], &arguments.contest)
}

fn measure(arguments: &Arguments) -> Outcome<Report> {
    let floe = arguments.contest.floe()?;
    let stand = Stand::new()?;
    let images = match &arguments.images {
        Some(folder) => ImageSet::at(folder)?,
        None => ImageSet::generate(&floe, &stand, Content { image_count: arguments.generate, ..CONTENT })?,
    };
    let mut course = Course {
        arguments,
        floe: &floe,
        stand: &stand,
        images: &images,
        results: Results::default(),
        absent: Vec::new(),
    };
    let mut versions = Vec::new();
    for round in 0..arguments.contest.rounds {
        for name in CONTENDERS.into_iter().filter(|name| arguments.contest.takes(name)) {
            eprintln!("round {}: {name}", round + 1);
            match course.run(name) {
                Ok(version) if round == 0 => versions.extend(version.map(|version| (name.to_owned(), version))),
                Ok(_) => {}
                Err(error) => {
                    stand.check()?;
                    course.results.add_failure(format!("{name}: {error}"));
                }
            }
            if let Err(error) = stand.clear() {
                course.results.add_failure(format!("{name}: {error}"));
            }
        }
    }
    let title = format!("{} idle mounts of {} images", list(&arguments.counts), images.len());
    let Course { results, mut absent, .. } = course;
    absent.dedup();
    Ok(Report::titled(title, images.bytes()?, versions, absent, results))
}

/// The course of the benchmark.
struct Course<'run> {
    arguments: &'run Arguments,
    floe: &'run Path,
    stand: &'run Stand,
    images: &'run ImageSet,
    results: Results,
    absent: Vec<String>,
}

impl Course<'_> {
    /// Measures one contender. Returns its version; `None` if it is not there.
    fn run(&mut self, name: &str) -> Outcome<Option<String>> {
        let folder = self.stand.folder().join(name);
        let broker = match name.starts_with("service-") {
            true => Some(Broker::start(self.floe, &folder, None)?),
            false => None,
        };
        let makers = match self.makers(name, &folder, broker.as_ref()) {
            Ok(makers) => makers,
            Err(reason) => {
                self.absent.push(format!("{name}: {reason}"));
                return Ok(None);
            }
        };
        let outcome = self.grow(name, &makers);
        let ended = broker.map_or(Ok(()), Broker::end);
        let _ = fs::remove_dir_all(&folder);
        outcome.and(ended)?;
        Ok(Some(match makers.erofs.version == makers.squashfs.version {
            true => makers.erofs.version,
            false => format!("{}, {}", makers.erofs.version, makers.squashfs.version),
        }))
    }

    fn grow(&mut self, name: &str, makers: &Makers) -> Outcome {
        let seconds = Duration::from_secs_f64;
        let rest = Rest { before: seconds(self.arguments.rest_seconds), idle: seconds(self.arguments.idle_seconds) };
        let is_process_each = !makers.is_kernel && !name.starts_with("service-");
        let mut fleet = Fleet::new(self.stand, self.images, makers)?;
        for count in &self.arguments.counts {
            if is_process_each && let Some(reason) = self.reason_to_stop(&fleet, *count)? {
                self.absent.push(format!("{name} with {count} mounts: {reason}"));
                break;
            }
            eprintln!("  {count} mounts");
            let measurements = fleet.grow(*count, rest)?;
            let plural = if *count == 1 { "" } else { "s" };
            self.results.add(&format!("{count} mount{plural}"), name, measurements);
        }
        fleet.check()
    }

    /// Why so many processes are too many.
    fn reason_to_stop(&self, fleet: &Fleet<'_>, count: usize) -> Outcome<Option<String>> {
        let most = self.arguments.processes_max;
        if count > most {
            return Ok(Some(format!("above --processes-max {most}")));
        }
        let (needed, available) = (fleet.expected_bytes(count)?, available_bytes()?);
        Ok((needed > available / 2)
            .then(|| format!("needs {} MiB of memory, and {} MiB are available", needed >> 20, available >> 20)))
    }

    /// How a contender mounts.
    ///
    /// # Errors
    /// It is not there; the string states why.
    fn makers(&self, name: &str, folder: &Path, broker: Option<&Broker>) -> Result<Makers, String> {
        let front = match name.rsplit_once('-') {
            Some((_, "front")) => Some(Front::Kernel),
            Some((_, "fuse")) => Some(Front::Fuse),
            _ => None,
        };
        let told = |error: TaskError| error.to_string();
        let Some(front) = front else {
            let is_kernel = name == "kernel-loop";
            let of = |format| match is_kernel {
                true => Contender::kernel(format).map(Contender::through_loop),
                false => Contender::fuse_peer(format, &self.arguments.contest),
            };
            return Ok(Makers { erofs: of(Format::Erofs)?, squashfs: of(Format::Squashfs)?, front, is_kernel });
        };
        if let (Front::Kernel, Some(missing)) = (front, Need::KernelErofs.missing()) {
            return Err(missing);
        }
        let options = format!("front={}", front.name());
        let contender = match broker {
            Some(broker) => Contender::service(name, self.floe, &broker.socket(), &options),
            None => {
                let options = format!("{options},cache-directory={}", folder.join("cache").display());
                Contender::floe(name, self.floe, &["-o".to_owned(), options])
            }
        };
        let contender = contender.map_err(told)?;
        Ok(Makers { erofs: contender.clone(), squashfs: contender, front: Some(front), is_kernel: false })
    }
}

fn available_bytes() -> Outcome<u64> {
    let text = fs::read_to_string("/proc/meminfo")?;
    let kib = text
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:")?.split_whitespace().next()?.parse::<u64>().ok());
    Ok(kib.ok_or(TaskError::new("/proc/meminfo has no MemAvailable"))? << 10)
}

fn list(counts: &[usize]) -> String {
    counts.iter().map(usize::to_string).collect::<Vec<_>>().join(", ")
}
