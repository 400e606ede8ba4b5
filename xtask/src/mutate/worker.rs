//! The process that examines images, so that crashes do not end the task.

use std::{
    fs,
    io::{self, Write},
    path::{Path, PathBuf},
    sync::{Arc, atomic::AtomicBool},
};

use floe_testkit::{Random, skip::Need};
use rustix::process::{Resource, Rlimit, setrlimit};

use super::{
    Arguments, Stage,
    examination::{Examination, remember_panics},
    mutator::Mutator,
    recipe::Recipe,
    seed::{Seed, Seeds},
    verdict::{Case, Verdict},
};
use crate::task_error::{During, Outcome};

/// This many consecutive images have the same seed.
pub(super) const BLOCK_COUNT: u64 = 16;

/// The address space limit of a worker; exceeding it ends the worker and protects the machine.
const ADDRESS_BYTES_MAX: u64 = 4 << 30;

/// The size limit of extracted files.
const FILE_BYTES_MAX: u64 = 1 << 42;

/// The prefix of the line before an image; the recipe follows.
pub(super) const BEGINS: &str = "begins ";

/// Examines images. Writes a line at the beginning of each, and its case at the end.
struct Worker<'a> {
    arguments: &'a Arguments,
    scratch: tempfile::TempDir,
    stages: Vec<Stage>,
}

/// Makes and examines the images from `from` up to `to`.
///
/// # Errors
/// The machine does not permit a step.
pub(super) fn run(arguments: &Arguments, seeds: &Seeds, from: u64, to: u64) -> Outcome {
    let worker = Worker::new(arguments)?;
    let mut known: Option<(u64, Seed, Seed)> = None;
    let mut spent_ms = 0;
    for index in from..to {
        let block = index / BLOCK_COUNT;
        if known.as_ref().is_none_or(|(known, ..)| *known != block) {
            spent_ms = 0;
            let mut random = Random::new(arguments.seed ^ block.wrapping_mul(0x9e37_79b9_7f4a_7c15));
            let seed = random.below(seeds.count() as u64) as usize;
            let donor = seeds.alike(seed, random.next());
            known = Some((block, seeds.load(seed), seeds.load(donor)));
        }
        let Some((_, seed, donor)) = &known else { continue };
        if arguments.block_cpu_ms_max.is_some_and(|max| spent_ms > max) {
            continue;
        }
        let chance = Random::new(arguments.seed).next() ^ index.wrapping_mul(0xd134_2543_de82_ef95);
        let recipe = Mutator::new(seed, donor, chance).recipe();
        spent_ms += worker.examine(index, seed, recipe)?;
    }
    Ok(())
}

/// Examines the image of one recipe.
///
/// # Errors
/// The recipe is invalid, or the machine does not permit a step.
pub(super) fn run_recipe(arguments: &Arguments, seeds: &Seeds, path: &Path) -> Outcome {
    let recipe: Recipe = serde_json::from_slice(&fs::read(path)?).during("the recipe")?;
    let missing = || crate::task_error::TaskError::new(format!("unknown seed {}", recipe.seed));
    let seed = seeds.named(&recipe.seed).ok_or_else(missing)?;
    // The number selects additional stages; 0 selects all of them.
    Worker::new(arguments)?.examine(0, &seed, recipe).map(drop)
}

impl<'a> Worker<'a> {
    fn new(arguments: &'a Arguments) -> Outcome<Self> {
        remember_panics();
        let limit = |bytes| Rlimit { current: Some(bytes), maximum: Some(bytes) };
        setrlimit(Resource::As, limit(ADDRESS_BYTES_MAX))?;
        setrlimit(Resource::Fsize, limit(FILE_BYTES_MAX))?;
        // Makes a write beyond the limit an error instead of a signal.
        signal_hook::flag::register(signal_hook::consts::SIGXFSZ, Arc::<AtomicBool>::default())?;
        let memory = Path::new("/dev/shm");
        let place = if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() };
        let scratch = tempfile::Builder::new().prefix("floe-mutate-").tempdir_in(place)?;
        fs::create_dir(scratch.path().join("extracted"))?;
        let mut stages = arguments.stages.clone();
        if Need::Fuse.missing().is_some() {
            stages.retain(|stage| *stage != Stage::Mount);
        }
        Ok(Self { arguments, scratch, stages })
    }

    /// Examines one image; returns the CPU time of the library in milliseconds.
    fn examine(&self, index: u64, seed: &Seed, recipe: Recipe) -> Outcome<u64> {
        let kinds = recipe.kinds().into_iter().map(str::to_owned).collect();
        let mut case =
            Case { verdict: Verdict { index, seed: seed.name.clone(), kinds, ..Verdict::default() }, recipe };
        // The supervising process reports what ends this one, and needs the recipe for that.
        let mut output = io::stdout().lock();
        writeln!(output, "{BEGINS}{}", serde_json::to_string(&case).during("a case")?)?;
        output.flush()?;
        let path = self.scratch.path().join("image");
        fs::write(&path, case.recipe.apply(seed))?;
        let scratch: PathBuf = self.scratch.path().join("extracted");
        let examination = Examination { path: &path, seed, stages: &self.stages, scratch: &scratch };
        let survey = examination.run(&mut case.verdict);
        if let Some(program) = &self.arguments.program
            && index.is_multiple_of(self.arguments.program_every)
        {
            examination.run_program(program, &survey, &mut case.verdict)?;
        }
        // The recipe is not repeated.
        if case.verdict.faults.is_empty() {
            case.recipe = Recipe::default();
        }
        writeln!(output, "{}", serde_json::to_string(&case).during("a case")?)?;
        output.flush()?;
        Ok(case.verdict.cpu_ms)
    }
}
