//! The broker is killed: the next one adopts its domains, with all mounts.

use std::{
    fs::{self, File, Permissions},
    os::{
        fd::{AsFd, OwnedFd},
        unix::fs::{FileExt, FileTypeExt, PermissionsExt, chown, symlink},
    },
    path::Path,
    process::Stdio,
    thread,
};

use floe_testkit::skip::{Need, ready};
use rustix::{
    fs::{Advice, fadvise},
    net::{
        AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, accept, bind, listen, recv, send,
        socket_with,
    },
    process::{Signal, kill_process},
};

use crate::{
    handover::{Fixture, Uses},
    support::{
        program::{Place, demo, floe, is_running, run, told, until},
        service::Service,
    },
};

/// How often the broker is killed.
const ROUNDS: usize = 6;

fn can_mount() -> bool {
    ready(&[Need::Root, Need::Fuse])
}

/// The line of `floe status` about a mount.
fn listed(service: &Service, place: &Place) -> String {
    let output = run(service.floe().arg("status"));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let path = place.path.display().to_string();
    text.lines().find(|line| line.starts_with(&path)).unwrap_or_default().to_owned()
}

#[test]
fn readers_and_programs_do_not_notice_a_killed_broker() {
    if !can_mount() {
        return;
    }
    let (fixture, other) = (Fixture::new(), Fixture::new());
    let mut service = Service::start(&[]);
    let squashfs = other.image().with_extension("squashfs");
    let tree = other.image().with_file_name("tree");
    assert!(run(floe().args(["mkfs", "--format", "squashfs"]).arg(&squashfs).arg(&tree)).status.success());
    let (place, second) = (service.mount(&fixture.image(), &[]), service.mount(&squashfs, &["-o", "nodev"]));
    let quiet = service.mount(&demo(), &[]);
    let held = File::open(quiet.file("README.txt")).expect("the mount works");
    let expected = fs::read(quiet.file("README.txt")).expect("the mount works");
    assert_eq!(told(&run(service.floe().arg("tune").arg(&quiet.path).arg("prefetch=none"))), (Some(0), String::new()));
    let mut domain = service.domain();
    let mut uses = [Uses::begin(&place.path), Uses::begin(&second.path)];
    for round in 0..ROUNDS {
        service.replace_broker();
        if round % 2 == 1 {
            // It is replaced like a process that the broker has started itself.
            until("the broker knows the mounts", || listed(&service, &place).contains("service, process"));
            domain = service.kill_domain();
        }
        for uses in &mut uses {
            uses.check(round);
        }
        for place in [&place, &second, &quiet] {
            let process = format!("service, process {}", domain.as_raw_nonzero());
            until("the mount is listed", || listed(&service, place).ends_with(&process));
            let code = || run(service.floe().arg("status").arg(&place.path)).status.code();
            until("the process answers", || code() == Some(0));
        }
        fadvise(&held, 0, None, Advice::DontNeed).expect("it is open");
        let mut bytes = vec![0; expected.len()];
        held.read_exact_at(&mut bytes, 0).expect("readable through the old descriptor");
        assert!(bytes == expected, "round {round}");
        assert!(!service.messages().contains("lost"), "round {round}: {}", service.messages());
    }
    let options = String::from_utf8(run(service.floe().arg("tune").arg(&quiet.path)).stdout).expect("text");
    assert!(options.lines().any(|line| line.starts_with("prefetch=none")), "changes of options survive: {options}");
    // A new mount is served by the same process.
    let next = service.mount(&demo(), &[]);
    assert_eq!(service.domain(), domain);
    let (code, errors) = told(&run(service.floe().arg("umount").arg(&place.path)));
    assert_eq!((code, errors.contains("is in use by")), (Some(1), true), "{errors}");
    uses.into_iter().for_each(Uses::end);
    drop(held);
    for place in [&place, &second, &quiet, &next] {
        assert_eq!(service.umount(place), (Some(0), String::new()));
        assert!(!place.is_mounted());
    }
    until("the process ends with its last mount", || service.domains().is_empty());
    service.signal(Signal::TERM);
    assert_eq!(service.end(), Some(0));
    assert!(!service.folder().join("service.domains").exists());
}

#[test]
fn mounts_that_end_without_a_broker_are_forgotten() {
    if !can_mount() {
        return;
    }
    let mut service = Service::start(&[]);
    let places: [Place; 3] = std::array::from_fn(|_| service.mount(&demo(), &[]));
    let domain = service.domain();
    service.signal(Signal::KILL);
    assert_eq!(service.end(), None);
    let [first, second, third] = &places;
    for place in [first, second] {
        place.wait_until_unused();
        assert_eq!(told(&run(floe().arg("umount").arg(&place.path))).0, Some(0));
    }
    service.restart();
    until("the last mount is listed", || listed(&service, third).contains("service, process"));
    assert_eq!(service.umount(third), (Some(0), String::new()));
    until("the process ends with its last mount", || !is_running(domain));
    // The same without any mount for the next broker.
    let place = service.mount(&demo(), &[]);
    let domain = service.domain();
    service.signal(Signal::KILL);
    assert_eq!(service.end(), None);
    place.wait_until_unused();
    assert_eq!(told(&run(floe().arg("umount").arg(&place.path))).0, Some(0));
    until("the process ends with its last mount", || !is_running(domain));
    let directory = service.folder().join("service.domains");
    let socket_count = || {
        let names = fs::read_dir(&directory).expect("it is there").flatten();
        names.filter(|name| name.file_type().is_ok_and(|file_type| file_type.is_socket())).count()
    };
    assert_eq!(socket_count(), 1);
    service.restart();
    let place = service.mount(&demo(), &[]);
    assert_eq!(socket_count(), 1, "the leftover is gone");
    assert_eq!(service.umount(&place), (Some(0), String::new()));
    assert_eq!(service.messages(), "");
}

#[test]
fn mounts_that_a_stopped_service_leaves_are_adopted() {
    if !can_mount() {
        return;
    }
    let mut service = Service::start(&[]);
    let place = service.mount(&demo(), &[]);
    let domain = service.domain();
    let held = File::open(place.file("README.txt")).expect("the mount works");
    service.signal(Signal::TERM);
    assert_eq!(service.end(), Some(1));
    service.restart();
    until("the mount is listed", || listed(&service, &place).contains("service, process"));
    drop(held);
    assert_eq!(service.umount(&place), (Some(0), String::new()));
    until("the process ends with its last mount", || !is_running(domain));
}

#[test]
fn a_process_that_does_not_answer_costs_only_the_management_of_its_mounts() {
    if !can_mount() {
        return;
    }
    let mut service = Service::start(&[]);
    let place = service.mount(&demo(), &[]);
    let stopped = service.domain();
    // A mount that is being made when the broker dies.
    kill_process(stopped, Signal::STOP).expect("it runs");
    let unfinished = Place::new();
    let mut mounting = service.floe();
    mounting.args(["mount", "--service"]).arg(demo()).arg(&unfinished.path).stderr(Stdio::null());
    let mut mounting = mounting.spawn().expect("it starts");
    until("it is mounted", || unfinished.is_mounted());
    service.replace_broker();
    assert_eq!(mounting.wait().expect("our own child").code(), Some(1));
    // The next broker serves clients, with another process.
    let next = service.mount(&demo(), &[]);
    assert!(fs::read(next.file("README.txt")).is_ok_and(|bytes| !bytes.is_empty()));
    let messages = service.messages();
    assert!(messages.contains("served, but not managed: it does not answer"), "{messages}");
    assert_eq!(messages.lines().count(), 1, "{messages}");
    kill_process(stopped, Signal::CONT).expect("it is there");
    assert!(fs::read(place.file("README.txt")).is_ok_and(|bytes| !bytes.is_empty()));
    // Later, it answers the next one. It serves the mount that was being made, too.
    until("the image is open", || run(service.floe().arg("status").arg(&unfinished.path)).status.success());
    service.replace_broker();
    until("the mount is listed", || listed(&service, &place).contains("service, process"));
    assert_eq!(service.domains().len(), 2);
    for place in [&place, &next, &unfinished] {
        assert_eq!(service.umount(place), (Some(0), String::new()));
    }
    until("all processes end", || service.domains().is_empty());
}

/// A socket with this name, of a process that answers each connection with one message.
fn answering(path: &Path, answer: Option<&'static [u8]>) -> OwnedFd {
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None);
    let socket = socket.expect("a socket");
    bind(&socket, &SocketAddrUnix::new(path).expect("a path")).expect("the name is free");
    if let Some(answer) = answer {
        listen(&socket, 1).expect("it is bound");
        let listener = socket.as_fd().try_clone_to_owned().expect("a descriptor");
        thread::spawn(move || {
            let connection = accept(&listener).expect("it listens");
            let mut question = [0; 64];
            recv(&connection, &mut question[..], RecvFlags::empty()).expect("a question");
            if !answer.is_empty() {
                send(&connection, answer, SendFlags::empty()).expect("the broker waits");
            }
            // It stays connected until the other end is closed.
            let _ = recv(&connection, &mut question[..], RecvFlags::empty());
        });
    }
    socket
}

#[test]
fn leftovers_of_others_do_not_stop_a_service() {
    if !can_mount() {
        return;
    }
    let folder = tempfile::tempdir().expect("a directory");
    let directory = folder.path().join("service.domains");
    fs::create_dir(&directory).expect("ours");
    fs::set_permissions(&directory, Permissions::from_mode(0o700)).expect("ours");
    let elsewhere = folder.path().join("elsewhere");
    let of_another = directory.join("3");
    let listening = [
        answering(&elsewhere, Some(&[])),
        answering(&of_another, Some(&[])),
        // Neither answers.
        answering(&directory.join("4"), Some(&[])),
        answering(&directory.join("5"), Some(&[])),
        // Another version, no message, another message, and more mounts than it has.
        answering(&directory.join("6"), Some(&[6, 9, 0, 0, 0, 0, 0, 0, 0])),
        answering(&directory.join("7"), Some(&[0xff; 300])),
        answering(&directory.join("8"), Some(&[1])),
        answering(&directory.join("9"), Some(&[6, 3, 0, 0, 0, 0xff, 0xff, 0xff, 0xff])),
    ];
    chown(&of_another, Some(1000), Some(1000)).expect("root may");
    symlink(&elsewhere, directory.join("2")).expect("ours");
    for name in ["1", "file", "18446744073709551615"] {
        fs::write(directory.join(name), "a file").expect("ours");
    }
    let dead = answering(&directory.join("10"), None);
    let mut service = Service::start_in(folder, &[]);
    let place = service.mount(&demo(), &[]);
    assert!(fs::read(place.file("README.txt")).is_ok_and(|bytes| !bytes.is_empty()));
    let messages = service.messages();
    for (count, text) in [
        (5, "not a socket of this service: it is ignored"),
        (3, "its mounts are served, but not managed: it does not answer"),
        (1, "its mounts are served, but not managed: it is another version of Floe"),
        (2, "its mounts are served, but not managed: invalid data"),
    ] {
        assert_eq!(messages.matches(text).count(), count, "{text}: {messages}");
    }
    assert_eq!(messages.lines().count(), 11, "{messages}");
    assert!(!directory.join("10").exists(), "it is a leftover of a dead process");
    assert!(directory.join("2").is_symlink() && of_another.exists());
    assert_eq!(service.umount(&place), (Some(0), String::new()));
    until("the process ends with its last mount", || service.domains().is_empty());
    drop((dead, listening));
}

#[test]
fn a_directory_of_others_is_not_used() {
    if !can_mount() {
        return;
    }
    for mode in [0o777, 0o750] {
        let folder = tempfile::tempdir().expect("a directory");
        let directory = folder.path().join("service.domains");
        fs::create_dir(&directory).expect("ours");
        fs::set_permissions(&directory, Permissions::from_mode(mode)).expect("ours");
        let mut service = Service::start_in(folder, &[]);
        let place = service.mount(&demo(), &[]);
        let messages = service.messages();
        assert!(messages.contains("is not a directory that only this user can enter"), "{messages}");
        assert_eq!(messages.lines().count(), 1, "{messages}");
        assert_eq!(fs::read_dir(&directory).expect("ours").count(), 0);
        assert_eq!(service.umount(&place), (Some(0), String::new()));
        until("the process ends with its last mount", || service.domains().is_empty());
    }
}
