//! Many nodes that start the same image at the same time.

mod fleet;
mod http;
mod image;
mod line;
mod zone_cache;

use std::{
    fs,
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use floe_testkit::target_dir;
use rustix::process::{Resource, getrlimit, setrlimit};
use serde::Serialize;

use self::{
    fleet::Fleet,
    http::Server,
    image::SimulatedImage,
    line::{Line, Traffic},
    zone_cache::{Kept, ZoneCache},
};
use crate::task_error::{Outcome, TaskError};

/// The number of failures that are printed.
const FAILURES_MAX: usize = 5;

/// Simulate nodes that all start a container of the same image, in one process: each has the reader of remote images, a disk cache
/// and connections of its own, opens the image, and reads what a launch reads. A node is ready when it has all these bytes. The
/// registry and the caches of zones are servers in this process, behind simulated lines. Each scene is run twice: cold, and with
/// the disk caches that the nodes have then.
#[derive(clap::Args)]
pub(super) struct Arguments {
    /// The number of nodes
    #[arg(long, default_value_t = 1000)]
    nodes: usize,
    /// The number of zones, each with a cache; nodes are spread evenly over them
    #[arg(long, default_value_t = 10)]
    zones: usize,
    /// The scenes: no mirrors, or the caches of zones
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [Scene::Registry, Scene::Pieces, Scene::Whole])]
    scene: Vec<Scene>,
    /// The bandwidth of the registry's line in Mbit/s
    #[arg(long, value_name = "MBIT", default_value_t = 10_000.0)]
    registry_bandwidth: f64,
    /// The round trip time to the registry in ms
    #[arg(long, value_name = "MS", default_value_t = 20.0)]
    registry_round_trip: f64,
    /// The bandwidth of the line of each zone's cache in Mbit/s
    #[arg(long, value_name = "MBIT", default_value_t = 10_000.0)]
    zone_bandwidth: f64,
    /// The round trip time to the zone's cache in ms
    #[arg(long, value_name = "MS", default_value_t = 1.0)]
    zone_round_trip: f64,
    /// The size of the image in MiB
    #[arg(long, value_name = "MIB", default_value_t = 256)]
    image: u64,
    /// How much of it a launch reads, in MiB
    #[arg(long, value_name = "MIB", default_value_t = 8)]
    launch: u64,
    /// Spread the starts of the nodes over so many ms
    #[arg(long, value_name = "MS", default_value_t = 0.0)]
    within: f64,
    /// Make lines slower, and delays longer, by this factor, and divide the measured times by it, so that the CPUs of this machine are
    /// not what limits the nodes
    #[arg(long, default_value_t = 10.0)]
    slower: f64,
    /// The directory for the caches of the nodes [default: target/bench]
    #[arg(long, value_name = "DIR")]
    directory: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
enum Scene {
    /// All nodes ask the registry
    Registry,
    /// A cache in each zone keeps pieces of what its nodes request, like Dragonfly
    Pieces,
    /// A mirror in each zone has what nodes have stored as a whole, like Spegel: nothing of an image that is only mounted
    Whole,
}

/// The measurements of one run.
#[derive(Serialize)]
struct Row {
    scene: Scene,
    /// Whether the nodes had disk caches from an earlier run.
    is_warm: bool,
    registry: Traffic,
    zones: Traffic,
    /// When nodes were ready, in seconds: the median, the 99th percentile, the last one.
    ready_s: [f64; 3],
    /// The share of the CPUs of this machine that was used.
    cpus_busy: f64,
    failed: usize,
}

/// Runs the simulation and prints the results.
pub(super) fn run(arguments: &Arguments) -> Outcome {
    arguments.check()?;
    // A node has files, and two ends of each of its connections.
    let files = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, rustix::process::Rlimit { current: files.maximum, ..files });
    let image = Arc::new(SimulatedImage::new(arguments.image << 20, arguments.launch << 20)?);
    let launch_bytes: u64 = image.launch.iter().map(|part| part.len()).sum();
    let (mut rows, mut failures) = (Vec::new(), Vec::new());
    for scene in &arguments.scene {
        rows.extend(arguments.run_scene(*scene, &image, &mut failures)?);
    }
    if arguments.json {
        let text = serde_json::to_string_pretty(&rows).map_err(|error| TaskError::new(error.to_string()))?;
        println!("{text}");
    } else {
        arguments.print(&rows, launch_bytes);
    }
    failures.truncate(FAILURES_MAX);
    TaskError::from_lines("nodes failed", &failures)
}

impl Arguments {
    fn check(&self) -> Outcome {
        let numbers = [self.registry_bandwidth, self.zone_bandwidth, self.slower];
        let delays = [self.registry_round_trip, self.zone_round_trip, self.within];
        let is_sound = numbers.iter().all(|number| *number > 0.0 && number.is_finite())
            && delays.iter().all(|delay| (0.0..1e6).contains(delay))
            && self.nodes > 0
            && self.zones > 0
            && (1..=4096).contains(&self.image);
        if is_sound { Ok(()) } else { Err(TaskError::new("numbers, bandwidths and sizes must be positive")) }
    }

    /// Starts all nodes, cold and then with their caches.
    fn run_scene(&self, scene: Scene, image: &Arc<SimulatedImage>, failures: &mut Vec<String>) -> Outcome<Vec<Row>> {
        let registry =
            Server::start(Arc::clone(image) as _, self.line(self.registry_bandwidth, self.registry_round_trip))?;
        let kept = match scene {
            Scene::Registry => None,
            Scene::Pieces => Some(Kept::Pieces),
            Scene::Whole => Some(Kept::Whole),
        };
        let zones = kept.into_iter().flat_map(|kept| (0..self.zones).map(move |_| kept)).map(|kept| {
            let cache = Arc::new(ZoneCache::new(kept, registry.address));
            Server::start(cache, self.line(self.zone_bandwidth, self.zone_round_trip))
        });
        let zones = zones.collect::<Outcome<Vec<Server>>>()?;
        let folder = self.directory.clone().unwrap_or_else(|| target_dir().join("bench"));
        fs::create_dir_all(&folder)?;
        let caches = tempfile::tempdir_in(folder)?;
        let fleet = Fleet {
            image,
            registry: registry.address.to_string(),
            mirrors: zones.iter().map(|zone| format!("http://{}", zone.address)).collect(),
            nodes: self.nodes,
            within: self.delay(self.within),
            caches: caches.path(),
        };
        let mut rows = Vec::new();
        for is_warm in [false, true] {
            eprintln!("{scene:?}: {} nodes, {}", self.nodes, if is_warm { "with their caches" } else { "cold" });
            let traffic = || (registry.line.traffic(), Traffic::sum(zones.iter().map(|zone| zone.line.traffic())));
            let (before, cpu_before, began) = (traffic(), cpu_time(), Instant::now());
            let nodes = fleet.start()?;
            let (after, cpus) = (traffic(), std::thread::available_parallelism().map_or(1, usize::from));
            let cpus_busy = (cpu_time() - cpu_before).as_secs_f64() / began.elapsed().as_secs_f64() / cpus as f64;
            let mut ready: Vec<f64> = nodes.iter().flatten().map(|time| time.as_secs_f64() / self.slower).collect();
            ready.sort_by(f64::total_cmp);
            let at = |share: f64| ready.get((ready.len() as f64 * share) as usize).or(ready.last()).copied();
            failures.extend(nodes.iter().filter_map(|node| Some(format!("{scene:?}: {}", node.as_ref().err()?))));
            rows.push(Row {
                scene,
                is_warm,
                registry: after.0.since(before.0),
                zones: after.1.since(before.1),
                ready_s: [0.5, 0.99, 1.0].map(|share| at(share).unwrap_or(f64::NAN)),
                cpus_busy,
                failed: nodes.iter().filter(|node| node.is_err()).count(),
            });
        }
        Ok(rows)
    }

    fn line(&self, mbit_per_s: f64, round_trip_ms: f64) -> Line {
        Line::new(mbit_per_s * 1e6 / 8.0 / self.slower, self.delay(round_trip_ms))
    }

    fn delay(&self, ms: f64) -> Duration {
        Duration::from_secs_f64(ms * self.slower / 1e3)
    }

    fn print(&self, rows: &[Row], launch_bytes: u64) {
        let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        println!(
            "{} nodes in {} zones start an image of {} MiB, of which a launch reads {:.1} MiB; registry {} Mbit/s, {} ms; zones {} Mbit/s, \
             {} ms; times as if lines were {} times as fast\n",
            self.nodes,
            self.zones,
            self.image,
            mib(launch_bytes),
            self.registry_bandwidth,
            self.registry_round_trip,
            self.zone_bandwidth,
            self.zone_round_trip,
            self.slower,
        );
        println!(
            "| mirrors | disk caches | MiB from the registry | requests | MiB from zones | ready p50 | p99 | last | CPUs busy | failed |"
        );
        println!("| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |");
        for row in rows {
            let [half, most, last] = row.ready_s;
            let mirrors = match row.scene {
                Scene::Registry => "none",
                Scene::Pieces => "pieces",
                Scene::Whole => "whole",
            };
            println!(
                "| {mirrors} | {} | {:.1} | {} | {:.1} | {half:.3} s | {most:.3} s | {last:.3} s | {:.0} % | {} |",
                if row.is_warm { "warm" } else { "cold" },
                mib(row.registry.bytes),
                row.registry.requests,
                mib(row.zones.bytes),
                row.cpus_busy * 100.0,
                row.failed,
            );
        }
    }
}

/// The CPU time of this process.
fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), u32::try_from(time.tv_nsec).unwrap_or(0))
}
