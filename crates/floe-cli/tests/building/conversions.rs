//! `floe convert` with OCI layouts and docker archives.

use std::{
    collections::BTreeSet,
    ffi::CString,
    fs,
    path::{Path, PathBuf},
};

use floe::OpenOptions;
use floe_testkit::{
    KernelMount, Versions,
    corpus::{Format, Materialised},
    manifest::{Manifest, differences, sha256_hex},
    skip::{self, Need},
    walk::{self, DirectoryWalk},
};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use serde_json::{Value, json};

use crate::{
    mkfs_erofs::{FREE_DIRECTORIES, manifest_of},
    support::{
        container_image::{LAYERS, blob, make_docker_archive, make_layers, make_layout, named, read},
        mkfs_erofs::theirs,
        program::{floe, run, told},
    },
};

/// Converts an image, which must succeed. Returns the summary.
fn convert(folder: &Path, arguments: &str) -> Value {
    let output = run(floe().arg("convert").arg("--json").args(arguments.split_whitespace()).current_dir(folder));
    assert!(output.status.success(), "{arguments}: {}", String::from_utf8_lossy(&output.stderr));
    assert!(output.stderr.is_empty(), "{arguments}: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("JSON")
}

/// The entries of an index for this architecture, with EROFS layers or without.
fn entries<'index>(index: &'index Value, architecture: &str, is_erofs: bool) -> Vec<&'index Value> {
    let entries = index["manifests"].as_array().expect("a list").iter();
    let has_erofs = |entry: &Value| entry["platform"]["os.features"] == json!(["erofs"]);
    let is_wanted = |entry: &&Value| entry["platform"]["architecture"] == architecture && has_erofs(entry) == is_erofs;
    entries.filter(is_wanted).collect()
}

/// The layers of the converted image for this architecture.
fn converted_layers(layout: &Path, name: &str, architecture: &str) -> Vec<Value> {
    let index = named(layout, name);
    let [entry] = entries(&index, architecture, true)[..] else { panic!("{index}") };
    read(layout, entry)["layers"].as_array().expect("a list").clone()
}

/// The names of all files of a layout, which for blobs are their digests.
fn files(layout: &Path) -> BTreeSet<String> {
    let list = |path: PathBuf| fs::read_dir(path).expect("a folder").map(|entry| entry.expect("read").file_name());
    let names = list(layout.join("blobs/sha256")).chain(list(layout.to_owned()));
    names.map(|name| name.into_string().expect("text")).collect()
}

fn comparable(mut manifest: Manifest) -> Manifest {
    for (_, entry) in manifest.entries_mut() {
        (entry.inode_number, entry.blocks_512, entry.segments) = (None, None, None);
    }
    manifest
}

#[test]
fn images_are_converted_beside_their_originals() {
    if !skip::ready(&[Need::Root]) {
        return;
    }
    let scene = tempfile::tempdir().expect("a folder");
    let folder = scene.path();
    make_layers(folder);
    let layout = make_layout(folder);
    let before = named(&layout, "app");
    let summary = convert(folder, "layout out");
    assert_eq!((&summary["manifests"], &summary["layers_built"]), (&json!(2), &json!(3)), "{summary}");
    let out = folder.join("out");
    let after = named(&out, "app");
    let originals = before["manifests"].as_array().expect("a list");
    assert_eq!(after["manifests"].as_array().expect("a list")[..3], originals[..], "the original entries");
    assert_eq!(after["annotations"], json!({ "a": "b" }));
    let missing: Vec<String> =
        files(&layout).difference(&files(&out)).filter(|name| **name != index_digest(&layout)).cloned().collect();
    assert_eq!(missing, Vec::<String>::new(), "blobs of the original");
    for (architecture, names) in [("amd64", &LAYERS[..]), ("arm64", &["one", "three"])] {
        let [original] = entries(&before, architecture, false)[..] else { panic!("{before}") };
        let [entry] = entries(&after, architecture, true)[..] else { panic!("{after}") };
        let manifest = read(&out, entry);
        let (config, old) = (read(&out, &manifest["config"]), read(&layout, &read(&layout, original)["config"]));
        let layers = manifest["layers"].as_array().expect("a list");
        let digests: Vec<&Value> = layers.iter().map(|layer| &layer["digest"]).collect();
        assert_eq!(config["rootfs"]["diff_ids"], json!(digests));
        assert_eq!(config["os.features"], json!(["erofs"]));
        for field in ["architecture", "os", "config", "history", "x-unknown"] {
            assert_eq!(config[field], old[field], "{field}");
        }
        assert_eq!(layers.len(), names.len());
        for layer in layers {
            assert_eq!(layer["mediaType"], "application/vnd.erofs.layer.v1");
            let bytes = fs::read(blob(&out, layer)).expect("stored");
            assert_eq!((&layer["size"], &layer["digest"]), (&json!(bytes.len()), &json!(digest(&bytes))));
            assert!(told(&run(floe().arg("check").arg("--quiet").arg(blob(&out, layer)))).0 == Some(0));
        }
    }
    assert_eq!(entries(&after, "unknown", true), Vec::<&Value>::new(), "attestations stay as they are");
}

fn digest(bytes: &[u8]) -> String {
    format!("sha256:{}", sha256_hex(bytes))
}

/// The digest of the index with the only image of a layout.
fn index_digest(layout: &Path) -> String {
    let index: Value = serde_json::from_slice(&fs::read(layout.join("index.json")).expect("read")).expect("JSON");
    index["manifests"][0]["digest"].as_str().expect("a digest")[7..].to_owned()
}

#[test]
fn layers_are_those_of_the_original_mkfs() {
    if !skip::ready(&[Need::Root, Need::PeerOf("mkfs.erofs", Versions::Since("1.9"))]) {
        return;
    }
    let scene = tempfile::tempdir().expect("a folder");
    let folder = scene.path();
    make_layers(folder);
    make_layout(folder);
    convert(folder, "layout out");
    for (name, layer) in LAYERS.iter().zip(converted_layers(&folder.join("out"), "app", "amd64")) {
        let flags = format!("--quiet --aufs --tar=f -Enoinline_data,force-inode-extended {name}.erofs {name}.tar");
        let output = theirs(folder, &flags, &[]);
        assert!(output.status.success(), "{output:?}");
        let options = OpenOptions::default();
        let expected = manifest_of(&folder.join(format!("{name}.erofs")), &options);
        let mut found = manifest_of(&blob(&folder.join("out"), &layer), &options);
        for (path, entry) in found.entries_mut().filter(|(_, entry)| entry.device == Some((0, 0))) {
            // The time of a whiteout says nothing.
            entry.modified = expected.entry(path).expect("it is a whiteout, too").modified;
        }
        assert_eq!(differences(&expected, &found, &FREE_DIRECTORIES), Vec::<String>::new(), "{name}");
    }
}

#[test]
fn stacked_layers_are_the_merged_image() {
    if !skip::ready(&[Need::Root, Need::KernelErofs]) {
        return;
    }
    let scene = tempfile::tempdir().expect("a folder");
    let folder = scene.path();
    make_layers(folder);
    make_layout(folder);
    convert(folder, "layout out --compress lz4hc");
    convert(folder, "layout merged --merged --only-converted --compress lz4hc --platform linux/amd64");
    let image = |layout: &str, layer: &Value| {
        let path = blob(&folder.join(layout), layer);
        Materialised::single(path, Format::Erofs)
    };
    let [merged] = &converted_layers(&folder.join("merged"), "app", "amd64")[..] else { panic!("one layer") };
    let config = named(&folder.join("merged"), "app")["manifests"][0].clone();
    let config = read(&folder.join("merged"), &read(&folder.join("merged"), &config)["config"]);
    let is_empty = |step: &&Value| step["empty_layer"] == true;
    assert_eq!(config["history"].as_array().expect("a list").iter().filter(is_empty).count(), 3, "{config}");
    let layers = converted_layers(&folder.join("out"), "app", "amd64");
    let mounts: Vec<KernelMount> =
        layers.iter().map(|layer| KernelMount::new(&image("out", layer)).expect("mounted")).collect();
    let lower: Vec<String> = mounts.iter().rev().map(|mount| mount.path().display().to_string()).collect();
    let stack = folder.join("stack");
    fs::create_dir(&stack).expect("made");
    let options = CString::new(format!("lowerdir={}", lower.join(":"))).expect("text");
    mount("overlay", &stack, "overlay", MountFlags::RDONLY, options.as_c_str()).expect("mounted");
    let stacked = walk::directory(&stack, DirectoryWalk::default());
    unmount(&stack, UnmountFlags::DETACH).expect("unmounted");
    let merged = KernelMount::new(&image("merged", merged)).expect("mounted");
    let merged = walk::directory(&merged.path(), DirectoryWalk::default()).expect("walked");
    let stacked = stacked.expect("walked");
    for (path, is_there) in
        [("/etc/gone", false), ("/opaque/old", false), ("/opaque/new", true), ("/turns", true), ("/turns/into", false)]
    {
        assert_eq!(stacked.entry(path.as_bytes()).is_some(), is_there, "{path}");
    }
    let told = differences(&comparable(merged), &comparable(stacked), &FREE_DIRECTORIES);
    assert_eq!(told, Vec::<String>::new());
}

#[test]
fn conversions_are_reproducible_and_build_only_what_is_new() {
    if !skip::ready(&[Need::Root]) {
        return;
    }
    let scene = tempfile::tempdir().expect("a folder");
    let folder = scene.path();
    make_layers(folder);
    make_layout(folder);
    let first = convert(folder, "layout out --jobs 1");
    let second = convert(folder, "layout other --jobs 3 --memory 1M");
    assert_eq!(first["digest"], second["digest"]);
    assert_eq!(files(&folder.join("out")), files(&folder.join("other")));
    let again = convert(folder, "layout out");
    assert_eq!(again["digest"], first["digest"]);
    let counts = |summary: &Value| {
        [&summary["layers_built"], &summary["layers_reused"], &summary["blobs_stored"]].map(Value::as_u64)
    };
    assert_eq!(counts(&again), [Some(0), Some(3), Some(0)]);
    // Another compression gives other layers.
    let compressed = convert(folder, "layout out --compress lz4");
    assert_eq!(counts(&compressed), [Some(3), Some(0), Some(3)]);
    // From what an earlier conversion made, only the original manifests are converted, and replace the converted ones.
    let twice = convert(folder, "out twice --source-name app");
    assert_eq!(counts(&twice)[0], Some(3));
    assert_eq!(twice["digest"], first["digest"]);
}

#[test]
fn archives_of_docker_are_converted() {
    if !skip::ready(&[Need::Root]) {
        return;
    }
    let scene = tempfile::tempdir().expect("a folder");
    let folder = scene.path();
    make_layers(folder);
    make_layout(folder);
    make_docker_archive(folder);
    convert(folder, "layout out");
    convert(folder, "saved.tar out");
    convert(folder, "saved.tar out --target-name named");
    let digests = |name: &str| {
        let layers = converted_layers(&folder.join("out"), name, "amd64");
        layers.iter().map(|layer| layer["digest"].clone()).collect::<Vec<_>>()
    };
    // The compression of the archives makes no difference.
    assert_eq!(digests("app"), digests("v1"));
    assert_eq!(digests("app"), digests("named"));
    // An archive of a layout is a source, too.
    let status =
        std::process::Command::new("tar").args(["-cf", "layout.tar", "-C", "layout", "."]).current_dir(folder).status();
    assert!(status.expect("there is tar").success());
    let from_archive = convert(folder, "layout.tar out --target-name archived");
    assert_eq!(from_archive["layers_built"], 3);
    assert_eq!(digests("app"), digests("archived"));
}

#[test]
fn wrong_images_are_refused_in_one_line() {
    if !skip::ready(&[Need::Root]) {
        return;
    }
    let scene = tempfile::tempdir().expect("a folder");
    let folder = scene.path();
    make_layers(folder);
    let layout = make_layout(folder);
    let index = named(&layout, "app");
    let broken = folder.join("broken");
    let copied = std::process::Command::new("cp").args(["-r", "layout", "broken"]).current_dir(folder).status();
    assert!(copied.expect("there is cp").success());
    let layer = read(&layout, &index["manifests"][0])["layers"][1].clone();
    fs::write(blob(&broken, &layer), "other bytes").expect("written");
    let lost = folder.join("lost");
    let copied = std::process::Command::new("cp").args(["-r", "layout", "lost"]).current_dir(folder).status();
    assert!(copied.expect("there is cp").success());
    fs::remove_file(blob(&lost, &layer)).expect("removed");
    fs::create_dir(folder.join("full")).expect("made");
    fs::write(folder.join("full/file"), "").expect("written");
    fs::write(folder.join("text"), "text").expect("written");
    for (arguments, code, expected) in [
        ("layout x --source-name other", 2, "it has no image 'other', only app"),
        ("layout x --platform linux/s390x", 1, "no manifest of the image can be converted; it is for linux/amd64"),
        ("broken x", 1, "is stored in the place of sha256:"),
        ("lost x", 1, "No such file"),
        ("text x", 1, "neither an OCI layout nor an archive of docker save"),
        ("one.tar x", 1, "neither an OCI layout nor an archive of docker save"),
        ("full x", 1, "neither an OCI layout"),
        ("layout full", 2, "a directory that is not an OCI layout"),
        ("layout https://example.org/x", 2, "oci://registry/repository:tag"),
        ("layout oci://localhost:1/x@sha256:0", 2, "is not a digest"),
        ("layout x --compress zip", 2, "'zip' is unknown"),
        ("layout x --compress zstd,200", 2, "level"),
        ("nowhere x", 1, "No such file"),
    ] {
        let (found, errors) = told(&run(floe().arg("convert").args(arguments.split(' ')).current_dir(folder)));
        let case = format!("{arguments}: {found:?} {errors}");
        assert!(found == Some(code) && errors.lines().count() == 1 && errors.contains(expected), "{case}");
    }
    // Nothing unfinished is left behind.
    let left = files(&folder.join("x"));
    assert!(!left.iter().any(|name| name.starts_with(".floe") || name.contains("erofs")), "{left:?}");
}
