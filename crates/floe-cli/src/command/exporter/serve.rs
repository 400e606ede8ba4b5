//! Serves metrics over HTTP.

use std::{
    collections::{BTreeMap, VecDeque},
    convert::Infallible,
    io,
    net::SocketAddr,
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use floe_mount::status::MEDIA_TYPE;
use floe_sync::Mutex;
use http_body_util::Full;
use hyper::{
    Method, Request, Response, StatusCode, body::Incoming, header::CONTENT_TYPE, server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{net::TcpListener, sync::watch, task::AbortHandle, time::timeout};

use super::{collect::Collector, peer::Peer};
use crate::output::remark;

/// How long a connection may last, so that idle ones make room.
const CONNECTION_TIME_MAX: Duration = Duration::from_secs(60);

/// How long to wait after a failure to accept, such as a lack of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// How long a client may take to send a request, and how long its connection may wait for the next one: Prometheus connects
/// anew.
const REQUEST_TIME_MAX: Duration = Duration::from_secs(2);

/// The result of a collection; `None` while it is in progress.
type Collected = Option<Result<Bytes, String>>;

/// Collects once at a time. All requests that arrive meanwhile have the same result, so that many requests delay nobody.
#[derive(Debug)]
struct Metrics {
    collector: Arc<Collector>,
    current: Mutex<watch::Receiver<Collected>>,
}

/// Serves metrics at an address until the process is killed.
///
/// # Errors
/// The address cannot be used.
pub(super) fn serve(address: SocketAddr, of_every_user: bool) -> io::Result<Infallible> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let listener = TcpListener::bind(address).await?;
        remark(format_args!("metrics are at http://{}/metrics\n", listener.local_addr()?));
        let connections = Connections::default();
        let metrics = Arc::new(Metrics::new(Collector::new(of_every_user)));
        loop {
            let Ok((stream, remote)) = listener.accept().await else {
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            };
            let Ok(local) = stream.local_addr() else { continue };
            let admitted = Arc::new(connections.admit(Peer::of(remote, local)));
            let (metrics, place) = (Arc::clone(&metrics), Arc::clone(&admitted));
            let task = tokio::spawn(async move {
                let service = service_fn(|request| answer(request, &metrics));
                let mut builder = http1::Builder::new();
                builder.timer(TokioTimer::new()).header_read_timeout(REQUEST_TIME_MAX);
                let connection = builder.serve_connection(TokioIo::new(stream), service);
                // A failed connection affects only its own client.
                let _ = timeout(CONNECTION_TIME_MAX, connection).await;
                drop(place);
            });
            admitted.is_served_by(task.abort_handle());
        }
    })
}

async fn answer(request: Request<Incoming>, metrics: &Metrics) -> Result<Response<Full<Bytes>>, Infallible> {
    let (status, media_type, body) = match (request.method(), request.uri().path()) {
        (&Method::GET | &Method::HEAD, "/metrics") => match metrics.collected().await {
            Ok(body) => (StatusCode::OK, MEDIA_TYPE, body),
            Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, "text/plain", format!("{error}\n").into()),
        },
        (&Method::GET | &Method::HEAD, _) => (StatusCode::NOT_FOUND, "text/plain", "metrics are at /metrics\n".into()),
        _ => (StatusCode::METHOD_NOT_ALLOWED, "text/plain", "use GET\n".into()),
    };
    let mut response = Response::new(Full::from(body));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, hyper::header::HeaderValue::from_static(media_type));
    Ok(response)
}

impl Metrics {
    fn new(collector: Collector) -> Self {
        Self { collector: Arc::new(collector), current: Mutex::new(watch::channel(None).1) }
    }

    /// The result of the collection in progress, or of a new one.
    async fn collected(&self) -> Result<Bytes, String> {
        let mut result = self.in_progress();
        let collected = result.wait_for(Option::is_some).await;
        let lost = || Err("the collection failed".to_owned());
        collected.map_or_else(|_| lost(), |collected| collected.clone().unwrap_or_else(lost))
    }

    fn in_progress(&self) -> watch::Receiver<Collected> {
        let mut current = self.current.lock();
        // The sender is dropped at the end of a collection.
        if current.has_changed().is_err() {
            let (sender, receiver) = watch::channel(None);
            let collector = Arc::clone(&self.collector);
            // A client that goes away ends no collection.
            tokio::task::spawn_blocking(move || {
                let collected = collector.collect().map(Bytes::from).map_err(|error| error.to_string());
                let _ = sender.send(Some(collected));
            });
            *current = receiver;
        }
        current.clone()
    }
}

/// The maximum number of connections of one client. A new one replaces its oldest.
const OF_PEER_MAX: usize = 8;

/// The maximum number of connections. A new one replaces the oldest of the client with the most.
const CONNECTIONS_MAX: usize = 256;

/// The open connections, by client. A client, such as a user of this machine, can only displace its own connections.
#[derive(Clone, Debug, Default)]
struct Connections {
    open: Arc<Mutex<Open>>,
}

#[derive(Debug, Default)]
struct Open {
    /// The connections of each client, oldest first.
    of_peers: BTreeMap<Peer, VecDeque<(u64, AbortHandle)>>,
    count: usize,
    last: u64,
}

/// The place of a connection, which is free again when this is dropped.
#[derive(Debug)]
struct Admitted {
    connections: Connections,
    peer: Peer,
    number: u64,
}

impl Connections {
    /// Makes room for a connection of a client.
    fn admit(&self, peer: Peer) -> Admitted {
        let mut open = self.open.lock();
        if open.of_peers.get(&peer).is_some_and(|own| own.len() >= OF_PEER_MAX) {
            open.end_oldest(peer);
        } else if open.count >= CONNECTIONS_MAX {
            let busiest = open.of_peers.iter().max_by_key(|(_, own)| own.len()).map(|(peer, _)| *peer);
            busiest.into_iter().for_each(|busiest| open.end_oldest(busiest));
        }
        open.last += 1;
        Admitted { connections: self.clone(), peer, number: open.last }
    }
}

impl Admitted {
    /// Notes the task that serves the connection.
    fn is_served_by(&self, task: AbortHandle) {
        let mut open = self.connections.open.lock();
        open.count += 1;
        open.of_peers.entry(self.peer).or_default().push_back((self.number, task));
    }
}

impl Drop for Admitted {
    fn drop(&mut self) {
        let mut open = self.connections.open.lock();
        let Some(own) = open.of_peers.get_mut(&self.peer) else { return };
        let before = own.len();
        own.retain(|(number, _)| *number != self.number);
        let removed = before - own.len();
        if own.is_empty() {
            open.of_peers.remove(&self.peer);
        }
        open.count -= removed;
    }
}

impl Open {
    fn end_oldest(&mut self, peer: Peer) {
        let oldest = self.of_peers.get_mut(&peer).and_then(VecDeque::pop_front);
        if let Some((_, task)) = oldest {
            self.count -= 1;
            task.abort();
        }
    }
}
