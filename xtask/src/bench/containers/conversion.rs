//! The conversion of an image's layers to EROFS.

use std::{
    fs::{self, File},
    io,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use floe_testkit::{manifest::sha256_hex, run_bounded, target_dir};

use super::{
    super::{contender::first_line, report::Report, results::Results, setting::Contest, workload::Measurement},
    layout::{blobs_of, make_layout},
};
use crate::task_error::{During, Outcome, TaskError};

/// How long a conversion may take.
const PATIENCE: Duration = Duration::from_secs(1200);

/// Convert an image of 2 GB in 10 layers, gzipped archives, to EROFS with zstd in blocks of 64 KiB: floe convert, with all CPUs and
/// with one thread, and the original mkfs.erofs with the options of containerd's differ, one layer after the other, and sha256sum. The
/// result of each conversion must be that of the others of the same contender.
#[derive(clap::Args)]
pub(super) struct Arguments {
    /// The directories whose files make the image
    #[arg(
        long,
        value_name = "DIR",
        value_delimiter = ',',
        default_values = ["/usr/bin", "/usr/lib/gcc", "/usr/lib/jvm", "/usr/lib/x86_64-linux-gnu", "/usr/share"]
    )]
    tree: Vec<PathBuf>,
    /// The number of layers
    #[arg(long, default_value_t = 10)]
    layers: usize,
    /// The number of bytes of the files
    #[arg(long, default_value_t = 2_000_000_000)]
    bytes: u64,
    #[command(flatten)]
    contest: Contest,
}

/// The contenders, in the order of the table.
const CONTENDERS: [&str; 3] = ["floe", "floe -j1", "mkfs.erofs"];

/// Converts all layers of a layout, one after the other, as containerd's differ does.
const ONE_BY_ONE: &str = r#"
target=$1 program=$2; shift 2
for layer; do
    "$program" --tar=f --gzip --aufs --quiet -Enoinline_data -b4096 -zzstd -C65536 "$target/${layer##*/}" "$layer"
done
cd "$target" && sha256sum -- * > digests
"#;

/// Runs the benchmark and prints the results.
pub(super) fn run(arguments: &Arguments) -> Outcome {
    let floe = fs::canonicalize(arguments.contest.floe()?)?;
    let layout = arguments.layout()?;
    let original = arguments.contest.peer("mkfs.erofs");
    let takes = |name: &&&str| arguments.contest.takes(name) && (**name != "mkfs.erofs" || original.is_ok());
    let names: Vec<&str> = CONTENDERS.iter().filter(takes).copied().collect();
    let mut results = Results::default();
    let mut digests: Vec<Option<String>> = vec![None; names.len()];
    for round in 0..arguments.contest.rounds {
        for (name, known) in names.iter().zip(&mut digests) {
            eprintln!("round {}: {name}", round + 1);
            let target = target_dir().join("bench/converted");
            fs::remove_dir_all(&target).or_else(|error| match error.kind() {
                io::ErrorKind::NotFound => Ok(()),
                _ => Err(error),
            })?;
            let mut command = match *name {
                "mkfs.erofs" => {
                    fs::create_dir_all(&target)?;
                    let mut command = Command::new("sh");
                    command
                        .args(["-euc", ONE_BY_ONE, "convert"])
                        .arg(&target)
                        .arg(original.as_ref().map_err(TaskError::new)?);
                    command.args(blobs_of(&layout)?);
                    command
                }
                _ => {
                    let mut command = Command::new(&floe);
                    command.args(["convert", "--quiet", "--only-converted"]).arg(&layout).arg(&target);
                    command.args((*name == "floe -j1").then_some("-j1"));
                    command
                }
            };
            let run = run_bounded(&mut command, PATIENCE)?;
            if !run.status.success() {
                results.add_failure(format!("{name}: {}", run.stderr.trim()));
                continue;
            }
            let file = if *name == "mkfs.erofs" { "digests" } else { "index.json" };
            let digest = sha256_hex(&fs::read(target.join(file))?);
            if known.replace(digest.clone()).is_some_and(|known| known != digest) {
                results.add_failure(format!("{name}: two conversions differ"));
            }
            let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
            results.add(
                "convert",
                name,
                vec![
                    Measurement::less("s", run.elapsed.as_secs_f64()),
                    Measurement::less("CPU s", run.cpu.as_secs_f64()),
                    Measurement::less("peak RSS MiB", mib(run.resident_bytes_max)),
                    Measurement::less("MiB of layers", mib(bytes_below(&target)?)),
                ],
            );
        }
    }
    if names.starts_with(&["floe", "floe -j1"]) && digests.first() != digests.get(1) {
        results.add_failure("the result depends on the number of threads".to_owned());
    }
    let mut versions = Vec::new();
    for name in names {
        let version = match &original {
            Ok(original) if name == "mkfs.erofs" => first_line(Command::new(original).arg("-V"))?,
            _ => first_line(Command::new(&floe).arg("--version"))?,
        };
        versions.push((name.to_owned(), version));
    }
    let title = format!("{} layers", arguments.layers);
    let absent = original.err().into_iter().collect();
    Report::print(&[Report::titled(title, bytes_below(&layout)?, versions, absent, results)], &arguments.contest)
}

impl Arguments {
    /// The image, made once for all runs.
    fn layout(&self) -> Outcome<PathBuf> {
        let key = &sha256_hex(format!("{:?} {} {}", self.tree, self.layers, self.bytes).as_bytes())[..16];
        let layout = target_dir().join(format!("bench/layers-{key}"));
        if layout.join("index.json").exists() {
            return Ok(layout);
        }
        fs::create_dir_all(&layout)?;
        let (mut layers, mut lists) = (vec![Vec::new()], Vec::new());
        let (share, mut layer_bytes, mut bytes) = (self.bytes / self.layers as u64, 0, 0);
        for (path, len) in self.files()? {
            if bytes >= self.bytes {
                break;
            }
            if layer_bytes >= share && layers.len() < self.layers {
                layers.push(Vec::new());
                layer_bytes = 0;
            }
            (bytes, layer_bytes) = (bytes + len, layer_bytes + len);
            layers.last_mut().into_iter().for_each(|layer| layer.push(path.clone()));
        }
        for (number, files) in layers.iter().enumerate() {
            let list = tempfile::NamedTempFile::new()?;
            let lines = files.iter().map(|path| path.strip_prefix("/").unwrap_or(path).display().to_string());
            fs::write(&list, lines.collect::<Vec<_>>().join("\n"))?;
            lists.push((format!("{number}"), list));
        }
        let packed = lists.iter().map(|(name, list)| {
            let mut options = vec!["--directory=/".into(), "--verbatim-files-from".into(), "--no-recursion".into()];
            options.push(format!("--files-from={}", list.path().display()).into());
            (name.as_str(), options)
        });
        make_layout(&layout, &packed.collect::<Vec<_>>())?;
        Ok(layout)
    }

    /// The files of the directories with their lengths, in their order. Names with line breaks are omitted.
    fn files(&self) -> Outcome<Vec<(PathBuf, u64)>> {
        let mut files = Vec::new();
        let mut open: Vec<PathBuf> = self.tree.iter().rev().cloned().collect();
        while let Some(path) = open.pop() {
            let metadata = fs::symlink_metadata(&path).during(path.display())?;
            if metadata.is_dir() {
                let mut entries: Vec<PathBuf> = fs::read_dir(&path)?.flatten().map(|entry| entry.path()).collect();
                entries.sort_by(|one, other| other.cmp(one));
                open.extend(entries);
            }
            if path.to_str().is_some_and(|name| !name.contains('\n')) {
                files.push((path, if metadata.is_file() { metadata.len() } else { 0 }));
            }
        }
        Ok(files)
    }
}

fn bytes_below(folder: &Path) -> Outcome<u64> {
    let mut bytes = 0;
    for entry in fs::read_dir(folder)?.flatten() {
        let kind = entry.file_type()?;
        bytes += if kind.is_dir() { bytes_below(&entry.path())? } else { File::open(entry.path())?.metadata()?.len() };
    }
    Ok(bytes)
}
