//! `floe demo`: mounts the embedded image and reads all of it.

use std::{
    fs, io,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use clap::Args;
use floe::{FileType, Image, OpenOptions};
use floe_fuse::{Mount, MountOptions, Mountpoint};
use floe_image::ShownName;
use floe_keeper::Detach;
use indicatif::BinaryBytes;
use serde::Deserialize;
use sha2::{Digest, Sha256};

use crate::{
    cancellation,
    fail::{Exit, Fail},
    output::Output,
};

/// The embedded image. `cargo xtask fixtures --demo` generates it and its manifest. `demo` has links to both, which cargo
/// packages as files.
pub(crate) const IMAGE: &[u8] = include_bytes!("../../demo/demo.erofs");

/// The image's manifest: one line of JSON for each path.
const MANIFEST: &str = include_str!("../../demo/demo.jsonl");

/// Mount a small embedded image, read all of it, and report the results
///
/// Uses a temporary directory, which is removed at the end. If FUSE cannot be used, the image is read without a mount.
#[derive(Args)]
#[command(after_help = "Examples:\n  \
    floe demo\n\n\
    Exit codes:\n  \
    0    all content was read and is correct\n  \
    1    some content could not be read or is wrong\n  \
    2    wrong usage\n  \
    130  ended by a signal")]
pub(crate) struct Arguments {
    /// Read without a mount
    #[arg(long)]
    no_mount: bool,
}

/// The part of a path's manifest line that is compared.
#[derive(Deserialize)]
struct Expected {
    path: String,
    #[serde(rename = "type")]
    file_type: char,
    size: u64,
    target: Option<String>,
    sha256: Option<String>,
}

/// Counts of what was read.
#[derive(Default)]
struct Tally {
    names: u64,
    files: u64,
    bytes: u64,
}

pub(crate) fn run(arguments: &Arguments) -> Result<u8, Fail> {
    let expected: Vec<Expected> = MANIFEST
        .lines()
        .map(|line| serde_json::from_str(line).map_err(|error| Fail::failed(format!("the built-in manifest: {error}"))))
        .collect::<Result<_, _>>()?;
    // After a signal, the demonstration still unmounts before it ends.
    let cancel = cancellation::on_signals()?;
    let at = |path: &Path| format!("{}", path.shown());
    let folder = tempfile::Builder::new().prefix("floe-demo-").tempdir();
    let folder = folder.map_err(|error| Fail::failed(format!("{}: {error}", at(&std::env::temp_dir()))))?;
    let path = folder.path().join("demo.erofs");
    fs::write(&path, IMAGE).map_err(|error| Fail::failed(format!("{}: {error}", at(&path))))?;
    let start = Instant::now();
    let image = Image::open(&path, &OpenOptions::default())?;
    let info = image.file_system().info();
    Output::print(format_args!(
        "opened   {}: {}, {} inodes in {} blocks of {} bytes, in {}\n",
        at(&path),
        image.format(),
        info.inode_count,
        info.block_count,
        info.block_size,
        shown(start.elapsed())
    ))?;
    let why_not = if arguments.no_mount {
        Some("as requested".to_owned())
    } else {
        mount_and_read(&image, &folder.path().join("mount"), &expected)?
    };
    if let Some(reason) = why_not {
        Output::print(format_args!("no mount {reason}\n"))?;
        let start = Instant::now();
        let tally = read_image(&image, &expected).map_err(Fail::failed)?;
        say_read("read", &tally, start.elapsed(), "without a mount")?;
    }
    if cancel.load(std::sync::atomic::Ordering::Relaxed) {
        return Err(Fail::failed("ended by a signal").with_exit(Exit::Interrupted));
    }
    Output::print("next     floe mount IMAGE DIR\n")
}

/// Mounts the image, reads all of it through the mount twice, and unmounts. Returns the reason if the image cannot be
/// mounted.
fn mount_and_read(image: &Image, directory: &PathBuf, expected: &[Expected]) -> Result<Option<String>, Fail> {
    fs::create_dir(directory).map_err(|error| Fail::failed(format!("{}: {error}", directory.shown())))?;
    let start = Instant::now();
    let mounted = Mountpoint::find(directory)
        .and_then(|mountpoint| Mount::new(image.reader().clone(), mountpoint, &MountOptions::default()));
    let mount = match mounted {
        Ok(mount) => mount,
        Err(error) => return Ok(Some(format!("because {error}"))),
    };
    let elapsed = shown(start.elapsed());
    Output::print(format_args!("mounted  on {} through FUSE, in {elapsed}\n", directory.shown()))?;
    for (turn, note) in [("read", "through the mount"), ("again", "from the kernel's caches")] {
        let start = Instant::now();
        let tally = read_mount(directory, expected).map_err(Fail::failed)?;
        say_read(turn, &tally, start.elapsed(), note)?;
    }
    let start = Instant::now();
    let unmounted = mount.unmounter().unmount(Detach::Never);
    // Another program may be using the mount.
    unmounted.or_else(|_| mount.unmounter().unmount(Detach::Lazily))?;
    Output::print(format_args!("unmounted in {}\n", shown(start.elapsed())))?;
    Ok(None)
}

fn say_read(turn: &str, tally: &Tally, elapsed: Duration, note: &str) -> Result<u8, Fail> {
    let Tally { names, files, bytes } = tally;
    Output::print(format_args!(
        "{turn:8} {names} names, {files} files with {} {note} in {}; all SHA-256 digests match\n",
        BinaryBytes(*bytes),
        shown(elapsed)
    ))
}

fn shown(elapsed: Duration) -> String {
    format!("{:.1} ms", elapsed.as_secs_f64() * 1000.0)
}

/// Reads and compares everything below a directory. The error says what differs.
fn read_mount(directory: &Path, expected: &[Expected]) -> Result<Tally, String> {
    let mut tally = Tally::default();
    for entry in expected {
        let path = directory.join(entry.path.trim_start_matches('/'));
        let told = |error: io::Error| format!("{}: {error}", path.shown());
        let metadata = fs::symlink_metadata(&path).map_err(told)?;
        let found = match entry.file_type {
            'd' => metadata.is_dir(),
            'l' => fs::read_link(&path).map_err(told)?.to_str() == entry.target.as_deref(),
            _ => {
                let content = fs::read(&path).map_err(told)?;
                tally.files += 1;
                tally.bytes += content.len() as u64;
                Some(digest(&content)) == entry.sha256
            }
        };
        if !found || metadata.len() != entry.size {
            return Err(format!("{}: wrong content or attributes", path.shown()));
        }
        tally.names += 1;
    }
    Ok(tally)
}

/// Reads and compares everything in the image itself.
fn read_image(image: &Image, expected: &[Expected]) -> Result<Tally, String> {
    let mut tally = Tally::default();
    for entry in expected {
        let told = |error: floe::Error| format!("{}: {error}", entry.path);
        let nid = image.resolve_link(&entry.path).map_err(|error| error.to_string())?;
        let attr = image.attr(nid).map_err(told)?;
        let found = match entry.file_type {
            'd' => attr.file_type == FileType::Directory,
            'l' => {
                Some(image.file_system().read_link(nid).map_err(told)?.as_slice())
                    == entry.target.as_deref().map(str::as_bytes)
            }
            _ => {
                let mut content = vec![0; attr.size as usize];
                let len = image.read_at(nid, 0, &mut content).map_err(told)?;
                tally.files += 1;
                tally.bytes += len as u64;
                len as u64 == attr.size && Some(digest(&content)) == entry.sha256
            }
        };
        if !found || attr.size != entry.size {
            return Err(format!("{}: wrong content or attributes", entry.path));
        }
        tally.names += 1;
    }
    Ok(tally)
}

fn digest(content: &[u8]) -> String {
    Sha256::digest(content).iter().map(|byte| format!("{byte:02x}")).collect()
}
