//! The kernel's permission to use FUSE over io_uring.

use std::{
    fs::{self, DirBuilder, File, OpenOptions},
    io,
    os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use rustix::{
    fs::{Access, FlockOperation, access, flock},
    process::geteuid,
};

/// The kernel's parameter: `Y` or `N`. Kernels before Linux 6.14 do not have the file.
const PARAMETER: &str = "/sys/module/fuse/parameters/enable_uring";

/// The directory of the note that a connection has set the parameter for itself, and the name of the note. Confined processes have
/// rights in the directory of the control sockets, so this is another one.
const NOTE_DIRECTORY: &str = "/run/floe-uring";
const NOTE_NAME: &str = "enable_uring";

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
/// parameter if this connection has set it. If its process is killed, the next process that takes the lock finds a note without a
/// lock, and restores the parameter.
#[derive(Debug)]
pub struct RingPermission {
    parameter: File,
    /// The note that the parameter was set for this connection alone.
    given: Option<Note>,
}

/// A note that a connection has set the parameter for itself. It is valid while the lock is held alone, and otherwise left over.
#[derive(Clone, Debug)]
struct Note {
    path: PathBuf,
}

impl RingPermission {
    /// Holds the permission that root has given to all connections. Returns `None` if root has not.
    pub fn general() -> Option<Self> {
        Self::general_of(File::open(PARAMETER).ok()?, &Note::of_root(), Instant::now() + PATIENCE).ok()?
    }

    fn general_of(parameter: File, note: &Note, until: Instant) -> io::Result<Option<Self>> {
        // A permission for a single connection does not count.
        lock(&parameter, FlockOperation::NonBlockingLockShared, until)?;
        Ok((is_set(&parameter)? && !note.exists()).then_some(Self { parameter, given: None }))
    }

    /// Restores the parameter if a process that had set it for its own connection was killed.
    pub fn restore() {
        let note = Note::of_root();
        if note.exists()
            && let Ok(parameter) = OpenOptions::new().read(true).write(true).open(PARAMETER)
        {
            // If another process holds the lock, the note is its own, or it restores the parameter itself.
            let _ = Self::restore_with(&parameter, &note);
        }
    }

    fn restore_with(parameter: &File, note: &Note) -> io::Result<()> {
        flock(parameter, FlockOperation::NonBlockingLockExclusive)?;
        note.restore(parameter)
    }

    /// Whether this process could permit a connection to use rings.
    pub fn can_be_given() -> bool {
        access(PARAMETER, Access::WRITE_OK).is_ok()
    }

    /// Holds the general permission, or else sets the parameter for one connection. Returns `None` if this process may not
    /// set it, or if another process holds the permission for too long.
    pub fn give() -> Option<Self> {
        let until = Instant::now() + PATIENCE;
        let note = Note::of_root();
        let general = Self::general_of(File::open(PARAMETER).ok()?, &note, until).ok()?;
        let open = || OpenOptions::new().read(true).write(true).open(PARAMETER);
        general.or_else(|| Self::give_with(open().ok()?, note, until).ok())
    }

    fn give_with(parameter: File, note: Note, until: Instant) -> io::Result<Self> {
        // One process at a time, so that none restores the parameter while another one still needs it.
        lock(&parameter, FlockOperation::NonBlockingLockExclusive, until)?;
        note.restore(&parameter)?;
        if is_set(&parameter)? {
            return Ok(Self { parameter, given: None });
        }
        note.write()?;
        let given = Self { parameter, given: Some(note) };
        given.parameter.write_all_at(b"Y\n", 0)?;
        Ok(given)
    }
}

impl Note {
    /// The note in root's directory, which no other user can enter.
    fn of_root() -> Self {
        Self { path: Path::new(NOTE_DIRECTORY).join(NOTE_NAME) }
    }

    fn exists(&self) -> bool {
        self.path.symlink_metadata().is_ok()
    }

    /// Restores the parameter if a killed process has left the note. The caller holds the lock alone.
    fn restore(&self, parameter: &File) -> io::Result<()> {
        if self.exists() {
            parameter.write_all_at(b"N\n", 0)?;
            fs::remove_file(&self.path)?;
        }
        Ok(())
    }

    /// Writes the note.
    ///
    /// # Errors
    /// The directory is not this user's alone, or cannot be written. The parameter must then stay as it is.
    fn write(&self) -> io::Result<()> {
        let directory = self.path.parent().ok_or(io::ErrorKind::InvalidInput)?;
        match DirBuilder::new().mode(0o700).create(directory) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        let metadata = directory.symlink_metadata()?;
        if !metadata.is_dir() || metadata.uid() != geteuid().as_raw() || metadata.mode() & 0o022 != 0 {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        OpenOptions::new().write(true).create_new(true).mode(0o600).open(&self.path).map(drop)
    }
}

impl Drop for RingPermission {
    fn drop(&mut self) {
        if let Some(note) = &self.given {
            let _ = self.parameter.write_all_at(b"N\n", 0);
            let _ = fs::remove_file(&note.path);
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
    use super::*;

    /// A parameter, and a directory of its own for its note.
    struct Parameter(tempfile::TempDir);

    impl Parameter {
        fn path(&self) -> PathBuf {
            self.0.path().join("parameter")
        }
    }

    /// A parameter with a value.
    fn parameter(value: &str) -> Parameter {
        let parameter = Parameter(tempfile::tempdir().expect("a directory"));
        fs::write(parameter.path(), value).expect("ours");
        parameter
    }

    /// The note of a parameter.
    fn note(parameter: &Parameter) -> Note {
        Note { path: parameter.0.path().join("notes/note") }
    }

    fn open(parameter: &Parameter) -> File {
        OpenOptions::new().read(true).write(true).open(parameter.path()).expect("ours")
    }

    fn soon() -> Instant {
        Instant::now() + Duration::from_millis(50)
    }

    #[test]
    fn the_parameter_is_set_for_one_connection_at_a_time() {
        let file = parameter("N\n");
        let value = || fs::read_to_string(file.path()).expect("ours");
        let first = RingPermission::give_with(open(&file), note(&file), soon()).expect("it is free");
        assert_eq!(value(), "Y\n");
        let second = thread::scope(|scope| {
            let second = scope.spawn(|| RingPermission::give_with(open(&file), note(&file), Instant::now() + PATIENCE));
            thread::sleep(Duration::from_millis(20));
            drop(first);
            second.join().expect("no panic")
        });
        let second = second.expect("it became free");
        assert_eq!(value(), "Y\n");
        assert!(RingPermission::give_with(open(&file), note(&file), soon()).is_err(), "it is held for too long");
        drop(second);
        assert_eq!(value(), "N\n");
    }

    #[test]
    fn a_permission_for_one_connection_is_none_for_others() {
        let file = parameter("N\n");
        assert!(RingPermission::general_of(open(&file), &note(&file), soon()).expect("it is free").is_none());
        let given = RingPermission::give_with(open(&file), note(&file), soon()).expect("it is free");
        assert!(RingPermission::general_of(open(&file), &note(&file), soon()).is_err(), "it waits");
        drop(given);
        assert!(RingPermission::general_of(open(&file), &note(&file), soon()).expect("it is free").is_none());
    }

    #[test]
    fn a_lock_of_another_program_delays_a_connection_only_shortly() {
        let file = parameter("N\n");
        let locked = open(&file);
        flock(&locked, FlockOperation::NonBlockingLockExclusive).expect("it is free");
        let began = Instant::now();
        let until = began + Duration::from_secs(60);
        assert!(RingPermission::general_of(open(&file), &note(&file), until).is_err(), "it is locked");
        assert!(RingPermission::give_with(open(&file), note(&file), until).is_err(), "it is locked");
        assert!(began.elapsed() < Duration::from_secs(30), "{:?}", began.elapsed());
        assert_eq!(fs::read_to_string(file.path()).expect("ours"), "N\n");
    }

    #[test]
    fn a_general_permission_is_shared_and_stays() {
        let file = parameter("Y\n");
        let held =
            RingPermission::general_of(open(&file), &note(&file), soon()).expect("it is free").expect("it is set");
        let second =
            RingPermission::general_of(open(&file), &note(&file), soon()).expect("it is shared").expect("it is set");
        assert!(RingPermission::give_with(open(&file), note(&file), soon()).is_err(), "others need the value");
        drop((held, second));
        // A process that another test has forked may have the descriptors for a while.
        let later = Instant::now() + Duration::from_secs(60);
        drop(RingPermission::give_with(open(&file), note(&file), later).expect("it is free"));
        assert_eq!(fs::read_to_string(file.path()).expect("ours"), "Y\n");
    }

    #[test]
    fn the_parameter_is_restored_after_a_killed_connection() {
        for (value, has_note, after) in [("Y\n", true, "N\n"), ("N\n", true, "N\n"), ("Y\n", false, "Y\n")] {
            for comes_next in ["restore", "give", "general"] {
                let file = parameter(value);
                let note = note(&file);
                if has_note {
                    note.write().expect("ours");
                }
                match comes_next {
                    "restore" => RingPermission::restore_with(&open(&file), &note).expect("it is free"),
                    "give" => drop(RingPermission::give_with(open(&file), note.clone(), soon()).expect("it is free")),
                    _ => {
                        let general = RingPermission::general_of(open(&file), &note, soon()).expect("it is free");
                        assert_eq!(general.is_some(), !has_note && value == "Y\n", "{value} {has_note}");
                        drop(general);
                        RingPermission::restore_with(&open(&file), &note).expect("it is free");
                    }
                }
                let found = fs::read_to_string(file.path()).expect("ours");
                assert_eq!((found.as_str(), note.exists()), (after, false), "{value} {has_note} {comes_next}");
            }
        }
    }

    #[test]
    fn the_parameter_is_restored_without_its_note() {
        let file = parameter("N\n");
        let given = RingPermission::give_with(open(&file), note(&file), soon()).expect("it is free");
        fs::remove_file(note(&file).path).expect("it is there");
        drop(given);
        assert_eq!(fs::read_to_string(file.path()).expect("ours"), "N\n");
    }

    #[test]
    fn a_note_of_a_living_connection_changes_nothing() {
        let file = parameter("N\n");
        let given = RingPermission::give_with(open(&file), note(&file), soon()).expect("it is free");
        assert!(note(&file).exists());
        RingPermission::restore_with(&open(&file), &note(&file)).expect_err("it is held");
        assert_eq!(fs::read_to_string(file.path()).expect("ours"), "Y\n");
        drop(given);
        assert_eq!((fs::read_to_string(file.path()).expect("ours").as_str(), note(&file).exists()), ("N\n", false));
    }

    #[test]
    fn no_note_is_written_where_others_may_write() {
        use std::os::unix::fs::PermissionsExt;
        let file = parameter("N\n");
        let directory = note(&file).path.parent().expect("a directory").to_owned();
        fs::create_dir(&directory).expect("ours");
        fs::set_permissions(&directory, fs::Permissions::from_mode(0o777)).expect("ours");
        RingPermission::give_with(open(&file), note(&file), soon()).expect_err("others could remove it");
        assert_eq!(fs::read_to_string(file.path()).expect("ours"), "N\n");
        assert_eq!(fs::read_dir(directory).expect("ours").count(), 0);
    }
}
