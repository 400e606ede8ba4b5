//! Drops caches before each measurement.

use std::{
    fs::{self, File},
    path::Path,
};

use rustix::fs::Advice;

use crate::task_error::{During, Outcome};

/// Which caches are dropped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Cold {
    /// The image's pages, and all clean caches of the machine. Needs root.
    Machine,
    /// The image's pages only. Caches of a mount end with the mount.
    Image,
}

impl Cold {
    /// The most that this user can drop.
    pub(super) fn best(image_only: bool) -> Self {
        if !image_only && rustix::process::geteuid().is_root() { Self::Machine } else { Self::Image }
    }

    /// Drops the caches. The image must not be mounted.
    pub(super) fn drop_caches(self, image: &Path) -> Outcome {
        let file = File::open(image).during(image.display())?;
        rustix::fs::fadvise(&file, 0, None, Advice::DontNeed).during("fadvise")?;
        if self == Self::Machine {
            fs::write("/proc/sys/vm/drop_caches", "3").during("/proc/sys/vm/drop_caches")?;
        }
        Ok(())
    }
}
