//! The stargz snapshotter: images that it mounts, and its place in a node.

use std::{
    fs,
    path::{Path, PathBuf},
};

use serde_json::json;

use super::{
    image::ContainerImage,
    launched::Launched,
    node::{Node, quoted, remove},
};
use crate::task_error::{During, Outcome, TaskError};

/// The program.
const PROGRAM: &str = "containerd-stargz-grpc";

/// The stargz snapshotter, if it is at hand.
pub(super) struct Stargz(pub(super) PathBuf);

impl Stargz {
    /// The tag of the image that is optimised for a program.
    pub(super) fn tag(program: Launched) -> String {
        format!("stargz-{}", program.name())
    }

    /// Makes an image of the snapshotter's format, with a recorded launch of a program, and pushes it, once for all runs.
    pub(super) fn prepare(&self, floe: &Path, image: &ContainerImage, program: Launched) -> Outcome {
        let tag = Self::tag(program);
        if image.registry.has_tag(&tag) {
            return Ok(());
        }
        eprintln!("optimising the image for the stargz snapshotter …");
        let reference = |tag: &str| format!("{}/image:{tag}", image.registry.address);
        let command = program.command()?;
        let (entrypoint, arguments) = command.split_at(1);
        let options = quoted(&[
            format!("--wait-on-line={}", program.first_words()),
            format!("--entrypoint={}", json!(entrypoint)),
            format!("--args={}", json!(arguments)),
        ]);
        let (source, target) = (reference(ContainerImage::ARCHIVES), reference(&tag));
        let script = format!(
            "start_containerd\npull overlayfs {source}\nwait_for_go\n\
             ctr-remote images optimize --oci {options} {source} {target} >&2 < /dev/null\n\
             ctr-remote images push --plain-http {target} >&2 < /dev/null\necho ended"
        );
        let folder = image.folder().join("node");
        remove(&folder)?;
        fs::create_dir_all(&folder)?;
        let mut node = Node::start(&folder, floe, &script)?;
        node.go()?;
        let ended = node.wait_for("ended");
        drop(node);
        if ended.is_err() {
            let log = fs::read_to_string(folder.join("log")).unwrap_or_default();
            return Err(TaskError::new(format!("ctr-remote: {}", log.lines().last().unwrap_or_default())));
        }
        remove(&folder)
    }

    /// Puts the program into the directory of a node, and returns the line of a script that starts it.
    pub(super) fn install(&self, folder: &Path, registry: &str) -> Outcome<String> {
        let target = folder.join(PROGRAM);
        fs::copy(&self.0, &target).during(self.0.display())?;
        Ok(format!("start_stargz {registry}"))
    }

    /// The program among the peers.
    pub(super) const fn program() -> &'static str {
        PROGRAM
    }
}
