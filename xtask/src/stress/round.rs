//! One round: the life of a mount.

use std::{
    fs::{self, File},
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    thread,
    time::{Duration, Instant},
};

use floe_testkit::{
    Random,
    corpus::Materialised,
    manifest::{Manifest, sha256_hex},
};
use rustix::fs::{Advice, fadvise};

use super::{
    Tally, is_mounted,
    mounted::Mounted,
    readers::{Counts, Known, be_killed, read_at_random, read_until_failure},
};
use crate::task_error::{During, Outcome, TaskError};

/// The largest file that is compared piecewise, in bytes, and the maximum number of such files.
const KNOWN_BYTES_MAX: u64 = 8 << 20;
const KNOWN_COUNT_MAX: usize = 40;

/// The number of threads that read at random.
const READER_COUNT: u64 = 6;

/// The changes of options at runtime.
const CHANGES: [&str; 24] = [
    "cache=0",
    "cache=256k",
    "cache=4M",
    "cache=64M",
    "metadata-cache=1",
    "metadata-cache=64",
    "metadata-cache=1024",
    "reserved-pages=0",
    "reserved-pages=16",
    "reserved-pages=1024",
    "workers=per-cpu",
    "workers=shared",
    "workers=inline",
    "priority=auto",
    "priority=nice:5",
    "priority=normal",
    "sync-decompress=auto",
    "sync-decompress=always",
    "sync-decompress=never",
    "prefetch=all",
    "prefetch=none",
    "readahead-alloc=wait",
    "readahead-alloc=best-effort",
    "fetch-around=0",
];

/// One round.
pub(super) struct Round<'a> {
    pub(super) program: &'a Path,
    pub(super) files: Materialised,
    pub(super) manifest: Manifest,
    /// Whether all caches of the machine may be dropped.
    pub(super) drops_caches: bool,
}

impl Round<'_> {
    pub(super) fn run(&self, random: &mut Random, tally: &mut Tally) -> Outcome {
        let mut any = |values: &[&'static str]| values[random.below(values.len() as u64) as usize];
        let switches = [
            any(&["workers=per-cpu", "workers=shared", "workers=inline"]),
            any(&["sync-decompress=auto", "sync-decompress=never"]),
            any(&["cache=0", "cache=1M", "cache=64M"]),
            any(&["reserved-pages=0", "reserved-pages=64", "reserved-pages=1024"]),
            any(&["threads=1", "threads=2", "threads=6"]),
            any(&["clone_fd", "readdir=plain", "readdir=plus", "readdir=auto"]),
            any(&["front=auto", "front=kernel", "front=fuse"]),
        ];
        tally.rounds += 1;
        let mounted = Mounted::new(self.program, &self.files, &switches.join(","))?;
        let known = self.known(&mounted.path())?;
        let lasts = Duration::from_millis(500 + random.below(4500));
        self.stress(&mounted, &known, random, lasts, tally)?;
        mounted.check_pages()?;
        if random.below(8) == 0 {
            tally.killed_servers += 1;
            return self.kill(mounted, &known, random);
        }
        if random.below(3) > 0 || known.is_empty() {
            mounted.unmount(false)?;
            return mounted.wait();
        }
        // The mount is detached while it is read; open files stay readable.
        tally.lazy_unmounts += 1;
        let open: Vec<_> = known.iter().map(|known| File::open(&known.path)).collect::<Result<_, _>>()?;
        for file in &open {
            fadvise(file, 0, None, Advice::DontNeed)?;
        }
        mounted.unmount(true)?;
        for (file, known) in open.iter().zip(&known) {
            let mut file = file;
            let mut bytes = Vec::new();
            std::io::Read::read_to_end(&mut file, &mut bytes).during(known.path.display())?;
            if bytes != known.content {
                return Err(TaskError::new(format!("{}: wrong bytes after the unmount", known.path.display())));
            }
        }
        drop(open);
        mounted.wait()
    }

    /// Kills the server while its mount is read. Readers must get their bytes or errors, and the mount must go.
    fn kill(&self, mounted: Mounted<'_>, known: &[Known], random: &mut Random) -> Outcome {
        let (is_over, seed, directory) = (AtomicBool::new(false), random.next(), mounted.path());
        let lasts = Duration::from_millis(random.below(300));
        thread::scope(|scope| {
            let is_over = &is_over;
            let reader_count = if known.is_empty() { 0 } else { READER_COUNT };
            let readers: Vec<_> = (0..reader_count)
                .map(|number| scope.spawn(move || read_until_failure(known, seed ^ number, is_over)))
                .collect();
            thread::sleep(lasts);
            let killed = mounted.kill();
            thread::sleep(lasts);
            is_over.store(true, Relaxed);
            let ended =
                readers.into_iter().map(|other| other.join().unwrap_or(Err(TaskError::new("a reader panicked"))));
            killed.and(ended.fold(Ok(()), Outcome::and))
        })?;
        mounted.unmount(true)?;
        if is_mounted(&directory)? {
            return Err(TaskError::new(format!(
                "{} is still mounted after its server was killed",
                directory.display()
            )));
        }
        mounted.wait_for_killed()
    }

    /// Runs readers, some of which are killed, while options change and the status is queried.
    fn stress(
        &self,
        mounted: &Mounted<'_>,
        known: &[Known],
        random: &mut Random,
        lasts: Duration,
        tally: &mut Tally,
    ) -> Outcome {
        let (is_over, counts, seed) = (AtomicBool::new(false), Counts::default(), random.next());
        let directory = mounted.path();
        let outcome = thread::scope(|scope| {
            let (is_over, counts, directory) = (&is_over, &counts, &directory);
            let reader_count = if known.is_empty() { 0 } else { READER_COUNT };
            let mut others: Vec<_> = (0..reader_count)
                .map(|number| scope.spawn(move || read_at_random(known, seed ^ number, is_over, counts)))
                .collect();
            others.push(scope.spawn(move || be_killed(directory, seed ^ 0xff, is_over, counts)));
            let own = self.tune_and_ask(mounted, random, lasts, tally);
            is_over.store(true, Relaxed);
            let ended =
                others.into_iter().map(|other| other.join().unwrap_or(Err(TaskError::new("a reader panicked"))));
            own.and(ended.fold(Ok(()), Outcome::and))
        });
        tally.reads += counts.reads.load(Relaxed);
        tally.read_bytes += counts.read_bytes.load(Relaxed);
        tally.killed_readers += counts.killed.load(Relaxed);
        outcome
    }

    fn tune_and_ask(&self, mounted: &Mounted<'_>, random: &mut Random, lasts: Duration, tally: &mut Tally) -> Outcome {
        let started = Instant::now();
        while started.elapsed() < lasts {
            mounted.tune(CHANGES[random.below(CHANGES.len() as u64) as usize])?;
            tally.tunings += 1;
            if random.below(4) == 0 {
                mounted.status()?;
                tally.status_reports += 1;
            }
            if random.below(2) == 0 {
                self.forget_some(random)?;
            }
            if self.drops_caches && random.below(30) == 0 {
                fs::write("/proc/sys/vm/drop_caches", "3").during("drop_caches")?;
            }
            thread::sleep(Duration::from_millis(random.below(40)));
        }
        Ok(())
    }

    /// Drops all or parts of the source from memory, so that reads block again.
    fn forget_some(&self, random: &mut Random) -> Outcome {
        let image = File::open(&self.files.path)?;
        if random.below(4) == 0 {
            return Ok(fadvise(&image, 0, None, Advice::DontNeed)?);
        }
        let len = image.metadata()?.len();
        for _ in 0..random.below(64) {
            let part = std::num::NonZero::new(4096 << random.below(4));
            fadvise(&image, random.below(len + 1), part, Advice::DontNeed)?;
        }
        Ok(())
    }

    /// Some files of the mount with their content, verified against the manifest.
    fn known(&self, mount: &Path) -> Outcome<Vec<Known>> {
        let mut known = Vec::new();
        for (path, entry) in self.manifest.entries() {
            let (Some(sha256), 1..=KNOWN_BYTES_MAX) = (&entry.sha256, entry.size) else { continue };
            let relative = path.strip_prefix(b"/").unwrap_or(path);
            let path: PathBuf = mount.join(std::ffi::OsStr::from_bytes(relative));
            let content = fs::read(&path).during(path.display())?;
            if sha256_hex(&content) != *sha256 {
                return Err(TaskError::new(format!("{}: differs from the manifest", path.display())));
            }
            known.push(Known { path, content });
            if known.len() == KNOWN_COUNT_MAX {
                break;
            }
        }
        Ok(known)
    }
}
