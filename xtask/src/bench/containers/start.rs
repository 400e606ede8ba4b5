//! From the pull of an image to the first line of a program in a container.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant},
};

use floe_testkit::container_root;

use super::{
    super::{
        contender::first_line, remote::link::Link, report::Report, results::Results, setting::Contest,
        workload::Measurement,
    },
    image::ContainerImage,
    launched::Launched,
    node::{Node, cool_down, quoted, remove},
    stargz::Stargz,
};
use crate::task_error::{Outcome, TaskError};

/// Pull an image of about a gigabyte and run a program in a container of it, to the program's first line, with cold caches, over a
/// link with a round trip time and a bandwidth. floe-profile: Floe's snapshotter, with layers that were converted with a profile of
/// the launch; floe: without one; overlayfs: all layers are pulled and unpacked; erofs: containerd's erofs snapshotter converts them
/// with the original mkfs.erofs; erofs-floe: it converts them with Floe's; erofs-layers: it pulls EROFS layers; stargz: the
/// stargz snapshotter, if containerd-stargz-grpc is among the peers, with an image that ctr-remote has optimised. The limit
/// downloads as many bytes as the launch needs in one request, and runs the program in a container of an image that is unpacked and
/// in memory. Needs root, docker-registry, the root directory with containerd (FLOE_CONTAINERS), and python3, node and java, which
/// the image is made of.
#[derive(clap::Args)]
pub(super) struct Arguments {
    /// The programs to launch
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = Launched::ALL)]
    program: Vec<Launched>,
    /// Round trip times in ms
    #[arg(long, value_name = "MS", value_delimiter = ',', default_values_t = [1, 20])]
    round_trip: Vec<u64>,
    /// Bandwidths in Mbit/s
    #[arg(long, value_name = "MBIT", value_delimiter = ',', default_values_t = [100, 1000])]
    bandwidth: Vec<u64>,
    /// Run Floe without the service: each layer has processes of its own
    #[arg(long)]
    without_service: bool,
    /// Print each request with its time
    #[arg(long)]
    trace: bool,
    /// Keep the files of the last run in this directory
    #[arg(long, value_name = "DIR")]
    keep: Option<PathBuf>,
    /// Only these contenders, and other options of all benchmarks
    #[command(flatten)]
    contest: Contest,
}

/// The contenders, in the order of the table.
const CONTENDERS: [&str; 8] =
    ["floe-profile", "floe", "overlayfs", "erofs", "erofs-floe", "erofs-layers", "stargz", "limit"];

/// Runs the benchmark and prints the results.
pub(super) fn run(arguments: &Arguments) -> Outcome {
    let floe = fs::canonicalize(arguments.contest.floe()?)?;
    let image = ContainerImage::prepare(&floe, &arguments.program, &arguments.contest)?;
    let stargz = arguments.contest.peer(Stargz::program()).map(Stargz);
    let takes = |name: &&str| arguments.contest.takes(name) && (*name != "stargz" || stargz.is_ok());
    let names: Vec<&str> = CONTENDERS.into_iter().filter(takes).collect();
    if let Some(stargz) = stargz.as_ref().ok().filter(|_| names.contains(&"stargz")) {
        arguments.program.iter().try_for_each(|program| stargz.prepare(&floe, &image, *program))?;
    }
    let mut results: Vec<Results> = arguments.program.iter().map(|_| Results::default()).collect();
    for round in 0..arguments.contest.rounds {
        for (program, results) in arguments.program.iter().zip(&mut results) {
            for mbit in &arguments.bandwidth {
                for round_trip in &arguments.round_trip {
                    let row = format!("{round_trip} ms, {mbit} Mbit/s");
                    for name in &names {
                        eprintln!("round {}: {}: {row}: {name}", round + 1, program.name());
                        let round_trip = Duration::from_millis(*round_trip);
                        let address = image.registry.address;
                        let link = Link::new(address, round_trip, *mbit as f64, arguments.trace)?;
                        let trial = Trial {
                            image: &image,
                            link: &link,
                            floe: &floe,
                            stargz: stargz.as_ref().ok(),
                            program: *program,
                            arguments,
                        };
                        match trial.run(name) {
                            Ok(measurements) => results.add(&row, name, measurements),
                            Err(error) => results.add_failure(format!("{row}: {name}: {error}")),
                        }
                    }
                }
            }
        }
    }
    let absent: Vec<String> = stargz.err().into_iter().collect();
    let containerd = container_root().unwrap_or_default().join("usr/bin/containerd");
    let [floe, containerd] = [floe, containerd].map(|program| first_line(Command::new(program).arg("--version")));
    let (floe, containerd) = (floe?, containerd?);
    let version = |name: &str| if name.starts_with("floe") { floe.clone() } else { containerd.clone() };
    let versions: Vec<_> = names.iter().map(|name| ((*name).to_owned(), version(name))).collect();
    let mut reports = Vec::new();
    for (program, results) in arguments.program.iter().zip(results) {
        let title = format!("{}, which needs {} KiB", program.title(), image.needed_bytes(*program)? >> 10);
        reports.push(Report::titled(title, image.archive_bytes()?, versions.clone(), absent.clone(), results));
    }
    Report::print(&reports, &arguments.contest)
}

/// One measurement.
struct Trial<'run> {
    image: &'run ContainerImage,
    link: &'run Link,
    floe: &'run Path,
    stargz: Option<&'run Stargz>,
    program: Launched,
    arguments: &'run Arguments,
}

impl Trial<'_> {
    fn run(&self, name: &str) -> Outcome<Vec<Measurement>> {
        let (snapshotter, tag) = match name {
            "floe-profile" => ("floe", self.program.name().to_owned()),
            "floe" => ("floe", ContainerImage::EROFS.to_owned()),
            "erofs-layers" => ("erofs", ContainerImage::EROFS.to_owned()),
            "erofs-floe" => ("erofs", ContainerImage::ARCHIVES.to_owned()),
            "stargz" => ("stargz", Stargz::tag(self.program)),
            "limit" => return self.limit(),
            other => (other, ContainerImage::ARCHIVES.to_owned()),
        };
        let reference = format!("{}/image:{tag}", self.link.address());
        let command = quoted(&self.program.command()?);
        let folder = self.image.folder().join("node");
        remove(&folder)?;
        fs::create_dir_all(&folder)?;
        let daemons = match (snapshotter, self.arguments.without_service, self.stargz) {
            ("floe", false, _) => "start_service\nstart_snapshotter".to_owned(),
            ("floe", true, _) => "start_snapshotter".to_owned(),
            ("stargz", _, Some(stargz)) => stargz.install(&folder, &self.link.address().to_string())?,
            ("erofs", ..) if name == "erofs-floe" => "use_mkfs_of_floe".to_owned(),
            _ => String::new(),
        };
        let pull = match snapshotter {
            "stargz" => format!("pull_stargz {reference}"),
            _ => format!("pull {snapshotter} {reference}"),
        };
        let script = format!(
            "{daemons}\nstart_containerd\nwait_for_go\n{pull}\necho pulled\n\
             run {snapshotter} {reference} floe-bench {command}\nread -r line"
        );
        let mut node = Node::start(&folder, self.floe, &script)?;
        cool_down(self.floe, self.image.registry.folder())?;
        let measured = self.measure(&mut node)?;
        if let Some(kept) = &self.arguments.keep {
            fs::create_dir_all(kept)?;
            fs::copy(folder.join("log"), kept.join(format!("{name}.log")))?;
        }
        drop(node);
        remove(&folder)?;
        Ok(measured)
    }

    /// Lets the script of a node go on, until the program in the container prints its first line.
    fn measure(&self, node: &mut Node) -> Outcome<Vec<Measurement>> {
        let (before, taken_before) = (self.link.passed(), node.taken()?);
        let started = Instant::now();
        node.go()?;
        node.wait_for("pulled")?;
        let pulled = started.elapsed();
        if node.line()? == "failed" {
            return Err(TaskError::new("the container does not start"));
        }
        let elapsed = started.elapsed();
        let (passed, taken) = (self.link.passed().since(before), node.taken()?);
        Ok(vec![
            Measurement::less("s", elapsed.as_secs_f64()),
            Measurement::less("s pull", pulled.as_secs_f64()),
            Measurement::less("MiB", passed.bytes as f64 / f64::from(1 << 20)),
            Measurement::less("requests", passed.requests as f64),
            Measurement::less("CPU s", taken.cpu_s - taken_before.cpu_s),
            Measurement::less("node PSS MiB", taken.pss_mib),
            Measurement::less("Floe PSS MiB", taken.floe_pss_mib),
        ])
    }

    /// A download of as many bytes as the launch needs, and a container of an image that is unpacked and in memory.
    fn limit(&self) -> Outcome<Vec<Measurement>> {
        let folder = self.image.folder().join("node-with-image");
        let reference = format!("{}/image:{}", self.image.registry.address, ContainerImage::ARCHIVES);
        let command = quoted(&self.program.command()?);
        let needed = self.image.needed_bytes(self.program)?;
        let url = format!("http://{}/{}", self.link.address(), self.image.large_blob()?);
        // The first container reads all that the second one needs into the page cache.
        let script = format!(
            "start_containerd\nctr images ls -q | grep -qxF {reference} || pull overlayfs {reference}\n\
             run overlayfs {reference} floe-bench-first {command} > /run/first\nuntil [ -s /run/first ]; do sleep 0.1; done\n\
             end floe-bench-first\nwait_for_go\ncurl --silent --fail --range 0-{} --output /run/scene/part {url}\necho pulled\n\
             run overlayfs {reference} floe-bench {command}\nread -r line\nend floe-bench\necho ended",
            needed - 1
        );
        fs::create_dir_all(&folder)?;
        let mut node = Node::start(&folder, self.floe, &script)?;
        let measured = self.measure(&mut node)?;
        // The image stays for the next trial.
        node.go()?;
        while node.line()? != "ended" {}
        Ok(measured)
    }
}
