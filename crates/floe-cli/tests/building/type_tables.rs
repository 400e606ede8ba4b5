//! `floe mkfs --types` and the types in its JSON: where the bytes of an image went.

use std::{fs, os::unix::fs::FileExt, path::Path, process::Command};

use floe_testkit::Random;
use serde_json::Value;

/// A block of EROFS.
const BLOCK: u64 = 4096;
/// The size of a text.
const TEXT: u64 = 100_000;
/// The size of the sparse file, which has a block of data at its end.
const SPARSE: u64 = (1 << 20) + BLOCK;

fn mkfs(folder: &Path, arguments: &str) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_floe"));
    command.arg("mkfs").args(arguments.split_whitespace()).current_dir(folder);
    let output = command.output().expect("floe runs");
    assert!(output.status.success(), "{arguments}: {output:?}");
    String::from_utf8(output.stdout).expect("text")
}

fn scene() -> tempfile::TempDir {
    let scene = tempfile::tempdir().expect("a folder");
    let tree = scene.path().join("tree");
    fs::create_dir(&tree).expect("made");
    let mut random = Random::new(48);
    let text = random.text(TEXT as usize);
    for (name, content) in [
        ("one.txt", text.clone()),
        ("same.txt", text),
        ("noise.bin", random.noise(50_000)),
        ("libx.so.1.2", random.noise(5_000)),
        ("README", b"read me".to_vec()),
        (".hidden", b"no extension".to_vec()),
    ] {
        fs::write(tree.join(name), content).expect("there is room");
    }
    fs::hard_link(tree.join("README"), tree.join("LINK")).expect("linked");
    let sparse = fs::File::create(tree.join("disk.img")).expect("there is room");
    sparse.write_all_at(&random.noise(BLOCK as usize), SPARSE - BLOCK).expect("there is room");
    scene
}

/// The numbers of a type: files, content, stored, in fragments, shared, in holes.
fn row(told: &Value, extension: Option<&str>) -> [u64; 6] {
    let types = told["types"].as_array().expect("a list");
    let one = types.iter().find(|one| one["extension"].as_str() == extension);
    let one = one.unwrap_or_else(|| panic!("no {extension:?}: {told}"));
    ["files", "content_bytes", "stored_bytes", "packed_bytes", "shared_bytes", "hole_bytes"]
        .map(|field| one[field].as_u64().expect("a number"))
}

#[test]
fn bytes_are_counted_by_the_types_of_files() {
    let scene = scene();
    let json = |arguments: &str| -> Value {
        serde_json::from_str(&mkfs(scene.path(), &format!("--json {arguments}"))).expect("it is JSON")
    };
    let total = |told: &Value, field: &str| -> u64 {
        told["types"].as_array().expect("a list").iter().map(|one| one[field].as_u64().expect("a number")).sum()
    };
    for options in [
        "plain tree",
        "chunks tree --chunk 4k",
        "dedupe tree --dedupe",
        "lz4 tree -z lz4 --dedupe",
        "tails tree -z zstd,3 -C 16k --fragments tails",
        "packed tree -z zstd,3 -C 64k --fragments all",
        "inline tree -z lz4 --inline-tails",
        "squashfs tree --format squashfs -z gzip,1",
        "unpacked tree --format squashfs -z none --fragments none",
        "later tree -z lz4 --base lz4",
    ] {
        let told = json(options);
        // README has two names, and is one file.
        assert_eq!(total(&told, "files"), 7, "{options}: {told}");
        assert_eq!(told["content_bytes"].as_u64(), Some(total(&told, "content_bytes")), "{options}: {told}");
        assert!(total(&told, "stored_bytes") <= told["image_bytes"].as_u64().expect("a number"), "{options}: {told}");
        let [files, content, stored, packed, shared, holes] = row(&told, Some("txt"));
        assert_eq!((files, content, holes), (2, 2 * TEXT, 0), "{options}: {told}");
        // Equal files are stored once in SquashFS, with --dedupe, in chunks, and in fragments.
        let is_later = options.starts_with("later");
        let shares = ["dedupe", "squashfs", "chunk", "all"].iter().any(|word| options.contains(word));
        match shared {
            0 => assert!(!shares && !is_later, "{options}: {told}"),
            shared if is_later => assert_eq!((shared, stored, packed), (2 * TEXT, 0, 0), "{told}"),
            shared => assert_eq!(shared / BLOCK, TEXT / BLOCK, "{options}: {told}"),
        }
        // In SquashFS, files that are shorter than a block are packed.
        let is_packed = options.contains("--fragments all") || options.starts_with("squashfs");
        assert_eq!(stored == 0, is_packed || is_later, "{options}: {told}");
        assert!(if is_packed { packed >= TEXT } else { packed < 2 * 131_072 }, "{options}: {told}");
        let [files, content, _, _, _, holes] = row(&told, Some("img"));
        assert_eq!((files, content), (1, SPARSE), "{options}: {told}");
        // A pcluster of zeros takes a block.
        let has_holes = !options.contains("-z") || options.contains("squashfs");
        assert!(!has_holes || holes > SPARSE * 9 / 10 && holes < SPARSE, "{options}: {told}");
        // Version numbers belong to no extension, and a name that begins with a dot has none.
        assert_eq!(row(&told, Some("so"))[..2], [1, 5_000], "{options}: {told}");
        assert_eq!(row(&told, None)[..2], [2, 19], "{options}: {told}");
    }
    let told = mkfs(scene.path(), "image tree --types");
    let lines: Vec<&str> = told.lines().collect();
    assert_eq!(lines.len(), 1 + 1 + 5, "{told}");
    assert_eq!(lines[1].split_whitespace().next(), Some("type"), "{told}");
    // The largest in the image first, and columns of equal width.
    assert!(lines[2].starts_with("txt ") && lines.iter().any(|line| line.starts_with("others ")), "{told}");
    assert!(lines[1..].iter().all(|line| line.chars().count() == lines[1].chars().count()), "{told}");
    assert_eq!(mkfs(scene.path(), "image tree").lines().count(), 1);
}

#[test]
fn rare_types_have_one_line() {
    let scene = tempfile::tempdir().expect("a folder");
    let tree = scene.path().join("tree");
    fs::create_dir(&tree).expect("made");
    for number in 1..=30_usize {
        fs::write(tree.join(format!("file.type{number}")), "x".repeat(number * 5_000)).expect("there is room");
    }
    let told: Value = serde_json::from_str(&mkfs(scene.path(), "--json image tree")).expect("it is JSON");
    assert_eq!(told["types"].as_array().map(Vec::len), Some(20), "{told}");
    assert_eq!(row(&told, Some("type30"))[..2], [1, 150_000], "{told}");
    // Eleven types are rare.
    assert_eq!(row(&told, None)[..2], [11, 5_000 * 66], "{told}");
}
