//! A contender with what is expected of it.

use std::path::{Path, PathBuf};

use super::{broker::Broker, front::Front};
use crate::{
    bench::{contender::Contender, kept},
    task_error::{Outcome, TaskError},
};

/// A contender with what is expected of it.
pub(super) struct Entrant {
    /// The contender.
    pub(super) contender: Contender,
    /// The front that its mounts must have, if it is Floe.
    pub(super) front: Option<Front>,
    /// The cache directory in which a process for each mount keeps the metadata of fronts; its own.
    pub(super) cache: Option<PathBuf>,
}

impl Entrant {
    /// The service, with options, and a process for each mount: `floe mount` of another program, with options for fronts.
    pub(super) fn pair(
        front: Front,
        (floe, broker, service_options): (&Path, &Broker, &str),
        (base, base_options): (&Path, &str),
        folder: &Path,
    ) -> Outcome<Vec<Self>> {
        let options = format!("front={}", front.name());
        let separator = if service_options.is_empty() { "" } else { "," };
        let of_service = format!("{options}{separator}{service_options}");
        let of_service = Contender::service("service", floe, &broker.socket(), &of_service)?;
        let cache = new_cache(folder)?;
        let mut options = format!("{options},cache-directory={}", cache.display());
        if front == Front::Kernel && !base_options.is_empty() {
            options = format!("{options},{base_options}");
        }
        let is_kept = front == Front::Kernel && base_options.contains("front-metadata=keep");
        let of_process = Contender::floe("floe mount", base, &["-o".to_owned(), options])?;
        Ok(vec![
            Self { contender: of_service, front: Some(front), cache: None },
            Self { contender: of_process, front: Some(front), cache: is_kept.then_some(cache) },
        ])
    }

    /// Checks the first mount of some images: the front, and that its metadata are kept for the next mounts.
    pub(super) fn check_first(&self, mounts: &[&Path]) -> Outcome {
        let Some(front) = self.front else { return Ok(()) };
        for mount in mounts {
            front.check(&self.contender, mount)?;
        }
        self.cache.as_ref().map_or(Ok(()), |cache| kept::wait_for(cache, mounts.len()))
    }

    /// Checks a mount that was measured: the front, with kept metadata if this is expected.
    pub(super) fn check_measured(&self, mount: &Path) -> Outcome {
        let Some(front) = self.front else { return Ok(()) };
        let reason = front.check(&self.contender, mount)?;
        let is_expected = front == Front::Kernel && (self.cache.is_some() || self.contender.is_client());
        if is_expected && !reason.contains("with kept metadata") {
            return Err(TaskError::new(format!("{}: the front has no kept metadata: {reason}", self.contender.name)));
        }
        Ok(())
    }
}

/// Creates a cache directory in the folder of a stand.
pub(super) fn new_cache(folder: &Path) -> Outcome<PathBuf> {
    Ok(tempfile::Builder::new().prefix("cache-").tempdir_in(folder)?.keep())
}
