//! One lab at a time: two would measure each other, and give each other's settings back.

use std::fs::{self, File};
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use rustix::fs::FlockOperation;
use rustix::io::Errno;

use crate::error::Doing;
use crate::interrupt_sys::Interrupt;
use crate::{Error, Result};

/// How often it is looked whether the other lab has ended.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);

/// A lock on the directory of the journals. It is free again when this process and the keeper, which still undoes what a
/// killed run has left, have both ended.
#[derive(Debug)]
pub(crate) struct Turn(File);

impl Turn {
    /// Waits for it; says so on standard error if it has to. `make` makes the directory where it is missing.
    pub(crate) fn wait(make: impl Fn() -> Result<std::path::PathBuf>, interrupt: &Interrupt) -> Result<Self> {
        let begin = Instant::now();
        let mut has_told = false;
        loop {
            if let Some(turn) = Self::attempt(&make()?)? {
                return Ok(turn);
            }
            if interrupt.is_requested() {
                return Err(Error::new("ended while another floe lab was measuring on this machine"));
            }
            if !has_told && begin.elapsed() > LOOK_INTERVAL * 5 {
                eprintln!("floe: waiting for another floe lab that is measuring on this machine");
                has_told = true;
            }
            std::thread::sleep(LOOK_INTERVAL);
        }
    }

    /// Takes the lock if it is free.
    pub(crate) fn attempt(directory: &Path) -> Result<Option<Self>> {
        let file = match File::open(directory) {
            // Another run was the last to leave, just now.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            opened => opened.doing(|| format!("cannot open {}", directory.display()))?,
        };
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) => return Ok(None),
            locked => locked.doing(|| format!("cannot lock {}", directory.display()))?,
        }
        // Whoever had it before may have removed the directory, and somebody made another.
        let same = |left: fs::Metadata, right: fs::Metadata| (left.dev(), left.ino()) == (right.dev(), right.ino());
        let is_there = file.metadata().ok().zip(fs::metadata(directory).ok()).is_some_and(|(a, b)| same(a, b));
        Ok(is_there.then_some(Self(file)))
    }

    /// For the keeper: holds the lock as long as the child does.
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
        assert!(Turn::attempt(&directory).unwrap().is_none(), "there is no directory yet");
        fs::create_dir(&directory).unwrap();
        let turn = Turn::attempt(&directory).unwrap().unwrap();
        assert!(Turn::attempt(&directory).unwrap().is_none());
        let mut keeper = Command::new("sleep").arg("60").stdout(turn.share().unwrap()).spawn().unwrap();
        drop(turn);
        assert!(Turn::attempt(&directory).unwrap().is_none());
        keeper.kill().unwrap();
        keeper.wait().unwrap();
        let _turn = Turn::attempt(&directory).unwrap().unwrap();
        fs::remove_dir(&directory).unwrap();
        fs::create_dir(&directory).unwrap();
        assert!(Turn::attempt(&directory).unwrap().is_some(), "a lock on a removed directory holds nobody up");
    }
}
