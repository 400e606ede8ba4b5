//! File systems of containers and AppImages that Floe mounts, and that their own programs mount.

use std::{
    fs::{self, File},
    io::{Read, Seek, SeekFrom, Write},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant},
};

use floe_testkit::container_root;

use super::{
    super::{
        contender::first_line,
        remote::{link::Link, program::succeed},
        report::Report,
        results::Results,
        setting::Contest,
        workload::Measurement,
    },
    image::ContainerImage,
    launched::Launched,
    node::{Node, cool_down, quoted, remove},
};
use crate::task_error::{During, Outcome, TaskError};

/// What the scripts of the nodes have in common.
const SCRIPT: &str = include_str!("mounters.sh");

/// What starts Python out of the file system of an AppImage.
const APP_RUN: &str = r#"#!/bin/sh
libraries=$APPDIR/usr/lib/x86_64-linux-gnu
PYTHONHOME=$APPDIR/usr exec $libraries/ld-linux-x86-64.so.2 --library-path $libraries $APPDIR/usr/bin/python3.11 -S -c "#;

/// As an ordinary user and with cold caches, to the first line of Python: a SIF file in apptainer, with Floe as squashfuse_ll and with the
/// original; an AppImage, mounted by Floe and by its runtime; an image in a registry behind a link, by rootless Podman with the layer
/// store of Floe and with a pull. Needs root, docker-registry, what the image is made of (python3, node and java), and in the root
/// directory with containerd (FLOE_CONTAINERS) Podman, crun and newuidmap, and apptainer, squashfuse_ll and mksquashfs.
#[derive(clap::Args)]
pub(super) struct Arguments {
    /// An AppImage of type 2 with the runtime that is measured; it may need libfuse.so.2 in the root directory
    #[arg(long, value_name = "FILE")]
    appimage: Option<PathBuf>,
    /// Only these launches
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = Launch::ALL)]
    launch: Vec<Launch>,
    /// The round trip time to the registry in ms
    #[arg(long, value_name = "MS", default_value_t = 1)]
    round_trip: u64,
    /// The bandwidth of the registry in Mbit/s
    #[arg(long, value_name = "MBIT", default_value_t = 1000)]
    bandwidth: u64,
    #[command(flatten)]
    contest: Contest,
}

/// The launches that are measured.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
enum Launch {
    /// A SIF file in apptainer
    Apptainer,
    /// An AppImage
    Appimage,
    /// An image of a registry in rootless Podman
    Podman,
}

/// The contenders, in the order of the table.
const CONTENDERS: [&str; 2] = ["floe", "own"];

/// Runs the benchmark and prints the results.
pub(super) fn run(arguments: &Arguments) -> Outcome {
    let floe = fs::canonicalize(arguments.contest.floe()?)?;
    let (mut launches, mut absent) = (Vec::new(), Vec::new());
    for launch in &arguments.launch {
        match launch.missing(arguments) {
            None => launches.push(*launch),
            Some(reason) => absent.push(format!("{}: {reason}", launch.name())),
        }
    }
    if launches.is_empty() {
        absent.iter().for_each(|reason| println!("skipped: {reason}"));
        return Ok(());
    }
    let image = ContainerImage::prepare(&floe, &[], &arguments.contest)?;
    let scene = Scene { folder: image.folder().join("mounters"), image, floe, arguments };
    scene.prepare(&launches)?;
    let mut results = Results::default();
    for round in 0..arguments.contest.rounds {
        for launch in &launches {
            for name in CONTENDERS.into_iter().filter(|name| arguments.contest.takes(name)) {
                eprintln!("round {}: {}: {name}", round + 1, launch.name());
                match scene.trial(*launch, name) {
                    Ok(measurements) => results.add(launch.name(), name, measurements),
                    Err(error) => results.add_failure(format!("{}: {name}: {error}", launch.name())),
                }
            }
        }
    }
    let mut packages = Command::new("chroot");
    packages.arg(container_root().unwrap_or_default()).args([
        "dpkg-query",
        "--show",
        "--showformat=${Package} ${Version} ",
    ]);
    let versions = vec![
        ("floe".to_owned(), first_line(Command::new(&scene.floe).arg("--version"))?),
        ("own".to_owned(), first_line(packages.args(["apptainer", "squashfuse", "podman"]))?),
    ];
    let link = format!("registry behind {} ms and {} Mbit/s", arguments.round_trip, arguments.bandwidth);
    let title = format!("{}, {link}", Launched::Python.title());
    Report::print(&[Report::titled(title, scene.image.archive_bytes()?, versions, absent, results)], &arguments.contest)
}

impl Launch {
    /// All of them.
    const ALL: [Self; 3] = [Self::Apptainer, Self::Appimage, Self::Podman];

    /// The name in the table.
    const fn name(self) -> &'static str {
        match self {
            Self::Apptainer => "apptainer",
            Self::Appimage => "AppImage",
            Self::Podman => "podman",
        }
    }

    /// The programs of the root directory that it needs.
    const fn programs(self) -> &'static [&'static str] {
        match self {
            Self::Apptainer => &["apptainer", "squashfuse_ll", "mksquashfs"],
            Self::Appimage => &["mksquashfs"],
            Self::Podman => &["podman", "crun", "newuidmap", "newgidmap"],
        }
    }

    /// Why it is not possible here.
    fn missing(self, arguments: &Arguments) -> Option<String> {
        let Some(root) = container_root() else { return Some("there is no root directory with containerd".to_owned()) };
        let program = self.programs().iter().find(|program| !root.join("usr/bin").join(program).is_file());
        let absent = program.map(|program| format!("there is no {program} in {}", root.display()));
        let has_none = self == Self::Appimage && arguments.appimage.is_none();
        absent.or_else(|| has_none.then(|| "no --appimage is given".to_owned()))
    }
}

/// What all launches have in common.
struct Scene<'run> {
    /// The directory of the nodes, with the SIF file and the AppImage.
    folder: PathBuf,
    image: ContainerImage,
    floe: PathBuf,
    arguments: &'run Arguments,
}

impl Scene<'_> {
    /// Makes the files that are launched, once for all runs.
    fn prepare(&self, launches: &[Launch]) -> Outcome {
        fs::create_dir_all(&self.folder)?;
        let (tree, squashfs) = (self.folder.join("tree"), self.folder.join("image.sqfs"));
        let (sif, tool) = (self.folder.join("image.sif"), self.folder.join("Tool.AppImage"));
        let wants = |launch, file: &Path| launches.contains(&launch) && !file.exists();
        if wants(Launch::Apptainer, &sif) || wants(Launch::Appimage, &squashfs) {
            eprintln!("building the SIF file and the AppImage …");
            remove(&tree)?;
            let mut extract = Command::new(&self.floe);
            succeed(extract.args(["extract", "--quiet", "--directory"]).arg(&tree).arg(self.image.merged_layer()?))?;
            let app_run = tree.join("AppRun");
            let words = Launched::Python.command()?;
            fs::write(&app_run, format!("{APP_RUN}{}\n", quoted(&words[2..])))?;
            fs::set_permissions(&app_run, fs::Permissions::from_mode(0o755))?;
            let mut build =
                "mksquashfs tree new -noappend -quiet -no-progress -comp gzip >&2\nmv new image.sqfs\n".to_owned();
            if launches.contains(&Launch::Apptainer) {
                build += "HOME=/run apptainer --quiet build --force new.sif tree >&2\nmv new.sif image.sif\n";
            }
            drop(Node::start(&self.folder, &self.floe, &format!("{build}wait_for_go"))?);
            remove(&tree)?;
        }
        if let Some(appimage) = self.arguments.appimage.as_ref().filter(|_| launches.contains(&Launch::Appimage)) {
            let mut file = File::create(&tool)?;
            file.write_all(&runtime_of(appimage)?)?;
            std::io::copy(&mut File::open(&squashfs).during(squashfs.display())?, &mut file)?;
            fs::set_permissions(&tool, fs::Permissions::from_mode(0o755))?;
        }
        Ok(())
    }

    /// One launch with cold caches.
    fn trial(&self, launch: Launch, name: &str) -> Outcome<Vec<Measurement>> {
        let round_trip = Duration::from_millis(self.arguments.round_trip);
        let link = Link::new(self.image.registry.address, round_trip, self.arguments.bandwidth as f64, false)?;
        let command = quoted(&Launched::Python.command()?);
        let script = match launch {
            Launch::Apptainer => format!("launch_sif {name} {command}"),
            Launch::Appimage => format!("launch_appimage {name}"),
            Launch::Podman => {
                let tag = if name == "floe" { ContainerImage::EROFS } else { ContainerImage::ARCHIVES };
                format!("launch_podman {name} {}/image:{tag} {command}", link.address())
            }
        };
        remove(&self.folder.join("home"))?;
        let mut node = Node::start(&self.folder, &self.floe, &format!("{SCRIPT}\n{script}"))?;
        cool_down(&self.floe, self.image.registry.folder())?;
        let (before, taken_before) = (link.passed(), node.taken()?);
        let started = Instant::now();
        node.go()?;
        node.wait_for(Launched::Python.first_words())?;
        let elapsed = started.elapsed();
        let (passed, taken) = (link.passed().since(before), node.taken()?);
        node.go()?;
        node.wait_for(name)?;
        drop(node);
        remove(&self.folder.join("home"))?;
        let mut measurements = vec![
            Measurement::less("s", elapsed.as_secs_f64()),
            Measurement::less("CPU s", taken.cpu_s - taken_before.cpu_s),
        ];
        if launch == Launch::Podman {
            measurements.push(Measurement::less("MiB", passed.bytes as f64 / f64::from(1 << 20)));
        }
        Ok(measurements)
    }
}

/// The runtime of an AppImage: the ELF file at its beginning, which ends with the table of sections.
fn runtime_of(appimage: &Path) -> Outcome<Vec<u8>> {
    let mut file = File::open(appimage).during(appimage.display())?;
    let mut header = [0; 64];
    file.read_exact(&mut header).during(appimage.display())?;
    if !header.starts_with(b"\x7fELF\x02\x01") || header[8..11] != *b"AI\x02" {
        return Err(TaskError::new(format!("{} is not an AppImage of type 2 for 64 bits", appimage.display())));
    }
    let number =
        |at: usize, len: usize| header[at..at + len].iter().rev().fold(0, |sum, byte| sum << 8 | u64::from(*byte));
    let (sections, entry_bytes, count) = (number(40, 8), number(58, 2), number(60, 2));
    file.seek(SeekFrom::Start(0))?;
    let mut runtime = Vec::new();
    file.take(sections + entry_bytes * count).read_to_end(&mut runtime)?;
    Ok(runtime)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_runtime_ends_with_its_table_of_sections() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        let mut bytes = vec![7; 1000];
        bytes[..11].copy_from_slice(b"\x7fELF\x02\x01\x01\0AI\x02");
        for (at, field) in [(40, &300_u64.to_le_bytes()[..]), (58, &[64, 0]), (60, &[5, 0])] {
            bytes[at..at + field.len()].copy_from_slice(field);
        }
        fs::write(file.path(), &bytes).expect("written");
        assert!(runtime_of(file.path()).expect("a runtime") == bytes[..300 + 64 * 5]);
        bytes[10] = 1;
        fs::write(file.path(), &bytes).expect("written");
        assert!(runtime_of(file.path()).is_err());
    }
}
