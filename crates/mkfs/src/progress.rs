//! Progress reports of a build.

use std::ops::ControlFlow;

/// The current phase of a build.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Phase {
    /// Listing the sources; counts inodes.
    Scan,
    /// Decompressing a tar archive; counts bytes.
    Unpack,
    /// Comparing files; counts bytes.
    Compare,
    /// Reading and compressing; counts bytes of files.
    Data,
    /// Compressing the packed inode; counts its bytes.
    Packed,
    /// Writing the metadata; counts bytes.
    Metadata,
    /// Verifying the image; counts bytes of files.
    Verify,
}

/// Receives progress reports on the thread that called [`build`](crate::build()).
pub trait Progress {
    /// Reports that `done` of `total` is done; `total` is 0 if unknown. Breaking stops the build.
    fn advance(&mut self, phase: Phase, done: u64, total: u64) -> ControlFlow<()>;
}

/// Ignores reports and never stops.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoProgress;

impl Progress for NoProgress {
    fn advance(&mut self, _: Phase, _: u64, _: u64) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }
}

/// Reports progress; converts a request to stop into an error.
pub(crate) fn report(progress: &mut dyn Progress, phase: Phase, done: u64, total: u64) -> crate::error::Result<()> {
    match progress.advance(phase, done, total) {
        ControlFlow::Continue(()) => Ok(()),
        ControlFlow::Break(()) => Err(crate::Error::Cancelled),
    }
}
