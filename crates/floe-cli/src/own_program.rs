//! The running program: its file, with which it starts itself again, and the name of its process.

use std::{
    ffi::{CString, OsString},
    os::unix::ffi::OsStringExt,
    path::Path,
};

pub(crate) use floe_mount::daemon::own_program;

/// Gives the process the name of the program, its first argument. The kernel names a process for the file that it executes:
/// `exe`, if that is the link in `/proc`.
pub(crate) fn name_process(program: Option<&OsString>) {
    let name = program.and_then(|program| Path::new(program).file_name()).unwrap_or_default();
    if let Some(name) = CString::new(name.to_owned().into_vec()).ok().filter(|name| !name.is_empty()) {
        let _ = rustix::thread::set_name(&name);
    }
}
