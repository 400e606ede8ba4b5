//! The file data of one volume.

use std::sync::Arc;

use floe_image::{ByteRange, DeviceId, Error, FileSystem, Nid, Result};

use crate::{
    Blocking, Volume,
    memory::page_pool::Effort,
    prefetch::thresholds::{LAUNCH_FILE_STEP_BYTES, LAUNCH_STEP_BYTES},
    read::{
        acquire::acquire,
        job::{Costly, Job, copy},
        plan::{Origin, PlannedStep, plan},
        workspace::{Workspace, Workspaces},
    },
};

/// The file data of one volume: the format, which maps it, and the volume, whose engine fetches and decodes it. Its reads do all work on
/// the calling thread.
pub(crate) struct FileData {
    pub(crate) volume: Arc<Volume>,
    pub(crate) file_system: Arc<dyn FileSystem>,
    /// The same file system; its calls never wait for a source.
    pub(crate) non_blocking: Arc<dyn FileSystem>,
    pub(crate) workspaces: Workspaces,
}

impl FileData {
    pub(crate) fn new(volume: Arc<Volume>, file_system: Arc<dyn FileSystem>) -> Self {
        let non_blocking = Arc::clone(&file_system).with_reader(volume.block_reader(Blocking::Never));
        Self { volume, file_system, non_blocking, workspaces: Workspaces::default() }
    }

    /// Fills `output` with the bytes of a file from `offset` on, and returns how many there were: fewer than requested only at
    /// the end of the file.
    ///
    /// # Errors
    /// The inode has no data, or the image is corrupt or cannot be read.
    pub(crate) fn read(&self, nid: Nid, offset: u64, output: &mut [u8]) -> Result<usize> {
        let range = ByteRange::new(offset, output.len() as u64);
        if range.is_empty() {
            return Ok(0);
        }
        let job = Job { volume: &self.volume, blocking: Blocking::Allowed, costly: Costly::DecodeHere, ahead: None };
        let result = self.workspaces.with(|workspace| {
            let len = self.plan(workspace, nid, range, Blocking::Allowed)?;
            let mut steps = std::mem::take(&mut workspace.steps);
            acquire(&self.volume, &workspace.planned, &mut steps);
            let result = job.run_to_end(&mut steps, output);
            workspace.steps = steps;
            result.map(|()| len)
        });
        result.map_err(|error| error.for_inode(nid))
    }

    /// Like [`FileData::read`], if all bytes are in the cache of decoded blocks: decodes no data and never waits. Returns `None`
    /// otherwise, and after an error; `output` may then be partly filled.
    pub(crate) fn read_cached(&self, nid: Nid, offset: u64, output: &mut [u8]) -> Option<usize> {
        let range = ByteRange::new(offset, output.len() as u64);
        self.workspaces.with(|workspace| {
            let len = self.plan(workspace, nid, range, Blocking::Never).ok()?;
            for step in &workspace.planned {
                let target = &mut output[step.output.clone()];
                match step.origin {
                    Origin::Hole => target.fill(0),
                    Origin::Plain { .. } => return None,
                    Origin::Block { block, skip } => {
                        let cached = self.volume.blocks.peek(&block)?;
                        copy(&cached, &block, skip, target).ok()?;
                    }
                }
            }
            Some(len)
        })
    }

    /// Maps `range` and plans its read in the workspace. Returns how many bytes the plan fills.
    ///
    /// # Errors
    /// As for [`FileSystem::map`]; `WouldBlock` if the metadata is not in memory and `blocking` forbids to wait.
    pub(crate) fn plan(
        &self,
        workspace: &mut Workspace,
        nid: Nid,
        range: ByteRange,
        blocking: Blocking,
    ) -> Result<usize> {
        workspace.extents.clear();
        workspace.planned.clear();
        let file_system = match blocking {
            Blocking::Allowed => &self.file_system,
            Blocking::Never => &self.non_blocking,
        };
        file_system.map(nid, range, &mut workspace.extents)?;
        Ok(plan(range, &workspace.extents, &mut workspace.planned))
    }

    /// Requests the stored bytes of a part of a file from the source. Does nothing if the metadata that maps the file is not in
    /// memory.
    pub(crate) fn will_need(&self, nid: Nid, range: ByteRange) {
        self.workspaces.with(|workspace| {
            if self.plan(workspace, nid, range, Blocking::Never).is_err() {
                return;
            }
            let mut asked: Vec<(DeviceId, ByteRange)> = Vec::new();
            for (device, stored) in workspace.planned.iter().filter_map(PlannedStep::stored) {
                match asked.last_mut() {
                    Some((before, range)) if *before == device && range.end() == stored.offset() => {
                        *range = ByteRange::between(range.offset(), stored.end());
                    }
                    _ => asked.push((device, stored)),
                }
            }
            for (device, range) in asked {
                self.volume.sources.will_need(device, range.offset(), range.len());
            }
        });
    }

    /// Pushes a part of a file into the page cache. Returns whether all of it was taken.
    ///
    /// # Errors
    /// The part cannot be read, or there is no memory for it now.
    pub(crate) fn push_part(&self, nid: Nid, part: ByteRange) -> Result<bool> {
        let volume = &self.volume;
        let (Some(sink), len) = (volume.prefetch.sink(), part.len() as usize) else { return Ok(false) };
        let effort = volume.switches.ahead_effort();
        let mut pages = volume.engine.pool.temporary(len, effort).ok_or(Error::NoMemory)?;
        let len = self.read(nid, part.offset(), &mut pages[..len])?;
        let pushed_len = sink.push(nid, part.offset(), &pages[..len]);
        volume.prefetch.counts.pushed(pushed_len);
        Ok(pushed_len == len)
    }

    /// Pushes a range of a file into the page cache, grown to whole pages, or asks the cache to read it. Returns the number
    /// of bytes.
    ///
    /// # Errors
    /// The range cannot be read, or there is no memory for it.
    pub(crate) fn push_whole_pages(&self, nid: Nid, range: ByteRange) -> Result<u64> {
        let Volume { engine, prefetch, .. } = &*self.volume;
        let Some(sink) = prefetch.sink() else { return Ok(0) };
        let size = self.file_system.attr(nid)?.size;
        let page = sink.page_bytes();
        let range = ByteRange::between(
            range.offset() / page * page,
            range.end().checked_next_multiple_of(page).unwrap_or(u64::MAX),
        );
        let range = range.intersection(ByteRange::new(0, size));
        if sink.reads_by_itself(nid) {
            sink.request(nid, range, engine.workers.cpus_are_short());
            return Ok(range.len());
        }
        let step = if range.len() == size { LAUNCH_FILE_STEP_BYTES } else { LAUNCH_STEP_BYTES };
        let mut pushed = 0;
        let mut offset = range.offset();
        while offset < range.end() {
            let len = (range.end() - offset).min(step) as usize;
            // The replay ends before memory is scarce.
            let mut pages = engine.pool.temporary(len, Effort::Demand).ok_or(Error::NoMemory)?;
            let len = self.read(nid, offset, &mut pages[..len])?;
            if len == 0 {
                break;
            }
            pushed += sink.push(nid, offset, &pages[..len]) as u64;
            offset += len as u64;
        }
        prefetch.counts.pushed(pushed as usize);
        Ok(pushed)
    }
}
