//! Where the bytes of an object come from, and how requests for them are authorized.

mod aws_profile;
mod bucket;
mod places;

use http::HeaderMap;
use url::Url;

use crate::{authentication::Authenticator, fault::Fault};

pub(crate) use bucket::Bucket;
pub(crate) use places::{Place, Places};

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
