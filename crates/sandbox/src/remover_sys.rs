//! Removes the output of a confined process that produced nothing.

use std::{
    fs, io,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
};

use rustix::{
    io::{read, retry_on_intr, write},
    pipe::{PipeFlags, pipe_with},
    process::{Pid, WaitOptions, waitpid},
};

use crate::sandbox::check_alone;

/// The signals that the child ignores: it removes the output after a signal.
const IGNORED: [i32; 4] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT];

/// A file or an empty directory that is removed when this value is dropped or the process ends, unless it is to be kept. An
/// unconfined child process removes it, because a confined process has no rights outside its tree.
#[derive(Debug)]
pub struct Remover {
    /// `None` once the child knows what to do.
    pipe: Option<OwnedFd>,
    child: Pid,
}

impl Remover {
    /// Starts the child. This process must have no other thread and must not be confined yet.
    ///
    /// # Errors
    /// Other threads run, or no process can be created.
    pub fn start(path: &Path) -> io::Result<Self> {
        check_alone().map_err(io::Error::other)?;
        let path = path.to_owned();
        let (theirs, ours) = pipe_with(PipeFlags::CLOEXEC)?;
        // SAFETY: no other thread runs, so the child finds all locks free and all memory whole.
        match unsafe { libc::fork() } {
            -1 => Err(io::Error::last_os_error()),
            0 => {
                for signal in IGNORED {
                    // SAFETY: no handler of ours is involved.
                    unsafe { libc::signal(signal, libc::SIG_IGN) };
                }
                drop(ours);
                remove_unless_kept(&theirs, &path);
                // SAFETY: ends the child without exit handlers and without flushing buffers, both of which belong to the
                // parent.
                unsafe { libc::_exit(0) }
            }
            child => {
                let child = Pid::from_raw(child).ok_or(io::ErrorKind::InvalidData)?;
                Ok(Self { pipe: Some(ours), child })
            }
        }
    }

    /// Keeps the file or directory.
    pub fn keep(mut self) {
        if let Some(pipe) = &self.pipe {
            let _ = retry_on_intr(|| write(pipe, &[1]));
        }
        self.wait();
    }

    fn wait(&mut self) {
        if self.pipe.take().is_some() {
            let _ = retry_on_intr(|| waitpid(Some(self.child), WaitOptions::empty()));
        }
    }
}

impl Drop for Remover {
    fn drop(&mut self) {
        self.wait();
    }
}

fn remove_unless_kept(pipe: &OwnedFd, path: &PathBuf) {
    let is_kept = retry_on_intr(|| read(pipe, &mut [0; 1])).is_ok_and(|len| len == 1);
    if !is_kept && fs::remove_dir(path).is_err() {
        let _ = fs::remove_file(path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_with_files_stays() {
        // The harness runs tests on threads, so the part of the parent is left out.
        let folder = tempfile::tempdir().expect("a directory");
        let path = folder.path().join("made");
        for (is_kept, has_file, stays) in
            [(false, false, false), (false, true, true), (true, false, true), (true, true, true)]
        {
            let _ = fs::remove_dir_all(&path);
            fs::create_dir(&path).expect("ours");
            if has_file {
                fs::write(path.join("file"), "").expect("ours");
            }
            let (theirs, ours) = pipe_with(PipeFlags::CLOEXEC).expect("a pipe");
            if is_kept {
                write(&ours, &[1]).expect("there is room");
            }
            drop(ours);
            remove_unless_kept(&theirs, &path);
            assert_eq!(path.exists(), stays, "{is_kept} {has_file}");
        }
    }
}
