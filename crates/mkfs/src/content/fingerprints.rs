//! Digests of files as xattrs, by which Linux shares the page cache of equal files of several images.

use sha2::{Digest, Sha256};

use crate::{
    error::{Error, Result},
    memory::zeros,
    options::Options,
    progress::{Phase, Progress, report},
    tree::{NodeId, OrderedNode, Tree},
    workers,
};

/// The read size in bytes.
const READ_LEN: usize = 1 << 20;
/// The maximum number of files of a job, and the number of bytes up to which files are grouped.
const JOB_FILES: usize = 256;
const JOB_BYTES: u64 = 1 << 20;
/// What precedes the digest in the value.
const VALUE_START: &[u8] = b"sha256:";

/// The digests of files, in tree order.
type Digests = Vec<(NodeId, [u8; 32])>;

/// Gives each file that is not empty an xattr with the digest of its content, if the options ask for it.
pub(crate) fn put_fingerprints(
    tree: &mut Tree,
    order: &[OrderedNode],
    options: &Options,
    progress: &mut dyn Progress,
) -> Result<()> {
    let Some(name) = &options.xattrs.fingerprint else { return Ok(()) };
    for (node, digest) in digests(tree, order, options, progress)? {
        let value = [VALUE_START, &digest].concat();
        let xattrs = tree.node_mut(node).xattrs.to_mut();
        xattrs.retain(|(known, _)| **known != **name);
        xattrs.push((name.as_slice().into(), value.into()));
        xattrs.sort();
    }
    Ok(())
}

fn digests(tree: &Tree, order: &[OrderedNode], options: &Options, progress: &mut dyn Progress) -> Result<Digests> {
    let size = |ordered: &OrderedNode| tree.content(ordered).map_or(0, |content| content.size());
    let total = order.iter().map(size).sum();
    let mut rest = order.iter().filter(|ordered| size(ordered) > 0).peekable();
    let next = || {
        let (mut job, mut bytes) = (Vec::new(), 0);
        while job.len() < JOB_FILES
            && bytes < JOB_BYTES
            && let Some(ordered) = rest.next()
        {
            bytes += size(ordered);
            job.push(*ordered);
        }
        (!job.is_empty()).then_some((job, READ_LEN))
    };
    let worker = || {
        let mut buffer = zeros(READ_LEN)?;
        Ok(move |job: Vec<OrderedNode>| -> Result<Digests> {
            job.iter().map(|ordered| Ok((ordered.node, digest(tree, ordered, &mut buffer)?))).collect()
        })
    };
    let (mut found, mut done) = (Vec::new(), 0);
    workers::run(options.jobs, options.memory_len(), worker, next, |digests: Digests| {
        found.extend(digests);
        done = found.len() as u64;
        report(progress, Phase::Compare, done.min(total), total)
    })?;
    Ok(found)
}

/// The digest of all of a file, with the zeros of its holes.
fn digest(tree: &Tree, ordered: &OrderedNode, buffer: &mut [u8]) -> Result<[u8; 32]> {
    let Some(content) = tree.content(ordered) else { return Err(Error::Cancelled) };
    let open = content.open()?;
    let mut hasher = Sha256::new();
    let mut offset = 0;
    while offset < content.size() {
        let len = usize::try_from(content.size() - offset).unwrap_or(usize::MAX).min(buffer.len());
        open.read_at(offset, &mut buffer[..len])?;
        hasher.update(&buffer[..len]);
        offset += len as u64;
    }
    open.check_unchanged()?;
    Ok(hasher.finalize().into())
}
