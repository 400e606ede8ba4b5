//! The files that a package installs, as a tree, and the container image with them.

use std::{
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::Command,
};

use floe_testkit::workspace_root;
use serde_json::json;
use sha2::{Digest, Sha256};

use super::{Architecture, hex, installed, point, program::Program, run_tool, tree};
use crate::task_error::{During, Outcome, TaskError};

/// The names of other programs that the program replaces.
const DROP_IN_NAMES: [&str; 11] = [
    "mkfs.erofs",
    "fsck.erofs",
    "dump.erofs",
    "erofsfuse",
    "squashfuse",
    "squashfuse_ll",
    "unsquashfs",
    "mksquashfs",
    "sqfstar",
    "sqfs2tar",
    "tar2sqfs",
];
/// The helper names that mount(8) looks for.
const MOUNT_NAMES: [&str; 2] = ["mount.floe", "mount.fuse.floe"];
/// The helper that Podman and CRI-O call with credentials, in `/usr/libexec`.
const AUTH_NAMES: [&str; 1] = ["floe-store-auth"];
/// Shells, and the directories below `/usr` where they look for completions.
const SHELLS: [(&str, &str); 3] = [
    ("bash", "share/bash-completion/completions/floe"),
    ("zsh", "share/zsh/vendor-completions/_floe"),
    ("fish", "share/fish/vendor_completions.d/floe.fish"),
];

/// The units of systemd.
const UNITS: [&str; 4] = ["floe-exporter.service", "floe-users.socket", "floe.service", "floe.socket"];

/// The program with its manual pages, completions and links, in a tree for `/usr`.
pub(super) struct InstalledTree {
    path: PathBuf,
}

impl InstalledTree {
    /// Creates the tree, and replaces an earlier one. Packagers find it in `target/installed/floe`.
    pub(super) fn make(program: &Program, licences: Option<&Path>, path: &Path) -> Outcome<Self> {
        if path.exists() {
            fs::remove_dir_all(path).during(path.display())?;
        }
        let documents = path.join("share/doc/floe");
        fs::create_dir_all(&documents)?;
        copy(&program.path, &path.join("bin/floe"))?;
        for name in ["README.md", "CHANGELOG.md", "LICENSE-APACHE", "LICENSE-MIT"] {
            copy(&workspace_root().join(name), &documents.join(name))?;
        }
        if let Some(licences) = licences {
            copy(licences, &documents.join("LICENCES.html"))?;
        }
        let packaging = workspace_root().join("packaging");
        copy(&packaging.join("grafana-dashboard.json"), &path.join("share/floe/grafana-dashboard.json"))?;
        for unit in UNITS {
            copy(&packaging.join(unit), &path.join("lib/systemd/system").join(unit))?;
        }
        link_all(&path.join("sbin"), "../bin/floe", &MOUNT_NAMES)?;
        link_all(&path.join("libexec"), "../bin/floe", &AUTH_NAMES)?;
        link_all(&path.join("lib/floe/bin"), "../../../bin/floe", &DROP_IN_NAMES)?;
        described(program, path)?;
        point("floe", path)?;
        Ok(Self { path: path.to_owned() })
    }

    /// Packs the tree reproducibly.
    pub(super) fn archive(&self, archive: &Path) -> Outcome {
        pack(&self.path, archive)
    }
}

/// Lets the program write its manual pages and completions. A program for another processor cannot run here; the files then
/// come from the program for this processor, which was built before.
fn described(program: &Program, path: &Path) -> Outcome {
    let kept = installed("described")?;
    if program.runs_here() {
        if kept.exists() {
            fs::remove_dir_all(&kept)?;
        }
        write_manual(&program.path, &kept.join("share"))?;
        for (shell, place) in SHELLS {
            write_completions(&program.path, shell, "floe", &kept.join(place))?;
            for name in DROP_IN_NAMES {
                let place = kept.join("share/floe/completions").join(format!("{name}.{shell}"));
                write_completions(&program.path, shell, name, &place)?;
            }
        }
    }
    if !kept.exists() {
        return Err(TaskError::new("manual pages come from a program that runs here: name its architecture first"));
    }
    run_tool(Command::new("cp").args(["-r"]).arg(kept.join("share")).arg(path), "")
}

/// Writes the manual pages. Those of the drop-in names go to `floe/man`, from where alternatives link to them.
fn write_manual(program: &Path, share: &Path) -> Outcome {
    let pages = share.join("man/pages");
    run_tool(Command::new(program).arg("manual").arg(&pages), "")?;
    for page in fs::read_dir(&pages)? {
        let page = page?.path();
        let (name, section) = (page.file_stem().unwrap_or_default(), page.extension().unwrap_or_default());
        let is_drop_in = DROP_IN_NAMES.iter().any(|drop_in| *drop_in == name);
        let directory = if is_drop_in {
            share.join("floe/man")
        } else {
            share.join("man").join(format!("man{}", section.display()))
        };
        fs::create_dir_all(&directory)?;
        let target = directory.join(page.file_name().unwrap_or_default());
        fs::rename(&page, &target).during(page.display())?;
        run_tool(Command::new("gzip").arg("-9n").arg(target), "apt-get install gzip")?;
    }
    fs::remove_dir(&pages).during(pages.display())
}

/// Writes the completions of a program for a shell.
fn write_completions(program: &Path, shell: &str, name: &str, place: &Path) -> Outcome {
    let output = Command::new(program).args(["completions", shell, name]).output()?;
    if !output.status.success() {
        return Err(TaskError::new(format!("floe completions {shell} {name} failed, {}", output.status)));
    }
    fs::create_dir_all(place.parent().unwrap_or(Path::new("/")))?;
    fs::write(place, output.stdout).during(place.display())
}

/// Packs a directory under its name, reproducibly.
pub(super) fn pack(directory: &Path, archive: &Path) -> Outcome {
    let name = directory.file_name().unwrap_or_default();
    let mut tar = Command::new("tar");
    tar.args(["--sort=name", "--owner=0", "--group=0", "--numeric-owner", "--mtime=@0", "-czf"]).arg(archive);
    tar.arg("-C").arg(directory.parent().unwrap_or(Path::new("."))).arg(name);
    run_tool(&mut tar, "apt-get install tar")
}

/// Copies a file, and creates its target directory.
pub(super) fn copy(from: &Path, to: &Path) -> Outcome {
    fs::create_dir_all(to.parent().unwrap_or(Path::new("/")))?;
    fs::copy(from, to).during(from.display())?;
    Ok(())
}

fn link_all(directory: &Path, target: &str, names: &[&str]) -> Outcome {
    fs::create_dir_all(directory)?;
    for name in names {
        symlink(target, directory.join(name))?;
    }
    Ok(())
}

/// Writes an OCI image archive (OCI image format, "Image Layout"), which podman, skopeo and containerd load.
pub(super) fn make_container_image(
    program: &Program,
    licences: Option<&Path>,
    architecture: Architecture,
    archive: &Path,
) -> Outcome {
    let work = tempfile::tempdir()?;
    let (root, layout) = (work.path().join("root"), work.path().join("layout"));
    tree::copy(&program.path, &root.join("usr/bin/floe"))?;
    if let Some(licences) = licences {
        tree::copy(licences, &root.join("usr/share/doc/floe/LICENCES.html"))?;
    }
    fs::create_dir_all(root.join("tmp"))?;
    let layer = work.path().join("layer.tar");
    pack_contents(&root, &layer)?;
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
    pack_contents(&layout, archive)
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
fn pack_contents(directory: &Path, archive: &Path) -> Outcome {
    let mut tar = Command::new("tar");
    tar.args(["--sort=name", "--owner=0", "--group=0", "--numeric-owner", "--mtime=@0", "-cf"]).arg(archive);
    tar.arg("-C").arg(directory).arg(".");
    run_tool(&mut tar, "apt-get install tar")
}
