//! Files with rules for the attributes and the order of files.

use std::{fs, path::Path};

use floe_image::ShownName;
use floe_mkfs::{Error, FileContexts, FsConfig, Profile};

/// Reads SELinux labels.
///
/// # Errors
/// A message: the file cannot be read, or a line is wrong.
pub(crate) fn file_contexts(path: &Path) -> Result<FileContexts, String> {
    read(path, FileContexts::parse)
}

/// Reads Android's file system configuration.
///
/// # Errors
/// A message: the file cannot be read, or a line is wrong.
pub(crate) fn fs_config(path: &Path) -> Result<FsConfig, String> {
    read(path, FsConfig::parse)
}

/// Reads a profile of floe record.
///
/// # Errors
/// A message: the file cannot be read, or is no profile.
pub(super) fn profile(path: &Path) -> Result<Profile, String> {
    let told = |error: &dyn std::fmt::Display| format!("{}: {error}", path.shown());
    let file = fs::File::open(path).map_err(|error| told(&error))?;
    Profile::read(file).map_err(|error| told(&error))
}

fn read<T>(path: &Path, parse: fn(&[u8]) -> Result<T, Error>) -> Result<T, String> {
    let told = |error: &dyn std::fmt::Display| format!("{}: {error}", path.shown());
    parse(&fs::read(path).map_err(|error| told(&error))?).map_err(|error| told(&error))
}
