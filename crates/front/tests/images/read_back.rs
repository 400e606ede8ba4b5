//! Virtual images read back: by this project's reader and by the kernel.

use std::{collections::BTreeMap, process::Command, sync::Arc};

use floe_erofs::check::Check;
use floe_image::ByteRange;
use floe_testkit::{
    DirectReader, Versions, check_rows,
    corpus::{Corpus, ImageRecord},
    manifest::{Comparison, Manifest, differences},
    peer,
    skip::{self, Need},
    walk::{self, DirectoryWalk},
};

use crate::support::{Front, KernelFront, KernelLog, keeps_directory_blocks, kernel_complaints};

fn images(corpus: &Corpus) -> Vec<ImageRecord> {
    corpus.sample().into_iter().filter(|image| !image.huge).collect()
}

/// The comparison of both walks, without inode numbers, which belong to each file system.
fn without_numbers(mut manifest: Manifest) -> Manifest {
    for (_, entry) in manifest.entries_mut() {
        (entry.inode_number, entry.blocks_512) = (None, None);
    }
    manifest
}

fn without_segments(mut manifest: Manifest) -> Manifest {
    manifest.entries_mut().for_each(|(_, entry)| entry.segments = None);
    manifest
}

#[test]
fn a_virtual_image_has_the_content_of_the_original() {
    let corpus = Corpus::locate_or_fixtures();
    check_rows(
        &images(&corpus),
        |image| image.name.clone(),
        |image| {
            let compare = || -> floe_image::Result<Vec<String>> {
                let front = Front::of_record(&corpus, image)?;
                let read_original = |nid, range: ByteRange| {
                    let mut bytes = vec![0; range.len() as usize];
                    let len = front.original_reader.read(nid, range.offset(), &mut bytes)?;
                    bytes.truncate(len);
                    Ok(bytes)
                };
                let expected = without_numbers(walk::image(front.original.as_ref(), &read_original)?);
                let (reader, erofs) = front.read_back()?;
                let read = |nid, range| reader.read_file(&erofs, nid, range);
                let found = without_numbers(walk::image(&erofs, &read)?);
                let directory_shape_is_free = !keeps_directory_blocks(&front);
                let comparison = Comparison { directory_shape_is_free, ..Comparison::default() };
                // Holes smaller than a block of the virtual image become data.
                let holes_are_free = front.original.info().block_size < 4096;
                let of = |manifest| if holes_are_free { without_segments(manifest) } else { manifest };
                let (expected, found) = (of(expected), of(found));
                let mut told = differences(&expected, &found, &comparison);
                if directory_shape_is_free {
                    told.extend(link_count_differences(&expected, &found));
                }
                Ok(told)
            };
            compare().unwrap_or_else(|error| vec![error.to_string()])
        },
    );
}

/// The differences in the link counts of directories, if their sizes may differ.
fn link_count_differences(expected: &Manifest, found: &Manifest) -> Vec<String> {
    let counts = |manifest: &Manifest| -> BTreeMap<Vec<u8>, u64> {
        let directories = manifest.entries().filter(|(_, entry)| entry.file_type == 'd');
        directories.map(|(path, entry)| (path.to_vec(), entry.link_count)).collect()
    };
    if counts(expected) == counts(found) { Vec::new() } else { vec!["link counts of directories differ".to_owned()] }
}

#[test]
fn a_virtual_image_passes_floes_check() {
    let corpus = Corpus::locate_or_fixtures();
    check_rows(
        &images(&corpus),
        |image| image.name.clone(),
        |image| {
            let check = || -> floe_image::Result<Vec<String>> {
                let front = Front::of_record(&corpus, image)?;
                let check = Check::open(Arc::new(DirectReader::new(vec![front.source(), front.large_source()])))?;
                let mut findings = Vec::new();
                let walked = check.walk(&mut |finding| findings.push(finding), &|| false);
                for part in walked.parts() {
                    check.data(&walked, part, &mut |_| Ok(()), &mut |finding| findings.push(finding));
                }
                // The block count is the original's, for statfs.
                findings.retain(|finding| finding.rule != "data past the block count");
                Ok(findings.iter().map(|finding| format!("{finding:?}")).collect())
            };
            check().unwrap_or_else(|error| vec![error.to_string()])
        },
    );
}

#[test]
fn the_kernel_mount_matches_the_manifests() {
    if !skip::ready(&[Need::Root, Need::Fuse, Need::KernelErofs]) {
        return;
    }
    let corpus = Corpus::locate_or_fixtures();
    let log = KernelLog::from_now();
    check_rows(
        &images(&corpus),
        |image| image.name.clone(),
        |image| {
            let front = match Front::of_record(&corpus, image) {
                Ok(front) => front,
                Err(error) => return vec![error.to_string()],
            };
            let keeps_directories = image.kernel_is_truth() && keeps_directory_blocks(&front);
            let mounted = match KernelFront::new(front, "") {
                Ok(mounted) => mounted,
                Err(reason) => return vec![reason],
            };
            let comparison = Comparison { directory_shape_is_free: !keeps_directories, ..Comparison::default() };
            let manifest = corpus.manifest(image);
            let mut told = Vec::new();
            for round in ["first", "once more"] {
                let found = walk::directory(&mounted.path(), DirectoryWalk::default());
                let complaints = match found {
                    Ok(found) => differences(&manifest, &found, &comparison),
                    Err(error) => vec![error.to_string()],
                };
                told.extend(complaints.into_iter().map(|complaint| format!("{round}: {complaint}")));
                told.extend(mounted.forget("").err());
            }
            told
        },
    );
    assert_eq!(log.map(|log| kernel_complaints(&log)).unwrap_or_default(), Vec::<String>::new());
}

#[test]
fn fsck_finds_nothing_wrong() {
    if !skip::ready(&[Need::Root, Need::Fuse, Need::PeerOf("fsck.erofs", Versions::Since("1.9"))]) {
        return;
    }
    let corpus = Corpus::locate_or_fixtures();
    check_rows(
        &images(&corpus),
        |image| image.name.clone(),
        |image| {
            let mounted = match Front::of_record(&corpus, image).map(KernelFront::served) {
                Ok(Ok(mounted)) => mounted,
                Ok(Err(reason)) => return vec![reason],
                Err(error) => return vec![error.to_string()],
            };
            let fsck = peer("fsck.erofs").expect("it is there");
            let output = Command::new(fsck)
                .arg(format!("--device={}", mounted.large_file().display()))
                .arg(mounted.virtual_file())
                .output()
                .expect("it runs");
            if output.status.success() {
                return Vec::new();
            }
            vec![String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned()]
        },
    );
}
