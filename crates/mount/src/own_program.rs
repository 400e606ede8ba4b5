//! The file of the running program, with which it starts itself again.

use std::{
    ffi::OsStr,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
};

/// The program's file, also after another one has replaced it under its name.
const LINK: &str = "/proc/self/exe";

/// The file of this program, as an absolute path. Without `/proc`, it is the path that started the program.
pub fn own_program() -> PathBuf {
    let link = PathBuf::from(LINK);
    if link.exists() {
        return link;
    }
    let started = Path::new(OsStr::from_bytes(rustix::param::linux_execfn().to_bytes()));
    std::path::absolute(started).unwrap_or(link)
}
