//! `floe record` and `floe mkfs --profile`: what a launch reads comes first, and is listed.

use std::{
    fs,
    path::Path,
    process::{Command, Output, Stdio},
};

use floe::{ByteRange, Extent, ExtentData, FormatImage, Image, Nid, OpenOptions};
use floe_testkit::skip::{self, Need};

fn floe(folder: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_floe"));
    command.args(arguments).current_dir(folder).stdin(Stdio::null()).output().expect("floe runs")
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn open(folder: &Path, name: &str) -> Image {
    Image::open(folder.join(name), &OpenOptions::default()).unwrap_or_else(|error| panic!("{name}: {error}"))
}

fn launch_list(image: &Image) -> Vec<(Nid, ByteRange)> {
    let FormatImage::Erofs(erofs) = image.format_image() else { panic!("it is EROFS") };
    erofs.launch_list().expect("it can be read")
}

/// The first byte of the image that a file's data is in.
fn first_byte(image: &Image, path: &str) -> u64 {
    let nid = image.resolve(path).expect("it is there");
    let mut extents: Vec<Extent> = Vec::new();
    image.file_system().map(nid, ByteRange::new(0, 1), &mut extents).expect("mapped");
    match extents.first().expect("there is one").data {
        ExtentData::Plain { offset, .. } => offset,
        ExtentData::Encoded { block, .. } => block.offset,
        ExtentData::Hole => panic!("{path} is a hole"),
    }
}

/// A folder with a tree of numbered files in `source`, of 20 KiB each.
fn scene() -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    let source = folder.path().join("source/d");
    fs::create_dir_all(&source).expect("made");
    for number in 0..40u64 {
        let line = |at: u64| format!("{} {}\n", at, at.wrapping_mul(0x9E37_79B9_7F4A_7C15 + number));
        let text: String = (0..).map(line).take(1000).collect();
        fs::write(source.join(format!("{number:02}")), &text[..20 << 10]).expect("written");
    }
    folder
}

/// The files that a launch reads, in an order that is not that of their names.
const READ: [&str; 4] = ["/d/31", "/d/07", "/d/22", "/d/08"];

#[test]
fn what_is_recorded_comes_first() {
    let scene = scene();
    let folder = scene.path();
    let lines: String = READ.iter().map(|path| format!("4096 8192 {path}\n")).collect();
    fs::write(folder.join("profile"), format!("# floe profile 1\n{lines}0 1 /d/missing\n")).expect("written");
    for more in [&[][..], &["-z", "lz4"], &["-z", "zstd", "--dedupe"], &["--chunk", "4k"]] {
        let build = |image, profile: &[&str]| {
            let output = floe(folder, &[&["mkfs", image, "source", "--verify=full"], profile, more].concat());
            assert!(output.status.success(), "{more:?}: {}", said(&output));
            said(&output)
        };
        build("plain", &[]);
        let told = build("profiled", &["--profile", "profile"]);
        assert!(told.contains("1 ranges of the profile are of files"), "{told}");
        let (plain, profiled) = (open(folder, "plain"), open(folder, "profiled"));
        assert_eq!(launch_list(&plain), []);
        let nid = |path: &&str| profiled.resolve(path).expect("it is there");
        let expected: Vec<_> = READ.iter().map(|path| (nid(path), ByteRange::new(4096, 8192))).collect();
        assert_eq!(launch_list(&profiled), expected, "{more:?}");
        let places = READ.map(|path| first_byte(&profiled, path));
        assert!(places.is_sorted(), "{more:?}: {places:?}");
        let rest = (0..40).map(|number| format!("/d/{number:02}")).filter(|path| !READ.contains(&path.as_str()));
        assert!(rest.map(|path| first_byte(&profiled, &path)).all(|place| place > places[3]), "{more:?}");
        profiled.read_ahead_of_launch();
        // What no reader looks at may be anything.
        let bytes = fs::read(folder.join("profiled")).expect("read");
        let start = bytes.len() - 4096;
        for place in [0, 8, 12, 16, 30, 47] {
            let mut bytes = bytes.clone();
            bytes[start + place] ^= 0xff;
            fs::write(folder.join("changed"), bytes).expect("written");
            assert_eq!(launch_list(&open(folder, "changed")), [], "{more:?}: byte {place}");
        }
        fs::write(folder.join("changed"), &bytes[..start + 40]).expect("written");
        assert_eq!(launch_list(&open(folder, "changed")), [], "{more:?}: cut off");
    }
}

#[test]
fn a_launch_is_recorded_as_it_reads() {
    if !skip::ready(&[Need::Root, Need::Fuse, Need::KernelErofs]) {
        return;
    }
    let scene = scene();
    let folder = scene.path();
    fs::create_dir(folder.join("mount")).expect("made");
    let paths = READ.map(|path| format!("mount{path}"));
    let run = |arguments: &[&str]| {
        let output = floe(folder, arguments);
        assert!(output.status.success(), "{arguments:?}: {}", said(&output));
        output
    };
    run(&["mkfs", "image", "source", "-z", "lz4", "-C", "16k"]);
    let cat: Vec<&str> = ["cat"].into_iter().chain(paths.iter().map(String::as_str)).collect();
    let record = |more: &[&str]| run(&[&["record", "mount", "--output", "profile"], more, &["--"], &cat].concat());
    let check = |what: &str, output: &Output| {
        assert_eq!(output.stdout.len(), READ.len() * (20 << 10), "{what}");
        let profile = fs::read_to_string(folder.join("profile")).expect("written");
        let found: Vec<&str> = profile.lines().skip(1).collect();
        assert_eq!(found, READ.map(|path| format!("0 20480 {path}")), "{what}");
    };
    check("with nothing mounted", &record(&["--image", "image"]));
    run(&["mount", "image", "mount", "--daemon"]);
    // What is in memory already is recorded too.
    fs::read(folder.join("mount/d/07")).expect("read");
    check("over a mount of ours", &record(&[]));
    assert!(folder.join("mount/d/07").exists(), "the mount from before is still there");
    run(&["umount", "mount"]);
    let ours = Command::new("mount").args(["-t", "erofs", "-o", "ro", "image", "mount"]).current_dir(folder).status();
    assert!(ours.expect("mount runs").success());
    // The kernel shows the file only where the source is a device.
    check("over a mount of the kernel", &record(&["--image", "image"]));
    assert!(Command::new("umount").arg(folder.join("mount")).status().expect("umount runs").success());

    // The image with the profile is mounted by the kernel like any other, and by Floe.
    run(&["mkfs", "image", "source", "-z", "lz4", "-C", "16k", "--profile", "profile"]);
    for mount in [&["mount", "-t", "erofs", "-o", "ro"][..], &[env!("CARGO_BIN_EXE_floe"), "mount", "--daemon"]] {
        let mut command = Command::new(mount[0]);
        command.args(&mount[1..]).args(["image", "mount"]).current_dir(folder).stdin(Stdio::null());
        assert!(command.status().expect("it runs").success(), "{mount:?}");
        let same = Command::new("diff").args(["-r", "source", "mount"]).current_dir(folder).status();
        assert!(Command::new("umount").arg(folder.join("mount")).status().expect("umount runs").success());
        assert!(same.expect("diff runs").success(), "{mount:?}");
    }
}

#[test]
fn a_command_that_fails_is_told_by_its_code() {
    if !skip::ready(&[Need::Fuse]) {
        return;
    }
    let scene = scene();
    let folder = scene.path();
    fs::create_dir(folder.join("mount")).expect("made");
    assert!(floe(folder, &["mkfs", "image", "source"]).status.success());
    for (arguments, exit, words) in [
        (&["--image", "image", "--", "sh", "-c", "exit 7"][..], 7, "0 ranges"),
        (&["--image", "image", "--", "/nothing/there"], 1, "/nothing/there: No such file"),
        (&["--", "true"], 2, "name the image with --image"),
        (&["--image", "missing", "--", "true"], 1, "missing: No such file"),
    ] {
        let output = floe(folder, &[&["record", "mount"], arguments].concat());
        assert_eq!(output.status.code(), Some(exit), "{arguments:?}: {}", said(&output));
        assert!(said(&output).contains(words), "{arguments:?}: {}", said(&output));
        assert_eq!(fs::read_dir(folder.join("mount")).expect("listed").count(), 0, "{arguments:?}");
    }
}
