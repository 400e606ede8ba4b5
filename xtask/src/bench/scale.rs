//! Image builds of growing trees: time and memory for each file and each byte.

use std::{
    fs::{self, File},
    io::Write,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use floe_testkit::{Random, run_bounded, target_dir};

use super::{
    contender::first_line, mkfs_options::MkfsOptions, report::Report, results::Results, setting::Contest,
    workload::Measurement,
};
use crate::task_error::{During, Outcome};

const GIB: u64 = 1 << 30;
const TIB: u64 = 1 << 40;
/// The number of files in a directory.
const FILES_PER_DIRECTORY: u64 = 1_000;
/// The size of a large file in bytes.
const LARGE_FILE_BYTES: u64 = 64 << 20;
/// The data of large files is made of pieces of this length, each with a number.
const PIECE_BYTES: usize = 16 << 10;
/// The bytes from which pieces are taken.
const POOL_BYTES: usize = 32 << 20;
/// An image may have this many bytes more than its tree.
const IMAGE_BYTES_MORE_MAX: u64 = 8 * GIB;

/// Build images of growing trees, to see whether time and memory grow as the trees do: many small files, much data, and a
/// sparse file. `floe mkfs` and mkfs.erofs build EROFS images, `floe mkfs --format squashfs` and mksquashfs SquashFS images, all
/// with LZ4. Each tree is made, measured and removed before the next; one that does not fit on the disk is skipped
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Numbers of files of 40 to 120 bytes
    #[arg(long, value_name = "NUMBERS", value_delimiter = ',', default_values_t = [10_000, 100_000, 1_000_000])]
    files: Vec<u64>,
    /// Amounts of data in GiB, in files of 64 MiB
    #[arg(long, value_name = "NUMBERS", value_delimiter = ',', default_values_t = [1, 10, 40])]
    data_gib: Vec<u64>,
    /// The sizes of sparse files in TiB, with a few bytes of data
    #[arg(long, value_name = "NUMBERS", value_delimiter = ',', default_values_t = [1])]
    sparse_tib: Vec<u64>,
    /// The time after which a run is killed, and the contender is left out of the other rounds
    #[arg(long, value_name = "SECONDS", default_value_t = 1_800)]
    seconds_max: u64,
    /// The directory for trees and images, one at a time [default: target/bench]
    #[arg(long, value_name = "DIR")]
    directory: Option<PathBuf>,
    #[command(flatten)]
    contest: Contest,
}

/// A tree to be made.
#[derive(Clone, Copy)]
enum Subject {
    Files(u64),
    Data(u64),
    Sparse(u64),
}

/// A program that builds images.
struct Maker {
    name: &'static str,
    program: PathBuf,
    command_line: fn(&MkfsOptions, image: &Path, tree: &Path) -> Vec<String>,
}

/// The programs that are here, their names with their versions, and the reasons why others are not.
type Makers = (Vec<Maker>, Vec<(String, String)>, Vec<String>);

/// Runs the benchmark and prints the results.
pub(crate) fn run(arguments: &Arguments) -> Outcome {
    let contest = &arguments.contest;
    let (makers, versions, mut absent) = makers(contest)?;
    let parent = arguments.directory.clone().unwrap_or_else(|| target_dir().join("bench"));
    fs::create_dir_all(&parent).during(parent.display())?;
    let options = MkfsOptions::parse("-zlz4")?;
    let subjects = (arguments.files.iter().map(|count| Subject::Files(*count)))
        .chain(arguments.data_gib.iter().map(|gib| Subject::Data(*gib)))
        .chain(arguments.sparse_tib.iter().map(|tib| Subject::Sparse(*tib)));
    let (mut results, mut bytes) = (Results::default(), 0);
    for subject in subjects {
        let name = subject.name();
        if free_bytes(&parent)? < subject.disk_bytes() {
            absent.push(format!("{name}: it needs {} GiB on the disk", subject.disk_bytes() / GIB));
            continue;
        }
        let scratch = tempfile::Builder::new().prefix("scale-").tempdir_in(&parent).during(parent.display())?;
        let (tree, image) = (scratch.path().join("tree"), scratch.path().join("image"));
        eprintln!("{name} ...");
        subject.make(&tree).during(tree.display())?;
        bytes += subject.content_bytes();
        let mut slow: Vec<&str> = Vec::new();
        for round in 0..contest.rounds {
            let mut order: Vec<&Maker> = makers.iter().filter(|maker| !slow.contains(&maker.name)).collect();
            if round % 2 == 1 {
                order.reverse();
            }
            for maker in order {
                // The shell limits the image: not every program takes a hole for one.
                let mut command = Command::new("sh");
                let blocks = (subject.content_bytes() + IMAGE_BYTES_MORE_MAX) / 512;
                command.args(["-c", &format!("ulimit -f {blocks}; exec \"$@\""), "sh"]).arg(&maker.program);
                command.args((maker.command_line)(&options, &image, &tree));
                let limit = Duration::from_secs(arguments.seconds_max);
                let run = run_bounded(&mut command, limit).during(maker.program.display())?;
                let seconds = run.elapsed.as_secs_f64();
                eprintln!("  round {}: {}: {seconds:.1} s, {}", round + 1, maker.name, run.status);
                if run.status.success() {
                    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
                    let (unit, count) = subject.units();
                    let measurements = vec![
                        Measurement::less("s", seconds),
                        Measurement::less(unit, seconds * 1e6 / count as f64),
                        Measurement::less("CPU s", run.cpu.as_secs_f64()),
                        Measurement::less("image MiB", mib(fs::metadata(&image)?.len())),
                        Measurement::less("peak RSS MiB", mib(run.resident_bytes_max)),
                    ];
                    results.add(&name, maker.name, measurements);
                } else {
                    let words = run.stderr.lines().last().unwrap_or_default();
                    let why = if run.is_timed_out { "it did not end in time" } else { words };
                    absent.push(format!("{}, {name}: {}: {why}", maker.name, run.status));
                    slow.push(maker.name);
                }
                // Otherwise, writeback during the next run would slow that down.
                if let Ok(written) = File::open(&image) {
                    written.sync_all()?;
                    fs::remove_file(&image)?;
                }
            }
        }
    }
    let report = Report::titled("images of growing trees".to_owned(), bytes, versions, absent, results);
    Report::print(&[report], contest)
}

fn makers(contest: &Contest) -> Outcome<Makers> {
    let floe = contest.floe()?;
    let mut makers = vec![
        Maker { name: "floe", program: floe.clone(), command_line: MkfsOptions::floe },
        Maker { name: "floe-squashfs", program: floe, command_line: MkfsOptions::floe_squashfs },
    ];
    let mut absent = Vec::new();
    for (name, command_line) in [
        ("mkfs.erofs", MkfsOptions::mkfs_erofs as fn(&MkfsOptions, &Path, &Path) -> Vec<String>),
        ("mksquashfs", MkfsOptions::mksquashfs),
    ] {
        match contest.peer(name) {
            Ok(program) => makers.push(Maker { name, program, command_line }),
            Err(reason) => absent.push(reason),
        }
    }
    makers.retain(|maker| contest.takes(maker.name));
    let version = |maker: &Maker| {
        let option = if maker.name == "mksquashfs" { "-version" } else { "--version" };
        Ok((maker.name.to_owned(), first_line(Command::new(&maker.program).arg(option))?))
    };
    let versions = makers.iter().map(version).collect::<Outcome<Vec<_>>>()?;
    Ok((makers, versions, absent))
}

impl Subject {
    fn name(self) -> String {
        match self {
            Self::Files(count) => format!("{count} files"),
            Self::Data(gib) => format!("{gib} GiB"),
            Self::Sparse(tib) => format!("a sparse file of {tib} TiB"),
        }
    }

    /// The number of bytes of content, without holes.
    fn content_bytes(self) -> u64 {
        match self {
            Self::Files(count) => count * 80,
            Self::Data(gib) => gib * GIB,
            Self::Sparse(_) => 0,
        }
    }

    /// How much of the disk the tree and an image take at most.
    fn disk_bytes(self) -> u64 {
        match self {
            // A block and an inode for each.
            Self::Files(count) => count * (4_096 + 256) + GIB,
            Self::Data(gib) => gib * GIB * 9 / 5 + GIB,
            Self::Sparse(_) => IMAGE_BYTES_MORE_MAX + GIB,
        }
    }

    /// The name of the time for each unit, and their number.
    fn units(self) -> (&'static str, u64) {
        match self {
            Self::Files(count) => ("us/file", count),
            Self::Data(gib) => ("us/MiB", gib << 10),
            Self::Sparse(tib) => ("us/GiB", tib << 10),
        }
    }

    /// Makes the tree.
    fn make(self, tree: &Path) -> std::io::Result<()> {
        fs::create_dir_all(tree)?;
        let mut random = Random::new(48);
        match self {
            Self::Files(count) => {
                let text = random.text(1 << 20);
                for number in 0..count {
                    let directory = tree.join(format!("directory{:04}", number / FILES_PER_DIRECTORY));
                    if number % FILES_PER_DIRECTORY == 0 {
                        fs::create_dir(&directory)?;
                    }
                    let (start, len) = (random.below(1 << 19) as usize, 40 + random.below(81) as usize);
                    fs::write(directory.join(format!("file{number:07}.txt")), &text[start..start + len])?;
                }
                Ok(())
            }
            Self::Data(gib) => {
                // Half text, a quarter noise, a quarter both.
                let mut pool = random.text(POOL_BYTES / 2);
                pool.extend(random.noise(POOL_BYTES / 2));
                let mut buffer = vec![0; 4 << 20];
                for number in 0..gib * GIB / LARGE_FILE_BYTES {
                    let mut file = File::create(tree.join(format!("file{number:05}")))?;
                    for _ in 0..LARGE_FILE_BYTES / buffer.len() as u64 {
                        for piece in buffer.chunks_mut(PIECE_BYTES) {
                            let start = random.below((POOL_BYTES - PIECE_BYTES) as u64) as usize;
                            piece.copy_from_slice(&pool[start..start + piece.len()]);
                            piece[..8].copy_from_slice(&random.next().to_le_bytes());
                        }
                        file.write_all(&buffer)?;
                    }
                }
                Ok(())
            }
            Self::Sparse(tib) => {
                let file = File::create(tree.join("sparse"))?;
                let len = tib * TIB;
                file.set_len(len)?;
                for offset in [0, len / 3, len - 4_096] {
                    file.write_all_at(&random.text(4_096), offset)?;
                }
                Ok(())
            }
        }
    }
}

/// The free space of the file system with a directory, in bytes.
fn free_bytes(directory: &Path) -> Outcome<u64> {
    let space = rustix::fs::statvfs(directory).during(directory.display())?;
    Ok(space.f_bavail * space.f_frsize)
}
