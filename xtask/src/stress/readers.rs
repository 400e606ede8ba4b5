//! Readers of a mount under stress.

use std::{
    fs::File,
    io,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    thread,
    time::Duration,
};

use floe_testkit::Random;
use rustix::fs::{Advice, fadvise};

use crate::task_error::{During, Outcome, TaskError};

/// A file with its content.
pub(super) struct Known {
    pub(super) path: PathBuf,
    pub(super) content: Vec<u8>,
}

/// The counts of readers.
#[derive(Default)]
pub(super) struct Counts {
    pub(super) reads: AtomicU64,
    pub(super) read_bytes: AtomicU64,
    pub(super) killed: AtomicU64,
}

/// Reads pieces of files at random until it is over, half of the time with O_DIRECT.
pub(super) fn read_at_random(known: &[Known], seed: u64, is_over: &AtomicBool, counts: &Counts) -> Outcome {
    let mut random = Random::new(seed);
    while !is_over.load(Relaxed) {
        let Known { path, content } = &known[random.below(known.len() as u64) as usize];
        let file = File::open(path).during(path.display())?;
        if random.below(2) == 0 {
            fadvise(&file, 0, None, Advice::DontNeed)?;
            fadvise(&file, 0, None, [Advice::Random, Advice::Sequential, Advice::Normal][random.below(3) as usize])?;
        }
        for _ in 0..random.below(20) {
            let offset = random.below(content.len() as u64 + 1);
            let len_log2 = random.below(19);
            let mut bytes = vec![0x5a; 1 + random.below(1 << len_log2) as usize];
            let len = read_fully(&file, &mut bytes, offset).during(path.display())?;
            let start = offset as usize;
            let expected = &content[start..content.len().min(start + bytes.len())];
            if &bytes[..len] != expected {
                let fault = describe(&bytes[..len], expected);
                return Err(TaskError::new(format!("{}: {offset}+{}: {fault}", path.display(), bytes.len())));
            }
            counts.reads.fetch_add(1, Relaxed);
            counts.read_bytes.fetch_add(len as u64, Relaxed);
        }
    }
    Ok(())
}

/// Reads files until it is over or a read fails, as reads of a killed server may.
pub(super) fn read_until_failure(known: &[Known], seed: u64, is_over: &AtomicBool) -> Outcome {
    let mut random = Random::new(seed);
    while !is_over.load(Relaxed) {
        let Known { path, content } = &known[random.below(known.len() as u64) as usize];
        let Ok(file) = File::open(path) else { return Ok(()) };
        let _ = fadvise(&file, 0, None, Advice::DontNeed);
        let mut bytes = vec![0; content.len()];
        let Ok(len) = read_fully(&file, &mut bytes, 0) else { return Ok(()) };
        if bytes[..len] != content[..] {
            let fault = describe(&bytes[..len], content);
            return Err(TaskError::new(format!("{}: after the server was killed: {fault}", path.display())));
        }
    }
    Ok(())
}

/// Starts readers of the whole tree and kills them, until it is over.
pub(super) fn be_killed(directory: &Path, seed: u64, is_over: &AtomicBool, counts: &Counts) -> Outcome {
    let mut random = Random::new(seed);
    while !is_over.load(Relaxed) {
        let mut command = Command::new("find");
        command.arg(directory).args(["-type", "f", "-exec", "cat", "--", "{}", "+"]);
        // A process group of its own, so that its children end with it.
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        let mut reader = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
        thread::sleep(Duration::from_millis(random.below(60)));
        let _ = rustix::process::kill_process_group(
            rustix::process::Pid::from_child(&reader),
            rustix::process::Signal::KILL,
        );
        reader.wait()?;
        counts.killed.fetch_add(1, Relaxed);
    }
    Ok(())
}

/// Describes how the bytes read differ.
fn describe(read: &[u8], expected: &[u8]) -> String {
    let is_wrong: Vec<_> = read.iter().zip(expected).map(|(read, expected)| read != expected).collect();
    let count = is_wrong.iter().filter(|&&is_wrong| is_wrong).count();
    let (first, last) = (is_wrong.iter().position(|&wrong| wrong), is_wrong.iter().rposition(|&wrong| wrong));
    let sample = first.map(|first| &read[first..read.len().min(first + 16)]);
    format!("{} of {} bytes read, {count} wrong from {first:?} to {last:?}: {sample:02x?}", read.len(), expected.len())
}

fn read_fully(file: &File, bytes: &mut [u8], offset: u64) -> io::Result<usize> {
    let mut len = 0;
    while len < bytes.len() {
        match file.read_at(&mut bytes[len..], offset + len as u64)? {
            0 => break,
            more => len += more,
        }
    }
    Ok(len)
}
