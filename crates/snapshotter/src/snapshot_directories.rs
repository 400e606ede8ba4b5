//! The directories of snapshots, with the mounts in them.

use std::{
    collections::BTreeSet,
    fs::{self, DirBuilder},
    io,
    os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt, lchown},
    path::{Path, PathBuf},
};

use floe_keeper::{IdMapping, MountCommand, unmount_all};
use floe_sync::Turns;

use crate::{
    error::{Result, SnapshotError},
    mapped,
    record::{Content, State},
};

/// The directories of a snapshot: its files, which are the upper directory of an overlay, and the work directory of one.
pub(crate) const FILES: &str = "fs";
pub(crate) const WORK: &str = "work";
/// The empty directory that stands for the parents of a layer that is unpacked before these are known.
const EMPTY: &str = "empty";
/// The file that makes containerd's erofs differ store a layer as an image, and that image.
const EROFS_MARK: &str = ".erofslayer";
pub(crate) const EROFS_LAYER: &str = "layer.erofs";
/// The image that the snapshotter has made of the files, and the directory that it is mounted on.
pub(crate) const CONVERTED_IMAGE: &str = "converted.erofs";
const CONVERTED: &str = "converted";

/// The directories of snapshots, by their numbers.
pub(crate) struct SnapshotDirectories {
    path: PathBuf,
    mount: MountCommand,
    auth_file: Option<PathBuf>,
    /// Two threads must not mount the same image one above the other.
    turns: Turns<u64>,
}

impl SnapshotDirectories {
    /// Opens or creates the directory of all of them. `mount` mounts layers, with the credentials in `auth_file`.
    ///
    /// # Errors
    /// It cannot be created.
    pub(crate) fn open(root: &Path, mount: MountCommand, auth_file: Option<PathBuf>) -> Result<Self> {
        let path = root.join("snapshots");
        // Other users must not see the files of containers, some of which have set-user-id bits.
        let made = DirBuilder::new().recursive(true).mode(0o700).create(&path);
        made.map_err(SnapshotError::file(&path))?;
        Ok(Self { path, mount, auth_file, turns: Turns::default() })
    }

    /// The numbers of those that exist.
    ///
    /// # Errors
    /// They cannot be listed.
    pub(crate) fn ids(&self) -> Result<BTreeSet<u64>> {
        let failed = SnapshotError::file(&self.path);
        let mut ids = BTreeSet::new();
        for entry in fs::read_dir(&self.path).map_err(&failed)? {
            ids.extend(entry.map_err(&failed)?.file_name().to_str().and_then(|name| name.parse::<u64>().ok()));
        }
        Ok(ids)
    }

    /// The path of one.
    pub(crate) fn path(&self, id: u64) -> PathBuf {
        self.path.join(id.to_string())
    }

    /// Creates one. Its root has the owner of that of its nearest parent, in the user namespace of the container if it has one.
    ///
    /// # Errors
    /// It cannot be created.
    pub(crate) fn make(
        &self,
        id: u64,
        state: State,
        lower: Option<&Path>,
        mapping: Option<&IdMapping>,
        is_erofs: bool,
    ) -> Result<()> {
        let directory = self.path(id);
        let make = || -> io::Result<()> {
            fs::create_dir(&directory)?;
            let files = directory.join(FILES);
            fs::create_dir(&files)?;
            fs::set_permissions(&files, fs::Permissions::from_mode(0o755))?;
            if let Some(lower) = lower {
                let root = fs::metadata(lower)?;
                let owner = (root.uid(), root.gid());
                let mapped = mapping.map_or(Some(owner), |mapping| mapping.outside(owner.0, owner.1));
                let (uid, gid) =
                    mapped.ok_or_else(|| io::Error::other("the user namespace has no owner of the root"))?;
                lchown(&files, Some(uid), Some(gid))?;
            }
            if state == State::Active {
                fs::create_dir(directory.join(WORK))?;
            }
            if is_erofs {
                fs::write(directory.join(EROFS_MARK), "")?;
            }
            Ok(())
        };
        make().map_err(SnapshotError::file(&directory))
    }

    /// Creates an empty directory in one, and returns its path.
    ///
    /// # Errors
    /// It cannot be created.
    pub(crate) fn make_empty(&self, id: u64) -> Result<String> {
        let empty = self.path(id).join(EMPTY);
        fs::create_dir_all(&empty).map_err(SnapshotError::file(&empty))?;
        Ok(empty.to_string_lossy().into_owned())
    }

    /// Mounts the image of a snapshot, if it has one.
    ///
    /// # Errors
    /// It cannot be mounted.
    pub(crate) fn mount_image(&self, content: &Content, id: u64) -> Result<()> {
        let directory = self.path(id);
        let image = match content {
            Content::Directory | Content::Converted => return Ok(()),
            Content::Blob => directory.join(EROFS_LAYER).to_string_lossy().into_owned(),
            Content::Remote(url) => url.clone(),
        };
        let _turn = self.turns.take(&id);
        let mounted = self.mount.mount(&image, self.auth_file.as_deref(), &directory.join(FILES));
        mounted.map_err(|error| SnapshotError::Failed(error.to_string()))
    }

    /// Mounts the converted image of a snapshot. Returns where.
    ///
    /// # Errors
    /// It cannot be mounted.
    pub(crate) fn mount_converted(&self, id: u64) -> Result<PathBuf> {
        let (image, target) = (self.path(id).join(CONVERTED_IMAGE), self.path(id).join(CONVERTED));
        let _turn = self.turns.take(&id);
        let made = match fs::create_dir(&target) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
            _ => self.mount.mount(&image.to_string_lossy(), None, &target),
        };
        made.map(|()| target).map_err(|error| SnapshotError::Failed(error.to_string()))
    }

    /// Shows the directories of a snapshot's parents with the owners that its user namespace gives them. Returns their paths.
    ///
    /// # Errors
    /// The kernel or the file system of a layer does not support it.
    pub(crate) fn map_owners(&self, id: u64, mapping: &IdMapping, lower: &[String]) -> Result<Vec<String>> {
        let _turn = self.turns.take(&id);
        mapped::mount(&self.path(id), mapping, lower)
    }

    /// Removes one, and its mounts.
    ///
    /// # Errors
    /// It cannot be removed.
    pub(crate) fn delete(&self, id: u64) -> Result<()> {
        let directory = self.path(id);
        let failed = SnapshotError::file(&directory);
        let mounts = [FILES, CONVERTED].map(|name| directory.join(name));
        let unmounted = mapped::unmount(&directory).and_then(|()| mounts.iter().try_for_each(|path| unmount_all(path)));
        unmounted.and_then(|()| remove(&directory)).map_err(failed)
    }

    /// Removes the files of one, but not what else belongs to it.
    ///
    /// # Errors
    /// They cannot be removed.
    pub(crate) fn delete_files(&self, id: u64) -> Result<()> {
        let files = self.path(id).join(FILES);
        remove(&files).map_err(SnapshotError::file(&files))
    }
}

/// Removes a directory, if it is there.
fn remove(directory: &Path) -> io::Result<()> {
    match fs::remove_dir_all(directory) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}
