//! The kernel's tracing files and private instances.

use std::fs;
use std::io::Read;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags};

use super::format::EventFormat;
use super::page::PageLayout;
use crate::error::ErrorContext;
use crate::machine::{Change, PendingChange, Undo};
use crate::{Error, Result};

/// The usual mount points of tracefs.
const MOUNT_POINTS: [&str; 2] = ["/sys/kernel/tracing", "/sys/kernel/debug/tracing"];
/// The name prefix of the lab's instances; the process ID follows.
const INSTANCE_PREFIX: &str = "floe-lab-";

/// Distinguishes the instances of one process.
static INSTANCE_COUNT: AtomicU32 = AtomicU32::new(0);

/// A tracefs: the mounted one, or a detached mount.
#[derive(Debug)]
pub struct Tracefs {
    root: PathBuf,
    _detached: Option<OwnedFd>,
}

impl Tracefs {
    /// Opens the tracing files; needs root.
    pub fn open() -> Result<Self> {
        for mount_point in MOUNT_POINTS {
            let root = PathBuf::from(mount_point);
            if root.join("instances").is_dir() {
                return Ok(Self { root, _detached: None });
            }
        }
        let detached = Self::mount_detached().context(|| "cannot open tracefs (tracing needs root)".to_owned())?;
        let root = PathBuf::from(format!("/proc/self/fd/{}", detached.as_raw_fd()));
        Ok(Self { root, _detached: Some(detached) })
    }

    /// Mounts a tracefs detached, so that nothing has to be unmounted.
    fn mount_detached() -> rustix::io::Result<OwnedFd> {
        let context = rustix::mount::fsopen("tracefs", FsOpenFlags::FSOPEN_CLOEXEC)?;
        rustix::mount::fsconfig_create(&context)?;
        rustix::mount::fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())
    }

    /// The directory of the tracing files.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Removes instances whose process has ended; returns their names.
    pub fn remove_left_over(&self) -> Vec<String> {
        let Ok(entries) = fs::read_dir(self.root.join("instances")) else { return Vec::new() };
        let mut removed = Vec::new();
        for entry in entries.flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            let pid = name.strip_prefix(INSTANCE_PREFIX).and_then(|rest| rest.split('-').next());
            let Some(pid) = pid.and_then(|pid| pid.parse::<u32>().ok()) else { continue };
            if Path::new(&format!("/proc/{pid}")).exists() {
                continue;
            }
            let _ = fs::write(entry.path().join("events/enable"), "0");
            // An instance with an open reader cannot be removed, and belongs to that reader.
            if fs::remove_dir(entry.path()).is_ok() {
                removed.push(name);
            }
        }
        removed
    }

    /// Creates an instance that records nothing yet; it is removed when dropped.
    pub fn instance(&self, undo: &Undo) -> Result<Instance> {
        let number = INSTANCE_COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("{INSTANCE_PREFIX}{}-{number}", std::process::id());
        let path = self.root.join("instances").join(&name);
        let change = undo.record(Change::Instance { name: name.clone() })?;
        fs::create_dir(&path).context(|| format!("cannot make the tracing instance {name}"))?;
        Ok(Instance { path, _change: change })
    }
}

/// A tracing instance: buffers and event switches of its own.
#[derive(Debug)]
pub struct Instance {
    path: PathBuf,
    _change: PendingChange,
}

impl Instance {
    /// The path of one of its files.
    pub fn file(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// The path of one of its files for other processes.
    pub(crate) fn shared_file(&self, name: &str) -> PathBuf {
        let path = self.file(name);
        let own = format!("/proc/{}", std::process::id());
        path.strip_prefix("/proc/self").map(|rest| Path::new(&own).join(rest)).unwrap_or(path)
    }

    /// Writes one of its files.
    pub fn write(&self, name: &str, value: &str) -> Result<()> {
        fs::write(self.file(name), value).context(|| format!("cannot set tracing's {name} to {value:?}"))
    }

    /// Reads one of its files.
    pub fn read(&self, name: &str) -> Result<String> {
        read_at_once(&self.file(name)).context(|| format!("cannot read tracing's {name}"))
    }

    /// Enables an event and returns its format; `None` if this kernel does not have it.
    pub fn enable(&self, group: &str, event: &str) -> Result<Option<EventFormat>> {
        let directory = format!("events/{group}/{event}");
        if !self.file(&directory).is_dir() {
            return Ok(None);
        }
        let format = self.format(group, event)?;
        self.write(&format!("{directory}/enable"), "1")?;
        Ok(Some(format))
    }

    /// The format of an event.
    pub fn format(&self, group: &str, event: &str) -> Result<EventFormat> {
        EventFormat::parse(&self.read(&format!("events/{group}/{event}/format"))?)
    }

    /// The page layout of this kernel's buffers.
    pub(crate) fn page_layout(&self) -> Result<PageLayout> {
        PageLayout::parse(&self.read("events/header_page").or_else(|_| self.read("../../events/header_page"))?)
    }

    /// The CPUs that have a buffer.
    pub fn cpus(&self) -> Result<Vec<u32>> {
        let entries = fs::read_dir(self.file("per_cpu")).context(|| "cannot list tracing's per_cpu".to_owned())?;
        let mut cpus: Vec<u32> = entries
            .flatten()
            .filter_map(|entry| entry.file_name().to_str()?.strip_prefix("cpu")?.parse().ok())
            .collect();
        cpus.sort_unstable();
        if cpus.is_empty() { Err(Error::new("tracing has no CPUs")) } else { Ok(cpus) }
    }

    /// The statistics of one CPU's buffer.
    pub fn statistics(&self, cpu: u32) -> Result<BufferStatistics> {
        Ok(BufferStatistics::parse(cpu, &self.read(&format!("per_cpu/cpu{cpu}/stats"))?))
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        let _ = self.write("tracing_on", "0");
        let _ = self.write("events/enable", "0");
        // The kernel releases a reader's buffer shortly after the reader closed it.
        for _ in 0..100 {
            match fs::remove_dir(&self.path) {
                Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {
                    std::thread::sleep(std::time::Duration::from_millis(10));
                }
                _ => break,
            }
        }
    }
}

/// The kernel's statistics of a CPU's buffer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct BufferStatistics {
    /// The CPU.
    pub cpu: u32,
    /// Records still in the buffer.
    pub entries: u64,
    /// Records overwritten before they were read.
    pub overrun: u64,
    /// Records lost to deeply nested interrupts.
    pub commit_overrun: u64,
    /// Records not written for lack of space.
    pub dropped: u64,
    /// Records read.
    pub read: u64,
}

impl BufferStatistics {
    fn parse(cpu: u32, text: &str) -> Self {
        let mut statistics = Self { cpu, ..Self::default() };
        for (key, value) in text.lines().filter_map(|line| line.split_once(':')) {
            let value = value.trim().parse().unwrap_or(0);
            match key.trim() {
                "entries" => statistics.entries = value,
                "overrun" => statistics.overrun = value,
                "commit overrun" => statistics.commit_overrun = value,
                "dropped events" => statistics.dropped = value,
                "read events" => statistics.read = value,
                _ => {}
            }
        }
        statistics
    }

    /// Records lost for any reason.
    pub fn lost(&self) -> u64 {
        self.overrun + self.commit_overrun + self.dropped
    }
}

/// Reads a file with one call per piece: `header_page` ends after the first read, however short.
fn read_at_once(path: &Path) -> std::io::Result<String> {
    let mut file = fs::File::open(path)?;
    let mut text = Vec::new();
    let mut piece = vec![0; 64 << 10];
    loop {
        match file.read(&mut piece)? {
            0 => return Ok(String::from_utf8_lossy(&text).into_owned()),
            length => text.extend_from_slice(&piece[..length]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statistics_are_read() {
        let text = "entries: 12\noverrun: 3\ncommit overrun: 4\nbytes: 900\noldest event ts:  7.1\nnow ts: 9.2\n\
                    dropped events: 5\nread events: 600\n";
        let expected = BufferStatistics { cpu: 3, entries: 12, overrun: 3, commit_overrun: 4, dropped: 5, read: 600 };
        assert_eq!(BufferStatistics::parse(3, text), expected);
        assert_eq!(expected.lost(), 12);
    }
}
