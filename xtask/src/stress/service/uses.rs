//! Uses of the mounts of a service: readers, programs that run from them, and mapped files.

use std::{
    fs::{self, File},
    io::{BufRead, BufReader, Write},
    os::unix::{fs::FileExt, process::CommandExt},
    path::{Path, PathBuf},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use floe_sync::Mutex;
use floe_testkit::{MappedFile, Random};
use rustix::fs::{Advice, fadvise};

use crate::task_error::{During, Outcome, TaskError};

/// The number of readers.
const READERS: usize = 8;

/// The length of a read.
const READ_BYTES: usize = 64 << 10;

/// A reader waits this long after each file, so that readers leave CPU time to the processes that are replaced, as on a machine that is
/// not overloaded.
const REST: Duration = Duration::from_millis(5);

/// Operations that take less are no pauses.
const PAUSE_MIN: Duration = Duration::from_micros(100);

/// The number of pauses of a reader that are kept.
const PAUSES_MAX: usize = 1 << 16;

/// Uses of mounts.
pub(super) struct Uses {
    is_over: Arc<AtomicBool>,
    readers: Vec<(Arc<Reader>, JoinHandle<Outcome>)>,
    mappings: Vec<JoinHandle<Outcome>>,
    programs: Mutex<Vec<Program>>,
}

/// What a reader has done so far.
#[derive(Default)]
struct Reader {
    reads: AtomicU64,
    /// The begin and the duration of each long operation.
    pauses: Mutex<Vec<(Instant, Duration)>>,
    /// The begin of the operation in progress.
    current: Mutex<Option<Instant>>,
    fault: Mutex<Option<String>>,
}

/// Writes a tree of files, and a program. Returns the contents of the files.
pub(super) fn write_tree(tree: &Path, count: usize, len: usize, random: &mut Random) -> Outcome<Arc<Vec<Vec<u8>>>> {
    fs::create_dir(tree)?;
    let contents: Vec<_> = (0..count).map(|_| random.text(len)).collect();
    for (index, content) in contents.iter().enumerate() {
        fs::write(tree.join(index.to_string()), content)?;
    }
    fs::copy("/bin/sh", tree.join("sh"))?;
    Ok(Arc::new(contents))
}

impl Uses {
    pub(super) fn begin(places: &[PathBuf], contents: &Arc<Vec<Vec<u8>>>) -> Outcome<Self> {
        let is_over = Arc::new(AtomicBool::new(false));
        let readers = (0..READERS).map(|number| {
            let (place, contents, is_over) =
                (places[number % places.len()].clone(), Arc::clone(contents), Arc::clone(&is_over));
            let reader = Arc::new(Reader::default());
            let own = Arc::clone(&reader);
            let work = move || {
                let outcome = own.read(&place, &contents, number as u64, &is_over);
                *own.fault.lock() = outcome.as_ref().err().map(ToString::to_string);
                outcome
            };
            (reader, thread::spawn(work))
        });
        let readers = readers.collect();
        let mappings = places.iter().map(|place| {
            let (file, expected) = (File::open(place.join("0")), Arc::clone(contents));
            let is_over = Arc::clone(&is_over);
            thread::spawn(move || check_mapping(&file?, &expected[0], &is_over))
        });
        let mappings = mappings.collect();
        let programs = places.iter().map(|place| Program::start(place)).collect::<Outcome<_>>()?;
        Ok(Self { is_over, readers, mappings, programs: Mutex::new(programs) })
    }

    /// The longest operation of each reader that has taken place since then, at least in part.
    pub(super) fn longest_since(&self, since: Instant) -> Vec<Duration> {
        let of = |reader: &Reader| {
            let current = reader.current.lock().map(|began| began.elapsed());
            let pauses = reader.pauses.lock();
            let later = pauses.iter().rev().filter(|(began, duration)| *began + *duration >= since);
            later.map(|(_, duration)| *duration).chain(current).max().unwrap_or_default()
        };
        self.readers.iter().map(|(reader, _)| of(reader)).collect()
    }

    pub(super) fn reads(&self) -> u64 {
        self.readers.iter().map(|(reader, _)| reader.reads.load(Relaxed)).sum()
    }

    /// Checks that no use has failed.
    pub(super) fn check(&self) -> Outcome {
        let faults: Vec<_> = self.readers.iter().filter_map(|(reader, _)| reader.fault.lock().clone()).collect();
        TaskError::from_lines("readers", &faults)?;
        if self.mappings.iter().any(JoinHandle::is_finished) {
            return Err(TaskError::new("a mapped file has wrong bytes"));
        }
        self.programs.lock().iter_mut().try_for_each(Program::check)
    }

    /// Ends all uses.
    pub(super) fn end(self) -> Outcome {
        self.is_over.store(true, Relaxed);
        let panicked = || Err(TaskError::new("a thread panicked"));
        let readers = self.readers.into_iter().map(|(_, thread)| thread);
        let ended = readers.chain(self.mappings).map(|thread| thread.join().unwrap_or_else(|_| panicked()));
        ended.fold(Ok(()), Outcome::and)
    }
}

impl Reader {
    fn read(&self, place: &Path, contents: &[Vec<u8>], seed: u64, is_over: &AtomicBool) -> Outcome {
        let mut random = Random::new(seed);
        let mut bytes = vec![0; READ_BYTES];
        while !is_over.load(Relaxed) {
            let index = random.below(contents.len() as u64) as usize;
            let path = place.join(index.to_string());
            let file = self.timed(|| File::open(&path)).during(path.display())?;
            for (part, expected) in contents[index].chunks(READ_BYTES).enumerate() {
                let bytes = &mut bytes[..expected.len()];
                let offset = (part * READ_BYTES) as u64;
                self.timed(|| file.read_exact_at(bytes, offset)).during(format!("{}, {offset}", path.display()))?;
                if bytes != expected {
                    return Err(TaskError::new(format!("{}: wrong bytes at {offset}", path.display())));
                }
                self.reads.fetch_add(1, Relaxed);
            }
            fadvise(&file, 0, None, Advice::DontNeed)?;
            thread::sleep(REST);
        }
        Ok(())
    }

    /// Runs an operation, and notes how long it takes.
    fn timed<T>(&self, operation: impl FnOnce() -> T) -> T {
        let began = Instant::now();
        *self.current.lock() = Some(began);
        let result = operation();
        *self.current.lock() = None;
        let duration = began.elapsed();
        if duration >= PAUSE_MIN {
            let mut pauses = self.pauses.lock();
            if pauses.len() >= PAUSES_MAX {
                pauses.drain(..PAUSES_MAX / 2);
            }
            pauses.push((began, duration));
        }
        result
    }
}

/// Reads a mapped file again and again. A failed read ends this process (SIGBUS).
fn check_mapping(file: &File, expected: &[u8], is_over: &AtomicBool) -> Outcome {
    let mapped = MappedFile::new(file, expected.len())?;
    while !is_over.load(Relaxed) {
        if mapped.bytes() != expected {
            return Err(TaskError::new("a mapped file has wrong bytes"));
        }
        mapped.forget();
        fadvise(file, 0, None, Advice::DontNeed)?;
        thread::sleep(REST);
    }
    Ok(())
}

/// A program that runs from a mount, with its working directory there.
struct Program {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    count: u64,
}

impl Program {
    fn start(place: &Path) -> Outcome<Self> {
        let script = "while read -r number; do test -e ./0 && echo \"$((number * 2))\"; done";
        let mut command = Command::new(place.join("sh"));
        command.arg0("sh").args(["-c", script]).current_dir(place);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().during("the shell")?;
        let missing = || TaskError::new("a pipe is missing");
        let input = child.stdin.take().ok_or_else(missing)?;
        let output = BufReader::new(child.stdout.take().ok_or_else(missing)?);
        Ok(Self { child, input, output, count: 0 })
    }

    fn check(&mut self) -> Outcome {
        self.count += 1;
        writeln!(self.input, "{}", self.count)?;
        let mut line = String::new();
        self.output.read_line(&mut line)?;
        match line.trim().parse() == Ok(self.count * 2) {
            true => Ok(()),
            false => Err(TaskError::new(format!("the program answers {line:?}"))),
        }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
