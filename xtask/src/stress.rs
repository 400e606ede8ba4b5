//! `cargo xtask stress`: reads, tunes, queries and unmounts mounts at random for a given time.

mod mounted;
mod readers;
mod round;

use std::{
    path::PathBuf,
    process::Command,
    time::{Duration, Instant},
};

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
    /// Only images whose names contain this
    #[arg(long, default_value = "")]
    image: String,
    /// Use this program instead of building one
    #[arg(long)]
    program: Option<PathBuf>,
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
}

/// Runs rounds until the time is over; at the end of each, all pages must have returned to the pool.
///
/// # Errors
/// Wrong bytes, a lost page, a server that fails, or nothing to mount with.
pub(crate) fn run(arguments: &Arguments) -> Outcome {
    if let Some(missing) = [Need::Root, Need::Fuse].into_iter().find_map(Need::missing) {
        return Err(TaskError::new(missing));
    }
    let program = match &arguments.program {
        Some(program) => program.clone(),
        None => build()?,
    };
    let corpus = Corpus::locate_or_fixtures();
    let mut images = corpus.images();
    images.retain(|image| !image.huge && image.name.contains(&arguments.image));
    if images.is_empty() {
        return Err(TaskError::new(format!("no image name contains {:?}", arguments.image)));
    }
    let (started, limit) = (Instant::now(), Duration::from_secs_f64(arguments.minutes * 60.0));
    let mut random = Random::new(arguments.seed);
    let mut tally = Tally::default();
    while started.elapsed() < limit {
        let record = &images[random.below(images.len() as u64) as usize];
        let round = Round { program: &program, files: corpus.materialise(record), manifest: corpus.manifest(record) };
        let number = tally.rounds;
        round.run(&mut random, &mut tally).during(format!("round {number}, image {}", record.name))?;
        tally.rounds += 1;
        if tally.rounds.is_multiple_of(20) {
            eprintln!("{:>4.0} s  {tally:?}", started.elapsed().as_secs_f64());
        }
    }
    println!("all pages returned to the pool in each round: {tally:?}");
    Ok(())
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
