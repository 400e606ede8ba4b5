//! Sources that change while they are read.

use floe::{Image, ImageVerifier, OpenOptions, Thoroughness};
use floe_mkfs::{Coding, Compression, Fragments, Metabox, Options, Phase, Progress, Source, build_unnamed};
use floe_testkit::skip::{self, Need};
use std::{
    fs,
    io::Write,
    ops::ControlFlow,
    path::Path,
    process::{Output, Stdio},
};
use tempfile::TempDir;

use super::{Mounted, folder, image, mkfs};

/// Starts a build that waits for its standard input after the source was listed, and then calls `meddle`.
fn meddled(folder: &TempDir, more: &[&str], meddle: impl FnOnce()) -> Output {
    let mut command = mkfs(folder, &[&["source", "-"], more].concat());
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("floe runs");
    // An archive on standard input is copied after the directory before it was listed, so the directory is listed once the
    // first bytes are taken. A pipe holds 64 KiB, so writing more waits for that.
    let mut input = child.stdin.take().expect("it is piped");
    input.write_all(&[0; 256 << 10]).expect("written");
    meddle();
    drop(input);
    child.wait_with_output().expect("it ends")
}

#[test]
fn files_that_change_meanwhile_are_kept_as_far_as_they_go() {
    if !skip::ready(&[Need::Root]) {
        return;
    }
    let folder = folder();
    let file = folder.path().join("source/victim");
    let before = b"what was there before, ".repeat(5000);
    type Meddle = fn(&Path);
    let rows: [(&str, Meddle, Option<usize>); 7] = [
        (
            "grows",
            |file| fs::OpenOptions::new().append(true).open(file).expect("there").write_all(b"more").expect("written"),
            Some(115_000),
        ),
        (
            "shrinks",
            |file| fs::OpenOptions::new().write(true).open(file).expect("there").set_len(70_000).expect("shorter"),
            Some(70_000),
        ),
        ("is emptied", |file| fs::write(file, "").expect("written"), Some(0)),
        (
            "is another",
            |file| {
                fs::rename(file, file.with_file_name("elsewhere")).expect("renamed");
                fs::write(file, b"what was there before, ".repeat(5000)).expect("written");
            },
            Some(115_000),
        ),
        ("vanishes", |file| fs::remove_file(file).expect("removed"), None),
        (
            "is a link",
            |file| {
                fs::remove_file(file).expect("removed");
                std::os::unix::fs::symlink("/etc/passwd", file).expect("linked");
            },
            None,
        ),
        (
            "is a directory",
            |file| {
                fs::remove_file(file).expect("removed");
                fs::create_dir(file).expect("made");
            },
            None,
        ),
    ];
    for (what, meddle, len) in rows {
        for more in [&[][..], &["-z", "lz4", "--dedupe"], &["-z", "zstd", "--fragments", "all"], &["--chunk", "4k"]] {
            let _ = fs::remove_dir_all(folder.path().join("source"));
            fs::create_dir(folder.path().join("source")).expect("made");
            fs::write(&file, &before).expect("written");
            fs::write(folder.path().join("source/same"), &before).expect("written");
            let output = meddled(&folder, &[more, &["--verify=full"]].concat(), || meddle(&file));
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            assert_eq!(output.status.code(), Some(0), "{what} {more:?}: {said}");
            assert!(said.contains("source/victim") && said.lines().count() == 1, "{what} {more:?}: {said}");
            let mounted = Mounted::new(&image(&folder));
            assert_eq!(fs::read(mounted.path("same")).expect("read"), before, "{what} {more:?}");
            assert_eq!(
                fs::read(mounted.path("victim")).ok().as_deref(),
                len.map(|len| &before[..len]),
                "{what} {more:?}"
            );
            drop(mounted);
            fs::remove_file(image(&folder)).expect("removed");
        }
        let _ = fs::remove_dir_all(folder.path().join("source"));
        fs::create_dir(folder.path().join("source")).expect("made");
        fs::write(&file, &before).expect("written");
        let output = meddled(&folder, &["--strict"], || meddle(&file));
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{what}: {said}");
        assert!(said.contains("victim changed") && said.lines().count() == 1, "{what}: {said}");
        assert!(!image(&folder).exists(), "{what}");
    }
}

/// Calls the function once: when the tree has been listed and files are compared.
struct Meddler<F>(Option<F>);

impl<F: FnOnce()> Progress for Meddler<F> {
    fn advance(&mut self, phase: Phase, _: u64, _: u64) -> ControlFlow<()> {
        if phase == Phase::Compare
            && let Some(meddle) = self.0.take()
        {
            meddle();
        }
        ControlFlow::Continue(())
    }
}

#[test]
fn files_that_change_are_kept_beside_packed_metadata() {
    let folder = folder();
    let source = folder.path().join("source");
    let text = |seed: u32, len: usize| format!("line {seed} of some text\n").repeat(len / 10).into_bytes();
    let compression = Compression::Zstd { level: 3, window_log2: 19 };
    let coding = Coding { compression, pcluster_bytes: 16_384 };
    for (metabox, packs_directories) in
        [(Metabox::None, true), (Metabox::Inode(None), false), (Metabox::Inode(Some(coding)), true)]
    {
        for fragments in [Fragments::None, Fragments::Tails, Fragments::All] {
            let what = format!("{metabox:?}, {packs_directories}, {fragments:?}");
            let _ = fs::remove_dir_all(&source);
            fs::create_dir_all(source.join("sub")).expect("made");
            for (name, seed) in [("sub/a", 1), ("sub/b", 2), ("same", 1), ("victim", 3), ("vanishing", 4)] {
                fs::write(source.join(name), text(seed, 50_000)).expect("written");
            }
            let mut options = Options::new(image(&folder));
            options.compression = Some(compression);
            options.pcluster_bytes = 16_384;
            options.dedupe = true;
            options.fragments = fragments;
            options.wide = true;
            options.layout.packs_directories = packs_directories;
            options.layout.metabox = metabox;
            let meddle = || {
                fs::write(source.join("victim"), text(5, 20_000)).expect("written");
                fs::remove_file(source.join("vanishing")).expect("removed");
            };
            let mut verifier = ImageVerifier { thoroughness: Thoroughness::Full, jobs: options.jobs };
            let sources = [Source::Directory(source.clone())];
            let built = build_unnamed(&options, &sources, Some(&mut verifier), &mut Meddler(Some(meddle)))
                .and_then(|image| image.finish(&[]));
            let summary = built.unwrap_or_else(|error| panic!("{what}: {error}"));
            assert_eq!(summary.warnings.len(), 2, "{what}: {:?}", summary.warnings);
            assert!(summary.duplicate_bytes >= 50_000, "{what}: {} bytes", summary.duplicate_bytes);
            let opened = Image::open(image(&folder), &OpenOptions::default());
            let opened = opened.unwrap_or_else(|error| panic!("{what}: {error}"));
            assert!(opened.resolve("vanishing").is_err(), "{what}");
            for name in ["sub/a", "sub/b", "same", "victim"] {
                let nid = opened.resolve(name).unwrap_or_else(|error| panic!("{what}: {error}"));
                let expected = fs::read(source.join(name)).expect("read");
                let mut found = vec![0; expected.len() + 1];
                let len = opened.read_at(nid, 0, &mut found).expect("it can be read");
                assert!(found[..len] == expected, "{what}: {name}");
            }
        }
    }
}
