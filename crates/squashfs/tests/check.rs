//! Checks of good images find nothing, and those of corrupted ones find what is wrong.

mod memo_reader;

use floe_codec::Decoder;
use floe_image::{Bytes, BlockReader, Decompressor, DeviceId, Error, Place, StoredLen};
use floe_squashfs::{
    Squashfs,
    check::{self, BlockToDecode, Finding},
};
use floe_testkit::{
    check_rows,
    corpus::{Corpus, Format, ImageRecord},
};
use memo_reader::MemoReader;

/// Runs a check and decodes what it hands out.
fn findings(reader: &MemoReader, squashfs: &Squashfs) -> Vec<Finding> {
    let (mut found, mut blocks) = (Vec::new(), Vec::new());
    let summary = check::run(squashfs, &mut |finding| found.push(finding), &mut |block| blocks.push(block));
    assert_eq!(summary.block_count, blocks.len() as u64);
    assert_eq!(summary.error_count + summary.warning_count, found.len() as u64);
    let mut decoder = Decoder::new();
    for block in &blocks {
        let decoded = decode(reader, &mut decoder, block);
        found.extend(block.judge(decoded.as_ref().map(|len| *len)));
    }
    found
}

fn decode(reader: &MemoReader, decoder: &mut Decoder, wanted: &BlockToDecode) -> Result<usize, Error> {
    let block = &wanted.block;
    let StoredLen::Known(stored_len) = block.stored_len else { panic!("data blocks know their length") };
    let stored: Bytes = reader.stored(DeviceId(0), block.offset, stored_len as usize)?;
    let mut output = vec![0; block.decoded_len.bytes() as usize];
    let decoded = decoder.decode(&block.encoding, block.decoded_len, &stored, 0, &mut output);
    decoded.map_err(|error| match error {
        floe_image::DecodeError::Corrupt(rule) => Error::corrupt(rule, Place::at(block.offset)),
        other => Error::unsupported(other.to_string()),
    })
}

#[test]
fn nothing_is_wrong_with_good_images() {
    let corpus = Corpus::locate_or_fixtures();
    let images = corpus.images().into_iter();
    let images: Vec<ImageRecord> = images.filter(|image| image.format == Format::Squashfs).collect();
    check_rows(
        &images,
        |image| image.name.clone(),
        |image| {
            let reader = MemoReader::of_image(&corpus, image);
            let squashfs = Squashfs::open(reader.clone()).expect("opened");
            findings(&reader, &squashfs).iter().map(Finding::to_string).collect()
        },
    );
}

#[test]
fn show() {
    let corpus = Corpus::locate().expect("there");
    for corrupt in corpus.corrupt_images() {
        if corrupt.format() != Format::Squashfs {
            continue;
        }
        let reader = MemoReader::of(corpus.corrupt_bytes(&corrupt));
        match Squashfs::open(reader.clone()) {
            Ok(squashfs) => {
                let found = findings(&reader, &squashfs);
                println!("{:32} {} {}", corrupt.name, found.len(), found.first().map(Finding::to_string).unwrap_or_default());
            }
            Err(error) => println!("{:32} open: {error}", corrupt.name),
        };
    }
}
