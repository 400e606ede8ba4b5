//! Options of all benchmarks: images, peers, rounds.

use std::{
    env,
    path::{Path, PathBuf},
    process::Command,
};

use floe_testkit::{corpus::Format, peer, target_dir, workspace_root};

use super::{
    cold::Cold,
    subject::{Image, SourceTree},
};
use crate::task_error::{During, Outcome, TaskError};

/// Options of all benchmarks.
#[derive(clap::Args)]
pub(super) struct Setting {
    /// Directories to build the image from; several are placed side by side. Copied once to target/bench
    #[arg(long, value_name = "DIR", default_values = ["/usr/share"])]
    tree: Vec<PathBuf>,
    /// Read this image instead of building one. May be repeated
    #[arg(long, value_name = "FILE", conflicts_with_all = ["tree", "mkfs_options"])]
    image: Vec<PathBuf>,
    /// The format of the image
    #[arg(long, value_parser = ["erofs", "squashfs"], default_value = "erofs")]
    format: String,
    /// Options for mkfs.erofs (-zlz4 by default) or mksquashfs. May be repeated; each makes an image of its own
    #[arg(long, value_name = "OPTIONS", allow_hyphen_values = true)]
    mkfs_options: Vec<String>,
    /// Drop only the image's pages, also as root; for a machine with other users
    #[arg(long)]
    image_caches_only: bool,
    #[command(flatten)]
    pub(super) contest: Contest,
}

/// The contenders, the number of rounds, and the output.
#[derive(clap::Args)]
pub(super) struct Contest {
    /// The directory of the peers' programs, if they are not on PATH
    #[arg(long, value_name = "DIR")]
    peers: Option<PathBuf>,
    /// The number of rounds
    #[arg(long, default_value_t = 3)]
    pub(super) rounds: u64,
    /// Only these contenders, by their names in the table
    #[arg(long, value_delimiter = ',')]
    contender: Vec<String>,
    /// Measure this program instead of building Floe
    #[arg(long, value_name = "PROGRAM")]
    floe: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub(super) json: bool,
}

/// An image to be measured, and its origin.
#[derive(Clone, Debug)]
pub(super) struct Subject {
    /// Its title in tables.
    pub(super) title: String,
    /// The image.
    pub(super) image: Image,
    /// The options with which it was made; if unknown, those for other images.
    pub(super) options: String,
}

impl Setting {
    /// The images to be measured.
    pub(super) fn subjects(&self) -> Outcome<Vec<Subject>> {
        if !self.image.is_empty() {
            let given = self.image.iter().map(|path| {
                let image = Image::at(path)?;
                let options = default_options(image.format).to_owned();
                Ok(Subject { title: path.display().to_string(), image, options })
            });
            return given.collect();
        }
        let format = if self.format == "squashfs" { Format::Squashfs } else { Format::Erofs };
        let tree = SourceTree::copy_of(&self.tree)?;
        let mut all_options = self.mkfs_options.clone();
        if all_options.is_empty() {
            all_options.push(default_options(format).to_owned());
        }
        let folders: Vec<String> = self.tree.iter().map(|folder| folder.display().to_string()).collect();
        let made = all_options.into_iter().map(|options| {
            let image = tree.image(format, &options, |name| self.contest.peer(name))?;
            Ok(Subject { title: format!("{} {options} of {}", format.name(), folders.join(" and ")), image, options })
        });
        made.collect()
    }

    /// Drops the caches before a run.
    pub(super) fn drop_caches(&self, image: &Path) -> Outcome {
        Cold::best(self.image_caches_only).drop_caches(image)
    }
}

impl Contest {
    /// The path of a peer.
    pub(super) fn peer(&self, name: &str) -> Result<PathBuf, String> {
        let given = self.peers.as_ref().map(|folder| folder.join(name)).filter(|path| path.is_file());
        given.or_else(|| peer(name)).ok_or(format!("{name}: neither in --peers, nor FLOE_PEERS, nor on PATH"))
    }

    /// Floe in its release build.
    pub(super) fn floe(&self) -> Outcome<PathBuf> {
        if let Some(program) = &self.floe {
            return Ok(program.clone());
        }
        let program = env::var_os("CARGO").unwrap_or("cargo".into());
        let mut command = Command::new(program);
        command.args(["build", "--release", "--package", "floe-cli"]).current_dir(workspace_root());
        if !command.status().during("cargo cannot be run")?.success() {
            return Err(TaskError::new("building Floe failed"));
        }
        Ok(target_dir().join("release/floe"))
    }

    /// Whether a contender takes part.
    pub(super) fn takes(&self, contender: &str) -> bool {
        self.contender.is_empty() || self.contender.iter().any(|name| name == contender)
    }
}

const fn default_options(format: Format) -> &'static str {
    match format {
        Format::Erofs => "-zlz4",
        Format::Squashfs => "-comp zstd",
    }
}
