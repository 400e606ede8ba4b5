//! The ends of mounts of the service, and of the service; images that it cannot mount.

use std::{
    fs::{self, File},
    path::Path,
};

use floe_testkit::skip::{Need, ready};
use rustix::{
    mount::{UnmountFlags, unmount},
    process::{Pid, Signal},
};

use crate::support::{
    program::{Place, demo, is_running, run, told, until},
    service::Service,
};

fn can_mount() -> bool {
    ready(&[Need::Root, Need::Fuse])
}

#[test]
fn images_that_cannot_be_mounted_are_refused_in_one_line() {
    if !can_mount() {
        return;
    }
    let folder = tempfile::tempdir().expect("a directory");
    let write = |name: &str, bytes: &[u8]| {
        let path = folder.path().join(name);
        fs::write(&path, bytes).expect("ours");
        path
    };
    let image = fs::read(demo()).expect("the demo image");
    let mut corrupt = image.clone();
    corrupt[1024 + 12] ^= 0xff;
    corrupt[1024 + 48] ^= 0xff;
    let shifted = [&[0; 4096][..], &image].concat();
    let mut service = Service::start(&[]);
    let busy = service.mount(&demo(), &[]);
    let place = Place::new();
    let file = write("file", b"text");
    let rows: [(&Path, &Path, i32, &str); 8] = [
        (&write("text", b"no image at all"), &place.path, 3, "not an EROFS or SquashFS image"),
        (&write("empty", b""), &place.path, 3, "not an EROFS or SquashFS image"),
        (&write("corrupt", &corrupt), &place.path, 3, ""),
        (&write("shifted", &shifted), &place.path, 3, "offset=4096"),
        (&folder.path().join("missing"), &place.path, 1, "No such file"),
        (folder.path(), &place.path, 2, "not a regular file or a block device"),
        (&demo(), &file, 1, "Not a directory"),
        (&demo(), &busy.path, 1, "already mounted"),
    ];
    for (image, directory, expected_code, expected) in rows {
        let (code, errors) = told(&service.try_mount(image, directory, &[]));
        assert_eq!((code, errors.lines().count()), (Some(expected_code), 1), "{}: {errors}", image.display());
        assert!(errors.contains(expected), "{}: {errors}", image.display());
        assert!(!place.is_mounted(), "{}", image.display());
    }
    let shown = service.try_mount(&folder.path().join("shifted"), &place.path, &["--offset", "auto"]);
    assert_eq!(told(&shown), (Some(0), String::new()));
    assert!(place.file("README.txt").exists() && busy.file("README.txt").exists());
    for place in [&place, &busy] {
        assert_eq!(service.umount(place), (Some(0), String::new()));
    }
    until("the process ends with its last mount", || service.domains().is_empty());
}

#[test]
fn mounts_end_by_any_unmount() {
    if !can_mount() {
        return;
    }
    let mut service = Service::start(&[]);
    let places: [Place; 4] = std::array::from_fn(|_| service.mount(&demo(), &[]));
    let [by_floe, by_kernel, busy, detached] = &places;
    let domain = service.domain();
    assert_eq!(service.umount(by_floe), (Some(0), String::new()));
    by_kernel.wait_until_unused();
    unmount(&by_kernel.path, UnmountFlags::empty()).expect("root may");
    let held = File::open(busy.file("README.txt")).expect("the mount works");
    let (code, errors) = told(&run(service.floe().arg("umount").arg(&busy.path)));
    assert_eq!((code, errors.lines().count()), (Some(1), 1), "{errors}");
    assert!(errors.contains("is in use by ") && errors.contains("floe umount --lazy"), "{errors}");
    let held_too = File::open(detached.file("README.txt")).expect("the mount works");
    assert_eq!(told(&run(service.floe().args(["umount", "--lazy"]).arg(&detached.path))), (Some(0), String::new()));
    drop(held);
    assert_eq!(service.umount(busy), (Some(0), String::new()));
    // The files of the detached mount are still served.
    use std::os::unix::fs::FileExt;
    rustix::fs::fadvise(&held_too, 0, None, rustix::fs::Advice::DontNeed).expect("it is open");
    held_too.read_exact_at(&mut [0; 4], 0).expect("readable");
    assert!(is_running(domain));
    drop(held_too);
    until("the process ends with its last mount", || service.domains().is_empty());
    assert!(places.iter().all(|place| !place.is_mounted()));
    assert_eq!(service.messages(), "");
    service.signal(Signal::TERM);
    assert_eq!(service.end(), Some(0));
    assert!(!service.socket().exists());
}

#[test]
fn a_stopped_service_unmounts_what_it_can() {
    if !can_mount() {
        return;
    }
    let mut service = Service::start(&[]);
    let (free, busy) = (service.mount(&demo(), &[]), service.mount(&demo(), &[]));
    let domain = service.domain();
    free.wait_until_unused();
    let held = File::open(busy.file("README.txt")).expect("the mount works");
    service.signal(Signal::TERM);
    assert_eq!(service.end(), Some(1));
    let messages = service.messages();
    let expected = format!("floe: {} is in use by ", busy.path.display());
    assert!(messages.starts_with(&expected) && messages.lines().count() == 1, "{messages}");
    assert!(!free.is_mounted() && busy.is_mounted());
    // It is served until it is unmounted, and answers.
    assert!(fs::read(busy.file("guide/reading.txt")).is_ok_and(|bytes| !bytes.is_empty()));
    assert!(run(service.floe().arg("status").arg(&busy.path)).status.success());
    drop(held);
    busy.wait_until_unused();
    unmount(&busy.path, UnmountFlags::empty()).expect("root may");
    until("the process ends with its last mount", || !is_running(domain));
}

#[test]
fn one_service_listens_at_a_socket() {
    if !can_mount() {
        return;
    }
    let mut first = Service::start(&[]);
    let mut second = first.floe();
    let (code, errors) = told(&run(second.arg("serve")));
    assert_eq!((code, errors.lines().count()), (Some(1), 1), "{errors}");
    assert!(errors.contains("another service listens there"), "{errors}");
    let (code, errors) = told(&run(first.floe().args(["serve", "-o", "front=kernel"])));
    assert_eq!((code, errors.lines().count()), (Some(1), 1), "{errors}");
    // The socket of a killed service is replaced.
    first.signal(Signal::KILL);
    assert_eq!(first.end(), None);
    assert!(first.socket().exists());
    let mut next = first.floe();
    let child = next.arg("serve").stdout(std::process::Stdio::null()).spawn().expect("it starts");
    let pid = Pid::from_child(&child);
    until("it listens", || {
        run(first.floe().args(["mount", "--service"]).arg(demo()).arg("/nonexistent")).status.code() == Some(1)
            && floe_listens(&first)
    });
    rustix::process::kill_process(pid, Signal::TERM).expect("it runs");
    let mut child = child;
    let status = child.wait().expect("our own child");
    assert_eq!(status.code(), Some(0));
}

/// Whether a client can connect.
fn floe_listens(service: &Service) -> bool {
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketType, connect, socket};
    let socket = socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).expect("a socket");
    connect(&socket, &SocketAddrUnix::new(service.socket()).expect("a path")).is_ok()
}
