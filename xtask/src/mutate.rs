//! `cargo xtask mutate`: runs everything that reads images on real images with mutated structures.
//!
//! Each image is a seed with a few random changes, and its number alone determines them. Workers examine images in
//! processes of their own. Findings are minimised and kept in `target/mutate`.

mod erofs_structures;
mod examination;
mod metadata_table;
mod mutator;
mod program;
mod recipe;
mod seed;
mod squashfs_plain;
mod structures;
mod supervisor;
mod survey;
mod verdict;
mod worker;

use std::{
    fs::{self, File},
    io::Write,
    path::PathBuf,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    thread,
    time::{Duration, Instant},
};

use clap::ValueEnum;
use floe_sync::Mutex;
use floe_testkit::{corpus::Corpus, target_dir};
use seed::Seeds;
use supervisor::WorkerProcess;
use verdict::Tally;
use worker::BLOCK_COUNT;

use crate::task_error::{During, Outcome, TaskError};

/// A worker examines this many images before another replaces it.
const WORKER_IMAGES: u64 = 32 * BLOCK_COUNT;

/// The interval of progress messages.
const NEWS: Duration = Duration::from_secs(15);

/// The options of `mutate`.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// The number of images
    #[arg(long, default_value_t = 10_000)]
    images: u64,
    /// Skip the rest of 16 consecutive images, which have one seed image, after this much CPU time in milliseconds, so
    /// that seeds that decode slowly do not take most of the time; skipped images do not count
    #[arg(long, value_name = "MS")]
    block_cpu_ms_max: Option<u64>,
    /// Stop after this many minutes
    #[arg(long)]
    minutes: Option<f64>,
    /// The seed of the random number generator
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Only the image with this number
    #[arg(long)]
    only: Option<u64>,
    /// The number of processes that examine images
    #[arg(long, default_value_t = 1)]
    jobs: usize,
    /// Only seed images whose names contain this
    #[arg(long, default_value = "")]
    image: String,
    /// Only the images of fixtures/, even if there is a reference corpus
    #[arg(long)]
    fixtures: bool,
    /// The stages of an examination
    #[arg(long, value_delimiter = ',', default_value = "open,walk,read,check,extract,mount")]
    stages: Vec<Stage>,
    /// Use this program instead of building one
    #[arg(long)]
    program: Option<PathBuf>,
    /// Run every n-th image through the program and a real mount too
    #[arg(long, default_value_t = 500)]
    program_every: u64,
    /// Do not minimise findings
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

/// A stage of an examination.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum Stage {
    /// Open the image. Always done.
    Open,
    /// Walk it: names, attributes, link targets.
    Walk,
    /// Read all data; if the image is valid, read it again with other read sizes.
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
/// An image caused a fault, or the machine does not permit a step.
pub(crate) fn run(arguments: &Arguments) -> Outcome {
    let corpus = if arguments.fixtures { Corpus::fixtures() } else { Corpus::locate_or_fixtures() };
    let seeds = Seeds::new(corpus, &arguments.image);
    if seeds.count() == 0 {
        return Err(TaskError::new(format!("no image name contains {:?}", arguments.image)));
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

/// The images of one invocation.
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
        let (from, to) = match (self.arguments.only, self.arguments.block_cpu_ms_max) {
            (Some(only), _) => (only, only + 1),
            (None, None) => (0, self.arguments.images),
            (None, Some(_)) => (0, u64::MAX),
        };
        let next = AtomicU64::new(from);
        let is_over = || {
            let minutes = self.arguments.minutes.unwrap_or(f64::INFINITY);
            self.tally().images >= self.arguments.images || started.elapsed().as_secs_f64() > minutes * 60.0
        };
        let told = Mutex::new(Instant::now());
        let work = || -> Outcome {
            loop {
                let first = next.fetch_add(WORKER_IMAGES, Relaxed);
                if first >= to || is_over() {
                    return Ok(());
                }
                self.examine(first, to.min(first + WORKER_IMAGES))?;
                let mut told = told.lock();
                if told.elapsed() > NEWS {
                    *told = Instant::now();
                    eprintln!("{:>5.0} s  {}", started.elapsed().as_secs_f64(), self.tally().line());
                }
            }
        };
        thread::scope(|scope| {
            let jobs: Vec<_> = (0..self.arguments.jobs.max(1)).map(|_| scope.spawn(work)).collect();
            jobs.into_iter().try_for_each(|job| job.join().unwrap_or_else(|_| Err(TaskError::new("a job panicked"))))
        })?;
        println!("{}", self.tally());
        let minutes = started.elapsed().as_secs_f64() / 60.0;
        println!("{:.0} images a minute with seed {}", self.tally().images as f64 / minutes, self.arguments.seed);
        self.report()
    }

    fn tally(&self) -> floe_sync::MutexGuard<'_, Tally> {
        self.tally.lock()
    }

    /// Lets workers examine the images from `first` up to `to`; a new worker continues where one ended.
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
        arguments.extend(self.arguments.block_cpu_ms_max.map(|max| format!("--block-cpu-ms-max={max}")));
        arguments.extend(self.program.as_ref().map(|program| format!("--program={}", program.display())));
        arguments
    }

    /// Minimises the findings and stores them.
    fn report(&self) -> Outcome {
        let faults: Vec<_> = std::mem::take(&mut self.tally().faults).into_values().collect();
        let mut lines = Vec::new();
        for (number, (count, fault, case)) in faults.iter().enumerate() {
            let recipe = if self.arguments.no_minimise {
                case.recipe.clone()
            } else {
                supervisor::minimise(&case.recipe, fault, &self.worker_arguments(), &self.folder)?
            };
            let name = format!("mutated-{}-{}", self.arguments.seed, case.verdict.index);
            let path = self.folder.join(format!("{name}-{number}.json"));
            fs::write(&path, serde_json::to_vec_pretty(&recipe).during("a recipe")?)?;
            if let Some(seed) = self.seeds.named(&recipe.seed) {
                let mut fixtures =
                    File::options().create(true).append(true).open(self.folder.join("findings.jsonl"))?;
                writeln!(fixtures, "{}", recipe.fixture(&seed, &name, &fault.message))?;
            }
            let kinds = recipe.kinds().join(", ");
            let shown: String = fault.message.chars().take(300).collect();
            lines.push(format!(
                "{:?}, {count} times, first --only {}: {shown} [{}: {kinds}; {}]",
                fault.kind,
                case.verdict.index,
                recipe.seed,
                path.display()
            ));
        }
        TaskError::from_lines("findings", &lines)
    }
}
