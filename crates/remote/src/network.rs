//! The state that all remote images of a process share.

use std::{
    io,
    sync::{Arc, atomic::AtomicBool, atomic::Ordering::Relaxed},
};

use tokio::{
    runtime::{Builder, Runtime},
    sync::Notify,
};

use crate::{
    RemoteOptions, authentication::Authenticator, fault::Fault, host_limit::HostLimits, http_client::HttpClient,
};

/// The number of threads that drive connections.
const THREAD_COUNT: usize = 2;

/// The state that all remote images of a process share: threads, connections, limits of hosts, tokens. Clones are
/// cheap.
#[derive(Clone)]
pub struct Network {
    shared: Arc<Shared>,
}

pub(crate) struct Shared {
    threads: Arc<Threads>,
    pub(crate) client: HttpClient,
    pub(crate) limits: Arc<HostLimits>,
    pub(crate) authenticator: Arc<Authenticator>,
    pub(crate) options: RemoteOptions,
    is_closed: AtomicBool,
    closed: Notify,
}

/// The threads that drive connections.
struct Threads(Option<Runtime>);

impl Network {
    /// Starts the threads. Sends nothing yet.
    ///
    /// # Errors
    /// No thread can be started, or the proxies that the environment names cannot be used.
    pub fn new(options: RemoteOptions) -> io::Result<Self> {
        let runtime = Builder::new_multi_thread()
            .worker_threads(THREAD_COUNT)
            .thread_name("floe-net")
            .enable_io()
            .enable_time()
            .build()?;
        let client = HttpClient::new(options.stall)?;
        let shared = Shared {
            threads: Arc::new(Threads(Some(runtime))),
            limits: Arc::new(HostLimits::new(options.connections_max)),
            authenticator: Arc::new(Authenticator::new(client.clone(), options.auth_file.clone())),
            client,
            options,
            is_closed: AtomicBool::new(false),
            closed: Notify::new(),
        };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// A network with the threads, connections, limits and tokens of this one, and with the same options. Each is closed by itself.
    pub(crate) fn sibling(&self) -> Self {
        let Shared { threads, client, limits, authenticator, options, .. } = &*self.shared;
        let shared = Shared {
            threads: Arc::clone(threads),
            client: client.clone(),
            limits: Arc::clone(limits),
            authenticator: Arc::clone(authenticator),
            options: options.clone(),
            is_closed: AtomicBool::new(false),
            closed: Notify::new(),
        };
        Self { shared: Arc::new(shared) }
    }

    /// Cancels all waiting requests, and fails all later ones.
    pub fn close(&self) {
        self.shared.close();
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }
}

impl Shared {
    /// Cancels all waiting requests, and fails all later ones.
    pub(crate) fn close(&self) {
        self.is_closed.store(true, Relaxed);
        self.closed.notify_waiters();
    }

    /// Runs `work` until it completes or the network is closed.
    pub(crate) fn block_on<T>(&self, work: impl Future<Output = Result<T, Fault>>) -> Result<T, Fault> {
        let Some(runtime) = &self.threads.0 else { return Err(Fault::closed()) };
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

impl Drop for Threads {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            // Tasks that still wait, for example for a name server, are abandoned.
            runtime.shutdown_background();
        }
    }
}
