//! Remote images through the service: one process fetches all of them, and any process may be killed.

use std::{
    fs::{self, File},
    os::unix::fs::FileExt,
    path::Path,
};

use floe_testkit::{
    copy_program,
    skip::{Need, ready},
};
use rustix::{
    fs::{Advice, fadvise},
    process::{Pid, Signal, kill_process},
};

use crate::{
    handover::{Fixture, Uses},
    support::{
        program::{Place, children_of, demo, is_running, run, told, until},
        servers::RealServer,
        service::Service,
    },
};

/// How often each process is killed.
const ROUNDS: usize = 2;

/// The process that fetches for a broker.
fn fetcher(service: &Service) -> Option<Pid> {
    let found = children_of(service.broker(), "floe-fetch");
    assert!(found.len() <= 1, "{found:?}");
    found.first().and_then(|number| Pid::from_raw(number.cast_signed()))
}

fn mount(service: &Service, url: &str, cache: &tempfile::TempDir, options: &[&str]) -> Place {
    let place = Place::new();
    let mut mount = service.floe();
    mount.args(["mount", "--service", "--cache-directory"]).arg(cache.path()).args(options).arg(url).arg(&place.path);
    assert_eq!(told(&run(&mut mount)), (Some(0), String::new()), "{url}");
    place
}

#[test]
fn readers_do_not_notice_a_killed_process_of_a_remote_image() {
    if !ready(&[Need::Root, Need::Fuse, Need::Peer("nginx")]) {
        return;
    }
    let (fixture, other) = (Fixture::new(), Fixture::new());
    let (mut server, cache) = (RealServer::nginx(), tempfile::tempdir().expect("a directory"));
    server.offer(&fixture.image(), "one.erofs");
    server.offer(&other.image(), "two.erofs");
    let mut service = Service::start(&[]);
    let url = |name: &str| format!("http://127.0.0.1:{}/{name}", server.port);
    let places = ["one.erofs", "two.erofs"].map(|name| mount(&service, &url(name), &cache, &["--outage", "wait:60s"]));
    let first = fetcher(&service).expect("one process fetches");
    let local = service.mount(&demo(), &[]);
    let domain = service.domain();
    let status = String::from_utf8(run(service.floe().arg("status").arg(&places[0].path)).stdout).expect("text");
    assert!(status.contains(&url("one.erofs")) && status.contains("requests"), "{status}");
    let mut uses = Uses::begin(&places[0].path);
    let mut check = |what: &str, round: usize, service: &Service| {
        uses.check(round);
        // Reads that no cache can answer.
        let file = File::open(places[1].file(&format!("files/{round}"))).expect("the mount works");
        fadvise(&file, 0, None, Advice::DontNeed).expect("it is open");
        let mut bytes = vec![0; 1 << 20];
        let len = file.read_at(&mut bytes, 0).unwrap_or_else(|error| panic!("{what}, round {round}: {error}"));
        assert!(bytes[..len].starts_with(format!("{round:5}        0\n\n").as_bytes()), "{what}, round {round}");
        assert!(!service.messages().contains("lost"), "{what}, round {round}: {}", service.messages());
    };
    let mut fetching = first;
    for round in 0..ROUNDS {
        kill_process(fetching, Signal::KILL).expect("it runs");
        check("the process that fetches", round, &service);
        until("another process fetches", || fetcher(&service).is_some_and(|process| process != fetching));
        service.kill_domain();
        check("the process that reads images", round, &service);
        fetching = fetcher(&service).expect("it goes on");
        if round == 0 {
            // Cached bytes of open files need no server.
            server.stop();
            service.kill_domain();
            check("the process that reads images, without the server", round, &service);
            server.start_again();
        }
    }
    // The process that fetches outlives the broker, and the next broker starts another one when it is needed.
    service.replace_broker();
    check("the broker", ROUNDS, &service);
    assert!(is_running(fetching));
    kill_process(fetching, Signal::KILL).expect("it runs");
    check("the process that fetches for an earlier broker", ROUNDS + 1, &service);
    service.kill_domain();
    check("the process that reads images, of an earlier broker", ROUNDS + 2, &service);
    assert!(fetcher(&service).is_some_and(is_running));
    uses.end();
    assert_ne!(service.domain(), domain);
    for place in &places {
        assert_eq!(service.umount(place), (Some(0), String::new()));
    }
    until("no process fetches any more", || fetcher(&service).is_none());
    assert_eq!(service.umount(&local), (Some(0), String::new()));
    until("the process ends with its last mount", || service.domains().is_empty());
}

#[test]
fn an_upgrade_keeps_remote_images() {
    if !ready(&[Need::Root, Need::Fuse, Need::Peer("nginx")]) {
        return;
    }
    let (fixture, other) = (Fixture::new(), Fixture::new());
    let (mut server, cache) = (RealServer::nginx(), tempfile::tempdir().expect("a directory"));
    server.offer(&fixture.image(), "one.erofs");
    server.offer(&other.image(), "two.erofs");
    let programs = tempfile::tempdir().expect("a directory");
    let [same, another] = ["same", "program.another"].map(|name| programs.path().join(name));
    for program in [&same, &another] {
        copy_program(env!("CARGO_BIN_EXE_floe"), program.clone());
    }
    let mut service = Service::start(&[]);
    let broker = service.broker();
    let url = |name: &str| format!("http://127.0.0.1:{}/{name}", server.port);
    let places = ["one.erofs", "two.erofs"].map(|name| mount(&service, &url(name), &cache, &["--outage", "wait:60s"]));
    let local = service.mount(&demo(), &[]);
    let mut uses = Uses::begin(&places[0].path);
    let check = |uses: &mut Uses, round: usize, service: &Service| {
        uses.check(round);
        // Reads that no cache of this machine can answer, as long as the server is there.
        let file = File::open(places[1].file(&format!("files/{round}"))).expect("the mount works");
        fadvise(&file, 0, None, Advice::DontNeed).expect("it is open");
        let mut bytes = vec![0; 1 << 20];
        let len = file.read_at(&mut bytes, 0).unwrap_or_else(|error| panic!("round {round}: {error}"));
        assert!(bytes[..len].starts_with(format!("{round:5}        0\n\n").as_bytes()), "round {round}");
        assert!(!service.messages().contains("lost"), "round {round}: {}", service.messages());
        assert_eq!(service.broker(), broker);
    };
    let mut domain = service.domain();
    let own = Path::new(env!("CARGO_BIN_EXE_floe"));
    // The next program starts a process that fetches; one of another version kills the process that reads images.
    for (round, program) in [same.as_path(), own, another.as_path(), own].into_iter().enumerate() {
        let before = fetcher(&service).expect("one process fetches");
        assert_eq!(service.upgrade(program), (Some(0), String::new()), "round {round}: {}", service.messages());
        until("one process is left", || service.domains().len() == 1);
        let next = service.domain();
        assert_ne!(next, domain, "round {round}");
        domain = next;
        check(&mut uses, round, &service);
        until("the process that fetched for the earlier program ends", || !is_running(before));
        let after = fetcher(&service).expect("one process fetches");
        assert_ne!(after, before);
        // Both processes may be killed after an upgrade as before it.
        kill_process(after, Signal::KILL).expect("it runs");
        check(&mut uses, round, &service);
        until("another process fetches", || fetcher(&service).is_some_and(|process| process != after));
    }
    uses.end();
    for place in places.iter().chain([&local]) {
        assert_eq!(service.umount(place), (Some(0), String::new()));
    }
    until("no process fetches any more", || fetcher(&service).is_none());
    until("the process ends with its last mount", || service.domains().is_empty());
    server.stop();
}

#[test]
fn reads_follow_the_outage_rule_of_their_mount() {
    if !ready(&[Need::Root, Need::Fuse, Need::Peer("nginx")]) {
        return;
    }
    let (fixture, mut server) = (Fixture::new(), RealServer::nginx());
    let cache = tempfile::tempdir().expect("a directory");
    server.offer(&fixture.image(), "one.erofs");
    let url = format!("http://127.0.0.1:{}/one.erofs", server.port);
    let service = Service::start(&[]);
    let [failing, waiting] =
        ["eio", "wait:60s"].map(|outage| mount(&service, &url, &cache, &["--cache-size", "0", "--outage", outage]));
    let read = |place: &Place| {
        let file = File::open(place.file("files/9")).expect("the mount works");
        fadvise(&file, 0, None, Advice::DontNeed).expect("it is open");
        file.read_exact_at(&mut [0; 4096], 300 << 10)
    };
    for place in [&failing, &waiting] {
        fs::metadata(place.file("files/9")).expect("its metadata is known from now on");
    }
    server.stop();
    let waiter = std::thread::scope(|scope| {
        let waiter = scope.spawn(|| read(&waiting));
        assert_eq!(
            read(&failing).map_err(|error| error.raw_os_error()),
            Err(Some(rustix::io::Errno::IO.raw_os_error()))
        );
        // The process that fetches dies meanwhile.
        kill_process(fetcher(&service).expect("one process fetches"), Signal::KILL).expect("it runs");
        server.start_again();
        waiter.join().expect("no panic")
    });
    waiter.expect("the read has waited for the server");
    read(&failing).expect("the server is there again");
    for place in [&failing, &waiting] {
        assert_eq!(service.umount(place), (Some(0), String::new()));
    }
}

#[test]
fn what_the_service_cannot_fetch_is_refused() {
    if !ready(&[Need::Root, Need::Fuse, Need::Peer("nginx")]) {
        return;
    }
    let (server, service) = (RealServer::nginx(), Service::start(&[]));
    server.offer(&demo(), "demo.erofs");
    for (arguments, rest, expected) in [
        (&[][..], "demo.erofs?signature=secret", "a URL with a password or a query is not available"),
        (&["--device", "/dev/null"], "demo.erofs", "a remote image with extra devices is not available"),
        (&[], "absent", "404"),
        (&["-o", "front=kernel"], "demo.erofs", "the metadata of remote images is not kept"),
    ] {
        let (place, url) = (Place::new(), format!("http://127.0.0.1:{}/{rest}", server.port));
        let mut mount = service.floe();
        mount.args(["mount", "--service", "-o", "cache-size=0"]).args(arguments).arg(url).arg(&place.path);
        let (code, errors) = told(&run(&mut mount));
        assert!(matches!(code, Some(1 | 2)) && errors.contains(expected), "{rest} {code:?}: {errors}");
        assert!(!errors.contains("secret") && !place.is_mounted(), "{errors}");
    }
    until("no process fetches", || fetcher(&service).is_none());
    // Other mounts are not affected.
    let place = service.mount(&demo(), &[]);
    assert_eq!(service.umount(&place), (Some(0), String::new()));
}
