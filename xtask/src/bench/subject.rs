//! Images of real and generated trees, kept in `target/bench`.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    process::Command,
};

use floe_testkit::{Tree, corpus::Format, manifest::sha256_hex, target_dir};

use crate::task_error::{During, Outcome, TaskError};

/// The number of entries in the wide directory.
pub(super) const WIDE_ENTRIES: u32 = 20_000;

/// A directory tree to make images from.
#[derive(Clone, Debug)]
pub(super) struct SourceTree {
    /// Its path.
    pub(super) path: PathBuf,
    key: String,
}

/// An image.
#[derive(Clone, Debug)]
pub(super) struct Image {
    /// Its path.
    pub(super) path: PathBuf,
    /// Its format.
    pub(super) format: Format,
    /// The tree from which it was made, if known.
    pub(super) tree: Option<PathBuf>,
}

impl SourceTree {
    /// A copy of some directories side by side, so that the measured data does not change; made once.
    pub(super) fn copy_of(folders: &[PathBuf]) -> Outcome<Self> {
        let folders: Vec<PathBuf> =
            folders.iter().map(|folder| fs::canonicalize(folder).during(folder.display())).collect::<Outcome<_>>()?;
        let names: Vec<&str> = folders.iter().filter_map(|folder| folder.to_str()).collect();
        Self::made_once(&names.join(":"), |path| {
            fs::create_dir(path)?;
            eprintln!("copying {} …", names.join(" and "));
            for folder in &folders {
                let target = if folders.len() == 1 { path.to_path_buf() } else { path.join(flat_name(folder)) };
                let status = Command::new("cp").args(["-a", "--reflink=auto", "-T"]).arg(folder).arg(target).status();
                if !status.during("cp")?.success() {
                    return Err(TaskError::new(format!("{} cannot be copied", folder.display())));
                }
            }
            Ok(())
        })
    }

    /// A directory of [`WIDE_ENTRIES`] small files.
    pub(super) fn wide() -> Outcome<Self> {
        let tree = Tree::wide(WIDE_ENTRIES);
        Self::made_once(&format!("{tree:?}"), |path| Ok(tree.write(path)?))
    }

    /// The directory in `target/bench` for `description`; created if it is missing or incomplete.
    fn made_once(description: &str, make: impl FnOnce(&Path) -> Outcome) -> Outcome<Self> {
        let key = key_of(description);
        let folder = bench_folder()?;
        let path = folder.join(format!("tree-{key}"));
        if !path.exists() {
            let unfinished = folder.join(format!("unfinished-{key}"));
            if unfinished.exists() {
                fs::remove_dir_all(&unfinished)?;
            }
            make(&unfinished)?;
            fs::rename(&unfinished, &path)?;
        }
        Ok(Self { path, key })
    }

    /// An image of this tree, made once by the program that `find` finds.
    pub(super) fn image(
        &self,
        format: Format,
        options: &str,
        find: impl FnOnce(&str) -> Result<PathBuf, String>,
    ) -> Outcome<Image> {
        let name = match format {
            Format::Erofs => "mkfs.erofs",
            Format::Squashfs => "mksquashfs",
        };
        let program = find(name).map_err(TaskError::new)?;
        let key = key_of(&format!("{} {name} {options}", self.key));
        let path = bench_folder()?.join(format!("image-{key}.{}", format.name()));
        if !path.exists() {
            let unfinished = path.with_extension("unfinished");
            let _ = fs::remove_file(&unfinished);
            let mut command = Command::new(&program);
            match format {
                Format::Erofs => {
                    command.arg("--quiet").args(options.split_whitespace()).arg(&unfinished).arg(&self.path);
                }
                Format::Squashfs => {
                    command.arg(&self.path).arg(&unfinished).args(["-noappend", "-no-progress", "-quiet"]);
                    command.args(options.split_whitespace());
                }
            }
            eprintln!("{name} {options} …");
            let output = command.output().during(program.display())?;
            if !output.status.success() {
                let words = String::from_utf8_lossy(&output.stderr).into_owned();
                return Err(TaskError::new(format!("{name} fails: {}", words.trim())));
            }
            // Dirty pages cannot be dropped from the cache.
            File::open(&unfinished)?.sync_all()?;
            fs::rename(&unfinished, &path)?;
        }
        Ok(Image { path, format, tree: Some(self.path.clone()) })
    }
}

impl Image {
    /// An existing image. Its first bytes determine its format.
    pub(super) fn at(path: &Path) -> Outcome<Self> {
        let bytes = fs::File::open(path).and_then(|file| {
            let mut bytes = [0; 4];
            std::os::unix::fs::FileExt::read_exact_at(&file, &mut bytes, 0).map(|()| bytes)
        });
        let format = if bytes.during(path.display())? == *b"hsqs" { Format::Squashfs } else { Format::Erofs };
        Ok(Self { path: path.to_path_buf(), format, tree: None })
    }
}

fn bench_folder() -> Outcome<PathBuf> {
    let folder = target_dir().join("bench");
    fs::create_dir_all(&folder)?;
    Ok(folder)
}

fn key_of(description: &str) -> String {
    sha256_hex(description.as_bytes())[..16].to_owned()
}

/// `/usr/lib` as `usr-lib`.
fn flat_name(folder: &Path) -> String {
    folder.to_string_lossy().trim_start_matches('/').replace('/', "-")
}
