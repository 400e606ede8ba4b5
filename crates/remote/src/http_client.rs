//! Requests over HTTP: one at a time, with redirects that never carry credentials to another host.

use std::{io, time::Duration};

use bytes::Bytes;
use http::{HeaderMap, Method, StatusCode, header};
use reqwest::{Client, Response, redirect::Policy};
use tokio::time::timeout;
use url::Url;

use crate::{fault::Fault, location::shown};

/// How many redirects are followed in a row.
const REDIRECTS_MAX: usize = 5;

/// How long a connection may take to be made.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// A server must take at least so many bytes in a second.
const SENT_BYTES_PER_S_MIN: u64 = 64 << 10;

/// How many headers an answer may have.
const HEADERS_MAX: usize = 128;

/// A connection that is not in use is kept for so long.
const IDLE_CONNECTION: Duration = Duration::from_secs(60);

/// Speaks HTTP/1.1, over TLS too, directly or through the proxies of the environment.
#[derive(Clone)]
pub(crate) struct HttpClient {
    client: Client,
    stall: Duration,
}

/// A request.
pub(crate) struct Request {
    pub(crate) method: Method,
    pub(crate) url: Url,
    /// What every host may see.
    pub(crate) headers: HeaderMap,
    /// What only the host of `url` may see.
    pub(crate) secrets: HeaderMap,
    pub(crate) body: Option<Bytes>,
}

/// The head of an answer, and where it came from after redirects.
pub(crate) struct Answer {
    pub(crate) response: Response,
    pub(crate) url: Url,
}

impl HttpClient {
    /// # Errors
    /// The certificates or the proxies that the environment names cannot be used.
    pub(crate) fn new(stall: Duration) -> io::Result<Self> {
        // Another provider that the program has chosen is as good.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let client = Client::builder()
            .user_agent(concat!("floe/", env!("CARGO_PKG_VERSION")))
            .redirect(Policy::none())
            .referer(false)
            .retry(reqwest::retry::never())
            .connect_timeout(CONNECT_TIMEOUT.min(stall))
            .pool_idle_timeout(IDLE_CONNECTION)
            .http1_only()
            .http1_max_headers(HEADERS_MAX)
            .tcp_nodelay(true)
            .build();
        let client = client.map_err(|error| {
            let fault = Fault::of_request(&error);
            io::Error::other(format!("cannot prepare requests: {}", fault.message))
        })?;
        Ok(Self { client, stall })
    }

    /// How long a server may be silent.
    pub(crate) fn stall(&self) -> Duration {
        self.stall
    }

    /// Sends a request, and follows redirects if it only reads. Whatever the status, the answer is given.
    ///
    /// # Errors
    /// There is no answer, or it redirects to where it must not.
    pub(crate) async fn send(&self, request: Request) -> Result<Answer, Fault> {
        let Request { method, mut url, headers, secrets, body } = request;
        let follows = method == Method::GET || method == Method::HEAD;
        let home = url.origin();
        for _ in 0..=REDIRECTS_MAX {
            check_scheme(&url)?;
            let mut sent = self.client.request(method.clone(), url.clone()).headers(headers.clone());
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
            let target = target.ok_or_else(|| Fault::transient("a redirect that does not say where to"))?;
            let next = url.join(target).map_err(|error| Fault::refused(format!("a redirect to no URL: {error}")))?;
            if url.scheme() == "https" && next.scheme() != "https" {
                return Err(Fault::refused(format!("a redirect away from TLS, to {}", shown(&next))));
            }
            url = next;
        }
        Err(Fault::refused(format!("more than {REDIRECTS_MAX} redirects")))
    }

    /// All of a body that has at most `bytes_max` bytes.
    ///
    /// # Errors
    /// The body is longer, or ends early.
    pub(crate) async fn body(&self, response: Response, bytes_max: u64) -> Result<Bytes, Fault> {
        let mut body = Body::new(response, self.stall);
        let mut bytes = Vec::new();
        while let Some(piece) = body.next().await? {
            if bytes.len() as u64 + piece.len() as u64 > bytes_max {
                return Err(Fault::refused(format!("an answer of more than {bytes_max} bytes")));
            }
            bytes.extend_from_slice(&piece);
        }
        Ok(bytes.into())
    }
}

/// A body, piece by piece.
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

fn check_scheme(url: &Url) -> Result<(), Fault> {
    match url.scheme() {
        "http" | "https" if url.has_host() => Ok(()),
        scheme => Err(Fault::refused(format!("a redirect to '{scheme}:'"))),
    }
}

fn is_redirect(status: StatusCode) -> bool {
    matches!(status.as_u16(), 301 | 302 | 303 | 307 | 308)
}
