//! A contender with what is expected of it.

use std::{
    fs,
    path::{Path, PathBuf},
};

use super::{broker::Broker, front::Front};
use crate::{bench::contender::Contender, task_error::Outcome};

/// A contender with what is expected of it.
pub(super) struct Entrant {
    /// The contender.
    pub(super) contender: Contender,
    /// The front that its mounts must have, if it is Floe.
    pub(super) front: Option<Front>,
    /// The cache directory in which its first mount keeps the metadata of the front.
    pub(super) cache: Option<PathBuf>,
}

impl Entrant {
    /// The service, and a process for each mount: `floe mount` of another program, with options for fronts.
    pub(super) fn pair(
        front: Front,
        (floe, broker): (&Path, &Broker),
        (base, base_options): (&Path, &str),
        folder: &Path,
    ) -> Outcome<Vec<Self>> {
        let options = format!("front={}", front.name());
        let of_service = Contender::service("service", floe, &broker.socket(), &options)?;
        let cache = folder.join("cache");
        fs::create_dir_all(&cache)?;
        let mut options = format!("{options},cache-directory={}", cache.display());
        if front == Front::Kernel && !base_options.is_empty() {
            options = format!("{options},{base_options}");
        }
        let of_process = Contender::floe("floe mount", base, &["-o".to_owned(), options])?;
        Ok(vec![
            Self { contender: of_service, front: Some(front), cache: None },
            Self { contender: of_process, front: Some(front), cache: (front == Front::Kernel).then_some(cache) },
        ])
    }

    /// Checks that a mount of Floe has the expected front.
    pub(super) fn check_front(&self, mount: &Path) -> Outcome {
        self.front.map_or(Ok(()), |front| front.check(&self.contender, mount))
    }
}
