//! Mounting on directories.

use std::{
    fs, io,
    os::fd::{AsFd, AsRawFd, OwnedFd},
};

use floe_fuse_wire as wire;
use rustix::{
    mount::MountFlags,
    process::getuid,
    thread::{CapabilitySet, capabilities},
};

use crate::{
    directory::Directory,
    failure::MountFailure,
    fusermount::{self, AutoUnmount},
    mount_id_sys::mount_id,
    options::{Access, KernelOptions},
    place::{Detach, Place},
    private_namespace_sys::in_directory,
    table::{MountEntry, MountTable},
};

/// A FUSE mount that is not served yet.
#[derive(Debug)]
pub struct Mounted {
    /// The descriptor of its connection.
    pub device: OwnedFd,
    /// The fusermount3 that unmounts it at the end of this process, if the options ask for that.
    pub auto_unmount: Option<AutoUnmount>,
    /// Where it is.
    pub place: Place,
}

impl Mounted {
    /// Mounts on a directory: directly if this process may, else through fusermount3.
    ///
    /// # Errors
    /// The device cannot be opened, or the kernel or fusermount3 refuses.
    pub fn on(directory: &Directory, options: &KernelOptions) -> Result<Self, MountFailure> {
        if !may_mount() || options.auto_unmount {
            return mount_through_fusermount(directory, options);
        }
        let device = wire::open().map_err(|error| MountFailure::Device { error })?;
        match mount_directly(directory, &device, options) {
            Ok(()) => Ok(Self { device, auto_unmount: None, place: Place::on(directory) }),
            Err(error) if error.raw_os_error() == Some(libc::EPERM) => {
                match mount_through_fusermount(directory, options) {
                    Err(MountFailure::NoFusermount) => Err(MountFailure::Refused { error }),
                    result => result,
                }
            }
            Err(error) => Err(MountFailure::Refused { error }),
        }
    }
}

/// Sets how many bytes the kernel reads ahead in the file system with this device number. Needs root.
///
/// # Errors
/// sysfs is not mounted, or this process is not root.
pub fn set_readahead(device: (u32, u32), bytes: u32) -> io::Result<()> {
    let (major, minor) = device;
    fs::write(format!("/sys/class/bdi/{major}:{minor}/read_ahead_kb"), (bytes / 1024).to_string())
}

/// Mounts through fusermount3, which takes a path. The path may lead elsewhere by the time it mounts; a mount that is elsewhere is
/// unmounted again.
///
/// # Errors
/// fusermount3 is missing or refuses, or its mount is elsewhere.
fn mount_through_fusermount(directory: &Directory, options: &KernelOptions) -> Result<Mounted, MountFailure> {
    let covered = directory.name_in_parent().ok().and_then(|name| mount_id(name.parent(), name.name()));
    let earlier = MountTable::read().ok();
    let (device, waiting) = fusermount::mount(&directory.path_now(), options)?;
    let (auto_unmount, process) = waiting.map(|waiting| (waiting.auto_unmount, waiting.process)).unzip();
    let mounted = Mounted { device, auto_unmount, place: Place::on(directory) };
    let is_own = |entry: &MountEntry| entry.is_fuse() && entry.user_id == Some(getuid().as_raw());
    let (Some(earlier), Ok(table)) = (earlier, MountTable::read()) else { return Ok(mounted) };
    let mount_id = mounted.place.mount_id();
    if mount_id != covered && mount_id.and_then(|mount_id| table.with_id(mount_id)).is_some_and(is_own) {
        return Ok(mounted);
    }
    if let Some(mut process) = process {
        // It would unmount what is at its path by then.
        let _ = process.kill();
        let _ = process.wait();
    }
    let is_new = |entry: &&MountEntry| !earlier.entries().contains(entry);
    let is_same = |entry: &&MountEntry| is_own(entry) && entry.source == *options.source;
    let found: Vec<&MountEntry> = table.entries().iter().filter(is_new).filter(is_same).collect();
    // Another process may have mounted the same image meanwhile. If the kernel does not tell which mount is this one, all stay,
    // and this one is dead, because nobody serves it.
    let connection = connection_of(&mounted.device);
    let is_this = |entry: &&MountEntry| connection.map_or(found.len() == 1, |connection| entry.device == connection);
    for entry in found.iter().copied().filter(is_this) {
        let _ = Place::of(entry).unmount(Detach::Lazily);
    }
    Err(MountFailure::Refused { error: io::Error::other("another directory took its place at that moment") })
}

/// The device number of the files that are served over a connection, if the kernel tells it, as Linux 6.18 does.
fn connection_of(device: &OwnedFd) -> Option<(u32, u32)> {
    let about = fs::read_to_string(format!("/proc/self/fdinfo/{}", device.as_raw_fd())).ok()?;
    let number = about.lines().find_map(|line| line.strip_prefix("fuse_connection:")?.trim().parse::<u32>().ok())?;
    // The kernel's own form of a device number.
    Some((number >> 20, number & 0xf_ffff))
}

/// Whether the kernel may let this process mount: for root, or for the capability, which other users have in a user namespace.
fn may_mount() -> bool {
    let has_capability = || capabilities(None).is_ok_and(|sets| sets.effective.contains(CapabilitySet::SYS_ADMIN));
    rustix::process::geteuid().is_root() || has_capability()
}

fn mount_directly(directory: &Directory, device: &OwnedFd, options: &KernelOptions) -> io::Result<()> {
    let mode = rustix::fs::fstat(directory)?.st_mode;
    let (uid, gid) = (rustix::process::getuid(), rustix::process::getgid());
    let number = device.as_raw_fd();
    let mut data = format!("fd={number},rootmode={mode:o},user_id={},group_id={}", uid.as_raw(), gid.as_raw());
    if options.checks_permissions {
        data.push_str(",default_permissions");
    }
    if options.access() != Access::Owner {
        data.push_str(",allow_other");
    }
    for option in &options.others {
        data.push(',');
        data.push_str(option);
    }
    let mut flags = MountFlags::RDONLY;
    for (is_set, flag) in [
        (options.flags.nosuid, MountFlags::NOSUID),
        (options.flags.nodev, MountFlags::NODEV),
        (options.flags.noexec, MountFlags::NOEXEC),
        (options.flags.nosymfollow, MountFlags::NOSYMFOLLOW),
    ] {
        flags.set(flag, is_set);
    }
    let data = std::ffi::CString::new(data).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))?;
    let source = options.source.replace('\0', "");
    let file_system = if options.subtype.is_empty() { "fuse".to_owned() } else { format!("fuse.{}", options.subtype) };
    // In its working directory, a thread needs no path.
    in_directory(directory.as_fd(), || {
        rustix::mount::mount(source.as_str(), c".", file_system.as_str(), flags, data.as_c_str())?;
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use floe_testkit::{
        KernelMount,
        corpus::Corpus,
        skip::{Need, ready},
    };

    use super::*;

    #[test]
    fn a_place_has_the_numbers_of_the_mount_table() {
        if !ready(&[Need::Root, Need::Fuse, Need::KernelErofs]) {
            return;
        }
        let folder = tempfile::tempdir().expect("a directory");
        let directory = Directory::open(folder.path()).expect("it is there");
        assert!(!directory.may_be_mountpoint() && Place::on(&directory).mount_id().is_none());
        let served = Mounted::on(&directory, &KernelOptions::default()).expect("a mount");
        let table = MountTable::read().expect("a table");
        let entry = table.on(directory.path()).expect("it is there");
        assert_eq!((served.place.mount_id(), served.place.device()), (Some(entry.id), Some(entry.device)));
        assert!(directory.may_be_mountpoint());
        served.place.unmount(Detach::Never).expect("not in use");
        assert!(!directory.may_be_mountpoint());

        let corpus = Corpus::fixtures();
        let image = corpus.materialise(&corpus.image("erofs-plain-meta"));
        let own = KernelMount::new(&image).expect("a mount");
        let directory = Directory::open(&own.path()).expect("it is there");
        let place = Place::on(&directory);
        assert!(place.mount_id().is_none() && place.device().is_some(), "no program serves it: {place:?}");
        assert!(directory.may_be_mountpoint());
    }
}
