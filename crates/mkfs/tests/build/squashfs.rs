//! SquashFS images; each is read by the kernel and by unsquashfs, and compared with its source.

mod random_trees;

use std::{
    fs,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use floe_mkfs::{
    BlockCompression, Error, Format, NoProgress, Options, PackedTails, Profile, ProfileRange, Source, SquashfsOptions,
    Summary, Times, UncompressedParts, build,
};
use floe_testkit::{
    KernelMount, Tree, Versions, check_rows,
    corpus::{Format as ImageFormat, Materialised},
    manifest::{Comparison, Manifest, differences},
    peer, sample,
    skip::{self, Need},
    walk::{self, DirectoryWalk},
};
use rustix::fs::XattrFlags;

/// A row of the matrix: a name, whether Linux decodes the compression, and the options that the row changes.
type Row = (&'static str, bool, fn(&mut SquashfsOptions));

const GZIP: BlockCompression = BlockCompression::Gzip { level: 9, window_log2: 15, strategies: 0 };

const ROWS: [Row; 15] = [
    ("zstd", true, |_| {}),
    ("zstd-fast-4k", true, |options| {
        options.compression = BlockCompression::Zstd { level: -5 };
        options.block_size_log2 = 12;
    }),
    ("zstd-1M-tails", true, |options| {
        options.compression = BlockCompression::Zstd { level: 3 };
        options.block_size_log2 = 20;
        options.tails = PackedTails::All;
    }),
    ("gzip", true, |options| options.compression = GZIP),
    ("gzip-4k-tails", true, |options| {
        options.compression = BlockCompression::Gzip { level: 1, window_log2: 15, strategies: 1 };
        options.block_size_log2 = 12;
        options.tails = PackedTails::All;
    }),
    ("gzip-window-strategies", true, |options| {
        options.compression = BlockCompression::Gzip { level: 6, window_log2: 10, strategies: 0b11111 };
        options.block_size_log2 = 14;
    }),
    ("gzip-no-fragments", true, |options| {
        options.compression = GZIP;
        options.tails = PackedTails::None;
    }),
    ("xz", true, |options| options.compression = BlockCompression::Xz { dictionary_bytes: 128 << 10, filters: 0 }),
    ("xz-4k-filters", true, |options| {
        options.compression = BlockCompression::Xz { dictionary_bytes: 8 << 10, filters: 0b1001 };
        options.block_size_log2 = 12;
    }),
    ("lzma", false, |options| options.compression = BlockCompression::Lzma),
    ("lzo", true, |options| options.compression = BlockCompression::Lzo),
    ("lz4-no-fragments-4k", true, |options| {
        options.compression = BlockCompression::Lz4 { is_high: false };
        options.block_size_log2 = 12;
        options.tails = PackedTails::None;
    }),
    ("lz4hc-1M", true, |options| {
        options.compression = BlockCompression::Lz4 { is_high: true };
        options.block_size_log2 = 20;
    }),
    ("uncompressed", true, |options| {
        options.uncompressed = UncompressedParts { inodes: true, data: true, fragments: true, xattrs: true, ids: true };
    }),
    ("plain", true, |options| {
        options.shares_files = false;
        options.finds_holes = false;
        options.exports = false;
        options.pads = false;
        options.uncompressed.xattrs = true;
    }),
];

/// One row of so many is built for each commit, all of them by `cargo xtask nightly`.
const ROWS_STEP: usize = 5;

/// A tree with all types of files, long listings, holes, duplicates and sizes around those of blocks.
fn make_tree(root: &Path) {
    let tree = Tree {
        file_count: 40,
        file_bytes_max: 400_000,
        wide_directory_entries: 3000,
        nesting_depth: 12,
        ..Tree::small(7)
    };
    tree.write(root).expect("there is room");
    fs::create_dir(root.join("sizes")).expect("there is room");
    for block in [4096, 131_072, 1 << 20] {
        for len in [block - 1, block, block + 1] {
            let bytes: Vec<u8> = (0..len).map(|at| (at / 3 % 251) as u8).collect();
            fs::write(root.join(format!("sizes/{len}")), bytes).expect("there is room");
        }
    }
    fs::create_dir(root.join("empty directory")).expect("there is room");
    for name in ["one", "two", "wide/three"] {
        fs::write(root.join(name), "the same in all\n".repeat(20_000)).expect("there is room");
        // The same few bytes, which are in a fragment.
        fs::write(root.join(format!("{name}.small")), "the same few bytes").expect("there is room");
    }
    let sparse = fs::File::create(root.join("sparse")).expect("there is room");
    sparse.write_all_at(b"in the middle", 7_000_000).expect("there is room");
    sparse.set_len(50_000_123).expect("there is room");
    // ext4 has one block for the attributes of a file.
    let long_value = vec![b'v'; 1500];
    for (name, path) in [("user.common", "one"), ("user.common", "two"), ("user.other", "two"), ("user.root", "")] {
        let set = rustix::fs::lsetxattr(root.join(path), name, &long_value, XattrFlags::empty());
        set.expect("the file system has attributes");
    }
}

/// What SquashFS can store of a source.
fn stored(source: &Path) -> Manifest {
    let mut manifest = walk::directory(source, DirectoryWalk::default()).expect("it can be read");
    for (_, entry) in manifest.entries_mut() {
        entry.modified = (entry.modified.0.clamp(0, i64::from(u32::MAX)), 0);
        entry.xattrs.retain(|name, _| !name.starts_with(b"system."));
    }
    manifest
}

fn options(image: PathBuf, squashfs: SquashfsOptions, jobs: usize) -> Options {
    let mut options = Options::new(image);
    options.format = Format::Squashfs(squashfs);
    options.jobs = jobs.try_into().expect("it is not zero");
    options
}

fn build_image(source: &Path, image: &Path, squashfs: &SquashfsOptions, jobs: usize) -> Summary {
    let options = options(image.to_path_buf(), squashfs.clone(), jobs);
    let built = build(&options, &[Source::Directory(source.to_path_buf())], &mut NoProgress);
    built.unwrap_or_else(|error| panic!("{}: {error}", image.display()))
}

/// Whether this machine can compare images with the kernel.
fn is_ready() -> bool {
    skip::ready(&[Need::Root, Need::KernelSquashfs])
}

fn mount(image: &Path) -> Result<KernelMount, String> {
    let (path, format) = (image.to_path_buf(), ImageFormat::Squashfs);
    KernelMount::new(&Materialised::single(path, format))
}

const COMPARISON: Comparison = Comparison {
    directory_shape_is_free: true,
    privileges_are_free: false,
    xattrs_are_free: false,
    links_are_free: false,
};

/// The differences between a source and what the kernel shows of an image.
fn kernel_differences(expected: &Manifest, image: &Path) -> Vec<String> {
    match mount(image) {
        Ok(mount) => {
            let found = walk::directory(&mount.path(), DirectoryWalk::default());
            found.map_or_else(|error| vec![error.to_string()], |found| differences(expected, &found, &COMPARISON))
        }
        Err(error) => vec![error],
    }
}

/// The differences between a source and what unsquashfs extracts from an image, if that is there.
fn extracted_differences(expected: &Manifest, image: &Path) -> Vec<String> {
    let Some(program) = peer("unsquashfs") else { return Vec::new() };
    let folder = tempfile::tempdir().expect("there is room");
    let target = folder.path().join("target");
    let mut command = Command::new(program);
    command.args(["-n", "-q", "-strict-errors", "-d"]).arg(&target).arg(image).stdin(Stdio::null());
    let output = command.output().expect("it runs");
    if !output.status.success() {
        return vec![String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned()];
    }
    let found = walk::directory(&target, DirectoryWalk::default()).expect("it can be read");
    differences(expected, &found, &COMPARISON)
}

#[test]
fn images_equal_their_sources() {
    if !is_ready() {
        return;
    }
    let folder = tempfile::tempdir().expect("there is room");
    let source = folder.path().join("source");
    make_tree(&source);
    let expected = stored(&source);
    let has_peer = skip::ready(&[Need::PeerOf("unsquashfs", Versions::Since("4.5"))]);
    check_rows(
        &sample(&ROWS, ROWS_STEP),
        |(name, ..)| (*name).to_owned(),
        |(name, has_kernel, change)| {
            let mut squashfs = SquashfsOptions::default();
            change(&mut squashfs);
            let images = [1, 2].map(|jobs| folder.path().join(format!("{name}-{jobs}")));
            let summaries: Vec<_> =
                images.iter().zip(1..).map(|(image, jobs)| build_image(&source, image, &squashfs, jobs)).collect();
            let bytes = images.each_ref().map(|image| fs::read(image).expect("it is there"));
            let mut told = Vec::new();
            if bytes[0] != bytes[1] {
                told.push("the number of threads changes the image".to_owned());
            }
            if bytes[0].len() as u64 != summaries[0].image_bytes || squashfs.pads != bytes[0].len().is_multiple_of(4096)
            {
                told.push(format!("the image has {} bytes, {:?}", bytes[0].len(), summaries[0]));
            }
            let found = summaries[0].squashfs.as_ref().expect("it is a SquashFS image");
            if (found.duplicates > 0) != squashfs.shares_files {
                told.push(format!("{} duplicates", found.duplicates));
            }
            if (found.fragments > 0) == (squashfs.tails == PackedTails::None) {
                told.push(format!("{} fragments", found.fragments));
            }
            if *has_kernel {
                told.extend(kernel_differences(&expected, &images[0]));
            }
            if has_peer && (!has_kernel || name.contains("4k")) {
                told.extend(extracted_differences(&expected, &images[0]));
            }
            told
        },
    );
}

#[test]
fn an_empty_directory_is_an_image() {
    if !is_ready() {
        return;
    }
    let folder = tempfile::tempdir().expect("there is room");
    let source = folder.path().join("source");
    fs::create_dir(&source).expect("there is room");
    let image = folder.path().join("image");
    build_image(&source, &image, &SquashfsOptions::default(), 1);
    assert_eq!(kernel_differences(&stored(&source), &image), Vec::<String>::new());
    assert_eq!(extracted_differences(&stored(&source), &image), Vec::<String>::new());
}

#[test]
fn archives_give_the_images_of_their_trees() {
    if !is_ready() {
        return;
    }
    let folder = tempfile::tempdir().expect("there is room");
    let (source, archive) = (folder.path().join("source"), folder.path().join("source.tar"));
    let tree = Tree { file_count: 20, wide_directory_entries: 50, nesting_depth: 3, ..Tree::small(3) };
    tree.write(&source).expect("there is room");
    // tar does not store sockets.
    fs::remove_file(source.join("odd/socket")).expect("it is there");
    let mut command = Command::new("tar");
    command.args(["--format=pax", "--xattrs", "--xattrs-include=*", "--sparse", "-cf"]).arg(&archive);
    let output = command.arg("-C").arg(&source).arg(".").output().expect("there is tar");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let image = folder.path().join("image");
    let squashfs = SquashfsOptions { compression: GZIP, ..SquashfsOptions::default() };
    build(&options(image.clone(), squashfs, 2), &[Source::Tar(archive)], &mut NoProgress).expect("it is built");
    assert_eq!(kernel_differences(&stored(&source), &image), Vec::<String>::new());
}

#[test]
fn holes_and_duplicates_take_no_space() {
    let folder = tempfile::tempdir().expect("there is room");
    let source = folder.path().join("source");
    fs::create_dir(&source).expect("there is room");
    fs::File::create(source.join("sparse")).and_then(|file| file.set_len(1 << 40)).expect("there is room");
    let noise = floe_testkit::Random::new(1).noise(300_000);
    for number in 0..10 {
        fs::write(source.join(format!("noise{number}")), &noise).expect("there is room");
        fs::write(source.join(format!("zeros{number}")), vec![0; 1 << 20]).expect("there is room");
    }
    let image = folder.path().join("image");
    let summary = build_image(&source, &image, &SquashfsOptions::default(), 2);
    // The block list of the large file has 32 MiB before compression.
    assert!(summary.image_bytes < 400_000, "{summary:?}");
    assert_eq!(summary.squashfs.expect("it is a SquashFS image").duplicates, 18);
    assert_eq!(summary.duplicate_bytes, 9 * 300_000 + (9 << 20));
}

#[test]
fn a_profile_orders_files() {
    let folder = tempfile::tempdir().expect("there is room");
    let source = folder.path().join("source");
    fs::create_dir(&source).expect("there is room");
    for name in ["a", "b", "c"] {
        fs::write(source.join(name), name.repeat(200_000)).expect("there is room");
    }
    let path = b"/c".to_vec();
    let profile = Profile::new([ProfileRange { path, range: floe_image::ByteRange::new(0, 10) }]);
    let image = folder.path().join("image");
    let squashfs = SquashfsOptions {
        uncompressed: UncompressedParts { data: true, ..UncompressedParts::default() },
        ..SquashfsOptions::default()
    };
    let mut options = options(image.clone(), squashfs, 1);
    options.profile = Some(profile);
    build(&options, &[Source::Directory(source)], &mut NoProgress).expect("it is built");
    let bytes = fs::read(image).expect("it is there");
    assert_eq!(&bytes[96..100], b"cccc");
}

#[test]
fn times_and_owners_are_set() {
    let folder = tempfile::tempdir().expect("there is room");
    let source = folder.path().join("source");
    fs::create_dir(&source).expect("there is room");
    fs::write(source.join("file"), "text").expect("there is room");
    let build_with = |times| {
        let image = folder.path().join("image");
        let mut options = options(image.clone(), SquashfsOptions::default(), 1);
        options.times = times;
        (options.ownership.force_uid, options.ownership.force_gid) = (Some(7), Some(7));
        let source = [Source::Directory(source.clone())];
        let summary = build(&options, &source, &mut NoProgress).expect("it is built");
        assert_eq!(summary.squashfs.expect("it is a SquashFS image").ids, 1);
        let bytes = fs::read(image).expect("it is there");
        u32::from_le_bytes([bytes[8], bytes[9], bytes[10], bytes[11]])
    };
    assert_eq!(build_with(Times::All(77)), 77);
    assert_eq!(build_with(Times::OwnBuiltAt(78)), 78);
    assert_eq!(build_with(Times::All(-1)), 0);
    assert_eq!(build_with(Times::All(1 << 40)), u32::MAX);
}

#[test]
fn settings_out_of_range_are_refused() {
    let folder = tempfile::tempdir().expect("there is room");
    let changes: [fn(&mut SquashfsOptions); 8] = [
        |options| options.block_size_log2 = 11,
        |options| options.block_size_log2 = 21,
        |options| options.compression = BlockCompression::Gzip { level: 0, window_log2: 15, strategies: 0 },
        |options| options.compression = BlockCompression::Gzip { level: 9, window_log2: 7, strategies: 0 },
        |options| options.compression = BlockCompression::Gzip { level: 9, window_log2: 15, strategies: 32 },
        |options| options.compression = BlockCompression::Xz { dictionary_bytes: 256 << 10, filters: 0 },
        |options| options.compression = BlockCompression::Xz { dictionary_bytes: 9000, filters: 0 },
        |options| options.compression = BlockCompression::Zstd { level: 23 },
    ];
    for (number, change) in changes.iter().enumerate() {
        let mut squashfs = SquashfsOptions::default();
        change(&mut squashfs);
        let image = folder.path().join("image");
        let source = [Source::Directory(folder.path().to_path_buf())];
        let result = build(&options(image.clone(), squashfs, 1), &source, &mut NoProgress);
        assert!(matches!(result, Err(Error::Option(_))), "{number}: {result:?}");
        assert!(!image.exists());
    }
}
