//! A lock that allows one lab at a time, because two would disturb each other's measurements and settings.

use std::fs::{self, File};
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use floe_image::ShownName;
use rustix::fs::FlockOperation;
use rustix::io::Errno;

use crate::error::ErrorContext;
use crate::interrupt_sys::Interrupt;
use crate::{Error, Result};

/// How often to check whether the other lab has ended.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);

/// A lock on the journal directory. It is released when both this process and its keeper, which undoes the changes of a
/// killed run, have ended.
#[derive(Debug)]
pub(crate) struct LabLock(File);

impl LabLock {
    /// Waits for the lock; prints a message to stderr if it has to wait. `make` creates the directory if it is missing.
    pub(crate) fn wait(make: impl Fn() -> Result<std::path::PathBuf>, interrupt: &Interrupt) -> Result<Self> {
        let begin = Instant::now();
        let mut has_told = false;
        loop {
            if let Some(lock) = Self::attempt(&make()?)? {
                return Ok(lock);
            }
            if interrupt.is_requested() {
                return Err(Error::new("interrupted while waiting for another floe lab on this machine"));
            }
            if !has_told && begin.elapsed() > LOOK_INTERVAL * 5 {
                eprintln!("floe: waiting for another floe lab on this machine");
                has_told = true;
            }
            std::thread::sleep(LOOK_INTERVAL);
        }
    }

    /// Takes the lock if it is free.
    pub(crate) fn attempt(directory: &Path) -> Result<Option<Self>> {
        let file = match File::open(directory) {
            // Another run has just ended and removed the directory.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            opened => opened.context(|| format!("cannot open {}", directory.shown()))?,
        };
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) => return Ok(None),
            locked => locked.context(|| format!("cannot lock {}", directory.shown()))?,
        }
        // The previous holder may have removed the directory, and another process may have created a new one.
        let same = |left: fs::Metadata, right: fs::Metadata| (left.dev(), left.ino()) == (right.dev(), right.ino());
        let is_there = file.metadata().ok().zip(fs::metadata(directory).ok()).is_some_and(|(a, b)| same(a, b));
        Ok(is_there.then_some(Self(file)))
    }

    /// For the keeper: a descriptor that holds the lock as long as the child lives.
    pub(crate) fn share(&self) -> Option<Stdio> {
        self.0.try_clone().ok().map(|file| Stdio::from(OwnedFd::from(file)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn the_second_waits_for_the_first_and_for_its_keeper() {
        let home = tempfile::tempdir().unwrap();
        let directory = home.path().join("journals");
        assert!(LabLock::attempt(&directory).unwrap().is_none(), "there is no directory yet");
        fs::create_dir(&directory).unwrap();
        let lock = LabLock::attempt(&directory).unwrap().unwrap();
        assert!(LabLock::attempt(&directory).unwrap().is_none());
        let mut keeper = Command::new("sleep").arg("60").stdout(lock.share().unwrap()).spawn().unwrap();
        drop(lock);
        assert!(LabLock::attempt(&directory).unwrap().is_none());
        keeper.kill().unwrap();
        keeper.wait().unwrap();
        // A program that another test starts at this moment has a copy of the descriptor until its exec.
        let _lock = (0..1000)
            .find_map(|_| {
                std::thread::sleep(Duration::from_millis(10));
                LabLock::attempt(&directory).unwrap()
            })
            .expect("the lock is free once the keeper has ended");
        fs::remove_dir(&directory).unwrap();
        fs::create_dir(&directory).unwrap();
        assert!(LabLock::attempt(&directory).unwrap().is_some(), "a lock on a removed directory blocks a new run");
    }
}
