//! The socket on which containerd finds the snapshotter.

use std::{
    fs, io,
    os::unix::{
        fs::PermissionsExt,
        net::{UnixListener, UnixStream},
    },
    path::{Path, PathBuf},
    sync::Arc,
};

use floe_image::ShownName;
use tokio::{runtime::Builder, sync::Notify};
use tokio_stream::wrappers::UnixListenerStream;

use crate::{methods::Methods, snapshotter::Snapshotter};

/// The number of threads that read and write messages, and the maximum number of those that work on requests.
const THREAD_COUNT: usize = 2;
const WORKERS_MAX: usize = 64;

/// A socket that listens for containerd.
pub struct Server {
    listener: UnixListener,
    path: PathBuf,
    stop: Arc<Notify>,
}

/// Ends a server from another thread.
#[derive(Clone)]
pub struct Stopper(Arc<Notify>);

impl Server {
    /// Listens at `path`, which only this user can connect to.
    ///
    /// # Errors
    /// Another process listens there, or the socket cannot be created.
    pub fn bind(path: &Path) -> io::Result<Self> {
        let failed = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.shown()));
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent).map_err(failed)?;
        }
        if UnixStream::connect(path).is_ok() {
            return Err(failed(io::Error::new(io::ErrorKind::AddrInUse, "another process listens there")));
        }
        // A process that was killed leaves its socket.
        if fs::symlink_metadata(path)
            .is_ok_and(|metadata| std::os::unix::fs::FileTypeExt::is_socket(&metadata.file_type()))
        {
            fs::remove_file(path).map_err(failed)?;
        }
        let listener = UnixListener::bind(path).map_err(failed)?;
        fs::set_permissions(path, fs::Permissions::from_mode(0o600)).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        Ok(Self { listener, path: path.to_owned(), stop: Arc::new(Notify::new()) })
    }

    /// A handle that ends the server.
    pub fn stopper(&self) -> Stopper {
        Stopper(Arc::clone(&self.stop))
    }

    /// Answers requests until the server is stopped. Mounts stay.
    ///
    /// # Errors
    /// No thread can be started.
    pub fn run(self, snapshotter: Arc<Snapshotter>) -> io::Result<()> {
        let mut builder = Builder::new_multi_thread();
        builder.worker_threads(THREAD_COUNT).max_blocking_threads(WORKERS_MAX).thread_name("floe-snapshots");
        let runtime = builder.enable_all().build()?;
        let Self { listener, path, stop } = self;
        runtime.block_on(async {
            let incoming = UnixListenerStream::new(tokio::net::UnixListener::from_std(listener)?);
            let server = tonic::transport::Server::builder();
            let served = server.serve_with_incoming_shutdown(Methods { snapshotter }, incoming, stop.notified());
            served.await.map_err(io::Error::other)
        })?;
        let _ = fs::remove_file(path);
        Ok(())
    }
}

impl Stopper {
    /// Ends the server when it has answered the current requests.
    pub fn stop(&self) {
        self.0.notify_one();
    }
}
