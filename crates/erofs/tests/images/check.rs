//! A check finds no fault in valid images, and a fault in each corrupt image that has one.

use std::{env, sync::Arc};

use floe_erofs::{
    check::{Check, DataRun},
    format,
};
use floe_image::{BlockReader, Finding, ImageSource, Result, Severity};
use floe_testkit::{
    DirectReader, MemorySource, check_rows,
    corpus::{Corpus, CorruptImage, Format, ImageRecord},
    skip::{self, Need},
};

/// How many bytes of a plain run one read covers.
const PLAIN_BYTES: u64 = 1 << 20;

fn reader_of(corpus: &Corpus, image: &ImageRecord) -> Arc<DirectReader> {
    let mut bytes = corpus.bytes(&image.image);
    bytes.drain(..usize::try_from(image.offset).expect("the offset is within the file"));
    let sources = std::iter::once(bytes).chain(image.devices.iter().map(|device| corpus.bytes(device)));
    Arc::new(DirectReader::new(
        sources.map(|bytes| -> Arc<dyn ImageSource> { Arc::new(MemorySource::new(bytes)) }).collect(),
    ))
}

fn read(reader: &DirectReader, run: DataRun) -> Result<()> {
    match run {
        DataRun::Encoded(block) => reader.decoded(&block).map(|_| ()),
        DataRun::Plain { device, offset, len } => (0..len.div_ceil(PLAIN_BYTES)).try_for_each(|part| {
            let (start, len) = (part * PLAIN_BYTES, PLAIN_BYTES.min(len - part * PLAIN_BYTES));
            reader.stored(device, offset + start, usize::try_from(len).expect("small")).map(|_| ())
        }),
    }
}

/// All findings of a check.
pub(crate) fn findings(reader: &Arc<DirectReader>) -> Vec<Finding> {
    let check = match Check::open(Arc::clone(reader) as Arc<dyn BlockReader>) {
        Ok(check) => check,
        Err(error) => {
            let (severity, rule) = (Severity::Error, error.to_string().into());
            return vec![Finding { severity, rule, place: floe_image::Place::UNKNOWN, path: None }];
        }
    };
    let mut findings = Vec::new();
    let walked = check.walk(&mut |finding| findings.push(finding), &|| false);
    for part in walked.parts() {
        check.data(&walked, part, &mut |run| read(reader, run), &mut |finding| findings.push(finding));
    }
    findings
}

#[test]
fn good_images_have_no_findings() {
    let corpus = Corpus::locate_or_fixtures();
    let images = corpus.sample().into_iter();
    let images: Vec<ImageRecord> = images.filter(|image| image.format == Format::Erofs).collect();
    check_rows(
        &images,
        |image| image.name.clone(),
        |image| findings(&reader_of(&corpus, image)).iter().map(Finding::to_string).collect(),
    );
}

/// Two records of a full index, for the third and fourth lcluster of one extent: the distances to its head and to the
/// next head.
fn inner_records(image: &[u8]) -> usize {
    let records = |to_next: u16| {
        [(2, to_next), (3, to_next - 1)].map(|(to_head, to_next): (u16, u16)| {
            let advise = format::LCLUSTER_TYPE_NONHEAD.to_le_bytes();
            [advise, [0; 2], to_head.to_le_bytes(), to_next.to_le_bytes()].concat()
        })
    };
    let found = (2..200).find_map(|to_next| {
        let records = records(to_next).concat();
        image.windows(records.len()).position(|bytes| bytes == records)
    });
    found.expect("an extent of several lclusters")
}

#[test]
fn an_index_that_contradicts_itself_is_found() {
    let corpus = Corpus::locate_or_fixtures();
    let record = corpus.images().into_iter().find(|image| image.name == "erofs-cbase-lz4-full").expect("a full index");
    let mut image = corpus.bytes(&record.image);
    // The index is in a block that the checksum covers; clearing its feature bit disables the comparison.
    image[1024 + 8] &= !1;
    let at = inner_records(&image);
    let distances = |to_head: u16, to_next: u16| [to_head.to_le_bytes(), to_next.to_le_bytes()].concat();
    let head = [format::LCLUSTER_TYPE_HEAD1.to_le_bytes(), [0; 2]].concat();
    for (at, bytes, rule) in [
        (at + 12, distances(1, 0), ""),
        (at + 12, distances(4, 1), "wrong distance to the head of an extent"),
        (at + 12, distances(0, 1), "wrong distance to the head of an extent"),
        (at + 12, distances(3, 5000), "wrong distance to the head of the next extent"),
        (at + 8, head, "head of an extent within another extent"),
    ] {
        let mut changed = image.clone();
        changed[at..at + bytes.len()].copy_from_slice(&bytes);
        let found: Vec<String> =
            findings(&Arc::new(DirectReader::of(changed))).iter().map(Finding::to_string).collect();
        let is_told = found.iter().any(|finding| finding.contains(rule));
        assert!(found.is_empty() == rule.is_empty() && (is_told || found.is_empty()), "{rule}: {found:#?}");
    }
}

#[test]
fn faults_that_only_some_reads_meet_are_findings() {
    let corpus = Corpus::fixtures();
    for (name, rule) in [
        ("erofs-extents-unsorted", "extents are not sorted"),
        ("erofs-next-head-past", "wrong distance to the head of the next extent"),
        ("erofs-block-count-inside", "block count that does not follow the head of an extent"),
        ("erofs-dot-twice", "directory has `.` and says that it omits it"),
    ] {
        let corrupt = corpus.corrupt_images().into_iter().find(|image| image.name == name);
        let image = corpus.corrupt_bytes(&corrupt.expect("it is in fixtures/"));
        let found: Vec<String> = findings(&Arc::new(DirectReader::of(image))).iter().map(Finding::to_string).collect();
        assert!(found.iter().any(|finding| finding.contains(rule)), "{name}: {found:#?}");
    }
}

/// Corrupt images without a detectable fault: data has no checksum, so a literal may change; and a file in one huge
/// chunk equals a file in contiguous blocks.
const FAULTLESS: &[&str] = &["erofs-chunk-bits-31", "erofs-zstd-flip"];

#[test]
fn each_corrupt_image_has_a_finding() {
    if !skip::ready(&[Need::Corpus]) {
        return;
    }
    let corpus = Corpus::locate().expect("it is there");
    let images = corpus.corrupt_images().into_iter();
    let images: Vec<CorruptImage> = images.filter(|image| image.format() == Format::Erofs).collect();
    check_rows(
        &images,
        |image| image.name.clone(),
        |image| {
            let found = findings(&Arc::new(DirectReader::of(corpus.corrupt_bytes(image))));
            if env::var_os("FLOE_TELL").is_some() {
                let told: Vec<String> = found.iter().take(3).map(Finding::to_string).collect();
                println!("{} ({}): {}", image.name, image.note, told.join(" | "));
            }
            match (found.is_empty(), FAULTLESS.contains(&image.name.as_str())) {
                (true, false) => vec![format!("nothing was found ({})", image.note)],
                (false, true) => found.iter().map(Finding::to_string).collect(),
                _ => Vec::new(),
            }
        },
    );
}
