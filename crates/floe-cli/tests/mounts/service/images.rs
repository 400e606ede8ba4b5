//! Many images in one service: what is read, and what each further mount costs.

use std::{
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
};

use floe_testkit::{
    corpus::{Corpus, ImageRecord},
    manifest::{Comparison, differences},
    skip::{Need, ready},
    walk::{self, DirectoryWalk},
};
use rustix::process::Pid;

use crate::support::{
    program::{Place, demo, floe, run, told, until},
    service::Service,
};

/// The number of images in the service at a time.
const IMAGES: usize = 20;

/// The largest tree that is read, in bytes.
const TREE_BYTES_MAX: u64 = 64 << 20;

fn can_mount() -> bool {
    ready(&[Need::Root, Need::Fuse])
}

/// The names of the threads of a process.
pub(super) fn threads_of(process: Pid) -> Vec<String> {
    let tasks = fs::read_dir(format!("/proc/{}/task", process.as_raw_nonzero())).expect("it runs");
    let names = tasks.flatten().map(|task| fs::read_to_string(task.path().join("comm")).unwrap_or_default());
    let mut names: Vec<String> = names.map(|name| name.trim().to_owned()).collect();
    names.sort();
    names
}

#[test]
fn images_of_one_service_are_read_exactly() {
    if !can_mount() {
        return;
    }
    let corpus = Corpus::locate_or_fixtures();
    let mut service = Service::start(&[]);
    let is_small = |image: &ImageRecord| {
        let files = corpus.materialise(image);
        !image.huge && fs::metadata(&files.path).is_ok_and(|file| file.len() <= TREE_BYTES_MAX)
    };
    let images = crate::support::images(&corpus);
    let images: Vec<ImageRecord> = images.into_iter().filter(is_small).take(2 * IMAGES).collect();
    assert!(images.len() > 1);
    for batch in images.chunks(IMAGES) {
        let mounted: Vec<(&ImageRecord, Place)> = batch
            .iter()
            .map(|image| {
                let files = corpus.materialise(image);
                let arguments = crate::support::image_arguments(&files);
                let arguments: Vec<&str> = arguments.iter().filter_map(|argument| argument.to_str()).collect();
                (image, service.mount(&files.path, &arguments))
            })
            .collect();
        let domain = service.domain();
        let faults: Vec<String> = std::thread::scope(|scope| {
            let readers: Vec<_> = mounted
                .iter()
                .map(|(image, place)| {
                    let expected = corpus.manifest(image);
                    scope.spawn(move || {
                        let walk = DirectoryWalk { metadata_only: false, segments: false, numbers: false };
                        let directory_shape_is_free = !image.kernel_is_truth();
                        let comparison = Comparison { directory_shape_is_free, ..Comparison::default() };
                        let faults = match walk::directory(&place.path, walk) {
                            Ok(found) => differences(&expected, &found, &comparison),
                            Err(error) => vec![error.to_string()],
                        };
                        faults.into_iter().map(|fault| format!("{}: {fault}", image.name)).collect::<Vec<_>>()
                    })
                })
                .collect();
            readers.into_iter().flat_map(|reader| reader.join().expect("no panic")).collect()
        });
        assert_eq!(faults, Vec::<String>::new());
        assert_eq!(service.domain(), domain, "no image has killed the process: {}", service.messages());
        for (image, place) in &mounted {
            assert_eq!(service.umount(place), (Some(0), String::new()), "{}", image.name);
            assert!(!place.is_mounted());
        }
        until("the process ends with its last mount", || service.domains().is_empty());
    }
}

/// An image of its own, so that no other mount shares its content.
pub(super) fn small_image(folder: &Path, index: usize, format: &str) -> PathBuf {
    let (tree, image) = (folder.join(format!("tree-{index}")), folder.join(format!("image-{index}")));
    fs::create_dir(&tree).expect("ours");
    fs::write(tree.join("name"), format!("image {index}\n").repeat(1000)).expect("ours");
    symlink("name", tree.join("link")).expect("ours");
    let built = run(floe().args(["mkfs", "--format", format]).arg(&image).arg(&tree));
    assert!(built.status.success(), "{built:?}");
    image
}

#[test]
fn further_mounts_need_no_process_and_no_thread_of_the_service() {
    if !can_mount() {
        return;
    }
    let folder = tempfile::tempdir().expect("a directory");
    let image =
        |index: usize| small_image(folder.path(), index, if index.is_multiple_of(2) { "erofs" } else { "squashfs" });
    let mut service = Service::start(&[]);
    let content = |place: &Place| fs::read_to_string(place.file("link")).expect("readable");
    let mut places = vec![service.mount(&image(0), &[])];
    assert!(content(&places[0]).starts_with("image 0\n"));
    let (domain, broker) = (service.domain(), Pid::from_raw(service.broker().cast_signed()).expect("a process"));
    let descriptors =
        |process: Pid| fs::read_dir(format!("/proc/{}/fd", process.as_raw_nonzero())).expect("it runs").count();
    let settled = || {
        let mut before = (Vec::new(), Vec::new());
        until("short-lived threads have ended", || {
            let now = (threads_of(domain), threads_of(broker));
            let is_short_lived = |name: &String| ["floe-attach", "floe-launch"].contains(&name.as_str());
            let is_settled = now == before && !now.0.iter().any(is_short_lived);
            before = now;
            is_settled
        });
        before
    };
    let (few, few_descriptors) = (settled(), descriptors(broker));
    for index in 1..IMAGES {
        places.push(service.mount(&image(index), &[]));
        assert!(content(&places[index]).starts_with(&format!("image {index}\n")));
    }
    assert_eq!(settled().1, few.1, "threads of the broker");
    let is_on_demand = |name: &String| name.starts_with("floe-io") || name.starts_with("floe-around");
    let without = |names: &[String]| names.iter().filter(|name| !is_on_demand(name)).cloned().collect::<Vec<_>>();
    assert_eq!(without(&settled().0), without(&few.0), "threads of the domain");
    assert_eq!(service.domains().len(), 1);
    assert!(descriptors(broker) <= few_descriptors + 8 * IMAGES, "descriptors of the broker");

    // The list has all of them, and each answers.
    let listed = run(service.floe().args(["status", "--json"]));
    let listed: serde_json::Value = serde_json::from_slice(&listed.stdout).expect("a list");
    let of_service: Vec<_> =
        listed.as_array().expect("an array").iter().filter(|mount| mount["served_by"] == "service").collect();
    assert_eq!(of_service.len(), IMAGES);
    for place in &places {
        let path = place.path.to_str().expect("text");
        let mount = of_service.iter().find(|mount| mount["mountpoint"] == path).expect("it is in the list");
        assert_eq!(mount["process"], domain.as_raw_nonzero().get());
        let report = run(service.floe().args(["status", "--json"]).arg(&place.path));
        let report: serde_json::Value = serde_json::from_slice(&report.stdout).expect("a report");
        assert_eq!((&report["mountpoint"], &report["process"]), (&mount["mountpoint"], &mount["process"]));
        assert_eq!(report["sandbox"]["seccomp"], "enforced");
    }
    let text = run(service.floe().arg("status"));
    let text = String::from_utf8_lossy(&text.stdout).into_owned();
    assert_eq!(text.lines().filter(|line| line.contains("  service, process ")).count(), IMAGES, "{text}");

    // Options of one mount do not concern the others.
    assert_eq!(
        told(&run(service.floe().arg("tune").arg(&places[0].path).arg("prefetch=none"))),
        (Some(0), String::new())
    );
    let tuned = |place: &Place| {
        let output = run(service.floe().arg("tune").arg(&place.path));
        String::from_utf8_lossy(&output.stdout).lines().any(|line| line.starts_with("prefetch=none"))
    };
    assert!(tuned(&places[0]) && !tuned(&places[1]));

    while let Some(place) = places.pop() {
        assert_eq!(service.umount(&place), (Some(0), String::new()));
    }
    until("all is closed", || descriptors(broker) < few_descriptors);
}

#[test]
fn options_are_those_of_a_mount() {
    if !can_mount() {
        return;
    }
    let service = Service::start(&["-o", "cache=8M"]);
    let place = service.mount(&demo(), &["-o", "uid=7,gid=8,subdir=guide,fsname=my-image,noexec"]);
    use std::os::unix::fs::MetadataExt;
    let metadata = fs::metadata(place.file("reading.txt")).expect("a file of the directory");
    assert_eq!((metadata.uid(), metadata.gid()), (7, 8));
    let line = place.mount_line();
    assert!(line.contains(" my-image ") && line.contains("noexec") && line.contains("nosuid"), "{line}");
    let options = run(service.floe().arg("tune").arg(&place.path));
    let options = String::from_utf8_lossy(&options.stdout).into_owned();
    assert!(options.lines().any(|line| line == "cache=8M" || line == "cache=8388608"), "{options}");
    let status = run(service.floe().arg("status").arg(&place.path));
    let status = String::from_utf8_lossy(&status.stdout).into_owned();
    assert!(status.contains("the service can then replace its process"), "{status}");
    for (arguments, expected) in [
        (&["-o", "cache=1M"][..], "give them to floe serve"),
        (&["--sandbox", "off"], "give it to floe serve"),
        (&["--learn"], "profile=learn is not available through the service"),
        (&["-o", "no-such-option"], "no such option"),
    ] {
        let other = Place::new();
        let (code, errors) = told(&service.try_mount(&demo(), &other.path, arguments));
        assert_eq!((code, errors.lines().count()), (Some(2), 1), "{arguments:?}: {errors}");
        assert!(errors.contains(expected), "{arguments:?}: {errors}");
        assert!(!other.is_mounted(), "{arguments:?}");
    }
    let upgraded = run(service.floe().arg("upgrade").arg(&place.path));
    let (code, errors) = told(&upgraded);
    assert_eq!((code, errors.lines().count()), (Some(1), 1), "{errors}");
    assert!(errors.contains("served by the service"), "{errors}");
    assert_eq!(service.umount(&place), (Some(0), String::new()));
}

#[test]
fn the_service_is_used_where_it_is_offered() {
    if !can_mount() {
        return;
    }
    let mut service = Service::start(&[]);
    let missing = service.folder().join("missing");
    for (choice, is_there, further, is_expected) in [
        ("service=off", true, "front=fuse", false),
        ("service=auto", true, "front=fuse", true),
        ("service=auto", false, "front=fuse", false),
        // Options that the service does not have.
        ("service=auto", true, "front=fuse,cache=1M", false),
        ("service=on", true, "front=fuse", true),
    ] {
        let place = Place::new();
        let mut command = service.floe();
        if !is_there {
            command.env("FLOE_SERVICE", &missing);
        }
        let mounted =
            run(command.args(["mount", "--daemon", "-o", choice, "-o", further]).arg(demo()).arg(&place.path));
        assert_eq!(told(&mounted), (Some(0), String::new()), "{choice} {further}");
        assert_eq!(service.domains().len(), usize::from(is_expected), "{choice} {further}");
        assert!(place.file("README.txt").exists());
        assert_eq!(service.umount(&place), (Some(0), String::new()), "{choice} {further}");
        until("the process ends", || service.domains().is_empty());
    }
    let place = Place::new();
    let mut command = service.floe();
    command.env("FLOE_SERVICE", &missing);
    let (code, errors) = told(&run(command.args(["mount", "--service"]).arg(demo()).arg(&place.path)));
    assert_eq!((code, errors.lines().count()), (Some(1), 1), "{errors}");
    assert!(errors.contains("no service listens at") && errors.contains("floe serve"), "{errors}");
}
