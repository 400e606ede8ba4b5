//! `cargo xtask stress`: reads, tunes, queries, unmounts and kills mounts at random for a given time.

mod mounted;
mod readers;
mod round;
mod service;

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    thread,
    time::{Duration, Instant},
};

use floe_sync::Mutex;
use floe_testkit::{Random, corpus::Corpus, skip::Need, target_dir, workspace_root};
use round::Round;

use crate::task_error::{During, Outcome, TaskError};

/// The options of `stress`.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// The duration in minutes
    #[arg(long, default_value_t = 10.0)]
    minutes: f64,
    /// The seed of the random number generator
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// The number of mounts at a time
    #[arg(long, default_value_t = 2)]
    jobs: u64,
    /// Drop all caches of the machine now and then
    #[arg(long)]
    drop_caches: bool,
    /// Only images whose names contain this
    #[arg(long, default_value = "")]
    image: String,
    /// Use this program instead of building one
    #[arg(long)]
    program: Option<PathBuf>,
    /// Instead, kill processes of a service that read images this often, while its mounts are read
    #[arg(long, value_name = "COUNT", default_value_t = 0)]
    domain_kills: usize,
    /// The same, for the process that mounts
    #[arg(long, value_name = "COUNT", default_value_t = 0)]
    broker_kills: usize,
    /// Replace the program of a service this often, while its mounts are read
    #[arg(long, value_name = "COUNT", default_value_t = 0)]
    upgrades: usize,
}

/// The totals so far.
#[derive(Default, Debug)]
pub(crate) struct Tally {
    rounds: u64,
    reads: u64,
    read_bytes: u64,
    killed_readers: u64,
    tunings: u64,
    status_reports: u64,
    lazy_unmounts: u64,
    killed_servers: u64,
}

/// The number of tasks that the kernel found hung since it started; `None` if it does not count them (Linux 6.16).
fn hung_tasks() -> Option<u64> {
    fs::read_to_string("/proc/sys/kernel/hung_task_detect_count").ok()?.trim().parse().ok()
}

/// Runs rounds until the time is over; at the end of each, all pages must have returned to the pool. After some, the server is
/// killed while its mount is read.
///
/// # Errors
/// Wrong bytes, a lost page, a server that fails, a mount that stays, a task that the kernel finds hung, or nothing to mount
/// with.
pub(crate) fn run(arguments: &Arguments) -> Outcome {
    if let Some(missing) = [Need::Root, Need::Fuse].into_iter().find_map(Need::missing) {
        return Err(TaskError::new(missing));
    }
    let program = match &arguments.program {
        Some(program) => program.clone(),
        None => build()?,
    };
    if arguments.domain_kills + arguments.broker_kills + arguments.upgrades > 0 {
        return service::run(arguments, &program);
    }
    let corpus = Corpus::locate_or_fixtures();
    let mut images = corpus.images();
    images.retain(|image| !image.huge && image.name.contains(&arguments.image));
    if images.is_empty() {
        return Err(TaskError::new(format!("no image name contains {:?}", arguments.image)));
    }
    let hung_before = hung_tasks();
    let (started, limit) = (Instant::now(), Duration::from_secs_f64(arguments.minutes * 60.0));
    let (tally, is_over) = (Mutex::new(Tally::default()), AtomicBool::new(false));
    let stress = |job: u64| -> Outcome {
        let mut random = Random::new(arguments.seed.wrapping_add(job << 32));
        while started.elapsed() < limit && !is_over.load(Relaxed) {
            let record = &images[random.below(images.len() as u64) as usize];
            let files = corpus.materialise(record);
            let round = Round {
                program: &program,
                files,
                manifest: corpus.manifest(record),
                drops_caches: arguments.drop_caches,
            };
            let mut added = Tally::default();
            let outcome = round.run(&mut random, &mut added).during(format!("job {job}, image {}", record.name));
            if outcome.is_err() {
                is_over.store(true, Relaxed);
            }
            outcome?;
            let mut tally = tally.lock();
            tally.add(&added);
            if tally.rounds.is_multiple_of(20) {
                eprintln!("{:>4.0} s  {tally:?}", started.elapsed().as_secs_f64());
            }
        }
        Ok(())
    };
    thread::scope(|scope| {
        let stress = &stress;
        let jobs: Vec<_> = (0..arguments.jobs).map(|job| scope.spawn(move || stress(job))).collect();
        let ended = jobs.into_iter().map(|job| job.join().unwrap_or(Err(TaskError::new("a job panicked"))));
        ended.fold(Ok(()), Outcome::and)
    })?;
    let tally = tally.into_inner();
    match hung_before.zip(hung_tasks()) {
        None => eprintln!("this kernel does not count hung tasks"),
        Some((before, after)) if before < after => {
            return Err(TaskError::new(format!("the kernel found {} tasks hung", after - before)));
        }
        Some(_) => {}
    }
    println!("all pages returned to the pool in each round: {tally:?}");
    Ok(())
}

impl Tally {
    fn add(&mut self, other: &Self) {
        self.rounds += other.rounds;
        self.reads += other.reads;
        self.read_bytes += other.read_bytes;
        self.killed_readers += other.killed_readers;
        self.tunings += other.tunings;
        self.status_reports += other.status_reports;
        self.lazy_unmounts += other.lazy_unmounts;
        self.killed_servers += other.killed_servers;
    }
}

/// Whether something is mounted on a directory.
fn is_mounted(directory: &Path) -> Outcome<bool> {
    let table = fs::read_to_string("/proc/self/mountinfo")?;
    Ok(table.lines().any(|line| line.split(' ').nth(4) == directory.to_str()))
}

/// Builds the program; returns its path.
pub(crate) fn build() -> Outcome<PathBuf> {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or("cargo".into()));
    let status = command.args(["build", "-p", "floe-cli"]).current_dir(workspace_root()).status();
    match status.during("cargo cannot be run")?.success() {
        true => Ok(target_dir().join("debug/floe")),
        false => Err(TaskError::new("building floe failed")),
    }
}
