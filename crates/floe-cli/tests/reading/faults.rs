//! A source that fails at any one call: the result is that error, never wrong data, and later calls work again.

use std::{
    collections::{BTreeMap, BTreeSet},
    env, fs,
    io::{self, ErrorKind},
    ops::ControlFlow,
    path::Path,
    process::Command,
    sync::Arc,
};

use floe_engine::{EngineOptions, Reader, Volume, VolumeOptions, WorkerMode};
use floe_erofs::Erofs;
use floe_image::{DirectoryCursor, Error, FileSystem, FileType, ImageSource, Nid, Result};
use floe_squashfs::Squashfs;
use floe_testkit::{
    FailingSource, Fault, MemorySource, check_rows,
    corpus::{Corpus, Format, ImageRecord, Materialised},
    run_bounded,
    skip::{self, Need},
};

use crate::support::{Served, program::PATIENCE};

/// Small images: one for each way in which data and metadata are stored.
const IMAGES: &[&str] = &[
    "erofs-cbase-metabox",
    "erofs-chunk-blobdev-4k",
    "erofs-lzma-64k-allfrag",
    "erofs-metabox-48bit-dot",
    "erofs-plain-meta",
    "erofs-zD-lz4-frag",
    "sqfs-appended",
    "sqfs-cbase-gzip",
    "sqfs-meta",
    "sqfs-zstd-1m",
];

/// The number of failing calls for each image, evenly spread; with `FLOE_FAULTS=all`, each call fails once.
const CALLS_MAX: u64 = 12;

/// The errors with which calls fail, in turn.
const ERRORS: [fn() -> io::Error; 3] = [
    || io::Error::from_raw_os_error(rustix::io::Errno::IO.raw_os_error()),
    || ErrorKind::Interrupted.into(),
    || ErrorKind::UnexpectedEof.into(),
];

/// The questions by inode, and their outcomes.
type Answers = BTreeMap<(Nid, &'static str), Result<Vec<u8>>>;

/// An image that can be opened again and again.
struct Subject {
    format: Format,
    image: Arc<dyn ImageSource>,
    devices: Vec<Arc<dyn ImageSource>>,
    options: EngineOptions,
}

impl Subject {
    fn new(corpus: &Corpus, record: &ImageRecord, workers: WorkerMode) -> Self {
        let source = |bytes: Vec<u8>| Arc::new(MemorySource::new(bytes)) as Arc<dyn ImageSource>;
        let devices = record.devices.iter().map(|device| source(corpus.bytes(device))).collect();
        let options = EngineOptions { cache_bytes: 1 << 20, reserved_pages: 64, workers, ..EngineOptions::default() };
        Self { format: record.format, image: source(corpus.bytes(&record.image)), devices, options }
    }

    /// Opens the image so that the call with this number, counted from 0, fails.
    fn failing(&self, call: u64, error: fn() -> io::Error) -> Arc<FailingSource> {
        Arc::new(FailingSource::with_error(Arc::clone(&self.image), Fault::Reads(call..call + 1), error))
    }

    fn open(&self, source: &Arc<FailingSource>) -> Result<Reader> {
        let mut sources = vec![Arc::clone(source) as Arc<dyn ImageSource>];
        sources.extend(self.devices.iter().cloned());
        let volume = Volume::alone(sources, &self.options, &VolumeOptions::default())?;
        let blocks = volume.block_reader(floe_engine::Blocking::Allowed);
        let file_system: Arc<dyn FileSystem> = match self.format {
            Format::Erofs => Arc::new(Erofs::open(blocks)?),
            Format::Squashfs => Arc::new(Squashfs::open(blocks)?),
        };
        Ok(Reader::new(volume, file_system))
    }
}

/// Reads everything, and continues after errors.
fn ask(reader: &Reader) -> Answers {
    const PIECE_BYTES: usize = 64 << 10;
    let file_system = reader.file_system();
    let (mut answers, mut seen) = (Answers::new(), BTreeSet::new());
    let mut pending = vec![file_system.root()];
    while let Some(nid) = pending.pop() {
        if !seen.insert(nid) {
            continue;
        }
        let attr = match file_system.attr(nid) {
            Ok(attr) => attr,
            Err(error) => {
                answers.insert((nid, "attr"), Err(error));
                continue;
            }
        };
        let xattrs = file_system.xattr_names(nid).and_then(|names| {
            let values =
                names.into_iter().map(|name| Ok([name.clone(), file_system.xattr(nid, &name)?.unwrap_or_default()]));
            Ok(values.collect::<Result<Vec<_>>>()?.concat().concat())
        });
        answers.insert((nid, "xattrs"), xattrs);
        let (what, answer) = match attr.file_type {
            FileType::Directory => {
                let mut names = Vec::new();
                let listed = file_system.read_dir(nid, DirectoryCursor::default(), &mut |dirent| {
                    names.extend_from_slice(dirent.name);
                    // A parent that cannot be found does not prevent a listing.
                    if dirent.name != b".." {
                        pending.push(dirent.nid);
                    }
                    ControlFlow::Continue(())
                });
                ("names", listed.map(|()| names))
            }
            FileType::Symlink => ("target", file_system.read_link(nid)),
            FileType::Regular => {
                let mut data = vec![0; attr.size as usize];
                let mut pieces = data.chunks_mut(PIECE_BYTES).enumerate();
                let read = pieces.try_for_each(|(index, piece)| {
                    let len = reader.read(nid, (index * PIECE_BYTES) as u64, piece)?;
                    assert_eq!(len, piece.len(), "inode {nid}, piece {index}");
                    Ok(())
                });
                ("data", read.map(|()| data))
            }
            _ => continue,
        };
        answers.insert((nid, what), answer);
    }
    answers
}

/// The wrong outcomes while a call failed: all but the right answers and errors of the source.
fn complaints(answers: &Answers, expected: &Answers, errors_allowed: bool) -> Vec<String> {
    let wrong = answers.iter().filter_map(|((nid, what), answer)| match (answer, expected.get(&(*nid, *what))) {
        (Ok(answer), Some(Ok(expected))) if answer == expected => None,
        (Err(error), _) if errors_allowed && is_of_source(error) => None,
        (Err(error), _) => Some(format!("{what} of inode {nid}: {error}")),
        (Ok(_), _) => Some(format!("{what} of inode {nid} is something else")),
    });
    let missing = (!errors_allowed && answers.len() != expected.len()).then(|| "answers are missing".to_owned());
    wrong.chain(missing).collect()
}

/// Whether an error is the source's. A source that ends too early may also be a truncated image.
fn is_of_source(error: &Error) -> bool {
    match error {
        Error::Io { .. } => true,
        Error::Corrupt { rule, .. } => *rule == "metadata block past the end of the image",
        _ => false,
    }
}

/// Makes the call with one number fail, and returns the wrong outcomes.
fn fail_once(subject: &Subject, call: u64, error: fn() -> io::Error, expected: &Answers) -> Vec<String> {
    let source = subject.failing(call, error);
    let mut told = Vec::new();
    let reader = match subject.open(&source) {
        Ok(reader) => {
            told.extend(complaints(&ask(&reader), expected, true));
            reader
        }
        Err(error) if is_of_source(&error) => match subject.open(&source) {
            Ok(reader) => reader,
            Err(error) => return vec![format!("does not open a second time: {error}")],
        },
        Err(error) => return vec![format!("does not open: {error}")],
    };
    // On a busy machine, less is read ahead the first time, and the failing call comes later. An error that is cached stays.
    let again = || complaints(&ask(&reader), expected, false);
    if !again().is_empty() {
        told.extend(again().into_iter().map(|line| format!("afterwards, {line}")));
    }
    told.into_iter().map(|line| format!("call {call} fails with {}: {line}", error())).collect()
}

#[test]
fn a_failed_call_is_reported_and_not_cached() {
    let corpus = Corpus::fixtures();
    let workers = [WorkerMode::Inline, WorkerMode::Shared];
    let rows: Vec<(&str, WorkerMode)> = IMAGES.iter().copied().zip(workers.into_iter().cycle()).collect();
    check_rows(
        &rows,
        |(name, workers)| format!("{name}, {workers:?}"),
        |(name, workers)| {
            let subject = Subject::new(&corpus, &corpus.image(name), *workers);
            let sound = subject.failing(u64::MAX - 1, ERRORS[0]);
            let expected = ask(&subject.open(&sound).expect("it opens"));
            assert!(expected.values().all(Result::is_ok), "{name} is sound");
            let calls = sound.read_count();
            assert!(calls > 1, "only {calls} calls");
            let mut told = Vec::new();
            let is_every_one = env::var("FLOE_FAULTS").is_ok_and(|which| which == "all");
            let step = if is_every_one { 1 } else { calls.div_ceil(CALLS_MAX) };
            for (turn, call) in (0..calls).step_by(step as usize).enumerate() {
                told.extend(fail_once(&subject, call, ERRORS[turn % ERRORS.len()], &expected));
            }
            told
        },
    );
}

#[test]
fn an_image_cut_while_it_is_mounted_gives_errors_or_the_right_bytes() {
    if !skip::ready(&[Need::Fuse]) {
        return;
    }
    /// Prints the digest of each file that can be read completely.
    const DIGESTS: &str = r#"cd "$0" && find . -xdev -type f -exec sha256sum {} + 2>/dev/null; exit 0"#;
    let corpus = Corpus::fixtures();
    let digests = |served: &Served| -> BTreeSet<String> {
        let run = run_bounded(Command::new("sh").args(["-c", DIGESTS]).arg(served.path()), PATIENCE).expect("sh runs");
        assert!(!run.is_timed_out, "reading ends");
        String::from_utf8_lossy(&run.stdout).lines().map(str::to_owned).collect()
    };
    let rows = ["erofs-cbase-lz4", "erofs-cbase-frag", "sqfs-cbase-gzip", "sqfs-meta"];
    check_rows(
        &rows,
        |name| (*name).to_owned(),
        |name| {
            let record = corpus.image(name);
            let whole = corpus.materialise(&record);
            let expected = digests(&Served::new(&whole, "fuse").expect("it mounts"));
            let len = fs::metadata(&whole.path).expect("it is there").len();
            let mut told = Vec::new();
            for kept in (0..8).map(|eighth| len * eighth / 8) {
                let folder = tempfile::tempdir().expect("a folder");
                let path = folder.path().join("image");
                fs::copy(&whole.path, &path).expect("copied");
                let served =
                    Served::new(&Materialised { path: path.clone(), ..whole.clone() }, "fuse").expect("it mounts");
                cut(&path, kept);
                let found = digests(&served);
                let wrong = found.difference(&expected).next();
                told.extend(wrong.map(|line| format!("cut to {kept} bytes, it gives {line}")));
                told.extend(served.end().into_iter().map(|line| format!("cut to {kept} bytes, {line}")));
            }
            told
        },
    );
}

fn cut(path: &Path, len: u64) {
    let file = fs::OpenOptions::new().write(true).open(path).expect("ours");
    file.set_len(len).expect("cut");
}
