//! A registry on this machine.

use std::{
    fs,
    net::{SocketAddr, TcpListener, TcpStream},
    path::Path,
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
pub(super) struct Registry {
    pub(super) address: SocketAddr,
    store: tempfile::TempDir,
    server: Child,
}

impl Registry {
    /// Starts docker-registry.
    pub(super) fn serve(contest: &Contest) -> Outcome<Self> {
        let program = contest.peer("docker-registry").map_err(TaskError::new)?;
        let folder = target_dir().join("bench");
        fs::create_dir_all(&folder)?;
        let store = tempfile::tempdir_in(folder)?;
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
    pub(super) fn push(&self, floe: &Path, image: &Path, tag: &str) -> Outcome {
        eprintln!("pushing {} …", image.display());
        let mut push = Command::new(floe);
        push.args(["push", "--quiet"]).arg(image).arg(format!("oci://{}/image:{tag}", self.address));
        succeed(&mut push)
    }

    /// A directory for the files of a run.
    pub(super) fn folder(&self) -> &Path {
        self.store.path()
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}
