//! `floe upgrade` replaces the program of the service while its mounts are used.

use std::{
    fs::{self, File},
    io::{BufRead, BufReader, Write},
    os::unix::{fs::FileExt, process::CommandExt},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    thread,
    time::Duration,
};

use floe_testkit::{
    MappedFile, copy_program,
    skip::{Need, ready as needs},
};
use rustix::{
    fs::{Advice, fadvise},
    process::{Pid, Signal, kill_process},
};

use super::users::{ForUsers, place_of, ready as can_serve_users};
use crate::{
    handover::{Fixture, Uses},
    support::{
        front,
        program::{Place, demo, floe, run, told, until},
        service::Service,
    },
};

/// How often the program is replaced.
const ROUNDS: usize = 5;

/// How often the broker is killed during an upgrade.
const KILLS: u64 = 5;

/// A user.
const USER: u32 = 65_533;

/// The part of a file that is mapped.
const MAPPED_BYTES: usize = 300_000;

fn can_mount() -> bool {
    needs(&[Need::Root, Need::Fuse])
}

/// Copies of the program. In debug builds, the domains of the second one speak another version.
struct Programs {
    folder: tempfile::TempDir,
}

impl Programs {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a directory");
        for name in ["same", "program.another"] {
            copy_program(env!("CARGO_BIN_EXE_floe"), folder.path().join(name));
        }
        Self { folder }
    }

    fn same(&self) -> PathBuf {
        self.folder.path().join("same")
    }

    fn another(&self) -> PathBuf {
        self.folder.path().join("program.another")
    }
}

/// The program that a process executes.
fn executed(process: u32) -> PathBuf {
    fs::read_link(format!("/proc/{process}/exe")).expect("it runs")
}

fn descriptors(process: u32) -> usize {
    fs::read_dir(format!("/proc/{process}/fd")).expect("it runs").count()
}

fn squashfs_of(fixture: &Fixture) -> PathBuf {
    let image = fixture.image().with_extension("squashfs");
    let tree = fixture.image().with_file_name("tree");
    assert!(run(floe().args(["mkfs", "--format", "squashfs"]).arg(&image).arg(tree)).status.success());
    image
}

fn status(service: &Service, place: &Place) -> String {
    String::from_utf8_lossy(&run(service.floe().arg("status").arg(&place.path)).stdout).into_owned()
}

/// Whether `floe status` says of all these mounts that this serves them.
fn listed(service: &Service, places: &[&Place], server: &str) -> bool {
    let text = String::from_utf8_lossy(&run(service.floe().arg("status")).stdout).into_owned();
    places.iter().all(|place| {
        let path = place.path.display().to_string();
        text.lines().any(|line| line.starts_with(&path) && line.contains(server))
    })
}

/// Uses mounts with these options while the program is replaced, at last by one of another version and back.
fn check_upgrades(service: &mut Service, options: &str, is_right: impl Fn(&str) -> bool) {
    let (fixture, programs) = (Fixture::new(), Programs::new());
    let images = [fixture.image(), squashfs_of(&fixture)];
    let places = images.each_ref().map(|image| service.mount(image, &["-o", options]));
    let quiet = service.mount(&demo(), &["-o", "front=fuse"]);
    assert_eq!(told(&run(service.floe().arg("tune").arg(&quiet.path).arg("prefetch=none"))), (Some(0), String::new()));
    let held = File::open(places[1].file("files/3")).expect("the mount works");
    let mapped = MappedFile::new(&held, MAPPED_BYTES).expect("it can be mapped");
    let expected = mapped.bytes();
    let mut uses = places.each_ref().map(|place| Uses::begin(&place.path));
    let (mut domain, broker) = (service.domain(), service.broker());
    let mut counts = Vec::new();
    let own = PathBuf::from(env!("CARGO_BIN_EXE_floe"));
    for round in 0..ROUNDS + 2 {
        let program = match round {
            ROUNDS => programs.another(),
            _ if round % 2 == 0 => programs.same(),
            _ => own.clone(),
        };
        assert_eq!(service.upgrade(&program), (Some(0), String::new()), "round {round}");
        let program = program.canonicalize().expect("it is there");
        assert_eq!(executed(broker), program, "the broker's process stays");
        until("the old process ends", || service.domains().len() == 1);
        let next = service.domain();
        assert_ne!(next, domain, "round {round}");
        domain = next;
        assert_eq!(executed(domain.as_raw_nonzero().get().unsigned_abs()), program);
        assert_eq!(fs::read_to_string(format!("/proc/{broker}/comm")).ok().as_deref(), Some("floe\n"));
        for uses in &mut uses {
            uses.check(round);
        }
        mapped.forget();
        fadvise(&held, 0, None, Advice::DontNeed).expect("it is open");
        assert!(mapped.bytes() == expected, "round {round}");
        let process = format!("service, process {}", domain.as_raw_nonzero());
        assert!(listed(service, &[&places[0], &places[1], &quiet], &process), "round {round}");
        for place in &places {
            assert!(is_right(&status(service, place)), "{}", status(service, place));
        }
        until("short-lived descriptors are closed", || {
            counts.push(descriptors(broker));
            counts.first() >= counts.last()
        });
        counts.truncate(1);
    }
    assert_eq!(service.messages(), "");
    let options = String::from_utf8(run(service.floe().arg("tune").arg(&quiet.path)).stdout).expect("text");
    assert!(options.lines().any(|line| line.starts_with("prefetch=none")), "changes of options survive: {options}");
    uses.into_iter().for_each(Uses::end);
    drop((held, mapped));
    let next = service.mount(&demo(), &[]);
    assert_eq!(service.domain(), domain);
    for place in places.iter().chain([&quiet, &next]) {
        assert_eq!(service.umount(place), (Some(0), String::new()));
        assert!(!place.is_mounted());
    }
    until("the process ends with its last mount", || service.domains().is_empty());
    service.signal(Signal::TERM);
    assert_eq!(service.end(), Some(0));
    assert!(!service.socket().exists());
}

#[test]
fn readers_and_programs_do_not_notice_an_upgrade() {
    if !can_mount() {
        return;
    }
    check_upgrades(&mut Service::start(&[]), "front=fuse", |_| true);
}

#[test]
fn readers_of_fronts_do_not_notice_an_upgrade() {
    if !front::ready() {
        return;
    }
    let mut service = Service::start_with(&[("FLOE_TEST_KEEP_AFTER_MS", "100")]);
    let options = format!("front=kernel,front-data=floe,cache-directory={}", service.folder().join("cache").display());
    check_upgrades(&mut service, &options, |status| status.contains("; with kept metadata"));
}

#[test]
fn a_program_that_cannot_continue_changes_nothing() {
    if !can_mount() {
        return;
    }
    let mut service = Service::start(&[]);
    let place = service.mount(&demo(), &[]);
    let (broker, domain) = (service.broker(), service.domain());
    let folder = tempfile::tempdir().expect("a directory");
    let file = folder.path().join("file");
    fs::write(&file, "no program").expect("ours");
    for (program, reason) in [
        (Path::new("/bin/true"), "is not a version of Floe that can continue the service"),
        (Path::new("/bin/cat"), "cannot continue the service"),
        (&file, "cannot be executed"),
        (folder.path(), "is not a regular file"),
        (Path::new("/nowhere"), "No such file"),
    ] {
        let (code, errors) = service.upgrade(program);
        assert_eq!((code, errors.lines().count()), (Some(1), 1), "{errors}");
        assert!(errors.contains(reason), "{}: {errors}", program.display());
    }
    assert_eq!((executed(broker), service.domain()), (executed(domain.as_raw_nonzero().get().unsigned_abs()), domain));
    assert!(fs::read(place.file("README.txt")).is_ok_and(|bytes| !bytes.is_empty()));
    let (code, errors) = told(&run(service.floe().arg("upgrade").arg(&place.path)));
    assert_eq!((code, errors.lines().count()), (Some(1), 1), "{errors}");
    assert!(errors.contains("run floe upgrade without a directory"), "{errors}");
    let next = service.mount(&demo(), &[]);
    for place in [&place, &next] {
        assert_eq!(service.umount(place), (Some(0), String::new()));
    }
    assert_eq!(service.messages(), "");
    // Root without root's rights.
    let mut limited = Command::new("setpriv");
    limited.args(["--bounding-set=-sys_admin", "--inh-caps=-sys_admin"]).arg(env!("CARGO_BIN_EXE_floe")).arg("upgrade");
    if needs(&[Need::Peer("setpriv")]) {
        let (code, errors) = told(&run(limited.env("FLOE_SERVICE", service.socket())));
        assert_eq!((code, errors.lines().count()), (Some(1), 1), "{errors}");
        assert!(errors.contains("with all rights of the service"), "{errors}");
    }
    // Without a service.
    service.signal(Signal::TERM);
    assert_eq!(service.end(), Some(0));
    let (code, errors) = told(&run(service.floe().arg("upgrade")));
    assert_eq!((code, errors.lines().count()), (Some(1), 1), "{errors}");
}

#[test]
fn a_mount_that_is_being_made_delays_an_upgrade() {
    if !can_mount() {
        return;
    }
    let mut service = Service::start(&[]);
    let place = service.mount(&demo(), &["-o", "front=fuse"]);
    let domain = service.domain();
    kill_process(domain, Signal::STOP).expect("it runs");
    let unfinished = Place::new();
    let mut mounting = service.floe();
    mounting.args(["mount", "--service", "-o", "front=fuse"]).arg(demo()).arg(&unfinished.path).stdout(Stdio::null());
    let mut mounting = mounting.spawn().expect("it starts");
    until("it is mounted", || unfinished.is_mounted());
    let program = Path::new(env!("CARGO_BIN_EXE_floe"));
    let (code, errors) = service.upgrade(program);
    assert_eq!((code, errors.lines().count()), (Some(1), 1), "{errors}");
    assert!(errors.contains("try again; the service goes on as before"), "{errors}");
    kill_process(domain, Signal::CONT).expect("it is there");
    assert_eq!(mounting.wait().expect("our own child").code(), Some(0));
    assert_eq!(service.upgrade(program), (Some(0), String::new()));
    for place in [&place, &unfinished] {
        assert!(fs::read(place.file("README.txt")).is_ok_and(|bytes| !bytes.is_empty()));
        assert_eq!(service.umount(place), (Some(0), String::new()));
    }
}

#[test]
fn a_mount_whose_image_is_gone_stays_in_the_old_process() {
    if !can_mount() {
        return;
    }
    let folder = tempfile::tempdir().expect("a directory");
    let image = folder.path().join("image");
    fs::copy(demo(), &image).expect("ours");
    let mut service = Service::start(&[]);
    let (changed, good) = (service.mount(&image, &[]), service.mount(&demo(), &[]));
    let old = service.domain();
    let text = fs::read(changed.file("README.txt")).expect("the mount works");
    File::options().write(true).open(&image).expect("ours").set_len(2048).expect("ours");
    let (code, errors) = service.upgrade(Path::new(env!("CARGO_BIN_EXE_floe")));
    assert_eq!((code, errors.lines().count()), (Some(1), 1), "{errors}");
    assert!(errors.contains(&format!("process {} of the earlier program goes on", old.as_raw_nonzero())), "{errors}");
    assert!(fs::read(changed.file("README.txt")).expect("it is cached") == text);
    assert_eq!(service.domains().len(), 2);
    // New mounts are made in the new process.
    let next = service.mount(&demo(), &[]);
    assert_eq!(service.umount(&changed), (Some(0), String::new()));
    until("the old process ends with its last mount", || service.domains().len() == 1);
    assert_ne!(service.domain(), old);
    for place in [&good, &next] {
        assert!(fs::read(place.file("README.txt")).expect("the mount works") == text);
        assert_eq!(service.umount(place), (Some(0), String::new()));
    }
}

#[test]
fn mounts_of_users_go_on_during_an_upgrade() {
    if !can_serve_users() {
        return;
    }
    let mut users = ForUsers::start("=mounts=3");
    let place = place_of(USER);
    assert_eq!(told(&users.try_mount(USER, &place.path, &[])), (Some(0), String::new()));
    let (own, old) = (users.service.mount(&demo(), &[]), users.service.domains());
    assert_eq!(old.len(), 2);
    // The user reads all the time.
    let script = "while read -r go && [ \"$go\" = go ]; do cat README.txt || echo failed; echo done; done";
    let mut reader = {
        let script = format!("cd {} && {script}", place.path.display());
        let mut command = Command::new("sh");
        command.args(["-c", &script]).uid(USER).gid(USER).stdin(Stdio::piped()).stdout(Stdio::piped());
        command.spawn().expect("it starts")
    };
    let mut input = reader.stdin.take().expect("it is piped");
    let mut lines = BufReader::new(reader.stdout.take().expect("it is piped")).lines();
    let mut read = || -> Vec<String> {
        writeln!(input, "go").expect("it runs");
        lines.by_ref().map(|line| line.expect("text")).take_while(|line| line != "done").collect()
    };
    let expected = read();
    assert!(expected.len() > 1 && !expected.contains(&"failed".to_owned()), "{expected:?}");
    // The user may not replace the program.
    let refused = told(&run(users.as_user(USER).arg("upgrade")));
    assert_eq!(refused.0, Some(1));
    assert!(refused.1.contains("only the user who runs the service"), "{}", refused.1);
    let programs = Programs::new();
    for round in 0..3 {
        let program = if round == 1 { programs.another() } else { programs.same() };
        let before = users.service.domains();
        assert_eq!(users.service.upgrade(&program), (Some(0), String::new()));
        assert_eq!(read(), expected, "round {round}");
        until("the old processes end", || users.service.domains().len() == 2);
        for domain in users.service.domains() {
            assert!(!before.contains(&domain), "{before:?}");
        }
        let is_users = |domain: &u32| {
            let facts = fs::read_to_string(format!("/proc/{domain}/status")).expect("it runs");
            facts.contains("Uid:\t65533\t65533\t65533\t65533") && facts.contains("CapEff:\t0000000000000000")
        };
        assert_eq!(users.service.domains().iter().filter(|domain| is_users(domain)).count(), 1);
        let listed = run(users.as_user(USER).arg("status"));
        assert!(String::from_utf8_lossy(&listed.stdout).contains("service, process"), "{listed:?}");
    }
    // Limits apply to all mounts of the user, and users are still served.
    let more: [Place; 3] = std::array::from_fn(|_| place_of(USER));
    let codes = more.each_ref().map(|place| told(&users.try_mount(USER, &place.path, &[])).0);
    assert_eq!(codes.map(|code| code == Some(0)), [true, true, false]);
    drop(input);
    reader.wait().expect("our own child");
    for place in [&place, &more[0], &more[1]] {
        place.wait_until_unused();
        assert_eq!(told(&run(users.as_user(USER).arg("umount").arg(&place.path))), (Some(0), String::new()));
    }
    assert_eq!(users.service.umount(&own), (Some(0), String::new()));
    until("all processes end", || users.service.domains().is_empty());
    assert_eq!(users.service.messages(), "");
}

#[test]
fn a_broker_that_is_killed_during_an_upgrade_loses_nothing() {
    if !can_mount() {
        return;
    }
    let fixture = Fixture::new();
    let mut service = Service::start(&[]);
    let images = [fixture.image(), squashfs_of(&fixture)];
    let places = images.each_ref().map(|image| service.mount(image, &["-o", "front=fuse"]));
    let others: Vec<Place> = (0..6).map(|_| service.mount(&demo(), &["-o", "front=fuse"])).collect();
    let mut uses = places.each_ref().map(|place| Uses::begin(&place.path));
    for round in 0..KILLS {
        let mut upgrade = service.floe();
        upgrade.args(["upgrade", "--program", env!("CARGO_BIN_EXE_floe")]).stderr(Stdio::null());
        let mut upgrade = upgrade.spawn().expect("it starts");
        thread::sleep(Duration::from_millis(100 * round));
        service.replace_broker();
        upgrade.wait().expect("our own child");
        for uses in &mut uses {
            uses.check(round as usize);
        }
        let all: Vec<&Place> = places.iter().chain(&others).collect();
        until("all mounts are managed", || listed(&service, &all, "service, process"));
        assert!(!service.messages().contains("lost"), "round {round}: {}", service.messages());
        assert!(!service.messages().contains("not managed"), "round {round}: {}", service.messages());
    }
    assert_eq!(service.upgrade(Path::new(env!("CARGO_BIN_EXE_floe"))), (Some(0), String::new()));
    uses.iter_mut().for_each(|uses| uses.check(0));
    uses.into_iter().for_each(Uses::end);
    for place in places.iter().chain(&others) {
        assert_eq!(service.umount(place), (Some(0), String::new()));
    }
    until("all processes end", || service.domains().is_empty());
}

#[test]
fn a_broker_of_another_version_continues_what_it_adopts() {
    if !can_mount() {
        return;
    }
    let (fixture, programs) = (Fixture::new(), Programs::new());
    let mut service = Service::start(&[]);
    let place = service.mount(&fixture.image(), &["-o", "front=fuse"]);
    let mut uses = Uses::begin(&place.path);
    for (round, program) in [programs.another(), programs.same()].iter().enumerate() {
        let old = service.domain();
        service.signal(Signal::KILL);
        assert_eq!(service.end(), None);
        service.restart_as(program);
        uses.check(round);
        until("another process serves the mount", || {
            let domains = service.domains();
            domains.len() == 1 && Pid::from_raw(domains[0].cast_signed()) != Some(old)
        });
        uses.check(round + 1);
        assert!(!service.messages().contains("lost"), "{}", service.messages());
    }
    uses.end();
    assert_eq!(service.umount(&place), (Some(0), String::new()));
    until("the process ends with its last mount", || service.domains().is_empty());
}

#[test]
fn a_file_that_is_read_during_an_upgrade_keeps_its_descriptor() {
    if !can_mount() {
        return;
    }
    let mut service = Service::start(&[]);
    let place = service.mount(&demo(), &["-o", "front=fuse"]);
    let held = File::open(place.file("README.txt")).expect("the mount works");
    let expected = fs::read(place.file("README.txt")).expect("the mount works");
    // A lazily unmounted mount in use moves, too.
    assert_eq!(told(&run(service.floe().args(["umount", "--lazy"]).arg(&place.path))), (Some(0), String::new()));
    assert_eq!(service.upgrade(Path::new(env!("CARGO_BIN_EXE_floe"))), (Some(0), String::new()));
    fadvise(&held, 0, None, Advice::DontNeed).expect("it is open");
    let mut bytes = vec![0; expected.len()];
    held.read_exact_at(&mut bytes, 0).expect("readable through the old descriptor");
    assert!(bytes == expected);
    drop(held);
    until("the process ends with its last mount", || service.domains().is_empty());
}
