//! The process that reads images is killed: another one continues its mounts.

use std::{
    fs::{self, File},
    os::unix::fs::FileExt,
};

use floe_testkit::skip::{Need, ready};
use rustix::process::{Signal, kill_process};

use crate::{
    handover::{Fixture, Uses},
    support::{
        program::{Place, demo, floe, run, told, until},
        service::Service,
    },
};

/// How often the process is killed.
const ROUNDS: usize = 6;

fn can_mount() -> bool {
    ready(&[Need::Root, Need::Fuse])
}

/// Waits until the service says of the mount that a process serves it.
fn wait_until_served(service: &Service, place: &Place) {
    until("the mount answers", || run(service.floe().arg("status").arg(&place.path)).status.success());
}

#[test]
fn readers_and_programs_do_not_notice_a_killed_process() {
    if !can_mount() {
        return;
    }
    let (fixture, other) = (Fixture::new(), Fixture::new());
    let mut service = Service::start(&[]);
    let (place, quiet) = (service.mount(&fixture.image(), &[]), service.mount(&demo(), &[]));
    let squashfs = other.image().with_extension("squashfs");
    let tree = other.image().with_file_name("tree");
    assert!(run(floe().args(["mkfs", "--format", "squashfs"]).arg(&squashfs).arg(&tree)).status.success());
    let second = service.mount(&squashfs, &[]);
    let held = File::open(quiet.file("README.txt")).expect("the mount works");
    let expected = fs::read(quiet.file("README.txt")).expect("the mount works");
    let tuned = |place: &Place| {
        let output = run(service.floe().arg("tune").arg(&place.path));
        String::from_utf8_lossy(&output.stdout).lines().any(|line| line.starts_with("prefetch=none"))
    };
    assert_eq!(told(&run(service.floe().arg("tune").arg(&quiet.path).arg("prefetch=none"))), (Some(0), String::new()));
    assert!(tuned(&quiet));
    let mut uses = [Uses::begin(&place.path), Uses::begin(&second.path)];
    for round in 0..ROUNDS {
        service.kill_domain();
        for uses in &mut uses {
            uses.check(round);
        }
        rustix::fs::fadvise(&held, 0, None, rustix::fs::Advice::DontNeed).expect("it is open");
        let mut bytes = vec![0; expected.len()];
        held.read_exact_at(&mut bytes, 0).expect("readable through the old descriptor");
        assert!(bytes == expected, "round {round}");
        for place in [&place, &second, &quiet] {
            wait_until_served(&service, place);
        }
    }
    let tuned = |place: &Place| {
        let output = run(service.floe().arg("tune").arg(&place.path));
        String::from_utf8_lossy(&output.stdout).lines().any(|line| line.starts_with("prefetch=none"))
    };
    assert!(tuned(&quiet), "changes of options survive");
    uses.into_iter().for_each(Uses::end);
    drop(held);
    assert!(!service.messages().contains("is lost"), "{}", service.messages());
    for place in [&place, &second, &quiet] {
        assert_eq!(service.umount(place), (Some(0), String::new()));
    }
    until("the process ends with its last mount", || service.domains().is_empty());
}

/// Unmounts a mount of a [`Fixture`] lazily while a file is open, and kills its process: another one continues it.
pub(super) fn check_continued_after_a_lazy_unmount(service: &mut Service, place: &Place) {
    let held = File::open(place.file("files/3")).expect("the mount works");
    assert_eq!(told(&run(service.floe().args(["umount", "--lazy"]).arg(&place.path))), (Some(0), String::new()));
    assert!(!place.is_mounted());
    service.kill_domain();
    rustix::fs::fadvise(&held, 0, None, rustix::fs::Advice::DontNeed).expect("it is open");
    let mut bytes = [0; 24];
    held.read_exact_at(&mut bytes, 0).expect("readable");
    assert!(bytes.starts_with(b"    3        0\n\n"), "{bytes:?}");
    drop(held);
    until("the process ends with its last mount", || service.domains().is_empty());
}

#[test]
fn a_mount_in_use_that_was_unmounted_lazily_is_continued() {
    if !can_mount() {
        return;
    }
    let fixture = Fixture::new();
    let mut service = Service::start(&[]);
    let place = service.mount(&fixture.image(), &[]);
    check_continued_after_a_lazy_unmount(&mut service, &place);
}

#[test]
fn a_mount_whose_image_has_changed_is_lost_alone() {
    if !can_mount() {
        return;
    }
    let folder = tempfile::tempdir().expect("a directory");
    let mut service = Service::start(&[]);
    let copy = |name: &str| {
        let path = folder.path().join(name);
        fs::copy(demo(), &path).expect("ours");
        path
    };
    let images = ["truncated", "replaced", "good"].map(copy);
    let [truncated, replaced, good] = images.each_ref().map(|image| service.mount(image, &[]));
    let original = fs::read(good.file("README.txt")).expect("the mount works");
    File::options().write(true).open(&images[0]).expect("ours").set_len(2048).expect("ours");
    let tree = folder.path().join("tree");
    fs::create_dir(&tree).expect("ours");
    let other = folder.path().join("other");
    assert!(run(floe().arg("mkfs").arg(&other).arg(&tree)).status.success());
    fs::write(&images[1], fs::read(&other).expect("an image")).expect("ours");
    service.kill_domain();
    until("two mounts are lost", || service.messages().matches("the mount is lost").count() == 2);
    assert!(service.messages().contains("the image has changed"), "{}", service.messages());
    until("they are unmounted", || !truncated.is_mounted() && !replaced.is_mounted());
    wait_until_served(&service, &good);
    assert!(fs::read(good.file("README.txt")).expect("the mount works") == original);
    // The service goes on.
    let next = service.mount(&demo(), &[]);
    assert!(next.file("README.txt").exists());
    for place in [&good, &next] {
        assert_eq!(service.umount(place), (Some(0), String::new()));
    }
}

#[test]
fn the_mounts_of_a_process_that_dies_again_and_again_are_divided() {
    if !can_mount() {
        return;
    }
    let mut service = Service::start(&[]);
    let places: Vec<Place> = (0..4).map(|_| service.mount(&demo(), &[])).collect();
    for round in 0..3 {
        // SIGABRT ends it as a failure of its own would.
        service.end_domain(Signal::ABORT);
        for place in &places {
            wait_until_served(&service, place);
            assert!(fs::metadata(place.file("README.txt")).is_ok(), "round {round}");
        }
    }
    // Each half of the mounts has a process now, so that an image that kills its process is found.
    until("there are two processes", || service.domains().len() == 2);
    let place = service.mount(&demo(), &[]);
    assert!(fs::read(place.file("README.txt")).is_ok_and(|bytes| !bytes.is_empty()));
    for place in places.iter().chain([&place]) {
        assert_eq!(service.umount(place), (Some(0), String::new()));
    }
    until("all processes end", || service.domains().is_empty());
}

#[test]
fn mounts_go_on_without_the_broker() {
    if !can_mount() {
        return;
    }
    let fixture = Fixture::new();
    let mut service = Service::start(&[]);
    let place = service.mount(&fixture.image(), &[]);
    let domain = service.domain();
    let mut uses = Uses::begin(&place.path);
    service.signal(Signal::KILL);
    assert_eq!(service.end(), None);
    for round in 0..3 {
        uses.check(round);
    }
    assert!(run(service.floe().arg("status").arg(&place.path)).status.success(), "the process still answers");
    // A service with another socket does not know the mount.
    let next = Service::start(&[]);
    let (code, errors) = told(&run(next.floe().arg("umount").arg(&place.path)));
    assert_eq!(code, Some(1), "{errors}");
    assert!(errors.contains("is in use"), "{errors}");
    uses.end();
    place.wait_until_unused();
    let unmounted = told(&run(next.floe().arg("umount").arg(&place.path)));
    assert_eq!(unmounted.0, Some(0), "{unmounted:?}");
    until("the process ends with its last mount", || kill_process(domain, Signal::CONT).is_err());
}
