//! Prefetch around one read.

mod neighbours;
mod window;

use std::sync::Arc;

use floe_image::{ByteRange, Extent, Nid};

pub(crate) use self::neighbours::Neighbours;
use crate::{
    ListedFile,
    memory::page_pool::Effort,
    prefetch::{
        controller::Pressure,
        detectors::{directory::AheadFile, sequential::Ahead},
    },
    read::{acquire::Step, file_data::FileData},
};

/// A read, as prefetch sees it. Reads consult prefetch here and nowhere else, at four moments: when they begin
/// ([`ReadAround::note`]), once their blocks were looked up ([`ReadAround::neighbours`]), after their reply
/// ([`ReadAround::push`]), and when their session thread has nothing else to do for them ([`ReadAround::prefetch`]).
///
/// The controller decides, this executes: mostly on the thread `floe-around`, and never before the reply on the thread that
/// replies.
#[derive(Clone, Copy)]
pub(crate) struct ReadAround {
    pub(crate) nid: Nid,
    pub(crate) range: ByteRange,
    /// Whether the read is itself prefetch.
    pub(crate) is_prefetch: bool,
}

impl ReadAround {
    /// Notes the beginning of a read, and returns the window to decode ahead of its reader.
    pub(crate) fn note(self, data: &FileData) -> Option<Ahead> {
        data.volume.prefetch.note_read(self.nid, self.range, || pressure(data))
    }

    /// The bytes near the read to push into the page cache.
    pub(crate) fn neighbours(self, data: &FileData, extents: &[Extent], steps: &[Step]) -> Neighbours {
        Neighbours::of(self, data, extents, steps)
    }

    /// Pushes the bytes near the read into the page cache, after its reply.
    pub(crate) fn push(self, data: &Arc<FileData>, neighbours: Neighbours) {
        neighbours.push(self, data);
    }

    /// Starts prefetch once the session thread is free, which may be before the reply: the window ahead of a sequential reader,
    /// or the next files of a directory walk.
    pub(crate) fn prefetch(self, data: &Arc<FileData>, ahead: Option<Ahead>) {
        let Self { nid, range, .. } = self;
        if let Some(ahead) = ahead {
            will_need_if_far(data, nid, ahead.range);
            // Errors are ignored: a later demand read reports them.
            return run_prefetch(data, move |data| drop(window::decode(data, nid, &ahead)));
        }
        if range.offset() > 0 {
            return;
        }
        let files = data.volume.prefetch.next_files(nid, || pressure(data));
        if !files.is_empty() {
            files.iter().for_each(|ahead| will_need_if_far(data, ahead.file.nid, ByteRange::new(0, ahead.file.size)));
            run_prefetch(data, move |data| push_files(data, &files));
        }
    }
}

/// The resource that is scarce now.
fn pressure(data: &FileData) -> Pressure {
    let (volume, engine) = (&data.volume, &data.volume.engine);
    if volume.switches.ahead_effort() == Effort::BestEffort && engine.pool.is_memory_short() {
        Pressure::Memory
    } else if engine.workers.cpus_are_short() {
        Pressure::Cpus
    } else {
        Pressure::None
    }
}

/// Requests the stored bytes of a part of a file from a far source, so that it transfers them while the reader waits for
/// others.
fn will_need_if_far(data: &FileData, nid: Nid, range: ByteRange) {
    if data.volume.prefetch.is_far() {
        data.will_need(nid, range);
    }
}

/// Pushes the next files of a directory walk into the page cache.
fn push_files(data: &FileData, files: &[AheadFile]) {
    for ahead in files {
        let ListedFile { nid, size } = ahead.file;
        let is_wanted = data.volume.prefetch.is_wanted(ahead);
        if is_wanted && !matches!(data.push_part(nid, ByteRange::new(0, size)), Ok(true)) {
            break;
        }
    }
}

/// Like [`run_around`], for work that reads more than was requested.
fn run_prefetch(data: &Arc<FileData>, work: impl FnOnce(&FileData) + Send + 'static) {
    let counted = data.volume.prefetch.count_prefetch();
    run_around(data, move |data| {
        let _counted = counted;
        work(data);
    });
}

/// Runs `work` on the thread `floe-around`, and returns whether it will: not if too many work items are waiting, or if the
/// thread cannot be started.
fn run_around(data: &Arc<FileData>, work: impl FnOnce(&FileData) + Send + 'static) -> bool {
    let Some(admitted) = data.volume.prefetch.admit() else { return false };
    let running = Arc::clone(data);
    data.volume.run_around(Box::new(move || {
        drop(admitted);
        work(&running);
    }))
}
