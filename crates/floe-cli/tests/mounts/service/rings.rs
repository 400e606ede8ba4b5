//! Mounts of the service over io_uring: each has a process of its own, and ends with it.

use std::{
    collections::HashSet,
    fs::{self, File},
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
    thread,
};

use floe_testkit::{
    copy_program,
    skip::{Need, ready as needs, skipped},
};
use rustix::{
    fs::{Advice, fadvise},
    mount::{UnmountFlags, unmount},
    process::{Pid, Signal, kill_process},
};

use super::users::{ForUsers, place_of, ready as can_serve_users};
use crate::{
    handover::{Fixture, Uses},
    support::{
        front::{self, Scene},
        program::{Place, demo, floe, is_running, run, told, until, within},
        service::Service,
    },
};

const PARAMETER: &str = "/sys/module/fuse/parameters/enable_uring";

/// Exists while a mount alone is permitted rings.
const NOTE: &str = "/run/floe-uring/enable_uring";

/// The files of an image, and their size in bytes.
const FILES: usize = 24;
const FILE_BYTES: usize = 200_000;

/// A user.
const USER: u32 = 65_533;

/// Whether a service of root can mount over io_uring here.
fn ready() -> bool {
    if !needs(&[Need::Root, Need::Fuse]) {
        return false;
    }
    let is_known = Path::new(PARAMETER).exists();
    if !is_known {
        skipped("the kernel has no FUSE over io_uring");
    }
    is_known
}

fn start() -> Service {
    Service::start_with(&[("FLOE_TEST_KEEP_AFTER_MS", "100")])
}

/// An image of both formats.
fn images() -> (Scene, [PathBuf; 2]) {
    let scene = Scene::many(FILES, FILE_BYTES);
    let squashfs = scene.folder.path().join("image.squashfs");
    let made = run(floe().args(["mkfs", "--format", "squashfs"]).arg(&squashfs).arg(scene.folder.path().join("tree")));
    assert!(made.status.success(), "{made:?}");
    let images = [scene.image.clone(), squashfs];
    (scene, images)
}

/// The fronts that are possible here.
fn fronts() -> &'static [&'static str] {
    if front::ready() { &["fuse", "kernel"] } else { &["fuse"] }
}

fn mount(service: &Service, image: &Path, front: &str) -> Place {
    let cache = service.folder().join("cache");
    service.mount(image, &["-o", &format!("transport=uring,front={front},cache-directory={}", cache.display())])
}

/// Mounts an image with each front. The mounts, with their fronts, and their processes.
fn mount_each(service: &Service, images: &[PathBuf]) -> (Vec<(Place, &'static str)>, Vec<Option<Pid>>) {
    let mounts: Vec<_> =
        fronts().iter().zip(images).map(|(front, image)| (mount(service, image, front), *front)).collect();
    let processes = mounts.iter().map(|(place, _)| process_of(service, place)).collect();
    (mounts, processes)
}

/// A line of `floe status` of a mount.
fn line(service: &Service, place: &Place, key: &str) -> String {
    let told = run(service.floe().arg("status").arg(&place.path));
    let text = String::from_utf8_lossy(&told.stdout).into_owned();
    let line = text.lines().find_map(|line| line.strip_prefix(key)).unwrap_or_else(|| panic!("{text}"));
    line.trim().to_owned()
}

fn check_status(service: &Service, place: &Place, front: &str) {
    assert_eq!(line(service, place, "transport"), "uring (requested by an option)");
    assert!(line(service, place, "front").starts_with(&format!("{front} (requested by an option")));
}

/// The process that serves a mount, as the service lists it.
fn process_of(service: &Service, place: &Place) -> Option<Pid> {
    let text = String::from_utf8_lossy(&run(service.floe().arg("status")).stdout).into_owned();
    let path = place.path.display().to_string();
    let line = text.lines().find(|line| line.starts_with(&path))?;
    Pid::from_raw(line.split_once("service, process ")?.1.trim().parse().ok()?)
}

fn check_gone(service: &mut Service, place: &Place) {
    assert_eq!(service.umount(place), (Some(0), String::new()));
    assert!(!place.is_mounted());
}

#[test]
fn mounts_over_io_uring_read_what_is_in_the_image() {
    if !ready() {
        return;
    }
    let (scene, images) = images();
    let mut service = start();
    let shared = service.mount(&demo(), &["-o", "front=fuse"]);
    let domain = service.domain();
    let mut mounts = Vec::new();
    for front in fronts() {
        for image in &images {
            mounts.push((mount(&service, image, front), *front));
        }
    }
    // Other tests have permissions, too.
    until("the permission is taken back", || !Path::new(NOTE).exists());
    thread::scope(|scope| {
        for (place, _) in mounts.iter().chain(&mounts) {
            scope.spawn(|| assert_eq!(scene.wrong(&place.path), Vec::<String>::new()));
        }
    });
    let own = mounts.iter().filter_map(|(place, _)| process_of(&service, place));
    let processes: HashSet<Pid> = own.chain([domain]).collect();
    assert_eq!(processes.len(), mounts.len() + 1, "each has a process of its own");
    assert_eq!(service.domains().len(), processes.len());
    for (place, front) in &mounts {
        check_status(&service, place, front);
    }
    // Other mounts have nothing to do with them.
    let next = service.mount(&demo(), &[]);
    assert_eq!(process_of(&service, &next), Some(domain));
    for (index, (place, _)) in mounts.iter().enumerate() {
        if index % 2 == 0 {
            check_gone(&mut service, place);
        } else {
            place.wait_until_unused();
            unmount(&place.path, UnmountFlags::empty()).expect("as any program may do");
        }
        until("its process ends", || service.domains().len() == processes.len() - 1 - index);
    }
    assert_eq!(service.domain(), domain);
    for place in [&shared, &next] {
        check_gone(&mut service, place);
    }
    until("the process ends with its last mount", || service.domains().is_empty());
    assert_eq!(service.messages(), "");
}

#[test]
fn what_cannot_be_mounted_over_io_uring_leaves_nothing() {
    if !ready() {
        return;
    }
    let folder = tempfile::tempdir().expect("a directory");
    let wrong = folder.path().join("file");
    fs::write(&wrong, vec![7; 100_000]).expect("ours");
    let mut service = start();
    for front in ["auto", "fuse", "kernel"] {
        let place = Place::new();
        let options = format!("transport=uring,front={front},cache-directory={}", folder.path().display());
        let (code, errors) = told(&service.try_mount(&wrong, &place.path, &["-o", &options]));
        assert!(code != Some(0) && errors.lines().count() == 1, "{front}: {code:?} {errors}");
        assert!(!place.is_mounted());
    }
    let place = Place::new();
    let (code, errors) = told(&service.try_mount(&demo(), &place.path, &["-o", "transport=uring,auto-unmount"]));
    assert!(code == Some(2) && errors.contains("auto-unmount is not available through the service"), "{errors}");
    until("all processes end", || service.domains().is_empty());
    assert_eq!(service.messages(), "");
}

#[test]
fn a_killed_process_takes_its_mount_over_io_uring_with_it_and_no_other() {
    if !ready() {
        return;
    }
    let (scene, images) = images();
    let fixture = Fixture::new();
    let mut service = start();
    let (other, over_ring) = (service.mount(&fixture.image(), &[]), mount(&service, &images[1], "fuse"));
    let mut uses = Uses::begin(&other.path);
    let mut lost = Vec::new();
    for front in fronts() {
        for (round, image) in images.iter().enumerate() {
            let place = mount(&service, image, front);
            let process = process_of(&service, &place).expect("it is listed");
            let held = File::open(place.file(&format!("{round}/{round}"))).expect("the mount works");
            let (paths, failed) = (scene.contents.keys().cloned().collect::<Vec<_>>(), AtomicUsize::new(0));
            thread::scope(|scope| {
                for reader in 0..4 {
                    let (place, paths, failed) = (&place, &paths, &failed);
                    scope.spawn(move || {
                        for index in reader.. {
                            let read = File::open(place.file(paths[index % paths.len()].to_str().expect("text")))
                                .and_then(|file| {
                                    let _ = fadvise(&file, 0, None, Advice::DontNeed);
                                    file.read_at(&mut [0; 4096], 0)
                                });
                            if read.is_err() {
                                break;
                            }
                        }
                        failed.fetch_add(1, Relaxed);
                    });
                }
                thread::sleep(std::time::Duration::from_millis(50));
                kill_process(process, Signal::KILL).expect("it runs");
                until("readers get errors", || failed.load(Relaxed) == 4);
            });
            until("it is unmounted", || !place.is_mounted());
            let read = within(move || {
                let _ = fadvise(&held, 0, None, Advice::DontNeed);
                held.read_at(&mut [0; 4096], FILE_BYTES as u64 / 2)
            });
            assert!(read.is_err() || *front == "kernel", "{read:?}");
            lost.push(format!(
                "floe: {}: the mount is lost: process {}, which served it over io_uring, has died",
                place.path.display(),
                process.as_raw_nonzero()
            ));
            uses.check(round);
            assert_eq!(scene.wrong(&over_ring.path), Vec::<String>::new());
            assert_eq!(process_of(&service, &place), None);
        }
    }
    until("only the others have processes", || service.domains().len() == 2);
    uses.end();
    assert_eq!(service.messages().lines().collect::<Vec<_>>(), lost);
    // The service goes on.
    let next = mount(&service, &images[0], "fuse");
    assert_eq!(scene.wrong(&next.path), Vec::<String>::new());
    for place in [&next, &other, &over_ring] {
        check_gone(&mut service, place);
    }
    until("all processes end", || service.domains().is_empty());
}

#[test]
fn the_next_broker_adopts_mounts_over_io_uring() {
    if !ready() {
        return;
    }
    let (scene, images) = images();
    let mut service = start();
    let shared = service.mount(&demo(), &["-o", "front=fuse"]);
    let domain = service.domain();
    let (mounts, processes) = mount_each(&service, &images);
    for round in 0..3 {
        service.replace_broker();
        for ((place, front), process) in mounts.iter().zip(&processes) {
            until("the mount is listed", || process_of(&service, place) == *process);
            check_status(&service, place, front);
            assert_eq!(scene.wrong(&place.path), Vec::<String>::new(), "round {round}");
        }
    }
    // New mounts get the process that serves others.
    let next = service.mount(&demo(), &["-o", "front=fuse"]);
    assert_eq!(process_of(&service, &next), Some(domain));
    let (place, _) = &mounts[0];
    kill_process(processes[0].expect("it is listed"), Signal::KILL).expect("it runs");
    until("it is unmounted", || !place.is_mounted());
    until("it is reported", || service.messages().contains("which served it over io_uring, has died"));
    assert_eq!(service.messages().matches("is lost").count(), 1, "{}", service.messages());
    for place in mounts.iter().skip(1).map(|(place, _)| place).chain([&shared, &next]) {
        check_gone(&mut service, place);
    }
    until("all processes end", || service.domains().is_empty());
}

#[test]
fn an_upgrade_leaves_mounts_over_io_uring_where_they_are() {
    if !ready() {
        return;
    }
    let (scene, images) = images();
    let folder = tempfile::tempdir().expect("a directory");
    // In debug builds, the processes of the second one speak another version.
    let programs = ["same", "program.another"].map(|name| {
        let program = folder.path().join(name);
        copy_program(env!("CARGO_BIN_EXE_floe"), &program);
        program
    });
    let mut service = start();
    let shared = service.mount(&demo(), &["-o", "front=fuse"]);
    let (mounts, processes) = mount_each(&service, &images);
    for program in &programs {
        let domain = process_of(&service, &shared);
        let (code, errors) = service.upgrade(program);
        assert_eq!(code, Some(1), "{errors}");
        assert_eq!(errors.lines().count(), mounts.len(), "{errors}");
        for ((place, front), process) in mounts.iter().zip(&processes) {
            let text = format!(
                "{}: process {} of the earlier program goes on with it: a mount over io_uring cannot be handed over",
                place.path.display(),
                process.expect("it is listed").as_raw_nonzero()
            );
            assert!(errors.contains(&text), "{errors}");
            assert_eq!(process_of(&service, place), *process);
            check_status(&service, place, front);
            assert_eq!(scene.wrong(&place.path), Vec::<String>::new());
        }
        assert_ne!(process_of(&service, &shared), domain, "others move");
    }
    for place in mounts.iter().map(|(place, _)| place).chain([&shared]) {
        check_gone(&mut service, place);
    }
    for process in processes.into_iter().flatten() {
        until("its process ends", || !is_running(process));
    }
    until("all processes end", || service.domains().is_empty());
}

#[test]
fn users_get_no_mounts_over_io_uring_from_the_service() {
    if !ready() || !can_serve_users() {
        return;
    }
    let users = ForUsers::start("");
    let place = place_of(USER);
    let (code, errors) = told(&users.try_mount(USER, &place.path, &["-o", "transport=uring"]));
    assert_eq!((code, errors.lines().count()), (Some(1), 1), "{errors}");
    assert!(errors.contains("transport=uring is not available to users through the service"), "{errors}");
    assert!(!place.is_mounted());
}
