//! OCI layouts with one image.

use std::{
    ffi::OsString,
    fs::{self, File},
    path::{Path, PathBuf},
    process::Command,
};

use floe_testkit::manifest::sha256_hex;
use serde_json::{Value, json};

use super::super::remote::program::succeed;
use crate::task_error::{During, Outcome, TaskError};

const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const CONFIG: &str = "application/vnd.oci.image.config.v1+json";
const LAYER: &str = "application/vnd.oci.image.layer.v1.tar+gzip";

/// Makes a layout with an image of these layers, the lowest first: the name of each, and what tar packs.
pub(super) fn make_layout(layout: &Path, layers: &[(&str, Vec<OsString>)]) -> Outcome {
    let blobs = layout.join("blobs/sha256");
    fs::create_dir_all(&blobs)?;
    fs::write(layout.join("oci-layout"), r#"{"imageLayoutVersion":"1.0.0"}"#)?;
    let (mut descriptors, mut diff_ids) = (Vec::new(), Vec::new());
    for (name, packed) in layers {
        eprintln!("packing the layer {name} …");
        let archive = layout.join(format!("{name}.tar"));
        let mut tar = Command::new("tar");
        tar.args(["--create", "--numeric-owner", "--sort=name", "--file"]).arg(&archive).args(packed);
        succeed(&mut tar)?;
        diff_ids.push(digest_of(&archive)?);
        succeed(Command::new("gzip").args(["-f", "-n"]).arg(&archive))?;
        let packed = layout.join(format!("{name}.tar.gz"));
        let (digest, size) = (digest_of(&packed)?, fs::metadata(&packed)?.len());
        fs::rename(packed, blobs.join(digest.trim_start_matches("sha256:")))?;
        descriptors.push(json!({ "mediaType": LAYER, "digest": digest, "size": size }));
    }
    let store = |media_type: &str, value: &Value| -> Outcome<Value> {
        let bytes = value.to_string();
        let digest = sha256_hex(bytes.as_bytes());
        fs::write(blobs.join(&digest), &bytes)?;
        Ok(json!({ "mediaType": media_type, "digest": format!("sha256:{digest}"), "size": bytes.len() }))
    };
    let platform = json!({ "architecture": "amd64", "os": "linux" });
    let config = store(
        CONFIG,
        &json!({
            "architecture": "amd64", "os": "linux", "config": { "Env": ["PATH=/usr/bin:/bin"] },
            "rootfs": { "type": "layers", "diff_ids": diff_ids },
        }),
    )?;
    let manifest = json!({ "schemaVersion": 2, "mediaType": MANIFEST, "config": config, "layers": descriptors });
    let mut entry = store(MANIFEST, &manifest)?;
    entry["platform"] = platform;
    entry["annotations"] = json!({ "org.opencontainers.image.ref.name": "image" });
    fs::write(layout.join("index.json"), json!({ "schemaVersion": 2, "manifests": [entry] }).to_string())?;
    Ok(())
}

/// The files with the layers of the only image in a layout.
pub(super) fn blobs_of(layout: &Path) -> Outcome<Vec<PathBuf>> {
    let read = |path: &Path| -> Outcome<Value> {
        serde_json::from_reader(File::open(path).during(path.display())?).during(path.display())
    };
    let blob = |descriptor: &Value| {
        let digest = descriptor["digest"].as_str().unwrap_or_default();
        layout.join("blobs/sha256").join(digest.trim_start_matches("sha256:"))
    };
    let mut document = read(&layout.join("index.json"))?;
    while let Some(entry) = document["manifests"].get(0) {
        document = read(&blob(entry))?;
    }
    Ok(document["layers"].as_array().map(|layers| layers.iter().map(blob).collect()).unwrap_or_default())
}

/// The digest of a file, with its algorithm.
fn digest_of(path: &Path) -> Outcome<String> {
    let output = Command::new("sha256sum").arg(path).output().during("sha256sum")?;
    let text = String::from_utf8_lossy(&output.stdout);
    let digest = text.split_whitespace().next().filter(|digest| digest.len() == 64);
    Ok(format!("sha256:{}", digest.ok_or_else(|| TaskError::new("sha256sum fails"))?))
}
