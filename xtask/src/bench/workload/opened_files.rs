//! Files that are opened by path from a list, without a listing of their directories.

use std::{
    fs::File,
    io::{self, Read},
    os::unix::fs::FileExt,
    path::PathBuf,
    sync::atomic::{AtomicUsize, Ordering},
    thread,
    time::{Duration, Instant},
};

use floe_testkit::Random;

use super::{Measurement, Scene, Workload};
use crate::{
    bench::listing::{self, ListedFile},
    task_error::{During, Outcome, TaskError},
};

/// The size of reads of whole files.
const READ_BYTES: usize = 128 << 10;

/// The size and alignment of a read at a random offset.
const SMALL_READ_BYTES: u64 = 4_096;

/// The number of files that a data loader reads, and their maximum size in bytes.
const LOADED_FILES: usize = 20_000;
const LOADED_BYTES_MAX: u64 = 200_000;

/// Threads that open the files of a list by path, one after the other, read and close them.
pub(super) struct OpenedFiles {
    pub(super) pattern: Pattern,
    /// The number of threads.
    pub(super) threads: usize,
}

/// The order of the list, and how much of each file is read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Pattern {
    /// All files, in the order of a walk, whole.
    Walk,
    /// Small files, in random order, whole.
    Loader,
    /// Files in random order, 4 KiB at a random offset.
    Random,
}

/// A file of the list, and what is read of it: all, or 4 KiB at this offset.
struct Target {
    path: PathBuf,
    offset: Option<u64>,
}

impl Workload for OpenedFiles {
    fn name(&self) -> String {
        match self.pattern {
            Pattern::Walk => "by-path".to_owned(),
            Pattern::Loader => "loader".to_owned(),
            Pattern::Random => format!("open-{}", self.threads),
        }
    }

    fn title(&self) -> String {
        let what = match self.pattern {
            Pattern::Walk => "all files by path",
            Pattern::Loader => "small files in random order",
            Pattern::Random => "open + 4 KiB of random files",
        };
        let plural = if self.threads == 1 { "" } else { "s" };
        format!("{what}, {} thread{plural}", self.threads)
    }

    fn is_default(&self) -> bool {
        false
    }

    fn run(&self, scene: &Scene<'_>) -> Outcome<Vec<Measurement>> {
        let targets = self.targets(scene);
        let time_max = if self.pattern == Pattern::Random { scene.duration } else { Duration::MAX };
        let (next, started) = (AtomicUsize::new(0), Instant::now());
        let outcomes: Vec<Outcome<(usize, u64)>> = thread::scope(|scope| {
            let work = || {
                let mut buffer = vec![0; READ_BYTES];
                let (mut files, mut bytes) = (0, 0);
                while started.elapsed() < time_max
                    && let Some(target) = targets.get(next.fetch_add(1, Ordering::Relaxed))
                {
                    bytes += target.read(&mut buffer).during(target.path.display())?;
                    files += 1;
                }
                Ok((files, bytes))
            };
            let readers: Vec<_> = (0..self.threads).map(|_| scope.spawn(work)).collect();
            readers.into_iter().map(|reader| reader.join().expect("readers do not panic")).collect()
        });
        let seconds = started.elapsed().as_secs_f64();
        let (mut files, mut bytes) = (0, 0);
        for outcome in outcomes {
            let (read_files, read_bytes) = outcome?;
            files += read_files;
            bytes += read_bytes;
        }
        let expected: u64 = scene.files.iter().map(|file| file.size).sum();
        if self.pattern == Pattern::Walk && bytes != expected {
            return Err(TaskError::new(format!("read {bytes} of {expected} bytes")));
        }
        let files = Measurement::more("files/s", files as f64 / seconds);
        let rate = Measurement::more("MB/s", bytes as f64 / 1e6 / seconds);
        Ok(if self.pattern == Pattern::Random { vec![files] } else { vec![files, rate] })
    }
}

impl OpenedFiles {
    fn targets(&self, scene: &Scene<'_>) -> Vec<Target> {
        let mut random = Random::new(scene.round);
        let is_taken = |file: &&ListedFile| match self.pattern {
            Pattern::Walk => true,
            Pattern::Loader => file.size < LOADED_BYTES_MAX,
            Pattern::Random => file.size > 0,
        };
        let mut files: Vec<&ListedFile> = scene.files.iter().filter(is_taken).collect();
        if self.pattern != Pattern::Walk {
            listing::shuffle(&mut files, &mut random);
        }
        if self.pattern == Pattern::Loader {
            files.truncate(LOADED_FILES);
        }
        let target = |file: &ListedFile| {
            let pages = file.size.div_ceil(SMALL_READ_BYTES);
            let offset = (self.pattern == Pattern::Random).then(|| random.below(pages) * SMALL_READ_BYTES);
            Target { path: scene.mount.join(&file.path), offset }
        };
        files.into_iter().map(target).collect()
    }
}

impl Target {
    /// Opens, reads and closes the file. Returns the number of bytes read.
    fn read(&self, buffer: &mut [u8]) -> io::Result<u64> {
        let mut file = File::open(&self.path)?;
        if let Some(offset) = self.offset {
            return Ok(file.read_at(&mut buffer[..SMALL_READ_BYTES as usize], offset)? as u64);
        }
        let mut bytes = 0;
        loop {
            match file.read(buffer)? {
                0 => return Ok(bytes),
                len => bytes += len as u64,
            }
        }
    }
}
