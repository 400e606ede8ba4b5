//! Builds an image.

use std::{fs, os::unix::fs::MetadataExt, path::Path, time::Instant};

use floe_codec::release_freed_memory;
use floe_erofs::{
    format,
    write::{Device, SuperBlockRecord, superblock_bytes},
};
use floe_image::{DIRECTORY_TOO_DEEP, ShownName, Timestamp};
use sha2::{Digest, Sha256};

use crate::{
    archive::Archive,
    changed::ChangedFiles,
    complete_image::CompleteImage,
    content::Content,
    error::{Error, Result, shown},
    excludes::Excludes,
    expected::{Expected, Verifier, VerifyError},
    image_file::ImageFile,
    launch::Launch,
    metadata::{MetadataArea, MetadataPlan},
    options::{Options, Source},
    progress::{Phase, Progress, report},
    scan::Scanner,
    stored_contents::StoredContents,
    stored_file::StoredFile,
    summary::Summary,
    tree::{Body, Metadata, Tree, Visit},
    xattrs::XattrTable,
};

/// Builds an image of `sources`. If several sources have the same path, the last one wins; directories are merged.
///
/// # Errors
/// A source cannot be read, changes meanwhile, or cannot be represented in the format; the image cannot be written; the
/// options contradict each other; or `progress` asked to stop. The output path then has no image, or keeps the previous
/// one.
pub fn build(options: &Options, sources: &[Source], progress: &mut dyn Progress) -> Result<Summary> {
    build_unnamed(options, sources, None, progress)?.finish(&[])
}

/// As [`build`], but `verifier` reads the image back before it gets its name.
///
/// # Errors
/// As for [`build`]; or the verifier finds a fault.
pub fn build_verified(
    options: &Options,
    sources: &[Source],
    verifier: &mut dyn Verifier,
    progress: &mut dyn Progress,
) -> Result<Summary> {
    build_unnamed(options, sources, Some(verifier), progress)?.finish(&[])
}

/// As [`build_verified`], with a verifier or without, but the image does not get its name before
/// [`CompleteImage::finish`].
///
/// # Errors
/// As for [`build_verified`].
pub fn build_unnamed(
    options: &Options,
    sources: &[Source],
    verifier: Option<&mut dyn Verifier>,
    progress: &mut dyn Progress,
) -> Result<CompleteImage> {
    let begin = Instant::now();
    options.check()?;
    let (mut tree, mut warnings) = scan(options, sources, progress)?;
    let scan_time = begin.elapsed();
    let mut changed = ChangedFiles::new(&options.output);
    let (visits, contents) = loop {
        let visits = tree.in_order();
        match StoredContents::new(&tree, &visits, options, progress) {
            Err(Error::Changed { path }) if !options.strict => changed.replace(&mut tree, &visits, &path, progress)?,
            contents => break (visits, contents?),
        }
    };
    warnings.extend(changed.into_warnings());
    let data_time = begin.elapsed() - scan_time;
    let StoredContents { xattrs, same, mut image, mut record, rules, launch, data_start, .. } = contents;
    let StoredContents { files, directories, packed, boxed, mut stored, .. } = contents;
    let plan = MetadataPlan {
        tree: &tree,
        visits: &visits,
        files: &files,
        directories: &directories,
        xattrs: &xattrs,
        options,
        rules,
    };

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
    record.feature_incompat |= incompat_features(options, &files, &area);
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
    // The list follows the last block. Other readers ignore these bytes.
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
            let expected =
                Expected { tree: &tree, visits: &visits, xattrs: &xattrs, options, pieces, same: &same, places };
            let blob = stored.blob.as_mut().map(ImageFile::readable_path).transpose()?;
            let result = verifier.verify(&image.readable_path()?, blob.as_deref(), &expected, progress);
            Some(result.map_err(|error| match error {
                VerifyError::Fault(fault) => Error::Verify(fault),
                VerifyError::Unread(reason) => Error::Unverified(reason),
                VerifyError::Cancelled => Error::Cancelled,
            })?)
        }
        None => None,
    };
    let verify_time = verify_begin.elapsed();

    let contents: Vec<Option<&Content>> = visits.iter().map(|visit| tree.content(visit)).collect();
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
        warnings,
        scan_time,
        data_time,
        profile_missing: launch.as_ref().map_or(0, Launch::missing),
        verified,
        verify_time,
        total_time: begin.elapsed(),
    };
    let blob = stored.blob.take().map(ImageFile::into_file).transpose()?;
    Ok(CompleteImage::new(image.into_file()?, blob, summary, &options.temporaries))
}

/// Scans all sources. Returns the tree and a warning for each omitted item.
fn scan(options: &Options, sources: &[Source], progress: &mut dyn Progress) -> Result<(Tree, Vec<String>)> {
    if sources.is_empty() {
        return Err(Error::Option("there is no source: name a directory or a tar archive".into()));
    }
    let root = Metadata { permissions: 0o755, uid: 0, gid: 0, modified: Timestamp::default() };
    let mut tree = Tree::new(root);
    let mut warnings = Vec::new();
    let mut excludes = Excludes::new(options)?;
    for output in [Some(&options.output), options.blob_device.as_ref()].into_iter().flatten() {
        if sources.iter().any(|source| matches!(source, Source::Tar(path) if is_same_file(path, output))) {
            return Err(Error::Option(format!("the output {} is also a source", output.shown())));
        }
    }
    for source in sources {
        match source {
            Source::Directory(path) => {
                excludes.begin_directory(path, options);
                warnings.extend(Scanner::new(&mut tree, options, &excludes).scan(path, progress)?);
                warnings.extend(excludes.end_directory());
            }
            Source::Tar(path) => {
                let archive = Archive::open(path, options, progress)?;
                warnings.extend(archive.import(&mut tree, options, &excludes, progress)?);
            }
            Source::TarFromInput => {
                let archive = Archive::from_input(options, progress)?;
                warnings.extend(archive.import(&mut tree, options, &excludes, progress)?);
            }
        }
    }
    if let Some(path) = excludes.missing().filter(|_| options.excludes_must_match) {
        return Err(Error::Option(format!("--exclude: the source has no {}", path.shown())));
    }
    if options.splits_links {
        tree.split_links();
    }
    options.overlay_marks.put(&mut tree);
    let visits = tree.in_order();
    if let Some(node) = tree.too_deep(&visits) {
        let path = shown(&tree.path(&visits, node));
        return Err(Error::Layout(format!("{path}: {DIRECTORY_TOO_DEEP}")));
    }
    let overflows = |visit: &&Visit| {
        let Metadata { uid, gid, .. } = tree.node(visit.node).metadata;
        options.ownership.overflows(uid, gid)
    };
    match visits.iter().filter(overflows).count() {
        0 => {}
        count => warnings.push(format!("the owners of {count} inodes exceed 4294967294 and wrapped around")),
    }
    Ok((tree, warnings))
}

fn is_same_file(left: &Path, right: &Path) -> bool {
    let [left, right] = [left, right].map(|path| fs::metadata(path).map(|status| (status.dev(), status.ino())));
    matches!((left, right), (Ok(left), Ok(right)) if left == right)
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

fn incompat_features(options: &Options, files: &[StoredFile], area: &MetadataArea) -> u32 {
    let mut features = 0;
    if options.chunk_bytes.is_some() || files.iter().any(|file| matches!(file, StoredFile::Chunked { .. })) {
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

fn block_number(image: &ImageFile, options: &Options) -> Result<u32> {
    let too_large = "the image has more than 4294967295 blocks: use larger blocks or the 48-bit layout";
    u32::try_from(image.len() / options.block_size()).map_err(|_| Error::Layout(too_large.into()))
}

/// A UUID (version 8, custom) derived from the content of the image.
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
