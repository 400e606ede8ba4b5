//! Every reference image reads as its manifest records.

use floe_squashfs::Squashfs;
use floe_testkit::{
    check_rows,
    corpus::{Corpus, Format, ImageRecord},
    manifest::{Comparison, differences},
    walk,
};

use crate::memo_reader::MemoReader;

fn images(corpus: &Corpus) -> Vec<ImageRecord> {
    corpus.sample().into_iter().filter(|image| image.format == Format::Squashfs).collect()
}

#[test]
fn every_image_matches_its_manifest() {
    let corpus = Corpus::locate_or_fixtures();
    check_rows(
        &images(&corpus),
        |image| image.name.clone(),
        |image| {
            let reader = MemoReader::of_image(&corpus, image);
            let squashfs = match Squashfs::open(reader.clone()) {
                Ok(squashfs) => squashfs,
                Err(error) => return vec![error.to_string()],
            };
            let read = |nid, range| reader.read_file(&squashfs, nid, range);
            // If the kernel cannot mount the image, the manifest describes directories that unsquashfs extracted.
            let comparison = Comparison { directory_shape_is_free: !image.kernel_is_truth(), ..Comparison::default() };
            match walk::image(&squashfs, &read) {
                Ok(found) => differences(&corpus.manifest(image), &found, &comparison),
                Err(error) => vec![error.to_string()],
            }
        },
    );
}
