//! An object at a URL, or at several: a blob in a registry and its mirrors.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use http::{HeaderMap, header};
use percent_encoding::percent_decode_str;
use url::Url;

use super::Target;
use crate::{
    authentication::{Authenticator, Credentials, ProtectionSpace},
    fault::Fault,
};

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
    pub(super) async fn target(&self, authenticator: &Authenticator) -> Result<Target, Fault> {
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
    pub(super) async fn renew(
        &self,
        target: &Target,
        challenge: Option<&str>,
        authenticator: &Authenticator,
    ) -> Result<(), Fault> {
        let space = &self.place(target.mirror)?.space;
        authenticator.renew(space, target.secrets.get(header::AUTHORIZATION), challenge).await
    }

    /// The number of places.
    pub(super) fn count(&self) -> usize {
        self.places.len()
    }

    /// Switches to the place after `mirror` if that is still in use; `None` stands for the one in use. Returns whether there is
    /// more than one.
    pub(super) fn turn_away(&self, mirror: Option<usize>) -> bool {
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
