//! Readers of many images under load.

use std::{path::PathBuf, thread};

use floe_lab::load::Load;
use floe_testkit::skip::Need;

use super::{
    autogroup::AutogroupOff,
    broker::Broker,
    entrant::Entrant,
    front::Front,
    image_set::{Content, ImageSet},
    launch::{LOAD, LOAD_LEAD},
    reader_set::ReaderSet,
    stand::Stand,
    tree_digest::TreeDigest,
};
use crate::{
    bench::{
        cold::Cold, contender::Contender, report::Report, results::Results, session::Session, setting::Contest,
        workload::Measurement,
    },
    task_error::{During, Outcome, TaskError},
};

/// The number of files of each generated image.
const FILE_COUNT: u32 = 50;

/// Read many images at a time while 8 processes use 90 % of a CPU each: one reader for each image, out of the service and out of a
/// floe mount for each image. Each round is a launch: new mounts, cold caches, the same reads. Shows the
/// latency of reads (with the open), and how long threads were runnable and did not run: those that decode (floe-dec), the other threads of Floe,
/// and the readers. In parentheses: how many times better the service is. Needs root.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// A directory with images of either format [generated ones, EROFS and SquashFS in turn]
    #[arg(long, value_name = "DIR")]
    images: Option<PathBuf>,
    /// The size of the largest generated file in KiB
    #[arg(long, value_name = "KIB", default_value_t = 8192)]
    file_kib_max: u64,
    /// The number of readers; they read the images in turn
    #[arg(long, value_name = "COUNT", default_value_t = 16)]
    readers: usize,
    /// The reads of each reader in a round
    #[arg(long, value_name = "COUNT", default_value_t = 60)]
    reads: usize,
    /// The size of a read in KiB
    #[arg(long, value_name = "KIB", default_value_t = 128)]
    read_kib: u64,
    /// The program for floe mount [the one that is measured]
    #[arg(long, value_name = "PROGRAM")]
    base: Option<PathBuf>,
    /// Options of floe mount for fronts, besides front= and cache-directory=. An earlier Floe may have none for kept metadata
    #[arg(long, value_name = "OPTIONS", default_value = "front-metadata=keep")]
    base_options: String,
    /// Only with this in front
    #[arg(long, value_enum)]
    front: Option<Front>,
    /// Drop only the images' pages; for a machine with other users
    #[arg(long)]
    image_caches_only: bool,
    #[command(flatten)]
    contest: Contest,
}

/// Runs the benchmark and prints the results.
pub(crate) fn run(arguments: &Arguments) -> Outcome {
    if let Some(missing) = [Need::Root, Need::Fuse].into_iter().find_map(Need::missing) {
        return Err(TaskError::new(missing));
    }
    let floe = arguments.contest.floe()?;
    let base = arguments.base.as_ref().unwrap_or(&floe);
    let autogroup = AutogroupOff::new()?;
    let stand = Stand::new()?;
    let images = match &arguments.images {
        Some(folder) => ImageSet::at(folder)?,
        None => ImageSet::generate(&floe, &stand, arguments.content())?,
    };
    let broker = Broker::start(&floe, &stand.folder().join("service"), None)?;
    let course = Course { arguments, autogroup: &autogroup, stand: &stand, images: &images };
    let mut reports = Vec::new();
    for front in Front::ALL.into_iter().filter(|front| arguments.front.is_none_or(|only| only == *front)) {
        let mut entrants = Entrant::pair(front, (&floe, &broker, ""), (base, &arguments.base_options), stand.folder())?;
        entrants.retain(|entrant| arguments.contest.takes(&entrant.contender.name));
        let results = course.run(&entrants)?;
        let versions = entrants.into_iter().map(|entrant| (entrant.contender.name, entrant.contender.version));
        let title =
            format!("front={}, {} readers of {} images under {LOAD}", front.name(), arguments.readers, images.len());
        reports.push(Report::titled(title, images.bytes()?, versions.collect(), Vec::new(), results));
    }
    let ended = broker.end().and(stand.clear());
    Report::print(&reports, &arguments.contest).and(ended)
}

impl Arguments {
    fn content(&self) -> Content {
        Content { image_count: self.readers, file_count: FILE_COUNT, file_bytes_max: self.file_kib_max << 10 }
    }
}

struct Course<'run> {
    arguments: &'run Arguments,
    autogroup: &'run AutogroupOff,
    stand: &'run Stand,
    images: &'run ImageSet,
}

impl Course<'_> {
    fn run(&self, entrants: &[Entrant]) -> Outcome<Results> {
        let mut results = Results::default();
        for entrant in entrants {
            self.prepare(entrant)?;
        }
        for round in 0..self.arguments.contest.rounds {
            let mut order: Vec<&Entrant> = entrants.iter().collect();
            if round % 2 == 1 {
                order.reverse();
            }
            for entrant in order {
                let name = &entrant.contender.name;
                eprintln!("round {}: {name}", round + 1);
                match self.measure(entrant, round) {
                    Ok(measurements) => results.add("launch", name, measurements),
                    Err(error) => {
                        self.stand.check()?;
                        results.add_failure(format!("{name}: {error}"));
                    }
                }
            }
        }
        Ok(results)
    }

    /// Checks the bytes and the fronts, and lets Floe keep metadata.
    fn prepare(&self, entrant: &Entrant) -> Outcome {
        let name = &entrant.contender.name;
        let mut sessions = self.mount(&entrant.contender)?;
        sessions.truncate(self.images.len());
        for (number, session) in sessions.iter().enumerate() {
            let image = self.images.of_mount(number);
            if TreeDigest::of(&session.path(), &image.files).during(name)? != image.digest {
                return Err(TaskError::new(format!("{name}: {} has wrong bytes", image.path.display())));
            }
        }
        let mounts: Vec<PathBuf> = sessions.iter().map(Session::path).collect();
        entrant.check_first(&mounts.iter().map(PathBuf::as_path).collect::<Vec<_>>())
    }

    fn measure(&self, entrant: &Entrant, round: u64) -> Outcome<Vec<Measurement>> {
        let cold = Cold::best(self.arguments.image_caches_only);
        for number in 0..self.images.len() {
            cold.drop_caches(&self.images.of_mount(number).path)?;
        }
        let sessions = self.mount(&entrant.contender)?;
        let mounts: Vec<PathBuf> = sessions.iter().map(Session::path).collect();
        let load = Load::start(self.autogroup.undo(), &[LOAD]).during("the load")?;
        thread::sleep(LOAD_LEAD);
        let Arguments { reads, read_kib, .. } = self.arguments;
        let readers = ReaderSet { reads: *reads, read_bytes: (read_kib << 10).max(1), round };
        let outcome = readers.run(self.stand, self.images, &mounts, &load.pids());
        drop(load);
        let measurements = outcome?;
        // Afterwards: the question would warm something.
        mounts.iter().try_for_each(|mount| entrant.check_measured(mount))?;
        Ok(measurements)
    }

    fn mount(&self, contender: &Contender) -> Outcome<Vec<Session>> {
        let mount = |number: usize| {
            self.stand.check()?;
            let image = self.images.of_mount(number);
            Session::new_in(self.stand.folder(), contender, &image.path, image.format)
        };
        (0..self.arguments.readers).map(mount).collect()
    }
}
