//! Open file description locks: locks on ranges of a file, which the kernel releases when their holder ends.

use std::{
    fs::File,
    io,
    ops::Range,
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

/// Locked bytes of a file, released on drop. The lock belongs to the open file description: two threads that lock the
/// same byte through one [`File`] do not exclude each other.
#[derive(Debug)]
pub(crate) struct FileLock {
    file: Arc<File>,
    bytes: Range<u64>,
}

impl FileLock {
    /// Locks the bytes if all of them are free; otherwise returns `None`.
    pub(crate) fn try_new(file: &Arc<File>, bytes: Range<u64>, exclusion: Exclusion) -> io::Result<Option<Self>> {
        let kind = match exclusion {
            Exclusion::Shared => libc::F_RDLCK,
            Exclusion::Exclusive => libc::F_WRLCK,
        };
        loop {
            match set(file, &bytes, kind) {
                Ok(()) => return Ok(Some(Self { file: Arc::clone(file), bytes })),
                Err(error) => match error.raw_os_error() {
                    Some(libc::EAGAIN | libc::EACCES) => return Ok(None),
                    Some(libc::EINTR) => {}
                    _ => return Err(error),
                },
            }
        }
    }

    /// Locks the bytes. Gives up after `patience`, or when `is_moot` returns true because the lock is no longer needed.
    /// Polls, because a wait in the kernel has no timeout and the holder may have been stopped.
    pub(crate) fn wait(
        file: &Arc<File>,
        bytes: Range<u64>,
        exclusion: Exclusion,
        patience: Duration,
        is_moot: impl Fn() -> bool,
    ) -> io::Result<Option<Self>> {
        let started = Instant::now();
        let (mut pause, pause_max) = POLL;
        loop {
            if let Some(lock) = Self::try_new(file, bytes.clone(), exclusion)? {
                return Ok(Some(lock));
            }
            if is_moot() || started.elapsed() >= patience {
                return Ok(None);
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(pause_max);
        }
    }

    /// Takes the lock of the first `count` bytes out of this one.
    pub(crate) fn split_front(&mut self, count: u64) -> Self {
        let place = self.bytes.start.saturating_add(count).min(self.bytes.end);
        let front = Self { file: Arc::clone(&self.file), bytes: self.bytes.start..place };
        self.bytes.start = place;
        front
    }

    /// Adds the lock of the bytes that follow these in the same file.
    pub(crate) fn join(&mut self, mut next: Self) {
        debug_assert!(Arc::ptr_eq(&self.file, &next.file) && self.bytes.end == next.bytes.start);
        self.bytes.end = next.bytes.end;
        next.bytes.start = next.bytes.end;
    }
}

impl Drop for FileLock {
    fn drop(&mut self) {
        if !self.bytes.is_empty() {
            // Unlocking locked bytes can fail only if the kernel lacks memory to split the range.
            let _ = set(&self.file, &self.bytes, libc::F_UNLCK);
        }
    }
}

fn set(file: &File, bytes: &Range<u64>, kind: libc::c_int) -> io::Result<()> {
    let [start, len] = [bytes.start, bytes.end.saturating_sub(bytes.start)].map(libc::off_t::try_from);
    let (Ok(start), Ok(len @ 1..)) = (start, len) else { return Err(io::ErrorKind::InvalidInput.into()) };
    // SAFETY: an all-zero `flock` is a valid one.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = kind as libc::c_short;
    lock.l_whence = libc::SEEK_SET as libc::c_short;
    lock.l_start = start;
    lock.l_len = len;
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
        let far = 1 << 40..(1 << 40) + 1;
        for (held, wanted, is_free) in [
            (Shared, Shared, true),
            (Shared, Exclusive, false),
            (Exclusive, Shared, false),
            (Exclusive, Exclusive, false),
        ] {
            let lock = FileLock::try_new(&one, far.clone(), held).expect("locks work").expect("free");
            let attempt = FileLock::try_new(&other, far.clone(), wanted).expect("locks work");
            assert_eq!(attempt.is_some(), is_free, "{held:?} {wanted:?}");
            assert!(FileLock::try_new(&other, 7..8, Exclusive).expect("locks work").is_some(), "another byte");
            drop((lock, attempt));
            assert!(FileLock::try_new(&other, far.clone(), Exclusive).expect("locks work").is_some(), "after its end");
        }
        let lock = FileLock::try_new(&one, 1..2, Exclusive).expect("locks work");
        let gave_up = FileLock::wait(&other, 1..2, Exclusive, Duration::from_secs(600), || true).expect("locks work");
        assert!(gave_up.is_none());
        drop((one, lock));
        assert!(FileLock::try_new(&other, 1..2, Exclusive).expect("locks work").is_some());
    }

    #[test]
    fn parts_of_a_lock_are_released_by_themselves() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        let open = || Arc::new(File::options().read(true).write(true).open(file.path()).expect("it opens"));
        let (one, other) = (open(), open());
        let mut lock = FileLock::try_new(&one, 10..20, Exclusion::Exclusive).expect("locks work").expect("free");
        let free = || -> Vec<u64> {
            let is_free = |byte: &u64| {
                FileLock::try_new(&other, *byte..byte + 1, Exclusion::Exclusive).expect("locks work").is_some()
            };
            (9..21).filter(is_free).collect()
        };
        let mut front = lock.split_front(3);
        assert_eq!(free(), [9, 20]);
        let middle = lock.split_front(2);
        drop(lock);
        assert_eq!(free(), [9, 15, 16, 17, 18, 19, 20]);
        front.join(middle);
        assert_eq!(free(), [9, 15, 16, 17, 18, 19, 20]);
        drop(front);
        assert_eq!(free().len(), 12);
    }
}
