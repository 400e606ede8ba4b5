//! What all remote images of a process share.

use std::{
    io,
    sync::{Arc, atomic::AtomicBool, atomic::Ordering::Relaxed},
};

use tokio::{
    runtime::{Builder, Runtime},
    sync::Notify,
};

use crate::{
    RemoteLocation, RemoteObject, RemoteOptions, fault::Fault, host_limit::HostLimits, http_client::HttpClient,
    registry::Registries,
};

/// How many threads drive connections.
const THREAD_COUNT: usize = 2;

/// What all remote images of a process share: threads, connections, limits of hosts, tokens. Clones are cheap.
#[derive(Clone)]
pub struct Network {
    shared: Arc<Shared>,
}

pub(crate) struct Shared {
    runtime: Option<Runtime>,
    pub(crate) client: HttpClient,
    pub(crate) limits: HostLimits,
    pub(crate) registries: Registries,
    pub(crate) options: RemoteOptions,
    is_closed: AtomicBool,
    closed: Notify,
}

impl Network {
    /// Starts the threads; nothing is sent yet.
    ///
    /// # Errors
    /// There are no threads to be had, or the certificates or proxies that the environment names cannot be used.
    pub fn new(options: RemoteOptions) -> io::Result<Self> {
        let runtime = Builder::new_multi_thread()
            .worker_threads(THREAD_COUNT)
            .thread_name("floe-net")
            .enable_io()
            .enable_time()
            .build()?;
        let client = HttpClient::new(options.stall)?;
        let shared = Shared {
            runtime: Some(runtime),
            limits: HostLimits::new(options.connections_max),
            registries: Registries::new(client.clone(), options.plain_http),
            client,
            options,
            is_closed: AtomicBool::new(false),
            closed: Notify::new(),
        };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// Finds the image, and learns its length and what it is held against. Waits as the outage policy says.
    ///
    /// # Errors
    /// There is no such image, or it cannot be reached.
    pub fn open(&self, location: &RemoteLocation) -> io::Result<RemoteObject> {
        RemoteObject::open(&self.shared, location)
    }

    /// Ends all that waits, and all that will be asked for, with an error.
    pub fn close(&self) {
        self.shared.is_closed.store(true, Relaxed);
        self.shared.closed.notify_waiters();
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }
}

impl Shared {
    /// Runs `work` to its end, or until the network is closed.
    pub(crate) fn block_on<T>(&self, work: impl Future<Output = Result<T, Fault>>) -> Result<T, Fault> {
        let Some(runtime) = &self.runtime else { return Err(Fault::closed()) };
        runtime.block_on(async {
            let closed = self.closed.notified();
            if self.is_closed.load(Relaxed) {
                return Err(Fault::closed());
            }
            tokio::select! {
                result = work => result,
                () = closed => Err(Fault::closed()),
            }
        })
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            // Whatever still waits, for a name server for example, is not waited for.
            runtime.shutdown_background();
        }
    }
}
