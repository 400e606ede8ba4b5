//! `floe convert` with a real registry.

use std::{fs, path::Path};

use floe_testkit::{
    Random,
    skip::{self, Need},
};
use serde_json::Value;

use super::remote::Cache;
use crate::support::{
    container_image::{make_layers, make_layout},
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
