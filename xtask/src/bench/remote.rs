//! Launches from images in a registry.

pub(super) mod link;
mod loader;
pub(super) mod needed;
mod nydus;
mod place;
pub(super) mod program;
pub(super) mod registry;
mod scattered;
mod server;

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use floe_testkit::{
    KernelMount,
    corpus::{Format, Materialised},
};

use self::{link::Link, loader::Loader, place::Place, program::Program, scattered::Scattered};
use super::{
    contender::first_line, report::Report, results::Results, session::Session, setting::Contest, workload::Measurement,
};
use crate::task_error::{During, Outcome, TaskError};

/// Launch a program out of an image in a registry, with cold caches, over a link with a round trip time and a bandwidth:
/// `floe mount oci://…` with and without a launch profile, against a download of all and a mount by the kernel, and
/// against a download of as many bytes as the launch needs in one request, which is the limit. floe-unverified mounts the
/// image without a profile as a file on a web server. Needs root, curl and
/// docker-registry. The time runs from the start of the first program to the end of the launch.
///
/// --workload scattered: runs a program out of an image on a web server, then reads 400 small files at random places; with and
/// without a recorded profile, behind either front, and against nydusd (--nydus) and downloads of as many bytes. Needs root.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// The reads that are measured
    #[arg(long, value_enum, default_value = "launch")]
    workload: Workload,
    #[command(flatten)]
    scattered: Scattered,
    #[command(flatten)]
    loader: Loader,
    /// The program to launch
    #[arg(long, value_enum, default_value = "python")]
    program: Program,
    /// Round trip times in ms
    #[arg(long, value_name = "MS", value_delimiter = ',', default_values_t = [1, 20, 80])]
    round_trip: Vec<u64>,
    /// Bandwidths in Mbit/s
    #[arg(long, value_name = "MBIT", value_delimiter = ',', default_values_t = [100, 1000])]
    bandwidth: Vec<u64>,
    /// Directories below /usr that the image contains besides the program
    #[arg(long, value_name = "DIR", value_delimiter = ',', default_values = ["bin", "lib/x86_64-linux-gnu"])]
    tree: Vec<PathBuf>,
    /// Read all of the image too: through the mount, and after a download
    #[arg(long)]
    whole: bool,
    /// Print each request with its time
    #[arg(long)]
    trace: bool,
    /// Compare with this program, such as an earlier Floe, which mounts the image with a launch profile too
    #[arg(long, value_name = "PROGRAM")]
    base: Option<PathBuf>,
    /// Only these contenders, and other options of all benchmarks
    #[command(flatten)]
    contest: Contest,
}

/// The reads that are measured.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
enum Workload {
    /// A launch out of an image in a registry
    Launch,
    /// A launch and small files at random places, out of an image on a web server
    Scattered,
    /// Two epochs of a shuffled loader of small files, out of an image in a registry
    Loader,
}

/// The contenders, in the order of the table.
const CONTENDERS: [&str; 7] =
    ["floe-profile", "floe-base", "floe", "floe-unverified", "limit", "download", "floe-warm"];

/// Runs the benchmark and prints the results.
pub(crate) fn run(arguments: &Arguments) -> Outcome {
    match arguments.workload {
        Workload::Scattered => return scattered::run(arguments),
        Workload::Loader => return loader::run(arguments),
        Workload::Launch => {}
    }
    let floe = arguments.contest.floe()?;
    let place = Place::prepare(&floe, arguments.program, &arguments.tree, &arguments.contest)?;
    let mut results = Results::default();
    let takes = |name: &&&str| {
        let is_there = **name != "floe-base" || arguments.base.is_some();
        is_there && arguments.contest.takes(name)
    };
    for round in 0..arguments.contest.rounds {
        for mbit in &arguments.bandwidth {
            for round_trip in &arguments.round_trip {
                let row = format!("{round_trip} ms, {mbit} Mbit/s");
                for name in CONTENDERS.iter().filter(takes) {
                    eprintln!("round {}: {row}: {name}", round + 1);
                    let round_trip = Duration::from_millis(*round_trip);
                    let link = Link::new(place.registry.address, round_trip, *mbit as f64, arguments.trace)?;
                    let trial =
                        Trial { place: &place, link: &link, base: arguments.base.as_deref(), whole: arguments.whole };
                    match trial.run(name) {
                        Ok(measurements) => results.add(&row, name, measurements),
                        Err(error) => results.add_failure(format!("{row}: {name}: {error}")),
                    }
                }
            }
        }
    }
    let title = format!(
        "{}, which needs {} KiB (including the bytes for opening)",
        arguments.program.title(),
        place.needed_bytes >> 10
    );
    let version = first_line(Command::new(&floe).arg("--version"))?;
    let names = CONTENDERS.iter().filter(takes);
    let versions = names.map(|name| ((*name).to_owned(), version.clone())).collect();
    let report = Report::titled(title, place.image_bytes()?, versions, Vec::new(), results);
    Report::print(&[report], &arguments.contest)
}

/// One measurement.
struct Trial<'run> {
    place: &'run Place,
    link: &'run Link,
    base: Option<&'run Path>,
    whole: bool,
}

impl Trial<'_> {
    fn run(&self, name: &str) -> Outcome<Vec<Measurement>> {
        match name {
            "limit" => self.download(Some(self.place.needed_bytes)),
            "download" => self.download(None),
            "floe-warm" => {
                let cache = tempfile::tempdir_in(self.place.folder())?;
                self.mount(&self.place.floe, &self.image("launch"), &cache)?;
                self.mount(&self.place.floe, &self.image("launch"), &cache)
            }
            "floe-unverified" => {
                let cache = tempfile::tempdir_in(self.place.folder())?;
                self.mount(&self.place.floe, &format!("http://{}", self.blob()), &cache)
            }
            _ => {
                let cache = tempfile::tempdir_in(self.place.folder())?;
                let program = self.base.filter(|_| name == "floe-base").unwrap_or(&self.place.floe);
                self.mount(program, &self.image(if name == "floe" { "plain" } else { "launch" }), &cache)
            }
        }
    }

    /// The image with this tag in the registry.
    fn image(&self, tag: &str) -> String {
        format!("oci://{}/image:{tag}", self.link.address())
    }

    /// The image without a launch profile as a file on a web server, for which there are no digests.
    fn blob(&self) -> String {
        format!("{}/v2/image/blobs/sha256:{}", self.link.address(), self.place.digest)
    }

    /// A mount by Floe.
    fn mount(&self, program: &Path, url: &str, cache: &tempfile::TempDir) -> Outcome<Vec<Measurement>> {
        let before = self.link.passed();
        let started = Instant::now();
        let mut command = Command::new(program);
        command.args(["mount", "--cache-directory"]).arg(cache.path());
        if url.starts_with("oci:") {
            command.arg("--require-verified");
        }
        command.arg(url);
        let session = Session::by(command, "floe")?;
        if self.whole {
            self.place.read_all(&session.path())?
        } else {
            self.place.launch(&session.path())?
        };
        let elapsed = started.elapsed();
        let passed = self.link.passed();
        let (mut cpu_s, mut resident_mib) = (0.0, 0.0);
        for process in session.processes()? {
            cpu_s += process.cpu_s;
            resident_mib += process.resident_mib_max;
        }
        Ok(vec![
            Measurement::less("s", elapsed.as_secs_f64()),
            Measurement::less("requests", (passed.requests - before.requests) as f64),
            Measurement::less("connections", (passed.connections - before.connections) as f64),
            Measurement::less("MiB", (passed.bytes - before.bytes) as f64 / f64::from(1 << 20)),
            Measurement::less("CPU s", cpu_s),
            Measurement::less("RSS MiB", resident_mib),
        ])
    }

    /// A download of the first bytes of the image, or of all of it, and then a mount by the kernel. The first bytes are
    /// not those that the launch needs, only as many: it runs from the image on the disk, which is in the page cache.
    fn download(&self, bytes: Option<u64>) -> Outcome<Vec<Measurement>> {
        let folder = tempfile::tempdir_in(self.place.folder())?;
        let target = folder.path().join("image.erofs");
        if bytes.is_some() {
            // The benchmark measures the network.
            std::io::copy(&mut fs::File::open(&self.place.plain)?, &mut std::io::sink())?;
        }
        let started = Instant::now();
        let mut curl = Command::new("curl");
        curl.args(["--silent", "--fail", "--output"]).arg(&target);
        if let Some(bytes) = bytes {
            curl.arg("--range").arg(format!("0-{}", bytes - 1));
        }
        curl.arg(format!("http://{}", self.blob()));
        if !curl.stdin(Stdio::null()).status().during("curl")?.success() {
            return Err(TaskError::new("curl fails"));
        }
        let path = if bytes.is_some() { self.place.plain.clone() } else { target };
        let image = Materialised::single(path, Format::Erofs);
        let mount = KernelMount::new(&image).map_err(TaskError::new)?;
        if self.whole {
            self.place.read_all(&mount.path())?
        } else {
            self.place.launch(&mount.path())?
        };
        let elapsed = started.elapsed();
        let passed = self.link.passed();
        Ok(vec![
            Measurement::less("s", elapsed.as_secs_f64()),
            Measurement::less("requests", passed.requests as f64),
            Measurement::less("connections", passed.connections as f64),
            Measurement::less("MiB", passed.bytes as f64 / f64::from(1 << 20)),
        ])
    }
}
