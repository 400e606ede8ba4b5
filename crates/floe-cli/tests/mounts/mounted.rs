//! Each reference image, mounted, compared with its manifest and with the kernel's own mount.

use std::{
    ffi::OsStr,
    fs,
    os::unix::{ffi::OsStrExt, fs::DirEntryExt},
    path::Path,
};

use floe_testkit::{
    KernelMount, check_rows,
    corpus::{Corpus, Format, ImageRecord},
    manifest::{Comparison, Manifest, differences},
    skip::{self, Need},
    walk::{self, DirectoryWalk},
};

use crate::support::Served;

/// The comparable properties of two mounts.
const EVERYTHING: DirectoryWalk = DirectoryWalk { numbers: true, segments: true, metadata_only: false };

#[test]
fn mounts_match_manifests_and_the_kernel() {
    if !skip::ready(&[Need::Fuse]) {
        return;
    }
    let corpus = Corpus::locate_or_fixtures();
    let kernel_mounts = |format| match format {
        Format::Erofs => skip::ready(&[Need::KernelErofs]),
        Format::Squashfs => skip::ready(&[Need::KernelSquashfs]),
    };
    let (erofs, squashfs) = (kernel_mounts(Format::Erofs), kernel_mounts(Format::Squashfs));
    check_rows(
        &crate::support::images(&corpus),
        |image| image.name.clone(),
        |image| {
            let files = corpus.materialise(image);
            let served = match Served::new(&files, "fuse") {
                Ok(served) => served,
                Err(refusal) => return vec![refusal],
            };
            let shown = walk::directory(&served.path(), EVERYTHING).expect("walked");
            // If the kernel cannot mount the image, its manifest comes from a tool whose directories may differ.
            let directory_shape_is_free = !image.kernel_is_truth();
            let comparison = Comparison { directory_shape_is_free, ..Comparison::default() };
            let mut told = differences(&corpus.manifest(image), &shown, &comparison);
            let is_mounted_too = if image.format == Format::Erofs { erofs } else { squashfs };
            if is_mounted_too && image.kernel_is_truth() {
                match KernelMount::new(&files) {
                    Ok(mount) => told.extend(beside_kernel(image, &shown, &served.path(), &mount.path())),
                    Err(refusal) => told.push(refusal),
                }
            }
            told.extend(served.end());
            told
        },
    );
}

/// The differences between a mount and the kernel's.
fn beside_kernel(image: &ImageRecord, shown: &Manifest, served: &Path, mounted: &Path) -> Vec<String> {
    // The kernel takes long to read huge images. Their content is compared only with the manifest.
    let walk = DirectoryWalk { metadata_only: image.huge, ..EVERYTHING };
    let expected = walk::directory(mounted, walk).expect("the kernel's mount is walked");
    let mut shown = shown.clone();
    if image.huge {
        shown.entries_mut().for_each(|(_, entry)| entry.sha256 = None);
    }
    let comparison = Comparison { xattrs_are_free: image.xattrs_from.is_some(), ..Comparison::default() };
    let mut told = differences(&expected, &shown, &comparison);
    told.iter_mut().for_each(|line| *line = format!("beside the kernel: {line}"));
    let (of_kernel, of_floe) = (statistics(mounted), statistics(served));
    if of_floe != of_kernel {
        told.push(format!("statfs is {of_floe}, not {of_kernel}"));
    }
    for (path, entry) in shown.entries().filter(|(_, entry)| entry.file_type == 'd') {
        let below = |root: &Path| root.join(OsStr::from_bytes(path).to_string_lossy().trim_start_matches('/'));
        // Names that are not UTF-8 are compared by the walk, but not the order of their directories.
        if std::str::from_utf8(path).is_ok() && listing(&below(served)) != listing(&below(mounted)) {
            told.push(format!("{} (of {} bytes) is listed otherwise", String::from_utf8_lossy(path), entry.size));
        }
    }
    told
}

/// Names in the order of the directory, with the numbers that `readdir` gives.
fn listing(directory: &Path) -> Vec<(Vec<u8>, u64)> {
    let entries = fs::read_dir(directory).expect("listed").map(|entry| entry.expect("listed"));
    entries.map(|entry| (entry.file_name().as_bytes().to_vec(), entry.ino())).collect()
}

/// The result of `statfs`, except what FUSE and Linux decide: the type of the file system and the number of possible inodes
/// (the kernel's EROFS returns the largest number). Also the result of `stat` for missing names of 255 to 257 bytes.
fn statistics(root: &Path) -> String {
    let said = rustix::fs::statvfs(root).expect("statfs");
    let inodes_in_use = said.f_files.wrapping_sub(said.f_ffree);
    let missing = [255, 256, 257].map(|len| rustix::fs::stat(root.join("%".repeat(len))).err());
    format!(
        "{} blocks of {} ({}), {} free; {inodes_in_use} inodes; names of {} bytes, {missing:?}",
        said.f_blocks, said.f_frsize, said.f_bsize, said.f_bfree, said.f_namemax
    )
}
