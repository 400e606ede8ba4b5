//! Mounts over io_uring, which the tests enable or disable in the kernel for as long as they run.

#[path = "support/mod.rs"]
mod support;

use std::{
    fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use floe_sync::{Mutex, MutexGuard};
use floe_testkit::{
    check_rows,
    corpus::Corpus,
    skip::{Need, ready, skipped},
    walk::{self, DirectoryWalk},
};
use rustix::{
    fs::{FlockOperation, flock},
    process::{Pid, Signal, kill_process},
};
use support::front;
use support::program::{Place, Running, Serving, children_of, demo, floe, is_running, run, told, until, within};
use support::service::Service;

const EVERYTHING: DirectoryWalk = DirectoryWalk { numbers: true, segments: true, metadata_only: false };
const PARAMETER: &str = "/sys/module/fuse/parameters/enable_uring";

/// The value of the kernel's parameter during a test. One test at a time has it.
struct Parameter {
    before: String,
    _only: MutexGuard<'static, ()>,
}

impl Parameter {
    /// Sets it; says on stderr if the kernel does not have it.
    fn set(value: &str) -> Option<Self> {
        static ONE: Mutex<()> = Mutex::new(());
        let only = ONE.lock();
        if !ready(&[Need::Root, Need::Fuse]) {
            return None;
        }
        let before = match fs::read_to_string(PARAMETER) {
            Ok(before) => before,
            Err(error) => {
                skipped(&format!("the kernel has no FUSE over io_uring: {error}"));
                return None;
            }
        };
        if let Err(error) = fs::write(PARAMETER, value) {
            skipped(&format!("FUSE over io_uring cannot be enabled: {error}"));
            return None;
        }
        Some(Self { before, _only: only })
    }
}

impl Drop for Parameter {
    fn drop(&mut self) {
        let _ = fs::write(PARAMETER, self.before.trim());
    }
}

fn serving(image: &Path, transport: &str) -> Serving {
    Serving::new(image, ["-o", &format!("transport={transport}")])
}

fn transport(serving: &Serving) -> String {
    let told = run(floe().args(["status"]).arg(&serving.place.path));
    let text = String::from_utf8_lossy(&told.stdout).into_owned();
    let line = text.lines().find_map(|line| line.strip_prefix("transport")).unwrap_or_else(|| panic!("{text}"));
    line.trim().to_owned()
}

/// Unmounts, and waits until the process has ended by itself.
fn unmount(mut serving: Serving) {
    until("it can be unmounted", || {
        run(floe().arg("umount").arg(&serving.place.path));
        !serving.place.is_mounted()
    });
    let (status, errors) = serving.end();
    assert!(status.success() && errors.is_empty(), "{status} {errors}");
}

fn files_beneath(directory: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in fs::read_dir(directory).expect("a directory").map(|entry| entry.expect("an entry")) {
        match entry.file_type().expect("its type") {
            kind if kind.is_dir() => files.extend(files_beneath(&entry.path())),
            kind if kind.is_file() => files.push(entry.path()),
            _ => {}
        }
    }
    files
}

#[test]
fn mounts_show_the_same_over_io_uring() {
    let Some(_enabled) = Parameter::set("Y") else { return };
    let corpus = Corpus::fixtures();
    let mut images = vec![demo()];
    let materialised: Vec<_> = corpus.images().iter().map(|image| corpus.materialise(image)).collect();
    images.extend(
        materialised
            .iter()
            .filter(|files| files.offset == 0 && files.devices.is_empty())
            .map(|files| files.path.clone()),
    );
    check_rows(
        &images,
        |image| image.display().to_string(),
        |image| {
            let (over_ring, over_device) = (serving(image, "uring"), serving(image, "dev"));
            let kinds = (transport(&over_ring), transport(&over_device));
            let mut told = Vec::new();
            if kinds != ("uring (requested by an option)".to_owned(), "dev (requested by an option)".to_owned()) {
                told.push(format!("{kinds:?}"));
            }
            let shown = |serving: &Serving| walk::directory(&serving.place.path, EVERYTHING).expect("walked");
            if shown(&over_ring) != shown(&over_device) {
                told.push("they differ".to_owned());
            }
            unmount(over_ring);
            unmount(over_device);
            told
        },
    );
}

#[test]
fn eight_readers_at_once_get_the_right_bytes() {
    let Some(_enabled) = Parameter::set("Y") else { return };
    let (over_ring, over_device) = (serving(&demo(), "auto"), serving(&demo(), "dev"));
    assert_eq!(transport(&over_ring), "uring (the kernel offers it)");
    let ring_root = &over_ring.place.path;
    let expected: Vec<_> = files_beneath(&over_device.place.path)
        .into_iter()
        .map(|path| {
            let bytes = fs::read(&path).expect("data");
            (path.strip_prefix(&over_device.place.path).expect("a path in it").to_owned(), bytes)
        })
        .collect();
    thread::scope(|scope| {
        for reader in 0..8 {
            let expected = &expected;
            scope.spawn(move || {
                for round in 0..4 {
                    for index in 0..expected.len() {
                        let (path, bytes) = &expected[(index * 7 + reader + round) % expected.len()];
                        let file = fs::File::open(ring_root.join(path)).expect("it is there");
                        assert!(fs::read(ring_root.join(path)).expect("data") == *bytes, "{}", path.display());
                        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).expect("advice");
                    }
                }
            });
        }
    });
    unmount(over_ring);
    unmount(over_device);
}

#[test]
fn mounts_end_with_the_connection_and_with_the_process() {
    let Some(_enabled) = Parameter::set("Y") else { return };
    let mut aborted = serving(&demo(), "uring");
    let minor = rustix::fs::minor(fs::metadata(&aborted.place.path).expect("it is mounted").dev());
    let connection = Path::new("/sys/fs/fuse/connections").join(minor.to_string()).join("abort");
    if connection.exists() {
        fs::write(connection, "1").expect("ours");
        let (status, errors) = aborted.end();
        assert!(!status.success() && errors.contains("lost the connection"), "{status} {errors}");
    }
    let mut killed = serving(&demo(), "uring");
    let path = killed.place.file("README.txt");
    killed.signal(Signal::KILL);
    killed.end();
    assert!(within(move || fs::read(path)).is_err(), "nobody serves it");
    let mut signalled = serving(&demo(), "uring");
    signalled.signal(Signal::TERM);
    let (status, errors) = signalled.end();
    assert!(status.success() && !signalled.place.is_mounted(), "{status} {errors}");
}

#[test]
fn a_mount_over_io_uring_is_neither_handed_over_nor_unmounted_by_fusermount() {
    let Some(_enabled) = Parameter::set("Y") else { return };
    let managed = Place::new();
    let arguments = ["-o", "front=fuse,transport=uring,auto-unmount"];
    let (code, errors) = told(&run(floe().arg("mount").arg(demo()).arg(&managed.path).args(arguments)));
    assert!(code == Some(1) && errors.contains("auto-unmount needs /dev/fuse"), "{errors}");
    let serving = serving(&demo(), "uring");
    let (code, errors) = told(&run(floe().arg("upgrade").arg(&serving.place.path)));
    assert_eq!(code, Some(1));
    assert!(errors.contains("transport=dev"), "{errors}");
    assert!(fs::read(serving.place.file("README.txt")).is_ok());
    unmount(serving);
}

#[test]
fn a_missing_kernel_feature_is_reported() {
    let Some(_disabled) = Parameter::set("N") else { return };
    let place = Place::new();
    let mount = |options: &str| run(floe().arg("mount").arg(demo()).arg(&place.path).args(["-o", options]));
    // Another program keeps the mount from changing the parameter.
    let locked = fs::File::open(PARAMETER).expect("it is there");
    flock(&locked, FlockOperation::NonBlockingLockExclusive).expect("it is free");
    let (code, errors) = told(&mount("front=fuse,transport=uring"));
    drop(locked);
    assert_eq!((code, errors.lines().count()), (Some(1), 1), "{errors}");
    assert!(errors.contains("the kernel does not offer it") && errors.contains("transport=dev"), "{errors}");
    assert!(!place.is_mounted());
    let automatic = serving(&demo(), "auto");
    assert_eq!(transport(&automatic), "dev (the kernel does not offer io_uring (fuse.enable_uring))");
    unmount(automatic);
}

#[test]
fn a_front_and_a_mount_that_asks_for_rings_are_permitted_what_other_mounts_are_not() {
    let Some(_disabled) = Parameter::set("N") else { return };
    if !front::ready() {
        return;
    }
    let serve = |options: &str| Serving::new(&demo(), ["-o", options]);
    // Several at a time: each gets the permission.
    let fronts: Vec<_> = thread::scope(|scope| {
        let starting: Vec<_> = (0..4).map(|_| scope.spawn(|| serve("front=kernel"))).collect();
        starting.into_iter().map(|front| front.join().expect("it is mounted")).collect()
    });
    let unconfined = Serving::new(&demo(), ["-o", "front=kernel", "--sandbox=off"]);
    assert_eq!(fs::read_to_string(PARAMETER).expect("it is there").trim(), "N");
    for front in fronts.into_iter().chain([unconfined]) {
        assert_eq!(transport(&front), "uring (permitted to this mount alone)");
        assert!(fs::read(front.place.file("README.txt")).is_ok());
        unmount(front);
    }
    for arguments in [&["-o", "front=fuse,transport=uring"][..], &["-o", "front=fuse,transport=uring", "--sandbox=off"]]
    {
        let asked = Serving::new(&demo(), arguments);
        assert_eq!(fs::read_to_string(PARAMETER).expect("it is there").trim(), "N");
        assert_eq!(transport(&asked), "uring (requested by an option)");
        assert!(fs::read(asked.place.file("README.txt")).is_ok());
        unmount(asked);
    }
    let device = serve("front=kernel,transport=dev");
    assert_eq!(transport(&device), "dev (requested by an option)");
    unmount(device);
}

#[test]
fn a_service_mounts_over_io_uring_where_that_is_permitted() {
    for value in ["Y", "N"] {
        let Some(_parameter) = Parameter::set(value) else { return };
        let mut service = Service::start(&[]);
        let place = service.mount(&demo(), &["-o", "front=fuse,transport=uring"]);
        assert_eq!(fs::read_to_string(PARAMETER).expect("it is there").trim(), value);
        let status = run(service.floe().arg("status").arg(&place.path));
        assert!(String::from_utf8_lossy(&status.stdout).contains("uring (requested by an option)"), "{status:?}");
        assert!(fs::read(place.file("README.txt")).is_ok());
        if value == "N" {
            // Another program keeps the service from changing the parameter.
            let locked = fs::File::open(PARAMETER).expect("it is there");
            flock(&locked, FlockOperation::NonBlockingLockExclusive).expect("it is free");
            let refused = Place::new();
            for options in ["transport=uring", "transport=uring,front=fuse"] {
                let (code, errors) = told(&service.try_mount(&demo(), &refused.path, &["-o", options]));
                assert_eq!((code, errors.lines().count()), (Some(1), 1), "{errors}");
                assert!(errors.contains("the kernel does not offer it"), "{errors}");
                assert!(!refused.is_mounted());
            }
        }
        assert_eq!(service.umount(&place), (Some(0), String::new()));
        until("all processes end", || service.domains().is_empty());
        assert_eq!(service.messages(), "");
    }
}

#[test]
fn a_permission_of_a_killed_keeper_is_taken_back_by_the_next_command() {
    let Some(_disabled) = Parameter::set("N") else { return };
    if !front::ready() {
        return;
    }
    let value = || fs::read_to_string(PARAMETER).expect("it is there").trim().to_owned();
    let next = Place::new();
    let mut left_count = 0;
    for round in 0..60 {
        let place = Place::new();
        let mut command = floe();
        command.args(["mount", "--daemon", "-o", "front=kernel"]).arg(demo()).arg(&place.path);
        let child = Running::start(&mut command);
        // The permission lasts for a millisecond.
        let since = Instant::now();
        while value() == "N" && since.elapsed() < Duration::from_secs(2) && !place.is_mounted() {}
        let server = children_of(child.id(), "floe").into_iter().next();
        let keeper = server.and_then(|server| children_of(server, "floe-keeper").into_iter().next());
        // Without the process in the foreground, the next command is the first that can take the permission back.
        child.signal(Signal::KILL);
        for process in [keeper, server].into_iter().flatten() {
            let _ = kill_process(Pid::from_raw(process.cast_signed()).expect("a process"), Signal::KILL);
        }
        drop(child);
        until("they have ended", || {
            [keeper, server]
                .into_iter()
                .flatten()
                .all(|process| !is_running(Pid::from_raw(process.cast_signed()).expect("a process")))
        });
        let is_left = value() == "Y";
        left_count += usize::from(is_left);
        let command = if round % 2 == 0 { "mount" } else { "umount" };
        if command == "mount" {
            let mount = run(floe().args(["mount", "--daemon", "-o", "front=fuse"]).arg(demo()).arg(&next.path));
            assert_eq!(told(&mount), (Some(0), String::new()));
        }
        // Another connection may have the permission for a moment.
        let is_taken_back = || until(&format!("round {round}: it is taken back"), || value() == "N");
        if command == "mount" {
            is_taken_back();
        }
        run(floe().args(["umount", "--lazy"]).args([&next.path, &place.path]));
        is_taken_back();
        if left_count > 2 {
            return;
        }
    }
    if left_count == 0 {
        skipped("no keeper was killed while it held a permission");
    }
}

#[test]
#[cfg(debug_assertions)]
fn a_process_with_rings_is_confined() {
    let Some(_enabled) = Parameter::set("Y") else { return };
    for is_of_service in [false, true] {
        check_confined(is_of_service);
    }
}

#[cfg(debug_assertions)]
fn check_confined(is_of_service: bool) {
    let victim = tempfile::tempdir().expect("a directory");
    let port = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = port.local_addr().expect("it is bound").port();
    let _socket = std::os::unix::net::UnixListener::bind(victim.path().join("listener.sock")).expect("a socket");
    let target = format!("{}:{port}", victim.path().display());
    let options = ["-o", "front=fuse,transport=uring"];
    if is_of_service {
        let variables = Box::leak(Box::new([("FLOE_TEST_COMPROMISED", &*target.leak())]));
        let service = Service::start_with(variables);
        let place = service.mount(&demo(), &options);
        assert!(fs::read(place.file("README.txt")).is_ok());
        assert_eq!(service.umount(&place), (Some(0), String::new()));
    } else {
        let place = Place::new();
        let mut command = floe();
        command.arg("mount").arg(demo()).arg(&place.path).args(options).env("FLOE_TEST_COMPROMISED", target);
        let serving = Serving::start(command, place);
        assert!(fs::read(serving.place.file("README.txt")).is_ok());
        unmount(serving);
    }
    let attempts = fs::read_to_string(victim.path().join("attempts")).expect("the hook wrote it");
    assert!(attempts.lines().any(|line| line.starts_with("io_uring_setup: ")), "{attempts}");
    let allowed: Vec<_> = attempts.lines().filter(|line| line.ends_with(": allowed")).collect();
    assert!(allowed.is_empty(), "{allowed:?}");
}
