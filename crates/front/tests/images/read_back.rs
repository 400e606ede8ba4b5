//! Floe's own reader of EROFS finds the contents of the original in a virtual image.

use std::{collections::BTreeMap, sync::Arc};

use floe_erofs::check::Check;
use floe_image::ByteRange;
use floe_testkit::{
    DirectReader, check_rows,
    corpus::{Corpus, ImageRecord},
    manifest::{Comparison, Manifest, differences},
    walk,
};

use crate::support::{Front, keeps_directory_blocks};

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
