//! Each reference image with the kernel's EROFS in front: its contents, other programs that use it, and corrupt images.

use std::{collections::BTreeSet, fs, os::unix::fs::MetadataExt, path::Path, process::Command, time::Duration};

use floe_testkit::{
    KernelCaches, KernelMount, check_rows,
    corpus::{Corpus, Format, Materialised},
    drop_kernel_caches,
    manifest::{Comparison, Manifest, differences},
    mapped_bytes, mount_idmapped, run_bounded, sample, skip,
    walk::{self, DirectoryWalk},
};

use crate::support::{
    Served,
    front::{Scene, ready},
    program::{Place, Serving, floe, run},
};

/// The type of the kernel's EROFS in `statfs`.
const EROFS_MAGIC: i64 = 0xe0f5_e1e2;

/// How long reading a corrupt image may take.
const TIME_MAX: Duration = Duration::from_secs(300);

/// One corrupt image of so many is mounted for each commit, all of them by `cargo xtask nightly`.
const CORRUPT_IMAGES_STEP: usize = 3;

/// The number of images that are mounted at a time.
const BATCH: usize = 64;

#[test]
fn fronts_match_manifests_and_the_kernel() {
    if !ready() {
        return;
    }
    let corpus = Corpus::locate_or_fixtures();
    let said_before = kernel_complaints();
    check_batches(
        &crate::support::images(&corpus),
        |image| (image.name.clone(), Served::new(&corpus.materialise(image), "auto")),
        |image, served, round| {
            if rustix::fs::statfs(served.path()).expect("mounted").f_type != EROFS_MAGIC {
                return vec!["the kernel's EROFS is not in front".to_owned()];
            }
            // Huge images are not read.
            let walk = DirectoryWalk { metadata_only: image.huge, segments: round == 0, numbers: false };
            let found = match walk::directory(&served.path(), walk) {
                Ok(found) => found,
                Err(error) => return vec![error.to_string()],
            };
            let files = corpus.materialise(image);
            let keeps_shape =
                image.format == Format::Erofs && image.kernel_is_truth() && has_shape_of_virtual_image(&files);
            let comparison = Comparison { directory_shape_is_free: !keeps_shape, ..Comparison::default() };
            let expected = without_content(&corpus.manifest(image), image.huge);
            let mut told = differences(&expected, &found, &comparison);
            if round == 0
                && keeps_shape
                && let Ok(mount) = KernelMount::new(&files)
            {
                let beside = walk::directory(&mount.path(), walk).expect("the kernel's mount is walked");
                let comparison = Comparison { xattrs_are_free: image.xattrs_from.is_some(), ..comparison };
                let complaints = differences(&beside, &found, &comparison);
                told.extend(complaints.into_iter().map(|complaint| format!("beside the kernel: {complaint}")));
            }
            told
        },
    );
    assert_eq!(kernel_complaints().difference(&said_before).collect::<Vec<_>>(), Vec::<&String>::new());
}

#[test]
fn fronts_of_corrupt_images_give_errors_or_data() {
    if !ready() {
        return;
    }
    /// Reads everything: attributes, targets, and the first bytes of each file. The tools report failures.
    const READ_ALL: &str = r#"
        find "$0" -xdev -ls
        find "$0" -xdev -type f -exec head --quiet --bytes=4M {} + | wc -c
        exit 0
    "#;
    let corpus = Corpus::locate_or_fixtures();
    let said_before = kernel_complaints();
    check_batches(
        &sample(&crate::support::corrupt_images(&corpus), CORRUPT_IMAGES_STEP),
        |image| {
            let path = corpus.materialise_corrupt(image);
            let files = Materialised::single(path, Format::Erofs);
            let served = Served::new(&files, "kernel");
            let is_told = |words: &String| words.contains("floe: ") && words.lines().count() == 1;
            // An image that is refused with a one-line message is not mounted.
            (image.name.clone(), served.map_err(|words| if is_told(&words) { String::new() } else { words }))
        },
        |_, served, _| {
            let run = run_bounded(Command::new("sh").args(["-c", READ_ALL]).arg(served.path()), TIME_MAX);
            let is_late = run.expect("sh runs").is_timed_out;
            is_late.then(|| format!("reading the mount takes more than {TIME_MAX:?}")).into_iter().collect()
        },
    );
    assert_eq!(kernel_complaints().difference(&said_before).collect::<Vec<_>>(), Vec::<&String>::new());
}

/// Mounts some images at a time, and examines each before and after all caches are dropped. Dropping caches affects the
/// whole machine, so it is done once for all of them. An image that is refused with a message is skipped.
fn check_batches<Image: Sync>(
    images: &[Image],
    mount: impl Fn(&Image) -> (String, Result<Served, String>) + Sync,
    look: impl Fn(&Image, &Served, usize) -> Vec<String> + Sync,
) {
    let batches: Vec<&[Image]> = images.chunks(BATCH).collect();
    let rows: Vec<usize> = (0..batches.len()).collect();
    check_rows(
        &rows,
        |row| format!("batch {row}"),
        |row| {
            let mut told = Vec::new();
            let mut mounted = Vec::new();
            for image in batches[*row] {
                match mount(image) {
                    (name, Ok(served)) => mounted.push((image, name, served)),
                    (_, Err(words)) if words.is_empty() => {}
                    (name, Err(words)) => told.push(format!("{name}: {words}")),
                }
            }
            for round in 0..2 {
                for (image, name, served) in &mounted {
                    let complaints = look(image, served, round);
                    told.extend(complaints.into_iter().map(|complaint| format!("{name}, round {round}: {complaint}")));
                }
                if round == 0 && !drop_kernel_caches(KernelCaches::All) {
                    break;
                }
            }
            for (_, name, served) in mounted {
                told.extend(served.end().into_iter().map(|complaint| format!("{name}: {complaint}")));
            }
            told
        },
    );
}

#[test]
fn owners_are_replaced() {
    if !ready() {
        return;
    }
    let scene = Scene::new(&[("a", 100), ("directory/b", 100)]);
    for (options, expected) in [("uid=12,gid=34", (12, 34)), ("uid=70000", (70_000, 0)), ("gid=5", (0, 5))] {
        let serving = scene.fronted(options);
        for name in ["", "a", "directory", "directory/b"] {
            let stat = fs::symlink_metadata(serving.place.file(name)).expect("it is there");
            assert_eq!((stat.uid(), stat.gid()), expected, "{options} {name}");
        }
        assert_eq!(scene.wrong(&serving.place.path), [""; 0]);
    }
}

/// An image with a program, capabilities and access control lists.
fn image_with_everything() -> Result<Scene, String> {
    let scene = Scene::new(&[("file", 300_000), ("other", 100)]);
    let tree = scene.folder.path().join("tree");
    fs::copy("/bin/cat", tree.join("cat")).map_err(|error| error.to_string())?;
    for command in [&["setcap", "cap_net_raw+ep"][..], &["setfacl", "-m", "u:12:r,g:34:rw"]] {
        let mut marking = Command::new(command[0]);
        let status = marking.args(&command[1..]).arg(tree.join("cat")).status();
        if !status.is_ok_and(|status| status.success()) {
            return Err(format!("{} does not work here", command[0]));
        }
    }
    fs::remove_file(&scene.image).map_err(|error| error.to_string())?;
    let made = run(floe().args(["mkfs", "--compress", "lz4"]).arg(&scene.image).arg(&tree));
    if made.status.success() { Ok(scene) } else { Err(String::from_utf8_lossy(&made.stderr).into_owned()) }
}

#[test]
fn other_programs_find_what_they_find_on_the_kernels_own_mount() {
    if !ready() || !skip::ready(&["getcap", "getfacl", "getfattr"].map(skip::Need::Peer)) {
        return;
    }
    let scene = match image_with_everything() {
        Ok(scene) => scene,
        Err(reason) => return skip::skipped(&reason),
    };
    let files = Materialised::single(&scene.image, Format::Erofs);
    let kernel = KernelMount::new(&files).expect("the kernel mounts it");
    let serving = scene.fronted("suid");
    let answers = |mount: &Path| {
        let commands = [
            "getcap -r .",
            "getfacl -R .",
            "ls -lR . | grep -v ^total",
            "./cat file | md5sum",
            "getfattr -dR -m- .",
            "cmp file file",
        ];
        commands.map(|text| {
            let output = run(Command::new("sh").args(["-c", text]).current_dir(mount));
            assert!(output.status.success(), "{text}: {output:?}");
            String::from_utf8_lossy(&output.stdout).into_owned()
        })
    };
    let expected = answers(&kernel.path());
    assert!(expected[0].contains("cap_net_raw") && expected[1].contains("user:12:r"), "{expected:?}");
    assert_eq!(answers(&serving.place.path), expected);
}

#[test]
fn files_are_mapped_and_fronts_are_lower_directories() {
    if !ready() {
        return;
    }
    let scene = Scene::new(&[("file", 300_000), ("directory/other", 5000)]);
    let serving = scene.fronted("ro");
    let file = fs::File::open(serving.place.file("file")).expect("a file");
    assert!(mapped_bytes(&file, 300_000).expect("a mapping") == scene.contents[Path::new("file")]);
    drop(file);

    let above = scene.folder.path().join("above");
    for name in ["upper", "work"] {
        fs::create_dir_all(above.join(name)).expect("ours");
    }
    let merged = Place::new();
    let options = format!(
        "lowerdir={},upperdir={above}/upper,workdir={above}/work",
        serving.place.path.display(),
        above = above.display()
    );
    let output = run(Command::new("mount").args(["-t", "overlay", "overlay", "-o", &options]).arg(&merged.path));
    if !output.status.success() {
        return skip::skipped(&format!("overlayfs: {}", String::from_utf8_lossy(&output.stderr).trim()));
    }
    assert_eq!(scene.wrong(&merged.path), [""; 0]);
    fs::write(merged.file("file"), "new").expect("a copy-up");
    assert_eq!(fs::read(merged.file("file")).expect("data"), b"new");
    assert_eq!(scene.wrong(&serving.place.path), [""; 0]);
}

#[test]
fn fronts_can_be_mounted_with_other_owners() {
    if !ready() {
        return;
    }
    let scene = Scene::new(&[("file", 5000)]);
    let serving: Serving = scene.fronted("ro");
    let shifted = Place::new();
    if let Err(error) = mount_idmapped(&serving.place.path, &shifted.path, 100_000) {
        panic!("an idmapped mount: {error}");
    }
    let stat = fs::metadata(shifted.file("file")).expect("it is there");
    assert_eq!((stat.uid(), stat.gid()), (100_000, 100_000));
    assert_eq!(scene.wrong(&shifted.path), [""; 0]);
}

/// Whether an EROFS image has 4 KiB blocks, and `.` and `..` in its directories (no 48-bit layout, which may omit them).
/// Only then do directories have the same size in the virtual image, and holes the same start.
fn has_shape_of_virtual_image(files: &Materialised) -> bool {
    const SUPERBLOCK: u64 = 1024;
    const INCOMPATIBLE_48BIT: u32 = 0x80;
    let mut superblock = [0; 128];
    let image = fs::File::open(&files.path).expect("it is there");
    std::os::unix::fs::FileExt::read_exact_at(&image, &mut superblock, files.offset + SUPERBLOCK)
        .expect("a superblock");
    let incompatible = u32::from_le_bytes(superblock[80..84].try_into().expect("four bytes"));
    superblock[12] == 12 && incompatible & INCOMPATIBLE_48BIT == 0
}

fn without_content(manifest: &Manifest, is_left_out: bool) -> Manifest {
    let mut manifest = manifest.clone();
    if is_left_out {
        manifest.entries_mut().for_each(|(_, entry)| entry.sha256 = None);
    }
    manifest
}

/// The lines of the kernel's log about kernel faults, except warnings of the file system that contains the test files.
fn kernel_complaints() -> BTreeSet<String> {
    let log = run(&mut Command::new("dmesg"));
    let log = String::from_utf8_lossy(&log.stdout).into_owned();
    let is_of_disk = |line: &str| ["ext4", "xfs", "btrfs"].iter().any(|name| line.contains(&format!(" at fs/{name}/")));
    let words = ["WARNING:", "BUG:", "Oops", "blocked for more than"];
    let is_complaint = |line: &&str| words.iter().any(|word| line.contains(word)) && !is_of_disk(line);
    log.lines().filter(is_complaint).map(str::to_owned).collect()
}
