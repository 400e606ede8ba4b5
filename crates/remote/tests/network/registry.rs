//! Registries: tokens, indexes, redirects, tables of digests, and wrong answers.

use std::{
    io,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    thread,
    time::Duration,
};

use base64::{Engine, prelude::BASE64_STANDARD};
use floe_image::{ByteRange, ImageSource};
use floe_remote::{ImageOptions, Network, Outage, RemoteImage, RemoteObject, RemoteOptions};
use floe_remote_cache::{Cause, Digest, DigestTable, RangeFetcher, Trust};
use floe_testkit::{Random, check_rows};

use crate::support::{
    Answer, Asked, Server,
    content::{Content, INDEX, MANIFEST},
    object,
};

fn options() -> RemoteOptions {
    let stall = Duration::from_secs(20);
    RemoteOptions { outage: Outage::Wait(Duration::ZERO), stall, ..RemoteOptions::default() }
}

fn open(network: &Network, server: &Server, rest: &str) -> io::Result<RemoteObject> {
    network.open(&format!("oci://{}/team/image{rest}", server.address).parse().expect("a location"))
}

fn fetch(object: &RemoteObject, offset: u64, len: u64) -> io::Result<Vec<u8>> {
    object.fetch(ByteRange::new(offset, len), Cause::Demand).map(|bytes| bytes.to_vec())
}

#[test]
fn images_are_found_by_tag_by_digest_and_by_layer() {
    let layer = object(1 << 20, 1);
    let mut content = Content::default();
    let digest = content.image_with_table("v1", &layer);
    let layer_digest = format!("sha256:{}", Digest::of(&layer));
    let server = Server::start(move |asked| content.answer(asked));
    let network = Network::new(options()).expect("a network");
    for rest in [":v1".to_owned(), format!("@{digest}"), ":v1#0".to_owned(), format!(":v1#{layer_digest}")] {
        let object = open(&network, &server, &rest).expect("opened");
        assert!(matches!(object.key().trust, Trust::Table(_)), "{rest}");
        assert!(object.name().ends_with(&format!("#{layer_digest}")), "{}", object.name());
        assert!(fetch(&object, 5000, 70_000).expect("read") == layer[5000..75_000]);
    }
    for (rest, expected) in [(":v2", "404"), (":v1#1", "no layer #1"), (&format!("@sha256:{}", "0".repeat(64)), "404")]
    {
        let error = open(&network, &server, rest).err().expect(rest).to_string();
        assert!(error.contains(expected) && error.starts_with("oci://"), "{rest}: {error}");
    }
}

#[test]
fn a_manifest_inside_the_index_saves_a_request_if_its_digest_is_right() {
    let layer = object(600_000, 7);
    let mut content = Content::default();
    content.image_with_table("v1", &layer);
    let (manifest, index) = (content.manifests["v1-manifest"].1.clone(), content.manifests["v1"].1.clone());
    let index = String::from_utf8(index).expect("text");
    let wrong = [b" ", &*manifest].concat();
    for (data, requests) in
        [(BASE64_STANDARD.encode(&manifest), 1), (BASE64_STANDARD.encode(wrong), 2), ("?".into(), 2)]
    {
        let mut content = content.clone();
        content.manifest("v1", INDEX, &index.replace("\"platform\"", &format!("\"data\":\"{data}\",\"platform\"")));
        let asked_for = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&asked_for);
        let server = Server::start(move |asked| {
            counted.fetch_add(u64::from(asked.path.contains("/manifests/")), Relaxed);
            content.answer(asked)
        });
        let network = Network::new(options()).expect("a network");
        let object = open(&network, &server, ":v1").expect("opened");
        assert!(fetch(&object, 5000, 70_000).expect("read") == layer[5000..75_000]);
        assert_eq!(asked_for.load(Relaxed), requests, "{data}");
    }
}

#[test]
fn concurrent_readers_share_one_token_until_it_expires() {
    let layer = object(2 << 20, 2);
    let mut content = Content::default();
    content.image("v1", &layer, "");
    let (tokens, valid) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let (given, current) = (Arc::clone(&tokens), Arc::clone(&valid));
    let realm = Arc::new(Mutex::new(String::new()));
    let own = Arc::clone(&realm);
    let server = Server::start(move |asked| {
        if asked.path.starts_with("/token?") {
            let wanted = "service=reg+istry&scope=repository%3Ateam%2Fimage%3Apull";
            let is_right = wanted.split('&').all(|pair| asked.path.contains(pair));
            let number = given.fetch_add(1, Relaxed) + 1;
            current.store(number, Relaxed);
            // Other threads wait for this token meanwhile.
            thread::sleep(Duration::from_millis(20));
            return if is_right {
                Answer::new(200, &[], format!(r#"{{"token":"t{number}","expires_in":3600}}"#))
            } else {
                Answer::new(400, &[], "")
            };
        }
        let is_authorized = asked.header("authorization") == Some(&format!("Bearer t{}", current.load(Relaxed)));
        if !is_authorized {
            let realm = own.lock().expect("no panic").clone();
            let challenge =
                format!("Bearer realm=\"{realm}\",service=\"reg istry\",scope=\"repository:team/image:pull\"");
            return Answer::new(401, &[("www-authenticate", &challenge)], "");
        }
        content.answer(asked)
    });
    *realm.lock().expect("no panic") = server.url("/token");
    let network = Network::new(options()).expect("a network");
    let objects: Vec<_> = thread::scope(|scope| {
        let opened: Vec<_> = (0..8).map(|_| scope.spawn(|| open(&network, &server, ":v1").expect("opened"))).collect();
        opened.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    });
    assert_eq!(tokens.load(Relaxed), 1);
    valid.store(1000, Relaxed);
    thread::scope(|scope| {
        for (place, object) in objects.iter().enumerate() {
            let (layer, offset) = (&layer, place * 1000);
            scope.spawn(move || {
                assert!(fetch(object, offset as u64, 500).expect("read") == layer[offset..offset + 500]);
            });
        }
    });
    assert_eq!(tokens.load(Relaxed), 2, "one more after the first has expired");
}

#[test]
fn tokens_that_expired_unused_are_replaced() {
    let layer = object(1 << 20, 8);
    let mut content = Content::default();
    content.image("v1", &layer, "");
    let tokens = Arc::new(AtomicU64::new(0));
    let (given, realm) = (Arc::clone(&tokens), Arc::new(Mutex::new(String::new())));
    let own = Arc::clone(&realm);
    let server = Server::start(move |asked| {
        if asked.path.starts_with("/token") {
            let number = given.fetch_add(1, Relaxed) + 1;
            return Answer::new(200, &[], format!(r#"{{"token":"t{number}","expires_in":1}}"#));
        }
        if asked.header("authorization") != Some(&format!("Bearer t{}", given.load(Relaxed))) {
            let challenge = format!("Bearer realm=\"{}\"", own.lock().expect("no panic"));
            return Answer::new(401, &[("www-authenticate", &challenge)], "");
        }
        content.answer(asked)
    });
    *realm.lock().expect("no panic") = server.url("/token");
    let network = Network::new(options()).expect("a network");
    let object = open(&network, &server, ":v1").expect("opened");
    for round in 0..2 {
        let before = tokens.load(Relaxed);
        thread::sleep(Duration::from_millis(1100));
        assert!(fetch(&object, round * 1000, 500).expect("read") == layer[round as usize * 1000..][..500]);
        assert!(tokens.load(Relaxed) > before, "another token");
    }
}

#[test]
fn tokens_are_not_sent_to_blob_hosts() {
    let layer = object(1 << 20, 3);
    let stored = layer.clone();
    let saw_token = Arc::new(AtomicBool::new(false));
    let saw = Arc::clone(&saw_token);
    let storage = Server::start(move |asked| {
        saw.fetch_or(asked.header("authorization").is_some(), Relaxed);
        Answer::of_object(asked, &stored, "\"blob\"")
    });
    let mut content = Content::default();
    content.image("v1", &layer, "");
    let (target, realm) = (storage.url("/x"), Arc::new(Mutex::new(String::new())));
    let own = Arc::clone(&realm);
    let server = Server::start(move |asked| {
        if asked.path.starts_with("/token") {
            return Answer::new(200, &[], r#"{"access_token":"t"}"#);
        }
        if asked.header("authorization") != Some("Bearer t") {
            let challenge = format!("Bearer realm=\"{}\"", own.lock().expect("no panic"));
            return Answer::new(401, &[("www-authenticate", &challenge)], "");
        }
        match asked.path.contains("/blobs/") {
            true => Answer::new(307, &[("location", &target)], ""),
            false => content.answer(asked),
        }
    });
    *realm.lock().expect("no panic") = server.url("/token");
    let network = Network::new(options()).expect("a network");
    let object = open(&network, &server, ":v1").expect("opened");
    assert!(fetch(&object, 1000, 10).expect("read") == layer[1000..1010]);
    assert!(storage.requests() > 0 && !saw_token.load(Relaxed));
}

#[test]
fn the_target_of_a_redirect_cannot_ask_for_credentials() {
    let layer = object(1 << 20, 9);
    let mut content = Content::default();
    content.image("v1", &layer, "");
    let (asked_for_token, refusals) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(1)));
    let (token_seen, left) = (Arc::clone(&asked_for_token), Arc::clone(&refusals));
    let own = Arc::new(Mutex::new(String::new()));
    let realm = Arc::clone(&own);
    let storage = Server::start(move |asked| {
        if asked.path.starts_with("/token") {
            token_seen.store(true, Relaxed);
            return Answer::new(200, &[], r#"{"token":"stolen"}"#);
        }
        if left.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1)).is_ok() {
            let challenge = format!("Bearer realm=\"{}\"", realm.lock().expect("no panic"));
            return Answer::new(401, &[("www-authenticate", &challenge)], "");
        }
        Answer::of_object(asked, &layer, "\"blob\"")
    });
    *own.lock().expect("no panic") = storage.url("/token");
    let target = storage.url("/x");
    let server = Server::start(move |asked| match asked.path.contains("/blobs/") {
        true => Answer::new(307, &[("location", &target)], ""),
        false => content.answer(asked),
    });
    let remote = RemoteOptions { outage: Outage::Eio, ..options() };
    let network = Network::new(remote).expect("a network");
    let object = open(&network, &server, ":v1").expect("opened");
    fetch(&object, 1000, 10).expect("the registry is asked for another redirect");
    refusals.store(u64::MAX, Relaxed);
    let error = fetch(&object, 300_000, 10).expect_err("refused").to_string();
    assert!(error.contains("401") && !asked_for_token.load(Relaxed), "{error}");
}

#[test]
fn pieces_of_an_image_with_a_hash_tree_beside_it_are_fetched_and_verified() {
    let layer = object((5 << 20) + 777, 12);
    let mut content = Content::default();
    let (tree, annotations) = content.tree(&layer);
    content.image("v1", &layer, &annotations);
    let (bytes, is_lying) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
    let (sent, lying, blob) = (Arc::clone(&bytes), Arc::clone(&is_lying), format!("sha256:{}", Digest::of(&layer)));
    let server = Server::start(move |asked| {
        let mut answer = content.answer(asked);
        if asked.path.contains("/blobs/") {
            sent.fetch_add(answer.body.len() as u64, Relaxed);
        }
        if lying.load(Relaxed) && asked.path.ends_with(&blob) {
            answer.body.fill(7);
        }
        if lying.load(Relaxed) && asked.path.ends_with(&tree) {
            answer.body.fill(8);
        }
        answer
    });
    let url = format!("oci://{}/team/image:v1", server.address);
    let directory = tempfile::tempdir().expect("a directory");
    let open = || {
        let cache_directory = Some(directory.path().to_owned());
        let options =
            ImageOptions { remote: options(), cache_directory, require_verified: true, ..ImageOptions::default() };
        RemoteImage::open(&url, &options, |_| ()).expect("opened")
    };
    let read = |image: &RemoteImage, offset: usize, len: usize| {
        let mut output = vec![0; len];
        image.read_at(offset as u64, &mut output).map(|()| assert!(output == layer[offset..offset + len], "{offset}"))
    };
    let image = open();
    assert_eq!(image.len(), layer.len() as u64);
    assert!(image.about().verified_by.as_ref().is_some_and(|root| root.starts_with("tree sha256:")));
    for offset in [4 << 20, 100_000, (5 << 20) + 770, (2 << 20) - 3] {
        read(&image, offset, 7).expect("read");
    }
    assert!(bytes.load(Relaxed) <= 5 * (32 << 10) + (16 << 10), "{bytes:?} bytes for four places");
    is_lying.store(true, Relaxed);
    read(&image, 3 << 20, 7).expect_err("the bytes are wrong");
    drop(image);
    is_lying.store(false, Relaxed);
    let image = open();
    read(&image, 0, layer.len()).expect("all of it");
    drop(image);
    is_lying.store(true, Relaxed);
    read(&open(), 0, layer.len()).expect("the cache has all of it, and what verifies it");
}

#[test]
fn a_table_that_only_refers_to_the_manifest_is_no_root() {
    let (layer, other) = (object(1 << 20, 10), object(1 << 20, 11));
    let mut content = Content::default();
    let index = content.image("v1", &layer, "");
    let manifest = format!("sha256:{}", Digest::of(&content.manifests["v1-manifest"].1));
    let (table, empty) = (DigestTable::of(&mut &*other).expect("read").to_bytes(), content.blob(b"{}"));
    let (digest, kind, len) = (content.blob(&table), DigestTable::MEDIA_TYPE, table.len());
    let referrer = format!(
        r#"{{"schemaVersion":2,"artifactType":"{kind}","config":{{"mediaType":"x","digest":"{empty}","size":2}},
        "layers":[{{"mediaType":"{kind}","digest":"{digest}","size":{len}}}]}}"#
    );
    let referrer_digest = content.manifest("referrer", MANIFEST, &referrer);
    let list = format!(
        r#"{{"schemaVersion":2,"manifests":[{{"mediaType":"{MANIFEST}","artifactType":"{kind}",
        "digest":"{referrer_digest}","size":{}}}]}}"#,
        referrer.len()
    );
    content.manifest(&manifest.replace(':', "-"), INDEX, &list);
    let server = Server::start(move |asked| match asked.path.contains("/referrers/") {
        true => Answer::new(200, &[], list.as_str()),
        false => content.answer(asked),
    });
    let directory = tempfile::tempdir().expect("a directory");
    for version in [":v1", &format!("@{index}")] {
        let url = format!("oci://{}/team/image{version}", server.address);
        let cache_directory = Some(directory.path().to_owned());
        let options = ImageOptions { remote: options(), cache_directory, ..ImageOptions::default() };
        let image = RemoteImage::open(&url, &options, |_| ()).expect("opened");
        assert_eq!(image.about().verified_by, None);
        let options = ImageOptions { require_verified: true, ..options };
        assert!(RemoteImage::open(&url, &options, |_| ()).is_err());
    }
}

#[test]
fn documents_that_come_byte_by_byte_are_given_up() {
    let server =
        Server::start(|_| Answer { pace: Duration::from_millis(100), ..Answer::new(200, &[], vec![b' '; 300]) });
    let network = Network::new(RemoteOptions { stall: Duration::from_secs(4), ..options() }).expect("a network");
    let error = open(&network, &server, ":v1").err().expect("given up").to_string();
    assert!(error.contains("too slowly") || error.contains("silent for"), "{error}");
}

#[test]
fn wrong_documents_and_tables_are_refused() {
    type Change = fn(&Asked, Answer) -> Answer;
    fn when(asked: &Asked, part: &str, answer: Answer, change: impl Fn(Answer) -> Answer) -> Answer {
        if asked.path.contains(part) { change(answer) } else { answer }
    }
    let rows: &[(&str, Change, &str)] = &[
        (
            "another manifest",
            |asked, answer| when(asked, "manifests/sha256", answer, |a| Answer { body: vec![b' '; a.body.len()], ..a }),
            "came instead of sha256",
        ),
        (
            "no JSON",
            |asked, answer| when(asked, "manifests/v1", answer, |a| Answer { body: vec![b'{'; a.body.len()], ..a }),
            "not a manifest",
        ),
        (
            "a table of another image",
            |asked, answer| when(asked, "blobs/", answer, |a| Answer { body: vec![0; a.body.len()], ..a }),
            "came instead of sha256",
        ),
        (
            "without end",
            |asked, answer| when(asked, "manifests/v1", answer, |_| Answer::new(200, &[], vec![b' '; 5 << 20])),
            "more than",
        ),
        (
            "a table without end",
            |asked, answer| when(asked, "blobs/", answer, |_| Answer::new(200, &[], vec![b' '; 1 << 20])),
            "more than",
        ),
        (
            "a challenge to nowhere",
            |_, _| Answer::new(401, &[("www-authenticate", "Negotiate")], ""),
            "no way to get access",
        ),
        (
            "a realm that is not a URL",
            |_, _| Answer::new(401, &[("www-authenticate", "Bearer realm=\"x\"")], ""),
            "is not a URL",
        ),
        ("denied", |_, _| Answer::new(403, &[], ""), "403"),
        ("basic", |_, _| Answer::new(401, &[("www-authenticate", "Basic realm=\"x\"")], ""), "docker login"),
    ];
    check_rows(
        rows,
        |row| row.0.to_owned(),
        |(_, change, expected)| {
            let mut content = Content::default();
            content.image_with_table("v1", &object(600_000, 4));
            let change = *change;
            let server = Server::start(move |asked| change(asked, content.answer(asked)));
            let network = Network::new(options()).expect("a network");
            // A table is fetched when it is first needed.
            let table = open(&network, &server, ":v1").and_then(|object| match &object.key().trust {
                Trust::Table(root) => root.table().map(|_| ()),
                _ => Ok(()),
            });
            let error = table.err().map(|error| error.to_string()).unwrap_or_default();
            if error.contains(expected) { Vec::new() } else { vec![error] }
        },
    );
}

#[test]
fn verified_images_give_no_wrong_byte_whatever_the_registry_sends() {
    let seeds: Vec<u64> = (0..12).collect();
    check_rows(
        &seeds,
        |seed| format!("seed {seed}"),
        |seed| {
            let layer = Arc::new(object((3 << 20) + 777, *seed));
            let mut content = Content::default();
            content.image_with_table("v1", &layer);
            let random = Mutex::new(Random::new(*seed));
            let is_hostile = Arc::new(AtomicBool::new(false));
            let hostile = Arc::clone(&is_hostile);
            let server = Server::start(move |asked| {
                let mut answer = content.answer(asked);
                let mut random = random.lock().expect("no panic");
                if hostile.load(Relaxed) && !answer.body.is_empty() && random.below(3) == 0 {
                    for _ in 0..=random.below(3) {
                        let place = random.below(answer.body.len() as u64) as usize;
                        answer.body[place] ^= 1 << random.below(8);
                    }
                }
                answer
            });
            let url = format!("oci://{}/team/image:v1", server.address);
            let directory = tempfile::tempdir().expect("a directory");
            let mut complaints = Vec::new();
            for cache_bytes_max in [Some(0), Some(64 << 20)] {
                let cache_directory = Some(directory.path().to_owned());
                let remote = options();
                let options = ImageOptions { remote, require_verified: true, cache_directory, cache_bytes_max };
                is_hostile.store(false, Relaxed);
                let image = RemoteImage::open(&url, &options, |_| ()).expect("opened");
                is_hostile.store(true, Relaxed);
                let mut random = Random::new(seed + 100);
                let mut right = 0;
                for _ in 0..150 {
                    let offset = random.below(layer.len() as u64 - 1);
                    let len = 1 + random.below((layer.len() as u64 - offset).min(100_000));
                    let mut output = vec![0; len as usize];
                    if image.read_at(offset, &mut output).is_ok() {
                        right += 1;
                        if output != layer[offset as usize..(offset + len) as usize] {
                            complaints.push(format!("wrong bytes at {offset}+{len}"));
                        }
                    }
                }
                if right < 20 {
                    complaints.push(format!("only {right} reads succeeded"));
                }
            }
            complaints
        },
    );
}

#[test]
fn completely_cached_images_are_read_without_the_registry() {
    let layer = object((1 << 20) + 5, 6);
    let mut content = Content::default();
    content.image_with_table("v1", &layer);
    let server = Server::start(move |asked| content.answer(asked));
    let url = format!("oci://{}/team/image:v1", server.address);
    let directory = tempfile::tempdir().expect("a directory");
    let cache_directory = Some(directory.path().to_owned());
    let options = ImageOptions { remote: options(), cache_directory, ..ImageOptions::default() };
    let read = || {
        let image = RemoteImage::open(&url, &options, |_| ()).expect("opened");
        let mut output = vec![0; layer.len()];
        image.read_at(0, &mut output).expect("read");
        assert!(output == layer);
        image.about().clone()
    };
    let online = read();
    assert!(!online.is_recalled && online.verified_by.is_some());
    drop(server);
    let offline = read();
    assert!(offline.is_recalled && offline.verified_by == online.verified_by && offline.name == online.name);
}
