//! A program out of an image on a web server, and then many small files at random places.

use std::{
    fs, io,
    net::SocketAddr,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use super::{
    super::{contender::first_line, report::Report, results::Results, session::Session, workload::Measurement},
    Arguments,
    link::{Link, Passed},
    needed::needed_steps,
    nydus::{self, Nydus},
    program::succeed,
    registry::Registry,
    server::{WebServer, as_object_store},
};
use crate::task_error::{During, Outcome, TaskError};

/// The contenders, in the order of the table.
const CONTENDERS: [&str; 16] = [
    "floe",
    "floe-base",
    "floe-profile",
    "floe-base-profile",
    "floe-kernel",
    "floe-base-kernel",
    "floe-kernel-profile",
    "floe-base-kernel-profile",
    LISTED,
    OBJECT_STORE,
    OBJECT_STORE_LISTED,
    REGISTRY,
    nydus::PLAIN,
    nydus::PREFETCH,
    nydus::PROFILE,
    "limit",
];

/// The image with a launch list beside it.
const LISTED: &str = "floe-listed";

/// The same out of an object store.
const OBJECT_STORE: &str = "floe-s3";
const OBJECT_STORE_LISTED: &str = "floe-s3-listed";

/// The image comes from a registry, and every byte is verified. The server is that of the other contenders: docker-registry takes 2 ms
/// longer for each answer, which is no cost of verification.
const REGISTRY: &str = "floe-registry";

/// The limit with a profile: all bytes in one request.
const LIMIT_PROFILE: &str = "limit-profile";

/// The seed of the choice of files.
const SEED: u64 = 46;

/// Options of the workload.
#[derive(clap::Args)]
pub(super) struct Scattered {
    /// Scattered, loader: an image of a tree with the program. May be repeated
    #[arg(long, value_name = "FILE")]
    pub(super) image: Vec<PathBuf>,
    /// Scattered: the program in the image, and its arguments
    #[arg(long, value_name = "COMMAND", default_value = "usr/bin/python3 --version")]
    launch: String,
    /// Scattered: the number of files that are read
    #[arg(long, value_name = "COUNT", default_value_t = 400)]
    files: usize,
    /// Scattered: the maximum size of these files in bytes
    #[arg(long, value_name = "BYTES", default_value_t = 200_000)]
    file_bytes_max: u64,
    /// Scattered: compare with nydusd; the directory of nydusd and nydus-image
    #[arg(long, value_name = "DIR")]
    nydus: Option<PathBuf>,
}

/// Runs the workload for each image and prints the results.
pub(super) fn run(arguments: &Arguments) -> Outcome {
    let floe = arguments.contest.floe()?;
    let images = &arguments.scattered.image;
    if images.is_empty() {
        return Err(TaskError::new("--workload scattered needs --image"));
    }
    let mut reports = Vec::new();
    for image in images {
        let task = Task::prepare(&floe, image, arguments)?;
        reports.push(task.measured(arguments)?);
    }
    Report::print(&reports, &arguments.contest)
}

/// The reads of one image.
struct Task {
    floe: PathBuf,
    image: PathBuf,
    launch: Vec<String>,
    files: Vec<PathBuf>,
    /// What the files contain, as read from the image on this machine.
    contents: Vec<Vec<u8>>,
    /// A recorded profile of all of it.
    profile: PathBuf,
    /// The bytes that each step needs and no earlier one.
    steps: Vec<u64>,
    folder: tempfile::TempDir,
    server: WebServer,
    /// The store of a registry with the same image, if that is measured.
    _registry: Option<Registry>,
    /// The same tree for nydusd, if that is measured.
    nydus: Option<Nydus>,
}

impl Task {
    /// Chooses the files and records a profile, over a mount of the image on this machine.
    fn prepare(floe: &Path, image: &Path, arguments: &Arguments) -> Outcome<Self> {
        let options = &arguments.scattered;
        let image = fs::canonicalize(image).during(image.display())?;
        let folder = tempfile::tempdir()?;
        for name in ["image", LISTED] {
            symlink(&image, folder.path().join(name))?;
        }
        let launch: Vec<String> = options.launch.split_whitespace().map(str::to_owned).collect();
        let mut mount = Command::new(floe);
        mount.arg("mount").arg(&image);
        let session = Session::by(mount, "floe")?;
        let files = chosen_files(&session.path(), options.files, options.file_bytes_max)?;
        let contents = contents_of(&session.path(), &files)?;
        drop(session);
        let profile = folder.path().join("profile");
        let directory = tempfile::tempdir()?;
        let list: Vec<u8> = files
            .iter()
            .flat_map(|file| [directory.path().join(file).as_os_str().as_encoded_bytes(), b"\0"].concat())
            .collect();
        fs::write(folder.path().join("list"), list)?;
        let mut record = Command::new(floe);
        record.arg("record").arg(directory.path()).arg("--image").arg(folder.path().join(LISTED));
        record.arg("--launch-list").arg("--output").arg(&profile).arg("--");
        record.args(["sh", "-c", "list=$1; shift; \"$@\" && xargs -0 -a \"$list\" cat >/dev/null", "sh"]);
        record.arg(folder.path().join("list")).arg(directory.path().join(&launch[0])).args(&launch[1..]);
        succeed(&mut record)?;
        let steps = needed_steps(&image, &profile)?;
        let server = WebServer::new(folder.path())?;
        let registry = arguments.contest.takes(REGISTRY).then(|| Registry::serve(&arguments.contest)).transpose()?;
        if let Some(registry) = &registry {
            registry.push(floe, &image, "plain")?;
            registry.link_into(folder.path(), "plain")?;
        }
        let programs = options.nydus.as_ref().filter(|_| takes_nydus(arguments));
        let nydus = programs.map(|programs| Nydus::prepare(programs, floe, &image, &profile)).transpose()?;
        let floe = floe.to_owned();
        Ok(Self { floe, image, launch, files, contents, profile, steps, folder, server, _registry: registry, nydus })
    }

    fn measured(&self, arguments: &Arguments) -> Outcome<Report> {
        let mut results = Results::default();
        let takes = |name: &&&str| {
            let is_there = match **name {
                name if name.starts_with("floe-base") => arguments.base.is_some(),
                name if name.starts_with(nydus::PLAIN) => self.nydus.is_some(),
                _ => true,
            };
            is_there && arguments.contest.takes(name)
        };
        let contenders: Vec<&str> = CONTENDERS.iter().chain([&LIMIT_PROFILE]).filter(takes).copied().collect();
        // The benchmark measures the network, not the disk of the server.
        io::copy(&mut fs::File::open(&self.image)?, &mut io::sink())?;
        for round in 0..arguments.contest.rounds {
            for mbit in &arguments.bandwidth {
                for round_trip in &arguments.round_trip {
                    let row = format!("{round_trip} ms, {mbit} Mbit/s");
                    for name in &contenders {
                        eprintln!("round {}: {row}: {name}", round + 1);
                        let round_trip = Duration::from_millis(*round_trip);
                        let link = Link::new(self.server_of(name), round_trip, *mbit as f64, arguments.trace)?;
                        match self.run(name, &link, arguments) {
                            Ok(measurements) => results.add(&row, name, measurements),
                            Err(error) => results.add_failure(format!("{row}: {name}: {error}")),
                        }
                    }
                }
            }
        }
        let title = format!(
            "{}, then {} files out of {}: {} KiB in {} steps",
            self.launch.join(" "),
            self.files.len(),
            self.image.display(),
            self.steps.iter().sum::<u64>() >> 10,
            self.steps.len()
        );
        let version = first_line(Command::new(&self.floe).arg("--version"))?;
        let nydus_version = self.nydus.as_ref().map(Nydus::version).transpose()?.unwrap_or_default();
        let version_of = |name: &str| if name.starts_with(nydus::PLAIN) { &nydus_version } else { &version };
        let versions = contenders.iter().map(|name| ((*name).to_owned(), version_of(name).clone())).collect();
        let is_without_nydus = self.nydus.is_none() && takes_nydus(arguments);
        let absent = is_without_nydus.then(|| format!("{}: --nydus is not given", nydus::PLAIN)).into_iter().collect();
        Ok(Report::titled(title, fs::metadata(&self.image)?.len(), versions, absent, results))
    }

    /// The address of the server that a contender reads from.
    fn server_of(&self, name: &str) -> SocketAddr {
        let nydus = self.nydus.as_ref().filter(|_| name.starts_with(nydus::PLAIN));
        nydus.map_or_else(|| self.server.address(), Nydus::address)
    }

    fn run(&self, name: &str, link: &Link, arguments: &Arguments) -> Outcome<Vec<Measurement>> {
        if name.starts_with("limit") {
            return self.limit(link, name == LIMIT_PROFILE);
        }
        let cache = tempfile::tempdir_in(self.folder.path())?;
        if let Some(nydus) = self.nydus.as_ref().filter(|_| name.starts_with(nydus::PLAIN)) {
            return self.measure(link, || nydus.mount(name, link, cache.path()));
        }
        let program = arguments.base.as_ref().filter(|_| name.starts_with("floe-base")).unwrap_or(&self.floe);
        let mut command = Command::new(program);
        command.args(["mount", "--cache-directory"]).arg(cache.path());
        if name.contains("kernel") {
            command.args(["-o", "front=kernel"]);
        }
        if name.ends_with("profile") {
            command.arg("-o").arg(format!("profile={}", self.profile.display()));
        }
        if name == REGISTRY {
            command.arg("--require-verified").arg(format!("oci://{}/image:plain", link.address()));
        } else {
            let file = if name.ends_with("listed") { LISTED } else { "image" };
            let url = match name {
                OBJECT_STORE | OBJECT_STORE_LISTED => as_object_store(&mut command, link.address(), file),
                _ => format!("http://{}/{file}", link.address()),
            };
            command.arg(url);
        }
        self.measure(link, || Session::by(command, "floe"))
    }

    /// Mounts, launches the program and reads the files. Afterwards, compares the contents of the files with those of the image.
    fn measure(&self, link: &Link, mount: impl FnOnce() -> Outcome<Session>) -> Outcome<Vec<Measurement>> {
        let started = Instant::now();
        let session = mount()?;
        let contents = self.read(&session.path())?;
        let elapsed = started.elapsed();
        let cpu_s = session.processes()?.iter().map(|process| process.cpu_s).sum();
        let mut measurements = measurements(elapsed, link.passed());
        if let Some(place) = (0..self.files.len()).find(|place| contents[*place] != self.contents[*place]) {
            return Err(TaskError::new(format!("{} has other contents", self.files[place].display())));
        }
        measurements.push(Measurement::less("CPU s", cpu_s));
        Ok(measurements)
    }

    /// Launches the program out of a mount, and reads the files.
    fn read(&self, mount: &Path) -> Outcome<Vec<Vec<u8>>> {
        let mut launch = Command::new(mount.join(&self.launch[0]));
        succeed(launch.args(&self.launch[1..]).stdin(Stdio::null()))?;
        contents_of(mount, &self.files)
    }

    /// Downloads as many bytes as are needed: for each step with one request, one after the other, or all with one.
    fn limit(&self, link: &Link, is_known: bool) -> Outcome<Vec<Measurement>> {
        let steps = if is_known { vec![self.steps.iter().sum()] } else { self.steps.clone() };
        let started = Instant::now();
        link.download("image", &steps, &mut io::sink())?;
        Ok(measurements(started.elapsed(), link.passed()))
    }
}

/// Reads files, one after the other.
fn contents_of(mount: &Path, files: &[PathBuf]) -> Outcome<Vec<Vec<u8>>> {
    files.iter().map(|file| fs::read(mount.join(file)).during(file.display())).collect()
}

/// Whether one of the contenders with nydusd is measured.
fn takes_nydus(arguments: &Arguments) -> bool {
    [nydus::PLAIN, nydus::PREFETCH, nydus::PROFILE].iter().any(|name| arguments.contest.takes(name))
}

pub(super) fn measurements(elapsed: Duration, passed: Passed) -> Vec<Measurement> {
    vec![
        Measurement::less("s", elapsed.as_secs_f64()),
        Measurement::less("requests", passed.requests as f64),
        Measurement::less("MB", passed.bytes as f64 / 1e6),
    ]
}

/// At most `count` files below a size, at random places of a tree. The choice depends on the tree alone.
pub(super) fn chosen_files(root: &Path, count: usize, file_bytes_max: u64) -> Outcome<Vec<PathBuf>> {
    let mut files = Vec::new();
    let mut open = vec![root.to_path_buf()];
    while let Some(directory) = open.pop() {
        for entry in fs::read_dir(&directory).during(directory.display())? {
            let entry = entry?;
            let file_type = entry.file_type()?;
            if file_type.is_dir() {
                open.push(entry.path());
            } else if file_type.is_file() && (1..file_bytes_max).contains(&entry.metadata()?.len()) {
                files.extend(entry.path().strip_prefix(root).map(Path::to_path_buf));
            }
        }
    }
    files.sort();
    let mut random = floe_testkit::Random::new(SEED);
    let count = count.min(files.len());
    let chosen = (0..count).map(|_| {
        let place = usize::try_from(random.below(files.len() as u64)).unwrap_or(0);
        files.swap_remove(place)
    });
    Ok(chosen.collect())
}
