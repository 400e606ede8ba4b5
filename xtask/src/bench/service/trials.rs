//! Interleaved runs of workloads on one image, always cold.

use std::{fs, path::PathBuf};

use super::{
    entrant::Entrant,
    errand::{Errand, workloads},
    file_list,
    launch::Launch,
    stand::Stand,
};
use crate::{
    bench::{
        contender::Contender,
        listing::ListedFile,
        results::Results,
        session::Session,
        setting::{Setting, Subject},
        workload::{Measurement, Workload},
    },
    task_error::{During, Outcome, TaskError},
};

/// The workloads to measure, and the number of repetitions.
#[derive(clap::Args)]
pub(super) struct Schedule {
    /// Only these workloads: whole-tree, random-1, random-8, find-8, stat, loader, open-1, open-8, by-path, find-size, launch
    #[arg(long, value_delimiter = ',')]
    workload: Vec<String>,
    /// The duration of random reads, in seconds
    #[arg(long, default_value_t = 4.0)]
    pub(super) seconds: f64,
    /// The launches in each round
    #[arg(long, default_value_t = 3)]
    launches: usize,
}

/// The runs on one image.
pub(super) struct Trials<'run> {
    pub(super) stand: &'run Stand,
    pub(super) errand: &'run Errand,
    pub(super) setting: &'run Setting,
    pub(super) schedule: &'run Schedule,
    /// The workloads that are run unless others are named.
    pub(super) defaults: &'run [&'run str],
    pub(super) subject: &'run Subject,
}

/// The content of the image.
struct Reference {
    /// A file with the list of the files that the user may read.
    list: PathBuf,
    digest: String,
    files: Vec<ListedFile>,
}

impl Trials<'_> {
    /// Checks that all entrants read the same bytes as the kernel (or the first one), keeps the metadata of their fronts, and runs
    /// the workloads. The order of the entrants changes between rounds.
    pub(super) fn run(&self, entrants: &[Entrant]) -> Outcome<Results> {
        let mut results = Results::default();
        let reference = self.reference(entrants)?;
        let mut left = Vec::new();
        for entrant in entrants {
            self.stand.check()?;
            match self.prepare(entrant, &reference) {
                Ok(()) => left.push(entrant),
                Err(error) => {
                    results.add_failure(format!("{}: {}: {error}", self.subject.title, entrant.contender.name))
                }
            }
        }
        for round in 0..self.setting.contest.rounds {
            for workload in self.workloads(&reference)? {
                let runs = if workload.name() == "launch" { self.schedule.launches } else { 1 };
                for run in 0..runs {
                    let is_reversed = (round as usize + run) % 2 == 1;
                    let order: Vec<_> = if is_reversed { left.iter().rev().collect() } else { left.iter().collect() };
                    for entrant in order {
                        let Entrant { contender, .. } = entrant;
                        self.stand.check()?;
                        eprintln!("round {}: {}: {}", round + 1, workload.title(), contender.name);
                        match self.measure(entrant, workload.as_ref(), &reference, round) {
                            Ok(measurements) => results.add(&workload.title(), &contender.name, measurements),
                            Err(error) => results.add_failure(format!(
                                "{}: {}: {}: {error}",
                                self.subject.title,
                                workload.title(),
                                contender.name
                            )),
                        }
                    }
                }
            }
        }
        Ok(results)
    }

    fn measure(
        &self,
        entrant: &Entrant,
        workload: &dyn Workload,
        reference: &Reference,
        round: u64,
    ) -> Outcome<Vec<Measurement>> {
        self.setting.drop_caches(&self.subject.image.path)?;
        let session = self.mount(&entrant.contender)?;
        let measurements = self.errand.run(workload, &session.path(), &reference.list, round)?;
        // Afterwards: the question would warm something.
        entrant.check_measured(&session.path())?;
        Ok(measurements)
    }

    fn prepare(&self, entrant: &Entrant, reference: &Reference) -> Outcome {
        let session = self.mount(&entrant.contender)?;
        // A mount keeps the metadata of a front once it was used.
        let digest = self.errand.digest(&session.path(), &reference.list)?;
        if digest != reference.digest {
            return Err(TaskError::new("wrong bytes, or another tree"));
        }
        entrant.check_first(&[&session.path()])
    }

    fn reference(&self, entrants: &[Entrant]) -> Outcome<Reference> {
        let kernel = Contender::kernel(self.subject.image.format).ok();
        let contender = kernel.as_ref().or(entrants.first().map(|entrant| &entrant.contender));
        let session = self.mount(contender.ok_or(TaskError::new("no contender is left to measure"))?)?;
        let files = self.errand.list(&session.path())?;
        if files.is_empty() {
            return Err(TaskError::new(format!("{} has no readable file", self.subject.title)));
        }
        let list = self.stand.folder().join("files");
        fs::write(&list, file_list::encode(&files)).during(list.display())?;
        let digest = self.errand.digest(&session.path(), &list)?;
        Ok(Reference { list, digest, files })
    }

    fn mount(&self, contender: &Contender) -> Outcome<Session> {
        let image = &self.subject.image;
        Session::new_in(self.stand.folder(), contender, &image.path, image.format)
    }

    fn workloads(&self, reference: &Reference) -> Outcome<Vec<Box<dyn Workload>>> {
        let named = &self.schedule.workload;
        let is_taken = |name: &str| match named.is_empty() {
            true => self.defaults.contains(&name) && (name != "launch" || Launch::is_possible(&reference.files)),
            false => named.iter().any(|taken| taken == name),
        };
        let mut workloads = workloads();
        if let Some(unknown) = named.iter().find(|name| !workloads.iter().any(|workload| workload.name() == **name)) {
            return Err(TaskError::new(format!("unknown workload {unknown}")));
        }
        workloads.retain(|workload| is_taken(&workload.name()));
        Ok(workloads)
    }
}
