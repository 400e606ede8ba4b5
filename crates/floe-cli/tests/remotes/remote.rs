//! Remote images from real servers: commands, layers, hash trees, mirrors, status.

use std::{
    ffi::{OsStr, OsString},
    fs,
    path::Path,
    process::Command,
};

use floe_testkit::{
    corpus::{Format, Materialised},
    skip::{self, Need},
};
use tempfile::TempDir;

use crate::support::{
    Served,
    program::{demo, floe, run, told, umount},
    servers::RealServer,
};

/// The options of all commands on remote images: a separate cache, and short waits.
pub(crate) struct Cache {
    directory: TempDir,
}

impl Cache {
    pub(crate) fn new() -> Self {
        Self { directory: tempfile::Builder::new().prefix("floe-cache-").tempdir().expect("a directory") }
    }

    pub(crate) fn options(&self) -> Vec<OsString> {
        let path = self.directory.path().as_os_str().to_owned();
        ["--outage", "wait:10s", "--cache-directory"].map(OsString::from).into_iter().chain([path]).collect()
    }
}

#[test]
fn large_images_are_pushed_in_pieces() {
    if !skip::ready(&[Need::Peer("docker-registry")]) {
        return;
    }
    let server = RealServer::registry();
    let directory = TempDir::new().expect("a directory");
    let (image, pulled) = (directory.path().join("large.erofs"), directory.path().join("pulled"));
    let mut bytes = fs::read(demo()).expect("read");
    bytes.extend(floe_testkit::Random::new(1).noise(30 << 20));
    fs::write(&image, &bytes).expect("written");
    let url = format!("oci://localhost:{}/large", server.port);
    let (code, errors) = told(&run(floe().arg("push").arg(&image).arg(&url)));
    assert_eq!(code, Some(0), "{errors}");
    let (code, errors) = told(&run(floe().args(["pull", &url]).arg(&pulled)));
    assert_eq!(code, Some(0), "{errors}");
    assert!(fs::read(&pulled).expect("read") == bytes);
    let (code, errors) = told(&run(floe().args(["pull", &url]).arg(&pulled)));
    assert!(code == Some(1) && errors.contains("--force"), "{errors}");
}

#[test]
fn every_command_takes_urls() {
    if !skip::ready(&[Need::Peer("docker-registry")]) {
        return;
    }
    let (server, cache) = (RealServer::registry(), Cache::new());
    let url = format!("oci://localhost:{}/demo", server.port);
    assert_eq!(told(&run(floe().arg("push").arg(demo()).arg(&url))).0, Some(0));
    let output = |arguments: &[&str], image: &OsStr| {
        let (command, rest) = arguments.split_first().expect("a command");
        let mut floe = floe();
        floe.arg(command);
        if *image == *url {
            floe.args(cache.options()).args(["--require-verified", "--sandbox=require"]);
        }
        let output = run(floe.arg(image).args(rest));
        let (code, errors) = told(&output);
        (code, errors, String::from_utf8_lossy(&output.stdout).into_owned())
    };
    for arguments in [&["ls", "-lR"][..], &["cat", "/guide/reading.txt"], &["stat", "/guide"], &["check"], &["dump"]] {
        let local = output(arguments, demo().as_os_str());
        let (code, errors, remote) = output(arguments, OsStr::new(&url));
        assert_eq!((code, errors.as_str()), (local.0, ""), "{arguments:?}");
        // Only the name of the image may differ.
        let lines =
            |text: &str| text.lines().filter(|line| !line.contains("demo")).map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(lines(&remote), lines(&local.2), "{arguments:?}");
    }
}

#[test]
fn the_library_takes_urls() {
    if !skip::ready(&[Need::Peer("docker-registry")]) {
        return;
    }
    let (server, cache) = (RealServer::registry(), Cache::new());
    let url = format!("oci://localhost:{}/demo", server.port);
    assert_eq!(told(&run(floe().arg("push").arg(demo()).arg(&url))).0, Some(0));
    let mut options = floe::OpenOptions::default();
    options.remote.cache_directory = Some(cache.directory.path().to_owned());
    options.remote.require_verified = true;
    let remote = floe::Image::open_url(&url, &options).expect("opened");
    let local = floe::Image::open(demo(), &options).expect("opened");
    let text = |image: &floe::Image| {
        let nid = image.resolve("/guide/reading.txt").expect("there");
        let mut text = vec![0; image.attr(nid).expect("read").size as usize];
        image.read_at(nid, 0, &mut text).expect("read");
        text
    };
    assert_eq!(text(&remote), text(&local));
    let error = floe::Image::open_url("oci://localhost", &options).err().expect("no URL").to_string();
    assert!(error.contains("no repository"), "{error}");
}

#[test]
fn hash_trees_verify_what_is_read() {
    if !skip::ready(&[Need::Peer("docker-registry")]) {
        return;
    }
    let (server, cache, directory) = (RealServer::registry(), Cache::new(), TempDir::new().expect("a directory"));
    let (tree, image) = (directory.path().join("tree"), directory.path().join("image.erofs"));
    fs::create_dir(&tree).expect("made");
    let noise = floe_testkit::Random::new(3).noise(3 << 20);
    fs::write(tree.join("noise"), &noise).expect("written");
    let (code, errors) = told(&run(floe().args(["mkfs", "--verity"]).arg(&image).arg(&tree)));
    assert_eq!(code, Some(0), "{errors}");
    let url = format!("oci://localhost:{}/tree", server.port);
    let (code, errors) = told(&run(floe().arg("push").arg(&image).arg(&url)));
    assert_eq!(code, Some(0), "{errors}");
    let mut cat = floe();
    cat.arg("cat").args(cache.options()).args(["--require-verified", &url, "/noise"]);
    assert!(run(&mut cat).stdout == noise);
    let listed = run(floe().args(["cache", "ls", "--json", "--cache-dir"]).arg(cache.directory.path()));
    assert!(String::from_utf8_lossy(&listed.stdout).contains("dm-verity"), "{listed:?}");
    // A byte of the layer is wrong in the registry's store. The read fails and names the place.
    let blobs = server.path().join("docker/registry/v2/blobs/sha256");
    let len = fs::metadata(&image).expect("there").len();
    let folders = fs::read_dir(blobs).expect("a store").flatten().flat_map(|entry| fs::read_dir(entry.path()));
    let mut data = folders.flatten().flatten().map(|entry| entry.path().join("data"));
    let blob = data.find(|path| fs::metadata(path).is_ok_and(|metadata| metadata.len() == len)).expect("the layer");
    let mut bytes = fs::read(&blob).expect("read");
    let place =
        bytes.windows(64).position(|window| window == &noise[2 << 20..(2 << 20) + 64]).expect("stored as it is");
    bytes[place] ^= 1;
    fs::write(&blob, &bytes).expect("written");
    let cache = Cache::new();
    let mut cat = floe();
    let output = run(cat.arg("cat").args(cache.options()).args([&url, "/noise"]));
    let (code, errors) = told(&output);
    assert!(code == Some(1) && errors.contains("byte"), "{code:?}: {errors}");
    assert!(noise.starts_with(&output.stdout) && output.stdout.len() < noise.len(), "nothing wrong was written");
}

#[test]
fn mounts_in_the_background_release_the_callers_files() {
    if !skip::ready(&[Need::Fuse, Need::Peer("docker-registry")]) {
        return;
    }
    let (server, cache, place) = (RealServer::registry(), Cache::new(), crate::support::program::Place::new());
    let url = format!("oci://localhost:{}/demo", server.port);
    assert_eq!(told(&run(floe().arg("push").arg(demo()).arg(&url))).0, Some(0));
    // Waits for the end of its output.
    let output = run(floe().args(["mount", "--daemon"]).args(cache.options()).arg(&url).arg(&place.path));
    assert_eq!(told(&output), (Some(0), String::new()));
    assert!(place.mount_line().contains(&url), "{}", place.mount_line());
    fs::read(place.file("guide/reading.txt")).expect("read");
    assert_eq!(umount(&place.path).0, Some(0));
}

#[test]
fn reads_wait_for_a_server_that_is_restarted() {
    if !skip::ready(&[Need::Fuse, Need::Peer("docker-registry")]) {
        return;
    }
    let (mut server, cache, directory) = (RealServer::registry(), Cache::new(), TempDir::new().expect("a directory"));
    let (tree, image) = (directory.path().join("tree"), directory.path().join("image.erofs"));
    fs::create_dir(&tree).expect("made");
    let noise = floe_testkit::Random::new(5).noise(4 << 20);
    fs::write(tree.join("noise"), &noise).expect("written");
    let (code, errors) = told(&run(floe().arg("mkfs").arg(&image).arg(&tree)));
    assert_eq!(code, Some(0), "{errors}");
    let url = format!("oci://localhost:{}/noise", server.port);
    assert_eq!(told(&run(floe().arg("push").arg(&image).arg(&url))).0, Some(0));
    let mut options = cache.options();
    options[1] = "wait:10m".into();
    let options: Vec<&OsStr> = options.iter().map(OsString::as_os_str).collect();
    let files = Materialised::single(&url, Format::Erofs);
    let served = Served::with(&files, &options, &[]).expect("mounted");
    server.stop();
    let path = served.path().join("noise");
    let reading = std::thread::spawn(move || fs::read(path));
    crate::support::program::until("the outage is seen", || {
        let output = run(floe().args(["status", "--json"]).arg(served.path()));
        let report: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
        report["remote"]["counts"]["remote"]["outage_ms"].is_u64()
    });
    assert!(!reading.is_finished());
    server.start_again();
    assert!(reading.join().expect("no panic").expect("healed") == noise);
    assert!(served.end().is_empty());
}

#[test]
fn the_ranges_of_a_launch_are_fetched_ahead_of_reads() {
    if !skip::ready(&[Need::Fuse, Need::Peer("docker-registry")]) {
        return;
    }
    let (server, directory) = (RealServer::registry(), TempDir::new().expect("a directory"));
    let [tree, image, profile] = ["tree", "image.erofs", "profile"].map(|name| directory.path().join(name));
    fs::create_dir(&tree).expect("made");
    for name in ["a", "b", "c"] {
        let noise = floe_testkit::Random::new(u64::from(name.as_bytes()[0])).noise(4 << 20);
        fs::write(tree.join(name), noise).expect("written");
    }
    fs::write(&profile, "# floe profile 1\n0 1048576 /b\n0 4096 /absent\n").expect("written");
    let url = format!("oci://localhost:{}/launch", server.port);
    for is_in_the_image in [true, false] {
        let mut mkfs = floe();
        mkfs.args(["mkfs", "--quiet"]).arg(&image).arg(&tree);
        let mut push = floe();
        push.args(["push", "--quiet"]).arg(&image).arg(&url);
        if is_in_the_image {
            mkfs.arg("--profile").arg(&profile)
        } else {
            push.arg("--profile").arg(&profile)
        };
        for command in [&mut mkfs, &mut push] {
            let (code, errors) = told(&run(command));
            assert_eq!(code, Some(0), "{errors}");
        }
        let cache = Cache::new();
        let options = cache.options();
        let options: Vec<&OsStr> = options.iter().map(OsString::as_os_str).collect();
        let files = Materialised::single(&url, Format::Erofs);
        let served = Served::with(&files, &options, &[]).expect("mounted");
        let fetched = || {
            let output = run(floe().args(["status", "--json"]).arg(served.path()));
            let report: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
            let causes = report["remote"]["counts"]["remote"]["causes"].as_array().expect("causes").clone();
            causes.iter().filter_map(|cause| cause["bytes"].as_u64()).sum::<u64>()
        };
        crate::support::program::until("it is fetched", || fetched() >= 1 << 20);
        assert!(fetched() <= 3 << 20, "{} bytes", fetched());
        assert!(served.end().is_empty());
    }
}

#[test]
fn mirrors_of_hosts_toml_are_asked_first() {
    if !skip::ready(&[Need::Peer("docker-registry")]) {
        return;
    }
    let (server, cache, config) = (RealServer::registry(), Cache::new(), TempDir::new().expect("a directory"));
    let mirror = format!("localhost:{}", server.port);
    assert_eq!(told(&run(floe().arg("push").arg(demo()).arg(format!("oci://{mirror}/team/demo")))).0, Some(0));
    let directory = config.path().join("containerd/certs.d/registry.invalid");
    fs::create_dir_all(&directory).expect("made");
    let list = |hosts: &str| {
        fs::write(directory.join("hosts.toml"), hosts).expect("written");
        let mut command = floe();
        command.env("XDG_CONFIG_HOME", config.path()).arg("ls").args(cache.options());
        let output = run(command.arg("oci://registry.invalid/team/demo"));
        let (code, errors) = told(&output);
        (code, errors, String::from_utf8_lossy(&output.stdout).into_owned())
    };
    let refused = "[host.'http://127.0.0.1:1']\n";
    let (code, errors, listed) =
        list(&format!("{refused}[host.'http://{mirror}']\ncapabilities = ['pull', 'resolve']\n"));
    assert_eq!((code, errors.as_str()), (Some(0), ""));
    assert!(listed.contains("guide"), "{listed}");
    let (code, errors, _) = list("[host.'https://mirror']\nskip_verify = true\n");
    assert!(code == Some(1) && errors.contains("hosts.toml: 'skip_verify' is not supported"), "{errors}");
}

#[test]
fn mistakes_are_reported_in_one_line() {
    let closed = "http://127.0.0.1:1/image";
    for (arguments, code, expected) in [
        (&["ls", "oci://host"][..], 2, "no repository"),
        (&["ls", "https://host/a b"], 2, "%20"),
        (&["ls", "--outage", "never", "x"], 2, "wait:60s"),
        (&["ls", "--outage", "eio", "--cache-size", "0", closed], 1, "127.0.0.1:1/image: "),
        (&["mount", "-o", "outage=never", closed, "/"], 2, "-o outage: "),
        (&["mount", "-o", "outage=wait:0s,cache-size=0", closed, "/tmp"], 1, "127.0.0.1:1/image: "),
        (&["push", "/no/such/file", "oci://localhost:1/a"], 1, "/no/such/file"),
        (&["push", "Cargo.toml", "oci://localhost:1/a"], 3, "not an EROFS or SquashFS image"),
        (&["pull", "x", "y"], 2, "not a URL"),
        (&["pull", "https://a:topsecret@host/a b?topsecret", "y"], 2, "floe: 'https://host/a b': "),
        (
            &["pull", "https://host/a", "y", "https://a:topsecret@host/b?topsecret"],
            2,
            "argument 'https://host/b' found",
        ),
        (&["push", "Cargo.toml", "https://a:topsecret@host/a b?topsecret"], 2, "floe: 'https://host/a b': "),
        (&["push", "Cargo.toml", "oci://a:topsecret@host/a"], 2, "docker login"),
        (&["push", "Cargo.toml", "oci://host/a:v1?topsecret"], 2, "takes no query"),
        (&["mount", "https://a:topsecret@host/a b?topsecret", "/tmp"], 2, "floe: 'https://host/a b': "),
        (&["https://a:topsecret@host/a?topsecret"], 2, "unrecognized subcommand 'https://host/a'"),
        (&["https://a:topsecret@host/a?topsecret", "/mnt", "-o", "ro"], 2, "run floe mount https://host/a /mnt"),
    ] {
        let mut command = floe();
        let (found, errors) = told(&run(command.args(arguments)));
        assert!(found == Some(code) && errors.contains(expected), "{arguments:?}: {found:?}, {errors}");
        assert!(errors.lines().count() == 1 && !errors.contains("topsecret"), "{arguments:?}: {errors}");
    }
}

#[test]
fn status_shows_the_server() {
    if !skip::ready(&[Need::Fuse, Need::Peer("docker-registry")]) {
        return;
    }
    let (server, cache) = (RealServer::registry(), Cache::new());
    let url = format!("oci://localhost:{}/demo", server.port);
    assert_eq!(told(&run(floe().arg("push").arg(demo()).arg(&url))).0, Some(0));
    let options = cache.options();
    let options: Vec<&OsStr> = options.iter().map(OsString::as_os_str).collect();
    let files = Materialised::single(&url, Format::Erofs);
    let served = Served::with(&files, &options, &[]).expect("mounted");
    fs::read(served.path().join("guide/reading.txt")).expect("read");
    let status = |option: &[&str]| {
        let output = run(Command::new(env!("CARGO_BIN_EXE_floe")).arg("status").args(option).arg(served.path()));
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let text = status(&[]);
    assert!(text.contains("remote       oci://localhost:") && text.contains("verified by tree sha256:"), "{text}");
    let report: serde_json::Value = serde_json::from_str(&status(&["--json"])).expect("JSON");
    assert_eq!(report["sandbox"]["seccomp"], "enforced");
    let causes = report["remote"]["counts"]["remote"]["causes"].as_array().expect("causes");
    let bytes: u64 = causes.iter().filter_map(|cause| cause["bytes"].as_u64()).sum();
    let len = fs::metadata(demo()).expect("there").len();
    assert!((1..=len).contains(&bytes), "{bytes} of {len} bytes");
    assert!(status(&["--prometheus"]).contains("floe_remote_bytes_total{"));
    let fetches_for = format!("PPid:\t{}", served.pid());
    let mut fetching = crate::support::program::processes_with("fetch-for-another");
    fetching.retain(|pid| {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        status.lines().any(|line| line == fetches_for)
    });
    assert_eq!(fetching.len(), 1, "one process fetches");
    assert!(served.end().is_empty());
    let runs = |pid: &u32| {
        fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|exe| exe == Path::new(env!("CARGO_BIN_EXE_floe")))
    };
    crate::support::program::until("the process that fetches ends", || !fetching.iter().any(runs));
}

#[test]
fn certificates_are_loaded_only_for_tls() {
    if !skip::ready(&[Need::Peer("nginx"), Need::Peer("versitygw")]) {
        return;
    }
    let (web, bucket) = (RealServer::nginx(), RealServer::s3());
    web.offer(&demo(), "demo");
    fs::create_dir(bucket.path().join("images")).expect("made");
    bucket.offer(&demo(), "images/demo");
    let endpoint = format!("http://127.0.0.1:{}", bucket.port);
    let no_certificates = TempDir::new().expect("a directory");
    let ls = |url: &str| {
        let mut ls = floe();
        ls.args(["ls", "--outage", "wait:0s", "--cache-size", "0", url]);
        ls.env("SSL_CERT_FILE", no_certificates.path().join("absent")).env("SSL_CERT_DIR", no_certificates.path());
        ls.env("AWS_ENDPOINT_URL_S3", &endpoint).env("AWS_REGION", "us-east-1");
        told(&run(ls.env("AWS_ACCESS_KEY_ID", "someone").env("AWS_SECRET_ACCESS_KEY", "something")))
    };
    for url in [format!("http://127.0.0.1:{}/demo", web.port), "s3://images/demo".to_owned()] {
        assert_eq!(ls(&url), (Some(0), String::new()), "{url}");
    }
    let (code, errors) = ls(&format!("https://127.0.0.1:{}/demo", web.port));
    assert!(code == Some(1) && errors.contains("cannot prepare requests"), "{errors}");
}
