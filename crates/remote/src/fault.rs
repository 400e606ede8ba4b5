//! Failures of requests, and how to react to them.

use std::{error::Error, fmt, io, time::Duration};

use floe_remote_cache::{FetchError, FetchFault};

/// A request that failed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Fault {
    pub(crate) kind: FaultKind,
    /// The description, without the URL.
    pub(crate) message: String,
}

/// The kind of a failure, which determines the reaction.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum FaultKind {
    /// The same request may succeed later.
    Transient {
        /// How long the server asks the client to wait.
        retry_after: Option<Duration>,
        /// Whether the server or the network is overloaded, so that fewer requests should be in flight.
        is_congestion: bool,
    },
    /// Credentials are missing, wrong or expired. `challenge` is the server's `WWW-Authenticate`.
    Unauthorized {
        /// The authentication that the server requires.
        challenge: Option<String>,
    },
    /// The server refuses, and will refuse again.
    Refused,
    /// The answer does not match the request.
    WrongBytes,
    /// The object no longer exists, or was replaced.
    Gone,
    /// The caller has closed the network.
    Closed,
}

impl Fault {
    pub(crate) fn transient(message: impl Into<String>) -> Self {
        Self { kind: FaultKind::Transient { retry_after: None, is_congestion: false }, message: message.into() }
    }

    pub(crate) fn congestion(message: impl Into<String>, retry_after: Option<Duration>) -> Self {
        Self { kind: FaultKind::Transient { retry_after, is_congestion: true }, message: message.into() }
    }

    pub(crate) fn refused(message: impl Into<String>) -> Self {
        Self { kind: FaultKind::Refused, message: message.into() }
    }

    pub(crate) fn wrong(message: impl Into<String>) -> Self {
        Self { kind: FaultKind::WrongBytes, message: message.into() }
    }

    pub(crate) fn gone(message: impl Into<String>) -> Self {
        Self { kind: FaultKind::Gone, message: message.into() }
    }

    pub(crate) fn closed() -> Self {
        Self { kind: FaultKind::Closed, message: "given up before it was done".to_owned() }
    }

    /// Converts the error of a request without an answer.
    pub(crate) fn of_request(error: &reqwest::Error) -> Self {
        let message = chain(error);
        let is_distrust = message.contains("invalid peer certificate") || message.contains("no native root CA");
        if error.is_builder() || is_distrust {
            return Self::refused(message);
        }
        if error.is_timeout() { Self::congestion(message, None) } else { Self::transient(message) }
    }

    /// Converts to the error that callers outside this crate get; `place` names the URL and the bytes.
    pub(crate) fn at(self, place: impl fmt::Display) -> io::Error {
        let message = format!("{place}: {}", self.message);
        let fault = match self.kind {
            FaultKind::WrongBytes => FetchFault::WrongBytes,
            FaultKind::Gone => FetchFault::Gone,
            // Not an outage: a cached copy must not hide this error.
            FaultKind::Refused => return io::Error::other(message),
            FaultKind::Closed => return io::Error::new(io::ErrorKind::Interrupted, message),
            _ => FetchFault::Outage,
        };
        FetchError::new(fault, message).into()
    }
}

/// The chain of causes from the outside in. The outermost error is omitted, because it only says that a request failed,
/// and names its URL.
fn chain(error: &reqwest::Error) -> String {
    let mut parts: Vec<String> = Vec::new();
    let mut inner = error.source();
    while let Some(error) = inner {
        let text = error.to_string();
        if parts.last().is_none_or(|last| !last.contains(&text)) {
            parts.push(text);
        }
        inner = error.source();
    }
    if parts.is_empty() {
        parts.push(if error.is_timeout() { "timed out" } else { "the request failed" }.to_owned());
    }
    parts.join(": ")
}
