//! `cargo xtask mutate`: real images with changed structures, through everything that reads them.
//!
//! Each image is made of a seed by a few changes that chance chooses, and its number alone says which. Workers examine
//! them in processes of their own. What no image may cause is made as small as may be and kept under `target/mutate`.

mod erofs_plain;
mod erofs_structures;
mod examination;
mod herd;
mod metadata_table;
mod minimise;
mod mutator;
mod program;
mod recipe;
mod seed;
mod squashfs_plain;
mod structures;
mod survey;
mod tally;
mod verdict;
mod worker;

use std::{
    fs::{self, File},
    io::Write,
    path::PathBuf,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};

use clap::ValueEnum;
use floe_testkit::{corpus::Corpus, target_dir};
use herd::WorkerProcess;
use seed::Seeds;
use tally::Tally;
use worker::BLOCK_COUNT;

use crate::complaint::{Complaint, During, Outcome};

/// A worker examines so many images before another takes its place.
const WORKER_IMAGES: u64 = 32 * BLOCK_COUNT;

/// How often it is said how far it is.
const NEWS: Duration = Duration::from_secs(15);

/// How to mutate.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// How many images
    #[arg(long, default_value_t = 10_000)]
    images: u64,
    /// Ends after so many minutes, if there are images left
    #[arg(long)]
    minutes: Option<f64>,
    /// What all chance comes from
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Only the image with this number
    #[arg(long)]
    only: Option<u64>,
    /// How many processes examine images
    #[arg(long, default_value_t = 1)]
    jobs: usize,
    /// Only seeds whose names contain this
    #[arg(long, default_value = "")]
    image: String,
    /// Only the images of fixtures/, even if there is a reference corpus
    #[arg(long)]
    fixtures: bool,
    /// What is done with each image
    #[arg(long, value_delimiter = ',', default_value = "open,walk,read,check,extract,mount")]
    stages: Vec<Stage>,
    /// The program, in place of the one that is built for it
    #[arg(long)]
    program: Option<PathBuf>,
    /// Every n-th image goes through the program too, and through a real mount
    #[arg(long, default_value_t = 500)]
    program_every: u64,
    /// Leave findings as they are, rather than making them smaller
    #[arg(long)]
    no_minimise: bool,
    /// Examine the images from this number on
    #[arg(long, hide = true, requires = "to")]
    from: Option<u64>,
    /// up to this one, in this process
    #[arg(long, hide = true)]
    to: Option<u64>,
    /// Examine the image of this recipe, in this process
    #[arg(long, value_name = "FILE")]
    recipe: Option<PathBuf>,
}

/// What is done with an image.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum Stage {
    /// Open it. Always done.
    Open,
    /// Walk it: names, attributes, targets of links.
    Walk,
    /// Read all data, and if it is sound once more in other pieces.
    Read,
    /// Check it.
    Check,
    /// Extract it.
    Extract,
    /// Mount it and read the mount.
    Mount,
}

/// Makes and examines images.
///
/// # Errors
/// An image caused what none may cause, or the machine does not allow it.
pub(crate) fn run(arguments: &Arguments) -> Outcome {
    let corpus = if arguments.fixtures { Corpus::fixtures() } else { Corpus::locate_or_fixtures() };
    let seeds = Seeds::new(corpus, &arguments.image);
    if seeds.count() == 0 {
        return Err(Complaint::new(format!("no image has {:?} in its name", arguments.image)));
    }
    if let Some(recipe) = &arguments.recipe {
        return worker::run_recipe(arguments, &seeds, recipe);
    }
    if let Some((from, to)) = arguments.from.zip(arguments.to) {
        return worker::run(arguments, &seeds, from, to);
    }
    let needs_program = arguments.stages.contains(&Stage::Mount);
    let program = match &arguments.program {
        None if needs_program => Some(crate::stress::build()?),
        program => program.clone(),
    };
    let folder = target_dir().join("mutate");
    fs::create_dir_all(&folder)?;
    let campaign = Campaign { arguments, seeds: &seeds, program, folder, tally: Mutex::default() };
    campaign.run()
}

/// All images of one call.
struct Campaign<'a> {
    arguments: &'a Arguments,
    seeds: &'a Seeds,
    program: Option<PathBuf>,
    folder: PathBuf,
    tally: Mutex<Tally>,
}

impl Campaign<'_> {
    fn run(&self) -> Outcome {
        let started = Instant::now();
        let (from, to) = match self.arguments.only {
            Some(only) => (only, only + 1),
            None => (0, self.arguments.images),
        };
        let next = AtomicU64::new(from);
        let is_over = || {
            let minutes = self.arguments.minutes.unwrap_or(f64::INFINITY);
            started.elapsed().as_secs_f64() > minutes * 60.0
        };
        let told = Mutex::new(Instant::now());
        let work = || -> Outcome {
            loop {
                let first = next.fetch_add(WORKER_IMAGES, Relaxed);
                if first >= to || is_over() {
                    return Ok(());
                }
                self.examine(first, to.min(first + WORKER_IMAGES))?;
                let mut told = told.lock().unwrap_or_else(PoisonError::into_inner);
                if told.elapsed() > NEWS {
                    *told = Instant::now();
                    eprintln!("{:>5.0} s  {}", started.elapsed().as_secs_f64(), self.tally().line());
                }
            }
        };
        thread::scope(|scope| {
            let jobs: Vec<_> = (0..self.arguments.jobs.max(1)).map(|_| scope.spawn(work)).collect();
            jobs.into_iter().try_for_each(|job| job.join().unwrap_or_else(|_| Err(Complaint::new("a job panicked"))))
        })?;
        println!("{}", self.tally());
        let minutes = started.elapsed().as_secs_f64() / 60.0;
        println!("{:.0} images a minute with seed {}", self.tally().images as f64 / minutes, self.arguments.seed);
        self.report()
    }

    fn tally(&self) -> std::sync::MutexGuard<'_, Tally> {
        self.tally.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has workers examine the images from `first` up to `to`; one takes over where another ended.
    fn examine(&self, mut first: u64, to: u64) -> Outcome {
        while first < to {
            let mut arguments = self.worker_arguments();
            arguments.extend(["--from".to_owned(), first.to_string(), "--to".to_owned(), to.to_string()]);
            let last = WorkerProcess::start(&arguments)?.follow(&mut |case| self.tally().add(&case))?;
            first = last.map_or(to, |last| last + 1);
        }
        Ok(())
    }

    fn worker_arguments(&self) -> Vec<String> {
        let stages: Vec<String> =
            self.arguments.stages.iter().map(|stage| format!("{stage:?}").to_lowercase()).collect();
        let mut arguments = vec![
            format!("--seed={}", self.arguments.seed),
            format!("--image={}", self.arguments.image),
            format!("--stages={}", stages.join(",")),
            format!("--program-every={}", self.arguments.program_every),
        ];
        arguments.extend(self.arguments.fixtures.then(|| "--fixtures".to_owned()));
        arguments.extend(self.program.as_ref().map(|program| format!("--program={}", program.display())));
        arguments
    }

    /// Keeps what was found, as small as may be.
    fn report(&self) -> Outcome {
        let faults: Vec<_> = std::mem::take(&mut self.tally().faults).into_values().collect();
        let mut lines = Vec::new();
        for (number, (count, fault, case)) in faults.iter().enumerate() {
            let recipe = if self.arguments.no_minimise {
                case.recipe.clone()
            } else {
                minimise::minimise(&case.recipe, fault, &self.worker_arguments(), &self.folder)?
            };
            let name = format!("mutated-{}-{}", self.arguments.seed, case.verdict.index);
            let path = self.folder.join(format!("{name}-{number}.json"));
            fs::write(&path, serde_json::to_vec_pretty(&recipe).during("a recipe")?)?;
            if let Some(seed) = self.seeds.named(&recipe.seed) {
                let mut fixtures =
                    File::options().create(true).append(true).open(self.folder.join("findings.jsonl"))?;
                writeln!(fixtures, "{}", recipe.fixture(&seed, &name, &fault.words))?;
            }
            let kinds = recipe.kinds().join(", ");
            let shown: String = fault.words.chars().take(300).collect();
            lines.push(format!(
                "{:?}, {count} times, first --only {}: {shown} [{}: {kinds}; {}]",
                fault.kind,
                case.verdict.index,
                recipe.seed,
                path.display()
            ));
        }
        Complaint::from_lines("findings", &lines)
    }
}
