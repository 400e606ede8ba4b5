//! Walks and reads the whole tree.

use std::{
    fs::{self, File},
    io::{self, Read},
    path::PathBuf,
    thread,
    time::Instant,
};

use floe_sync::{Condvar, Mutex};

use super::{Measurement, Scene, Workload};
use crate::task_error::{Outcome, TaskError};

/// The read size in bytes.
const READ_BYTES: usize = 128 << 10;

/// Threads that share the walk of a tree and read all its files, like backups and copies.
pub(super) struct WholeTree {
    /// The number of threads.
    pub(super) threads: usize,
}

impl Workload for WholeTree {
    fn name(&self) -> String {
        "whole-tree".to_owned()
    }

    fn title(&self) -> String {
        format!("whole tree, {} threads", self.threads)
    }

    fn run(&self, scene: &Scene<'_>) -> Outcome<Vec<Measurement>> {
        let work =
            Work { state: Mutex::new(State { items: vec![scene.mount.to_path_buf()], busy: 0 }), more: Condvar::new() };
        let started = Instant::now();
        let outcomes: Vec<io::Result<u64>> = thread::scope(|scope| {
            let readers: Vec<_> = (0..self.threads).map(|_| scope.spawn(|| read_items(&work))).collect();
            readers.into_iter().map(|reader| reader.join().expect("readers do not panic")).collect()
        });
        let seconds = started.elapsed().as_secs_f64();
        let bytes: u64 = outcomes.into_iter().sum::<io::Result<u64>>()?;
        let expected: u64 = scene.files.iter().map(|file| file.size).sum();
        if bytes != expected {
            return Err(TaskError::new(format!("read {bytes} of {expected} bytes")));
        }
        Ok(vec![Measurement::more("MB/s", bytes as f64 / 1e6 / seconds)])
    }
}

struct State {
    items: Vec<PathBuf>,
    busy: usize,
}

/// The pending directories and files; last in, first out.
struct Work {
    state: Mutex<State>,
    more: Condvar,
}

impl Work {
    /// Waits for the next item; `None` when all work is done.
    fn next(&self) -> Option<PathBuf> {
        let mut state = self.state.lock();
        loop {
            if let Some(item) = state.items.pop() {
                state.busy += 1;
                return Some(item);
            }
            if state.busy == 0 {
                return None;
            }
            state = self.more.wait(state);
        }
    }

    fn done(&self, found: Vec<PathBuf>) {
        let mut state = self.state.lock();
        state.items.extend(found.into_iter().rev());
        state.busy -= 1;
        drop(state);
        self.more.notify_all();
    }
}

fn read_items(work: &Work) -> io::Result<u64> {
    let mut buffer = vec![0; READ_BYTES];
    let (mut bytes, mut outcome) = (0, Ok(()));
    while let Some(item) = work.next() {
        let mut found = Vec::new();
        let read = read_item(&item, &mut buffer, &mut found);
        work.done(found);
        match read {
            Ok(len) => bytes += len,
            Err(error) => outcome = Err(io::Error::other(format!("{}: {error}", item.display()))),
        }
    }
    outcome.map(|()| bytes)
}

/// Reads a file, or lists a directory into `found`.
fn read_item(item: &PathBuf, buffer: &mut [u8], found: &mut Vec<PathBuf>) -> io::Result<u64> {
    // Only directories and regular files are queued; opening shows which it is.
    let mut file = match File::open(item) {
        Ok(file) => file,
        // The list has no file that this user may not read, either.
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => return Ok(0),
        Err(error) => return Err(error),
    };
    let mut bytes = 0;
    loop {
        match file.read(buffer) {
            Ok(0) => return Ok(bytes),
            Ok(len) => bytes += len as u64,
            Err(error) if error.kind() == io::ErrorKind::IsADirectory => break,
            Err(error) => return Err(error),
        }
    }
    for entry in fs::read_dir(item)? {
        let entry = entry?;
        let file_type = entry.file_type()?;
        if file_type.is_dir() || file_type.is_file() {
            found.push(entry.path());
        }
    }
    Ok(0)
}
