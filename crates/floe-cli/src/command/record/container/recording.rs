//! Recordings of several running mounts.

use std::{
    collections::{BTreeMap, HashSet},
    fs,
};

use floe_keeper::{MountEntry, MountTable, set_readahead};
use floe_mkfs::Profile;
use floe_mount::{
    control::{Answer, Client, Question},
    launch::{RecordingState, RecordingStep},
};

use super::layers::ContainerLayers;
use crate::fail::Fail;

/// The mounts whose accesses are recorded, by the device numbers of their files. They are as before when this is dropped.
#[derive(Default)]
pub(super) struct Recording {
    mounts: BTreeMap<(u32, u32), RecordedMount>,
    /// The mounts that cannot be recorded.
    refused: HashSet<(u32, u32)>,
    /// The devices of the layers, the uppermost first.
    order: Vec<(u32, u32)>,
}

/// A mount whose accesses are recorded.
struct RecordedMount {
    client: Client,
    /// The kernel's readahead before, in KiB.
    readahead_kib: Option<u32>,
    has_ended: bool,
}

impl Recording {
    /// Begins to record the layers, or all mounts of Floe if they are not known yet. Those that cannot be recorded are reported, once.
    pub(super) fn begin(&mut self, table: &MountTable, layers: Option<&ContainerLayers>) {
        let is_ours = |entry: &&MountEntry| entry.is_front() || entry.file_system == "fuse.floe";
        let is_meant = |entry: &&MountEntry| layers.is_none_or(|layers| layers.devices.contains(&entry.device));
        for entry in table.entries().iter().filter(is_ours).filter(is_meant) {
            if self.mounts.contains_key(&entry.device) || self.refused.contains(&entry.device) {
                continue;
            }
            match RecordedMount::begin(entry) {
                Ok(mount) => drop(self.mounts.insert(entry.device, mount)),
                Err(fail) => {
                    // Other mounts need not be recordable.
                    if layers.is_some() {
                        say!("floe: {fail}");
                    }
                    self.refused.insert(entry.device);
                }
            }
        }
    }

    /// Gives all mounts up but these, the uppermost first.
    pub(super) fn keep(&mut self, devices: &[(u32, u32)]) {
        self.mounts.retain(|device, _| devices.contains(device));
        self.order = devices.to_vec();
    }

    pub(super) fn is_empty(&self) -> bool {
        self.mounts.is_empty()
    }

    /// The number of accesses so far.
    pub(super) fn count(&self) -> usize {
        let count = |mount: &RecordedMount| mount.step(RecordingStep::Count).map_or(0, |state| state.count);
        self.mounts.values().map(count).sum()
    }

    /// Ends the recording. Returns the profiles of the layers, the uppermost first.
    ///
    /// # Errors
    /// A mount does not answer, or its image cannot be read.
    pub(super) fn end(mut self) -> Result<Vec<Profile>, Fail> {
        let order = std::mem::take(&mut self.order);
        let mut profiles = Vec::new();
        for device in order {
            if let Some(mut mount) = self.mounts.remove(&device) {
                profiles.push(mount.end()?);
            }
        }
        Ok(profiles)
    }
}

impl RecordedMount {
    fn begin(entry: &MountEntry) -> Result<Self, Fail> {
        let client = Client::find(&entry.mountpoint)?;
        let mut mount = Self { client, readahead_kib: None, has_ended: true };
        mount.step(RecordingStep::Begin)?;
        mount.has_ended = false;
        let (major, minor) = entry.device;
        let readahead = fs::read_to_string(format!("/sys/class/bdi/{major}:{minor}/read_ahead_kb"));
        mount.readahead_kib = readahead.ok().and_then(|text| text.trim().parse().ok());
        // Without the right to do so, the profile contains more than the container reads.
        let _ = set_readahead(entry.device, 0);
        Ok(mount)
    }

    fn step(&self, step: RecordingStep) -> Result<RecordingState, Fail> {
        match self.client.ask(&Question::Record(step))? {
            Answer::Recording(state) => Ok(state),
            _ => Err(Fail::failed("the mount is served by another version of Floe: use the program that serves it")),
        }
    }

    fn end(&mut self) -> Result<Profile, Fail> {
        let mut state = self.step(RecordingStep::End)?;
        self.has_ended = true;
        let mut text = state.text;
        while state.has_more && (text.len() as u64) < Profile::TEXT_BYTES_MAX {
            state = self.step(RecordingStep::Rest(text.len()))?;
            text.push_str(&state.text);
        }
        Profile::parse(&text).map_err(|error| Fail::failed(error.to_string()))
    }
}

impl Drop for RecordedMount {
    fn drop(&mut self) {
        if !self.has_ended {
            // The mount may have ended.
            let _ = self.step(RecordingStep::GiveUp);
        }
        if let Some(kib) = self.readahead_kib {
            let _ = set_readahead(self.client.device(), kib.saturating_mul(1024));
        }
    }
}
