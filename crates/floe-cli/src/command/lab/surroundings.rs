//! Options that most measurements share: images (by default that of `floe demo`), variants, peers, load.

use std::{
    fs,
    path::{Path, PathBuf},
};

use floe_image::ShownName;
use floe_lab::{
    StageOptions,
    launch::{ImageKind, Programs, Variant},
    load::LoadKind,
    machine::{Change, PendingChange, PrivateDirectory, Undo},
};

use super::failed;
use crate::{command::demo, fail::Fail};

/// The subject of a measurement, and its environment.
#[derive(clap::Args)]
pub(super) struct Surroundings {
    /// The image [default: the image of floe demo]
    #[arg(long, value_name = "IMAGE")]
    image: Option<PathBuf>,
    /// A second image; each variant is measured with both
    #[arg(long, value_name = "IMAGE")]
    image_b: Option<PathBuf>,
    /// A way to mount, the baseline first: `[NAME=]READER[:OPTIONS][@IMAGE]`; may be repeated
    ///
    /// READER is floe, kernel (with the option loop: through a loop device), erofsfuse, squashfuse_ll, or directory.
    /// For directory, IMAGE is a directory, which is used as it is.
    #[arg(long = "variant", value_name = "VARIANT")]
    variants: Vec<String>,
    /// Load during the measurement: cpu=8x90%, randread=FILE, memory=40M or fio:JOB.fio; may be repeated
    #[arg(long, value_name = "LOAD")]
    load: Vec<LoadKind>,
    /// Run without load, even if a predefined comparison has one
    #[arg(long, conflicts_with = "load")]
    no_load: bool,
    /// The path of a program: NAME=PATH; NAME is floe, erofsfuse or squashfuse_ll
    #[arg(long = "peer", value_name = "NAME=PATH")]
    peers: Vec<String>,
    /// Leave autogroup on. By default it is off during the run, as on Android, because it shields the launch from the
    /// load
    #[arg(long)]
    keep_autogroup: bool,
}

impl Surroundings {
    pub(super) fn programs(&self) -> Result<Programs, Fail> {
        let mut programs = Programs::default();
        for peer in &self.peers {
            programs.set(peer).map_err(failed)?;
        }
        Ok(programs)
    }

    /// The options of the measurement's environment. `usual` is the load if the user names none.
    pub(super) fn stage(&self, usual: Option<&str>) -> Result<StageOptions, Fail> {
        let mut load = self.load.clone();
        if let Some(usual) = usual.filter(|_| load.is_empty() && !self.no_load) {
            load.push(usual.parse().map_err(failed)?);
        }
        Ok(StageOptions { load, keep_autogroup: self.keep_autogroup, ..StageOptions::default() })
    }

    pub(super) fn has_second_image(&self) -> bool {
        self.image_b.is_some()
    }

    /// The image of `floe demo` as a temporary file, if the user names no image.
    pub(super) fn demo_image(&self) -> Result<Option<DemoImage>, Fail> {
        self.image.is_none().then(DemoImage::write).transpose()
    }

    /// The requested variants; by default those of `preset`, or else Floe, the kernel and the installed peers.
    pub(super) fn variants(&self, demo: Option<&DemoImage>, preset: &[&str]) -> Result<Vec<Variant>, Fail> {
        let demo = demo.map(DemoImage::path);
        let Some(image) = self.image.as_deref().or(demo) else {
            return Err(Fail::usage("no image: give it with --image"));
        };
        let kind = ImageKind::of(image).map_err(failed)?;
        let chosen: Vec<String> = match (self.variants.as_slice(), preset) {
            ([], []) => usual(kind, &self.programs()?),
            ([], preset) => preset.iter().map(|&text| text.to_owned()).collect(),
            (given, _) => given.to_vec(),
        };
        let over = |image: &Path, mark: &str| -> Result<Vec<Variant>, Fail> {
            let parsed = chosen.iter().map(|text| {
                let mut variant = Variant::parse(text, image).map_err(failed)?;
                variant.name.push_str(mark);
                Ok(variant)
            });
            parsed.collect()
        };
        let Some(second) = &self.image_b else { return over(image, "") };
        let (first, second) = (over(image, " (a)")?, over(second, " (b)")?);
        Ok(std::iter::zip(first, second).flat_map(|(first, second)| [first, second]).collect())
    }
}

/// The default variants: Floe as the workqueue model and with its defaults, the kernel, and the installed peer for this
/// format.
fn usual(kind: ImageKind, programs: &Programs) -> Vec<String> {
    let mut variants = vec!["shared=floe:workers=shared,priority=normal".to_owned(), "floe".to_owned()];
    let (kernel, peer, program) = match kind {
        ImageKind::Erofs => ("kernel=kernel:loop", "erofsfuse", &programs.erofsfuse),
        ImageKind::Squashfs => ("kernel", "squashfuse_ll", &programs.squashfuse),
    };
    if rustix::process::geteuid().is_root() {
        variants.push(kernel.to_owned());
    }
    if is_there(program) {
        variants.push(peer.to_owned());
    }
    variants
}

/// Whether a program exists at its path or on PATH.
fn is_there(program: &Path) -> bool {
    if program.components().count() > 1 {
        return program.exists();
    }
    let folders = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&folders).any(|folder| folder.join(program).exists())
}

/// A file with the image. It is removed when the value is dropped, or when the process dies.
pub(super) struct DemoImage {
    path: PathBuf,
    _change: PendingChange,
    /// Removed after the file.
    _directory: PrivateDirectory,
}

impl DemoImage {
    /// Writes the file.
    ///
    /// # Errors
    /// The file cannot be written.
    fn write() -> Result<Self, Fail> {
        let undo = Undo::new().map_err(failed)?;
        let directory = PrivateDirectory::create(&undo).map_err(failed)?;
        let path = directory.path().join("demo.erofs");
        let change = undo.record(Change::File { path: path.clone() }).map_err(failed)?;
        fs::write(&path, demo::IMAGE)
            .map_err(|error| Fail::failed(format!("cannot write {}: {error}", path.shown())))?;
        Ok(Self { path, _change: change, _directory: directory })
    }

    fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for DemoImage {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}
