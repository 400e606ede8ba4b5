//! `floe convert` with a real registry.

use std::{fs, path::Path};

use floe_testkit::{
    Random,
    manifest::sha256_hex,
    skip::{self, Need},
};
use serde_json::Value;

use super::remote::Cache;
use crate::support::{
    container_image::{blob, make_layers, make_layout},
    program::{Place, floe, run, told, umount},
    servers::RealServer,
};

fn convert(folder: &Path, source: &str, target: &str) -> Value {
    let output = run(floe().args(["convert", "--json", source, target]).current_dir(folder));
    assert!(output.status.success(), "{source} {target}: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("JSON")
}

#[test]
fn converted_images_are_mounted_from_a_registry() {
    if !skip::ready(&[Need::Root, Need::Fuse, Need::Peer("docker-registry")]) {
        return;
    }
    let server = RealServer::registry();
    let scene = tempfile::tempdir().expect("a folder");
    let folder = scene.path();
    make_layers(folder);
    make_layout(folder);
    let url = |name: &str| format!("oci://localhost:{}/{name}", server.port);
    let first = convert(folder, "layout", &url("app:v1"));
    // Three layers, their originals, and the attestation.
    assert_eq!((first["layers_built"].as_u64(), first["blobs_stored"].as_u64()), (Some(3), Some(7)), "{first}");
    let again = convert(folder, "layout", &url("app:v1"));
    assert_eq!((again["layers_built"].as_u64(), again["blobs_stored"].as_u64()), (Some(0), Some(0)), "{again}");
    assert_eq!(first["digest"], again["digest"]);
    // Another repository of the registry shares all layers.
    let moved = convert(folder, &url("app:v1"), &url("team/other:v2"));
    assert_eq!((moved["layers_reused"].as_u64(), moved["blobs_stored"].as_u64()), (Some(3), Some(0)), "{moved}");
    assert_eq!(first["digest"], moved["digest"]);
    // Each byte of a layer is verified when it is read in place.
    let cache = Cache::new();
    for (layer, file, len) in [(0, "bin/tool", 300_000), (1, "opaque/new", 100), (2, "opaque/third", 70_000)] {
        let place = Place::new();
        let mut mount = floe();
        mount.args(["mount", "--daemon", "--require-verified"]).args(cache.options());
        let (code, errors) = told(&run(mount.arg(format!("{}#{layer}", url("team/other:v2"))).arg(&place.path)));
        assert_eq!(code, Some(0), "{errors}");
        assert_eq!(fs::metadata(place.file(file)).expect("it is there").len(), len);
        assert_eq!(fs::read(place.file(file)).expect("read").len() as u64, len);
        assert_eq!(umount(&place.path).0, Some(0));
    }
    // Back into a layout.
    let back = convert(folder, &url("app:v1"), "back");
    assert_eq!(back["layers_built"].as_u64(), Some(3), "{back}");
}

#[test]
fn converted_manifests_refer_to_the_original_ones() {
    if !skip::ready(&[Need::Root, Need::Peer("docker-registry")]) {
        return;
    }
    let server = RealServer::registry();
    let scene = tempfile::tempdir().expect("a folder");
    let folder = scene.path();
    make_layers(folder);
    let layout = make_layout(folder);
    let url = |name: &str| format!("oci://localhost:{}/{name}", server.port);
    let convert = |source: &str, target: &str, options: &[&str]| {
        let output = run(floe().args(["convert", "--json", source, target]).args(options).current_dir(folder));
        assert!(output.status.success(), "{source} {target}: {}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice::<Value>(&output.stdout).expect("JSON")
    };
    let document = |repository: &str, name: &str| {
        let path = server.path().join("docker/registry/v2/repositories").join(repository).join("_manifests/tags");
        let link = fs::read_to_string(path.join(name).join("current/link")).ok()?;
        let digest = link.trim().strip_prefix("sha256:").expect("SHA-256").to_owned();
        let blob = server.path().join("docker/registry/v2/blobs/sha256").join(&digest[..2]).join(digest).join("data");
        fs::read(blob).ok()
    };
    let digest = |bytes: &[u8]| format!("sha256:{}", sha256_hex(bytes));
    // A copy has the index of the source.
    let first = convert("layout", &url("app:v1"), &["--referrers"]);
    let index = document("app", "v1").expect("stored");
    assert_eq!(index, fs::read(blob(&layout, &index_entry(&layout))).expect("there"));
    assert_eq!(
        (first["digest"].as_str(), first["layers_built"].as_u64()),
        (Some(&*digest(&index)), Some(3)),
        "{first}"
    );
    let manifests: Value = serde_json::from_slice(&index).expect("JSON");
    let subject = manifests["manifests"][0]["digest"].as_str().expect("a digest");
    let list: Value =
        serde_json::from_slice(&document("app", &subject.replace(':', "-")).expect("listed")).expect("JSON");
    let twins: Vec<&Value> = list["manifests"].as_array().expect("a list").iter().collect();
    assert_eq!((twins.len(), &twins[0]["artifactType"]), (1, &"application/vnd.floe.erofs.image.v1".into()), "{list}");
    // An image that is the target, too, keeps its index, also if that is not the one under the tag any more.
    for name in ["app:v1".to_owned(), format!("app@{}", digest(&index))] {
        let again = convert(&url(&name), &url(&name), &["--referrers"]);
        assert_eq!((again["layers_built"].as_u64(), again["blobs_stored"].as_u64()), (Some(0), Some(0)), "{again}");
        assert_eq!((&again["digest"], document("app", "v1")), (&first["digest"], Some(index.clone())));
    }
    let plain = convert(&url("app:v1"), &url("app:plain"), &["--referrers", "--compress", "none"]);
    assert_eq!((plain["layers_built"].as_u64(), document("app", "plain")), (Some(3), Some(index)), "{plain}");
    // Other places and options are refused.
    for (target, options, expected) in [
        ("other", &["--referrers"][..], "other: only registries find manifests"),
        (
            &url("app@sha256:0000000000000000000000000000000000000000000000000000000000000000"),
            &["--referrers"],
            "under a tag",
        ),
        (&url("app:v1"), &["--referrers", "--merged"], "cannot be used with"),
        (&url("app:v1"), &["--referrers", "--only-converted"], "cannot be used with"),
    ] {
        let (code, errors) = told(&run(floe().args(["convert", "layout", target]).args(options).current_dir(folder)));
        assert!(code == Some(2) && errors.contains(expected), "{target} {options:?}: {code:?} {errors}");
    }
}

/// The entry of a layout for its only image.
fn index_entry(layout: &Path) -> Value {
    let index: Value = serde_json::from_slice(&fs::read(layout.join("index.json")).expect("read")).expect("JSON");
    index["manifests"][0].clone()
}

#[test]
fn layers_have_launch_bundles_of_their_own() {
    if !skip::ready(&[Need::Root, Need::Fuse, Need::Peer("docker-registry")]) {
        return;
    }
    let server = RealServer::registry();
    let scene = tempfile::tempdir().expect("a folder");
    let folder = scene.path();
    // Layers of one chunk have no bundle.
    for name in ["one/bin/noise", "two/opaque/noise"] {
        fs::create_dir_all(folder.join(name).parent().expect("a folder")).expect("made");
        fs::write(folder.join(name), Random::new(1).noise(100_000)).expect("written");
    }
    make_layers(folder);
    make_layout(folder);
    let recorded = "# floe profile 2\n0 300000 /bin/tool\nmissing /opaque/absent\nname /opaque/new\n0 100 /opaque/new\nmissing /etc/absent\n";
    fs::write(folder.join("profile"), recorded).expect("written");
    let url = |name: &str| format!("oci://localhost:{}/{name}", server.port);
    let convert = |source: &str, target: &str| {
        let mut convert = floe();
        convert.args(["convert", "--json", "--platform", "linux/amd64", "--profile", "profile", source, target]);
        let output = run(convert.current_dir(folder));
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice::<Value>(&output.stdout).expect("JSON")
    };
    let plain = self::convert(folder, "layout", &url("app:plain"));
    let first = convert("layout", &url("app:v1"));
    assert_ne!(plain["digest"], first["digest"]);
    let again = convert("layout", &url("app:v1"));
    assert_eq!((again["layers_reused"].as_u64(), again["blobs_stored"].as_u64()), (Some(3), Some(0)), "{again}");
    assert_eq!(first["digest"], again["digest"]);
    let moved = convert(&url("app:v1"), &url("team/other:v2"));
    assert_eq!((moved["layers_reused"].as_u64(), moved["blobs_stored"].as_u64()), (Some(3), Some(0)), "{moved}");
    for (layer, steps, file) in [(0, 3, "bin/tool"), (1, 3, "opaque/new"), (2, 0, "turns")] {
        let (cache, place) = (Cache::new(), Place::new());
        let mut mount = floe();
        mount
            .args(["mount", "--daemon", "--require-verified", "-o", "front=fuse,launch-wait=60s"])
            .args(cache.options());
        let (code, errors) = told(&run(mount.arg(format!("{}#{layer}", url("team/other:v2"))).arg(&place.path)));
        assert_eq!(code, Some(0), "{errors}");
        let output = run(floe().args(["status", "--json"]).arg(&place.path));
        let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        let launch = report.get("mounts").map_or(&report, |mounts| &mounts[0])["launch"].clone();
        // Steps of other layers are left out.
        let expected = if steps > 0 { "replayed" } else { "none" };
        assert_eq!((&launch["state"], &launch["steps"]), (&expected.into(), &steps.into()), "{report:#}");
        assert!(fs::read(place.file(file)).is_ok_and(|bytes| !bytes.is_empty()), "{file}");
        assert_eq!(umount(&place.path).0, Some(0));
    }
}
