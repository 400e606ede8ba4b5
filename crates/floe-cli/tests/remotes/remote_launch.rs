//! Launch bundles in a real registry.

use std::{
    ffi::OsStr,
    fs,
    path::{Path, PathBuf},
};

use floe_testkit::{
    Random,
    corpus::{Format, Materialised},
    skip::{self, Need},
};
use tempfile::TempDir;

use crate::support::{
    Served,
    program::{Place, Serving, floe, run, told},
    servers::RealServer,
};

const BUNDLE_MEDIA_TYPE: &str = "application/vnd.floe.launch-bundle.v1";

/// The blobs in the store of docker's registry.
fn blobs(server: &RealServer) -> Vec<PathBuf> {
    let folders = fs::read_dir(server.path().join("docker/registry/v2/blobs/sha256")).expect("a store").flatten();
    let blobs = folders.flat_map(|folder| fs::read_dir(folder.path())).flatten().flatten();
    blobs.map(|blob| blob.path().join("data")).collect()
}

/// The digest of the bundle, from the artifact that refers to the image.
fn referred_bundle(server: &RealServer) -> String {
    let documents = blobs(server).into_iter().filter_map(|path| fs::read_to_string(path).ok());
    let documents = documents.filter_map(|text| serde_json::from_str::<serde_json::Value>(&text).ok());
    let artifacts: Vec<_> = documents
        .filter(|document| document["artifactType"] == BUNDLE_MEDIA_TYPE && document["subject"].is_object())
        .collect();
    assert_eq!(artifacts.len(), 1, "{artifacts:?}");
    let layer = &artifacts[0]["layers"][0];
    assert_eq!(layer["mediaType"], BUNDLE_MEDIA_TYPE);
    layer["digest"].as_str().expect("text").trim_start_matches("sha256:").to_owned()
}

/// Reads a file of the image in a mount with an empty cache.
fn read_mounted(url: &str, name: &str) -> Vec<u8> {
    let cache = TempDir::new().expect("a directory");
    let options = ["--require-verified", "--outage", "wait:10s", "--cache-directory"].map(OsStr::new);
    let options: Vec<&OsStr> = options.into_iter().chain([cache.path().as_os_str()]).collect();
    let files = Materialised::single(url, Format::Erofs);
    let served = Served::with(&files, &options, &[]).expect("mounted");
    let bytes = fs::read(served.path().join(name)).expect("read");
    assert!(served.end().is_empty());
    bytes
}

#[test]
fn bundles_are_pushed_and_referred_to_and_optional() {
    if !skip::ready(&[Need::Fuse, Need::Peer("docker-registry")]) {
        return;
    }
    let (server, directory) = (RealServer::registry(), TempDir::new().expect("a directory"));
    let [tree, image, profile] = ["tree", "image.erofs", "profile"].map(|name| directory.path().join(name));
    fs::create_dir(&tree).expect("made");
    let noise = |seed: u8| Random::new(u64::from(seed)).noise(2 << 20);
    for name in *b"abc" {
        fs::write(tree.join(Path::new(std::str::from_utf8(&[name]).expect("a letter"))), noise(name)).expect("written");
    }
    fs::write(&profile, "# floe profile 2\nname /b\n409600 819200 /b\n0 4096 /absent\nmissing /x\n").expect("written");
    let url = format!("oci://localhost:{}/launch", server.port);
    let blob = pushed_bundle(&server, [&tree, &image, &profile], &url);
    let bundle = fs::read(&blob).expect("read");
    // The launch reads 800 KiB, and the kernel at most a window before and behind it.
    assert!((800 << 10..1200 << 10).contains(&bundle.len()), "{} bytes", bundle.len());
    let is_there = |part: &[u8]| bundle.windows(part.len()).any(|window| window == part);
    assert!(is_there(&noise(b'b')[409_600..409_700]) && is_there(&noise(b'b')[1_228_700..1_228_800]));
    assert!(read_mounted(&url, "b") == noise(b'b'), "with the bundle");
    let mut wrong = bundle.clone();
    wrong.iter_mut().for_each(|byte| *byte ^= 1);
    fs::write(&blob, wrong).expect("written");
    assert!(read_mounted(&url, "b") == noise(b'b'), "with wrong bytes in the bundle");
    fs::remove_file(&blob).expect("removed");
    assert!(read_mounted(&url, "b") == noise(b'b'), "without the bundle");
}

#[test]
fn mounts_are_ready_when_the_launch_of_their_bundle_is_replayed() {
    if !skip::ready(&[Need::Fuse, Need::KernelErofs, Need::Peer("docker-registry")]) {
        return;
    }
    let (server, directory) = (RealServer::registry(), TempDir::new().expect("a directory"));
    let [tree, image, profile] = ["tree", "image.erofs", "profile"].map(|name| directory.path().join(name));
    fs::create_dir(&tree).expect("made");
    let (large, small) = (Random::new(1).noise(24 << 20), Random::new(2).noise(9000));
    fs::write(tree.join("large"), &large).expect("written");
    fs::write(tree.join("small"), &small).expect("written");
    let recorded = "# floe profile 2\nname /small\n0 9000 /small\nname /large\n4096 20971520 /large\nmissing /x\n";
    fs::write(&profile, recorded).expect("written");
    let url = format!("oci://localhost:{}/waiting", server.port);
    pushed_bundle(&server, [&tree, &image, &profile], &url);
    for front in ["kernel", "fuse"] {
        let (cache, place) = (TempDir::new().expect("a directory"), Place::new());
        let mut command = floe();
        command.args(["mount", "--require-verified", "--cache-directory"]).arg(cache.path()).arg(&url).arg(&place.path);
        command.arg("-o").arg(format!("front={front},launch-wait=60s,profile={}", profile.display()));
        let serving = Serving::start(command, place);
        let output = run(floe().args(["status", "--json"]).arg(&serving.place.path));
        let report: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
        let launch = report.get("mounts").map_or(&report, |mounts| &mounts[0])["launch"].clone();
        assert_eq!(launch["state"], "replayed", "{front}: {launch}");
        assert_eq!(
            (&launch["found_names"], &launch["missing_names"], &launch["failed_names"]),
            (&2.into(), &1.into(), &0.into())
        );
        let bytes = launch["range_bytes"].as_u64().expect("a number");
        assert!((20_971_520..20_971_520 + (64 << 10)).contains(&bytes), "{front}: {launch}");
        for (name, content) in [("small", &small), ("large", &large)] {
            assert!(fs::read(serving.place.path.join(name)).expect("read") == *content, "{front}: {name}");
        }
        serving.stop();
    }
}

/// Builds an image of a tree, pushes it with a profile, and returns the blob of its launch bundle in the registry's store.
fn pushed_bundle(server: &RealServer, [tree, image, profile]: [&Path; 3], url: &str) -> PathBuf {
    let (mut mkfs, mut push) = (floe(), floe());
    mkfs.args(["mkfs", "--quiet"]).arg(image).arg(tree);
    push.args(["push", "--quiet", "--profile"]).arg(profile).arg(image).arg(url);
    for command in [&mut mkfs, &mut push] {
        let (code, errors) = told(&run(command));
        assert_eq!(code, Some(0), "{errors}");
    }
    let digest = referred_bundle(server);
    blobs(server).into_iter().find(|path| path.to_string_lossy().contains(&digest)).expect("the bundle")
}

#[test]
fn bundles_contain_the_neighbours_of_small_files() {
    if !skip::ready(&[Need::Peer("docker-registry")]) {
        return;
    }
    let (server, directory) = (RealServer::registry(), TempDir::new().expect("a directory"));
    let [tree, image, profile] = ["tree", "image.erofs", "profile"].map(|name| directory.path().join(name));
    fs::create_dir(&tree).expect("made");
    let noise = |file: u64| Random::new(file).noise(20 << 10);
    (0..40).for_each(|file| fs::write(tree.join(format!("{file:02}")), noise(file)).expect("written"));
    fs::write(&profile, "# floe profile 2\nname /20\n0 20480 /20\n").expect("written");
    let url = format!("oci://localhost:{}/neighbours", server.port);
    let blob = pushed_bundle(&server, [&tree, &image, &profile], &url);
    let bundle = fs::read(&blob).expect("read");
    // Content begins at a block.
    let is_there = |content: &[u8]| bundle.chunks(4096).any(|block| content.starts_with(block));
    // What the kernel reads before it has 64 KiB, and what it reads behind it 128 KiB.
    let found: Vec<u64> = (0..40).filter(|file| is_there(&noise(*file))).collect();
    assert!(found.contains(&19) && found.contains(&20) && found.contains(&21), "{found:?}");
    assert!(found.len() < 16, "{found:?}");
}
