//! Converts unpacked layers to images in the background, one after the other, by a program with idle priority.
//!
//! The directory of a layer stays as it is while a snapshot uses it. Snapshots that are created after the conversion use the image: the
//! record says from which number on. When no snapshot uses the directory any more, `Cleanup` removes it.

use std::{
    collections::BTreeSet,
    ffi::OsString,
    fs::{self, DirBuilder, File},
    io::{self, ErrorKind},
    os::{
        fd::OwnedFd,
        unix::fs::{DirBuilderExt, MetadataExt},
    },
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::Arc,
    thread::{self, JoinHandle},
};

use floe_image::{ShownName, start_error};
use floe_sync::{Condvar, Mutex};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::Snapshotter;
use crate::{
    error::{Result, SnapshotError},
    labels::{self, SNAPSHOT_REF},
    record::{Content, Record, State, Usage},
    snapshot_directories::{CONVERTED_IMAGE, FILES},
};

/// The directory of the root with unfinished images.
const UNFINISHED: &str = "converting";

/// How unpacked layers are converted to images in the background.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ConversionOptions {
    /// The program that builds the image of a directory: `PROGRAM ARGUMENTS… IMAGE DIRECTORY`.
    pub program: PathBuf,
    /// Its arguments before the image.
    pub arguments: Vec<OsString>,
    /// The maximum size of all images together, in bytes. A layer is left as it is if its directory takes more than what remains.
    pub bytes_max: u64,
}

/// The thread that converts layers. Dropping this ends it, and the program that it runs.
pub struct Conversions {
    wake: Arc<Wake>,
    thread: Option<JoinHandle<()>>,
}

/// Tells the thread what to do.
#[derive(Default)]
pub(super) struct Wake {
    state: Mutex<WakeState>,
    changed: Condvar,
}

#[derive(Default)]
struct WakeState {
    has_new_layers: bool,
    is_ending: bool,
    /// The program that is running.
    program: Option<OwnedFd>,
}

impl Conversions {
    /// Starts to convert the layers that are there and those that follow, if the options of the snapshotter say so.
    ///
    /// # Errors
    /// No thread can be started.
    pub fn start(snapshotter: &Arc<Snapshotter>) -> io::Result<Option<Self>> {
        let Some(options) = snapshotter.options.conversion.clone() else { return Ok(None) };
        let (snapshotter, wake) = (Arc::clone(snapshotter), Arc::clone(&snapshotter.conversions));
        wake.new_layers();
        let work = move || Work { snapshotter: &snapshotter, options: &options, failed: BTreeSet::new() }.run();
        let thread = thread::Builder::new().name("floe-convert".to_owned()).spawn(work).map_err(start_error)?;
        Ok(Some(Self { wake, thread: Some(thread) }))
    }
}

impl Drop for Conversions {
    fn drop(&mut self) {
        {
            let mut state = self.wake.state.lock();
            state.is_ending = true;
            if let Some(program) = &state.program {
                let _ = pidfd_send_signal(program, Signal::KILL);
            }
        }
        self.wake.changed.notify_all();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Wake {
    /// There may be layers to convert.
    pub(super) fn new_layers(&self) {
        self.state.lock().has_new_layers = true;
        self.changed.notify_all();
    }

    /// Waits for new layers. Returns whether there may be some; otherwise, the thread has to end.
    fn wait(&self) -> bool {
        let is_idle = |state: &mut WakeState| !state.has_new_layers && !state.is_ending;
        let mut state = self.changed.wait_while(self.state.lock(), is_idle);
        state.has_new_layers = false;
        !state.is_ending
    }

    fn is_ending(&self) -> bool {
        self.state.lock().is_ending
    }

    /// Runs a program, which ends when the thread has to. Its error is the last line of what it says.
    fn run(&self, command: &mut Command) -> io::Result<()> {
        let child = {
            let mut state = self.state.lock();
            if state.is_ending {
                return Err(ErrorKind::Interrupted.into());
            }
            let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn()?;
            // Without a descriptor, the thread ends later.
            state.program = pidfd_open(Pid::from_child(&child), PidfdFlags::empty()).ok();
            child
        };
        let output = child.wait_with_output();
        self.state.lock().program = None;
        let output = output?;
        if output.status.success() {
            return Ok(());
        }
        let errors = String::from_utf8_lossy(&output.stderr);
        let last = errors.lines().last().map(|line| line.trim_start_matches("floe: ").to_owned());
        Err(io::Error::other(last.unwrap_or_else(|| output.status.to_string())))
    }
}

struct Work<'a> {
    snapshotter: &'a Snapshotter,
    options: &'a ConversionOptions,
    /// The numbers of layers that cannot be converted. They are tried again after a restart.
    failed: BTreeSet<u64>,
}

impl Work<'_> {
    fn run(mut self) {
        while self.snapshotter.conversions.wait() {
            while let Some(layer) = self.next_layer()
                && !self.snapshotter.conversions.is_ending()
            {
                if let Err(error) = self.convert(&layer)
                    && self.snapshotter.is_layer(&layer)
                    && !self.snapshotter.conversions.is_ending()
                {
                    let path = self.snapshotter.directories.path(layer.id);
                    (self.snapshotter.say)(&format!("{}: the layer is not converted: {error}", path.shown()));
                }
                // Also one that was removed meanwhile: no other layer gets its number.
                self.failed.insert(layer.id);
            }
        }
    }

    /// The oldest layer that can be converted, and for which there is room.
    fn next_layer(&self) -> Option<Record> {
        let room = self.options.bytes_max.saturating_sub(self.snapshotter.converted_bytes());
        let records = self.snapshotter.records.lock();
        let is_wanted = |record: &&Record| {
            let is_layer = record.is_committed() && record.labels.contains_key(SNAPSHOT_REF);
            let is_directory = record.content == Content::Directory && record.converted.is_none();
            is_layer && is_directory && !self.failed.contains(&record.id) && record.usage.bytes <= room
        };
        records.all().filter(is_wanted).min_by_key(|record| record.id).cloned()
    }

    fn convert(&self, layer: &Record) -> io::Result<()> {
        let folder = self.snapshotter.options.root.join(UNFINISHED);
        // A program that outlived an earlier snapshotter may have left an image.
        match fs::remove_dir_all(&folder) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
            _ => DirBuilder::new().mode(0o700).create(&folder)?,
        }
        let image = folder.join(format!("{}.erofs", layer.id));
        let mut command = Command::new(&self.options.program);
        command.args(&self.options.arguments).arg(&image).arg(self.snapshotter.directories.path(layer.id).join(FILES));
        // The image has the times of the layer.
        self.snapshotter.conversions.run(command.env_remove("SOURCE_DATE_EPOCH"))?;
        let size = disk_bytes(&image);
        let added = if self.snapshotter.converted_bytes().saturating_add(size) > self.options.bytes_max {
            Err(io::Error::other("the image is too large"))
        } else {
            self.snapshotter.add_converted(layer, &image).map_err(|error| io::Error::other(error.to_string()))
        };
        if added.is_err() {
            let _ = fs::remove_file(&image);
        }
        added
    }
}

impl Snapshotter {
    /// Whether a layer is still there, as a directory.
    fn is_layer(&self, layer: &Record) -> bool {
        let records = self.records.lock();
        records.find(&layer.name).is_ok_and(|record| {
            (record.id, record.state, &record.content) == (layer.id, State::Committed, &Content::Directory)
        })
    }

    /// Lets snapshots from now on use the image of a layer.
    fn add_converted(&self, layer: &Record, image: &Path) -> Result<()> {
        let mut records = self.records.lock();
        let mut record = records.find(&layer.name)?.clone();
        if record.id != layer.id {
            return Err(SnapshotError::NotFound(layer.name.clone()));
        }
        let directory = self.directories.path(record.id);
        let moved = fs::rename(image, directory.join(CONVERTED_IMAGE));
        moved.and_then(|()| File::open(&directory)?.sync_all()).map_err(SnapshotError::file(&directory))?;
        record.converted = Some(records.take_id());
        let name = record.name.clone();
        records.store(&name, record)
    }

    /// Mounts the converted image of a layer. Returns where, or `None` if its directory is used from now on, because it is there, and the
    /// image cannot be mounted.
    pub(super) fn mount_converted(&self, layer: &Record) -> Result<Option<PathBuf>> {
        let error = match self.directories.mount_converted(layer.id) {
            Ok(mounted) => return Ok(Some(mounted)),
            Err(error) if layer.content == Content::Converted => return Err(error),
            Err(error) => error,
        };
        let mut records = self.records.lock();
        let mut record = records.find(&layer.name)?.clone();
        if record.id != layer.id || record.content != Content::Directory {
            return Err(error);
        }
        (self.say)(&format!("{error}; the directory of the layer is used instead"));
        record.converted = None;
        records.store(&layer.name, record)?;
        Ok(None)
    }

    /// What all converted images take on disk.
    fn converted_bytes(&self) -> u64 {
        let ids: Vec<u64> = {
            let records = self.records.lock();
            records.all().filter(|record| record.converted.is_some()).map(|record| record.id).collect()
        };
        ids.into_iter().map(|id| disk_bytes(&self.directories.path(id).join(CONVERTED_IMAGE))).sum()
    }

    /// Removes the directories of converted layers that no snapshot uses any more.
    ///
    /// # Errors
    /// They cannot be removed, or a record cannot be written.
    pub(super) fn remove_converted_directories(&self) -> Result<()> {
        let unused: Vec<u64> = {
            let mut records = self.records.lock();
            let mut used = BTreeSet::new();
            for record in records.all().filter(|record| !record.is_committed()) {
                let is_mapped = labels::id_mapping(&record.labels)?.is_some();
                // With a record that was lost, it is unknown what is used.
                let Ok(parents) = records.parents(record) else { return Ok(()) };
                used.extend(
                    parents.iter().filter(|layer| !layer.has_image_for(record.id, is_mapped)).map(|layer| layer.id),
                );
            }
            let is_unused = |layer: &&Record| {
                layer.content == Content::Directory && layer.converted.is_some() && !used.contains(&layer.id)
            };
            let unused: Vec<Record> = records.all().filter(is_unused).cloned().collect();
            for mut layer in unused {
                let bytes = disk_bytes(&self.directories.path(layer.id).join(CONVERTED_IMAGE));
                (layer.content, layer.usage) = (Content::Converted, Usage { bytes, inodes: 1 });
                let name = layer.name.clone();
                records.store(&name, layer)?;
            }
            // Also those that could not be removed the last time.
            records.all().filter(|layer| layer.content == Content::Converted).map(|layer| layer.id).collect()
        };
        unused.into_iter().try_for_each(|id| self.directories.delete_files(id))
    }
}

fn disk_bytes(path: &Path) -> u64 {
    fs::symlink_metadata(path).map_or(0, |metadata| metadata.blocks() * 512)
}
