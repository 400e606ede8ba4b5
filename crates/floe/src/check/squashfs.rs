//! Checks SquashFS images.

use std::{io, sync::mpsc::sync_channel};

use floe_engine::Blocking;
use floe_image::{Encoding, Finding, StoredBlock, StoredLen};
use floe_squashfs::{Squashfs, check};
use floe_sync::Mutex;

use super::{CheckedBytes, Run};

/// The maximum number of batches of blocks that wait for a worker.
const WAITING_BATCHES_MAX: usize = 64;

/// The number of blocks that a worker takes at a time; they are mostly consecutive.
const BATCH_COUNT: usize = 16;

/// Checks a SquashFS image and returns its number of inodes.
///
/// # Errors
/// No thread could be started.
pub(super) fn check(run: &Run<'_>) -> io::Result<u64> {
    let reader = run.engine.block_reader(Blocking::Allowed);
    let squashfs = match Squashfs::open(reader) {
        Ok(squashfs) => squashfs,
        Err(error) => {
            run.report(&Finding::from(&error));
            return Ok(0);
        }
    };
    let (sender, receiver) = sync_channel::<Vec<check::BlockToDecode>>(WAITING_BATCHES_MAX);
    let receiver = Mutex::new(receiver);
    let next = || receiver.lock().recv().ok();
    let work = |bytes: &mut CheckedBytes<'_>| {
        while let Some(batch) = next() {
            for block in batch.into_iter().take_while(|_| !run.is_cancelled()) {
                let decoded = match block.block {
                    StoredBlock {
                        device,
                        offset,
                        stored_len: StoredLen::Known(len),
                        encoding: Encoding::Stored,
                        ..
                    } => bytes.read(device, offset, len.into()).map(|()| len as usize),
                    block => bytes.decode(&block),
                };
                if let Some(finding) = block.judge(decoded.as_ref().map(|len| *len)) {
                    run.report(&finding);
                }
            }
        }
    };
    let walk = || {
        let mut batch = Vec::with_capacity(BATCH_COUNT);
        let mut give = |block: Option<check::BlockToDecode>| {
            let is_last = block.is_none();
            batch.extend(block);
            if is_last || batch.len() == BATCH_COUNT {
                // Sending fails only after all workers have ended. The summary then shows that fewer blocks were
                // decoded.
                let _ = sender.send(std::mem::replace(&mut batch, Vec::with_capacity(BATCH_COUNT)));
            }
        };
        let found = &mut |finding: Finding| run.report(&finding);
        let to_decode = &mut |block| {
            if run.options.data {
                give(Some(block));
            }
        };
        let summary = check::run(&squashfs, found, to_decode, &|| run.is_cancelled());
        give(None);
        drop(sender);
        summary
    };
    Ok(run.on_all_jobs(work, walk)?.inode_count)
}
