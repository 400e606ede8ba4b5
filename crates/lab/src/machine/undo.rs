//! A journal of changes to the machine, which are undone even if the run is killed.
//!
//! A change is recorded in a file before it is made, and removed from the file after it was undone. A small shell
//! process, the keeper, waits for the end of this process and undoes the changes that are left in the file. If the
//! keeper dies too, the next run undoes them.

use std::{
    collections::BTreeMap,
    fs, io,
    os::unix::{
        fs::{DirBuilderExt, MetadataExt},
        process::CommandExt,
    },
    path::{Path, PathBuf},
    process::{Child, ChildStdin, Command, Stdio},
    sync::Arc,
    time::Duration,
};

use floe_image::ShownName;
use floe_sync::Mutex;

use super::lab_lock::LabLock;
use crate::{Error, Result, error::ErrorContext, interrupt_sys::Interrupt};

/// Waits for the end of its standard input, then undoes the changes listed in the file `$1`.
const KEEPER: &str = r#"
trap "" INT TERM HUP QUIT PIPE
read -r line
[ -f "$1" ] || exit 0
try() { for i in 1 2 3 4 5 6 7 8 9 10; do "$@" && return; sleep 0.2; done; }
while read -r verb value path; do
    case $verb in
    setting) printf %s "$value" > "$path" ;;
    mount) umount -l "$path" ;;
    directory) rmdir "$path" ;;
    file) rm -f "$path" ;;
    cgroup)
        for pid in $(cat "$path/cgroup.procs"); do kill -9 "$pid"; done
        try rmdir "$path" ;;
    instance)
        for root in /sys/kernel/tracing /sys/kernel/debug/tracing; do
            [ -d "$root/instances/$path" ] && try rmdir "$root/instances/$path"
        done
        if [ ! -d /sys/kernel/tracing/instances ]; then
            own=$(mktemp -d) && mount -t tracefs tracefs "$own" && {
                [ -d "$own/instances/$path" ] && try rmdir "$own/instances/$path"
                umount "$own"
            }
            rmdir "$own"
        fi ;;
    esac
done < "$1"
rm -f "$1"
"#;

/// A change to the machine, with the data that undoing it needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// A tracing instance to remove.
    Instance {
        /// Its name.
        name: String,
    },
    /// A kernel setting to restore.
    Setting {
        /// Its file.
        path: PathBuf,
        /// Its previous value: one word.
        value: String,
    },
    /// A control group to empty and remove.
    ControlGroup {
        /// Its directory.
        path: PathBuf,
    },
    /// A mount to undo.
    Mount {
        /// The mount point.
        path: PathBuf,
    },
    /// An empty directory to remove.
    Directory {
        /// The directory.
        path: PathBuf,
    },
    /// A file to remove.
    File {
        /// The file.
        path: PathBuf,
    },
}

/// The journal of one run.
#[derive(Clone, Debug)]
pub struct Undo {
    shared: Arc<Shared>,
}

/// A recorded change; dropping it marks the change as undone.
#[derive(Debug)]
pub struct PendingChange {
    shared: Arc<Shared>,
    number: u64,
}

#[derive(Debug)]
struct Shared {
    journal: PathBuf,
    changes: Mutex<Changes>,
    /// Ends with this process; `None` if there is no shell.
    keeper: Mutex<Option<(Child, ChildStdin)>>,
    _lock: Option<LabLock>,
}

#[derive(Debug, Default)]
struct Changes {
    next: u64,
    open: BTreeMap<u64, Change>,
}

impl Undo {
    /// Begins a run whose changes do not affect others. Undoes what earlier runs left behind, unless another lab is
    /// running, and starts the keeper of this run.
    pub fn new() -> Result<Self> {
        let directory = journal_directory()?;
        if let Some(_lock) = LabLock::attempt(&directory)? {
            undo_left_over(&directory);
        }
        Self::in_directory(&directory, None)
    }

    /// Begins a run that needs the machine for itself: waits until no other lab is running.
    pub fn alone(interrupt: &Interrupt) -> Result<Self> {
        let lock = LabLock::wait(journal_directory, interrupt)?;
        let directory = journal_directory()?;
        undo_left_over(&directory);
        Self::in_directory(&directory, Some(lock))
    }

    fn in_directory(directory: &Path, lock: Option<LabLock>) -> Result<Self> {
        let number = fastrand::u32(..);
        let journal = directory.join(format!("{}-{number:08x}.undo", std::process::id()));
        let keeper = Command::new("sh")
            .args(["-c", KEEPER, "floe-lab-keeper"])
            .arg(&journal)
            .stdin(Stdio::piped())
            // The keeper's standard output only holds the lock.
            .stdout(lock.as_ref().and_then(LabLock::share).unwrap_or_else(Stdio::null))
            .stderr(Stdio::null())
            .current_dir("/")
            .process_group(0)
            .spawn();
        let keeper = keeper.ok().and_then(|mut child| child.stdin.take().map(|stdin| (child, stdin)));
        let shared = Shared { journal, changes: Mutex::default(), keeper: Mutex::new(keeper), _lock: lock };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// Records a change before it is made.
    pub fn record(&self, change: Change) -> Result<PendingChange> {
        let line = change.line();
        if line.contains('\n') {
            return Err(Error::new(format!("a path with a line break cannot be used: {line:?}")));
        }
        let mut changes = self.shared.changes.lock();
        let number = changes.next;
        changes.next += 1;
        changes.open.insert(number, change);
        self.shared.write(&changes)?;
        Ok(PendingChange { shared: Arc::clone(&self.shared), number })
    }
}

impl Drop for PendingChange {
    fn drop(&mut self) {
        let mut changes = self.shared.changes.lock();
        changes.open.remove(&self.number);
        // If this fails, the change is undone a second time, which is harmless.
        let _ = self.shared.write(&changes);
    }
}

impl Shared {
    /// Rewrites the journal, last change first.
    fn write(&self, changes: &Changes) -> Result<()> {
        if changes.open.is_empty() {
            let _ = fs::remove_file(&self.journal);
            return Ok(());
        }
        let lines: String = changes.open.values().rev().map(Change::line).collect::<Vec<_>>().join("\n") + "\n";
        let fresh = self.journal.with_extension("new");
        if let Some(directory) = self.journal.parent().filter(|directory| !directory.exists()) {
            // Another run may have removed the directory.
            let _ = fs::DirBuilder::new().mode(0o700).create(directory);
        }
        fs::write(&fresh, lines)
            .and_then(|()| fs::rename(&fresh, &self.journal))
            .context(|| format!("cannot write {}", self.journal.shown()))
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        let keeper = self.keeper.get_mut().take();
        if let Some((mut child, stdin)) = keeper {
            drop(stdin);
            let _ = child.wait();
        }
        // Fails, as intended, while other runs have journals there.
        if let Some(directory) = self.journal.parent() {
            let _ = fs::remove_dir(directory);
        }
    }
}

impl Change {
    /// A line of the journal: verb, value, path.
    fn line(&self) -> String {
        match self {
            Self::Instance { name } => format!("instance - {name}"),
            Self::Setting { path, value } => format!("setting {value} {}", path.display()),
            Self::ControlGroup { path } => format!("cgroup - {}", path.display()),
            Self::Mount { path } => format!("mount - {}", path.display()),
            Self::Directory { path } => format!("directory - {}", path.display()),
            Self::File { path } => format!("file - {}", path.display()),
        }
    }
}

/// The journal directory: as root, one that only root can write; otherwise, one of the user.
fn journal_directory() -> Result<PathBuf> {
    let uid = rustix::process::geteuid();
    let path = match (uid.is_root(), std::env::var_os("XDG_RUNTIME_DIR")) {
        (true, _) => PathBuf::from("/run/floe-lab"),
        (false, Some(directory)) => PathBuf::from(directory).join("floe-lab"),
        (false, None) => std::env::temp_dir().join(format!("floe-lab-{}", uid.as_raw())),
    };
    fs::DirBuilder::new()
        .mode(0o700)
        .recursive(true)
        .create(&path)
        .context(|| format!("cannot make {}", path.shown()))?;
    let status = fs::symlink_metadata(&path).context(|| format!("cannot access {}", path.shown()))?;
    if !status.is_dir() || status.uid() != uid.as_raw() || status.mode() & 0o022 != 0 {
        return Err(Error::new(format!("{} belongs to another user; remove it", path.shown())));
    }
    Ok(path)
}

/// Runs the keeper for every journal whose process has ended.
fn undo_left_over(directory: &Path) {
    let Ok(entries) = fs::read_dir(directory) else { return };
    for path in entries.flatten().map(|entry| entry.path()) {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let Some(pid) = name.split('-').next().and_then(|pid| pid.parse::<u32>().ok()) else { continue };
        if Path::new(&format!("/proc/{pid}")).exists() || !name.ends_with(".undo") {
            continue;
        }
        // The keeper of that run may still be active.
        std::thread::sleep(Duration::from_millis(300));
        let _ = Command::new("sh")
            .args(["-c", KEEPER, "floe-lab-keeper"])
            .arg(&path)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status();
    }
}

/// How many names are tried. Names are random, so even the second is rarely needed.
const NAME_ATTEMPTS_MAX: u32 = 16;

/// A new directory in the system's temporary directory. Only this user can enter it, so files in it may have any names.
#[derive(Debug)]
pub struct PrivateDirectory {
    path: PathBuf,
    _change: PendingChange,
}

impl PrivateDirectory {
    /// Creates the directory. Never uses one that exists, nor a link that another user has put in its place.
    ///
    /// # Errors
    /// The directory or the journal cannot be written.
    pub fn create(undo: &Undo) -> Result<Self> {
        let mut attempts_left = NAME_ATTEMPTS_MAX;
        loop {
            let name = format!("floe-lab-{}-{:08x}", std::process::id(), fastrand::u32(..));
            let path = std::env::temp_dir().join(name);
            attempts_left -= 1;
            // The journal must not name what belongs to others for longer than this.
            let change = undo.record(Change::Directory { path: path.clone() })?;
            match fs::DirBuilder::new().mode(0o700).create(&path) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists && attempts_left > 0 => {}
                created => {
                    created.context(|| format!("cannot make {}", path.shown()))?;
                    return Ok(Self { path, _change: change });
                }
            }
        }
    }

    /// The directory.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for PrivateDirectory {
    /// Removes the directory if it is empty.
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wait_until(condition: impl Fn() -> bool) -> bool {
        (0..1500).any(|_| {
            std::thread::sleep(Duration::from_millis(20));
            condition()
        })
    }

    #[test]
    fn the_keeper_undoes_remaining_changes_when_the_run_ends() {
        let home = tempfile::tempdir().unwrap();
        let (setting, directory) = (home.path().join("setting"), home.path().join("a directory"));
        fs::write(&setting, "0").unwrap();
        fs::create_dir(&directory).unwrap();
        let undo = Undo::in_directory(home.path(), None).unwrap();
        let kept = undo.record(Change::Setting { path: setting.clone(), value: "1".into() }).unwrap();
        let left = undo.record(Change::Directory { path: directory.clone() }).unwrap();
        // A killed process leaves the same state: no value was dropped, and the pipe is closed.
        let keeper = undo.shared.keeper.lock().take();
        drop(keeper.map(|(child, stdin)| (drop(stdin), child)));
        assert!(wait_until(|| !directory.exists()), "the directory is still there");
        assert!(wait_until(|| fs::read_to_string(&setting).is_ok_and(|value| value == "1")));
        assert!(wait_until(|| !undo.shared.journal.exists()));
        drop((kept, left));
    }

    #[test]
    fn undone_changes_are_not_undone_again() {
        let home = tempfile::tempdir().unwrap();
        let setting = home.path().join("setting");
        fs::write(&setting, "now").unwrap();
        let undo = Undo::in_directory(home.path(), None).unwrap();
        let change = undo.record(Change::Setting { path: setting.clone(), value: "before".into() }).unwrap();
        assert!(fs::read_to_string(&undo.shared.journal).unwrap().starts_with("setting before "));
        drop(change);
        assert!(!undo.shared.journal.exists());
        drop(undo);
        assert_eq!(fs::read_to_string(&setting).unwrap(), "now");
        assert!(home.path().exists(), "a directory with something in it was removed");
    }

    #[test]
    fn the_next_run_undoes_the_changes_of_a_dead_one() {
        let home = tempfile::tempdir().unwrap();
        let file = home.path().join("left over");
        fs::write(&file, "x").unwrap();
        // Process IDs end at 2^22.
        let journal = home.path().join("4194999-0.undo");
        fs::write(&journal, format!("file - {}\n", file.display())).unwrap();
        undo_left_over(home.path());
        assert!(!file.exists() && !journal.exists());
    }

    #[test]
    fn a_line_break_in_a_path_is_refused() {
        let home = tempfile::tempdir().unwrap();
        let undo = Undo::in_directory(home.path(), None).unwrap();
        assert!(undo.record(Change::File { path: PathBuf::from("/a\nsetting 1 /b") }).is_err());
    }
}
