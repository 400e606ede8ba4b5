//! Options of the mount.

use floe_fuse::Readdir;
use floe_keeper::Access;

use crate::options::row::{OptionRow, Value, put, row, text};

pub(super) const MOUNT: &[OptionRow] = &[
    row(
        "front",
        text("auto|kernel|fuse", |to, value| put(&mut to.front, value)),
        "the file system that programs see: the kernel's EROFS in front of Floe, which needs the right to mount and Linux \
         6.12, or FUSE alone; with the kernel's EROFS, directories of SquashFS images have other sizes",
    )
    .default("auto")
    .shown(|now| now.front.to_string()),
    row(
        "front-metadata",
        text("keep|render", |to, value| {
            to.renders_front = match value {
                "keep" => false,
                "render" => true,
                _ => return Err(format!("'{value}' is not keep or render")),
            };
            Ok(())
        }),
        "whether the metadata for the kernel's EROFS in front is kept in the cache directory, so that later mounts of the same \
         local file answer nothing but reads of file data, or each mount renders it when it is read",
    )
    .default("keep")
    .shown(|now| if now.renders_front { "render" } else { "keep" }.to_owned()),
    row(
        "front-data",
        text("kernel|floe", |to, value| {
            to.reads_all_data = match value {
                "kernel" => false,
                "floe" => true,
                _ => return Err(format!("'{value}' is not kernel or floe")),
            };
            Ok(())
        }),
        "whether the kernel's EROFS in front, with kept metadata, itself reads data that is stored uncompressed in an image of root, \
         and decodes small files there, or Floe alone reads and decodes the image",
    )
    .default("kernel")
    .shown(|now| if now.reads_all_data { "floe" } else { "kernel" }.to_owned()),
    row(
        "transport",
        text("auto|dev|uring", |to, value| put(&mut to.transport, value)),
        "how requests come from the kernel: over /dev/fuse, or over io_uring (Linux 6.14; for root, and where root has set the \
         kernel's parameter fuse.enable_uring), which is faster but excludes floe upgrade; auto: over io_uring with the kernel's \
         EROFS in front, and where the parameter is set, but not in the service",
    )
    .default("auto")
    .shown(|now| now.transport.to_string()),
    row(
        "readdir",
        text("adaptive|plain|plus|auto", |to, value| {
            to.mount.readdir = match value {
                "adaptive" => Readdir::Adaptive,
                "plain" => Readdir::Plain,
                "plus" => Readdir::Plus,
                "auto" => Readdir::Auto,
                _ => return Err(format!("'{value}' is not adaptive, plain, plus or auto")),
            };
            Ok(())
        }),
        "whether directory listings include attributes; adaptive: only for programs that use them",
    )
    .default("adaptive")
    .shown(|now| {
        match now.mount.readdir {
            Readdir::Adaptive => "adaptive",
            Readdir::Plain => "plain",
            Readdir::Plus => "plus",
            Readdir::Auto => "auto",
        }
        .to_owned()
    }),
    row(
        "access",
        text("auto|private|allow-root|allow-other", |to, value| {
            to.mount.kernel.access = match value.replace('_', "-").as_str() {
                "auto" => None,
                "private" => Some(Access::Owner),
                "allow-root" => Some(Access::OwnerAndRoot),
                "allow-other" => Some(Access::All),
                _ => return Err(format!("'{value}' is not auto, private, allow-root or allow-other")),
            };
            Ok(())
        }),
        "users who can access the mount; auto: all users if root mounts, else only the mounting user",
    )
    .default("auto")
    .shown(|now| {
        match now.mount.kernel.access {
            None => "auto",
            Some(Access::Owner) => "private",
            Some(Access::OwnerAndRoot) => "allow-root",
            Some(Access::All) => "allow-other",
        }
        .to_owned()
    }),
    row(
        "acl",
        Value::OnOff(|to, is_on| to.mount.kernel.acl = Some(is_on)),
        "apply access control lists of the image, for which the kernel requests the list of each file",
    )
    .default_is("on if all users may enter")
    .shown(|now| if now.mount.kernel.applies_acls() { "on" } else { "off" }.to_owned()),
    row(
        "overlay-xattrs",
        text("trusted|user", |to, value| {
            to.mount.user_overlay = match value {
                "trusted" => false,
                "user" => true,
                _ => return Err(format!("'{value}' is not trusted or user")),
            };
            Ok(())
        }),
        "names of the attributes of overlayfs in layers of containers; user: those that overlayfs reads in a user namespace; \
         excludes the kernel's EROFS in front",
    )
    .default("trusted")
    .shown(|now| if now.mount.user_overlay { "user" } else { "trusted" }.to_owned()),
    row(
        "uid",
        Value::Count { min: 0, max: u32::MAX as u64, set: |to, id| to.mount.uid = u32::try_from(id).ok() },
        "owner of all files",
    )
    .or("image", |to| to.mount.uid = None)
    .default("image")
    .shown(|now| or_image(now.mount.uid)),
    row(
        "gid",
        Value::Count { min: 0, max: u32::MAX as u64, set: |to, id| to.mount.gid = u32::try_from(id).ok() },
        "group of all files",
    )
    .or("image", |to| to.mount.gid = None)
    .default("image")
    .shown(|now| or_image(now.mount.gid)),
    row(
        "service",
        text("auto|on|off", |to, value| put(&mut to.service, value)),
        "mount through the service that floe serve runs, which has one engine for all images; auto: if one listens and has these \
         options",
    )
    .default("off"),
    row(
        "sandbox",
        text("auto|require|off", |to, value| put(&mut to.sandbox, value)),
        "confine the process that reads the image; auto: as far as the kernel supports it",
    )
    .default("auto"),
];

/// Names that mount(8), fstab and libfuse define.
pub(super) const STANDARD: &[OptionRow] = &[
    row("allow-other", Value::Flag(|to| to.mount.kernel.access = Some(Access::All)), "same as access=allow-other"),
    row(
        "allow-root",
        Value::Flag(|to| to.mount.kernel.access = Some(Access::OwnerAndRoot)),
        "same as access=allow-root",
    ),
    row(
        "default-permissions",
        Value::Flag(|to| to.mount.kernel.checks_permissions = true),
        "check modes and owners of the image; always on, except under the names erofsfuse and squashfuse",
    ),
    row(
        "auto-unmount",
        Value::Flag(|to| to.mount.kernel.auto_unmount = true),
        "unmount when the serving process dies; without the kernel's EROFS in front, this needs fusermount3",
    ),
    row(
        "fsname",
        text("NAME", |to, value| {
            to.source = Some(value.to_owned());
            Ok(())
        }),
        "source in the mount table",
    )
    .default_is("the path of the image"),
    row(
        "subtype",
        text("NAME", |to, value| {
            value.clone_into(&mut to.mount.kernel.subtype);
            Ok(())
        }),
        "type in the mount table, after \"fuse.\"",
    )
    .default("floe"),
    row(
        "suid",
        Value::OnOff(|to, is_on| to.mount.kernel.flags.nosuid = !is_on),
        "honour set-user-id bits of the image, in root's mounts; in fstab and for mount(8), write suid=on",
    )
    .default("off"),
    row(
        "dev",
        Value::OnOff(|to, is_on| to.mount.kernel.flags.nodev = !is_on),
        "honour device files of the image, in root's mounts; in fstab and for mount(8), write dev=on",
    )
    .default("off"),
    row(
        "exec",
        Value::OnOff(|to, is_on| to.mount.kernel.flags.noexec = !is_on),
        "permit execution of programs in the image",
    )
    .default("on"),
    row(
        "symfollow",
        Value::OnOff(|to, is_on| to.mount.kernel.flags.nosymfollow = !is_on),
        "follow symbolic links in the image",
    )
    .default("on"),
];

fn or_image(id: Option<u32>) -> String {
    id.map_or_else(|| "image".to_owned(), |id| id.to_string())
}
