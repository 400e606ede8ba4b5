//! Where the bytes of an object come from, and how requests for them are authorized.

mod bucket;

pub(crate) use bucket::Bucket;

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use http::{HeaderMap, header};
use percent_encoding::percent_decode_str;
use url::Url;

use crate::{
    authentication::{Authenticator, Credentials, ProtectionSpace},
    fault::Fault,
};

/// The source of an object's bytes. It renews credentials that expire.
pub(crate) enum Origin {
    /// A URL, or the places of a blob.
    Places(Places),
    /// An object in a bucket.
    Bucket(Box<Bucket>),
}

/// A URL with headers for its host.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    pub(crate) url: Url,
    pub(crate) secrets: HeaderMap,
    /// The index of its mirror; 0 if there are none.
    pub(crate) mirror: usize,
}

impl Origin {
    /// The current target of requests.
    ///
    /// # Errors
    /// Credentials cannot be obtained.
    pub(crate) async fn target(&self, authenticator: &Authenticator) -> Result<Target, Fault> {
        match self {
            Self::Places(places) => places.target(authenticator).await,
            Self::Bucket(bucket) => bucket.target().await,
        }
    }

    /// Renews the credentials after `target` was refused. `challenge` is the authentication that the server requires.
    ///
    /// # Errors
    /// There are no other credentials.
    pub(crate) async fn renew(
        &self,
        target: &Target,
        challenge: Option<&str>,
        authenticator: &Authenticator,
    ) -> Result<(), Fault> {
        match self {
            Self::Places(places) => places.renew(target, challenge, authenticator).await,
            Self::Bucket(bucket) => {
                bucket.renew();
                Ok(())
            }
        }
    }

    /// The number of mirrors, the registry itself included.
    pub(crate) fn mirrors(&self) -> usize {
        match self {
            Self::Places(places) => places.count(),
            Self::Bucket(_) => 1,
        }
    }

    /// Switches to another mirror after an error or wrong bytes from `mirror`, unless another request has already done so;
    /// `None` stands for the current one. Returns whether there is another one.
    pub(crate) fn turn_away(&self, mirror: Option<usize>) -> bool {
        match self {
            Self::Places(places) => places.turn_away(mirror),
            Self::Bucket(_) => false,
        }
    }
}

/// An object at one or several places, in the order of preference.
pub(crate) struct Places {
    places: Vec<Place>,
    /// The index of the place in use.
    turn: AtomicUsize,
}

/// A place of an object.
pub(crate) struct Place {
    pub(crate) url: Url,
    /// Headers for the host of the URL.
    pub(crate) headers: HeaderMap,
    pub(crate) space: ProtectionSpace,
}

impl Places {
    pub(crate) fn new(places: Vec<Place>) -> Self {
        Self { places, turn: AtomicUsize::new(0) }
    }

    /// The object at a URL, which may contain a user and a password.
    pub(crate) fn of_url(url: &Url) -> Self {
        let mut url = url.clone();
        let part = |text: &str| percent_decode_str(text).decode_utf8_lossy().into_owned();
        let has_login = !url.username().is_empty() || url.password().is_some();
        let login = has_login.then(|| (part(url.username()), part(url.password().unwrap_or_default())));
        // These fail only for URLs without a host.
        let _ = url.set_username("");
        let _ = url.set_password(None);
        let mut base = url.clone();
        base.set_path("/");
        base.set_query(None);
        let space = ProtectionSpace { base, scope: String::new(), credentials: Credentials::Url(login) };
        Self::new(vec![Place { url, headers: HeaderMap::new(), space }])
    }

    /// The current target of requests.
    ///
    /// # Errors
    /// There is no place.
    async fn target(&self, authenticator: &Authenticator) -> Result<Target, Fault> {
        let turn = self.turn.load(Relaxed);
        let Place { url, headers, space } = self.place(turn)?;
        let mut secrets = headers.clone();
        secrets.extend(authenticator.authorization(space).await.map(|value| (header::AUTHORIZATION, value)));
        Ok(Target { url: url.clone(), secrets, mirror: turn })
    }

    /// Renews the authorization for a place after `target` was refused.
    ///
    /// # Errors
    /// There is no other authorization.
    async fn renew(
        &self,
        target: &Target,
        challenge: Option<&str>,
        authenticator: &Authenticator,
    ) -> Result<(), Fault> {
        let space = &self.place(target.mirror)?.space;
        authenticator.renew(space, target.secrets.get(header::AUTHORIZATION), challenge).await
    }

    /// The number of places.
    fn count(&self) -> usize {
        self.places.len()
    }

    /// Switches to the place after `mirror` if that is still in use; `None` stands for the one in use. Returns whether there is
    /// more than one.
    fn turn_away(&self, mirror: Option<usize>) -> bool {
        let count = self.count();
        let turned = |turn: usize| {
            let is_in_use = mirror.is_none_or(|mirror| mirror == turn);
            if is_in_use { (turn + 1).checked_rem(count) } else { None }
        };
        let _ = self.turn.fetch_update(Relaxed, Relaxed, turned);
        count > 1
    }

    fn place(&self, index: usize) -> Result<&Place, Fault> {
        self.places.get(index).ok_or_else(|| Fault::refused("no mirror in hosts.toml may be used for blobs"))
    }
}
