//! Images whose location depends on the environment. Each test starts itself again as a process with another environment.

use std::{
    collections::HashMap,
    env, fs, io,
    path::Path,
    process::Command,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread,
    time::Duration,
};

use floe_image::ImageSource;
use floe_remote::{ImageOptions, Outage, RemoteImage, RemoteOptions};
use floe_remote_cache::Digest;
use floe_testkit::check_rows;

use crate::support::{Answer, Asked, Server, content::Content, object};

const LEN: usize = (1 << 20) + 17;

/// The URL of the image, and the directory of the cache, of the process with another environment.
const URL: &str = "FLOE_TEST_URL";
const CACHE: &str = "FLOE_TEST_CACHE";

/// How long that process waits for a server, in seconds; it does not wait if this is not set.
const PATIENCE: &str = "FLOE_TEST_PATIENCE";

/// The prefix of the results in the output of that process.
const RESULT: &str = "result: ";

/// Reads an image in the process with another environment. Returns `false` in the other process.
fn read_as_told(read: fn(&RemoteImage) -> io::Result<Digest>) -> bool {
    let (Ok(url), Some(cache)) = (env::var(URL), env::var_os(CACHE)) else { return false };
    let patience = env::var(PATIENCE).map_or(0, |seconds| seconds.parse().expect("a number"));
    let remote = RemoteOptions { outage: Outage::Wait(Duration::from_secs(patience)), ..RemoteOptions::default() };
    let options = ImageOptions { remote, cache_directory: Some(cache.into()), ..ImageOptions::default() };
    let result = RemoteImage::open(&url, &options, |_| ()).and_then(|image| read(&image));
    println!("\n{RESULT}{}", result.map_or_else(|error| error.to_string(), said_of));
    true
}

/// The digest of the image, whose parts several threads read.
fn read_by_threads(image: &RemoteImage) -> io::Result<Digest> {
    let mut bytes = vec![0; LEN];
    thread::scope(|scope| {
        let pieces = bytes.chunks_mut(LEN / 6).enumerate();
        let reading: Vec<_> = pieces
            .map(|(index, piece)| scope.spawn(move || image.read_at((index * (LEN / 6)) as u64, piece)))
            .collect();
        reading.into_iter().try_for_each(|reading| reading.join().expect("no panic"))
    })?;
    Ok(Digest::of(&bytes))
}

/// What the process says of bytes that it has read. No error says this: errors name the image with its digest.
fn said_of(read: Digest) -> String {
    format!("read {read}")
}

/// Runs the test `name` in a process with this environment. Returns what it says of the bytes that it reads, or its error.
fn result(name: &str, url: &str, cache: &Path, environment: &[(&str, &str)]) -> String {
    let mut command = Command::new(env::current_exe().expect("this program"));
    command.args(["--exact", name, "--nocapture", "--test-threads=1"]).env(URL, url).env(CACHE, cache);
    let output = command.envs(environment.iter().copied()).output().expect("it runs");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let result = said.lines().find_map(|line| line.strip_prefix(RESULT));
    result.unwrap_or_else(|| panic!("{said}")).to_owned()
}

#[test]
fn each_endpoint_of_an_object_store_has_its_own_objects() {
    if read_as_told(read_by_threads) {
        return;
    }
    let cache = tempfile::tempdir().expect("a directory");
    let read_from = |endpoint: &str| {
        let none = "/nonexistent";
        let environment = [
            ("AWS_ENDPOINT_URL", endpoint),
            ("AWS_SKIP_SIGNATURE", "true"),
            ("AWS_ALLOW_HTTP", "true"),
            ("AWS_CONFIG_FILE", none),
            ("AWS_SHARED_CREDENTIALS_FILE", none),
        ];
        let name = "environment::each_endpoint_of_an_object_store_has_its_own_objects";
        result(name, "s3://bucket/key", cache.path(), &environment)
    };
    let is_down = Arc::new(AtomicBool::new(false));
    let endpoints = [1, 2].map(|seed| {
        let (bytes, down) = (object(LEN, seed), Arc::clone(&is_down));
        let expected = said_of(Digest::of(&bytes));
        let server = Server::start(move |asked| match down.load(Relaxed) {
            true => Answer::new(503, &[], ""),
            false => Answer::of_object(asked, &bytes, "\"same\""),
        });
        (server, expected)
    });
    for down in [false, true] {
        is_down.store(down, Relaxed);
        for (server, expected) in &endpoints {
            assert_eq!(read_from(&server.url("")), *expected);
        }
    }
    let error = read_from("http://127.0.0.1:1");
    assert!(error.contains("s3://bucket/key"), "{error}");
}

#[test]
fn an_image_is_read_from_the_registry_if_a_mirror_has_only_its_manifest() {
    if read_as_told(read_by_threads) {
        return;
    }
    let layer = object(LEN, 3);
    let expected = said_of(Digest::of(&layer));
    // The statuses of the mirror and of the registry, and what the process says.
    let rows = [
        (404, 200, &*expected),
        (403, 200, &expected),
        (401, 200, &expected),
        (400, 200, &expected),
        (200, 404, &expected),
        (404, 404, "answers 404"),
        (404, 403, "answers 403"),
        (403, 418, "answers 418"),
    ];
    check_rows(
        &rows,
        |(mirror, registry, _)| format!("{mirror}, {registry}"),
        |(mirror, registry, expected)| {
            let name = "environment::an_image_is_read_from_the_registry_if_a_mirror_has_only_its_manifest";
            let found = result_with_a_mirror(name, &layer, [&[*mirror], &[*registry]], "0");
            if found.contains(expected) { Vec::new() } else { vec![found] }
        },
    );
}

#[test]
fn the_answer_of_the_registry_decides_once_it_is_in_use() {
    let read_first_and_last_byte = |image: &RemoteImage| {
        let mut bytes = [0; 2];
        let (first, last) = bytes.split_at_mut(1);
        image.read_at(0, first)?;
        image.read_at(LEN as u64 - 1, last)?;
        Ok(Digest::of(&bytes))
    };
    if read_as_told(read_first_and_last_byte) {
        return;
    }
    let layer = object(LEN, 4);
    let expected = said_of(Digest::of(&[layer[0], layer[LEN - 1]]));
    // The statuses of the mirror and of the registry, the patience, and what the process says.
    let rows: [(u16, &[u16], &str, &str); 6] = [
        (404, &[200, 403], "0", "answers 403"),
        (404, &[200, 401], "0", "answers 401"),
        (403, &[200, 404], "0", "answers 404"),
        (404, &[200, 418], "0", "answers 418"),
        (404, &[200, 403, 403, 403, 403, 403, 200], "60", &expected),
        (401, &[200, 401, 401, 401, 401, 401, 200], "60", &expected),
    ];
    check_rows(
        &rows,
        |(mirror, registry, ..)| format!("{mirror}, {registry:?}"),
        |(mirror, registry, patience, expected)| {
            let name = "environment::the_answer_of_the_registry_decides_once_it_is_in_use";
            let found = result_with_a_mirror(name, &layer, [&[*mirror], registry], patience);
            if found.contains(expected) { Vec::new() } else { vec![found] }
        },
    );
}

/// Like [`result`], of an image with this layer in a registry that has a mirror, with `patience`. Both answer requests for
/// each blob with their statuses in order, the last of which repeats.
fn result_with_a_mirror(name: &str, layer: &[u8], statuses: [&[u16]; 2], patience: &str) -> String {
    let mut content = Content::default();
    content.image_with_table("v1", layer);
    let servers = statuses.map(|statuses| {
        let (content, statuses) = (content.clone(), statuses.to_vec());
        let asked_before = Mutex::new(HashMap::<String, usize>::new());
        Server::start(move |asked| {
            let path = asked.path.split('?').next().unwrap_or_default().to_owned();
            let mut status = 200;
            if path.contains("/blobs/") {
                let mut asked_before = asked_before.lock().expect("no panic");
                let count = asked_before.entry(path.clone()).or_default();
                status = statuses[(*count).min(statuses.len() - 1)];
                *count += 1;
            }
            if status == 200 { content.answer(&Asked { path, ..asked.clone() }) } else { Answer::new(status, &[], "") }
        })
    });
    let directory = tempfile::tempdir().expect("a directory");
    let hosts = directory.path().join("containerd/certs.d/registry.invalid");
    fs::create_dir_all(&hosts).expect("made");
    let [mirror, registry] = servers.each_ref().map(|server| server.url(""));
    fs::write(hosts.join("hosts.toml"), format!("server = \"{registry}\"\n[host.\"{mirror}\"]\n")).expect("written");
    let config = directory.path().to_str().expect("text");
    let environment = [("XDG_CONFIG_HOME", config), (PATIENCE, patience)];
    result(name, "oci://registry.invalid/team/image:v1", &directory.path().join("cache"), &environment)
}
