//! Gives the files of a build their names.
//!
//! Several files cannot get their names at once, and a crash may come between two renames. Nothing would show a reader
//! that an image belongs to another blob device, or to another root hash. So the order is:
//!
//! 1. All files are complete and synced.
//! 2. Existing files that are valid only with the earlier image are set aside, that is, renamed to temporary names: the
//!    companions, and with a blob device the earlier image and blob device. The directories are synced.
//! 3. The blob device gets its name, then the image, so that an image never refers to a missing blob device. The
//!    directories are synced.
//! 4. The files that were set aside are removed.
//! 5. The companions get their names.
//!
//! After a crash, the files under the final names belong together; one of them may be missing. If a step up to 3 fails,
//! the earlier files get their names back.

use std::{
    fs::{self, File},
    io,
    path::{Path, PathBuf},
};

use floe_image::ShownName;
use rustix::io::Errno;

use crate::{
    error::{Error, Result},
    output_file::{OutputFile, directory_of, output},
    temporaries::{Temporaries, with_temporary_name},
};

/// A file beside an image that is valid only with that image.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Companion {
    /// Its path.
    pub path: PathBuf,
    /// Its content; `None` removes an existing file.
    pub content: Option<Vec<u8>>,
}

/// Gives an image, its blob device and its companions their names. Returns warnings.
pub(crate) fn name_all(
    image: OutputFile,
    blob: Option<OutputFile>,
    companions: &[Companion],
    temporaries: &Temporaries,
) -> Result<Vec<String>> {
    let companion_files = companion_files(companions, temporaries)?;
    blob.iter().chain([&image]).try_for_each(OutputFile::store)?;
    temporaries.begin_naming()?;
    let mut naming = Naming { aside: Vec::new(), new: Vec::new() };
    let named = naming.run(image, blob, companions, companion_files);
    if named.is_err() {
        naming.undo();
    }
    temporaries.end_naming(named.is_ok());
    named
}

/// Creates the files of the companions.
fn companion_files(companions: &[Companion], temporaries: &Temporaries) -> Result<Vec<OutputFile>> {
    let mut files = Vec::new();
    for Companion { path, content } in companions {
        let Some(content) = content else { continue };
        let create = || {
            let mut file = OutputFile::create(path, 0, temporaries)?;
            file.write_at(content, 0).map_err(output(path, "write"))?;
            file.store()?;
            Ok(file)
        };
        files.push(create().map_err(companion)?);
    }
    Ok(files)
}

/// The changes so far.
struct Naming {
    /// The final and the temporary names of files that were set aside.
    aside: Vec<(PathBuf, PathBuf)>,
    /// Files that did not exist before.
    new: Vec<PathBuf>,
}

impl Naming {
    fn run(
        &mut self,
        mut image: OutputFile,
        mut blob: Option<OutputFile>,
        companions: &[Companion],
        companion_files: Vec<OutputFile>,
    ) -> Result<Vec<String>> {
        for Companion { path, .. } in companions.iter().filter(|companion| companion.content.is_none()) {
            self.set_aside(path).map_err(output(path, "remove")).map_err(companion)?;
        }
        for file in &companion_files {
            if let Some(target) = file.replaced_path() {
                self.set_aside(target).map_err(output(file.path(), "set aside")).map_err(companion)?;
            }
        }
        if let Some(blob) = &blob {
            for earlier in [&image, blob] {
                if let Some(target) = earlier.replaced_path() {
                    self.set_aside(target).map_err(output(earlier.path(), "set aside"))?;
                }
            }
        }
        let aside: Vec<&Path> = self.aside.iter().map(|(target, _)| target.as_path()).collect();
        store_names(&aside)?;
        let mut warnings = Vec::new();
        for file in blob.iter_mut().chain([&mut image]) {
            warnings.extend(self.name(file)?);
        }
        let named: Vec<&Path> =
            blob.iter().chain([&image]).filter(|file| !file.is_device()).map(OutputFile::target).collect();
        // From here on, the earlier names must not come back: they belong to the earlier image.
        self.new.clear();
        let aside = std::mem::take(&mut self.aside);
        store_names(&named)?;
        for (_, temporary) in aside {
            let _ = fs::remove_file(temporary);
        }
        for mut file in companion_files {
            warnings.extend(self.name(&mut file).map_err(companion)?);
            store_names(&[file.target()]).map_err(companion)?;
            self.new.clear();
        }
        Ok(warnings)
    }

    /// Renames a file, if it exists.
    fn set_aside(&mut self, target: &Path) -> io::Result<()> {
        match with_temporary_name(target, |temporary| fs::rename(target, temporary)) {
            Ok(((), temporary)) => self.aside.push((target.to_path_buf(), temporary)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Gives a file its name. Returns a warning if it could only overwrite an existing file.
    fn name(&mut self, file: &mut OutputFile) -> Result<Option<String>> {
        let is_new = fs::symlink_metadata(file.target()).is_err();
        let is_copied = file.take_name()?;
        if is_new {
            self.new.push(file.target().to_path_buf());
        }
        Ok(is_copied.then(|| {
            format!(
                "{} was overwritten, because it cannot be replaced: it is a mountpoint, or its directory accepts no new \
                 files",
                file.path().shown()
            )
        }))
    }

    /// Restores the names of the earlier files.
    fn undo(&mut self) {
        for path in self.new.drain(..) {
            let _ = fs::remove_file(path);
        }
        for (target, temporary) in self.aside.drain(..).rev() {
            let _ = fs::rename(temporary, target);
        }
    }
}

/// Syncs the directories of these files.
fn store_names(files: &[&Path]) -> Result<()> {
    let mut stored: Vec<&Path> = Vec::new();
    for file in files {
        let directory = directory_of(file);
        if !stored.contains(&directory) {
            store_directory(directory).map_err(output(file, "store the name of"))?;
            stored.push(directory);
        }
    }
    Ok(())
}

/// Syncs a directory, if its file system supports that. A directory that may be changed but not read cannot be synced.
fn store_directory(directory: &Path) -> io::Result<()> {
    let opened = match File::open(directory) {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => return Ok(()),
        opened => opened?,
    };
    match rustix::fs::fsync(opened) {
        Err(Errno::INVAL | Errno::OPNOTSUPP | Errno::NOSYS | Errno::BADF) => Ok(()),
        result => Ok(result?),
    }
}

/// An error about a companion instead of the image.
fn companion(error: Error) -> Error {
    match error {
        Error::Output { path, action, error } => Error::Companion { path, action, error },
        other => other,
    }
}
