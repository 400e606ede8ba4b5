//! A container image that contains only the program, and the licences.

use std::{fs, path::Path, process::Command};

use serde_json::json;
use sha2::{Digest, Sha256};

use super::{Architecture, hex, program::Program, run_tool, tree};
use crate::task_error::Outcome;

/// Writes an OCI image archive (OCI image format, "Image Layout"), which podman, skopeo and containerd load.
pub(super) fn make(program: &Program, licences: Option<&Path>, architecture: Architecture, archive: &Path) -> Outcome {
    let work = tempfile::tempdir()?;
    let (root, layout) = (work.path().join("root"), work.path().join("layout"));
    tree::copy(&program.path, &root.join("usr/bin/floe"))?;
    if let Some(licences) = licences {
        tree::copy(licences, &root.join("usr/share/doc/floe/LICENCES.html"))?;
    }
    fs::create_dir_all(root.join("tmp"))?;
    let layer = work.path().join("layer.tar");
    pack(&root, &layer)?;
    let layer = fs::read(&layer)?;
    let mut blobs = Blobs { directory: layout.join("blobs/sha256") };
    fs::create_dir_all(&blobs.directory)?;
    let platform = json!({ "architecture": architecture.container(), "os": "linux" });
    let layer = blobs.add("application/vnd.oci.image.layer.v1.tar", &layer)?;
    let config = json!({
        "architecture": platform["architecture"], "os": platform["os"],
        "config": { "Entrypoint": ["/usr/bin/floe"], "Env": ["PATH=/usr/bin"] },
        "rootfs": { "type": "layers", "diff_ids": [layer["digest"]] },
    });
    let config = blobs.add("application/vnd.oci.image.config.v1+json", config.to_string().as_bytes())?;
    let manifest_type = "application/vnd.oci.image.manifest.v1+json";
    let manifest = json!({ "schemaVersion": 2, "mediaType": manifest_type, "config": config, "layers": [layer] });
    let mut manifest = blobs.add(manifest_type, manifest.to_string().as_bytes())?;
    manifest["platform"] = platform;
    // podman and skopeo read the first name, containerd and Docker the second.
    let name = format!("localhost/floe:{}", env!("CARGO_PKG_VERSION"));
    manifest["annotations"] = json!({ "org.opencontainers.image.ref.name": name, "io.containerd.image.name": name });
    let index = json!({
        "schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json", "manifests": [manifest],
    });
    fs::write(layout.join("index.json"), index.to_string())?;
    fs::write(layout.join("oci-layout"), json!({ "imageLayoutVersion": "1.0.0" }).to_string())?;
    pack(&layout, archive)
}

/// The blobs of a layout, each under its digest.
struct Blobs {
    directory: std::path::PathBuf,
}

impl Blobs {
    /// Stores a blob and describes it.
    fn add(&mut self, media_type: &str, bytes: &[u8]) -> Outcome<serde_json::Value> {
        let digest = hex(&Sha256::digest(bytes));
        fs::write(self.directory.join(&digest), bytes)?;
        Ok(json!({ "mediaType": media_type, "digest": format!("sha256:{digest}"), "size": bytes.len() }))
    }
}

/// Packs the contents of a directory reproducibly.
fn pack(directory: &Path, archive: &Path) -> Outcome {
    let mut tar = Command::new("tar");
    tar.args(["--sort=name", "--owner=0", "--group=0", "--numeric-owner", "--mtime=@0", "-cf"]).arg(archive);
    tar.arg("-C").arg(directory).arg(".");
    run_tool(&mut tar, "apt-get install tar")
}
