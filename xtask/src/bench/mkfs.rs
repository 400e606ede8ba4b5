//! Image builds.

use std::{
    fs,
    io::{self, Read},
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use floe_testkit::{run_bounded, target_dir};

use super::{
    contender::first_line, mkfs_options::MkfsOptions, report::Report, results::Results, setting::Contest,
    subject::SourceTree, workload::Measurement,
};
use crate::task_error::{During, Outcome, TaskError};

/// The size of the reads that bring the tree into the page cache.
const READ_BYTES: usize = 1 << 20;

/// The time limit of one run.
const TIME_MAX: Duration = Duration::from_secs(7_200);

/// Build images: `floe mkfs` against mkfs.erofs and mksquashfs with equivalent options, interleaved, with the tree in
/// the page cache. Unavailable peers are skipped with a message. The table shows medians of elapsed time, CPU time,
/// image size and peak memory, and in parentheses how many times better Floe is. With --format squashfs, `floe mkfs` builds
/// SquashFS images against mksquashfs, and against tar2sqfs, which reads the tree from an archive.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Directories to build the images from; several are placed side by side. Copied once to target/bench
    #[arg(long, value_name = "DIR", default_values = ["/usr/share"])]
    tree: Vec<PathBuf>,
    /// Options in the syntax of mkfs.erofs: -zX,level=N, -C and -E. May be repeated; each is measured
    #[arg(long, value_name = "OPTIONS", allow_hyphen_values = true, default_values = DEFAULT_OPTIONS)]
    options: Vec<String>,
    /// The format of Floe's images
    #[arg(long, value_parser = ["erofs", "squashfs"], default_value = "erofs")]
    format: String,
    #[command(flatten)]
    contest: Contest,
}

/// The default options.
const DEFAULT_OPTIONS: [&str; 5] = [
    "-zlz4",
    "-zlz4hc,9",
    "-zlz4hc,9 -C65536 -Eztailpacking,fragments,dedupe",
    "-zzstd,3 -C65536 -Eztailpacking,fragments",
    "-zlzma,6 -C1048576 -Eall-fragments,dedupe",
];

/// A program that builds images.
struct Maker {
    name: &'static str,
    version: String,
    program: PathBuf,
    command_line: CommandLine,
    source: Source,
}

/// What a program reads.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Source {
    Tree,
    /// A tar archive of the tree, on standard input.
    Archive,
}

impl Maker {
    fn command(&self, options: &MkfsOptions, image: &Path, tree: &Path, archive: &Path) -> Command {
        let words = (self.command_line)(options, image, tree);
        match self.source {
            Source::Tree => {
                let mut command = Command::new(&self.program);
                command.args(words);
                command
            }
            Source::Archive => {
                let mut command = Command::new("sh");
                command.args(["-c", r#"archive=$1; shift; exec "$@" <"$archive""#, "sh"]);
                command.arg(archive).arg(&self.program).args(words);
                command
            }
        }
    }
}

/// Returns the arguments for building an image of a tree.
type CommandLine = fn(&MkfsOptions, image: &Path, tree: &Path) -> Vec<String>;

/// Runs the benchmark and prints the results.
pub(crate) fn run(arguments: &Arguments) -> Outcome {
    let rows: Vec<MkfsOptions> =
        arguments.options.iter().map(|options| MkfsOptions::parse(options)).collect::<Outcome<_>>()?;
    let (makers, absent) = makers(&arguments.contest, arguments.format == "squashfs")?;
    let tree = SourceTree::copy_of(&arguments.tree)?;
    let bytes = read_all(&tree.path)?;
    let results = measure(&rows, &tree.path, &makers, arguments.contest.rounds)?;
    let folders: Vec<String> = arguments.tree.iter().map(|folder| folder.display().to_string()).collect();
    let versions = makers.into_iter().map(|maker| (maker.name.to_owned(), maker.version)).collect();
    let report = Report::titled(format!("images of {}", folders.join(" and ")), bytes, versions, absent, results);
    Report::print(&[report], &arguments.contest)
}

fn measure(rows: &[MkfsOptions], tree: &Path, makers: &[Maker], rounds: u64) -> Outcome<Results> {
    let folder = tempfile::tempdir_in(target_dir().join("bench"))?;
    let image = folder.path().join("image");
    let archive = folder.path().join("tree.tar");
    if makers.iter().any(|maker| maker.source == Source::Archive) {
        eprintln!("archiving {} …", tree.display());
        let status = Command::new("tar").arg("-cf").arg(&archive).arg("-C").arg(tree).arg(".").status();
        if !status.during("tar")?.success() {
            return Err(TaskError::new(format!("{} cannot be archived", tree.display())));
        }
        read_whole(&archive, &mut vec![0; READ_BYTES])?;
    }
    let mut results = Results::default();
    for round in 0..rounds {
        for options in rows {
            let mut order: Vec<&Maker> = makers.iter().collect();
            if round % 2 == 1 {
                order.reverse();
            }
            for maker in order {
                eprintln!("round {}: {}: {}", round + 1, options.text(), maker.name);
                let mut command = maker.command(options, &image, tree, &archive);
                let run = run_bounded(&mut command, TIME_MAX).during(maker.program.display())?;
                if run.status.success() {
                    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
                    let measurements = vec![
                        Measurement::less("s", run.elapsed.as_secs_f64()),
                        Measurement::less("CPU s", run.cpu.as_secs_f64()),
                        Measurement::less("image MiB", mib(fs::metadata(&image)?.len())),
                        Measurement::less("peak RSS MiB", mib(run.resident_bytes_max)),
                    ];
                    results.add(options.text(), maker.name, measurements);
                } else {
                    let words = run.stderr.lines().next().unwrap_or_default();
                    results.add_failure(format!("{}: {}: {}: {words}", options.text(), maker.name, run.status));
                }
                // Otherwise, writeback during the next run would slow that down.
                if let Ok(written) = fs::File::open(&image) {
                    written.sync_all()?;
                    fs::remove_file(&image)?;
                }
            }
        }
    }
    Ok(results)
}

fn makers(contest: &Contest, is_squashfs: bool) -> Outcome<(Vec<Maker>, Vec<String>)> {
    let floe = contest.floe()?;
    let version = first_line(Command::new(&floe).arg("--version"))?;
    let command_line = if is_squashfs { MkfsOptions::floe_squashfs } else { MkfsOptions::floe as CommandLine };
    let mut makers = vec![Maker { name: "floe", version, program: floe, command_line, source: Source::Tree }];
    let mut absent = Vec::new();
    let mksquashfs: (_, _, CommandLine, _) = ("mksquashfs", "-version", MkfsOptions::mksquashfs, Source::Tree);
    let other: (_, _, CommandLine, _) = if is_squashfs {
        ("tar2sqfs", "--version", MkfsOptions::tar2sqfs, Source::Archive)
    } else {
        ("mkfs.erofs", "--version", MkfsOptions::mkfs_erofs, Source::Tree)
    };
    for (name, version_option, command_line, source) in [other, mksquashfs] {
        match contest.peer(name) {
            Ok(program) => {
                let version = first_line(Command::new(&program).arg(version_option))?;
                makers.push(Maker { name, version, program, command_line, source });
            }
            Err(reason) => absent.push(reason),
        }
    }
    makers.retain(|maker| contest.takes(maker.name));
    Ok((makers, absent))
}

/// Reads all files below a directory into the page cache; returns their total size.
fn read_all(directory: &Path) -> Outcome<u64> {
    let mut open = vec![directory.to_path_buf()];
    let mut buffer = vec![0; READ_BYTES];
    let mut bytes = 0;
    while let Some(directory) = open.pop() {
        for entry in fs::read_dir(&directory).during(directory.display())? {
            let entry = entry?;
            let file_type = entry.file_type()?;
            if file_type.is_dir() {
                open.push(entry.path());
            } else if file_type.is_file() {
                bytes += read_whole(&entry.path(), &mut buffer).during(entry.path().display())?;
            }
        }
    }
    Ok(bytes)
}

fn read_whole(path: &Path, buffer: &mut [u8]) -> io::Result<u64> {
    let mut file = fs::File::open(path)?;
    let mut bytes = 0;
    loop {
        match file.read(buffer)? {
            0 => return Ok(bytes),
            len => bytes += len as u64,
        }
    }
}
