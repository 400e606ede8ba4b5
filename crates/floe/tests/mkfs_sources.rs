//! What `floe mkfs` makes of its sources: of holes, of lists in archives, of files that change, of what is no source.

use std::{
    fs,
    io::Write,
    ops::ControlFlow,
    os::unix::fs::{FileExt, PermissionsExt},
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    thread,
    time::{Duration, Instant},
};

use floe::{Image, ImageVerifier, OpenOptions, Thoroughness};
use floe_mkfs::{Coding, Compression, Fragments, Metabox, Options, Phase, Progress, Source, build_verified};
use floe_testkit::{
    run_bounded,
    skip::{self, Need},
};
use tempfile::TempDir;

/// How long may take what would never end, or take hours.
const LIMIT: Duration = Duration::from_secs(60);

fn folder() -> TempDir {
    let folder = tempfile::tempdir().expect("a scratch folder");
    fs::create_dir(folder.path().join("source")).expect("made");
    folder
}

fn mkfs(folder: &TempDir, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_floe"));
    command.args(["mkfs", "-q", "image"]).args(arguments).current_dir(folder.path()).stdin(Stdio::null());
    command
}

/// Runs it; gives its exit code and what it said.
fn run(folder: &TempDir, arguments: &[&str]) -> (Option<i32>, String) {
    let run = run_bounded(&mut mkfs(folder, arguments), LIMIT).expect("floe runs");
    assert!(!run.is_timed_out, "{arguments:?} does not end");
    (run.status.code(), run.stderr)
}

fn image(folder: &TempDir) -> PathBuf {
    folder.path().join("image")
}

/// A mount of the image by the kernel, ended when dropped.
struct Mounted(TempDir);

impl Mounted {
    fn new(image: &Path) -> Self {
        let place = tempfile::tempdir().expect("a folder");
        let output = Command::new("mount").args(["-t", "erofs", "-o", "ro"]).arg(image).arg(place.path()).output();
        let output = output.expect("mount runs");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        Self(place)
    }

    fn path(&self, inner: &str) -> PathBuf {
        self.0.path().join(inner)
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.0.path()).status();
    }
}

fn done(command: &mut Command) -> Output {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    output
}

/// Where in the sparse file there is data, and what.
const PARTS: [(u64, &[u8]); 3] = [(0, b"begin"), (5_000_000_001, b"between"), (700_000_000_000, b"end")];

fn put_sparse(path: &Path, size: u64) {
    let file = fs::File::create(path).expect("created");
    file.set_len(size).expect("holes");
    for (offset, bytes) in PARTS.iter().filter(|(offset, _)| *offset < size) {
        file.write_all_at(bytes, *offset).expect("written");
    }
}

fn check_sparse(path: &Path, size: u64) {
    let file = fs::File::open(path).expect("opened");
    assert_eq!(file.metadata().expect("its status").len(), size);
    for (offset, bytes) in PARTS.iter().filter(|(offset, _)| *offset < size) {
        let mut there = vec![1; bytes.len() + 1000];
        let len = file.read_at(&mut there, *offset).expect("read");
        assert!(there[..len].starts_with(bytes) && there[bytes.len()..len].iter().all(|byte| *byte == 0));
    }
    let mut zeros = vec![1; 1 << 16];
    file.read_exact_at(&mut zeros, size / 3).expect("read");
    assert!(zeros.iter().all(|byte| *byte == 0));
}

#[test]
fn work_and_memory_follow_the_data_of_sparse_files() {
    let folder = folder();
    put_sparse(&folder.path().join("source/sparse"), 1 << 40);
    for more in [
        &[][..],
        &["--chunk", "1M"],
        &["--chunk", "64k"],
        &["-z", "lz4"],
        &["-z", "lz4", "--dedupe"],
        &["-b", "64k"],
        &["-b", "64k", "--chunk", "64k"],
        &["-b", "64k", "-z", "lz4"],
    ] {
        let full = ["source", "--verify", "full"];
        let run = run_bounded(&mut mkfs(&folder, &[&full, more].concat()), LIMIT).expect("floe runs");
        assert!(run.status.success(), "{more:?}: {} {:?}", run.stderr, run.status);
        assert!(run.resident_bytes_max < 600 << 20, "{more:?}: {} bytes of memory", run.resident_bytes_max);
        let status = fs::metadata(image(&folder)).expect("there is an image");
        assert!(status.len() < 100 << 20, "{more:?}: {} bytes", status.len());
        // The kernel mounts no image whose blocks are larger than its pages.
        if !more.contains(&"-b") && skip::ready(&[Need::Root]) {
            let mounted = Mounted::new(&image(&folder));
            check_sparse(&mounted.path("sparse"), 1 << 40);
        }
    }
}

#[test]
fn chunks_take_time_for_their_number_and_no_more() {
    let folder = folder();
    let mut state = 1u64;
    let mut bytes = vec![0; 200 << 20];
    for word in bytes.chunks_exact_mut(8) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        word.copy_from_slice(&state.to_le_bytes());
    }
    fs::write(folder.path().join("source/noise"), &bytes).expect("written");
    // 400,000 chunks: where each looks at all of them, this takes minutes.
    assert_eq!(run(&folder, &["source", "--chunk", "512", "-b", "512"]), (Some(0), String::new()));
}

#[test]
fn sparse_members_stay_sparse() {
    let folder = folder();
    let size = 20 << 30;
    put_sparse(&folder.path().join("source/sparse"), size);
    for (name, more) in [
        ("gnu", &["--format=gnu"][..]),
        ("0.0", &["--format=pax", "--sparse-version=0.0"]),
        ("0.1", &["--format=pax", "--sparse-version=0.1"]),
        ("1.0", &["--format=pax", "--sparse-version=1.0"]),
    ] {
        let mut tar = Command::new("tar");
        tar.args(["-S", "-cf", "source.tar"]).args(more).args(["-C", "source", "sparse"]).current_dir(folder.path());
        done(&mut tar);
        for more in [&[][..], &["--chunk", "4k"], &["-z", "zstd"]] {
            assert_eq!(run(&folder, &[&["source.tar"], more].concat()), (Some(0), String::new()), "{name} {more:?}");
            assert!(fs::metadata(image(&folder)).expect("an image").len() < 30 << 20, "{name} {more:?}");
            if skip::ready(&[Need::Root]) {
                check_sparse(&Mounted::new(&image(&folder)).path("sparse"), size);
            }
        }
    }
}

#[test]
fn archives_keep_access_control_lists() {
    if !skip::ready(&[Need::Root]) {
        return;
    }
    let folder = folder();
    let source = folder.path().join("source");
    fs::write(source.join("file"), "text").expect("written");
    fs::write(source.join("plain"), "text").expect("written");
    fs::create_dir(source.join("directory")).expect("made");
    for (entries, path) in [
        ("u::rw-,u:root:rwx,u:4242:r--,g::r--,g:daemon:r-x,m::rw-,o::---", "file"),
        (
            "u::rwx,u:4242:r-x,g::r-x,m::r-x,o::r-x,d:u::rwx,d:u:root:rwx,d:g::r-x,d:g:777:r-x,d:m::rwx,d:o::---",
            "directory",
        ),
    ] {
        done(Command::new("setfacl").args(["--set", entries, path]).current_dir(&source));
    }
    let lists = |root: &Path| done(Command::new("getfacl").args(["-n", "-R", "."]).current_dir(root)).stdout;
    let expected = String::from_utf8(lists(&source)).expect("text");
    assert!(expected.contains("user:4242:r--") && expected.contains("default:group:777:r-x"), "{expected}");
    for (program, more) in [
        ("tar", &["--acls"][..]),
        ("tar", &["--acls", "--numeric-owner"]),
        ("tar", &["--acls", "--xattrs", "--xattrs-include=*"]),
        ("bsdtar", &["--acls", "--format", "pax"]),
        ("bsdtar", &["--acls", "--format", "pax", "--numeric-owner"]),
    ] {
        let mut archiver = Command::new(program);
        archiver.args(more).args(["-cf", "source.tar", "-C", "source", "."]).current_dir(folder.path());
        if archiver.output().is_err() {
            skip::skipped(&format!("there is no {program}"));
            continue;
        }
        done(&mut archiver);
        for more_of_mkfs in [&[][..], &["-z", "lz4"]] {
            let arguments = [&["source.tar"], more_of_mkfs].concat();
            assert_eq!(run(&folder, &arguments), (Some(0), String::new()), "{program} {more:?}");
            let mounted = Mounted::new(&image(&folder));
            let found = String::from_utf8(lists(&mounted.path(""))).expect("text");
            let sorted = |text: &str| {
                let mut parts: Vec<String> = text.split("\n\n").map(str::to_owned).collect();
                parts.sort();
                parts
            };
            assert_eq!(sorted(&found), sorted(&expected), "{program} {more:?}");
            let mode = fs::metadata(mounted.path("file")).expect("its status").permissions().mode();
            assert_eq!(mode & 0o777, 0o660, "{program} {more:?}");
        }
    }
}

/// A header, as ustar has it.
fn header(kind: u8, name: &str, len: usize) -> Vec<u8> {
    let mut block = vec![0; 512];
    let mut put = |at: usize, text: &str| block[at..at + text.len()].copy_from_slice(text.as_bytes());
    put(0, name);
    put(100, "0000664");
    put(108, "0000000");
    put(116, "0000000");
    put(124, &format!("{len:011o}"));
    put(136, "13727720000");
    put(148, "        ");
    put(257, "ustar\x0000");
    block[156] = kind;
    let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
    block[148..155].copy_from_slice(format!("{sum:06o}\0").as_bytes());
    block
}

/// A pax archive of one member with these records.
fn pax_archive(path: &Path, kind: u8, name: &str, records: &[(&str, &[u8])], data: &[u8]) {
    let mut text = Vec::new();
    for (name, value) in records {
        let record = [b" ", name.as_bytes(), b"=", value, b"\n"].concat();
        let mut len = record.len() + 1;
        while len != record.len() + len.to_string().len() {
            len += 1;
        }
        text.extend(len.to_string().into_bytes());
        text.extend(record);
    }
    let mut archive = Vec::new();
    for (kind, name, data) in [(b'x', "records", text.as_slice()), (kind, name, data)] {
        archive.extend(header(kind, name, data.len()));
        archive.extend_from_slice(data);
        archive.resize(archive.len().next_multiple_of(512), 0);
    }
    archive.resize(archive.len() + 1024, 0);
    fs::write(path, archive).expect("written");
}

#[test]
fn lists_that_cannot_be_kept_are_told() {
    let folder = folder();
    let archive = folder.path().join("made.tar");
    for (record, text, exit, words) in [
        (
            "SCHILY.acl.access",
            "user::rw-,user:no-such-user:r--,group::r--,mask::r--,other::---",
            1,
            "user whose number is not known",
        ),
        ("SCHILY.acl.access", "user::rw-,rubbish", 1, "an entry that is none: rubbish"),
        ("SCHILY.acl.default", "user::rw-,group::r--,other::---", 1, "cannot have"),
        ("SCHILY.acl.ace", "everyone@:rwx::allow", 0, "left out"),
    ] {
        pax_archive(&archive, b'0', "member", &[(record, text.as_bytes())], b"text");
        let (code, said) = run(&folder, &["made.tar"]);
        assert_eq!(code, Some(exit), "{text}: {said}");
        assert!(said.contains("member: ") && said.contains(words) && said.lines().count() == 1, "{text}: {said}");
        assert_eq!(image(&folder).exists(), exit == 0, "{text}");
    }
}

#[test]
fn what_is_no_archive_is_refused_by_its_name() {
    let folder = folder();
    fs::write(folder.path().join("source/file"), "text").expect("written");
    assert_eq!(run(&folder, &["source"]).0, Some(0));
    fs::rename(image(&folder), folder.path().join("other.erofs")).expect("renamed");
    let mut late = vec![0; 40 << 10];
    late[20_000] = 1;
    let mut ext4 = vec![0; 40 << 10];
    ext4[1080..1082].copy_from_slice(&[0x53, 0xef]);
    let files: [(&str, &[u8], &str); 8] = [
        ("squashfs", &[b"hsqs".as_slice(), &[7; 2000]].concat(), "a SquashFS image"),
        ("elf", &[b"\x7fELF".as_slice(), &[7; 2000]].concat(), "a program"),
        ("zip", &[b"PK\x03\x04".as_slice(), &[7; 2000]].concat(), "zip"),
        ("ext4", &ext4, "an ext4 image"),
        ("late", &late, "neither a directory nor a tar archive"),
        ("zeros", &vec![0; 2 << 20], "neither a directory nor a tar archive"),
        ("text", &b"text\n".repeat(1000), "neither a directory nor a tar archive"),
        ("cut", b"", "cut off"),
    ];
    for (name, bytes, _) in files {
        fs::write(folder.path().join(name), bytes).expect("written");
    }
    let erofs = [("other.erofs", &b""[..], "an EROFS image")];
    for (name, _, words) in files.iter().chain(&erofs) {
        let (code, said) = run(&folder, &[name]);
        assert_eq!(code, Some(1), "{name}: {said}");
        assert!(said.contains(words) && said.contains(name) && said.lines().count() == 1, "{name}: {said}");
        assert!(!image(&folder).exists(), "{name}");
    }
    done(Command::new("tar").args(["-cf", "empty.tar", "-T", "/dev/null"]).current_dir(folder.path()));
    done(Command::new("gzip").args(["-k", "empty.tar"]).current_dir(folder.path()));
    for name in ["empty.tar", "empty.tar.gz"] {
        assert_eq!(run(&folder, &[name]), (Some(0), String::new()), "{name}");
    }
}

#[test]
fn members_with_sizes_that_overflow_end_it() {
    let folder = folder();
    let archive = folder.path().join("made.tar");
    for kind in [b'0', b'1', b'2', b'3', b'5', b'6', b'7', b'D', b'L', b'K', b'x', b'g', b'V', b'S', b'M'] {
        for size in ["18446744073709550080", "18446744073709551615", "18446744073709551104", "9223372036854775807"] {
            pax_archive(&archive, kind, "member", &[("size", size.as_bytes())], b"");
            // Whatever comes of it: it ends, with an image or with a line.
            let (code, said) = run(&folder, &["made.tar"]);
            assert!(matches!(code, Some(0 | 1)) && said.lines().count() <= 1, "{}: {size}: {said}", char::from(kind));
            if kind == b'D' {
                assert!(said.contains("cut off"), "{said}");
            }
        }
    }
    let sparse: [&[(&str, &[u8])]; 3] = [
        &[("GNU.sparse.map", b"18446744073709551000,600"), ("GNU.sparse.realsize", b"18446744073709551615")],
        &[("GNU.sparse.map", b"0,18446744073709551615"), ("GNU.sparse.realsize", b"18446744073709551615")],
        &[("GNU.sparse.major", b"1"), ("GNU.sparse.minor", b"0"), ("GNU.sparse.realsize", b"1")],
    ];
    for records in sparse {
        pax_archive(&archive, b'0', "member", records, &[b'9'; 512]);
        let (code, said) = run(&folder, &["made.tar"]);
        assert!(code == Some(1) && said.lines().count() == 1, "{records:?}: {code:?} {said}");
    }
}

/// Starts a build that waits for its standard input after the source was listed, and calls `meddle` then.
fn meddled(folder: &TempDir, more: &[&str], meddle: impl FnOnce()) -> Output {
    let mut command = mkfs(folder, &[&["source", "-"], more].concat());
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("floe runs");
    // An archive from the standard input is copied after the directory before it was listed: once the first bytes are
    // taken, that is so. A pipe holds 64 KiB, so that writing more than that waits for it.
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

/// Calls itself once, when the tree is listed and files are compared.
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
            let built = build_verified(&options, &sources, &mut verifier, &mut Meddler(Some(meddle)));
            let summary = built.unwrap_or_else(|error| panic!("{what}: {error}"));
            assert_eq!(summary.warnings.len(), 2, "{what}: {:?}", summary.warnings);
            assert!(summary.duplicate_bytes >= 50_000, "{what}: {} bytes", summary.duplicate_bytes);
            let opened = Image::open(&image(&folder), &OpenOptions::default());
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

#[test]
fn refused_memory_ends_it_without_an_image() {
    let folder = folder();
    let text: String = (0..60_000).map(|number| format!("{number} of some numbers\n")).collect();
    for file in 0..2 {
        fs::write(folder.path().join(format!("source/{file}")), format!("{file}{text}")).expect("written");
    }
    let floe = env!("CARGO_BIN_EXE_floe");
    let mut refused = 0;
    for kibibytes in [50_000, 100_000, 200_000] {
        for more in ["-z lz4", "-z lz4 --dedupe --verify full", "-z lzma -C 1M -j 2", "-z zstd,19 --fragments all"] {
            let script = format!("ulimit -v {kibibytes}; exec {floe} mkfs -q image source {more}");
            let output = Command::new("sh").args(["-c", &script]).current_dir(folder.path()).output().expect("sh runs");
            let said = String::from_utf8_lossy(&output.stderr);
            let left: Vec<_> = fs::read_dir(folder.path()).expect("listed").collect();
            if output.status.success() {
                fs::remove_file(image(&folder)).expect("there is an image");
                continue;
            }
            refused += 1;
            assert_eq!(output.status.code(), Some(1), "{kibibytes} {more}: {} {said}", output.status);
            assert_eq!(said.trim().lines().count(), 1, "{kibibytes} {more}: {said}");
            assert_eq!(left.len(), 1, "{kibibytes} {more}: {left:?}");
        }
    }
    assert!(refused > 0, "nothing was refused");
}

#[test]
fn few_descriptors_are_enough() {
    let folder = folder();
    for directory in 0..100 {
        fs::create_dir(folder.path().join(format!("source/{directory}"))).expect("made");
        for file in 0..10 {
            fs::write(folder.path().join(format!("source/{directory}/{file}")), "text".repeat(file * 999))
                .expect("written");
        }
    }
    let floe = env!("CARGO_BIN_EXE_floe");
    let script = format!("ulimit -n 64; exec {floe} mkfs -q image source -j 200 -z lz4 --dedupe --verify=full");
    let output = Command::new("sh").args(["-c", &script]).current_dir(folder.path()).output().expect("sh runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn a_directory_that_becomes_a_link_is_not_followed() {
    let folder = folder();
    let outside = folder.path().join("outside");
    fs::create_dir_all(outside.join("sub")).expect("made");
    fs::write(outside.join("sub/secret-name"), "secret").expect("written");
    let base = folder.path().join("source");
    // Many directories are listed before the last, so that it is swapped between being seen and being entered.
    for number in 0..300 {
        fs::create_dir_all(base.join(format!("{number}/sub"))).expect("made");
        for file in 0..20 {
            fs::write(base.join(format!("{number}/{file}")), "").expect("written");
        }
    }
    for _ in 0..5 {
        let mut child = mkfs(&folder, &["source"]).stderr(Stdio::null()).spawn().expect("floe runs");
        let victim = base.join("299");
        let aside = folder.path().join("aside");
        while child.try_wait().expect("our own child").is_none() {
            fs::rename(&victim, &aside).expect("renamed");
            std::os::unix::fs::symlink(&outside, &victim).expect("linked");
            fs::remove_file(&victim).expect("removed");
            fs::rename(&aside, &victim).expect("renamed");
        }
        let listed =
            Command::new(env!("CARGO_BIN_EXE_floe")).args(["ls", "-R", "image"]).current_dir(folder.path()).output();
        let listed = String::from_utf8(listed.expect("floe runs").stdout).expect("text");
        assert!(!listed.contains("secret-name"), "what a link leads to is in the image");
    }
}

/// Ends a child by a signal; gives how long that took.
fn ended(child: &mut Child, signal: &str) -> Duration {
    let begin = Instant::now();
    done(Command::new("kill").args([signal, &child.id().to_string()]));
    while child.try_wait().expect("our own child").is_none() && begin.elapsed() < LIMIT {
        thread::sleep(Duration::from_millis(5));
    }
    let _ = child.kill();
    begin.elapsed()
}

/// Waits until the process does something about SIGTERM itself, and a little longer.
fn until_signals_are_caught(pid: u32) {
    let begin = Instant::now();
    let is_caught = || {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
        caught.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).is_some_and(|mask| mask >> 14 & 1 == 1)
    };
    while !is_caught() {
        assert!(begin.elapsed() < LIMIT, "it does not watch for signals");
        thread::sleep(Duration::from_millis(5));
    }
    thread::sleep(Duration::from_millis(200));
}

#[test]
fn a_signal_ends_what_waits_and_what_computes() {
    let folder = folder();
    let text: Vec<u8> = (0..6_000_000u64).flat_map(|n| format!("{} ", n * n % 99_991).into_bytes()).collect();
    fs::write(folder.path().join("source/text"), text).expect("written");
    for (signal, more) in [("-TERM", &["-"][..]), ("-INT", &["source", "-z", "lzma,9", "-C", "1M"])] {
        let mut command = mkfs(&folder, more);
        let mut child = command.stdin(Stdio::piped()).stderr(Stdio::null()).spawn().expect("floe runs");
        let _kept_open = child.stdin.take();
        until_signals_are_caught(child.id());
        let took = ended(&mut child, signal);
        // Far below what the work takes, and the machine may be busy.
        assert!(took < LIMIT / 6, "{more:?}: {took:?}");
        assert_eq!(child.wait().expect("it ended").code(), Some(130), "{more:?}");
        let left = fs::read_dir(folder.path()).expect("listed").count();
        assert_eq!(left, 1, "{more:?}: something is left besides the source");
    }
}
