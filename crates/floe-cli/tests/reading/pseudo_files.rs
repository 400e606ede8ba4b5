//! `unsquashfs -pf`: a text and data from which mksquashfs builds the image again.

use std::{
    fs,
    os::unix::process::CommandExt,
    path::Path,
    process::{Command, Output, Stdio},
};

use floe::{ByteRange, Image, OpenOptions};
use floe_testkit::{
    Versions, check_rows,
    corpus::{Corpus, Format, ImageRecord},
    manifest::{Comparison, Entry, Manifest, differences},
    peer,
    skip::{self, Need},
    walk,
};

const MARK: &[u8] = b"#\n# START OF DATA - DO NOT MODIFY\n#\n";

fn ours(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_floe"));
    command.arg0("unsquashfs").args(arguments).stdin(Stdio::null());
    command.output().expect("floe runs")
}

fn theirs(arguments: &[&str]) -> Output {
    let mut command = Command::new(peer("unsquashfs").expect("the test needs it"));
    command.args(arguments).stdin(Stdio::null()).output().expect("it runs")
}

/// The lines of a pseudo file, and the data after them.
fn parts(pseudo: &[u8]) -> (Vec<&[u8]>, &[u8]) {
    let at = pseudo.windows(MARK.len()).position(|part| part == MARK).expect("there is a mark");
    (pseudo[..at].split(|byte| *byte == b'\n').collect(), &pseudo[at + MARK.len()..])
}

/// Whether a line may differ from the original's. unsquashfs prints device numbers as if they had 8 bits each, prints owners
/// as signed numbers, and does not escape values that look encoded.
fn may_differ(line: &str) -> bool {
    let is_large = |word: &str| word.parse::<u32>().is_ok_and(|number| number > i32::MAX as u32);
    [" B ", " C ", "=0t0"].iter().any(|part| line.contains(part)) || line.split(' ').any(is_large)
}

/// Small images of the corpus, of many kinds.
fn images(corpus: &Corpus) -> Vec<ImageRecord> {
    let wanted = |image: &ImageRecord| {
        image.format == Format::Squashfs && !image.huge && image.offset == 0 && image.image.size < 8 << 20
    };
    let mut images: Vec<ImageRecord> = corpus.sample().into_iter().filter(wanted).collect();
    // A few images of each tree are enough.
    let mut seen = std::collections::HashMap::<String, u32>::new();
    images.retain(|image| {
        let count = seen.entry(image.tree.clone()).or_insert(0);
        *count += 1;
        *count <= 3
    });
    images
}

#[test]
fn pseudo_files_are_those_of_the_original() {
    if !skip::ready(&[Need::PeerOf("unsquashfs", Versions::Series("4.7"))]) {
        return;
    }
    let corpus = Corpus::locate_or_fixtures();
    check_rows(
        &images(&corpus),
        |image| image.name.clone(),
        |image| {
            let files = corpus.materialise(image);
            let path = files.path.to_str().expect("a plain path");
            let mut told = Vec::new();
            for (options, names) in [
                (&["-pf", "-"][..], &[][..]),
                (&["-no-xattrs", "-max", "2", "-pf", "-"], &[]),
                (&["-pseudo-file", "-", "-regex"], &["^[a-d]", "w.*/1$"]),
                (&["-pf", "-", "-excludes"], &["[a-c]*"]),
            ] {
                let arguments = [options, &[path], names].concat();
                let (ours, theirs) = (ours(&arguments), theirs(&arguments));
                if ours.status.code() != theirs.status.code() {
                    told.push(format!("{arguments:?}: {ours:?} instead of {theirs:?}"));
                    continue;
                }
                let ((lines, data), (expected_lines, expected_data)) = (parts(&ours.stdout), parts(&theirs.stdout));
                if data != expected_data {
                    told.push(format!("{arguments:?}: other bytes, {} and not {}", data.len(), expected_data.len()));
                }
                if lines.len() != expected_lines.len() {
                    told.push(format!("{arguments:?}: {} lines, not {}", lines.len(), expected_lines.len()));
                }
                let pairs = lines.into_iter().zip(expected_lines).map(|(line, expected)| {
                    (String::from_utf8_lossy(line).into_owned(), String::from_utf8_lossy(expected).into_owned())
                });
                let wrong = pairs.filter(|(line, expected)| line != expected && !may_differ(line)).take(3);
                told.extend(
                    wrong.map(|(line, expected)| format!("{arguments:?}: {line}\n      instead of {expected}")),
                );
            }
            told
        },
    );
}

fn manifest(image: &Path) -> Manifest {
    let image = Image::open(image, &OpenOptions::default()).expect("it is opened");
    let read = |nid, range: ByteRange| {
        let mut bytes = vec![0; range.len() as usize];
        let len = image.read_at(nid, range.offset(), &mut bytes)?;
        bytes.truncate(len);
        Ok(bytes)
    };
    let mut manifest = walk::image(image.file_system().as_ref(), &read).expect("it is walked");
    for (_, entry) in manifest.entries_mut() {
        // Locations and the order of inode numbers differ between images.
        (entry.inode_number, entry.blocks_512, entry.segments) = (None, None, None);
    }
    manifest
}

fn without(manifest: &Manifest, paths: &[Vec<u8>]) -> Manifest {
    let mut rest = Manifest::default();
    for (path, entry) in manifest.entries().filter(|(path, _)| !paths.iter().any(|left_out| left_out == path)) {
        rest.insert(path.to_vec(), entry.clone());
    }
    rest
}

#[test]
fn mksquashfs_makes_the_image_again() {
    if !skip::ready(&[Need::PeerOf("mksquashfs", Versions::Since("4.7"))]) {
        return;
    }
    let mksquashfs = peer("mksquashfs").expect("the test needs it");
    let corpus = Corpus::locate_or_fixtures();
    check_rows(
        &images(&corpus),
        |image| image.name.clone(),
        |image| {
            let files = corpus.materialise(image);
            let folder = tempfile::tempdir().expect("a folder");
            let (pseudo, again) = (folder.path().join("pseudo"), folder.path().join("again"));
            let pseudo = pseudo.to_str().expect("a plain path");
            // mksquashfs has no syntax for an empty value.
            let is_empty = |entry: &Entry| entry.xattrs.values().any(Vec::is_empty);
            let xattrs_are_free = corpus.manifest(image).entries().any(|(_, entry)| is_empty(entry));
            let xattrs = if xattrs_are_free { "-no-xattrs" } else { "-xattrs" };
            let output = ours(&["-q", xattrs, "-pf", pseudo, files.path.to_str().expect("a plain path")]);
            if !output.status.success() {
                return vec![format!("{output:?}")];
            }
            let mut command = Command::new(&mksquashfs);
            command.arg("-").arg(&again).args(["-pf", pseudo, "-quiet", "-no-progress", "-processors", "1"]);
            let output = command.stdin(Stdio::null()).output().expect("mksquashfs runs");
            if !output.status.success() {
                return vec![format!("mksquashfs: {}", String::from_utf8_lossy(&output.stderr))];
            }
            let comparison = Comparison { directory_shape_is_free: true, xattrs_are_free, ..Comparison::default() };
            // mksquashfs joins a line that ends in a backslash with the next one, so a newline in a name is lost.
            let (expected, found) = (manifest(&files.path), manifest(&again));
            let lost: Vec<Vec<u8>> =
                expected.entries().map(|(path, _)| path.to_vec()).filter(|path| path.contains(&b'\n')).collect();
            let joined = |path: &Vec<u8>| path.iter().copied().filter(|byte| *byte != b'\n').collect::<Vec<u8>>();
            let left_out: Vec<Vec<u8>> = lost.iter().cloned().chain(lost.iter().map(joined)).collect();
            differences(&without(&expected, &left_out), &without(&found, &left_out), &comparison)
        },
    );
}

#[test]
fn a_failed_pseudo_file_is_removed() {
    let folder = tempfile::tempdir().expect("a folder");
    let corpus = Corpus::fixtures();
    let image = corpus.materialise(&corpus.image("sqfs-cbase-gzip")).path;
    let mut bytes = fs::read(&image).expect("read");
    // The data of the first file begins behind the superblock.
    bytes[96..4096].fill(0xff);
    let broken = folder.path().join("broken");
    fs::write(&broken, bytes).expect("written");
    let at = |name: &str| folder.path().join(name).to_str().expect("a plain path").to_owned();
    let (image, broken, pseudo) = (image.to_str().expect("a plain path").to_owned(), at("broken"), at("pseudo"));
    for (arguments, words) in [
        (&["-pf", &pseudo, &broken][..], "FATAL ERROR: "),
        (&["-pf", &at("no/such/folder"), &image], "FATAL ERROR: "),
        (&["-pf"], "-pf needs a value"),
        (&["-ls", "-pf", &pseudo, &image], "exclude each other"),
        (&["-regex", "-no-wildcards", &image], "exclude each other"),
        (&["-regex", "-ls", &image, "("], "is not a regular expression"),
    ] {
        let output = ours(arguments);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {said}");
        assert!(said.contains(words) && said.lines().count() == 1, "{arguments:?}: {said}");
        assert!(!Path::new(&pseudo).exists(), "{arguments:?}");
    }
}
