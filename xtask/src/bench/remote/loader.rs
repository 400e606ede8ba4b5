//! A shuffled loader of small files out of an image in a registry: two epochs.

use std::{
    fs, io,
    path::{Path, PathBuf},
    process::Command,
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
    thread,
    time::{Duration, Instant},
};

use floe_testkit::Random;

use super::{
    super::{contender::first_line, report::Report, results::Results, session::Session, workload::Measurement},
    Arguments,
    link::{Link, Passed},
    needed::needed_steps,
    registry::Registry,
    scattered::{chosen_files, measurements},
    server::{WebServer, as_object_store},
};
use crate::task_error::{During, Outcome, TaskError};

/// The contenders, in the order of the table.
const CONTENDERS: [&str; 4] = ["floe", "floe-base", OBJECT_STORE, "limit"];

/// The image comes from an object store.
const OBJECT_STORE: &str = "floe-s3";

/// Options of the workload.
#[derive(clap::Args)]
pub(super) struct Loader {
    /// Loader: the number of threads that read
    #[arg(long, value_name = "COUNT", value_delimiter = ',', default_values_t = [4, 16])]
    readers: Vec<usize>,
    /// Loader: the number of files
    #[arg(long, value_name = "COUNT", default_value_t = 20_000)]
    loaded_files: usize,
    /// Loader: the maximum size of these files in bytes
    #[arg(long, value_name = "BYTES", default_value_t = 100_000)]
    loaded_file_bytes_max: u64,
}

/// The files of one image.
struct DataSet {
    floe: PathBuf,
    base: Option<PathBuf>,
    image: PathBuf,
    files: Vec<PathBuf>,
    /// The bytes that one epoch needs.
    needed_bytes: u64,
    registry: Registry,
    server: WebServer,
}

/// Runs the workload for each image and prints the results.
pub(super) fn run(arguments: &Arguments) -> Outcome {
    if arguments.scattered.image.is_empty() {
        return Err(TaskError::new("--workload loader needs --image"));
    }
    let floe = arguments.contest.floe()?;
    let mut reports = Vec::new();
    for image in &arguments.scattered.image {
        reports.push(DataSet::prepare(&floe, image, arguments)?.measured(arguments)?);
    }
    Report::print(&reports, &arguments.contest)
}

impl DataSet {
    /// Chooses the files, and pushes the image.
    fn prepare(floe: &Path, image: &Path, arguments: &Arguments) -> Outcome<Self> {
        let options = &arguments.loader;
        let image = fs::canonicalize(image).during(image.display())?;
        let mut mount = Command::new(floe);
        mount.arg("mount").arg(&image);
        let session = Session::by(mount, "floe")?;
        let files = chosen_files(&session.path(), options.loaded_files, options.loaded_file_bytes_max)?;
        let mut profile = String::new();
        for file in &files {
            let len = fs::metadata(session.path().join(file)).during(file.display())?.len();
            profile.push_str(&format!("0 {len} /{}\n", file.display()));
        }
        drop(session);
        let registry = Registry::serve(&arguments.contest)?;
        let file = registry.folder().join("profile");
        fs::write(&file, profile)?;
        let needed_bytes = needed_steps(&image, &file)?.iter().sum();
        registry.push(floe, &image, "plain")?;
        let server = WebServer::new(image.parent().unwrap_or(Path::new("/")))?;
        let base = arguments.base.clone();
        Ok(Self { floe: floe.to_owned(), base, image, files, needed_bytes, registry, server })
    }

    fn measured(&self, arguments: &Arguments) -> Outcome<Report> {
        let mut results = Results::default();
        let takes = |name: &&&str| {
            let is_there = **name != "floe-base" || self.base.is_some();
            is_there && arguments.contest.takes(name)
        };
        let contenders: Vec<&str> = CONTENDERS.iter().filter(takes).copied().collect();
        for round in 0..arguments.contest.rounds {
            for mbit in &arguments.bandwidth {
                for round_trip in &arguments.round_trip {
                    for readers in &arguments.loader.readers {
                        let row = format!("{round_trip} ms, {mbit} Mbit/s, {readers} readers");
                        for name in &contenders {
                            eprintln!("round {}: {row}: {name}", round + 1);
                            let link = |server| {
                                Link::new(server, Duration::from_millis(*round_trip), *mbit as f64, arguments.trace)
                            };
                            let epochs = match *name {
                                "limit" => self.limit(&link(self.server.address())?).map(|epoch| vec![epoch]),
                                OBJECT_STORE => self.load(name, &link(self.server.address())?, *readers),
                                _ => self.load(name, &link(self.registry.address)?, *readers),
                            };
                            match epochs {
                                Ok(epochs) => {
                                    for (number, epoch) in (1..).zip(epochs) {
                                        results.add(&format!("{row}, epoch {number}"), name, epoch);
                                    }
                                }
                                Err(error) => results.add_failure(format!("{row}: {name}: {error}")),
                            }
                        }
                    }
                }
            }
        }
        let title = format!(
            "{} files out of {}, which need {} KiB",
            self.files.len(),
            self.image.display(),
            self.needed_bytes >> 10
        );
        let version = first_line(Command::new(&self.floe).arg("--version"))?;
        let versions = contenders.iter().map(|name| ((*name).to_owned(), version.clone())).collect();
        Ok(Report::titled(title, fs::metadata(&self.image)?.len(), versions, Vec::new(), results))
    }

    /// Reads all files twice, in two mounts with one cache.
    fn load(&self, name: &str, link: &Link, readers: usize) -> Outcome<Vec<Vec<Measurement>>> {
        let program = self.base.as_ref().filter(|_| name == "floe-base").unwrap_or(&self.floe);
        let cache = tempfile::tempdir_in(self.registry.folder())?;
        let mut before = Passed::default();
        let epochs = [1, 2].map(|seed| {
            let mut command = Command::new(program);
            command.args(["mount", "--cache-directory"]).arg(cache.path());
            if name == OBJECT_STORE {
                let file = self.image.file_name().unwrap_or_default().to_string_lossy();
                let url = as_object_store(&mut command, link.address(), &file);
                command.arg(url);
            } else {
                command.arg("--require-verified").arg(format!("oci://{}/image:plain", link.address()));
            }
            let started = Instant::now();
            let session = Session::by(command, "floe")?;
            self.read_shuffled(&session.path(), seed, readers)?;
            let elapsed = started.elapsed();
            let cpu_s = session.processes()?.iter().map(|process| process.cpu_s).sum();
            let passed = link.passed();
            let mut epoch = measurements(elapsed, passed.since(before));
            epoch.push(Measurement::less("CPU s", cpu_s));
            before = passed;
            Ok(epoch)
        });
        epochs.into_iter().collect()
    }

    /// Reads all files in an order that depends on `seed`.
    fn read_shuffled(&self, mount: &Path, seed: u64, readers: usize) -> Outcome {
        let mut order: Vec<&PathBuf> = self.files.iter().collect();
        let mut random = Random::new(seed);
        for end in (1..order.len()).rev() {
            order.swap(end, usize::try_from(random.below(end as u64 + 1)).unwrap_or(0));
        }
        let next = AtomicUsize::new(0);
        let read = || {
            while let Some(file) = order.get(next.fetch_add(1, Relaxed)) {
                fs::read(mount.join(file)).during(file.display())?;
            }
            Ok(())
        };
        thread::scope(|scope| {
            let threads: Vec<_> = (0..readers).map(|_| scope.spawn(read)).collect();
            threads
                .into_iter()
                .try_for_each(|thread| thread.join().unwrap_or_else(|_| Err(TaskError::new("a reader panicked"))))
        })
    }

    /// Downloads as many bytes with one request.
    fn limit(&self, link: &Link) -> Outcome<Vec<Measurement>> {
        let name = self.image.file_name().unwrap_or_default().to_string_lossy();
        let started = Instant::now();
        link.download(&name, &[self.needed_bytes], &mut io::sink())?;
        Ok(measurements(started.elapsed(), link.passed()))
    }
}
