//! The current location of an object's bytes, and the credentials for it.

use base64::{Engine, prelude::BASE64_STANDARD};
use http::{HeaderMap, HeaderValue, header};
use percent_encoding::percent_decode_str;
use url::Url;

use crate::{fault::Fault, object_origin::ObjectOrigin, registry::BlobOrigin};

/// The current location of an object's bytes, and the credentials for it.
pub(crate) enum Origin {
    /// A URL.
    Web(Target),
    /// An object in a bucket.
    Object(ObjectOrigin),
    /// A blob in a registry.
    Blob(BlobOrigin),
}

/// A URL with headers for its host.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    pub(crate) url: Url,
    pub(crate) secrets: HeaderMap,
    /// The index of the mirror that it belongs to; 0 if there are none.
    pub(crate) mirror: usize,
}

impl Origin {
    /// The current target of requests.
    ///
    /// # Errors
    /// Credentials cannot be obtained.
    pub(crate) async fn target(&self) -> Result<Target, Fault> {
        match self {
            Self::Web(target) => Ok(target.clone()),
            Self::Object(object) => object.target().await,
            Self::Blob(blob) => blob.target().await,
        }
    }

    /// Renews the credentials after `target` was refused. `challenge` is the authentication that the server requires.
    ///
    /// # Errors
    /// There are no credentials.
    pub(crate) async fn renew(&self, target: &Target, challenge: Option<&str>) -> Result<(), Fault> {
        match self {
            Self::Web(_) => Err(Fault::refused("")),
            Self::Object(object) => object.renew().await,
            Self::Blob(blob) => blob.renew(target, challenge).await,
        }
    }

    /// The number of mirrors, the registry itself included.
    pub(crate) fn mirrors(&self) -> usize {
        match self {
            Self::Blob(blob) => blob.mirrors(),
            Self::Web(_) | Self::Object(_) => 1,
        }
    }

    /// Switches to another mirror after an error or wrong bytes from `mirror`, unless another request has already done so;
    /// `None` stands for the current one. Returns whether there is another one.
    pub(crate) fn turn_away(&self, mirror: Option<usize>) -> bool {
        match self {
            Self::Blob(blob) => blob.turn_away(mirror),
            Self::Web(_) | Self::Object(_) => false,
        }
    }
}

impl Target {
    /// Converts a URL that may contain a user and a password.
    pub(crate) fn of_url(url: &Url) -> Self {
        let mut url = url.clone();
        let mut secrets = HeaderMap::new();
        if !url.username().is_empty() || url.password().is_some() {
            let part = |text: &str| percent_decode_str(text).decode_utf8_lossy().into_owned();
            let (user, password) = (part(url.username()), part(url.password().unwrap_or_default()));
            secrets.insert(header::AUTHORIZATION, basic(&user, &password));
            let _ = url.set_username("");
            let _ = url.set_password(None);
        }
        Self { url, secrets, mirror: 0 }
    }
}

/// The value of `Authorization` for a user and a password.
pub(crate) fn basic(user: &str, password: &str) -> HeaderValue {
    let value = format!("Basic {}", BASE64_STANDARD.encode(format!("{user}:{password}")));
    secret(&value).expect("base64 is fit for headers")
}

/// A header value that logs must not show; `None` if the text is not a valid header value.
pub(crate) fn secret(value: &str) -> Option<HeaderValue> {
    let mut value = HeaderValue::from_str(value).ok()?;
    value.set_sensitive(true);
    Some(value)
}
