//! Serves metrics over HTTP.

use std::{convert::Infallible, io, net::SocketAddr, sync::Arc, time::Duration};

use bytes::Bytes;
use http_body_util::Full;
use hyper::{
    Method, Request, Response, StatusCode, body::Incoming, header::CONTENT_TYPE, server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{
    net::TcpListener,
    sync::{Mutex, Semaphore},
    time::timeout,
};

use super::collect::Collector;
use crate::{output::remark, status::MEDIA_TYPE};

/// The most connections at one time; others wait until one ends.
const CONNECTIONS_MAX: usize = 16;

/// How long a connection may last, so that idle ones make room.
const CONNECTION_TIME_MAX: Duration = Duration::from_secs(60);

/// How long to wait after a failure to accept, such as a lack of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// How long a client may take to send a request, and how long its connection may wait for the next one: Prometheus connects
/// anew.
const REQUEST_TIME_MAX: Duration = Duration::from_secs(10);

/// Collects for one request at a time.
type Metrics = Mutex<Arc<Collector>>;

/// Serves metrics at an address until the process is killed.
///
/// # Errors
/// The address cannot be used.
pub(crate) fn serve(address: SocketAddr, of_every_user: bool) -> io::Result<Infallible> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let listener = TcpListener::bind(address).await?;
        remark(format_args!("metrics are at http://{}/metrics\n", listener.local_addr()?));
        let permits = Arc::new(Semaphore::new(CONNECTIONS_MAX));
        let metrics = Arc::new(Mutex::new(Arc::new(Collector::new(of_every_user))));
        loop {
            let permit = Arc::clone(&permits).acquire_owned().await.map_err(io::Error::other)?;
            let Ok((stream, _)) = listener.accept().await else {
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            };
            let metrics = Arc::clone(&metrics);
            tokio::spawn(async move {
                let service = service_fn(|request| answer(request, &metrics));
                let mut builder = http1::Builder::new();
                builder.timer(TokioTimer::new()).header_read_timeout(REQUEST_TIME_MAX);
                let connection = builder.serve_connection(TokioIo::new(stream), service);
                // A failed connection affects only its own client.
                let _ = timeout(CONNECTION_TIME_MAX, connection).await;
                drop(permit);
            });
        }
    })
}

async fn answer(request: Request<Incoming>, metrics: &Metrics) -> Result<Response<Full<Bytes>>, Infallible> {
    let (status, media_type, body) = match (request.method(), request.uri().path()) {
        (&Method::GET | &Method::HEAD, "/metrics") => match collected(metrics).await {
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

/// Collects the metrics. Requests take turns, so that many requests do not query the mounts at the same time.
async fn collected(metrics: &Metrics) -> io::Result<Vec<u8>> {
    let collector = metrics.lock().await;
    let used = Arc::clone(&collector);
    tokio::task::spawn_blocking(move || used.collect()).await.map_err(io::Error::other)?
}
