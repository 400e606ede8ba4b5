//! The trees of a round trip.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use floe_testkit::corpus::{Corpus, Materialised};

use super::succeed;
use crate::task_error::{During, Outcome, TaskError};

/// Trees with their names.
#[derive(Default)]
pub(super) struct Trees {
    pub(super) list: Vec<(String, PathBuf)>,
}

impl Trees {
    /// Adds trees of this machine, or a default.
    pub(super) fn add_given(&mut self, paths: &[PathBuf], has_default: bool) {
        let default = PathBuf::from("/usr/share");
        let default = Some(&default).filter(|_| paths.is_empty() && has_default);
        self.list.extend(paths.iter().chain(default).map(|path| (path.display().to_string(), path.clone())));
    }

    /// Downloads Debian packages and adds their contents, which are extracted in `scratch`.
    pub(super) fn add_packages(&mut self, names: &[String], scratch: &Path) -> Outcome {
        for name in names {
            let folder = scratch.join("packages").join(name.replace(['/', '='], "-"));
            fs::create_dir_all(&folder).during(folder.display())?;
            succeed(Command::new("apt-get").args(["-q", "download", name]).current_dir(&folder))?;
            let mut found = fs::read_dir(&folder).during(folder.display())?.flatten().map(|entry| entry.path());
            let package = found.find(|path| path.extension().is_some_and(|extension| extension == "deb"));
            let package = package.ok_or_else(|| TaskError::new(format!("apt-get downloads no package for {name}")))?;
            let tree = folder.join("tree");
            succeed(Command::new("dpkg-deb").arg("--extract").arg(&package).arg(&tree))?;
            self.list.push((format!("package {name}"), tree));
        }
        Ok(())
    }

    /// Extracts the source trees of the reference images, each from one of its images.
    pub(super) fn add_corpus(&mut self, floe: &Path, scratch: &Path) -> Outcome {
        let corpus = Corpus::locate().map_err(TaskError::new)?;
        let mut known = BTreeSet::new();
        for image in corpus.images() {
            // Files of many GiB take hours to compress; images at an offset or with devices have the trees of others.
            if image.huge || image.offset > 0 || !image.devices.is_empty() || !known.insert(image.tree.clone()) {
                continue;
            }
            let tree = scratch.join("corpus").join(image.tree.replace('/', "-"));
            fs::create_dir_all(&tree).during(tree.display())?;
            let Materialised { path, .. } = corpus.materialise(&image);
            succeed(Command::new(floe).args(["extract", "--quiet", "-C"]).arg(&tree).arg(&path))?;
            self.list.push((format!("reference tree {}", image.tree), tree));
        }
        Ok(())
    }
}
