//! Mounts of the service with the kernel's EROFS in front.

use std::{
    fs::{self, File},
    os::{
        fd::AsFd,
        unix::fs::{FileExt, MetadataExt},
    },
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

use floe_front::KernelRights;
use floe_mount::service::check_elsewhere;
use rustix::{
    mount::{UnmountFlags, unmount},
    process::Pid,
};

use super::{
    images::{small_image, threads_of},
    restarts::check_continued_after_a_lazy_unmount,
};
use crate::{
    handover::{Fixture, Uses},
    support::{
        front::{Scene, ready},
        program::{Place, floe, run, told, until},
        service::Service,
    },
};

/// An image that changed less than this ago is not kept.
const SETTLED: Duration = Duration::from_millis(200);

/// How often the process is killed.
const ROUNDS: usize = 6;

/// The number of idle fronts.
const IDLE: usize = 20;

/// A service that keeps metadata.
fn start() -> Service {
    Service::start_with(&[("FLOE_TEST_KEEP_AFTER_MS", "100")])
}

/// The options of a mount that keeps metadata in the folder of a service.
fn options(service: &Service, further: &str) -> String {
    format!("cache-directory={},{further}", service.folder().join("cache").display())
}

fn mount(service: &Service, image: &Path, further: &str) -> Place {
    service.mount(image, &["-o", &options(service, further)])
}

/// The files with kept metadata.
fn kept_files(service: &Service) -> Vec<PathBuf> {
    let directories = fs::read_dir(service.folder().join("cache/fronts")).into_iter().flatten().flatten();
    directories.map(|entry| entry.path().join("metadata")).filter(|file| file.exists()).collect()
}

fn status(service: &Service, place: &Place) -> String {
    String::from_utf8_lossy(&run(service.floe().arg("status").arg(&place.path)).stdout).into_owned()
}

fn is_front(service: &Service, place: &Place) -> bool {
    let has_kept = status(service, place).contains("; with kept metadata");
    assert_eq!(has_kept, place.mount_line().contains(" erofs floe\\043"));
    has_kept
}

fn squashfs_of(fixture: &Fixture) -> PathBuf {
    let image = fixture.image().with_extension("squashfs");
    let tree = fixture.image().with_file_name("tree");
    assert!(run(floe().args(["mkfs", "--format", "squashfs"]).arg(&image).arg(tree)).status.success());
    image
}

#[test]
fn small_images_are_fronts_from_the_first_mount_on() {
    if !ready() {
        return;
    }
    let folder = tempfile::tempdir().expect("a directory");
    let images = [small_image(folder.path(), 0, "erofs"), small_image(folder.path(), 1, "squashfs")];
    thread::sleep(SETTLED);
    let mut service = start();
    for (index, image) in images.iter().enumerate() {
        let mut identities = Vec::new();
        for round in 0..2 {
            let place = mount(&service, image, "front=auto");
            assert!(is_front(&service, &place), "round {round}: {}", status(&service, &place));
            assert!(fs::read_to_string(place.file("link")).expect("readable").starts_with(&format!("image {index}\n")));
            let kept = kept_files(&service);
            assert_eq!(kept.len(), index + 1);
            identities.push(kept.iter().map(|file| fs::metadata(file).expect("there").ino()).collect::<Vec<_>>());
            match round {
                0 => assert_eq!(service.umount(&place), (Some(0), String::new())),
                // As any program may do.
                _ => unmount(&place.path, UnmountFlags::empty()).expect("not in use"),
            }
            until("the process ends with its last mount", || service.domains().is_empty());
        }
        assert_eq!(identities[0], identities[1], "the second mount renders nothing");
    }
}

#[test]
fn large_images_are_fronts_from_the_second_mount_on() {
    if !ready() {
        return;
    }
    let scene = Scene::many(1200, 300);
    thread::sleep(SETTLED);
    let mut service = start();
    let first = mount(&service, &scene.image, "front=auto");
    assert!(!is_front(&service, &first));
    assert!(
        status(&service, &first).contains("its metadata is kept for the next mount"),
        "{}",
        status(&service, &first)
    );
    until("the metadata is kept", || !kept_files(&service).is_empty());
    let second = mount(&service, &scene.image, "front=auto");
    assert!(is_front(&service, &second));
    for place in [&first, &second] {
        assert_eq!(scene.wrong(&place.path), Vec::<String>::new());
        assert_eq!(service.umount(place), (Some(0), String::new()));
    }
    until("the process ends with its last mount", || service.domains().is_empty());

    // With front=kernel, the mount waits.
    let other = start();
    let place = mount(&other, &scene.image, "front=kernel");
    assert!(is_front(&other, &place));
    assert_eq!(scene.wrong(&place.path), Vec::<String>::new());
    assert_eq!(other.umount(&place), (Some(0), String::new()));
}

#[test]
fn readers_of_fronts_do_not_notice_a_killed_process() {
    if !ready() {
        return;
    }
    let fixture = Fixture::new();
    let images = [fixture.image(), squashfs_of(&fixture)];
    let mut service = start();
    let places = images.each_ref().map(|image| mount(&service, image, "front=kernel"));
    // All data comes from the process, not from the image.
    let through_floe = mount(&service, &images[0], "front=kernel,front-data=floe");
    let held = File::open(through_floe.file("files/3")).expect("the mount works");
    let mut expected = vec![0; 100_000];
    held.read_exact_at(&mut expected, 0).expect("the mount works");
    let mut uses: Vec<Uses> = places.iter().chain([&through_floe]).map(|place| Uses::begin(&place.path)).collect();
    for round in 0..ROUNDS {
        service.kill_domain();
        for uses in &mut uses {
            uses.check(round);
        }
        rustix::fs::fadvise(&held, 0, None, rustix::fs::Advice::DontNeed).expect("it is open");
        let mut bytes = vec![0; expected.len()];
        held.read_exact_at(&mut bytes, 0).expect("readable through the old descriptor");
        assert!(bytes == expected, "round {round}");
        for place in places.iter().chain([&through_floe]) {
            until("the mount answers", || !status(&service, place).is_empty());
            assert!(is_front(&service, place));
        }
    }
    uses.into_iter().for_each(Uses::end);
    drop(held);
    assert!(!service.messages().contains("is lost"), "{}", service.messages());
    for place in places.iter().chain([&through_floe]) {
        assert_eq!(service.umount(place), (Some(0), String::new()));
    }
    until("the process ends with its last mount", || service.domains().is_empty());
}

#[test]
fn a_front_in_use_that_was_unmounted_lazily_is_continued() {
    if !ready() {
        return;
    }
    let fixture = Fixture::new();
    let mut service = start();
    let place = mount(&service, &fixture.image(), "front=kernel,front-data=floe");
    check_continued_after_a_lazy_unmount(&mut service, &place);
}

#[test]
fn the_next_broker_adopts_fronts() {
    if !ready() {
        return;
    }
    let fixture = Fixture::new();
    let mut service = start();
    let place = mount(&service, &fixture.image(), "front=kernel,front-data=floe");
    let mut uses = Uses::begin(&place.path);
    for round in 0..3 {
        service.replace_broker();
        uses.check(2 * round);
        service.kill_domain();
        uses.check(2 * round + 1);
        until("the mount answers", || !status(&service, &place).is_empty());
        assert!(is_front(&service, &place));
    }
    uses.end();
    assert!(!service.messages().contains("is lost"), "{}", service.messages());
    assert_eq!(service.umount(&place), (Some(0), String::new()));
    until("the process ends with its last mount", || service.domains().is_empty());
}

#[test]
fn further_fronts_need_no_process_and_no_thread() {
    if !ready() {
        return;
    }
    let folder = tempfile::tempdir().expect("a directory");
    let formats = ["erofs", "squashfs"];
    let images: Vec<_> = (0..IDLE).map(|index| small_image(folder.path(), index, formats[index % 2])).collect();
    thread::sleep(SETTLED);
    let mut service = start();
    let content = |place: &Place| fs::read_to_string(place.file("link")).expect("readable");
    let mut places = vec![mount(&service, &images[0], "")];
    assert!(content(&places[0]).starts_with("image 0\n"));
    let (domain, broker) = (service.domain(), Pid::from_raw(service.broker().cast_signed()).expect("a process"));
    let settled = || {
        let mut before = (Vec::new(), Vec::new());
        until("short-lived threads have ended", || {
            let now = (threads_of(domain), threads_of(broker));
            let is_settled = now == before && !now.0.iter().any(|name| name == "floe-launch");
            before = now;
            is_settled
        });
        before
    };
    let few = settled();
    assert_eq!(few.1.iter().filter(|name| *name == "floe-front").count(), 1, "{few:?}");
    for (index, image) in images.iter().enumerate().skip(1) {
        places.push(mount(&service, image, ""));
        assert!(is_front(&service, &places[index]));
        assert!(content(&places[index]).starts_with(&format!("image {index}\n")));
    }
    let many = settled();
    assert_eq!(many.1, few.1, "threads of the broker");
    let is_on_demand = |name: &String| name.starts_with("floe-io") || name.starts_with("floe-around");
    let without = |names: &[String]| names.iter().filter(|name| !is_on_demand(name)).cloned().collect::<Vec<_>>();
    assert_eq!(without(&many.0), without(&few.0), "threads of the domain");
    assert_eq!(service.domains().len(), 1);
    for place in &places {
        assert_eq!(service.umount(place), (Some(0), String::new()));
    }
    until("the process ends with its last mount", || service.domains().is_empty());
}

#[test]
fn what_excludes_a_front_is_told() {
    if !ready() {
        return;
    }
    let folder = tempfile::tempdir().expect("a directory");
    let image = small_image(folder.path(), 0, "erofs");
    thread::sleep(SETTLED);
    let service = start();
    for (excluded, reason) in [
        ("access=private", "the kernel's EROFS lets all users in"),
        ("front-metadata=render", "only with kept metadata"),
        ("offset=0", "only with kept metadata"),
    ] {
        let place = mount(&service, &image, excluded);
        assert!(!is_front(&service, &place));
        assert!(status(&service, &place).contains(reason), "{}", status(&service, &place));
        assert_eq!(service.umount(&place), (Some(0), String::new()));
        let place = Place::new();
        let refused = options(&service, &format!("front=kernel,{excluded}"));
        let (code, errors) = told(&service.try_mount(&image, &place.path, &["-o", &refused]));
        assert_eq!((code, errors.lines().count()), (Some(1), 1), "{errors}");
        assert!(errors.contains(reason) && !place.is_mounted(), "{errors}");
    }
}

#[test]
fn kept_metadata_is_checked_by_a_confined_process() {
    if !ready() {
        return;
    }
    let scene = Scene::many(50, 3000);
    thread::sleep(SETTLED);
    let service = start();
    let place = mount(&service, &scene.image, "front=kernel,front-data=floe");
    assert_eq!(service.umount(&place), (Some(0), String::new()));
    let kept = &kept_files(&service)[0];
    let program = Path::new(env!("CARGO_BIN_EXE_floe"));
    let check = |file: &File| check_elsewhere(program, file.as_fd(), KernelRights::default(), None);
    let open = || File::open(kept).expect("it is there");
    check(&open()).expect("it is sound");
    let bytes = fs::read(kept).expect("ours");
    // The root's inode, and an entry of the superblock.
    for at in [4096 + 36 * 32, 1024 + 80] {
        let mut changed = bytes.clone();
        changed[at] ^= 0xff;
        let path = service.folder().join("changed");
        fs::write(&path, &changed).expect("ours");
        let error = check(&File::open(&path).expect("ours")).expect_err("it is changed").to_string();
        assert!(!error.is_empty() && !error.contains('\n'), "{error}");
    }
    let with_original = KernelRights { original_len: Some(4096), ..KernelRights::default() };
    assert!(check_elsewhere(program, open().as_fd(), with_original, None).is_err(), "it has no such device");
    assert!(check(&File::open(&scene.image).expect("ours")).is_err(), "it is no kept metadata");
}
