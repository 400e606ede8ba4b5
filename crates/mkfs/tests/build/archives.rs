//! An image of a tar archive equals the image of the directory from which the archive was made.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::Write,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use floe_mkfs::{Compression, Error, LZ4_WINDOW_MAX, NoProgress, Options, Source, Whiteouts, build};
use floe_testkit::sample;
use tar::{Builder, EntryType};

use crate::{
    differences::{Leave, check_equal, walk},
    raw_archives::header,
    sample_tree::{self, KernelMount, can_mount, noise, text},
};

/// Builds an image of these sources and returns its bytes.
fn image(output: &Path, sources: &[Source], change: impl FnOnce(&mut Options)) -> Result<Vec<u8>, Error> {
    let mut options = Options::new(output);
    options.compression = Some(Compression::Lz4 { window_bytes: LZ4_WINDOW_MAX });
    change(&mut options);
    build(&options, sources, &mut NoProgress)?;
    let bytes = fs::read(output).expect("there is an image");
    fs::remove_file(output).expect("it can be removed");
    Ok(bytes)
}

/// Archives a directory with the program tar.
fn archive(directory: &Path, name: &str, arguments: &[&str], source: &Path) -> PathBuf {
    let path = directory.join(name);
    let output = Command::new("tar")
        .args(["--sort=name", "--numeric-owner", "-c", "-f"])
        .arg(&path)
        .args(arguments)
        .arg("-C")
        .arg(source)
        .arg(".")
        .output()
        .expect("there is tar");
    assert!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
    path
}

const PAX: &[&str] = &["--format=pax", "--xattrs", "--xattrs-include=*", "--pax-option=delete=atime,delete=ctime"];

#[test]
fn an_archive_gives_the_image_of_its_directory() {
    let directory = tempfile::tempdir().unwrap();
    let source = directory.path().join("source");
    fs::create_dir(&source).unwrap();
    sample_tree::make(&source);
    // Archives cannot represent sockets.
    fs::remove_file(source.join("special/socket")).unwrap();
    let output = directory.path().join("image");
    let expected = image(&output, &[Source::Directory(source.clone())], |_| {}).unwrap();
    let archives = [
        ("plain.tar", &[][..]),
        ("sparse-0.0.tar", &["--sparse", "--sparse-version=0.0"]),
        ("sparse-0.1.tar", &["--sparse", "--sparse-version=0.1"]),
        ("sparse-1.0.tar", &["--sparse", "--sparse-version=1.0"]),
        ("packed.tar.gz", &["--gzip"]),
        ("packed.tar.xz", &["-I", "xz -0"]),
        ("packed.tar.lzma", &["-I", "xz -0 --format=lzma"]),
        ("packed.tar.zst", &["-I", "zstd -1"]),
    ];
    for (name, more) in sample(&archives, 3) {
        let made = archive(directory.path(), name, &[PAX, *more].concat(), &source);
        let found = image(&output, &[Source::Tar(made.clone())], |_| {});
        let found = found.unwrap_or_else(|error| panic!("{name}: {error}"));
        assert!(found == expected, "{name} gives another image than its directory");
        fs::remove_file(made).unwrap();
    }
}

#[test]
fn the_kernel_shows_a_gnu_archive_as_its_directory() {
    if !can_mount() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let source = directory.path().join("source");
    fs::create_dir(&source).unwrap();
    sample_tree::make(&source);
    fs::remove_file(source.join("special/socket")).unwrap();
    // GNU headers store whole seconds and no xattrs.
    let leave = Leave { times: true, xattrs: true, ..Leave::default() };
    let expected = walk(&source, leave);
    for (name, more) in [("gnu.tar", &["--format=gnu"][..]), ("sparse.tar", &["--format=gnu", "--sparse"])] {
        let made = archive(directory.path(), name, more, &source);
        let options = Options::new(directory.path().join("image"));
        build(&options, &[Source::Tar(made)], &mut NoProgress).unwrap_or_else(|error| panic!("{name}: {error}"));
        let mount = KernelMount::new(&options.output, None).unwrap_or_else(|error| panic!("{name}: {error}"));
        check_equal(&expected, &walk(mount.path(), leave), name);
    }
}

/// Creates an archive with the crate `tar`.
fn handmade(path: &Path, fill: impl FnOnce(&mut Builder<File>)) -> Source {
    let mut builder = Builder::new(File::create(path).unwrap());
    fill(&mut builder);
    builder.finish().unwrap();
    Source::Tar(path.into())
}

/// Adds a member with this content to an archive; its name is stored unchanged.
fn put(builder: &mut Builder<File>, kind: EntryType, name: &str, link: &str, data: &[u8]) {
    builder.append(&header(kind, name, link, data.len()), data).unwrap();
}

/// Describes a mounted image as the tables do: by paths, with the content of files.
fn listing(root: &Path) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    let mut open = vec![root.to_path_buf()];
    while let Some(path) = open.pop() {
        for entry in fs::read_dir(&path).unwrap() {
            let path = entry.unwrap().path();
            let name = path.strip_prefix(root).unwrap().display().to_string();
            let status = fs::symlink_metadata(&path).unwrap();
            let what = if status.is_dir() {
                open.push(path);
                "/".to_owned()
            } else if status.is_symlink() {
                format!("-> {}", fs::read_link(&path).unwrap().display())
            } else if status.is_file() {
                fs::read_to_string(&path).unwrap()
            } else {
                "device".to_owned()
            };
            found.insert(name, what);
        }
    }
    found
}

/// A layer: names with content; a trailing slash marks a directory, the prefix -> a link.
type Layer = &'static [(&'static str, &'static str)];

/// A layer with a link to a directory.
const BEHIND_A_LINK: Layer = &[("usr/lib/a", "1"), ("lib", "->usr/lib")];

#[test]
fn layers_are_merged_and_whiteouts_apply_to_lower_layers() {
    if !can_mount() {
        return;
    }
    let rows: &[(&str, Whiteouts, &[Layer], Layer)] = &[
        ("later wins", Whiteouts::Apply, &[&[("a", "1"), ("b", "1")], &[("b", "2")]], &[("a", "1"), ("b", "2")]),
        (
            "directories merge",
            Whiteouts::Keep,
            &[&[("d/a", "1")], &[("d/", ""), ("d/b", "2")]],
            &[("d", "/"), ("d/a", "1"), ("d/b", "2")],
        ),
        ("a file takes the place of a directory", Whiteouts::Keep, &[&[("d/a", "1")], &[("d", "2")]], &[("d", "2")]),
        (
            "a directory takes the place of a file",
            Whiteouts::Keep,
            &[&[("d", "1")], &[("d/", ""), ("d/a", "2")]],
            &[("d", "/"), ("d/a", "2")],
        ),
        ("an entry is removed", Whiteouts::Apply, &[&[("a", "1"), ("b", "1")], &[(".wh.a", "")]], &[("b", "1")]),
        ("a directory is removed", Whiteouts::Apply, &[&[("d/e/a", "1")], &[("d/.wh.e", "")]], &[("d", "/")]),
        (
            "a missing entry is removed",
            Whiteouts::Apply,
            &[&[("a", "1")], &[("x/.wh.y", ""), (".wh.z", "")]],
            &[("a", "1")],
        ),
        (
            "entries of the same layer stay",
            Whiteouts::Apply,
            &[&[("a", "1")], &[("a", "2"), (".wh.a", "")]],
            &[("a", "2")],
        ),
        (
            "entries of the same layer stay, in the other order",
            Whiteouts::Apply,
            &[&[("a", "1")], &[(".wh.a", ""), ("a", "2")]],
            &[("a", "2")],
        ),
        (
            "an opaque directory",
            Whiteouts::Apply,
            &[&[("d/a", "1"), ("d/e/b", "1"), ("f", "1")], &[("d/c", "2"), ("d/.wh..wh..opq", ""), ("d/e/g", "2")]],
            &[("d", "/"), ("d/c", "2"), ("d/e", "/"), ("d/e/g", "2"), ("f", "1")],
        ),
        (
            "an opaque directory replaces a link",
            Whiteouts::Apply,
            &[BEHIND_A_LINK, &[("lib/", ""), ("lib/.wh..wh..opq", ""), ("lib/b", "2")]],
            &[("lib", "/"), ("lib/b", "2"), ("usr", "/"), ("usr/lib", "/"), ("usr/lib/a", "1")],
        ),
        (
            "a directory with a whiteout replaces a link",
            Whiteouts::Apply,
            &[BEHIND_A_LINK, &[("lib/.wh.a", ""), ("lib/", ""), ("lib/b", "2")]],
            &[("lib", "/"), ("lib/b", "2"), ("usr", "/"), ("usr/lib", "/"), ("usr/lib/a", "1")],
        ),
        (
            "a removed link is not followed",
            Whiteouts::Apply,
            &[BEHIND_A_LINK, &[("lib/.wh.a", ""), (".wh.lib", "")]],
            &[("usr", "/"), ("usr/lib", "/"), ("usr/lib/a", "1")],
        ),
        (
            "a directory behind a link",
            Whiteouts::Apply,
            &[BEHIND_A_LINK, &[("usr/lib/", ""), ("lib/.wh.a", "")]],
            &[("lib", "-> usr/lib"), ("usr", "/"), ("usr/lib", "/")],
        ),
        (
            "a directory for overlayfs replaces a link",
            Whiteouts::Overlay,
            &[BEHIND_A_LINK, &[("lib/", ""), ("lib/.wh.a", "")]],
            &[("lib", "/"), ("lib/a", "device"), ("usr", "/"), ("usr/lib", "/"), ("usr/lib/a", "1")],
        ),
        ("other names of aufs", Whiteouts::Apply, &[&[(".wh..wh.plnk", ""), ("a", "1")]], &[("a", "1")]),
        ("whiteouts are kept", Whiteouts::Keep, &[&[("a", "1")], &[(".wh.a", "")]], &[(".wh.a", ""), ("a", "1")]),
        (
            "for overlayfs",
            Whiteouts::Overlay,
            &[&[("d/.wh.a", ""), ("b", "1")]],
            &[("b", "1"), ("d", "/"), ("d/a", "device")],
        ),
        (
            "by a link",
            Whiteouts::Apply,
            &[&[("usr/lib/a", "1"), ("lib", "->usr/lib")], &[("lib/b", "2")]],
            &[("lib", "-> usr/lib"), ("usr", "/"), ("usr/lib", "/"), ("usr/lib/a", "1"), ("usr/lib/b", "2")],
        ),
        (
            "links stay within",
            Whiteouts::Apply,
            &[&[("l", "->../../../d"), ("d/a", "1")], &[("l/b", "2")]],
            &[("d", "/"), ("d/a", "1"), ("d/b", "2"), ("l", "-> ../../../d")],
        ),
        (
            "names from the root",
            Whiteouts::Keep,
            &[&[("/a", "1"), ("./b", "1"), ("//c/./d", "1")]],
            &[("a", "1"), ("b", "1"), ("c", "/"), ("c/d", "1")],
        ),
    ];
    let directory = tempfile::tempdir().unwrap();
    for (name, whiteouts, layers, expected) in rows {
        let sources: Vec<Source> = layers
            .iter()
            .enumerate()
            .map(|(number, layer)| {
                handmade(&directory.path().join(format!("{number}.tar")), |builder| {
                    for (path, what) in *layer {
                        match (path.strip_suffix('/'), what.strip_prefix("->")) {
                            (Some(_), _) => put(builder, EntryType::Directory, path, "", b""),
                            (None, Some(target)) => put(builder, EntryType::Symlink, path, target, b""),
                            (None, None) => put(builder, EntryType::Regular, path, "", what.as_bytes()),
                        }
                    }
                })
            })
            .collect();
        let mut options = Options::new(directory.path().join("image"));
        options.whiteouts = *whiteouts;
        build(&options, &sources, &mut NoProgress).unwrap_or_else(|error| panic!("{name}: {error}"));
        let mount = KernelMount::new(&options.output, None).unwrap_or_else(|error| panic!("{name}: {error}"));
        let expected: BTreeMap<String, String> =
            expected.iter().map(|(path, what)| ((*path).to_owned(), (*what).to_owned())).collect();
        assert_eq!(listing(mount.path()), expected, "{name}");
    }
}

#[test]
fn directories_have_whiteouts_too() {
    if !can_mount() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let (below, above) = (directory.path().join("below"), directory.path().join("above"));
    for (root, files) in [(&below, &["a", "d/x", "d/y"][..]), (&above, &[".wh.a", "d/.wh..wh..opq", "d/z"])] {
        fs::create_dir_all(root.join("d")).unwrap();
        for file in files {
            fs::write(root.join(file), "").unwrap();
        }
    }
    let mut options = Options::new(directory.path().join("image"));
    options.whiteouts = Whiteouts::Apply;
    build(&options, &[Source::Directory(below), Source::Directory(above)], &mut NoProgress).unwrap();
    let mount = KernelMount::new(&options.output, None).unwrap();
    let found: Vec<String> = listing(mount.path()).into_keys().collect();
    assert_eq!(found, ["d", "d/z"]);
}

/// Fails unless a build of the archive ends with a one-line error that contains these words, and leaves no output file.
fn check_refused(what: &str, source: Source, output: &Path, words: &[&str]) {
    let before = fs::read_dir(output.parent().unwrap()).unwrap().count();
    let error = image(output, &[source], |_| {}).err().unwrap_or_else(|| panic!("{what} gives an image"));
    let said = error.to_string();
    assert!(!said.contains('\n') && said.len() < 600, "{what}: {said}");
    for word in words {
        assert!(said.contains(word), "{what}: {said}");
    }
    assert_eq!(fs::read_dir(output.parent().unwrap()).unwrap().count(), before, "{what}: {said}");
}

#[test]
fn hostile_members_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let output = directory.path().join("out/image");
    fs::create_dir(directory.path().join("out")).unwrap();
    let path = directory.path().join("made.tar");
    type Fill = fn(&mut Builder<File>);
    let rows: &[(&str, Fill, &[&str])] = &[
        ("up", |b| put(b, EntryType::Regular, "../x", "", b""), &["../x", "'..'"]),
        ("up within", |b| put(b, EntryType::Regular, "a/../../x", "", b""), &["'..'"]),
        ("a link up", |b| put(b, EntryType::Link, "x", "../etc/passwd", b""), &["x: ", "'..'"]),
        ("a link to nothing", |b| put(b, EntryType::Link, "x", "y", b""), &["hard link to y", "does not precede"]),
        ("a link to itself", |b| put(b, EntryType::Link, "x", "x", b""), &["hard link to x"]),
        (
            "a link to a directory",
            |b| {
                put(b, EntryType::Directory, "d", "", b"");
                put(b, EntryType::Link, "x", "d", b"");
            },
            &["hard link to a directory"],
        ),
        (
            "links in a circle",
            |b| {
                put(b, EntryType::Symlink, "a", "b", b"");
                put(b, EntryType::Symlink, "b", "a", b"");
                put(b, EntryType::Regular, "a/x", "", b"");
            },
            &["a/x", "more than 40 symbolic links"],
        ),
        (
            "below a file",
            |b| {
                put(b, EntryType::Regular, "a", "", b"");
                put(b, EntryType::Regular, "a/x", "", b"");
            },
            &["a/x", "not a directory"],
        ),
        (
            "no name",
            |b| put(b, EntryType::Regular, "", "", b""),
            &["made.tar: a member that is not a directory has no name"],
        ),
        ("the root is a file", |b| put(b, EntryType::Regular, ".", "", b""), &["root is not a directory"]),
        ("an unknown type", |b| put(b, EntryType::new(b'Q'), "x", "", b""), &["type 'Q'"]),
        ("a line break", |b| put(b, EntryType::Link, "x\ny", "z", b""), &["x\\ny"]),
        ("a link without a target", |b| put(b, EntryType::Symlink, "x", "", b""), &["link target is empty"]),
        ("a broken record", |b| put(b, EntryType::XHeader, "x", "", b"12 path=\n"), &["byte 0", "length name=value"]),
        (
            "sparse parts that overlap",
            |b| {
                b.append_pax_extensions([("GNU.sparse.map", &b"0,2,1,1"[..]), ("GNU.sparse.realsize", &b"10"[..])])
                    .unwrap();
                put(b, EntryType::Regular, "x", "", b"abc");
            },
            &["overlap"],
        ),
        (
            "a sparse part past the end",
            |b| {
                b.append_pax_extensions([("GNU.sparse.map", &b"9,3"[..]), ("GNU.sparse.realsize", &b"10"[..])])
                    .unwrap();
                put(b, EntryType::Regular, "x", "", b"abc");
            },
            &["exceeds its end"],
        ),
        (
            "less data than its parts",
            |b| {
                b.append_pax_extensions([("GNU.sparse.map", &b"0,9"[..]), ("GNU.sparse.realsize", &b"10"[..])])
                    .unwrap();
                put(b, EntryType::Regular, "x", "", b"abc");
            },
            &["do not match the length of its data"],
        ),
        (
            "a large size",
            |b| {
                b.append_pax_extensions([("size", &b"9223372036854775000"[..])]).unwrap();
                put(b, EntryType::Regular, "x", "", b"abc");
            },
            &["truncated"],
        ),
    ];
    for (what, fill, words) in rows {
        check_refused(what, handmade(&path, fill), &output, words);
    }
}

#[test]
fn broken_archives_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let output = directory.path().join("out/image");
    fs::create_dir(directory.path().join("out")).unwrap();
    let path = directory.path().join("made.tar");
    let source = directory.path().join("source");
    fs::create_dir(&source).unwrap();
    fs::write(source.join("a"), text(200_000, 1)).unwrap();
    fs::write(source.join("b"), noise(5000, 2)).unwrap();
    let whole = fs::read(archive(directory.path(), "whole.tar", PAX, &source)).unwrap();
    let end = whole.iter().rposition(|byte| *byte != 0).unwrap();
    let check = |what: &str, bytes: &[u8], words: &[&str]| {
        fs::write(&path, bytes).unwrap();
        check_refused(what, Source::Tar(path.clone()), &output, words);
    };
    for len in [512, 1024, 1536, 60_000, 200_000, (end + 1).next_multiple_of(512)] {
        check("a part", &whole[..len], &["truncated"]);
    }
    check("something else", &text(5000, 3), &["neither a directory nor a tar archive"]);
    check("bzip2", b"BZh91AY&SY", &["bzip2", "decompress it first"]);
    for at in [0, 124, 148, 156, 257] {
        let mut bytes = whole.clone();
        // After the first header and its extended header.
        let header = bytes.windows(2).position(|pair| pair == b"./").unwrap();
        bytes[header + at] ^= 1;
        check("a changed header", &bytes, &[]);
    }
    for (packer, arguments) in
        [("gzip", &["-c"][..]), ("xz", &["-0", "-c"]), ("lzma", &["-0", "-c"]), ("zstd", &["-q", "-c"])]
    {
        let mut child = Command::new(packer)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("{packer}: {error}"));
        let mut input = child.stdin.take().unwrap();
        let bytes = whole.clone();
        let writer = std::thread::spawn(move || input.write_all(&bytes));
        let packed = child.wait_with_output().unwrap().stdout;
        writer.join().unwrap().unwrap();
        check(packer, &packed[..packed.len() / 2], &["cannot decompress"]);
        let mut changed = packed.clone();
        changed[packed.len() / 2] ^= 0x55;
        check(packer, &changed, &[]);
    }
}

#[test]
fn excluded_members_may_have_other_links() {
    if !can_mount() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let source = handmade(&directory.path().join("made.tar"), |builder| {
        put(builder, EntryType::Regular, "out/x", "", b"content");
        put(builder, EntryType::Link, "kept", "out/x", b"");
    });
    let mut options = Options::new(directory.path().join("image"));
    options.excludes = vec!["out".into()];
    build(&options, &[source], &mut NoProgress).unwrap();
    let mount = KernelMount::new(&options.output, None).unwrap();
    assert_eq!(listing(mount.path()), BTreeMap::from([("kept".to_owned(), "content".to_owned())]));
}
