//! Sends single HTTP requests, with redirects that never pass credentials to another host.

use std::{
    env, io,
    sync::{Arc, OnceLock},
    time::Duration,
};

use bytes::Bytes;
use http::{HeaderMap, Method, StatusCode, header};
use reqwest::{Client, ClientBuilder, Response, redirect::Policy};
use tokio::time::{Instant, timeout, timeout_at};
use url::Url;

use crate::{fault::Fault, location::shown};

/// The maximum number of consecutive redirects.
const REDIRECTS_MAX: usize = 5;

/// The timeout for connecting.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// The minimum transfer rate of a server, in bytes per second.
pub(crate) const BYTES_PER_S_MIN: u64 = 16 << 10;

/// The minimum rate at which a server must accept bytes, per second.
const SENT_BYTES_PER_S_MIN: u64 = 64 << 10;

/// The maximum number of headers in an answer.
const HEADERS_MAX: usize = 128;

/// How long an idle connection is kept.
const IDLE_CONNECTION: Duration = Duration::from_secs(60);

/// An HTTP/1.1 client, with TLS, which connects directly or through the proxies of the environment.
#[derive(Clone)]
pub(crate) struct HttpClient {
    /// Trusts no certificate.
    plain: Client,
    /// Trusts the system's certificates. Made for the first request that needs TLS, because loading them takes tens of
    /// milliseconds.
    secure: Arc<OnceLock<Result<Client, Fault>>>,
    stall: Duration,
}

/// A request.
#[derive(Clone)]
pub(crate) struct Request {
    pub(crate) method: Method,
    pub(crate) url: Url,
    /// Headers for every host.
    pub(crate) headers: HeaderMap,
    /// Headers only for the host of `url`.
    pub(crate) secrets: HeaderMap,
    pub(crate) body: Option<Bytes>,
}

/// The head of an answer, with its URL after redirects.
pub(crate) struct Answer {
    pub(crate) response: Response,
    pub(crate) url: Url,
}

impl Request {
    /// A GET request without headers.
    pub(crate) fn get(url: Url) -> Self {
        Self { method: Method::GET, url, headers: HeaderMap::new(), secrets: HeaderMap::new(), body: None }
    }
}

impl HttpClient {
    /// # Errors
    /// The proxies that the environment names cannot be used.
    pub(crate) fn new(stall: Duration) -> io::Result<Self> {
        // This fails only if the program has already chosen another provider, which works as well.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let plain = made(builder(stall).tls_certs_only([])).map_err(|fault| io::Error::other(fault.message))?;
        Ok(Self { plain, secure: Arc::default(), stall })
    }

    /// The client for requests to `url`.
    ///
    /// # Errors
    /// The certificates that the environment names cannot be used.
    fn client(&self, url: &Url) -> Result<&Client, Fault> {
        if url.scheme() == "http" && !has_tls_proxy() {
            return Ok(&self.plain);
        }
        self.secure.get_or_init(|| made(builder(self.stall))).as_ref().map_err(Fault::clone)
    }

    /// How long a server may be silent.
    pub(crate) fn stall(&self) -> Duration {
        self.stall
    }

    /// Sends a request, and follows redirects of requests that only read. Returns the answer with any status.
    ///
    /// # Errors
    /// There is no answer, or it redirects to a forbidden target.
    pub(crate) async fn send(&self, request: Request) -> Result<Answer, Fault> {
        let Request { method, mut url, headers, secrets, body } = request;
        let follows = method == Method::GET || method == Method::HEAD;
        let home = url.origin();
        for _ in 0..=REDIRECTS_MAX {
            check_scheme(&url)?;
            let mut sent = self.client(&url)?.request(method.clone(), url.clone()).headers(headers.clone());
            if url.origin() == home {
                sent = sent.headers(secrets.clone());
            }
            if let Some(body) = &body {
                sent = sent.body(body.clone());
            }
            let patience =
                self.stall + Duration::from_secs(body.as_ref().map_or(0, Bytes::len) as u64 / SENT_BYTES_PER_S_MIN);
            let response = timeout(patience, sent.send()).await;
            let response = response.map_err(|_| Fault::congestion(format!("no answer in {patience:?}"), None))?;
            let response = response.map_err(|error| Fault::of_request(&error))?;
            if !follows || !is_redirect(response.status()) {
                return Ok(Answer { response, url });
            }
            let target = response.headers().get(header::LOCATION).and_then(|value| value.to_str().ok());
            let target = target.ok_or_else(|| Fault::transient("a redirect without a target"))?;
            let next =
                url.join(target).map_err(|error| Fault::refused(format!("a redirect to an invalid URL: {error}")))?;
            if url.scheme() == "https" && next.scheme() != "https" {
                return Err(Fault::refused(format!("a redirect away from TLS, to {}", shown(&next))));
            }
            url = next;
        }
        Err(Fault::refused(format!("more than {REDIRECTS_MAX} redirects")))
    }

    /// Reads a whole body of at most `bytes_max` bytes.
    ///
    /// # Errors
    /// The body is longer, ends early, or comes too slowly.
    pub(crate) async fn body(&self, response: Response, bytes_max: u64) -> Result<Bytes, Fault> {
        let (mut body, began) = (Body::new(response, self.stall), Instant::now());
        let mut bytes = Vec::new();
        loop {
            // Each pause within the body is limited; this limits their sum.
            let end = began + 2 * self.stall + Duration::from_secs(bytes.len() as u64 / BYTES_PER_S_MIN);
            let piece = timeout_at(end, body.next()).await;
            let piece = piece.map_err(|_| Fault::congestion("the answer comes too slowly", None))??;
            let Some(piece) = piece else { break };
            if bytes.len() as u64 + piece.len() as u64 > bytes_max {
                return Err(Fault::refused(format!("an answer of more than {bytes_max} bytes")));
            }
            bytes.extend_from_slice(&piece);
        }
        Ok(bytes.into())
    }
}

/// A body, read piece by piece.
pub(crate) struct Body {
    response: Response,
    stall: Duration,
}

impl Body {
    pub(crate) fn new(response: Response, stall: Duration) -> Self {
        Self { response, stall }
    }

    /// The next piece; `None` at the end.
    ///
    /// # Errors
    /// The connection broke, or was silent for too long.
    pub(crate) async fn next(&mut self) -> Result<Option<Bytes>, Fault> {
        let piece = timeout(self.stall, self.response.chunk()).await;
        let piece =
            piece.map_err(|_| Fault::congestion(format!("silent for {:?} within an answer", self.stall), None))?;
        piece.map_err(|error| Fault::of_request(&error))
    }
}

fn builder(stall: Duration) -> ClientBuilder {
    Client::builder()
        .user_agent(concat!("floe/", env!("CARGO_PKG_VERSION")))
        .redirect(Policy::none())
        .referer(false)
        .retry(reqwest::retry::never())
        .connect_timeout(CONNECT_TIMEOUT.min(stall))
        .pool_idle_timeout(IDLE_CONNECTION)
        .http1_only()
        .http1_max_headers(HEADERS_MAX)
        .tcp_nodelay(true)
}

fn made(builder: ClientBuilder) -> Result<Client, Fault> {
    let client = builder.build().map_err(|error| Fault::of_request(&error).message);
    client.map_err(|message| Fault::refused(format!("cannot prepare requests: {message}")))
}

/// Whether requests for plain HTTP may go through a proxy that is reached by TLS.
fn has_tls_proxy() -> bool {
    ["http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"]
        .into_iter()
        .filter_map(env::var_os)
        .any(|proxy| proxy.as_encoded_bytes().get(..6).is_some_and(|start| start.eq_ignore_ascii_case(b"https:")))
}

fn check_scheme(url: &Url) -> Result<(), Fault> {
    match url.scheme() {
        "http" | "https" if url.has_host() => Ok(()),
        scheme => Err(Fault::refused(format!("a redirect to '{scheme}:'"))),
    }
}

fn is_redirect(status: StatusCode) -> bool {
    matches!(status.as_u16(), 301 | 302 | 303 | 307 | 308)
}
