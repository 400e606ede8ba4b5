//! Hostile clients of the service: wrong descriptors, broken messages, many connections, other users.

use std::{
    fs::{self, Permissions},
    io::IoSlice,
    mem::MaybeUninit,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::{fs::PermissionsExt, process::CommandExt},
    },
    path::Path,
    time::Duration,
};

use floe_testkit::{
    copy_program,
    skip::{Need, ready},
};
use rustix::{
    fs::{CWD, Mode, OFlags, openat},
    net::{
        AddressFamily, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, Shutdown, SocketAddrUnix,
        SocketFlags, SocketType, connect, recv, sendmsg, shutdown, socket_with,
        sockopt::{Timeout, set_socket_timeout},
    },
};

use crate::support::{
    program::{Place, demo, run, told, until},
    service::Service,
};

/// The number of connections of one client.
const CONNECTIONS: usize = 1000;

fn can_mount() -> bool {
    ready(&[Need::Root, Need::Fuse])
}

/// A connection that sends what it likes.
struct Raw(OwnedFd);

impl Raw {
    fn connect(service: &Service) -> Self {
        let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None);
        let socket = socket.expect("a socket");
        set_socket_timeout(&socket, Timeout::Recv, Some(Duration::from_secs(60))).expect("a socket");
        connect(&socket, &SocketAddrUnix::new(service.socket()).expect("a path")).expect("the service listens");
        Self(socket)
    }

    /// A connection that has greeted.
    fn greeted(service: &Service) -> Self {
        let raw = Self::connect(service);
        raw.send(&[1, 1, 0, 0, 0], &[]);
        assert_eq!(raw.answer().first(), Some(&1));
        raw
    }

    fn send(&self, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(253))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !descriptors.is_empty() {
            control.push(SendAncillaryMessage::ScmRights(descriptors));
        }
        // The service may have closed the connection.
        let _ = sendmsg(&self.0, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL);
    }

    /// The next answer; empty if the connection is closed.
    fn answer(&self) -> Vec<u8> {
        let mut bytes = vec![0; 64 << 10];
        let len = recv(&self.0, &mut bytes[..], RecvFlags::empty()).map_or(0, |(len, _)| len);
        bytes.truncate(len);
        bytes
    }
}

/// A mount request with a path and options.
fn mount_request(image: &[u8], device_count: u32, options: &[u8]) -> Vec<u8> {
    let list = |bytes: &[u8]| [&(bytes.len() as u32).to_le_bytes()[..], bytes].concat();
    let devices: Vec<u8> = (0..device_count).flat_map(|_| list(b"/device")).collect();
    [&[2][..], &list(image), &device_count.to_le_bytes(), &devices, &list(options), &[1]].concat()
}

fn open(path: &Path, flags: OFlags) -> OwnedFd {
    openat(CWD, path, flags | OFlags::CLOEXEC, Mode::empty()).expect("it is there")
}

/// The descriptors and mounts of the service are as before, and it works.
fn check_whole(service: &mut Service, descriptors: usize) {
    let fds = format!("/proc/{}/fd", service.broker());
    until("no descriptor is left over", || fs::read_dir(&fds).expect("it runs").count() <= descriptors);
    let place = service.mount(&demo(), &["-o", "front=fuse"]);
    assert!(place.file("README.txt").exists());
    assert_eq!(service.umount(&place), (Some(0), String::new()));
    until("the process ends", || service.domains().is_empty());
}

/// The number of descriptors of the broker.
fn descriptors(service: &Service) -> usize {
    fs::read_dir(format!("/proc/{}/fd", service.broker())).expect("it runs").count()
}

#[test]
fn wrong_requests_are_refused_and_leave_nothing() {
    if !can_mount() {
        return;
    }
    let mut service = Service::start(&[]);
    let before = descriptors(&service);
    let place = Place::new();
    let image = || open(&demo(), OFlags::RDONLY);
    let directory = || open(&place.path, OFlags::PATH | OFlags::DIRECTORY);
    let pipe = || OwnedFd::from(std::io::pipe().expect("a pipe").0);
    let writable = tempfile::tempfile().expect("a file");
    let good = mount_request(b"/image", 0, b"");
    let refused: Vec<(&str, Vec<u8>, Vec<OwnedFd>)> = vec![
        ("no descriptors", good.clone(), vec![]),
        ("no directory", good.clone(), vec![image()]),
        ("too many", good.clone(), vec![image(), image(), directory()]),
        ("the wrong order", good.clone(), vec![directory(), image()]),
        ("a pipe", good.clone(), vec![pipe(), directory()]),
        ("a device", good.clone(), vec![open(Path::new("/dev/null"), OFlags::RDONLY), directory()]),
        ("a device of FUSE", good.clone(), vec![open(Path::new("/dev/fuse"), OFlags::RDWR), directory()]),
        ("a writable file", good.clone(), vec![writable.into(), directory()]),
        ("a path only", good.clone(), vec![open(&demo(), OFlags::PATH), directory()]),
        ("a readable directory", good.clone(), vec![image(), open(&place.path, OFlags::RDONLY)]),
        ("a file as the directory", good.clone(), vec![image(), open(&demo(), OFlags::PATH)]),
        ("the root directory", good.clone(), vec![image(), open(Path::new("/"), OFlags::PATH)]),
        ("a missing device", mount_request(b"/image", 1, b""), vec![image(), directory()]),
        ("many devices", mount_request(b"/image", 200, b""), vec![image(), directory()]),
        ("a zero byte", mount_request(b"/im\0age", 0, b""), vec![image(), directory()]),
        ("a long path", mount_request(&[b'a'; 5000], 0, b""), vec![image(), directory()]),
        ("an unknown option", mount_request(b"/image", 0, b"no-such-option"), vec![image(), directory()]),
        ("a file of the service", mount_request(b"/image", 0, b"profile=/etc/passwd"), vec![image(), directory()]),
        (
            "a front for one user",
            mount_request(b"/image", 0, b"front=kernel,access=private"),
            vec![image(), directory()],
        ),
        ("another unmount", [&[3][..], &[0; 8], &[1]].concat(), vec![]),
    ];
    let raw = Raw::greeted(&service);
    for (what, request, files) in refused {
        let files: Vec<BorrowedFd<'_>> = files.iter().map(AsFd::as_fd).collect();
        raw.send(&request, &files);
        let answer = raw.answer();
        assert_eq!(answer.first(), Some(&5), "{what}: {:?}", String::from_utf8_lossy(&answer));
        let text = String::from_utf8_lossy(answer.get(6..).unwrap_or_default()).into_owned();
        assert!(!text.is_empty() && !text.contains('\n'), "{what}: {text:?}");
        assert!(!place.is_mounted(), "{what}");
    }
    drop(raw);
    check_whole(&mut service, before);
    assert_eq!(service.messages(), "");
}

#[test]
fn broken_messages_end_a_connection_and_nothing_else() {
    if !can_mount() {
        return;
    }
    let mut service = Service::start(&[]);
    let before = descriptors(&service);
    let file = open(&demo(), OFlags::RDONLY);
    let good = mount_request(b"/image", 0, b"");
    let mut broken: Vec<Vec<u8>> = (0..good.len()).map(|len| good[..len].to_vec()).collect();
    broken.extend([
        vec![0],
        vec![0xff; 100],
        [&good[..], b"more"].concat(),
        vec![2; 60 << 10],
        [&[2][..], &u32::MAX.to_le_bytes()].concat(),
        mount_request(b"/image", 0, &[0xff, 0xfe]),
        mount_request(b"/image", u32::MAX >> 20, b""),
    ]);
    for bytes in &broken {
        let raw = Raw::greeted(&service);
        raw.send(bytes, &[file.as_fd()]);
        assert_eq!(raw.answer(), Vec::<u8>::new(), "{bytes:?}");
    }
    // More descriptors than a message may have.
    let raw = Raw::greeted(&service);
    raw.send(&good, &[file.as_fd(); 200]);
    assert_ne!(raw.answer().first(), Some(&2));
    drop(raw);
    // A request before the greeting, and closed and half-closed connections.
    let raw = Raw::connect(&service);
    raw.send(&good, &[file.as_fd(), file.as_fd()]);
    assert_eq!(raw.answer().first(), Some(&5));
    drop(raw);
    for how in [Shutdown::Read, Shutdown::Write, Shutdown::Both] {
        let raw = Raw::greeted(&service);
        shutdown(&raw.0, how).expect("it is connected");
        raw.send(&good, &[file.as_fd()]);
        drop(Raw::connect(&service));
    }
    let unread = Raw::greeted(&service);
    for _ in 0..1000 {
        // Its answers are never read.
        unread.send(&[4, 0, 0, 0, 0, 0, 0, 0, 0], &[]);
    }
    check_whole(&mut service, before + 1);
    drop(unread);
    check_whole(&mut service, before);
    assert_eq!(service.messages(), "");
}

#[test]
fn a_client_that_goes_during_a_mount_leaves_a_whole_mount() {
    if !can_mount() {
        return;
    }
    let mut service = Service::start(&[]);
    let place = Place::new();
    let raw = Raw::greeted(&service);
    let (image, directory) = (open(&demo(), OFlags::RDONLY), open(&place.path, OFlags::PATH | OFlags::DIRECTORY));
    raw.send(&mount_request(b"/image", 0, b""), &[image.as_fd(), directory.as_fd()]);
    drop((raw, image, directory));
    until("it is mounted", || place.is_mounted() && place.file("README.txt").exists());
    assert_eq!(service.umount(&place), (Some(0), String::new()));
    until("the process ends", || service.domains().is_empty());
}

#[test]
fn many_connections_exclude_nobody() {
    if !can_mount() {
        return;
    }
    let mut service = Service::start(&[]);
    let before = descriptors(&service);
    let connected: Vec<Raw> = (0..CONNECTIONS).map(|_| Raw::connect(&service)).collect();
    let place = service.mount(&demo(), &["-o", "front=fuse"]);
    assert!(place.file("README.txt").exists());
    assert!(descriptors(&service) < before + CONNECTIONS / 2);
    drop(connected);
    assert_eq!(service.umount(&place), (Some(0), String::new()));
    check_whole(&mut service, before);
}

#[test]
fn other_users_are_refused() {
    if !can_mount() {
        return;
    }
    let service = Service::start(&[]);
    let place = Place::new();
    // Even if the permissions of the socket let them in.
    for path in [service.folder().to_owned(), place.path.clone()] {
        fs::set_permissions(path, Permissions::from_mode(0o777)).expect("ours");
    }
    fs::set_permissions(service.socket(), Permissions::from_mode(0o777)).expect("ours");
    copy_program(env!("CARGO_BIN_EXE_floe"), service.folder().join("floe"));
    fs::copy(demo(), service.folder().join("image")).expect("ours");
    let as_user = |arguments: &[&str]| {
        let mut command = std::process::Command::new(service.folder().join("floe"));
        command.env("FLOE_SERVICE", service.socket()).args(arguments).current_dir(service.folder());
        run(command.arg("image").arg(&place.path).uid(65_534).gid(65_534))
    };
    let (code, errors) = told(&as_user(&["mount", "--service"]));
    assert_eq!((code, errors.lines().count()), (Some(1), 1), "{errors}");
    assert!(errors.contains("mounts only for the user who has started it"), "{errors}");
    assert!(!place.is_mounted());
    // With service=auto, a process of its own serves the mount, if the user may mount at all.
    let (_, errors) = told(&as_user(&["mount", "--daemon", "-o", "service=auto,front=fuse"]));
    assert!(!errors.contains("the service"), "{errors}");
}
