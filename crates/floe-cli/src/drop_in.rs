//! Drop-in programs: the program replaces others when it is called by their names.

pub(crate) mod completion;
mod dump_erofs;
mod erofs_tool;
mod fsck_erofs;
mod fuse_tool;
mod mkfs_erofs;
mod mksquashfs;
mod squashfs_tools_ng;
mod support;
mod unsquashfs;

use std::{
    ffi::{OsStr, OsString},
    path::Path,
};

use floe_sandbox::Mode;

use crate::{command, fail::Fail};

/// A drop-in program. Takes all arguments, beginning with the program name, and whether the process is confined;
/// returns the exit code.
type Program = fn(&[OsString], Mode) -> Result<u8, Fail>;

const PROGRAMS: &[(&str, Program)] = &[
    ("mount.fuse.floe", command::mount_helper::run),
    ("mount.floe", command::mount_helper::run),
    ("floe-store-auth", command::store::run_auth),
    ("dump.erofs", dump_erofs::run),
    ("fsck.erofs", fsck_erofs::run),
    ("mkfs.erofs", mkfs_erofs::run),
    ("mksquashfs", |arguments, _| mksquashfs::run(mksquashfs::Program::Mksquashfs, arguments)),
    ("sqfstar", |arguments, _| mksquashfs::run(mksquashfs::Program::Sqfstar, arguments)),
    ("sqfs2tar", squashfs_tools_ng::sqfs2tar::run),
    ("tar2sqfs", |arguments, _| squashfs_tools_ng::tar2sqfs::run(arguments)),
    ("erofsfuse", fuse_tool::run_erofsfuse),
    ("squashfuse", fuse_tool::run_squashfuse),
    ("squashfuse_ll", fuse_tool::run_squashfuse_ll),
    ("unsquashfs", unsquashfs::run),
];

/// The drop-in program with this name, if there is one.
pub(crate) fn named(name: Option<&OsString>) -> Option<Program> {
    let name = Path::new(name?).file_name().and_then(OsStr::to_str)?;
    PROGRAMS.iter().find(|(other, _)| *other == name).map(|(_, program)| *program)
}

/// The `--help` text of each drop-in program.
pub(crate) fn helps() -> [(&'static str, String); 11] {
    [
        ("dump.erofs", dump_erofs::HELP.to_owned()),
        ("fsck.erofs", fsck_erofs::HELP.to_owned()),
        ("mkfs.erofs", mkfs_erofs::help()),
        ("mksquashfs", mksquashfs::help(mksquashfs::Program::Mksquashfs)),
        ("sqfstar", mksquashfs::help(mksquashfs::Program::Sqfstar)),
        ("sqfs2tar", squashfs_tools_ng::help(squashfs_tools_ng::Program::Sqfs2tar)),
        ("tar2sqfs", squashfs_tools_ng::help(squashfs_tools_ng::Program::Tar2sqfs)),
        ("erofsfuse", fuse_tool::erofsfuse_help()),
        ("squashfuse", fuse_tool::squashfuse_help()),
        ("squashfuse_ll", fuse_tool::squashfuse_ll_help()),
        ("unsquashfs", unsquashfs::HELP.to_owned()),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_last_part_of_the_name_counts() {
        for (name, is_other) in [
            ("/sbin/mount.fuse.floe", true),
            ("mount.floe", true),
            ("floe", false),
            ("/mount.floe/floe", false),
            ("", false),
        ] {
            assert_eq!(named(Some(&name.into())).is_some(), is_other, "{name}");
        }
        assert!(named(None).is_none());
    }
}
