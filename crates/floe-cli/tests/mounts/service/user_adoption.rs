//! The broker is killed: the next one adopts the processes that read images of users, with all mounts.

use std::{
    fs::{self, File},
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::Duration,
};

use floe_testkit::skip::{self, Need};
use rustix::process::{Pid, Signal, kill_process};

use super::users::{ForUsers, place_of, ready as can_serve_users};
use crate::{
    handover::Fixture,
    support::{
        front,
        program::{Place, run, told, until},
    },
};

const USER: u32 = 65_527;
const OTHER: u32 = 65_526;

/// How often the broker is killed.
const ROUNDS: usize = 4;

/// An image that changed less than this ago is not kept.
const SETTLED: Duration = Duration::from_millis(200);

fn ready() -> bool {
    can_serve_users() && skip::ready(&[Need::Peer("python3")]) && front::ready()
}

/// A service for all users that mounts fronts, with an image.
struct Scene {
    users: ForUsers,
    fixture: Fixture,
}

/// A process of the user that reads a file of a mount again and again, without the page cache.
struct Reader {
    process: Child,
    counts: PathBuf,
}

impl Scene {
    fn start(limits: &str) -> Self {
        let (users, fixture) = (ForUsers::start_with_cache(limits), Fixture::new());
        fs::copy(fixture.image(), users.path("files.erofs")).expect("a copy");
        thread::sleep(SETTLED);
        Self { users, fixture }
    }

    fn mount(&self, user: u32, front: &str) -> Place {
        let place = place_of(user);
        let mut command = self.users.as_user(user);
        command.args(["mount", "--service", "-o", &format!("front={front}")]).arg(self.users.path("files.erofs"));
        assert_eq!(told(&run(command.arg(&place.path))), (Some(0), String::new()));
        let kind = if front == "kernel" { " erofs floe\\043" } else { " fuse.floe " };
        assert!(place.mount_line().contains(kind), "{}", place.mount_line());
        place
    }

    fn umount(&self, user: u32, place: &Place) -> (Option<i32>, String) {
        place.wait_until_unused();
        told(&run(self.users.as_user(user).arg("umount").arg(&place.path)))
    }

    /// The process that reads the images of a user.
    fn domain(&mut self, user: u32) -> Option<u32> {
        let line = format!("Uid:\t{user}\t");
        let is_its = |domain: &u32| {
            fs::read_to_string(format!("/proc/{domain}/status")).is_ok_and(|status| status.contains(&line))
        };
        self.users.service.domains().into_iter().find(is_its)
    }

    /// Waits until root and the user see who serves a mount.
    fn wait_until_listed(&self, user: u32, place: &Place, domain: u32) {
        let server = format!("service, process {domain}");
        let is_in = |mut command: Command| {
            let output = run(command.arg("status"));
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            let path = place.path.display().to_string();
            text.lines().any(|line| line.starts_with(&path) && line.ends_with(&server))
        };
        until("the user sees the mount", || is_in(self.users.as_user(user)));
        until("root sees the mount", || is_in(self.users.service.floe()));
    }

    fn read(&self, user: u32, place: &Place) -> bool {
        let read = run(Command::new("cat").arg(place.file("files/0")).uid(user).gid(user).stdin(Stdio::null()));
        read.stdout == fs::read(self.expected()).expect("ours")
    }

    fn expected(&self) -> PathBuf {
        self.fixture.image().with_file_name("tree").join("files/0")
    }
}

impl Reader {
    fn start(scene: &Scene, place: &Place) -> Self {
        let (counts, expected) = (place.path.with_extension("counts"), scene.users.path("expected"));
        fs::copy(scene.expected(), &expected).expect("a copy");
        let script = "import os, sys, time\n\
            expected = open(sys.argv[2], 'rb').read()\n\
            while True:\n \
                with open(sys.argv[1], 'rb', 0) as file:\n  \
                    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)\n  \
                    assert file.readall() == expected\n \
                print(flush=True)\n \
                time.sleep(0.01)\n";
        let mut command = Command::new("python3");
        command.args(["-c", script]).arg(place.file("files/0")).arg(&expected).uid(USER).gid(USER);
        command.stdin(Stdio::null()).stdout(File::create(&counts).expect("ours"));
        Self { process: command.spawn().expect("it starts"), counts }
    }

    /// Checks that no read has failed, and that it goes on.
    fn check(&mut self) {
        let count = || fs::metadata(&self.counts).expect("ours").len();
        let before = count();
        until("the reader goes on", || {
            assert!(matches!(self.process.try_wait(), Ok(None)), "a read has failed");
            count() >= before + 2
        });
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = fs::remove_file(&self.counts);
    }
}

#[test]
fn users_do_not_notice_a_killed_broker() {
    if !ready() {
        return;
    }
    let mut scene = Scene::start("");
    let (kernel, fuse) = (scene.mount(USER, "kernel"), scene.mount(USER, "fuse"));
    let of_other = scene.mount(OTHER, "kernel");
    let mut readers = [&kernel, &fuse].map(|place| Reader::start(&scene, place));
    let tune = run(scene.users.as_user(USER).arg("tune").arg(&fuse.path).arg("prefetch=none"));
    assert_eq!(told(&tune), (Some(0), String::new()));
    for round in 0..ROUNDS {
        scene.users.replace_broker_of_fronts("");
        let mut domain = scene.domain(USER).expect("it goes on");
        for place in [&kernel, &fuse] {
            scene.wait_until_listed(USER, place, domain);
        }
        if round % 2 == 1 {
            // It is replaced like a process that the broker has started itself.
            let killed = domain;
            kill_process(Pid::from_raw(killed.cast_signed()).expect("a process"), Signal::KILL).expect("it runs");
            until("another process is started", || {
                domain = scene.domain(USER).unwrap_or(killed);
                domain != killed
            });
        }
        readers.iter_mut().for_each(Reader::check);
        for place in [&kernel, &fuse] {
            scene.wait_until_listed(USER, place, domain);
            assert_eq!(run(scene.users.as_user(USER).arg("status").arg(&place.path)).status.code(), Some(0));
            let (code, errors) = told(&run(scene.users.as_user(OTHER).arg("umount").arg(&place.path)));
            assert!(code == Some(1) && place.is_mounted(), "{errors}");
        }
        assert!(scene.read(OTHER, &of_other), "round {round}");
        let messages = scene.users.service.messages();
        assert!(!messages.contains("not managed") && !messages.contains("lost"), "round {round}: {messages}");
    }
    let options = run(scene.users.as_user(USER).arg("tune").arg(&fuse.path));
    assert!(String::from_utf8_lossy(&options.stdout).contains("prefetch=none"), "{options:?}");
    drop(readers);
    // A new mount is served by the same process.
    let next = scene.mount(USER, "kernel");
    assert_eq!(scene.users.service.domains().len(), 2);
    for place in [&kernel, &fuse, &next] {
        assert_eq!(scene.umount(USER, place), (Some(0), String::new()));
        assert!(!place.is_mounted());
    }
    assert_eq!(scene.umount(OTHER, &of_other), (Some(0), String::new()));
    until("the processes end with their last mounts", || scene.users.service.domains().is_empty());
    scene.users.service.signal(Signal::TERM);
    assert_eq!(scene.users.service.end(), Some(0));
    assert!(!scene.users.path("service.domains").exists());
}

#[test]
fn limits_of_users_outlive_the_broker() {
    if !ready() {
        return;
    }
    let mut scene = Scene::start(",mounts=2");
    let places = [scene.mount(USER, "kernel"), scene.mount(USER, "fuse")];
    let refused = |scene: &Scene| {
        let another = place_of(USER);
        let mut command = scene.users.as_user(USER);
        command.args(["mount", "--service"]).arg(scene.users.path("files.erofs")).arg(&another.path);
        told(&run(&mut command)).1.contains("has 2 mounts, as many as the service permits")
    };
    assert!(refused(&scene));
    scene.users.replace_broker_of_fronts(",mounts=2");
    let wait = |scene: &mut Scene| {
        let domain = scene.domain(USER).expect("it goes on");
        places.iter().for_each(|place| scene.wait_until_listed(USER, place, domain));
    };
    wait(&mut scene);
    assert!(refused(&scene), "{}", scene.users.service.messages());
    // A service that does not serve users leaves them alone.
    scene.users.service.replace_broker();
    let messages = |scene: &Scene| scene.users.service.messages();
    until("the service looks", || messages(&scene).contains("does not serve other users any more"));
    assert!(places.iter().all(|place| scene.read(USER, place)));
    assert!(
        !String::from_utf8_lossy(&run(scene.users.service.floe().arg("status")).stdout).contains("service, process")
    );
    scene.users.replace_broker_of_fronts(",mounts=2");
    wait(&mut scene);
    assert!(refused(&scene));
    // Nor does a process of the user that does not answer stop the next one.
    let domain = scene.domain(USER).and_then(|domain| Pid::from_raw(domain.cast_signed())).expect("it runs");
    kill_process(domain, Signal::STOP).expect("it runs");
    scene.users.replace_broker_of_fronts(",mounts=2");
    until("the service gives up", || messages(&scene).contains("served, but not managed: it does not answer"));
    let next = scene.mount(USER, "kernel");
    assert_eq!(scene.umount(USER, &next), (Some(0), String::new()));
    kill_process(domain, Signal::CONT).expect("it is there");
    scene.users.replace_broker_of_fronts("");
    wait(&mut scene);
    for place in &places {
        assert_eq!(scene.umount(USER, place), (Some(0), String::new()));
    }
    until("all processes end", || scene.users.service.domains().is_empty());
}

/// A program that holds the socket of a user's process cannot make up mounts.
#[test]
fn sockets_of_users_cannot_be_reached_by_them() {
    if !ready() {
        return;
    }
    let mut scene = Scene::start("");
    let place = scene.mount(USER, "fuse");
    let directory = scene.users.path("service.domains");
    let domain = scene.domain(USER).expect("it runs");
    let shown = |path: &Path| path.display().to_string();
    for script in [
        format!("ls {}", shown(&directory)),
        format!("cat {}", shown(&directory.join("key"))),
        format!("ls /proc/{domain}/fd"),
        format!("cat /proc/{domain}/fdinfo/3"),
    ] {
        let output = run(Command::new("sh").args(["-c", &script]).uid(USER).gid(USER).stdin(Stdio::null()));
        assert!(!output.status.success() && output.stdout.is_empty(), "{script}: {output:?}");
    }
    assert_eq!(scene.umount(USER, &place), (Some(0), String::new()));
    until("the process ends with its last mount", || scene.users.service.domains().is_empty());
}
