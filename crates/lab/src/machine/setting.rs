//! Kernel settings that a run changes and restores.

use std::fs;
use std::path::{Path, PathBuf};

use super::undo::{Change, PendingChange, Undo};
use crate::Result;
use crate::error::ErrorContext;
use floe_image::ShownName;

/// Whether the scheduler groups processes by session; dominates latency under load.
pub const AUTOGROUP: &str = "/proc/sys/kernel/sched_autogroup_enabled";

/// A changed setting; restored when dropped.
#[derive(Debug)]
pub struct Setting {
    path: PathBuf,
    before: String,
    change: Option<PendingChange>,
}

impl Setting {
    /// Writes `value` to the setting's file; `None` if this kernel does not have it.
    pub fn set(undo: &Undo, path: impl AsRef<Path>, value: &str) -> Result<Option<Self>> {
        let path = path.as_ref().to_owned();
        let Some(before) = read_setting(&path) else { return Ok(None) };
        if before == value {
            return Ok(Some(Self { path, before, change: None }));
        }
        let change = undo.record(Change::Setting { path: path.clone(), value: before.clone() })?;
        fs::write(&path, value).context(|| format!("cannot set {} to {value}", path.shown()))?;
        Ok(Some(Self { path, before, change: Some(change) }))
    }

    /// The previous value.
    pub fn before(&self) -> &str {
        &self.before
    }
}

impl Drop for Setting {
    fn drop(&mut self) {
        if self.change.is_some() {
            let _ = fs::write(&self.path, &self.before);
        }
    }
}

/// The current value of a setting; `None` if this kernel does not have it.
pub fn read_setting(path: impl AsRef<Path>) -> Option<String> {
    Some(fs::read_to_string(path).ok()?.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_setting_is_restored() {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), "1\n").unwrap();
        let undo = Undo::new().unwrap();
        let setting = Setting::set(&undo, file.path(), "0").unwrap().unwrap();
        assert_eq!((setting.before(), read_setting(file.path()).as_deref()), ("1", Some("0")));
        drop(setting);
        assert_eq!(read_setting(file.path()).as_deref(), Some("1"));
        assert!(Setting::set(&undo, "/proc/sys/kernel/no_such_setting", "0").unwrap().is_none());
    }
}
