//! A registry on this machine.

use std::{
    fs,
    net::{SocketAddr, TcpListener, TcpStream},
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use floe_testkit::target_dir;

use super::{super::setting::Contest, program::succeed};
use crate::task_error::{During, Outcome, TaskError};

/// How long the registry may take to listen.
const PATIENCE: Duration = Duration::from_secs(30);

/// A registry on this machine, with the images that were pushed to it. Dropping this ends it.
pub(in crate::bench) struct Registry {
    pub(in crate::bench) address: SocketAddr,
    store: Store,
    server: Child,
}

impl Registry {
    /// Starts docker-registry.
    pub(in crate::bench) fn serve(contest: &Contest) -> Outcome<Self> {
        let folder = target_dir().join("bench");
        fs::create_dir_all(&folder)?;
        Self::start(contest, Store::Temporary(tempfile::tempdir_in(folder)?))
    }

    /// Starts docker-registry with the images of earlier runs, which are in `folder`.
    pub(in crate::bench) fn serve_from(contest: &Contest, folder: &Path) -> Outcome<Self> {
        fs::create_dir_all(folder)?;
        Self::start(contest, Store::Kept(folder.to_owned()))
    }

    fn start(contest: &Contest, store: Store) -> Outcome<Self> {
        let program = contest.peer("docker-registry").map_err(TaskError::new)?;
        let address = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
        let configuration = format!(
            "version: 0.1\nlog: {{level: error}}\nstorage: {{filesystem: {{rootdirectory: {}}}}}\nhttp: {{addr: '{address}'}}\n",
            store.path().display()
        );
        let file = store.path().join("config.yml");
        fs::write(&file, configuration)?;
        let mut command = Command::new(&program);
        command.arg("serve").arg(&file).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let registry = Self { address, store, server: command.spawn().during(program.display())? };
        let started = Instant::now();
        while TcpStream::connect(address).is_err() {
            if started.elapsed() > PATIENCE {
                return Err(TaskError::new(format!("{} does not listen", program.display())));
            }
            thread::sleep(Duration::from_millis(20));
        }
        Ok(registry)
    }

    /// Pushes an image as `image:TAG`.
    pub(in crate::bench) fn push(&self, floe: &Path, image: &Path, tag: &str) -> Outcome {
        eprintln!("pushing {} …", image.display());
        let mut push = Command::new(floe);
        push.args(["push", "--quiet"]).arg(image).arg(format!("oci://{}/image:{tag}", self.address));
        succeed(&mut push)
    }

    /// Whether the repository `image` has a tag.
    pub(in crate::bench) fn has_tag(&self, tag: &str) -> bool {
        self.store.path().join("docker/registry/v2/repositories/image/_manifests/tags").join(tag).is_dir()
    }

    /// Links what was pushed into the directory of a [`WebServer`](super::server::WebServer), which answers sooner: each blob under
    /// its digest, and what `image:TAG` names under the tag.
    pub(in crate::bench) fn link_into(&self, folder: &Path, tag: &str) -> Outcome {
        let root = self.store.path().join("docker/registry/v2");
        for prefix in fs::read_dir(root.join("blobs/sha256"))?.flatten() {
            for blob in fs::read_dir(prefix.path())?.flatten() {
                symlink(blob.path().join("data"), folder.join(blob.file_name()))?;
            }
        }
        let link = root.join("repositories/image/_manifests/tags").join(tag).join("current/link");
        let digest = fs::read_to_string(&link).during(link.display())?;
        Ok(symlink(digest.trim_start_matches("sha256:"), folder.join(tag))?)
    }

    /// A directory for the files of a run.
    pub(in crate::bench) fn folder(&self) -> &Path {
        self.store.path()
    }
}

/// The directory of a registry.
enum Store {
    Temporary(tempfile::TempDir),
    Kept(PathBuf),
}

impl Store {
    fn path(&self) -> &Path {
        match self {
            Self::Temporary(folder) => folder.path(),
            Self::Kept(folder) => folder,
        }
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}
