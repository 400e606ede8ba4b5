//! Finds the processes that use a mount.

use std::{
    fmt, fs,
    path::{Path, PathBuf},
};

/// The number of processes that are named.
const NAMED_MAX: usize = 5;

/// The processes that use a mount, as far as `/proc` shows them to this user.
pub struct MountUsers {
    users: Vec<MountUser>,
}

struct MountUser {
    pid: u32,
    name: String,
    how: &'static str,
}

impl MountUsers {
    /// The processes with an open file or directory of the mount on `directory`.
    pub fn of(directory: &Path) -> Self {
        let directory = fs::canonicalize(directory).unwrap_or_else(|_| directory.to_owned());
        let own = std::process::id();
        let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
        let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
        let mut users: Vec<_> =
            pids.filter(|pid| *pid != own).filter_map(|pid| MountUser::find(pid, &directory)).collect();
        users.sort_by_key(|user| user.pid);
        Self { users }
    }
}

impl fmt::Display for MountUsers {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.users.is_empty() {
            return formatter.write_str("by a process of another user, or by a mount below it");
        }
        for (index, MountUser { pid, name, how }) in self.users.iter().take(NAMED_MAX).enumerate() {
            let separator = if index == 0 { "by " } else { ", " };
            write!(formatter, "{separator}{name} (process {pid}, {how})")?;
        }
        match self.users.len().saturating_sub(NAMED_MAX) {
            0 => Ok(()),
            more => write!(formatter, " and {more} more"),
        }
    }
}

impl MountUser {
    fn find(pid: u32, directory: &Path) -> Option<Self> {
        let process = PathBuf::from(format!("/proc/{pid}"));
        let leads_in = |link: &Path| fs::read_link(link).is_ok_and(|target| target.starts_with(directory));
        let how = if leads_in(&process.join("cwd")) {
            "working directory"
        } else if leads_in(&process.join("root")) {
            "root directory"
        } else if leads_in(&process.join("exe")) {
            "running program"
        } else if fs::read_dir(process.join("fd")).into_iter().flatten().flatten().any(|fd| leads_in(&fd.path())) {
            "open file"
        } else if maps(&process, directory) {
            "mapped file"
        } else {
            return None;
        };
        let name = fs::read_to_string(process.join("comm")).unwrap_or_default();
        Some(Self { pid, name: name.trim().to_owned(), how })
    }
}

/// Whether a process has mapped a file below `directory`.
fn maps(process: &Path, directory: &Path) -> bool {
    let maps = fs::read(process.join("maps")).unwrap_or_default();
    let paths = maps.split(|byte| *byte == b'\n').filter_map(|line| {
        let start = line.iter().position(|byte| *byte == b'/')?;
        line.get(start..)
    });
    use std::{ffi::OsStr, os::unix::ffi::OsStrExt};
    paths.into_iter().any(|path| Path::new(OsStr::from_bytes(path)).starts_with(directory))
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::CommandExt;

    use super::*;

    #[test]
    fn processes_are_found_by_their_use_of_the_mount() {
        let directory = tempfile::tempdir().expect("a directory");
        let file = directory.path().join("file");
        fs::write(&file, "").expect("a file");
        assert!(MountUsers::of(directory.path()).users.is_empty());
        let inside = std::process::Command::new("sleep").arg("60").current_dir(&directory).spawn();
        let reading = std::process::Command::new("sleep")
            .arg("60")
            .arg0("sleep")
            .stdin(fs::File::open(&file).expect("a file"))
            .spawn();
        let (mut inside, mut reading) = (inside.expect("sleep"), reading.expect("sleep"));
        let text = MountUsers::of(directory.path()).to_string();
        for child in [&mut inside, &mut reading] {
            child.kill().expect("our own child");
            child.wait().expect("our own child");
        }
        for (pid, how) in [(inside.id(), "working directory"), (reading.id(), "open file")] {
            assert!(text.contains(&format!("sleep (process {pid}, {how})")), "{text}");
        }
    }
}
