//! Building an image from beginning to end.

use std::time::Instant;

use floe_codec::release_freed_memory;
use floe_erofs::{
    format,
    write::{AlgorithmConfiguration, Device, InodeRules, SuperBlockRecord, superblock_bytes, superblock_len},
};
use floe_image::Timestamp;
use sha2::{Digest, Sha256};

use crate::{
    archive::Archive,
    content::Content,
    data::{Contents, DataStore},
    duplicates::duplicates,
    error::{Error, Result},
    excludes::Excludes,
    expected::{Expected, Verifier, VerifyError},
    hints::coding_numbers,
    image_file::ImageFile,
    kinds::kinds,
    launch::Launch,
    layout::Metabox,
    metadata::{MetadataArea, MetadataPlan},
    options::{Options, Source, Times},
    progress::{Phase, Progress, report},
    scan::Scanner,
    stored_file::StoredFile,
    summary::Summary,
    tree::{Body, Metadata, Tree, Visit},
    xattrs::XattrTable,
};

/// Builds an image of `sources`: where several have the same path, the last one counts, and directories are merged.
///
/// # Errors
/// Something cannot be read, changed meanwhile, has no place in the format, or cannot be written; the options contradict
/// each other; `progress` asked to stop. Then there is no image under its name, or the one that was there before.
pub fn build(options: &Options, sources: &[Source], progress: &mut dyn Progress) -> Result<Summary> {
    build_with(options, sources, None, progress)
}

/// As [`build`], but `verifier` reads the image back before it gets its name.
///
/// # Errors
/// As [`build`]; or the image is not as it should be.
pub fn build_verified(
    options: &Options,
    sources: &[Source],
    verifier: &mut dyn Verifier,
    progress: &mut dyn Progress,
) -> Result<Summary> {
    build_with(options, sources, Some(verifier), progress)
}

fn build_with(
    options: &Options,
    sources: &[Source],
    verifier: Option<&mut dyn Verifier>,
    progress: &mut dyn Progress,
) -> Result<Summary> {
    let begin = Instant::now();
    options.check()?;
    let (tree, output_left_out) = scan(options, sources, progress)?;
    let visits = tree.in_order();
    let scan_time = begin.elapsed();
    let xattrs = XattrTable::new(&tree, &visits, &options.xattrs)?;
    let contents: Vec<Option<&Content>> = visits.iter().map(|visit| content(&tree, visit)).collect();
    let same =
        if options.shares_files() { duplicates(&contents, options, progress)? } else { vec![None; contents.len()] };

    let mut image = ImageFile::create(&options.output, options.layout.offset)?;
    let (epoch, build_time) = times(&tree, &visits, options)?;
    let mut record = superblock(options, epoch, build_time);
    // Where the inode is, is not known before.
    let has_metabox = options.layout.metabox != Metabox::None;
    record.metabox_nid = has_metabox.then_some(0);
    // The head is written last; its length does not depend on what is in it.
    record.devices.extend(options.blob_device.iter().map(|_| Device { tag: Vec::new(), blocks: 0, unified_block: 0 }));
    record.long_prefixes = xattrs.long_prefixes().to_vec();
    image.append(&vec![0; usize::try_from(superblock_len(&record)).unwrap_or(0)])?;
    image.pad(options.block_size())?;
    let data_start = image.len();
    let launch = options.profile.as_ref().map(|profile| Launch::new(profile, &tree, &visits));
    let ranks = launch.as_ref().map(|launch| launch.ranks(&same));
    let mut kinds = kinds(&tree, &visits);
    if let Some(ranks) = &ranks {
        // What a launch reads stays in its order.
        let ranked = kinds.iter_mut().zip(ranks).filter(|(_, rank)| **rank != usize::MAX);
        ranked.for_each(|(kind, _)| *kind = 0);
    }
    let codings = coding_numbers(&tree, &visits, options)?;
    let to_store = Contents { files: &contents, same: &same, ranks: ranks.as_deref(), codings: &codings };
    let mut data = DataStore::new(&mut image, options, &kinds)?;
    let mut files = data.store_files(&to_store, progress)?;
    put_links(&tree, &visits, &mut files, options, data.image())?;
    let rules = InodeRules { epoch, wide: options.wide, form: options.inode_form };
    let plan =
        MetadataPlan { tree: &tree, visits: &visits, files: &files, directories: &[], xattrs: &xattrs, options, rules };
    let mut directories = Vec::new();
    if options.layout.packs_directories {
        for content in plan.directory_contents(has_metabox)? {
            directories.push(if content.is_empty() { 0 } else { data.pack(&content)? });
        }
    }
    let packed = data.store_packed(&mut files, progress)?;
    let plan = MetadataPlan {
        tree: &tree,
        visits: &visits,
        files: &files,
        directories: &directories,
        xattrs: &xattrs,
        options,
        rules,
    };
    let boxed = match options.layout.metabox {
        Metabox::None => None,
        Metabox::Inode(coding) => {
            let boxed = plan.write_boxed(data.image())?;
            let metabox = data.store_metabox(&boxed.bytes, coding, progress)?;
            Some((boxed, metabox))
        }
    };
    let mut stored = data.finish();
    let data_time = begin.elapsed() - scan_time;

    let metadata_start = image.len();
    record.xattr_block = block_number(&image, options)?;
    image.append(xattrs.shared_bytes())?;
    image.pad(options.block_size())?;
    record.metadata_block = block_number(&image, options)?;
    let area = match boxed {
        None => plan.write(packed.as_ref(), &mut image)?,
        Some((boxed, metabox)) => plan.write_unboxed(boxed, packed.as_ref(), &metabox, &mut image)?,
    };
    let metadata_len = image.len() - metadata_start;
    report(progress, Phase::Metadata, metadata_len, metadata_len)?;

    record.feature_compat |= compat_features(&xattrs, &tree, &visits, &area);
    record.feature_incompat |= incompat_features(options, &area);
    if !record.long_prefixes.is_empty() {
        record.feature_incompat |= format::FEATURE_INCOMPAT_XATTR_PREFIXES;
    }
    record.root_nid = area.root_nid;
    record.packed_nid = area.packed_nid;
    record.metabox_nid = area.metabox_nid;
    record.inode_count = area.inode_count;
    image.pad(options.block_size() * u64::from(options.layout.blocks_multiple))?;
    record.blocks = image.len() / options.block_size();
    if let (Some(blob), Some(path)) = (&stored.blob, &options.blob_device) {
        let tag = path.file_name().map(|name| name.as_encoded_bytes().to_vec()).unwrap_or_default();
        record.devices = vec![Device { tag, blocks: blob.len() / options.block_size(), unified_block: 0 }];
    }
    record.uuid = options.uuid.unwrap_or_else(|| content_uuid(&record, &stored.digest, &area.digest));
    // Behind the last block, where no other reader looks.
    image.append(&launch.as_ref().map(|launch| launch.list(&area.nids)).unwrap_or_default())?;
    image.pad(options.block_size())?;
    image.put_head(&superblock_bytes(&record))?;

    let verify_begin = Instant::now();
    let verified = match verifier {
        Some(verifier) => {
            if options.has_large_pclusters() {
                release_freed_memory();
            }
            let mut places = vec![0; tree.len()];
            for (place, visit) in visits.iter().enumerate() {
                places[visit.node.index()] = place;
            }
            let pieces = &stored.pieces;
            let expected = Expected { tree: &tree, visits: &visits, xattrs: &xattrs, options, pieces, places };
            let blob = stored.blob.as_mut().map(ImageFile::readable_path).transpose()?;
            let result = verifier.verify(&image.readable_path()?, blob.as_deref(), &expected, progress);
            Some(result.map_err(|error| match error {
                VerifyError::Fault(fault) => Error::Verify(fault),
                VerifyError::Cancelled => Error::Cancelled,
            })?)
        }
        None => None,
    };
    let verify_time = verify_begin.elapsed();

    let sizes = contents.iter().flatten().map(|content| content.size());
    let duplicates = same.iter().zip(&contents).filter(|(same, _)| same.is_some());
    let summary = Summary {
        inodes: area.inode_count,
        files: contents.iter().flatten().count() as u64,
        directories: visits.iter().filter(|visit| matches!(tree.node(visit.node).body, Body::Directory(_))).count()
            as u64,
        content_bytes: sizes.sum(),
        duplicate_bytes: stored.duplicate_bytes
            + duplicates.filter_map(|(_, content)| *content).map(Content::size).sum::<u64>(),
        packed_bytes: packed.as_ref().map_or(0, |(_, size)| *size),
        data_bytes: metadata_start - data_start,
        metadata_bytes: image.len() - metadata_start,
        image_bytes: image.len(),
        blob_bytes: stored.blob.as_ref().map_or(0, ImageFile::len),
        uuid: record.uuid,
        xattrs_left_out: xattrs.left_out(),
        output_left_out,
        scan_time,
        data_time,
        profile_missing: launch.as_ref().map_or(0, Launch::missing),
        verified,
        verify_time,
        total_time: begin.elapsed(),
    };
    if let Some(blob) = stored.blob.take() {
        blob.finish()?;
    }
    image.finish()?;
    Ok(summary)
}

/// The tree of all sources, and whether the image, as it was before, was found among them.
fn scan(options: &Options, sources: &[Source], progress: &mut dyn Progress) -> Result<(Tree, bool)> {
    if sources.is_empty() {
        return Err(Error::Option("there is no source: name a directory or a tar archive".into()));
    }
    let root = Metadata { permissions: 0o755, uid: 0, gid: 0, modified: Timestamp::default() };
    let mut tree = Tree::new(root);
    let mut excludes = Excludes::new(options)?;
    for source in sources {
        match source {
            Source::Directory(path) => {
                excludes.begin_directory(path, options);
                Scanner::new(&mut tree, options, &excludes).scan(path, progress)?;
                excludes.end_directory();
            }
            Source::Tar(path) => {
                Archive::open(path, options, progress)?.import(&mut tree, options, &excludes, progress)?
            }
            Source::TarFromInput => {
                Archive::from_input(options, progress)?.import(&mut tree, options, &excludes, progress)?
            }
        }
    }
    if let Some(path) = excludes.missing().filter(|_| options.excludes_must_match) {
        return Err(Error::Option(format!(
            "there is no {} to be left out: exclude a path of the source",
            path.display()
        )));
    }
    if options.splits_links {
        tree.split_links();
    }
    options.overlay_marks.put(&mut tree);
    Ok((tree, excludes.has_left_out_output()))
}

fn content<'a>(tree: &'a Tree, visit: &Visit) -> Option<&'a Content> {
    match &tree.node(visit.node).body {
        Body::File(content) => Some(content),
        _ => None,
    }
}

/// What compact inodes count their times from, and when the image was made, in seconds after that.
fn times(tree: &Tree, visits: &[Visit], options: &Options) -> Result<(Timestamp, u32)> {
    let own = || visits.iter().map(|visit| tree.node(visit.node).metadata.modified);
    let built = match options.times {
        Times::Own => own().max().unwrap_or_default(),
        Times::OwnBuiltAt(seconds) | Times::All(seconds) | Times::AtMost(seconds) => {
            Timestamp { seconds, nanoseconds: 0 }
        }
    };
    if !options.wide {
        return Ok((built, 0));
    }
    let first = own().map(|own| options.times.apply(own).seconds).min().unwrap_or(built.seconds);
    let seconds = first.clamp(built.seconds.saturating_sub(i64::from(u32::MAX)), built.seconds);
    let build_time = u32::try_from(built.seconds - seconds).unwrap_or(u32::MAX);
    Ok((Timestamp { seconds, nanoseconds: 0 }, build_time))
}

fn superblock(options: &Options, epoch: Timestamp, build_time: u32) -> SuperBlockRecord {
    let mut volume_name = [0; 16];
    volume_name[..options.volume_name.len()].copy_from_slice(&options.volume_name);
    let mut feature_incompat = 0;
    let configurations = options.configurations();
    if !configurations.is_empty() {
        feature_incompat |= format::FEATURE_INCOMPAT_ZERO_PADDING;
    }
    let is_other = |configuration: &AlgorithmConfiguration| configuration.algorithm() != format::COMPRESSION_LZ4;
    if options.is_big() || configurations.iter().any(is_other) {
        feature_incompat |= format::FEATURE_INCOMPAT_COMPR_CFGS;
    }
    if options.wide {
        feature_incompat |= format::FEATURE_INCOMPAT_48BIT;
    }
    SuperBlockRecord {
        feature_compat: format::FEATURE_COMPAT_MTIME,
        feature_incompat,
        block_size_log2: options.block_size_log2,
        root_nid: 0,
        inode_count: 0,
        epoch,
        build_time,
        blocks: 0,
        metadata_block: 0,
        xattr_block: 0,
        uuid: [0; 16],
        volume_name,
        configurations,
        devices: Vec::new(),
        long_prefixes: Vec::new(),
        packed_nid: 0,
        metabox_nid: None,
        checksum: options.layout.checksum,
    }
}

fn compat_features(xattrs: &XattrTable, tree: &Tree, visits: &[Visit], area: &MetadataArea) -> u32 {
    let mut features = 0;
    if xattrs.has_filter(tree, visits) {
        features |= format::FEATURE_COMPAT_XATTR_FILTER;
    }
    if !xattrs.long_prefixes().is_empty() && (area.packed_nid != 0 || area.metabox_nid.is_some()) {
        features |= format::FEATURE_COMPAT_PLAIN_XATTR_PFX;
    }
    features
}

fn incompat_features(options: &Options, area: &MetadataArea) -> u32 {
    let mut features = 0;
    if options.chunk_bytes.is_some() {
        features |= format::FEATURE_INCOMPAT_CHUNKED_FILE;
    }
    if options.blob_device.is_some() {
        features |= format::FEATURE_INCOMPAT_DEVICE_TABLE;
    }
    if area.has_inline_pclusters {
        features |= format::FEATURE_INCOMPAT_ZTAILPACKING;
    }
    if area.packed_nid != 0 {
        features |= format::FEATURE_INCOMPAT_FRAGMENTS;
    }
    if area.metabox_nid.is_some() {
        features |= format::FEATURE_INCOMPAT_METABOX;
    }
    if options.dedupe && !options.codings().is_empty() {
        features |= format::FEATURE_INCOMPAT_DEDUPE;
    }
    features
}

/// Stores the targets of symbolic links that are too long to be inline.
fn put_links(
    tree: &Tree,
    visits: &[Visit],
    files: &mut [StoredFile],
    options: &Options,
    image: &mut ImageFile,
) -> Result<()> {
    for (visit, file) in visits.iter().zip(files) {
        let Body::Symlink(target) = &tree.node(visit.node).body else { continue };
        let tail_len = target.len() % options.block_len();
        let inline = tail_len <= crate::segment::inline_len_max(options.block_len());
        let (blocks, tail) = target.split_at(if inline { target.len() - tail_len } else { target.len() });
        let start_block = (!blocks.is_empty()).then_some(image.len() / options.block_size());
        image.append(blocks)?;
        image.pad(options.block_size())?;
        *file = StoredFile::Flat { start_block, inline: tail.to_vec() };
    }
    Ok(())
}

fn block_number(image: &ImageFile, options: &Options) -> Result<u32> {
    let too_large = "the image has more than 4294967295 blocks: choose larger blocks or the 48-bit layout";
    u32::try_from(image.len() / options.block_size()).map_err(|_| Error::Layout(too_large.into()))
}

/// A UUID that depends on all there is in the image (version 8: of one's own making).
fn content_uuid(record: &SuperBlockRecord, data: &[u8; 32], metadata: &[u8; 32]) -> [u8; 16] {
    let mut hasher = Sha256::new();
    hasher.update(superblock_bytes(record));
    hasher.update(data);
    hasher.update(metadata);
    let digest: [u8; 32] = hasher.finalize().into();
    let mut uuid = [0; 16];
    uuid.copy_from_slice(&digest[..16]);
    uuid[6] = uuid[6] & 0x0f | 0x80;
    uuid[8] = uuid[8] & 0x3f | 0x80;
    uuid
}
