//! The temporary names that a build uses.

use std::{
    ffi::{OsStr, OsString},
    fs,
    hash::{BuildHasher, Hasher, RandomState},
    io,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
    sync::Arc,
};

use floe_sync::{Condvar, Mutex, MutexGuard};

use crate::error::{Error, Result};

/// How many temporary names to try. They are random, so that no file of a killed build is in the way.
const NAME_ATTEMPTS_MAX: u32 = 16;
/// The maximum number of bytes of the file's name in a temporary name, which must not exceed 255 bytes.
const BASE_LEN_MAX: usize = 200;

/// The temporary names that a build uses. Clones share them, so that a program that exits during a build can remove the
/// files.
#[derive(Clone, Debug, Default)]
pub struct Temporaries {
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    names: Mutex<Names>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Names {
    paths: Vec<PathBuf>,
    stage: Stage,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Stage {
    /// The image is not complete.
    #[default]
    Building,
    /// The files get their names.
    Naming,
    /// The image has its name.
    Named,
    /// The files were removed.
    Abandoned,
}

impl Temporaries {
    /// Removes the files of an unfinished build, which fails then. If the files are getting their names now, waits until
    /// they have them. Returns whether the build was unfinished.
    pub fn remove(&self) -> bool {
        let is_naming = |names: &mut Names| names.stage == Stage::Naming;
        let waited = self.shared.changed.wait_while(self.lock(), is_naming);
        let mut names = waited;
        if names.stage == Stage::Named {
            return false;
        }
        names.stage = Stage::Abandoned;
        for path in names.paths.drain(..) {
            let _ = fs::remove_file(path);
        }
        true
    }

    /// Notes that a build begins.
    pub(crate) fn begin(&self) -> Result<()> {
        self.advance(Stage::Building)
    }

    /// Notes that the files get their names now.
    pub(crate) fn begin_naming(&self) -> Result<()> {
        self.advance(Stage::Naming)
    }

    /// Notes that the files have their names, or that they could not get them.
    pub(crate) fn end_naming(&self, is_named: bool) {
        self.lock().stage = if is_named { Stage::Named } else { Stage::Building };
        self.shared.changed.notify_all();
    }

    /// Adds a file that [`Temporaries::remove`] is to remove.
    pub(crate) fn add(&self, path: &Path) {
        let mut names = self.lock();
        if names.stage == Stage::Abandoned {
            let _ = fs::remove_file(path);
        } else {
            names.paths.push(path.to_path_buf());
        }
    }

    /// Forgets a file that no longer has its temporary name.
    pub(crate) fn forget(&self, path: &Path) {
        self.lock().paths.retain(|known| known != path);
    }

    fn advance(&self, stage: Stage) -> Result<()> {
        let mut names = self.lock();
        if names.stage == Stage::Abandoned {
            return Err(Error::Cancelled);
        }
        names.stage = stage;
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, Names> {
        self.shared.names.lock()
    }
}

/// Calls `create` with an unused name in the directory of `path`; returns the result with the name.
pub(crate) fn with_temporary_name<T>(path: &Path, create: impl Fn(&Path) -> io::Result<T>) -> io::Result<(T, PathBuf)> {
    let base = path.file_name().ok_or(io::Error::from(io::ErrorKind::InvalidInput))?;
    let mut attempt = 0;
    loop {
        let temporary = path.with_file_name(temporary_name(base));
        match create(&temporary) {
            Ok(made) => return Ok((made, temporary)),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && attempt < NAME_ATTEMPTS_MAX => attempt += 1,
            Err(error) => return Err(error),
        }
    }
}

/// A random hidden name that begins with `base`.
fn temporary_name(base: &OsStr) -> OsString {
    let mut name = OsString::from(".");
    let len = base.to_str().map_or(base.len().min(BASE_LEN_MAX), |base| base.floor_char_boundary(BASE_LEN_MAX));
    name.push(OsStr::from_bytes(&base.as_bytes()[..len]));
    // The keys of each state are random.
    name.push(format!(".{:016x}", RandomState::new().build_hasher().finish()));
    name
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    #[test]
    fn unfinished_files_are_removed_and_named_ones_stay() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("image");
        let create = || with_temporary_name(&path, |path| File::create_new(path)).expect("created").1;
        let count = || fs::read_dir(folder.path()).expect("listed").count();
        let temporaries = Temporaries::default();
        temporaries.begin().expect("it begins");
        let (first, second) = (create(), create());
        assert_ne!(first, second);
        temporaries.add(&first);
        temporaries.add(&second);
        temporaries.forget(&second);
        temporaries.begin_naming().expect("it goes on");
        temporaries.end_naming(true);
        assert!(!temporaries.remove(), "the image has its name");
        assert_eq!(count(), 2);
        temporaries.begin().expect("another build");
        assert!(temporaries.remove());
        assert!(!first.exists() && second.exists());
        // Later files are removed at once, and the build fails.
        temporaries.add(&second);
        assert_eq!(count(), 0);
        assert!(matches!(temporaries.begin_naming(), Err(Error::Cancelled)));
    }

    #[test]
    fn temporary_names_are_never_too_long() {
        let folder = tempfile::tempdir().expect("a folder");
        for name in ["x".repeat(255).into_bytes(), "\u{e9}".repeat(127).into_bytes(), vec![0xff; 255]] {
            let path = folder.path().join(OsStr::from_bytes(&name));
            with_temporary_name(&path, |path| File::create_new(path)).expect("the name is short enough");
        }
    }
}
