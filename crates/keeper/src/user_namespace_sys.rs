//! Creates user namespaces, in a process with several threads.

use std::{
    fs::File,
    io::{self, Read},
    os::fd::{AsRawFd, OwnedFd},
};

use rustix::{
    io::retry_on_intr,
    pipe::{PipeFlags, pipe_with},
    process::{Pid, WaitOptions, waitpid},
};

/// A process in a user namespace of its own, which has no mapping yet. The process does nothing, and ends when this is dropped.
#[derive(Debug)]
pub(crate) struct NamespaceHolder {
    process: Pid,
    /// The process waits for the end of this pipe.
    life: Option<OwnedFd>,
}

impl NamespaceHolder {
    /// Starts the process.
    ///
    /// # Errors
    /// No process can be started, or the kernel refuses another namespace.
    pub(crate) fn start() -> io::Result<Self> {
        let (waits, life) = pipe_with(PipeFlags::CLOEXEC)?;
        let (ready, tells) = pipe_with(PipeFlags::CLOEXEC)?;
        let [waits_number, life_number, tells_number] = [&waits, &life, &tells].map(AsRawFd::as_raw_fd);
        // SAFETY: other threads may hold locks, so the child calls nothing but system calls, and uses only numbers.
        let process = match unsafe { libc::fork() } {
            -1 => return Err(floe_image::start_error(io::Error::last_os_error())),
            // SAFETY: as above. The parent's values are not dropped in the child, which closes one of their descriptors: otherwise its own copy
            // would keep the pipe open. The buffers are of this length.
            0 => unsafe {
                let mut byte = [0_u8; 1];
                libc::close(life_number);
                if libc::unshare(libc::CLONE_NEWUSER) == 0 && libc::write(tells_number, byte.as_ptr().cast(), 1) == 1 {
                    libc::read(waits_number, byte.as_mut_ptr().cast(), 1);
                }
                libc::_exit(0)
            },
            process => Pid::from_raw(process).ok_or(io::ErrorKind::InvalidData)?,
        };
        drop((waits, tells));
        let holder = Self { process, life: Some(life) };
        let answered = File::from(ready).read_exact(&mut [0]);
        answered.map_err(|_| io::Error::other("the kernel refuses another user namespace"))?;
        Ok(holder)
    }

    /// The path of a file of the process in `/proc`.
    pub(crate) fn file(&self, name: &str) -> String {
        format!("/proc/{}/{name}", self.process.as_raw_nonzero())
    }
}

impl Drop for NamespaceHolder {
    fn drop(&mut self) {
        self.life = None;
        let _ = retry_on_intr(|| waitpid(Some(self.process), WaitOptions::empty()));
    }
}
