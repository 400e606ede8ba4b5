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

/// How long to wait while the parameter is not set. A connection that holds the lock alone sets the parameter at once, and the
/// others release the lock at once. So another program has the lock: any user may lock a file that all may read.
const UNSET_PATIENCE: Duration = Duration::from_millis(100);

/// The pause between two attempts to take the lock.
const ATTEMPT_INTERVAL: Duration = Duration::from_millis(1);

/// The permission of one connection to use rings, held while it is set up. The kernel reads the parameter when it sends INIT,
/// when it takes the reply, and when queues are announced. If it was set only some of these times, the connection gets rings
/// but loses them with the next reply, and requests without an answer remain. A connection that has begun with rings keeps
/// them, whatever the parameter is later.
///
/// Holding the lock of the parameter's file keeps the parameter unchanged: connections share the lock while root has set the
/// parameter; a connection that sets it for itself holds the lock alone. Dropping this value releases the lock, and restores the
/// parameter if this connection has set it.
#[derive(Debug)]
pub(crate) struct RingPermission {
    parameter: File,
    /// Whether the parameter was set for this connection alone.
    is_given: bool,
}

impl RingPermission {
    /// Holds the permission that root has given to all connections. Returns `None` if root has not.
    pub(crate) fn general() -> Option<Self> {
        Self::general_of(File::open(PARAMETER).ok()?, Instant::now() + PATIENCE).ok()?
    }

    fn general_of(parameter: File, until: Instant) -> io::Result<Option<Self>> {
        // A permission for a single connection does not count.
        lock(&parameter, FlockOperation::NonBlockingLockShared, until)?;
        Ok(is_set(&parameter)?.then_some(Self { parameter, is_given: false }))
    }

    /// Whether this process could permit a connection to use rings.
    pub(crate) fn can_be_given() -> bool {
        access(PARAMETER, Access::WRITE_OK).is_ok()
    }

    /// Holds the general permission, or else sets the parameter for one connection. Returns `None` if this process may not
    /// set it, or if another process holds the permission for too long.
    pub(crate) fn give() -> Option<Self> {
        let until = Instant::now() + PATIENCE;
        let general = Self::general_of(File::open(PARAMETER).ok()?, until).ok()?;
        let open = || OpenOptions::new().read(true).write(true).open(PARAMETER);
        general.or_else(|| Self::give_with(open().ok()?, until).ok())
    }

    fn give_with(parameter: File, until: Instant) -> io::Result<Self> {
        // One process at a time, so that none restores the parameter while another one still needs it.
        lock(&parameter, FlockOperation::NonBlockingLockExclusive, until)?;
        let is_given = !is_set(&parameter)?;
        if is_given {
            parameter.write_all_at(b"Y\n", 0)?;
        }
        Ok(Self { parameter, is_given })
    }
}

impl Drop for RingPermission {
    fn drop(&mut self) {
        if self.is_given {
            let _ = self.parameter.write_all_at(b"N\n", 0);
        }
    }
}

/// Takes a lock on the parameter's file, which closing the file releases.
fn lock(parameter: &File, operation: FlockOperation, until: Instant) -> io::Result<()> {
    let mut last_set = Instant::now();
    while let Err(error) = flock(parameter, operation) {
        let now = Instant::now();
        if is_set(parameter)? {
            last_set = now;
        }
        if now >= until || now.duration_since(last_set) >= UNSET_PATIENCE {
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

    /// A parameter with a value.
    fn parameter(value: &str) -> tempfile::NamedTempFile {
        let file = tempfile::NamedTempFile::new().expect("a file");
        fs::write(file.path(), value).expect("ours");
        file
    }

    fn open(parameter: &tempfile::NamedTempFile) -> File {
        OpenOptions::new().read(true).write(true).open(parameter.path()).expect("ours")
    }

    fn soon() -> Instant {
        Instant::now() + Duration::from_millis(50)
    }

    #[test]
    fn the_parameter_is_set_for_one_connection_at_a_time() {
        let file = parameter("N\n");
        let value = || fs::read_to_string(file.path()).expect("ours");
        let first = RingPermission::give_with(open(&file), soon()).expect("it is free");
        assert_eq!(value(), "Y\n");
        let second = thread::scope(|scope| {
            let second = scope.spawn(|| RingPermission::give_with(open(&file), Instant::now() + PATIENCE));
            thread::sleep(Duration::from_millis(20));
            drop(first);
            second.join().expect("no panic")
        });
        let second = second.expect("it became free");
        assert_eq!(value(), "Y\n");
        assert!(RingPermission::give_with(open(&file), soon()).is_err(), "it is held for too long");
        drop(second);
        assert_eq!(value(), "N\n");
    }

    #[test]
    fn a_permission_for_one_connection_is_none_for_others() {
        let file = parameter("N\n");
        assert!(RingPermission::general_of(open(&file), soon()).expect("it is free").is_none());
        let given = RingPermission::give_with(open(&file), soon()).expect("it is free");
        assert!(RingPermission::general_of(open(&file), soon()).is_err(), "it waits");
        drop(given);
        assert!(RingPermission::general_of(open(&file), soon()).expect("it is free").is_none());
    }

    #[test]
    fn a_lock_of_another_program_delays_a_connection_only_shortly() {
        let file = parameter("N\n");
        let locked = open(&file);
        flock(&locked, FlockOperation::NonBlockingLockExclusive).expect("it is free");
        let began = Instant::now();
        let until = began + Duration::from_secs(60);
        assert!(RingPermission::general_of(open(&file), until).is_err(), "it is locked");
        assert!(RingPermission::give_with(open(&file), until).is_err(), "it is locked");
        assert!(began.elapsed() < Duration::from_secs(30), "{:?}", began.elapsed());
        assert_eq!(fs::read_to_string(file.path()).expect("ours"), "N\n");
    }

    #[test]
    fn a_general_permission_is_shared_and_stays() {
        let file = parameter("Y\n");
        let held = RingPermission::general_of(open(&file), soon()).expect("it is free").expect("it is set");
        let second = RingPermission::general_of(open(&file), soon()).expect("it is shared").expect("it is set");
        assert!(RingPermission::give_with(open(&file), soon()).is_err(), "others need the value");
        drop((held, second));
        drop(RingPermission::give_with(open(&file), soon()).expect("it is free"));
        assert_eq!(fs::read_to_string(file.path()).expect("ours"), "Y\n");
    }
}
