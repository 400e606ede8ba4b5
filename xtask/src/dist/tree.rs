//! The files that a package installs, as a tree.

use std::{
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::Command,
};

use floe_testkit::{target_dir, workspace_root};

use super::{point, run_tool, static_program::StaticProgram};
use crate::task_error::{During, Outcome, TaskError};

/// The names of other programs that the program replaces.
const DROP_IN_NAMES: [&str; 7] =
    ["mkfs.erofs", "fsck.erofs", "dump.erofs", "erofsfuse", "squashfuse", "squashfuse_ll", "unsquashfs"];
/// The helper names that mount(8) looks for.
const MOUNT_NAMES: [&str; 2] = ["mount.floe", "mount.fuse.floe"];
/// Shells, and the directories below `/usr` where they look for completions.
const SHELLS: [(&str, &str); 3] = [
    ("bash", "share/bash-completion/completions/floe"),
    ("zsh", "share/zsh/vendor-completions/_floe"),
    ("fish", "share/fish/vendor_completions.d/floe.fish"),
];

/// The program with its manual pages, completions and links, in a tree for `/usr`.
pub(super) struct InstalledTree {
    path: PathBuf,
}

impl InstalledTree {
    /// Creates the tree, and replaces an earlier one. Packagers find it in `target/installed/floe`.
    pub(super) fn make(program: &StaticProgram, path: &Path) -> Outcome<Self> {
        if path.exists() {
            fs::remove_dir_all(path).during(path.display())?;
        }
        let documents = path.join("share/doc/floe");
        fs::create_dir_all(&documents)?;
        copy(&program.path, &path.join("bin/floe"))?;
        for name in ["README.md", "CHANGELOG.md", "LICENSE-APACHE", "LICENSE-MIT"] {
            copy(&workspace_root().join(name), &documents.join(name))?;
        }
        let packaging = workspace_root().join("packaging");
        copy(&packaging.join("grafana-dashboard.json"), &path.join("share/floe/grafana-dashboard.json"))?;
        copy(&packaging.join("floe-exporter.service"), &path.join("lib/systemd/system/floe-exporter.service"))?;
        link_all(&path.join("sbin"), "../bin/floe", &MOUNT_NAMES)?;
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
fn described(program: &StaticProgram, path: &Path) -> Outcome {
    let kept = target_dir().join("dist/described");
    if program.runs_here() {
        if kept.exists() {
            fs::remove_dir_all(&kept)?;
        }
        let manual = kept.join("share/man/man1");
        let program = &program.path;
        run_tool(Command::new(program).arg("manual").arg(&manual), "")?;
        for (shell, place) in SHELLS {
            let output = Command::new(program).args(["completions", shell]).output()?;
            let place = kept.join(place);
            fs::create_dir_all(place.parent().unwrap_or(&kept))?;
            fs::write(place, output.stdout)?;
        }
        for page in fs::read_dir(&manual)? {
            run_tool(Command::new("gzip").arg("-9n").arg(page?.path()), "apt-get install gzip")?;
        }
        let drop_ins = kept.join("share/floe/man");
        fs::create_dir_all(&drop_ins)?;
        for name in DROP_IN_NAMES {
            let page = format!("{name}.1.gz");
            fs::rename(manual.join(&page), drop_ins.join(&page)).during(page)?;
        }
    }
    if !kept.exists() {
        return Err(TaskError::new("manual pages come from a program that runs here: name its architecture first"));
    }
    run_tool(Command::new("cp").args(["-r"]).arg(kept.join("share")).arg(path), "")
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
