//! Every reference image with the kernel's EROFS in front: what it holds, what other programs do with it, and what corrupt
//! ones do.

mod support;

use std::{
    collections::BTreeSet,
    fs,
    os::unix::fs::MetadataExt,
    path::Path,
    process::Command,
    time::Duration,
};

use floe_testkit::{
    KernelMount, check_rows,
    corpus::{Corpus, Format, Materialised},
    manifest::{Comparison, Manifest, differences},
    mapped_bytes, mount_idmapped, run_bounded, skip,
    walk::{self, DirectoryWalk},
};
use support::{
    Served,
    front::{Scene, ready},
    program::{Place, Serving, floe, run},
};

/// How long reading a corrupt image may take.
const TIME_MAX: Duration = Duration::from_secs(60);

/// What is said of files' data and holes beside what manifests say.
const WITH_HOLES: DirectoryWalk = DirectoryWalk { numbers: false, segments: true, metadata_only: false };

#[test]
fn fronts_show_what_manifests_and_the_kernel_say() {
    if !ready() {
        return;
    }
    let corpus = Corpus::locate_or_fixtures();
    let said_before = kernel_complaints();
    check_rows(
        &support::images(&corpus),
        |image| image.name.clone(),
        |image| {
            let files = corpus.materialise(image);
            let served = match Served::new(&files, "kernel") {
                Ok(served) => served,
                Err(refusal) => return vec![refusal],
            };
            let keeps_directories = image.format == Format::Erofs && image.kernel_is_truth();
            let comparison = Comparison { directory_shape_is_free: !keeps_directories, ..Comparison::default() };
            let manifest = corpus.manifest(image);
            let mut told = Vec::new();
            let mut walks = vec![DirectoryWalk { metadata_only: image.huge, ..WITH_HOLES }];
            // What is huge was read once.
            walks.extend((!image.huge).then_some(DirectoryWalk::default()));
            let mut shown = Vec::new();
            for (round, walk) in walks.iter().enumerate() {
                match walk::directory(&served.path(), *walk) {
                    Ok(found) => {
                        let expected = without_content(&manifest, walk.metadata_only);
                        let complaints = differences(&expected, &found, &comparison);
                        told.extend(complaints.into_iter().map(|complaint| format!("round {round}: {complaint}")));
                        shown.push(found);
                    }
                    Err(error) => told.push(format!("round {round}: {error}")),
                }
                drop_caches();
            }
            if keeps_directories
                && let Some(shown) = shown.first()
                && let Ok(mount) = KernelMount::new(&files)
            {
                let beside = walk::directory(&mount.path(), walks[0]).expect("the kernel's mount is walked");
                let comparison = Comparison { xattrs_are_free: image.xattrs_from.is_some(), ..comparison };
                let complaints = differences(&beside, shown, &comparison);
                told.extend(complaints.into_iter().map(|complaint| format!("beside the kernel: {complaint}")));
            }
            told.extend(served.end());
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
    /// Asks for everything: attributes, targets, and the first bytes of each file. What fails is told by the tools.
    const READ_ALL: &str = r#"
        find "$0" -xdev -ls
        find "$0" -xdev -type f -exec head --quiet --bytes=4M {} + | wc -c
        exit 0
    "#;
    let corpus = Corpus::locate_or_fixtures();
    let said_before = kernel_complaints();
    check_rows(
        &support::corrupt_images(&corpus),
        |image| image.name.clone(),
        |image| {
            let path = corpus.materialise_corrupt(image);
            let files = Materialised { path: path.clone(), format: Format::Erofs, offset: 0, devices: Vec::new() };
            let served = match Served::new(&files, "kernel") {
                Ok(served) => served,
                Err(words) if words.contains("floe: ") && words.lines().count() == 1 => return Vec::new(),
                Err(words) => return vec![words],
            };
            let mut told = Vec::new();
            for _ in 0..2 {
                let run = run_bounded(Command::new("sh").args(["-c", READ_ALL]).arg(served.path()), TIME_MAX);
                if run.expect("sh runs").is_timed_out {
                    told.push(format!("reading the mount takes more than {TIME_MAX:?}"));
                }
                drop_caches();
            }
            told.extend(served.end());
            told
        },
    );
    assert_eq!(kernel_complaints().difference(&said_before).collect::<Vec<_>>(), Vec::<&String>::new());
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

/// An image with a program, capabilities and access control lists in it.
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
    let made = run(floe().args(["mkfs", "--force", "--compress", "lz4"]).arg(&scene.image).arg(&tree));
    if made.status.success() { Ok(scene) } else { Err(String::from_utf8_lossy(&made.stderr).into_owned()) }
}

#[test]
fn other_programs_find_what_they_find_on_the_kernels_own_mount() {
    if !ready() {
        return;
    }
    let scene = match image_with_everything() {
        Ok(scene) => scene,
        Err(reason) => return skip::skipped(&reason),
    };
    let files = Materialised { path: scene.image.clone(), format: Format::Erofs, offset: 0, devices: Vec::new() };
    let kernel = KernelMount::new(&files).expect("the kernel mounts it");
    let serving = scene.fronted("suid");
    let answers = |mount: &Path| {
        let commands = ["getcap -r .", "getfacl -R .", "ls -lR .", "./cat file | md5sum", "getfattr -dR -m- .", "cmp file file"];
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

fn without_content(manifest: &Manifest, is_left_out: bool) -> Manifest {
    let mut manifest = manifest.clone();
    if is_left_out {
        manifest.entries_mut().for_each(|(_, entry)| entry.sha256 = None);
    }
    manifest
}

fn drop_caches() {
    fs::write("/proc/sys/vm/drop_caches", "3").expect("root may");
}

/// The lines of the kernel's log that say that something is wrong with the kernel.
fn kernel_complaints() -> BTreeSet<String> {
    let log = run(&mut Command::new("dmesg"));
    let log = String::from_utf8_lossy(&log.stdout).into_owned();
    let is_complaint = |line: &&str| ["WARNING:", "BUG:", "Oops", "blocked for more than"].iter().any(|word| line.contains(word));
    log.lines().filter(is_complaint).map(str::to_owned).collect()
}
