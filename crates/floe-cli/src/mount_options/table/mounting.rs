//! Options about the image and its mount.

use std::time::Duration;

use floe::Offset;
use floe_fuse::{Access, Readdir};
use floe_sandbox::Mode;

use crate::{
    launch::{LAUNCH_WAIT, ProfileChoice},
    mount_options::row::{OptionRow, Value, bytes, put, row, text},
    quantity,
};

/// The maximum of `launch-wait=`.
const LAUNCH_WAIT_MAX: Duration = Duration::from_secs(60);

pub(super) const IMAGE: &[OptionRow] = &[
    row(
        "offset",
        bytes(|to, bytes| to.open.offset = Offset::At(bytes)),
        "offset of the image in the file; auto: search for it",
    )
    .or("auto", |to| to.open.offset = Offset::Auto)
    .default("0"),
    row(
        "device",
        Value::Path { form: "FILE", set: |to, path| to.open.devices.push(path) },
        "file of an extra device of an EROFS image; may be repeated, in the order of the device table",
    ),
    row(
        "device-directory",
        Value::Path { form: "DIR", set: |to, path| to.open.device_directory = Some(path) },
        "directory with the other extra devices, under their names in the device table",
    ),
];

pub(super) const MOUNT: &[OptionRow] = &[
    row(
        "subdir",
        Value::Path { form: "PATH", set: |to, path| to.subdirectory = Some(path) },
        "mount only this directory of the image; no launch is replayed or recorded",
    ),
    row(
        "front",
        text("auto|kernel|fuse", |to, value| put(&mut to.front, value)),
        "the file system that programs see: the kernel's EROFS in front of Floe, which needs the right to mount and Linux \
         6.12, or FUSE alone",
    )
    .default("auto")
    .shown(|now| now.front.to_string()),
    row(
        "transport",
        text("auto|dev|uring", |to, value| put(&mut to.transport, value)),
        "how requests come from the kernel: over /dev/fuse, or over io_uring, which is faster but excludes floe upgrade; \
         auto: over io_uring with the kernel's EROFS in front, and where root has set the kernel's parameter \
         fuse.enable_uring (Linux 6.14)",
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
        "profile",
        text("FILE|image|off", |to, value| {
            to.profile = match value {
                "image" => ProfileChoice::Image,
                "off" => ProfileChoice::Off,
                "" => return Err("name a file, or image or off".to_owned()),
                file => ProfileChoice::File(file.into()),
            };
            Ok(())
        }),
        "replay the launch that floe record wrote to this file; image: the one that floe mkfs --profile put into the image",
    )
    .default("image")
    .shown(|now| match &now.profile {
        ProfileChoice::Image => "image".to_owned(),
        ProfileChoice::File(path) => path.to_string_lossy().into_owned(),
        ProfileChoice::Off => "off".to_owned(),
    }),
    row(
        "launch-wait",
        Value::Time { max: LAUNCH_WAIT_MAX, set: |to, time| to.launch_wait = Some(time) },
        "how long floe mount waits for the bytes of the launch before it reports that a remote image with a launch bundle is mounted",
    )
    .or("off", |to| to.launch_wait = Some(Duration::ZERO))
    .default("5s")
    .shown(|now| match now.launch_wait {
        Some(Duration::ZERO) => "off".to_owned(),
        wait => quantity::time(wait.unwrap_or(LAUNCH_WAIT)),
    }),
    row(
        "learn",
        Value::OnOff(|to, is_on| to.learn = is_on),
        "record the first launch, and replay it in later mounts; profiles are in the directory launches of the cache directory",
    )
    .default("off")
    .shown(|now| if now.learn { "on" } else { "off" }.to_owned()),
    row(
        "auto-unmount",
        Value::Flag(|to| to.mount.auto_unmount = true),
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
            value.clone_into(&mut to.mount.subtype);
            Ok(())
        }),
        "type in the mount table, after \"fuse.\"",
    )
    .default("floe"),
];

pub(super) const PERMISSIONS: &[OptionRow] = &[
    row(
        "access",
        text("auto|private|allow-root|allow-other", |to, value| {
            to.mount.access = match value.replace('_', "-").as_str() {
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
        match now.mount.access {
            None => "auto",
            Some(Access::Owner) => "private",
            Some(Access::OwnerAndRoot) => "allow-root",
            Some(Access::All) => "allow-other",
        }
        .to_owned()
    }),
    row("allow-other", Value::Flag(|to| to.mount.access = Some(Access::All)), "same as access=allow-other"),
    row("allow-root", Value::Flag(|to| to.mount.access = Some(Access::OwnerAndRoot)), "same as access=allow-root"),
    row("private", Value::Flag(|to| to.mount.access = Some(Access::Owner)), "same as access=private"),
    row(
        "default-permissions",
        Value::Flag(|to| to.mount.checks_permissions = true),
        "check modes and owners of the image; always on, except under the names erofsfuse and squashfuse",
    ),
    row(
        "acl",
        Value::OnOff(|to, is_on| to.mount.acl = Some(is_on)),
        "apply access control lists of the image, for which the kernel requests the list of each file",
    )
    .default_is("on if all users may enter")
    .shown(|now| if now.mount.applies_acls() { "on" } else { "off" }.to_owned()),
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
        "suid",
        Value::OnOff(|to, is_on| to.mount.flags.nosuid = !is_on),
        "honour set-user-id bits of the image, in root's mounts; in fstab and for mount(8), write suid=on",
    )
    .default("off"),
    row(
        "dev",
        Value::OnOff(|to, is_on| to.mount.flags.nodev = !is_on),
        "honour device files of the image, in root's mounts; in fstab and for mount(8), write dev=on",
    )
    .default("off"),
    row("exec", Value::OnOff(|to, is_on| to.mount.flags.noexec = !is_on), "permit execution of programs in the image")
        .default("on"),
    row(
        "symfollow",
        Value::OnOff(|to, is_on| to.mount.flags.nosymfollow = !is_on),
        "follow symbolic links in the image",
    )
    .default("on"),
];

pub(super) const REPORTS: &[OptionRow] = &[
    row(
        "sandbox",
        text("auto|require|off", |to, value| put(&mut to.sandbox, value)),
        "confine the process that reads the image; auto: as far as the kernel supports it",
    )
    .default("auto"),
    row("no-sandbox", Value::Flag(|to| to.sandbox = Mode::Off), "same as sandbox=off"),
    row(
        "account",
        Value::Path { form: "FILE", set: |to, path| to.account = Some(path) },
        "write the report of floe status --json to this file when the mount ends",
    ),
    row(
        "decode-marks",
        Value::Path { form: "FILE", set: |to, path| to.decode_marks = Some(path) },
        "write a line to this file after each decode, for the trace_marker of tracefs",
    ),
];

fn or_image(id: Option<u32>) -> String {
    id.map_or_else(|| "image".to_owned(), |id| id.to_string())
}
