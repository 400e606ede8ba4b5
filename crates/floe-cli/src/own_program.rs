//! The running program: its file, with which it starts itself again, and the name of its process.

use std::{
    ffi::{CString, OsStr, OsString},
    os::unix::ffi::{OsStrExt, OsStringExt},
    path::{Path, PathBuf},
};

/// The program's file, also after another one has replaced it under its name.
const LINK: &str = "/proc/self/exe";

/// The file of this program, as an absolute path. Without `/proc`, it is the path that started the program.
pub(crate) fn own_program() -> PathBuf {
    let link = PathBuf::from(LINK);
    if link.exists() {
        return link;
    }
    let started = Path::new(OsStr::from_bytes(rustix::param::linux_execfn().to_bytes()));
    std::path::absolute(started).unwrap_or(link)
}

/// Gives the process the name of the program, its first argument. The kernel names a process for the file that it executes:
/// `exe`, if that is the link in `/proc`.
pub(crate) fn name_process(program: Option<&OsString>) {
    let name = program.and_then(|program| Path::new(program).file_name()).unwrap_or_default();
    if let Some(name) = CString::new(name.to_owned().into_vec()).ok().filter(|name| !name.is_empty()) {
        let _ = rustix::thread::set_name(&name);
    }
}
