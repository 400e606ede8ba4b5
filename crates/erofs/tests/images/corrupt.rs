//! Reads of corrupt images return data or errors that name the rule, quickly and in bounded memory.

use std::{collections::BTreeMap, env, ops::ControlFlow, sync::Arc, time::Duration};

use floe_erofs::{Erofs, SuperblockChecksum, check::Check, extra_devices};
use floe_image::{BlockReader, ByteRange, DirectoryCursor, Error, FileSystem, FileType, Nid, SeekTarget};
use floe_testkit::{
    DirectReader, Random, check_rows,
    corpus::{Corpus, CorruptImage, Format},
    skip::{self, Need},
    thread_cpu_time,
};

/// The maximum number of inodes explored per image.
const INODES_MAX: usize = 2_000;
/// How many bytes of a file are read, at its beginning and before its end.
const READ_BYTES: u64 = 1 << 20;
/// A generous limit of CPU time per image.
const CPU_TIME_MAX: Duration = Duration::from_secs(60);

/// Reads everything in the image; returns the violated rules with the number of errors.
fn explore(file_system: &Erofs, reader: &DirectReader) -> BTreeMap<String, usize> {
    let mut errors = BTreeMap::new();
    let mut pending = vec![file_system.root()];
    let mut seen = std::collections::HashSet::new();
    while let Some(nid) = pending.pop() {
        if !seen.insert(nid) || seen.len() > INODES_MAX {
            continue;
        }
        let mut note = |result: Result<(), Error>| {
            if let Err(error) = result {
                *errors.entry(rule(&error)).or_insert(0) += 1;
            }
        };
        let attr = match file_system.attr(nid) {
            Ok(attr) => attr,
            Err(error) => {
                note(Err(error));
                continue;
            }
        };
        note(
            file_system
                .xattr_names(nid)
                .and_then(|names| names.iter().try_for_each(|name| file_system.xattr(nid, name).map(|_| ()))),
        );
        note(file_system.xattr(nid, b"security.capability").map(|_| ()));
        match attr.file_type {
            FileType::Directory => {
                let mut names = Vec::new();
                note(file_system.read_dir(nid, DirectoryCursor::default(), &mut |dirent| {
                    names.push((dirent.name.to_vec(), dirent.nid));
                    if names.len() < INODES_MAX { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
                }));
                for (name, child) in names {
                    note(file_system.lookup(nid, &name).map(|_| ()));
                    pending.push(child);
                }
            }
            FileType::Symlink => note(file_system.read_link(nid).map(|_| ())),
            FileType::Regular => {
                note(read(file_system, reader, nid, ByteRange::new(0, READ_BYTES.min(attr.size))));
                note(read(
                    file_system,
                    reader,
                    nid,
                    ByteRange::between(attr.size.saturating_sub(READ_BYTES), attr.size),
                ));
                for target in [SeekTarget::Data, SeekTarget::Hole] {
                    note(file_system.seek(nid, attr.size.saturating_sub(READ_BYTES), target).map(|_| ()));
                }
            }
            _ => note(file_system.map(nid, ByteRange::new(0, 1), &mut Vec::new())),
        }
    }
    errors
}

fn read(file_system: &Erofs, reader: &DirectReader, nid: Nid, range: ByteRange) -> Result<(), Error> {
    let data = reader.read_file(file_system, nid, range)?;
    assert_eq!(data.len() as u64, range.len(), "a read of inode {nid} at {range}");
    Ok(())
}

fn rule(error: &Error) -> String {
    match error {
        Error::Corrupt { rule, .. } => (*rule).to_owned(),
        other => other.to_string(),
    }
}

#[test]
fn corrupt_images_give_named_errors_or_data() {
    if !skip::ready(&[Need::Corpus]) {
        return;
    }
    let corpus = Corpus::locate().expect("it is there");
    let only = env::var("FLOE_IMAGE").unwrap_or_default();
    let images = corpus.corrupt_images().into_iter();
    let images: Vec<CorruptImage> =
        images.filter(|image| image.format() == Format::Erofs && image.name.contains(&only)).collect();
    check_rows(
        &images,
        |image| image.name.clone(),
        |image| {
            let reader = Arc::new(DirectReader::of(corpus.corrupt_bytes(image)));
            let start = thread_cpu_time();
            let devices = extra_devices(reader.as_ref(), SuperblockChecksum::Required).map(|slots| slots.len());
            let outcome = match Erofs::open(Arc::clone(&reader) as Arc<dyn BlockReader>) {
                Ok(file_system) => format!("{:?}", explore(&file_system, &reader)),
                Err(error) => error.to_string(),
            };
            let took = thread_cpu_time() - start;
            if env::var_os("FLOE_TELL").is_some() {
                println!("{} ({}; {devices:?}): {outcome} in {took:?}", image.name, image.note);
            }
            if took > CPU_TIME_MAX { vec![format!("took {took:?}")] } else { Vec::new() }
        },
    );
}

/// Images whose metadata is changed at random: one for each type of map.
const MUTATED: &[&str] = &[
    "erofs-cbase-plain",
    "erofs-cbase-chunk",
    "erofs-cbase-lz4",
    "erofs-cbase-lz4-full",
    "erofs-cbase-frag",
    "erofs-cbase-48bit",
    "erofs-cbase-metabox",
    "erofs-zD-lz4-frag",
    "erofs-xattr-prefix-shared",
    "erofs-48bit-zstd-frag",
    "erofs-lz4-b512-zfd",
    "erofs-metabox-48bit-dot",
];
/// The number of mutations of each image; `FLOE_MUTATIONS` overrides it.
const MUTATIONS: u64 = 20;
/// The maximum number of changed bytes.
const MUTATED_BYTES_MAX: u64 = 12;

#[test]
fn images_changed_at_random_give_errors_or_data() {
    let corpus = Corpus::locate_or_fixtures();
    let times = env::var("FLOE_MUTATIONS").ok().and_then(|times| times.parse().ok()).unwrap_or(MUTATIONS);
    let rows: Vec<(String, Vec<u8>, u64)> = bases(&corpus)
        .into_iter()
        .flat_map(|(name, bytes)| (0..times.div_ceil(20)).map(move |seed| (name.clone(), bytes.clone(), seed)))
        .collect();
    check_rows(
        &rows,
        |(name, _, seed)| format!("{name}, seed {seed}"),
        |(_, bytes, seed)| {
            let mut random = Random::new(*seed);
            for _ in 0..20 {
                let mut changed = bytes.clone();
                for _ in 0..=random.below(MUTATED_BYTES_MAX) {
                    // Half of the changes hit the superblock's block and the blocks after it: the metadata of small
                    // images.
                    let room = if random.below(2) == 0 { changed.len().min(8192) } else { changed.len() };
                    let at = usize::try_from(random.below(room as u64)).expect("within the image");
                    changed[at] = match random.below(4) {
                        0 => 0,
                        1 => 0xff,
                        2 => changed[at] ^ 1 << random.below(8),
                        _ => random.below(256) as u8,
                    };
                }
                let took = look_at(changed);
                if took > CPU_TIME_MAX {
                    return vec![format!("took {took:?}")];
                }
            }
            Vec::new()
        },
    );
}

#[test]
fn images_with_a_wrong_block_size_give_errors_or_data() {
    let rows: Vec<(String, Vec<u8>)> = bases(&Corpus::locate_or_fixtures());
    check_rows(
        &rows,
        |(name, _)| name.clone(),
        |(_, bytes)| {
            let sizes = (0..=20).chain([63, 64, 255]).filter(|log2| *log2 != bytes[1036]);
            let took = sizes.map(|log2| {
                let mut changed = bytes.clone();
                changed[1036] = log2;
                (log2, look_at(changed))
            });
            took.filter(|(_, took)| *took > CPU_TIME_MAX)
                .map(|(log2, took)| format!("2^{log2}: took {took:?}"))
                .collect()
        },
    );
}

/// The images of [`MUTATED`], and those with large blocks.
fn bases(corpus: &Corpus) -> Vec<(String, Vec<u8>)> {
    let fixtures = Corpus::fixtures();
    let has_large_blocks =
        |name: &str| ["erofs-b8k-", "erofs-b16k-", "erofs-b64k-"].iter().any(|start| name.starts_with(start));
    let images = corpus.images().into_iter().filter(|image| MUTATED.contains(&image.name.as_str()));
    let large = fixtures.images().into_iter().filter(|image| has_large_blocks(&image.name));
    let images = images.map(|image| (corpus.bytes(&image.image), image.name));
    let large = large.map(|image| (fixtures.bytes(&image.image), image.name));
    images.chain(large).map(|(bytes, name)| (name, bytes)).collect()
}

/// Reads and checks a changed image; returns the CPU time taken.
fn look_at(mut changed: Vec<u8>) -> Duration {
    fix_checksum(&mut changed);
    let start = thread_cpu_time();
    let reader = Arc::new(DirectReader::of(changed));
    if let Ok(file_system) = Erofs::open(Arc::clone(&reader) as Arc<dyn BlockReader>) {
        explore(&file_system, &reader);
    }
    if let Ok(check) = Check::open(Arc::clone(&reader) as Arc<dyn BlockReader>) {
        let walked = check.walk(&mut |_| (), &|| false);
        for part in walked.parts().iter().take(INODES_MAX) {
            check.data(&walked, part, &mut |_| Ok(()), &mut |_| ());
        }
    }
    thread_cpu_time() - start
}

/// Updates the superblock's checksum, so that the reader does not stop there.
fn fix_checksum(bytes: &mut [u8]) {
    let block_len = 1usize.checked_shl(u32::from(bytes[1036])).unwrap_or(0).clamp(512, 65_536);
    let end = 1024 + if block_len > 1024 { block_len - 1024 } else { block_len };
    if bytes.len() < end {
        return;
    }
    bytes[1028..1032].fill(0);
    let sum = !crc32c::crc32c(&bytes[1024..end]);
    bytes[1028..1032].copy_from_slice(&sum.to_le_bytes());
}
