//! Random trees with random options: the kernel shows what the source has.

use std::{
    fs,
    os::unix::fs::{FileExt, PermissionsExt, symlink},
    path::Path,
};

use floe_mkfs::{BlockCompression, PackedTails, SquashfsOptions};
use proptest::prelude::*;
use rustix::fs::XattrFlags;

use super::{build_image, is_ready, kernel_differences, stored};

/// An entry of a random tree.
#[derive(Clone, Debug)]
enum Entry {
    File { size: usize, fill: u8, hole: usize },
    Directory,
    Link(String),
    HardLink(usize),
    Fifo,
}

/// An entry, its name, the number of the directory in which it is, its mode, and an attribute.
type Placed = (Entry, String, usize, u32, Option<(u8, usize)>);

fn entry() -> impl Strategy<Value = Entry> {
    let size = prop_oneof![0usize..20, 4090usize..4100, 8190usize..8195, 0usize..300_000];
    prop_oneof![
        6 => (size, any::<u8>(), 0usize..50_000).prop_map(|(size, fill, hole)| Entry::File { size, fill, hole }),
        3 => Just(Entry::Directory),
        1 => "[a-z/.]{1,200}".prop_map(Entry::Link),
        1 => any::<usize>().prop_map(Entry::HardLink),
        1 => Just(Entry::Fifo),
    ]
}

fn placed() -> impl Strategy<Value = Placed> {
    let attribute = proptest::option::weighted(0.3, (0u8..4, 0usize..200));
    (entry(), "[a-z]{1,3}[ -~]{0,40}", any::<usize>(), 0u32..0o10000, attribute)
}

fn compression() -> impl Strategy<Value = BlockCompression> {
    prop_oneof![
        Just(BlockCompression::Gzip { level: 6, window_log2: 15, strategies: 0 }),
        Just(BlockCompression::Lz4 { is_high: false }),
        Just(BlockCompression::Zstd { level: 1 }),
    ]
}

fn squashfs() -> impl Strategy<Value = SquashfsOptions> {
    let tails = prop_oneof![Just(PackedTails::None), Just(PackedTails::SmallFiles), Just(PackedTails::All)];
    (compression(), tails, 12u8..=20, any::<bool>(), any::<bool>(), any::<bool>()).prop_map(
        |(compression, tails, block_size_log2, shares_files, finds_holes, exports)| SquashfsOptions {
            block_size_log2,
            compression,
            tails,
            shares_files,
            finds_holes,
            exports,
            ..SquashfsOptions::default()
        },
    )
}

fn write(root: &Path, entries: &[Placed]) {
    let (mut directories, mut files) = (vec![root.to_path_buf()], Vec::new());
    for (entry, name, directory, mode, attribute) in entries {
        let path = directories[directory % directories.len()].join(name.replace('/', "_"));
        if path.symlink_metadata().is_ok() {
            continue;
        }
        match entry {
            Entry::File { size, fill, hole } => {
                let file = fs::File::create(&path).expect("there is room");
                let bytes: Vec<u8> = (0..*size).map(|at| fill.wrapping_mul((at / 5 % 97) as u8)).collect();
                file.write_all_at(&bytes, *hole as u64).expect("there is room");
                files.push(path.clone());
            }
            Entry::Directory => {
                fs::create_dir(&path).expect("there is room");
                directories.push(path.clone());
            }
            Entry::Link(target) => symlink(target, &path).expect("there is room"),
            Entry::HardLink(number) if !files.is_empty() => {
                fs::hard_link(&files[number % files.len()], &path).expect("there is room");
                continue;
            }
            Entry::HardLink(_) => continue,
            Entry::Fifo => {
                let kind = rustix::fs::FileType::Fifo;
                rustix::fs::mknodat(rustix::fs::CWD, &path, kind, rustix::fs::Mode::RUSR, 0).expect("there is room");
            }
        }
        if let Some((number, len)) = attribute {
            let value = vec![b'0' + number; *len];
            let name = format!("trusted.number{number}");
            rustix::fs::lsetxattr(&path, name, &value, XattrFlags::empty()).expect("there are attributes");
        }
        if !matches!(entry, Entry::Link(_)) {
            fs::set_permissions(&path, fs::Permissions::from_mode(*mode)).expect("it is there");
        }
    }
}

#[test]
fn random_trees_equal_their_images() {
    if !is_ready() {
        return;
    }
    let config =
        ProptestConfig { cases: 24, failure_persistence: None, max_shrink_iters: 50, ..ProptestConfig::default() };
    proptest!(config, |(entries in proptest::collection::vec(placed(), 0..60), squashfs in squashfs())| {
        let folder = tempfile::tempdir().expect("there is room");
        let source = folder.path().join("source");
        fs::create_dir(&source).expect("there is room");
        write(&source, &entries);
        let image = folder.path().join("image");
        build_image(&source, &image, &squashfs, 2);
        let found = kernel_differences(&stored(&source), &image);
        prop_assert!(found.is_empty(), "{found:?}");
    });
}
