//! Ranges from misbehaving servers: a read gives the right bytes or an error.

use std::{
    io,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    thread,
    time::Duration,
};

use floe_image::{ByteRange, ImageSource};
use floe_remote::{ImageOptions, Network, Outage, RemoteImage, RemoteObject, RemoteOptions};
use floe_remote_cache::{Cause, FetchError, FetchFault, RangeFetcher};
use floe_testkit::{Random, check_rows};

use crate::support::{Answer, Asked, Server, mutation::mutate, object};

const ETAG: &str = "\"one\"";
const LEN: usize = 700_001;

fn options(outage: Outage) -> RemoteOptions {
    // On a busy machine, a sound answer may take many seconds.
    RemoteOptions { outage, stall: Duration::from_secs(60), ..RemoteOptions::default() }
}

/// Options without retries, so that failures return at once.
fn impatient() -> RemoteOptions {
    options(Outage::Wait(Duration::ZERO))
}

fn open(options: RemoteOptions, url: &str) -> io::Result<RemoteObject> {
    Network::new(options)?.open(&url.parse().expect("a URL"))
}

fn fetch(object: &RemoteObject, offset: u64, len: u64) -> io::Result<Vec<u8>> {
    object.fetch(ByteRange::new(offset, len), Cause::Demand).map(|bytes| bytes.to_vec())
}

/// A server that answers the first request, which opens the image, correctly, and the others as `answer` says.
fn server_after_open(answer: impl Fn(&Asked, Answer) -> Answer + Send + Sync + 'static) -> (Server, Arc<Vec<u8>>) {
    let bytes = Arc::new(object(LEN, 7));
    let (served, is_open) = (Arc::clone(&bytes), AtomicBool::new(false));
    let server = Server::start(move |asked| {
        let sound = Answer::of_object(asked, &served, ETAG);
        if is_open.swap(true, Relaxed) { answer(asked, sound) } else { sound }
    });
    (server, bytes)
}

#[test]
fn objects_are_read_exactly() {
    for len in [0, 1, 4096, (256 << 10) - 1, 256 << 10, (256 << 10) + 1, 9 << 20] {
        let bytes = object(len, 3);
        let served = bytes.clone();
        let server = Server::start(move |asked| Answer::of_object(asked, &served, ETAG));
        let object = open(impatient(), &server.url("/image")).expect("opened");
        assert_eq!((object.len(), server.requests()), (len as u64, 1), "one round trip tells the length");
        assert!(fetch(&object, 0, len as u64).expect("read") == bytes, "{len}");
        if len > 300 << 10 {
            assert!(fetch(&object, 270_000, 5).expect("read") == bytes[270_000..270_005]);
        }
        let past = fetch(&object, len as u64, 1).expect_err("past the end");
        assert_eq!(past.kind(), io::ErrorKind::UnexpectedEof);
    }
}

#[test]
fn wrong_answers_are_distinguished() {
    type Change = fn(Answer) -> Answer;
    let rows: &[(&str, Change, FetchFault, &str)] = &[
        (
            "another range",
            |answer| answer.with("content-range", "bytes 0-9/700001"),
            FetchFault::WrongBytes,
            "came instead",
        ),
        (
            "another length",
            |answer| answer.with("content-range", "bytes 300000-300009/700002"),
            FetchFault::Gone,
            "700002",
        ),
        ("no range", |answer| answer.without("content-range"), FetchFault::WrongBytes, "Content-Range ''"),
        ("an open range", |answer| answer.with("content-range", "bytes 300000-300009/*"), FetchFault::WrongBytes, "/*"),
        ("another ETag", |answer| answer.with("etag", "\"two\""), FetchFault::Gone, "was replaced"),
        ("no ETag", |answer| answer.without("etag"), FetchFault::WrongBytes, "without etag"),
        ("compressed", |answer| answer.with("content-encoding", "gzip"), FetchFault::Outage, "compresses"),
        (
            "too long",
            |answer| Answer { body: vec![0; 11], ..answer }.with("content-length", "11"),
            FetchFault::WrongBytes,
            "Content-Length",
        ),
        ("cut", |answer| Answer { cut: Some(5), ..answer }, FetchFault::Outage, ""),
        ("silent", |answer| Answer { stall: Duration::from_secs(30), ..answer }, FetchFault::Outage, "silent"),
        ("gone", |_| Answer::new(404, &[], ""), FetchFault::Gone, "404"),
        ("replaced", |_| Answer::new(412, &[], ""), FetchFault::Gone, "replaced"),
        ("forbidden", |_| Answer::new(403, &[], ""), FetchFault::Outage, "403"),
        ("teapot", |_| Answer::new(418, &[], ""), FetchFault::Outage, "418"),
        (
            "unsatisfiable",
            |_| Answer::new(416, &[("content-range", "bytes */700001")], ""),
            FetchFault::WrongBytes,
            "unsatisfiable",
        ),
        ("shrunk", |_| Answer::new(416, &[("content-range", "bytes */7")], ""), FetchFault::Gone, "has 7"),
        ("busy", |_| Answer::new(503, &[("retry-after", "1000")], ""), FetchFault::Outage, "503"),
        ("hung up", |answer| Answer { hangs_up: true, ..answer }, FetchFault::Outage, ""),
        ("in circles", |_| Answer::new(302, &[("location", "/image")], ""), FetchFault::Outage, "redirects"),
        (
            "to a file",
            |_| Answer::new(302, &[("location", "file:///etc/passwd")], ""),
            FetchFault::Outage,
            "redirect to 'file:'",
        ),
    ];
    check_rows(
        rows,
        |row| row.0.to_owned(),
        |(name, change, fault, text)| {
            let change = *change;
            let stall = Duration::from_secs(if *name == "silent" { 5 } else { 60 });
            let (server, _) = server_after_open(move |_, sound| change(sound));
            let options = RemoteOptions { stall, ..impatient() };
            let object = open(options, &server.url("/image?signature=secret")).expect("opened");
            let error = fetch(&object, 300_000, 10).expect_err("refused");
            let message = error.to_string();
            let mut complaints = Vec::new();
            if FetchError::fault_of(&error) != *fault || !message.contains(text) {
                complaints.push(format!("{:?}: {message}", FetchError::fault_of(&error)));
            }
            if !message.contains("/image, bytes 300000-300009: ") || message.contains("secret") {
                complaints.push(format!("the place: {message}"));
            }
            complaints
        },
    );
}

#[test]
fn servers_that_ignore_ranges_are_read_from_the_start_if_that_is_near() {
    let bytes = object(20 << 20, 5);
    let served = bytes.clone();
    let server = Server::start(move |_| Answer::new(200, &[("etag", ETAG)], served.as_slice()));
    let object = open(impatient(), &server.url("/image")).expect("opened");
    assert_eq!(object.len(), 20 << 20);
    for (offset, len) in [(0, 10), (1 << 20, 4096), (16 << 20, 77)] {
        let place = offset as usize;
        assert!(fetch(&object, offset, len).expect("read") == bytes[place..place + len as usize]);
    }
    let error = fetch(&object, 17 << 20, 1).expect_err("too far").to_string();
    assert!(error.contains("ignores ranges") && error.contains("floe pull"), "{error}");
}

#[test]
fn objects_that_nothing_tells_apart_are_not_cached() {
    for (etag, is_cached) in [(ETAG, true), ("W/\"one\"", false), ("", false)] {
        let (old, new) = (object(LEN, 1), object(LEN, 2));
        let is_new = Arc::new(AtomicBool::new(false));
        let (first, second, newer) = (old.clone(), new.clone(), Arc::clone(&is_new));
        let server = Server::start(move |asked| {
            let bytes = if newer.load(Relaxed) { &second } else { &first };
            let sound = Answer::of_object(asked, bytes, etag);
            if etag.is_empty() { sound.without("etag") } else { sound }
        });
        let cache = tempfile::tempdir().expect("a directory");
        let cache_directory = Some(cache.path().to_owned());
        let options = ImageOptions { remote: impatient(), cache_directory, ..ImageOptions::default() };
        let read = || {
            let image = RemoteImage::open(&server.url("/image"), &options, |_| ()).expect("opened");
            let mut output = vec![0; LEN];
            image.read_at(0, &mut output).expect("read");
            output
        };
        assert!(read() == old);
        is_new.store(true, Relaxed);
        // If the ETag is false, cached bytes are trusted; without an ETag, nothing is cached.
        assert!(read() == if is_cached { &old } else { &new }[..], "{etag}");
    }
}

#[test]
fn no_wrong_byte_comes_from_thousands_of_changed_answers() {
    let seeds: Vec<u64> = (0..16).collect();
    let cases = AtomicU64::new(0);
    check_rows(
        &seeds,
        |seed| format!("seed {seed}"),
        |seed| {
            let random = Mutex::new(Random::new(*seed));
            let (server, bytes) = server_after_open(move |_, sound| {
                let mut random = random.lock().expect("no panic");
                if random.below(8) == 0 {
                    return sound;
                }
                // The connection is closed afterwards, so that the client does not wait for missing bytes.
                let answer = mutate(&mut random, sound);
                Answer { cut: answer.cut.or(Some(answer.body.len())), ..answer }
            });
            let object = open(impatient(), &server.url("/image"));
            let object = object.expect("opened");
            let mut random = Random::new(seed + 1000);
            let (mut wrong, mut right) = (Vec::new(), 0);
            for _ in 0..200 {
                let offset = random.below(LEN as u64 - 1);
                let len = 1 + random.below((LEN as u64 - offset).min(5000));
                cases.fetch_add(1, Relaxed);
                if let Ok(got) = fetch(&object, offset, len) {
                    right += 1;
                    if got != bytes[offset as usize..(offset + len) as usize] {
                        wrong.push(format!("wrong bytes at {offset}+{len}"));
                    }
                }
            }
            if right == 0 {
                wrong.push("nothing was read at all".to_owned());
            }
            wrong
        },
    );
    assert_eq!(cases.load(Relaxed), 3200);
}

#[test]
fn transient_failures_are_invisible_to_readers() {
    let count = AtomicU64::new(0);
    let (server, bytes) = server_after_open(move |_, sound| match count.fetch_add(1, Relaxed) % 6 {
        0 => Answer { hangs_up: true, ..sound },
        1 => Answer { cut: Some(sound.body.len() / 2), ..sound },
        2 => Answer::new(503, &[("retry-after", "0")], ""),
        3 => sound.with("content-range", &format!("bytes 0-9/{LEN}")),
        4 => Answer::new(500, &[], ""),
        _ => sound,
    });
    let object = open(options(Outage::Wait(Duration::from_secs(120))), &server.url("/image")).expect("opened");
    for index in 0..2 {
        let offset = 270_000 + index * 1000;
        assert_eq!(fetch(&object, offset, 10).expect("healed"), &bytes[offset as usize..offset as usize + 10]);
    }
    let counts = object.counts();
    assert_eq!((counts.retries, counts.wrong, counts.failed, counts.outage_ms), (10, 2, 0, None));
    assert!(counts.throttled >= 2 && counts.outages >= 2);
}

#[test]
fn truncated_answers_are_continued() {
    const PART: usize = 100_000;
    let (server, bytes) = server_after_open(|_, sound| Answer { cut: Some(PART.min(sound.body.len())), ..sound });
    let object = open(options(Outage::Wait(Duration::from_secs(120))), &server.url("/image")).expect("opened");
    let opened = server.requests();
    assert!(fetch(&object, 1000, 600_000).expect("read") == bytes[1000..601_000]);
    assert_eq!(server.requests() - opened, 6, "each answer has a sixth of it");
}

#[test]
fn progress_renews_the_attempts() {
    const PART: usize = 40_000;
    let (server, bytes) = server_after_open(|_, sound| Answer { cut: Some(PART.min(sound.body.len())), ..sound });
    let object = open(options(Outage::Eio), &server.url("/image")).expect("opened");
    let opened = server.requests();
    assert!(fetch(&object, 1000, 600_000).expect("read") == bytes[1000..601_000]);
    assert_eq!(server.requests() - opened, 15, "more than the attempts without progress");
}

#[test]
fn reads_wait_for_the_server_as_long_as_configured() {
    let is_up = Arc::new(AtomicBool::new(true));
    let up = Arc::clone(&is_up);
    let (server, bytes) = server_after_open(move |_, sound| Answer { hangs_up: !up.load(Relaxed), ..sound });
    let url = server.url("/image");
    let patient = open(options(Outage::Wait(Duration::from_secs(600))), &url).expect("opened");
    let network = Network::new(options(Outage::Wait(Duration::from_secs(600)))).expect("a network");
    let closed = network.open(&url.parse().expect("a URL")).expect("opened");
    let eio = open(options(Outage::Wait(Duration::from_millis(300))), &url).expect("opened");
    is_up.store(false, Relaxed);
    let error = fetch(&eio, 300_000, 10).expect_err("out of reach");
    assert_eq!(FetchError::fault_of(&error), FetchFault::Outage);
    assert!(eio.counts().outage_ms.is_some());
    thread::scope(|scope| {
        let waiting = scope.spawn(|| fetch(&patient, 300_000, 10));
        let interrupted = scope.spawn(|| fetch(&closed, 300_000, 10));
        while patient.counts().retries < 2 || closed.counts().retries < 1 {
            thread::yield_now();
        }
        network.close();
        let error = interrupted.join().expect("no panic").expect_err("interrupted");
        assert_eq!(error.kind(), io::ErrorKind::Interrupted);
        is_up.store(true, Relaxed);
        assert_eq!(waiting.join().expect("no panic").expect("healed"), &bytes[300_000..300_010]);
    });
    assert!(fetch(&eio, 300_000, 10).is_ok(), "it recovers without a restart");
    assert!(fetch(&closed, 300_000, 10).is_err(), "a closed reader stays closed");
}

#[test]
fn credentials_stay_with_their_host_and_signatures_are_renewed() {
    let bytes = Arc::new(object(LEN, 9));
    let served = Arc::clone(&bytes);
    let generation = Arc::new(AtomicU64::new(1));
    let current = Arc::clone(&generation);
    // The target of a redirect: it accepts one signature at a time, and must not see credentials.
    let storage = Server::start(move |asked| {
        if asked.header("authorization").is_some() {
            return Answer::new(400, &[], "");
        }
        if asked.path != format!("/blob?signature={}", current.load(Relaxed)) {
            return Answer::new(403, &[], "");
        }
        Answer::of_object(asked, &served, ETAG)
    });
    let (address, current) = (storage.url("/blob"), Arc::clone(&generation));
    let home = Server::start(move |asked| {
        // "user:pass word"
        if asked.header("authorization") != Some("Basic dXNlcjpwYXNzIHdvcmQ=") {
            return Answer::new(401, &[], "");
        }
        Answer::new(307, &[("location", &format!("{address}?signature={}", current.load(Relaxed)))], "")
    });
    let url = format!("http://user:pass%20word@{}/image", home.address);
    let object = open(impatient(), &url).expect("opened");
    for index in 0..3 {
        assert!(fetch(&object, 300_000 + index, 10).is_ok());
    }
    assert_eq!(home.requests(), 1, "the target of the redirect is remembered");
    generation.store(2, Relaxed);
    assert_eq!(fetch(&object, 400_000, 10).expect("resolved again"), &bytes[400_000..400_010]);
    assert_eq!((home.requests(), object.counts().resolved_again), (2, 1));
    let wrong = open(impatient(), &home.url("/image")).err().expect("no credentials").to_string();
    assert!(wrong.contains("401") && !wrong.contains("pass"), "{wrong}");
}

#[test]
fn the_password_of_a_url_is_only_for_its_host_and_a_refusal_is_final() {
    let token_server = Server::start(|_| Answer::new(200, &[], r#"{"token":"t"}"#));
    for challenge in ["Basic realm=\"x\"".to_owned(), format!("Bearer realm=\"{}\"", token_server.url("/token"))] {
        let server = Server::start(move |_| Answer::new(401, &[("www-authenticate", &challenge)], ""));
        let url = format!("http://user:secret@{}/image", server.address);
        let error = open(options(Outage::Wait(Duration::from_secs(600))), &url).err().expect("refused").to_string();
        assert!(error.contains("401") && !error.contains("secret"), "{error}");
        assert_eq!((server.requests(), token_server.requests()), (1, 0), "{error}");
    }
}

#[test]
fn hosts_get_fewer_requests_when_they_ask_for_it() {
    let (under_way, most) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let (now, highest) = (Arc::clone(&under_way), Arc::clone(&most));
    let (server, _) = server_after_open(move |_, sound| {
        let count = now.fetch_add(1, Relaxed) + 1;
        highest.fetch_max(count, Relaxed);
        thread::sleep(Duration::from_millis(2));
        now.fetch_sub(1, Relaxed);
        sound
    });
    let options = RemoteOptions { connections_max: 3, ..impatient() };
    let object = open(options, &server.url("/image")).expect("opened");
    thread::scope(|scope| {
        for worker in 0..12_u64 {
            let object = &object;
            scope.spawn(move || {
                (0..10).for_each(|index| {
                    let cause = if worker % 2 == 0 { Cause::Demand } else { Cause::Prefetch };
                    let range = ByteRange::new(262_144 + worker * 1000 + index, 100);
                    object.fetch(range, cause).expect("read");
                })
            });
        }
    });
    assert!(most.load(Relaxed) <= 3 + object.counts().preempted, "{} at once", most.load(Relaxed));
    assert!(object.connections() <= 3);
}
