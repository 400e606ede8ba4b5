//! The base of a build: an earlier image, to whose data the new image refers where files are the same.

use std::{collections::HashMap, path::Path, sync::Arc};

use floe_erofs::{
    AlgorithmConfiguration, format,
    write::{CompressedExtent, ExtentKind},
};
use floe_image::{ByteRange, DecodedLen, DeviceId, Encoding, Extent, ExtentData, Nid, Padding, StoredLen};

use super::{
    excludes::Excludes,
    image::{ImageScanner, referred_device},
    implied_directory,
};
use crate::{
    error::{Error, Result},
    options::Options,
    progress::{Phase, Progress, report},
    tree::{
        Body, NodeId, Tree,
        content::{
            Content,
            referral::{Referral, ReferredData, UNIFIED_BLOCK},
        },
        run::Run,
        source_image::SourceImage,
    },
    workers,
};

/// The read size in bytes.
const READ_LEN: usize = 1 << 20;
/// The number of bytes up to which files are grouped into jobs, and the maximum number of files of a job.
const JOB_BYTES: u64 = 4 << 20;
const JOB_FILES: usize = 1024;
/// The number of bytes of a file that one step maps.
const MAP_LEN: u64 = 64 << 20;

/// The digest of a file, and its index in a list.
type FileDigest = ([u8; 32], usize);

/// Lets the files of the tree that `base` has, too, refer to the data there. It becomes an extra device of the new image.
pub(super) fn refer_to_base(
    tree: &mut Tree,
    base: &SourceImage,
    options: &Options,
    progress: &mut dyn Progress,
) -> Result<()> {
    let block_size = options.block_size();
    let device = referred_device(base, block_size)?;
    if device.len / block_size >= UNIFIED_BLOCK {
        return Err(Error::unfit(base.path(), "it is too large for a base"));
    }
    let referrer = tree.add_device(device);
    let known = files_of(base, options, progress)?;
    let mut sizes: HashMap<u64, bool> = known.iter().map(|content| (content.size(), false)).collect();
    let mut wanted: Vec<(NodeId, &Content)> = Vec::new();
    for node in tree.all() {
        let Body::File(content) = &tree.node(node).body else { continue };
        if let Some(is_wanted) = sizes.get_mut(&content.size()) {
            *is_wanted = true;
            wanted.push((node, content));
        }
    }
    let known: Vec<&Content> = known.iter().filter(|content| sizes.get(&content.size()) == Some(&true)).collect();
    let contents: Vec<&Content> = known.iter().copied().chain(wanted.iter().map(|(_, content)| *content)).collect();
    let mut by_digest: HashMap<[u8; 32], usize> = HashMap::new();
    let mut found: Vec<(NodeId, usize)> = Vec::new();
    for (digest, index) in digests(&contents, options, progress)? {
        match index.checked_sub(known.len()) {
            None => _ = by_digest.entry(digest).or_insert(index),
            Some(number) => {
                // The digests are in the order of the files, and the base's come first.
                found.extend(by_digest.get(&digest).map(|index| (wanted[number].0, *index)));
            }
        }
    }
    let mut configurations = Configurations::default();
    let mut referred: Vec<(NodeId, Content)> = Vec::new();
    for (node, index) in found {
        let (Content::Stored { nid, size, .. }, Body::File(content)) = (known[index], &tree.node(node).body) else {
            continue;
        };
        let extents = extents_of(base, *nid, *size)?;
        if let Some(data) = data_of(&extents, *size, content, block_size, &mut configurations) {
            let (device, path) = (referrer.number, Arc::clone(&referrer.path));
            referred.push((node, Content::Referred(Box::new(Referral { device, path, size: *size, data }))));
        }
    }
    for (node, content) in referred {
        tree.node_mut(node).body = Body::File(content);
    }
    if let Some(device) = tree.device_mut(&referrer) {
        device.configurations = configurations.known;
        device.has_partial_pclusters = configurations.has_partial;
    }
    Ok(())
}

/// The files of the base that are not empty.
fn files_of(base: &SourceImage, options: &Options, progress: &mut dyn Progress) -> Result<Vec<Content>> {
    let mut plain = Options::new(&options.output);
    plain.xattrs.keep = false;
    let mut tree = Tree::new(implied_directory(&plain, Default::default()));
    ImageScanner::new(base, &mut tree, &plain, &Excludes::new(&plain)?).scan(progress)?;
    tree.check_complete()?;
    let content = |node| match &tree.node(node).body {
        Body::File(content) if content.size() > 0 => Some(content.clone()),
        _ => None,
    };
    Ok(tree.all().filter_map(content).collect())
}

/// The digest of each file, in their order.
fn digests(contents: &[&Content], options: &Options, progress: &mut dyn Progress) -> Result<Vec<FileDigest>> {
    let total = contents.iter().map(|content| content.size()).sum();
    let mut rest = contents.iter().copied().enumerate().peekable();
    let next = || {
        let (mut job, mut bytes) = (Vec::new(), 0);
        while job.len() < JOB_FILES
            && bytes < JOB_BYTES
            && let Some((index, content)) = rest.next()
        {
            bytes += content.size();
            job.push((index, content));
        }
        (!job.is_empty()).then_some((job, READ_LEN))
    };
    let worker = || {
        let mut buffer = vec![0; READ_LEN];
        Ok(move |job: Vec<(usize, &Content)>| -> Result<Vec<FileDigest>> {
            job.into_iter().map(|(index, content)| Ok((content.digest(&mut buffer)?, index))).collect()
        })
    };
    let (mut found, mut done) = (Vec::with_capacity(contents.len()), 0);
    workers::run(options.jobs, options.memory_len(), worker, next, |digests: Vec<FileDigest>| {
        done += digests.iter().map(|(_, index)| contents[*index].size()).sum::<u64>();
        found.extend(digests);
        report(progress, Phase::Compare, done, total)
    })?;
    Ok(found)
}

/// Where the base has a file.
fn extents_of(base: &SourceImage, nid: Nid, size: u64) -> Result<Vec<Extent>> {
    let (mut extents, mut at): (Vec<Extent>, u64) = (Vec::new(), 0);
    while at < size {
        let mut more = Vec::new();
        let mapped = base.file_system().map(nid, ByteRange::new(at, MAP_LEN.min(size - at)), &mut more);
        mapped.map_err(base.failed(Path::new("")))?;
        // The first one may be the last one before.
        more.retain(|extent| extent.range.end() > at);
        at = more.last().map_or(size, |last| last.range.end());
        extents.extend(more);
    }
    Ok(extents)
}

/// The data of a file with these extents; `None` if the format has no way to refer to it.
fn data_of(
    extents: &[Extent],
    size: u64,
    content: &Content,
    block_size: u64,
    configurations: &mut Configurations,
) -> Option<ReferredData> {
    if extents.iter().any(|extent| matches!(extent.data, ExtentData::Encoded { .. })) {
        return pclusters(extents, block_size, configurations);
    }
    let mut runs: Vec<Run> = Vec::new();
    let mut tail = None;
    for extent in extents {
        let (offset, len) = (extent.range.offset(), extent.range.len());
        let position = match extent.data {
            ExtentData::Hole => continue,
            ExtentData::Plain { device: DeviceId(0), offset } => offset,
            _ => return None,
        };
        let is_last = extent.range.end() == size;
        if !offset.is_multiple_of(block_size) || !(is_last || len.is_multiple_of(block_size)) {
            return None;
        }
        match runs.last_mut() {
            _ if !position.is_multiple_of(block_size) && is_last && len < block_size => {
                tail = Some((offset, content.clone()));
            }
            _ if !position.is_multiple_of(block_size) => return None,
            Some(last) if last.offset + last.len == offset && last.position + last.len == position => last.len += len,
            _ => runs.push(Run { offset, len, position }),
        }
    }
    (!runs.is_empty()).then(|| ReferredData::Runs { runs: runs.into(), tail })
}

/// The pclusters of a file with these extents.
fn pclusters(extents: &[Extent], block_size: u64, configurations: &mut Configurations) -> Option<ReferredData> {
    let (mut used, mut has_partial): (Option<AlgorithmConfiguration>, bool) = (None, false);
    let mut found = Vec::with_capacity(extents.len());
    for extent in extents {
        let (range, last) = (extent.range, extents.last()?.range.end());
        match extent.data {
            ExtentData::Encoded { block, skip: 0 } if block.device == DeviceId(0) => {
                let configuration = configuration(&block.encoding)?;
                if used.is_some_and(|used| used.algorithm != configuration.algorithm) {
                    return None;
                }
                let StoredLen::Known(stored_len) = block.stored_len else { return None };
                if !block.offset.is_multiple_of(block_size) || !u64::from(stored_len).is_multiple_of(block_size) {
                    return None;
                }
                let blocks = u16::try_from(u64::from(stored_len) / block_size).ok()?;
                let configuration = AlgorithmConfiguration { pcluster_blocks_max: blocks, ..configuration };
                used = Some(used.map_or(configuration, |used| used.covering(configuration)));
                let len = u32::try_from(range.len()).ok()?;
                let is_partial = matches!(block.decoded_len, DecodedLen::AtLeast(_)) || block.decoded_len.bytes() > len;
                has_partial |= is_partial;
                let kind = ExtentKind::Encoded { partial: is_partial };
                found.push(CompressedExtent { len, stored_len, block: block.offset / block_size, kind });
            }
            ExtentData::Plain { device: DeviceId(0), offset } if offset.is_multiple_of(block_size) => {
                let mut at = 0;
                while at < range.len() {
                    let len = u32::try_from(block_size.min(range.len() - at)).ok()?;
                    let (stored_len, block) = (u32::try_from(block_size).ok()?, (offset + at) / block_size);
                    found.push(CompressedExtent { len, stored_len, block, kind: ExtentKind::Plain });
                    at += u64::from(len);
                }
            }
            _ => return None,
        }
        // An index has room for one beginning in each lcluster, and for the length of a long pcluster in the next one.
        let lclusters = range.end() / block_size - range.offset() / block_size;
        let long = found.last().is_some_and(|extent| u64::from(extent.stored_len) > block_size);
        if range.end() < last && lclusters < 1 + u64::from(long) {
            return None;
        }
    }
    let used = used?;
    configurations.add(used);
    configurations.has_partial |= has_partial;
    Some(ReferredData::Pclusters { algorithm: used.algorithm, extents: found.into() })
}

/// What a superblock states about the algorithm of a pcluster with this encoding, if the new image can have it.
fn configuration(encoding: &Encoding) -> Option<AlgorithmConfiguration> {
    if encoding.padding() != Padding::Leading {
        return None;
    }
    Some(match encoding {
        Encoding::Lz4 { window_bytes, .. } => AlgorithmConfiguration::new(format::COMPRESSION_LZ4, *window_bytes),
        Encoding::MicroLzma { dictionary_bytes, .. } => {
            AlgorithmConfiguration::new(format::COMPRESSION_LZMA, *dictionary_bytes)
        }
        Encoding::Deflate { window_log2, .. } => {
            AlgorithmConfiguration::new(format::COMPRESSION_DEFLATE, 1 << window_log2)
        }
        Encoding::Zstd { window_log2_max, .. } => {
            AlgorithmConfiguration::new(format::COMPRESSION_ZSTD, 1u32.checked_shl(u32::from(*window_log2_max))?)
        }
        _ => return None,
    })
}

/// The configurations of all pclusters, one for each algorithm.
#[derive(Default)]
struct Configurations {
    known: Vec<AlgorithmConfiguration>,
    /// Whether files refer only to the beginning of a pcluster.
    has_partial: bool,
}

impl Configurations {
    fn add(&mut self, configuration: AlgorithmConfiguration) {
        match self.known.iter_mut().find(|known| known.algorithm == configuration.algorithm) {
            Some(known) => *known = known.covering(configuration),
            None => self.known.push(configuration),
        }
    }
}
