//! How far a build is.

use std::ops::ControlFlow;

/// What a build is doing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Phase {
    /// Listing the sources; done counts inodes.
    Scan,
    /// Decompressing a tar archive; done counts bytes.
    Unpack,
    /// Looking for equal files; done counts bytes.
    Compare,
    /// Reading and compressing; done counts bytes of files.
    Data,
    /// Compressing the packed inode; done counts its bytes.
    Packed,
    /// Writing the metadata; done counts bytes.
    Metadata,
    /// Reading the image back; done counts bytes of files.
    Verify,
}

/// Is told how far a build is, from the thread that called [`build`](crate::build()).
pub trait Progress {
    /// `done` of `total` is done; `total` is 0 where it is not known. To break stops the build.
    fn advance(&mut self, phase: Phase, done: u64, total: u64) -> ControlFlow<()>;
}

/// Says nothing and never stops.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoProgress;

impl Progress for NoProgress {
    fn advance(&mut self, _: Phase, _: u64, _: u64) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }
}

/// Turns a wish to stop into an error.
pub(crate) fn report(progress: &mut dyn Progress, phase: Phase, done: u64, total: u64) -> crate::error::Result<()> {
    match progress.advance(phase, done, total) {
        ControlFlow::Continue(()) => Ok(()),
        ControlFlow::Break(()) => Err(crate::Error::Cancelled),
    }
}
