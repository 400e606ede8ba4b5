//! Images whose location depends on the environment. Each test starts itself again as a process with another environment.

use std::{
    env, fs, io,
    path::Path,
    process::Command,
    sync::{
        Arc,
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

/// The prefix of the results in the output of that process.
const RESULT: &str = "result: ";

/// Reads an image in the process with another environment. Returns `false` in the other process.
fn read_as_told() -> bool {
    let (Ok(url), Some(cache)) = (env::var(URL), env::var_os(CACHE)) else { return false };
    let remote = RemoteOptions { outage: Outage::Wait(Duration::ZERO), ..RemoteOptions::default() };
    let options = ImageOptions { remote, cache_directory: Some(cache.into()), ..ImageOptions::default() };
    println!("\n{RESULT}{}", read(&url, &options).map_or_else(|error| error.to_string(), |digest| digest.to_string()));
    true
}

/// The digest of the image, whose parts several threads read.
fn read(url: &str, options: &ImageOptions) -> io::Result<Digest> {
    let image = RemoteImage::open(url, options, |_| ())?;
    let mut bytes = vec![0; LEN];
    thread::scope(|scope| {
        let pieces = bytes.chunks_mut(LEN / 6).enumerate();
        let image = &image;
        let reading: Vec<_> = pieces
            .map(|(index, piece)| scope.spawn(move || image.read_at((index * (LEN / 6)) as u64, piece)))
            .collect();
        reading.into_iter().try_for_each(|reading| reading.join().expect("no panic"))
    })?;
    Ok(Digest::of(&bytes))
}

/// Runs the test `name` in a process with this environment. Returns the digest that it reads, or its error.
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
    if read_as_told() {
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
        let expected = Digest::of(&bytes).to_string();
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
    if read_as_told() {
        return;
    }
    let layer = object(LEN, 3);
    let expected = Digest::of(&layer).to_string();
    // The statuses of the mirror and of the registry, and what the process says.
    let rows = [
        (404, 200, &*expected),
        (403, 200, &expected),
        (401, 200, &expected),
        (400, 200, &expected),
        (200, 404, &expected),
        (404, 404, "404"),
        (404, 403, "403"),
        (403, 418, "418"),
    ];
    check_rows(
        &rows,
        |(mirror, registry, _)| format!("{mirror}, {registry}"),
        |(mirror, registry, expected)| {
            let mut content = Content::default();
            content.image_with_table("v1", &layer);
            let blobs_with = |status| {
                let content = content.clone();
                Server::start(move |asked| {
                    let path = asked.path.split('?').next().unwrap_or_default().to_owned();
                    let asked = Asked { path, ..asked.clone() };
                    match asked.path.contains("/blobs/") && status != 200 {
                        true => Answer::new(status, &[], ""),
                        false => content.answer(&asked),
                    }
                })
            };
            let (mirror, registry) = (blobs_with(*mirror), blobs_with(*registry));
            let directory = tempfile::tempdir().expect("a directory");
            let hosts = directory.path().join("containerd/certs.d/registry.invalid");
            fs::create_dir_all(&hosts).expect("made");
            let text = format!("server = \"{}\"\n[host.\"{}\"]\n", registry.url(""), mirror.url(""));
            fs::write(hosts.join("hosts.toml"), text).expect("written");
            let config = directory.path().to_str().expect("text");
            let name = "environment::an_image_is_read_from_the_registry_if_a_mirror_has_only_its_manifest";
            let url = "oci://registry.invalid/team/image:v1";
            let found = result(name, url, &directory.path().join("cache"), &[("XDG_CONFIG_HOME", config)]);
            if found.contains(expected) { Vec::new() } else { vec![found] }
        },
    );
}
