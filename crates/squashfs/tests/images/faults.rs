//! Faults of the source and of single inodes affect only what needs them: a lookup that failed because the source failed once
//! succeeds when it is repeated, and inodes before an unreadable one are found.

use std::{ops::ControlFlow, sync::Arc};

use floe_image::{BlockReader, DirectoryCursor, Error, FileSystem, FileType, Nid};
use floe_squashfs::{Squashfs, format};
use floe_testkit::{DirectReader, FailingSource, Fault, MemorySource, corpus::Corpus};

/// Image `name` without its export table: parents are found by reading all inodes.
fn without_export_table(name: &str) -> Vec<u8> {
    let corpus = Corpus::fixtures();
    let mut bytes = corpus.bytes(&corpus.image(name).image);
    let mut raw = format::SuperBlock::from_prefix(&bytes).expect("a superblock");
    raw.lookup_table_start = format::ABSENT_TABLE;
    raw.flags &= !format::FLAG_EXPORTABLE;
    bytes[..format::SuperBlock::SIZE].copy_from_slice(&raw.to_bytes());
    bytes
}

fn open(fault: Fault) -> (Squashfs, Arc<FailingSource>) {
    let source = Arc::new(FailingSource::new(Arc::new(MemorySource::new(without_export_table("sqfs-meta"))), fault));
    let reader = DirectReader::new(vec![Arc::clone(&source) as _]);
    (Squashfs::open(Arc::new(reader) as Arc<dyn BlockReader>).expect("it opens"), source)
}

/// A directory whose parent is not the root, and that parent.
fn deep_directory(squashfs: &Squashfs) -> (Nid, Nid) {
    let below = |directory: Nid| {
        let mut found = Vec::new();
        squashfs
            .read_dir(directory, DirectoryCursor::default(), &mut |dirent| {
                if dirent.file_type == FileType::Directory && !dirent.name.starts_with(b".") {
                    found.push(dirent.nid);
                }
                ControlFlow::Continue(())
            })
            .expect("listed");
        found
    };
    let pairs =
        below(squashfs.root()).into_iter().flat_map(|parent| below(parent).into_iter().map(move |nid| (nid, parent)));
    pairs.into_iter().next().expect("a directory in a directory")
}

#[test]
fn a_failed_search_for_a_parent_is_repeated() {
    let (squashfs, source) = open(Fault::Reads(0..0));
    let (directory, parent) = deep_directory(&squashfs);
    let before = source.read_count();
    assert_eq!(squashfs.lookup(directory, b"..").expect("found"), Some(parent));
    let calls = source.read_count() - before;
    assert!(calls > 2, "{calls} calls");
    for call in 0..calls {
        // The same calls precede this one as the one above.
        let (squashfs, source) = open(Fault::Reads(before + call..before + call + 1));
        assert_eq!(deep_directory(&squashfs), (directory, parent));
        let failed = squashfs.lookup(directory, b"..");
        assert!(matches!(failed, Err(Error::Io { .. })), "call {call}: {failed:?}");
        assert_eq!(source.failure_count(), 1);
        let again = squashfs.lookup(directory, b"..");
        assert_eq!(again.expect("the source works again"), Some(parent), "call {call}");
    }
}

#[test]
fn a_parent_is_found_despite_a_wrong_export_table() {
    let corpus = Corpus::fixtures();
    // Its inodes and its export table are not compressed.
    let image = corpus.bytes(&corpus.image("sqfs-cbase-noI").image);
    let raw = format::SuperBlock::from_prefix(&image).expect("a superblock");
    let at = raw.lookup_table_start as usize;
    let block = u64::from_le_bytes(image[at..at + 8].try_into().expect("eight bytes")) as usize;
    let entries = block + 2..block + 2 + 8 * raw.inodes as usize;
    let sound = Squashfs::open(Arc::new(DirectReader::of(image.clone())) as Arc<dyn BlockReader>).expect("opened");
    let (directory, parent) = deep_directory(&sound);
    type Change = fn(&mut [u8]);
    let rows: [(&str, Change); 4] = [
        ("as it was", |_| {}),
        ("zeros", |entries| entries.fill(0)),
        ("ones", |entries| entries.fill(0xff)),
        ("the next inode", |entries| entries.rotate_left(8)),
    ];
    for (name, change) in rows {
        let mut changed = image.clone();
        change(&mut changed[entries.clone()]);
        let squashfs = Squashfs::open(Arc::new(DirectReader::of(changed)) as Arc<dyn BlockReader>).expect("opened");
        assert_eq!(squashfs.lookup(directory, b"..").ok(), Some(Some(parent)), "{name}");
    }
}

#[test]
fn inodes_before_an_unreadable_one_are_found_by_number() {
    let open =
        |bytes: Vec<u8>| Squashfs::open(Arc::new(DirectReader::of(bytes)) as Arc<dyn BlockReader>).expect("opened");
    // Its inodes are not compressed.
    let image = without_export_table("sqfs-cbase-noI");
    let sound = open(image.clone());
    let find = |squashfs: &Squashfs, number| squashfs.find_number(number).map_err(|error| error.to_string());
    let mut inodes: Vec<(Nid, u64)> = (1..=sound.inode_number_max())
        .map(|number| (find(&sound, number).expect("read").expect("each number has an inode"), number))
        .collect();
    inodes.sort_unstable();
    let damaged = [0, inodes.len() / 2, inodes.len() - 1].into_iter().filter(|index| inodes[*index].0 != sound.root());
    for damaged in damaged {
        let raw = format::SuperBlock::from_prefix(&image).expect("a superblock");
        let Nid(reference) = inodes[damaged].0;
        let at = (raw.inode_table_start + (reference >> 16) + 2 + (reference & 0xffff)) as usize;
        let mut changed = image.clone();
        changed[at..at + 2].fill(0xff);
        let squashfs = open(changed);
        for (index, (nid, number)) in inodes.iter().enumerate() {
            let found = find(&squashfs, *number);
            match index < damaged {
                true => assert_eq!(found, Ok(Some(*nid)), "inode {number}, before number {}", inodes[damaged].1),
                false => assert!(found.is_err_and(|error| error.contains("unknown type")), "inode {number}"),
            }
        }
        assert_eq!(find(&squashfs, 0), Ok(None));
    }
}
