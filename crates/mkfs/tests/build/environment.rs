//! What the machine has: the right to mount, reference tools.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

/// A mount of an image by the kernel, ended when dropped.
pub(crate) struct KernelMount {
    directory: tempfile::TempDir,
}

impl KernelMount {
    /// Mounts an image; with `device` as its extra device.
    pub(crate) fn new(image: &Path, device: Option<&Path>) -> Result<Self, String> {
        let directory = tempfile::tempdir().map_err(|error| error.to_string())?;
        let mut options = String::from("ro");
        if let Some(device) = device {
            options.push_str(",device=");
            options.push_str(&device.display().to_string());
        }
        let output = Command::new("mount")
            .args(["-t", "erofs", "-o", &options])
            .arg(image)
            .arg(directory.path())
            .output()
            .map_err(|error| error.to_string())?;
        if output.status.success() {
            Ok(Self { directory })
        } else {
            Err(String::from_utf8_lossy(&output.stderr).into_owned())
        }
    }

    pub(crate) fn path(&self) -> &Path {
        self.directory.path()
    }
}

impl Drop for KernelMount {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(self.directory.path()).status();
    }
}

/// Whether images can be mounted here; says so where they cannot.
pub(crate) fn can_mount() -> bool {
    let known = std::fs::read_to_string("/proc/filesystems").is_ok_and(|list| list.contains("erofs"));
    let can = known && rustix::process::geteuid().is_root();
    if !can {
        eprintln!("skipped: mounting needs root and a kernel with EROFS");
    }
    can
}

/// A reference tool, from `FLOE_PEERS`, the search path or /opt/floe-peers/bin; says so where there is none.
pub(crate) fn peer(name: &str) -> Option<PathBuf> {
    let directories = std::env::var_os("FLOE_PEERS").into_iter().chain(std::env::var_os("PATH"));
    let directories: Vec<PathBuf> =
        directories.flat_map(|list| std::env::split_paths(&list).collect::<Vec<_>>()).collect();
    let found = directories
        .into_iter()
        .chain([PathBuf::from("/opt/floe-peers/bin")])
        .map(|directory| directory.join(name))
        .find(|path| path.is_file());
    if found.is_none() {
        eprintln!("skipped: there is no {name}; name its directory in FLOE_PEERS");
    }
    found
}
