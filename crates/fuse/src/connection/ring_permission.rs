//! The kernel's permission to use FUSE over io_uring.

use std::{
    fs::{File, OpenOptions},
    io,
    os::unix::fs::FileExt,
    thread,
    time::{Duration, Instant},
};

use rustix::fs::{Access, FlockOperation, access, flock};

/// The kernel's parameter: `Y` or `N`. Kernels before Linux 6.14 do not have the file.
const PARAMETER: &str = "/sys/module/fuse/parameters/enable_uring";

/// How long to wait for other processes that set up a connection. Each needs some milliseconds, on a busy machine more.
const PATIENCE: Duration = Duration::from_secs(2);

/// The pause between two attempts to take the lock.
const ATTEMPT_INTERVAL: Duration = Duration::from_millis(1);

/// Permits FUSE over io_uring while a connection is set up. The kernel asks for the permission only then: a connection that
/// has begun with rings keeps them. Dropping this value restores the parameter.
#[derive(Debug)]
pub(crate) struct RingPermission {
    parameter: File,
}

impl RingPermission {
    /// Whether root has permitted all connections to use rings.
    pub(crate) fn is_general() -> bool {
        let read = |parameter: File| {
            // A permission for a single connection does not count.
            let _ = lock(&parameter, FlockOperation::NonBlockingLockShared);
            is_set(&parameter)
        };
        File::open(PARAMETER).and_then(read).unwrap_or(false)
    }

    /// Whether this process could permit a connection to use rings.
    pub(crate) fn can_be_given() -> bool {
        access(PARAMETER, Access::WRITE_OK).is_ok()
    }

    /// Sets the parameter. Returns `None` if it is set already, if this process may not set it, or if another process holds the
    /// permission for too long; the kernel then decides by the parameter's value.
    pub(crate) fn give() -> Option<Self> {
        Self::give_with(OpenOptions::new().read(true).write(true).open(PARAMETER).ok()?).ok()?
    }

    fn give_with(parameter: File) -> io::Result<Option<Self>> {
        // One process at a time, so that none restores the parameter while another one still needs it.
        lock(&parameter, FlockOperation::NonBlockingLockExclusive)?;
        if is_set(&parameter)? {
            return Ok(None);
        }
        parameter.write_all_at(b"Y\n", 0)?;
        Ok(Some(Self { parameter }))
    }
}

impl Drop for RingPermission {
    fn drop(&mut self) {
        let _ = self.parameter.write_all_at(b"N\n", 0);
    }
}

/// Takes a lock on the parameter's file, which closing the file releases.
fn lock(parameter: &File, operation: FlockOperation) -> io::Result<()> {
    let started = Instant::now();
    while let Err(error) = flock(parameter, operation) {
        if started.elapsed() >= PATIENCE {
            return Err(error.into());
        }
        thread::sleep(ATTEMPT_INTERVAL);
    }
    Ok(())
}

fn is_set(parameter: &File) -> io::Result<bool> {
    let mut value = [0];
    Ok(parameter.read_at(&mut value, 0)? == 1 && value == *b"Y")
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn the_parameter_is_set_for_one_connection_at_a_time() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        let open = || OpenOptions::new().read(true).write(true).open(file.path()).expect("ours");
        let value = || fs::read_to_string(file.path()).expect("ours");
        fs::write(file.path(), "N\n").expect("ours");
        let first = RingPermission::give_with(open()).expect("it is free").expect("it was not set");
        assert_eq!(value(), "Y\n");
        let second = thread::scope(|scope| {
            let second = scope.spawn(|| RingPermission::give_with(open()));
            thread::sleep(Duration::from_millis(20));
            drop(first);
            second.join().expect("no panic")
        });
        let second = second.expect("it became free").expect("the first one has restored the parameter");
        assert_eq!(value(), "Y\n");
        assert!(RingPermission::give_with(open()).is_err(), "it is held for too long");
        drop(second);
        assert_eq!(value(), "N\n");
    }

    #[test]
    fn a_parameter_that_is_set_stays_so() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        fs::write(file.path(), "Y\n").expect("ours");
        let open = OpenOptions::new().read(true).write(true).open(file.path()).expect("ours");
        assert!(RingPermission::give_with(open).expect("it is free").is_none());
        assert_eq!(fs::read_to_string(file.path()).expect("ours"), "Y\n");
    }
}
