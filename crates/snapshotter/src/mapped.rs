//! The directories of a snapshot's parents, with the owners that they have in a user namespace.

use std::{fs, io, path::Path};

use floe_keeper::{IdMapping, unmount_all};

use crate::error::{Result, SnapshotError};

/// The directory of them in the directory of the snapshot.
const MAPPED: &str = "mapped";

/// Shows each of the directories `lower` as the user namespace sees it, in the directory of a snapshot. Returns the paths. An overlay of
/// them keeps what it has if this is repeated.
///
/// # Errors
/// The kernel or the file system of a layer does not support it.
pub(crate) fn mount(snapshot: &Path, mapping: &IdMapping, lower: &[String]) -> Result<Vec<String>> {
    let failed = |path: &str, error: io::Error| {
        let advice = if error.kind() == io::ErrorKind::InvalidInput { "; FUSE needs Linux 6.12 for that" } else { "" };
        SnapshotError::Failed(format!("{path}: owners cannot be mapped to a user namespace: {error}{advice}"))
    };
    let mapped = snapshot.join(MAPPED);
    let namespace = mapping.namespace().map_err(|error| failed(&mapped.to_string_lossy(), error))?;
    let show = |(place, source): (usize, &String)| {
        let target = mapped.join(place.to_string());
        let shown = fs::create_dir_all(&target).and_then(|()| unmount_all(&target));
        let shown = shown.and_then(|()| IdMapping::mount(&namespace, Path::new(source), &target));
        shown.map_err(|error| failed(source, error)).map(|()| target.to_string_lossy().into_owned())
    };
    lower.iter().enumerate().map(show).collect()
}

/// Removes what [`mount`] has made for a snapshot.
///
/// # Errors
/// The kernel refuses.
pub(crate) fn unmount(snapshot: &Path) -> io::Result<()> {
    let mapped = fs::read_dir(snapshot.join(MAPPED)).into_iter().flatten();
    mapped.filter_map(|entry| Some(entry.ok()?.path())).try_for_each(|path| unmount_all(&path))
}
