//! The kernel's EROFS, mounted from a file that Floe serves over a hidden FUSE mount.

use std::{
    fs, io,
    os::{
        fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
        unix::fs::symlink,
    },
    path::{Component, Path, PathBuf},
};

use floe_ipc::encoded;
use rustix::{
    fs::{CWD, Mode, OFlags, open},
    io::Errno,
    mount::{
        FsMountFlags, FsOpenFlags, MountAttrFlags, MoveMountFlags, OpenTreeFlags, fsconfig_create, fsconfig_set_flag,
        fsconfig_set_string, fsmount, fsopen, move_mount, open_tree,
    },
};

use crate::{
    directory::Directory,
    front_transfer::{FrontReadahead, FrontTransfer, front_transfer},
    mount_id_sys::device_of,
    options::{KernelFlags, KernelOptions},
    owners_sys::map_owners,
    place::Place,
    private_namespace_sys::in_private_root,
    serving_thread::may_wait_for_mount,
    table::FRONT_PREFIX,
};

/// The name of the file in the hidden mount that the kernel's EROFS is mounted from.
const IMAGE_NAME: &str = "image";

/// The name of the file in the hidden mount with the data of large files: an extra device of the EROFS image.
const LARGE_NAME: &str = "large";

/// The name of the hidden mount while the front is being mounted, in a private root directory.
const HIDDEN_NAME: &str = ".floe";

/// The paths of the kept image and of the original while the front is being mounted, in the same directory.
const KEPT_FILE: &str = "/.kept";
const ORIGINAL_FILE: &str = "/.original";

/// The maximum length of a kernel message that explains an error, in bytes.
const REASON_BYTES_MAX: usize = 1024;

encoded! {
    /// How the kernel's EROFS is mounted in front, as far as the process that serves the image decides.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub struct FrontOptions {
        /// Whether it is mounted from the kept image in the settings of the keeper.
        pub is_kept: bool,
        /// Whether the image can have access control lists. If not, programs that ask for them get `ENOTSUP`, as from the
        /// kernel's SquashFS.
        pub has_acls: bool,
        /// Whether CPUs are short, so that the thread that reads ahead is urgent from its start.
        pub cpus_are_short: bool,
        /// Whether it reads each file in requests of its own (Linux 6.15), so that accesses are exact.
        pub has_direct_io: bool,
    }
}

/// The files from which the kernel's EROFS can be mounted in front, instead of the one in the hidden mount.
#[derive(Clone, Copy)]
pub struct KeptFiles<'a> {
    /// The kept image.
    pub metadata: BorrowedFd<'a>,
    /// The original, if that is a device of the kept image.
    pub original: Option<BorrowedFd<'a>>,
}

/// A FUSE mount outside the directory tree. It ends when this is dropped, unless the front uses it.
#[derive(Debug)]
pub struct HiddenMount {
    mount: OwnedFd,
}

/// The kernel's EROFS in front of a hidden mount, attached to no directory yet. Until it is, nobody can change it but by its
/// descriptor.
#[derive(Debug)]
pub struct DetachedFront {
    mount: OwnedFd,
    /// The file in the hidden mount that it reads.
    image: OwnedFd,
}

impl HiddenMount {
    /// Creates the mount. Returns the descriptor of its connection, too.
    ///
    /// # Errors
    /// `/dev/fuse` cannot be opened, or as for [`HiddenMount::new`].
    pub fn open() -> io::Result<(OwnedFd, Self)> {
        let device = floe_fuse_wire::open()?;
        let mount = Self::new(device.as_fd())?;
        Ok((device, mount))
    }

    /// Creates the mount for an open `/dev/fuse`, after a check that this process can mount the kernel's EROFS.
    ///
    /// # Errors
    /// This process may not mount, or the kernel has no EROFS or no FUSE.
    pub fn new(device: BorrowedFd<'_>) -> io::Result<Self> {
        check_erofs()?;
        let (uid, gid) = (rustix::process::getuid(), rustix::process::getgid());
        let context = fsopen("fuse", FsOpenFlags::FSOPEN_CLOEXEC)?;
        for (key, value) in [
            ("source", "floe".to_owned()),
            ("subtype", "floe".to_owned()),
            ("fd", device.as_raw_fd().to_string()),
            ("rootmode", format!("{:o}", libc::S_IFDIR)),
            ("user_id", uid.as_raw().to_string()),
            ("group_id", gid.as_raw().to_string()),
        ] {
            fsconfig_set_string(&context, key, value)?;
        }
        // The front's reads have the credentials of its readers.
        fsconfig_set_flag(&context, "allow_other")?;
        fsconfig_set_flag(&context, "ro")?;
        fsconfig_create(&context).map_err(|error| explained(context.as_fd(), error))?;
        let strict = KernelFlags { nosuid: true, nodev: true, noexec: true, nosymfollow: true };
        let mount = fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, attributes(strict))?;
        Ok(Self { mount })
    }

    /// The device number of the mount, if the kernel tells it without asking the process that serves it.
    pub(crate) fn device(&self) -> Option<(u32, u32)> {
        device_of(self.mount.as_fd())
    }

    /// Mounts the kernel's EROFS from the file in the hidden mount, or from a kept image, attached to no directory. The hidden mount
    /// must be served already, and the calling process must not be the one that serves it.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn detached_front(
        self,
        options: &KernelOptions,
        front_options: FrontOptions,
        kept: Option<KeptFiles<'_>>,
    ) -> io::Result<DetachedFront> {
        may_wait_for_mount();
        // Before Linux 6.15, this happens in another mount namespace, where mounts of this one cannot be cloned.
        let original = kept.and_then(|kept| kept.original).map(cloned).transpose()?;
        let kept = kept.map(|kept| cloned(kept.metadata)).transpose()?.map(|metadata| (metadata, original));
        let (mount, image) =
            in_private_root(self.mount.as_fd(), HIDDEN_NAME, || front_of_hidden(options, front_options, kept))?;
        Ok(DetachedFront { mount, image })
    }
}

impl DetachedFront {
    /// Attaches it to a directory. Returns its place, and both ends of the transfer of file data into it, if that is possible.
    ///
    /// # Errors
    /// The kernel refuses.
    pub(crate) fn attach(self, directory: &Directory) -> io::Result<(Place, Option<(FrontTransfer, FrontReadahead)>)> {
        may_wait_for_mount();
        let Self { mount, image } = self;
        let clone = cloned(mount.as_fd()).ok();
        let transfer = front_transfer(clone.as_ref(), image);
        let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
        move_mount(&mount, "", directory, "", flags)?;
        Ok((Place::on(directory), transfer.ok()))
    }
}

impl DetachedFront {
    /// Shows the owners of its files as those with the same numbers in a user namespace.
    ///
    /// # Errors
    /// The namespace has no mapping yet.
    pub(crate) fn map_owners(&self, users: BorrowedFd<'_>) -> io::Result<()> {
        map_owners(self.mount.as_fd(), users)
    }

    /// The mount alone.
    pub(crate) fn into_mount(self) -> OwnedFd {
        self.mount
    }
}

impl AsFd for DetachedFront {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.mount.as_fd()
    }
}

/// Creates the front, not yet attached to a directory, and opens the file that it is mounted from.
///
/// The kernel opens the source of an EROFS mount by its path, and the mount table shows this path. To make it show the
/// path of the image, this thread has a private root directory with the hidden mount, in which the file gets that path.
fn front_of_hidden(
    options: &KernelOptions,
    front_options: FrontOptions,
    kept: Option<(OwnedFd, Option<OwnedFd>)>,
) -> io::Result<(OwnedFd, OwnedFd)> {
    let hidden = Path::new("/").join(HIDDEN_NAME);
    let hidden_image = hidden.join(IMAGE_NAME);
    let open_image = || open(&hidden_image, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
    // The first close of a file makes the kernel send FLUSH; the refusal ends such requests. A process that is
    // killed closes its files, and would wait for its own reply.
    drop(open_image()?);
    let image = open_image()?;
    let source = source_shown(&options.source);
    if let Some(parent) = source.parent() {
        fs::create_dir_all(Path::new("/").join(parent))?;
    }
    let shown = Path::new("/").join(&source);
    match &kept {
        None => symlink(&hidden_image, shown)?,
        Some((metadata, original)) => {
            for (mount, path) in [(Some(metadata), KEPT_FILE), (original.as_ref(), ORIGINAL_FILE)] {
                let Some(mount) = mount else { continue };
                fs::File::create_new(path)?;
                move_mount(mount, "", CWD, path, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)?;
            }
            symlink(KEPT_FILE, shown)?;
        }
    }

    let context = fsopen("erofs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_set_string(&context, "source", &source)?;
    fsconfig_set_string(&context, "device", hidden.join(LARGE_NAME))?;
    if let Some((_, original)) = &kept {
        // The data of small files, which the file in the hidden mount contains otherwise.
        fsconfig_set_string(&context, "device", &hidden_image)?;
        if original.is_some() {
            fsconfig_set_string(&context, "device", ORIGINAL_FILE)?;
        }
    }
    fsconfig_set_flag(&context, "ro")?;
    if front_options.has_direct_io {
        // Older kernels do not have this option.
        let _ = fsconfig_set_flag(&context, "directio");
    }
    if !options.applies_acls() || !front_options.has_acls {
        fsconfig_set_flag(&context, "noacl").map_err(|error| explained(context.as_fd(), error))?;
    }
    for option in &options.others {
        let set = match option.split_once('=') {
            Some((key, value)) => fsconfig_set_string(&context, key, value),
            None => fsconfig_set_flag(&context, option.as_str()),
        };
        set.map_err(|error| explained(context.as_fd(), error))?;
    }
    fsconfig_create(&context).map_err(|error| explained(context.as_fd(), error))?;
    Ok((fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, attributes(options.flags))?, image))
}

/// A private clone of a mount, or of one file as a mount.
fn cloned(file: BorrowedFd<'_>) -> rustix::io::Result<OwnedFd> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_EMPTY_PATH;
    open_tree(file, "", flags)
}

/// Whether the kernel's EROFS mounts this kept image: not all file systems have files that it can read, and this process may
/// not be permitted to mount. Nothing is mounted afterwards.
pub fn can_mount_kept(image: BorrowedFd<'_>) -> bool {
    let mounted = || -> io::Result<()> {
        let context = fsopen("erofs", FsOpenFlags::FSOPEN_CLOEXEC)?;
        fsconfig_set_string(&context, "source", format!("/proc/self/fd/{}", image.as_raw_fd()))?;
        fsconfig_set_flag(&context, "ro")?;
        // Without devices, their blocks are taken to be in the file, which is not read here.
        Ok(fsconfig_create(&context)?)
    };
    mounted().is_ok()
}

/// Checks that the kernel has EROFS and lets this process mount it. In that case the mount fails only because it has no
/// source (`EINVAL`).
fn check_erofs() -> io::Result<()> {
    let context = fsopen("erofs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    match fsconfig_create(&context) {
        Err(Errno::INVAL) | Ok(()) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// The source that the mount table shows: the program and the image, in the form that FUSE uses without subtypes.
fn source_shown(source: &str) -> PathBuf {
    let shown = format!("{FRONT_PREFIX}{}", source.replace('\0', ""));
    // A path with `..` has no place beneath the root.
    let is_plain = |component| matches!(component, Component::Normal(_));
    if Path::new(&shown).components().all(is_plain) { shown.into() } else { shown.replace('/', "|").into() }
}

pub(crate) fn attributes(flags: KernelFlags) -> MountAttrFlags {
    let mut attributes = MountAttrFlags::MOUNT_ATTR_RDONLY;
    for (is_set, attribute) in [
        (flags.nosuid, MountAttrFlags::MOUNT_ATTR_NOSUID),
        (flags.nodev, MountAttrFlags::MOUNT_ATTR_NODEV),
        (flags.noexec, MountAttrFlags::MOUNT_ATTR_NOEXEC),
        (flags.nosymfollow, MountAttrFlags::MOUNT_ATTR_NOSYMFOLLOW),
    ] {
        attributes.set(attribute, is_set);
    }
    attributes
}

/// The error with the kernel's explanation, if there is one.
pub(crate) fn explained(context: BorrowedFd<'_>, error: Errno) -> io::Error {
    let error = io::Error::from(error);
    if matches!(error.raw_os_error(), Some(libc::EPERM | libc::ENODEV | libc::ENOTBLK)) {
        return error;
    }
    let mut message = vec![0; REASON_BYTES_MAX];
    // Each read returns one message: a letter for its severity, a space, and the text.
    match rustix::io::read(context, &mut message[..]) {
        Ok(len) if len > 2 => {
            let text = String::from_utf8_lossy(&message[2..len]).trim().to_owned();
            io::Error::other(format!("{text} ({error})"))
        }
        _ => error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_show_program_and_image() {
        for (source, expected) in [
            ("/images/a.erofs", "floe#/images/a.erofs"),
            ("a name", "floe#a name"),
            ("../a", "floe#../a"),
            ("a/../b", "floe#a|..|b"),
            ("", "floe#"),
        ] {
            assert_eq!(source_shown(source), Path::new(expected), "{source}");
        }
    }
}
