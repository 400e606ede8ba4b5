//! Compares every byte with the source tree.

use std::{
    fs::File,
    io::{self, Read},
    path::Path,
    sync::atomic::{AtomicUsize, Ordering},
    thread,
    time::Instant,
};

use super::{Measurement, Scene, Workload};
use crate::task_error::{Outcome, TaskError};

/// The read size in bytes.
const READ_BYTES: usize = 256 << 10;

/// Threads that read every file and compare it with the tree from which the image was made. Not a benchmark of speed,
/// because the source is read too.
pub(super) struct Compare {
    /// The number of threads.
    pub(super) threads: usize,
}

impl Workload for Compare {
    fn name(&self) -> String {
        "compare".to_owned()
    }

    fn title(&self) -> String {
        format!("compared with the source, {} threads", self.threads)
    }

    fn is_default(&self) -> bool {
        false
    }

    fn run(&self, scene: &Scene<'_>) -> Outcome<Vec<Measurement>> {
        let tree = scene.tree.ok_or(TaskError::new("compare needs the --tree from which the image is made"))?;
        let next = AtomicUsize::new(0);
        let started = Instant::now();
        let outcomes: Vec<io::Result<()>> = thread::scope(|scope| {
            let work = || {
                while let Some(file) = scene.files.get(next.fetch_add(1, Ordering::Relaxed)) {
                    if !same_bytes(&scene.mount.join(&file.path), &tree.join(&file.path))? {
                        return Err(io::Error::other(format!("{} differs from the source", file.path.display())));
                    }
                }
                Ok(())
            };
            let readers: Vec<_> = (0..self.threads).map(|_| scope.spawn(work)).collect();
            readers.into_iter().map(|reader| reader.join().expect("readers do not panic")).collect()
        });
        let seconds = started.elapsed().as_secs_f64();
        outcomes.into_iter().collect::<io::Result<()>>()?;
        let bytes: u64 = scene.files.iter().map(|file| file.size).sum();
        Ok(vec![Measurement::more("MB/s", bytes as f64 / 1e6 / seconds)])
    }
}

fn same_bytes(left: &Path, right: &Path) -> io::Result<bool> {
    let (mut left, mut right) = (File::open(left)?, File::open(right)?);
    let (mut left_bytes, mut right_bytes) = (vec![0; READ_BYTES], vec![0; READ_BYTES]);
    loop {
        let len = fill(&mut left, &mut left_bytes)?;
        if fill(&mut right, &mut right_bytes)? != len || left_bytes[..len] != right_bytes[..len] {
            return Ok(false);
        }
        if len == 0 {
            return Ok(true);
        }
    }
}

fn fill(file: &mut File, buffer: &mut [u8]) -> io::Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        match file.read(&mut buffer[filled..])? {
            0 => break,
            len => filled += len,
        }
    }
    Ok(filled)
}
