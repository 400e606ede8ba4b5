//! Container images in OCI layouts and docker archives, made for tests.

use std::{
    fs,
    os::unix::fs::{PermissionsExt, symlink},
    path::{Path, PathBuf},
    process::Command,
};

use floe_testkit::manifest::sha256_hex;
use rustix::fs::{CWD, FileType, Mode, XattrFlags, makedev, mknodat, setxattr};
use serde_json::{Value, json};

/// The capability CAP_NET_RAW of a file, as `setcap cap_net_raw+ep` stores it.
const CAPABILITY: [u8; 20] = [1, 0, 0, 2, 0, 32, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

/// The media types of manifests and of plain layers.
pub(crate) const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const INDEX: &str = "application/vnd.oci.image.index.v1+json";
const TAR: &str = "application/vnd.oci.image.layer.v1.tar";
const CONFIG: &str = "application/vnd.oci.image.config.v1+json";

/// The names of the layers; the first is the lowest.
pub(crate) const LAYERS: [&str; 3] = ["one", "two", "three"];

/// A shell with its libraries, in the lowest layer.
pub(crate) fn add_shell(folder: &Path) {
    add_programs(folder, &["sh"]);
}

/// Programs with their libraries, in the lowest layer.
pub(crate) fn add_programs(folder: &Path, names: &[&str]) {
    for name in names {
        let program = fs::canonicalize(format!("/usr/bin/{name}")).expect("it is everywhere");
        let listed = Command::new("ldd").arg(&program).output().expect("there is ldd");
        let text = String::from_utf8_lossy(&listed.stdout).into_owned();
        for file in text.split_whitespace().filter(|word| word.starts_with('/')) {
            let target = folder.join("one").join(file.trim_start_matches('/'));
            fs::create_dir_all(target.parent().expect("a folder")).expect("made");
            fs::copy(file, target).expect("copied");
        }
        fs::create_dir_all(folder.join("one/bin")).expect("made");
        fs::copy(program, folder.join("one/bin").join(name)).expect("copied");
    }
}

/// Makes three layers as archives `one.tar`, `two.tar`, `three.tar`: with whiteouts, opaque directories, hard links, devices,
/// capabilities and attributes. Needs root.
pub(crate) fn make_layers(folder: &Path) {
    for (name, len) in [
        ("one/bin/tool", 300_000),
        ("one/etc/config", 40),
        ("one/etc/gone", 10),
        ("one/opaque/old", 5000),
        ("one/opaque/deep/old", 1),
        ("one/links/first", 9000),
        ("one/turns/into/file", 7),
        ("two/etc/config", 50),
        ("two/etc/.wh.gone", 0),
        ("two/opaque/.wh..wh..opq", 0),
        ("two/opaque/new", 100),
        ("two/.wh.turns", 0),
        ("three/turns", 8),
        ("three/opaque/third", 70_000),
        ("three/etc/empty", 0),
    ] {
        let path = folder.join(name);
        fs::create_dir_all(path.parent().expect("a folder")).expect("made");
        fs::write(&path, name.bytes().cycle().take(len).collect::<Vec<u8>>()).expect("written");
    }
    let at = |name: &str| folder.join(name);
    fs::hard_link(at("one/links/first"), at("one/links/second")).expect("made");
    symlink("../etc/config", at("one/links/config")).expect("made");
    fs::create_dir(at("one/dev")).expect("made");
    mknodat(CWD, at("one/dev/null"), FileType::CharacterDevice, Mode::from_raw_mode(0o666), makedev(1, 3))
        .expect("made");
    mknodat(CWD, at("one/dev/pipe"), FileType::Fifo, Mode::from_raw_mode(0o600), 0).expect("made");
    for (name, mode) in [("one/bin/tool", 0o4755), ("two/opaque", 0o1777), ("three/etc", 0o700)] {
        fs::set_permissions(at(name), fs::Permissions::from_mode(mode)).expect("set");
    }
    std::os::unix::fs::chown(at("two/opaque/new"), Some(1234), Some(70_000)).expect("set");
    setxattr(at("one/bin/tool"), "security.capability", &CAPABILITY, XattrFlags::empty()).expect("set");
    setxattr(at("one/etc"), "user.note", b"kept", XattrFlags::empty()).expect("set");
    for layer in LAYERS {
        let mut tar = Command::new("tar");
        tar.args(["--format=pax", "--xattrs", "--xattrs-include=*", "--sort=name", "--numeric-owner", "-cf"]);
        let status = tar.arg(format!("{layer}.tar")).args(["-C", layer, "."]).current_dir(folder).status();
        assert!(status.expect("there is tar").success(), "{layer}");
    }
}

/// Makes an OCI layout of the layers in a folder: an index with the image `app` for two platforms, which share a layer, and an
/// attestation. The layers are compressed with gzip, not at all, and with zstd. Returns the path of the layout.
pub(crate) fn make_layout(folder: &Path) -> PathBuf {
    let layout = folder.join("layout");
    fs::create_dir_all(layout.join("blobs/sha256")).expect("made");
    fs::write(layout.join("oci-layout"), r#"{"imageLayoutVersion":"1.0.0"}"#).expect("written");
    let plain = LAYERS.map(|layer| fs::read(folder.join(format!("{layer}.tar"))).expect("made"));
    let gzip = Command::new("gzip").args(["-nc", "one.tar"]).current_dir(folder).output().expect("there is gzip");
    let zstd = zstd::encode_all(&plain[2][..], 3).expect("compressed");
    let layers = [
        store(&layout, &format!("{TAR}+gzip"), &gzip.stdout),
        store(&layout, TAR, &plain[1]),
        store(&layout, &format!("{TAR}+zstd"), &zstd),
    ];
    let diff_ids = plain.map(|bytes| format!("sha256:{}", sha256_hex(&bytes)));
    let image = |architecture: &str, places: &[usize]| {
        let pick = |values: &[Value]| places.iter().map(|place| values[*place].clone()).collect::<Vec<_>>();
        let diff_ids: Vec<&String> = places.iter().map(|place| &diff_ids[*place]).collect();
        let history: Vec<Value> = places.iter().map(|place| json!({ "created_by": LAYERS[*place] })).collect();
        let config = json!({
            "architecture": architecture, "os": "linux", "config": { "Cmd": ["/bin/tool"] }, "history": history,
            "rootfs": { "type": "layers", "diff_ids": diff_ids }, "x-unknown": { "kept": true },
        });
        let config = store(&layout, CONFIG, config.to_string().as_bytes());
        manifest(&layout, &config, &pick(&layers), json!({ "architecture": architecture, "os": "linux" }))
    };
    let attestation = store(&layout, "application/vnd.in-toto+json", b"{}");
    let config = store(&layout, CONFIG, br#"{"architecture":"unknown","os":"unknown"}"#);
    let unknown = json!({ "architecture": "unknown", "os": "unknown" });
    let entries =
        [image("amd64", &[0, 1, 2]), image("arm64", &[0, 2]), manifest(&layout, &config, &[attestation], unknown)];
    let index = json!({ "schemaVersion": 2, "mediaType": INDEX, "manifests": entries, "annotations": { "a": "b" } });
    let mut entry = store(&layout, INDEX, index.to_string().as_bytes());
    entry["annotations"] = json!({ "org.opencontainers.image.ref.name": "app" });
    let index = json!({ "schemaVersion": 2, "manifests": [entry] });
    fs::write(layout.join("index.json"), index.to_string()).expect("written");
    layout
}

/// Makes an archive of docker save with the layers in a folder: one of them is behind a symbolic link.
pub(crate) fn make_docker_archive(folder: &Path) -> PathBuf {
    let saved = folder.join("saved");
    fs::create_dir_all(saved.join("old")).expect("made");
    for layer in LAYERS {
        fs::copy(folder.join(format!("{layer}.tar")), saved.join(format!("{layer}.tar"))).expect("copied");
    }
    symlink("../one.tar", saved.join("old/layer.tar")).expect("made");
    let diff_ids = LAYERS.map(|layer| {
        let bytes = fs::read(folder.join(format!("{layer}.tar"))).expect("made");
        format!("sha256:{}", sha256_hex(&bytes))
    });
    let config = json!({
        "architecture": "amd64", "os": "linux", "config": {}, "rootfs": { "type": "layers", "diff_ids": diff_ids },
    });
    fs::write(saved.join("config.json"), config.to_string()).expect("written");
    let manifest = json!([{
        "Config": "config.json", "RepoTags": ["example.org/app:v1"], "Layers": ["old/layer.tar", "two.tar", "three.tar"],
    }]);
    fs::write(saved.join("manifest.json"), manifest.to_string()).expect("written");
    let mut tar = Command::new("tar");
    let status = tar.args(["-cf", "saved.tar", "-C", "saved", "."]).current_dir(folder).status();
    assert!(status.expect("there is tar").success());
    folder.join("saved.tar")
}

/// The document that an image of a layout stands for.
pub(crate) fn named(layout: &Path, name: &str) -> Value {
    let index: Value = serde_json::from_slice(&fs::read(layout.join("index.json")).expect("read")).expect("JSON");
    let entries = index["manifests"].as_array().expect("a list");
    let is_named = |entry: &&Value| entry["annotations"]["org.opencontainers.image.ref.name"] == name;
    read(layout, entries.iter().find(is_named).unwrap_or_else(|| panic!("no {name} in {index}")))
}

/// The document that a descriptor refers to.
pub(crate) fn read(layout: &Path, descriptor: &Value) -> Value {
    let path = blob(layout, descriptor);
    let bytes = fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    assert_eq!(descriptor["size"], bytes.len(), "{descriptor}");
    serde_json::from_slice(&bytes).expect("JSON")
}

/// The file that a descriptor refers to.
pub(crate) fn blob(layout: &Path, descriptor: &Value) -> PathBuf {
    let digest = descriptor["digest"].as_str().expect("a digest").strip_prefix("sha256:").expect("SHA-256");
    layout.join("blobs/sha256").join(digest)
}

fn store(layout: &Path, media_type: &str, bytes: &[u8]) -> Value {
    let digest = sha256_hex(bytes);
    fs::write(layout.join("blobs/sha256").join(&digest), bytes).expect("written");
    json!({ "mediaType": media_type, "digest": format!("sha256:{digest}"), "size": bytes.len() })
}

fn manifest(layout: &Path, config: &Value, layers: &[Value], platform: Value) -> Value {
    let manifest = json!({ "schemaVersion": 2, "mediaType": MANIFEST, "config": config, "layers": layers });
    let mut entry = store(layout, MANIFEST, manifest.to_string().as_bytes());
    entry["platform"] = platform;
    entry
}
