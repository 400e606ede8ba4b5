//! Finds the parts of an image that a launch reads, so that mounts from a registry can fetch them first.

use std::{
    collections::{HashMap, HashSet},
    fs,
    io::{self, Read},
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::Arc,
};

use clap::Args;
use floe::{ByteRange, FileType, FormatImage, Image, ImageFiles, ImageSource, Nid, OpenError, OpenOptions};
use floe_engine::Blocking;
use floe_front::{Origin, VirtualImage};
use floe_image::{ShownName, start_error};
use floe_mkfs::{Profile, ProfileStep};
use floe_sandbox::{Mode, Sandbox};
use floe_source::FileSource;
use floe_sync::Mutex;

use crate::{
    confinement,
    fail::{Exit, Fail},
    output::Output,
};
use floe_mount::{
    daemon::{last_message, own_program},
    launch::{Footprint, replayed_range},
};

/// The name of the command that finds the parts, for another floe process.
pub(crate) const LAUNCH_RANGES_COMMAND: &str = "find-launch-for-another";

/// The number of bytes that the kernel reads before and behind a read of a program: half of its readahead window before
/// a page fault, and a whole window behind it.
const READ_BEFORE: u64 = 64 << 10;
const READ_BEHIND: u64 = 128 << 10;

/// A range of a file.
type FileRange = (Nid, ByteRange);

/// The maximum length of the list of parts, in bytes.
const LIST_BYTES_MAX: u64 = 256 << 20;

/// The arguments of the process that finds the parts.
#[derive(Args)]
pub(crate) struct Arguments {
    image: PathBuf,
    #[arg(long)]
    profile: Option<PathBuf>,
    /// Omit what only the kernel's EROFS in front reads.
    #[arg(long)]
    without_front: bool,
}

/// Whether the kernel's EROFS is in front of the mount of a launch. It reads metadata in whole blocks of the virtual image.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum LaunchFront {
    Possible,
    Absent,
}

/// The parts of an image of `len` bytes that a launch reads, in two groups; empty if there is no profile.
///
/// First: the data that a replay of the launch in `profile` or in the image reads, in its order: the metadata for opening the
/// image and finding the files, then the rest of the metadata and the contents. Second: the kernel's readahead around the
/// contents, for a program that is ahead of the replay.
///
/// Another process parses the image, because this one has credentials and cannot be confined.
///
/// # Errors
/// The image cannot be opened, or the profile is invalid.
pub(crate) fn launch_ranges(path: &Path, profile: Option<&Path>, len: u64) -> Result<Vec<Vec<ByteRange>>, Fail> {
    ranges(path, profile, len, LaunchFront::Possible)
}

/// Like [`launch_ranges`], for a layer of a container: the snapshotter and the store mount it through FUSE alone.
///
/// # Errors
/// As for [`launch_ranges`].
pub(crate) fn layer_launch_ranges(path: &Path, profile: &Path, len: u64) -> Result<Vec<Vec<ByteRange>>, Fail> {
    ranges(path, Some(profile), len, LaunchFront::Absent)
}

fn ranges(path: &Path, profile: Option<&Path>, len: u64, front: LaunchFront) -> Result<Vec<Vec<ByteRange>>, Fail> {
    let failed = |error: io::Error| Fail::failed(format!("cannot examine {}: {error}", path.shown()));
    let mut command = Command::new(own_program());
    // The program name selects drop-in programs, so it must be `floe`. The environment may contain credentials.
    command.arg0("floe").arg(LAUNCH_RANGES_COMMAND).env_clear();
    if let Some(profile) = profile {
        command.arg("--profile").arg(std::path::absolute(profile).map_err(failed)?);
    }
    command.args((front == LaunchFront::Absent).then_some("--without-front"));
    command.arg("--").arg(std::path::absolute(path).map_err(failed)?);
    let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let mut child = child.map_err(|error| failed(start_error(error)))?;
    let (mut list, mut errors) = (Vec::new(), String::new());
    if let Some(output) = child.stdout.take() {
        output.take(LIST_BYTES_MAX).read_to_end(&mut list).map_err(failed)?;
    }
    if let Some(output) = child.stderr.take() {
        output.take(LIST_BYTES_MAX).read_to_string(&mut errors).map_err(failed)?;
    }
    let status = child.wait().map_err(failed)?;
    if !status.success() {
        let reason = last_message(&errors);
        let fail = Fail::failed(reason.map_or_else(|| format!("{LAUNCH_RANGES_COMMAND}: {status}"), str::to_owned));
        let is_image_bad = status.code() == Some(Exit::BadImage.code().into());
        return Err(if is_image_bad { fail.with_exit(Exit::BadImage) } else { fail });
    }
    let groups: Vec<Vec<(u64, u64)>> = serde_json::from_slice(&list).map_err(|error| failed(error.into()))?;
    let range = |(offset, end): (u64, u64)| (offset < end && end <= len).then(|| ByteRange::between(offset, end));
    Ok(groups.into_iter().map(|group| group.into_iter().filter_map(range).collect()).collect())
}
/// Runs the process that finds the parts: prints the groups of [`launch_ranges`], each as a list of the offsets and ends of its
/// ranges.
///
/// # Errors
/// As for [`launch_ranges`].
pub(crate) fn run(arguments: &Arguments) -> Result<u8, Fail> {
    let path = arguments.image.as_path();
    let profile = arguments.profile.as_deref().map(read_profile).transpose()?;
    let (sandbox, file) = Sandbox::enter(confinement::reading(), Mode::Auto, || FileSource::open(path))?;
    sandbox.seal()?;
    let file = file.map_err(|error| Fail::failed(format!("{}: {error}", path.shown())))?;
    let front = if arguments.without_front { LaunchFront::Absent } else { LaunchFront::Possible };
    let groups = found(path, file, profile.as_ref(), front)?;
    let pair = |range: &ByteRange| (range.offset(), range.end());
    let groups: Vec<Vec<(u64, u64)>> = groups.iter().map(|group| group.iter().map(pair).collect()).collect();
    Output::print(serde_json::to_string(&groups).unwrap_or_default())
}

fn found(
    path: &Path,
    file: FileSource,
    profile: Option<&Profile>,
    front: LaunchFront,
) -> Result<Vec<Vec<ByteRange>>, Fail> {
    let options = OpenOptions::default();
    let recording = Arc::new(RecordingSource { file, read: Mutex::default() });
    let source: Arc<dyn ImageSource> = Arc::clone(&recording) as Arc<dyn ImageSource>;
    let opened = ImageFiles::of_source(path, &source, &options).and_then(|files| Image::of(files, &options));
    let image = match opened {
        // The image is pushed without its devices. Readers add them.
        Err(OpenError::MissingDevice { .. }) if profile.is_none() => return Ok(Vec::new()),
        image => image?,
    };
    let launch = profile.map_or_else(|| Launched::in_image(&image), Launched::of);
    // A layer that the launch reads no file of may have directories that it looks into.
    let is_layer = profile.is_some();
    if !is_layer && launch.0.iter().all(|step| step.range.is_none()) {
        return Ok(Vec::new());
    }
    // Record the reads of a launch, in a fresh image.
    drop(image);
    recording.take();
    let image = Image::of(ImageFiles::of_source(path, &source, &options)?, &options)?;
    let front = (front == LaunchFront::Possible).then(|| virtual_image(&image).ok()).flatten();
    let replay = Replay { front, image, recording };
    Ok(replay.of(&launch))
}

/// The steps of a launch, in their order.
#[derive(Default)]
struct Launched(Vec<LaunchStep>);

/// A step of a launch.
struct LaunchStep {
    path: Vec<u8>,
    /// The range of the file that a replay reads; `None` if only the name is looked up or the directory listed.
    range: Option<ByteRange>,
}

impl Launched {
    fn of(profile: &Profile) -> Self {
        let footprint = Footprint::of(profile);
        let steps = profile.steps().map(|step| match step {
            ProfileStep::Range(range) => {
                let grown = footprint.grown(&range.path, range.range);
                LaunchStep { path: range.path.clone(), range: Some(grown) }
            }
            ProfileStep::Name(name) => LaunchStep { path: name.path.clone(), range: None },
        });
        Self(steps.collect())
    }

    /// The profile in the image, or its launch list with paths: a launch finds the files by their paths.
    fn in_image(image: &Image) -> Self {
        let FormatImage::Erofs(erofs) = image.format_image() else { return Self::default() };
        let profile = erofs.launch_profile().ok().flatten().and_then(|text| Profile::read(text.as_slice()).ok());
        if let Some(profile) = profile {
            return Self::of(&profile);
        }
        let listed = erofs.launch_list().unwrap_or_default();
        if listed.is_empty() {
            return Self::default();
        }
        let files = image.walk().flatten().filter(|entry| entry.attr.file_type == FileType::Regular);
        let paths: HashMap<Nid, Vec<u8>> = files.map(|entry| (entry.attr.nid, entry.path)).collect();
        let steps = listed
            .into_iter()
            .filter_map(|(nid, range)| Some(LaunchStep { path: paths.get(&nid)?.clone(), range: Some(range) }));
        Self(steps.collect())
    }
}

/// Opens the image as the kernel does that mounts a front.
fn virtual_image(image: &Image) -> floe_image::Result<VirtualImage> {
    let volume = image.reader().volume();
    let (waiting, non_blocking) = (volume.block_reader(Blocking::Allowed), volume.block_reader(Blocking::Never));
    VirtualImage::open(Arc::clone(image.file_system()), &waiting, non_blocking)
}

/// Repeats a launch and records its reads.
struct Replay {
    image: Image,
    /// The virtual image that the kernel mounts.
    front: Option<VirtualImage>,
    recording: Arc<RecordingSource>,
}

impl Replay {
    /// The two groups of [`launch_ranges`]. Steps that the image does not contain are skipped, as in mkfs.
    fn of(&self, launch: &Launched) -> Vec<Vec<ByteRange>> {
        if let FormatImage::Erofs(erofs) = self.image.format_image() {
            let _ = (erofs.launch_list(), erofs.launch_profile());
        }
        // A replay finds all files before it begins.
        let resolved = launch.0.iter().map(|step| {
            let attr = self.image.resolve_link(&step.path).and_then(|nid| Ok(self.image.attr(nid)?)).ok();
            attr.zip(step.range).map(|(attr, range)| (attr.nid, attr.size, range))
        });
        let resolved: Vec<_> = resolved.collect();
        let (mut needed, mut found) = (self.recording.take(), HashSet::new());
        for (LaunchStep { path, .. }, resolved) in launch.0.iter().zip(&resolved) {
            let ends = path.iter().enumerate().filter(|(_, byte)| **byte == b'/').map(|(end, _)| end);
            for end in ends.chain([path.len()]) {
                if let Ok(nid) = self.image.resolve_link(&path[..end])
                    && found.insert(nid)
                {
                    self.find(nid);
                }
            }
            let stored =
                resolved.map(|(nid, size, range)| self.image.stored_runs(&[(nid, replayed_range(range, size))], 0));
            needed.extend(self.recording.take());
            needed.extend(stored.into_iter().flatten());
        }
        let around = resolved.into_iter().flatten().flat_map(|(nid, _, range)| {
            let mut read = self.neighbours(nid, range, (READ_BEFORE, READ_BEHIND));
            read.push((nid, around_range(range)));
            read
        });
        let around = self.image.stored_runs(&around.collect::<Vec<_>>(), 0);
        needed.extend(self.recording.take());
        vec![needed, around]
    }

    /// Reads the metadata for an inode as a mount with a front does: it renders whole blocks. An inode that cannot be rendered
    /// is read as by a mount without a front, which reads the inodes of a directory together.
    fn find(&self, nid: Nid) {
        // Unreadable inodes are not part of the launch.
        let is_rendered = self.front.as_ref().is_some_and(|front| front.render(nid).is_ok());
        let attr = self.image.attr(nid);
        if !is_rendered && attr.is_ok_and(|attr| attr.file_type == FileType::Directory) {
            self.image.read_dir(nid).flatten().for_each(|entry| drop(self.image.attr(entry.nid)));
        }
    }

    /// The files within `before` bytes before and `behind` bytes behind a range of a small file in the virtual image. Small
    /// files are adjacent there, so the kernel's readahead crosses from one into the next. Empty for large files.
    fn neighbours(&self, nid: Nid, range: ByteRange, (before, behind): (u64, u64)) -> Vec<FileRange> {
        let origin = Origin { nid, offset: range.offset() };
        let place = self.front.as_ref().and_then(|front| Some((front, front.place(origin).ok()??)));
        match place {
            // The large file has no readahead of its own.
            Some((front, place)) if place < front.address(VirtualImage::LARGE_NID, 0) => {
                let near = ByteRange::between(place.saturating_sub(before), place + range.len() + behind);
                let data = front.file_data_in(near);
                let parts = data.into_iter().filter_map(|data| front.files_in(data).ok().flatten()).flatten();
                parts.map(|part| (part.original, part.range)).collect()
            }
            _ => Vec::new(),
        }
    }
}

/// A range of a file, extended by the bytes that the kernel reads before and behind it.
fn around_range(range: ByteRange) -> ByteRange {
    ByteRange::between(range.offset().saturating_sub(READ_BEFORE), range.end().saturating_add(READ_BEHIND))
}

/// A file that records the ranges that are read.
struct RecordingSource {
    file: FileSource,
    read: Mutex<Vec<ByteRange>>,
}

impl RecordingSource {
    /// The ranges that were read since the last call.
    fn take(&self) -> Vec<ByteRange> {
        std::mem::take(&mut self.read.lock())
    }
}

impl ImageSource for RecordingSource {
    fn len(&self) -> u64 {
        self.file.len()
    }

    fn read_at(&self, offset: u64, output: &mut [u8]) -> io::Result<()> {
        let range = ByteRange::new(offset, output.len() as u64);
        self.read.lock().push(range);
        self.file.read_at(offset, output)
    }
}

fn read_profile(profile: &Path) -> Result<Profile, Fail> {
    let failed = |error: &dyn std::fmt::Display| Fail::failed(format!("{}: {error}", profile.shown()));
    let file = fs::File::open(profile).map_err(|error| failed(&error))?;
    Profile::read(file).map_err(|error| failed(&error))
}
