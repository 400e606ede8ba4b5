//! Open file description locks: locks on ranges of a file, which the kernel releases when their holder ends.

use std::{
    fs::File,
    io,
    os::fd::AsRawFd,
    sync::Arc,
    time::{Duration, Instant},
};

/// The first and the maximum interval at which a waiter polls a lock.
const POLL: (Duration, Duration) = (Duration::from_micros(200), Duration::from_millis(5));

/// How a lock excludes others.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Exclusion {
    /// Excludes exclusive locks.
    Shared,
    /// Excludes all other locks.
    Exclusive,
}

/// A locked byte of a file, released on drop. The lock belongs to the open file description: two threads that lock the
/// same byte through one [`File`] do not exclude each other.
#[derive(Debug)]
pub(crate) struct FileLock {
    file: Arc<File>,
    byte: u64,
}

impl FileLock {
    /// Locks the byte if it is free; otherwise returns `None`.
    pub(crate) fn try_new(file: &Arc<File>, byte: u64, exclusion: Exclusion) -> io::Result<Option<Self>> {
        let kind = match exclusion {
            Exclusion::Shared => libc::F_RDLCK,
            Exclusion::Exclusive => libc::F_WRLCK,
        };
        loop {
            match set(file, byte, kind) {
                Ok(()) => return Ok(Some(Self { file: Arc::clone(file), byte })),
                Err(error) => match error.raw_os_error() {
                    Some(libc::EAGAIN | libc::EACCES) => return Ok(None),
                    Some(libc::EINTR) => {}
                    _ => return Err(error),
                },
            }
        }
    }

    /// Locks the byte. Gives up after `patience`, or when `is_moot` returns true because the lock is no longer needed.
    /// Polls, because a wait in the kernel has no timeout and the holder may have been stopped.
    pub(crate) fn wait(
        file: &Arc<File>,
        byte: u64,
        exclusion: Exclusion,
        patience: Duration,
        is_moot: impl Fn() -> bool,
    ) -> io::Result<Option<Self>> {
        let started = Instant::now();
        let (mut pause, pause_max) = POLL;
        loop {
            if let Some(lock) = Self::try_new(file, byte, exclusion)? {
                return Ok(Some(lock));
            }
            if is_moot() || started.elapsed() >= patience {
                return Ok(None);
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(pause_max);
        }
    }
}

impl Drop for FileLock {
    fn drop(&mut self) {
        // Unlocking a locked byte cannot fail.
        let _ = set(&self.file, self.byte, libc::F_UNLCK);
    }
}

fn set(file: &File, byte: u64, kind: libc::c_int) -> io::Result<()> {
    let start = libc::off_t::try_from(byte).map_err(|_| io::ErrorKind::InvalidInput)?;
    // SAFETY: an all-zero `flock` is a valid one.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = kind as libc::c_short;
    lock.l_whence = libc::SEEK_SET as libc::c_short;
    lock.l_start = start;
    lock.l_len = 1;
    // SAFETY: the descriptor is open, and the pointer is to a live `flock`, which the call only reads.
    match unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &raw const lock) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locks_exclude_each_other_and_end_with_their_holder() {
        use Exclusion::{Exclusive, Shared};
        let file = tempfile::NamedTempFile::new().expect("a file");
        let open = || Arc::new(File::options().read(true).write(true).open(file.path()).expect("it opens"));
        let (one, other) = (open(), open());
        for (held, wanted, is_free) in [
            (Shared, Shared, true),
            (Shared, Exclusive, false),
            (Exclusive, Shared, false),
            (Exclusive, Exclusive, false),
        ] {
            let lock = FileLock::try_new(&one, 1 << 40, held).expect("locks work").expect("free");
            let attempt = FileLock::try_new(&other, 1 << 40, wanted).expect("locks work");
            assert_eq!(attempt.is_some(), is_free, "{held:?} {wanted:?}");
            assert!(FileLock::try_new(&other, 7, Exclusive).expect("locks work").is_some(), "another byte");
            drop((lock, attempt));
            assert!(FileLock::try_new(&other, 1 << 40, Exclusive).expect("locks work").is_some(), "after its end");
        }
        let lock = FileLock::try_new(&one, 1, Exclusive).expect("locks work");
        let gave_up = FileLock::wait(&other, 1, Exclusive, Duration::from_secs(600), || true).expect("locks work");
        assert!(gave_up.is_none());
        drop((one, lock));
        assert!(FileLock::try_new(&other, 1, Exclusive).expect("locks work").is_some());
    }
}
