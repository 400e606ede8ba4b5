//! Authenticates requests: keeps the authorizations that servers accept, and renews those that they refuse.

mod bearer;
mod credentials;

use std::{
    collections::HashMap,
    path::{Path, PathBuf},
    sync::Arc,
    time::Instant,
};

use base64::{Engine, prelude::BASE64_STANDARD};
use docker_credential::DockerCredential;
use floe_sync::Mutex;
use http::{HeaderValue, StatusCode, header};
use url::Url;

use crate::{
    fault::{Fault, FaultKind},
    http_client::{Answer, HttpClient, Request},
};
use bearer::Challenge;
pub(crate) use credentials::Credentials;

/// The requests to which one authorization applies.
#[derive(Clone)]
pub(crate) struct ProtectionSpace {
    /// The base URL of the server.
    pub(crate) base: Url,
    /// The scope of tokens; empty for servers without scopes.
    pub(crate) scope: String,
    pub(crate) credentials: Credentials,
}

/// Authenticates the requests of a process.
pub(crate) struct Authenticator {
    client: HttpClient,
    /// A file with credentials that is searched first.
    auth_file: Option<PathBuf>,
    /// By base URL and scope.
    slots: Mutex<HashMap<(String, String), Arc<Slot>>>,
}

/// The authorization for a protection space. The lock is held while it is renewed, so that concurrent requests share one renewal.
type Slot = tokio::sync::Mutex<Option<Authorization>>;

/// A value of `Authorization`.
struct Authorization {
    value: HeaderValue,
    /// `None` if it does not expire.
    expires: Option<Instant>,
}

/// An authentication scheme.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Scheme {
    /// A token from a token server.
    Bearer,
    /// User and password.
    Basic,
}

impl Authenticator {
    pub(crate) fn new(client: HttpClient, auth_file: Option<PathBuf>) -> Self {
        Self { client, auth_file, slots: Mutex::default() }
    }

    /// The authorization that is known without a request.
    pub(crate) async fn authorization(&self, space: &ProtectionSpace) -> Option<HeaderValue> {
        let slot = self.slot(space);
        let held = slot.lock().await;
        let valid = held.as_ref().filter(|held| held.is_valid()).map(|held| held.value.clone());
        valid.or_else(|| space.credentials.unasked())
    }

    /// Renews the authorization of `space` after the server refused `refused`, unless another request has already done so.
    /// `challenge` is the server's `WWW-Authenticate`.
    ///
    /// # Errors
    /// There are no credentials, or the server or its token server refuses them.
    pub(crate) async fn renew(
        &self,
        space: &ProtectionSpace,
        refused: Option<&HeaderValue>,
        challenge: Option<&str>,
    ) -> Result<(), Fault> {
        let Some(challenge) = challenge else {
            // The target of a redirect refused. Another request may be redirected elsewhere.
            return if space.credentials.can_change() { Ok(()) } else { Err(space.credentials.fault("")) };
        };
        let slot = self.slot(space);
        let mut held = slot.lock().await;
        // A request without an authorization was refused as well if the authorization has expired since.
        if held.as_ref().is_some_and(|held| held.is_valid() && Some(&held.value) != refused) {
            return Ok(());
        }
        *held = None;
        let challenges = Challenge::all(challenge);
        let chosen = Scheme::choose(&challenges, &space.credentials);
        let (scheme, challenge) = chosen.ok_or_else(|| space.credentials.fault("there is no way to get access"))?;
        let renewed = scheme.authorize(&self.client, self.auth_file.as_deref(), space, challenge).await?;
        if Some(&renewed.value) == refused && !space.credentials.can_change() {
            return Err(space.credentials.fault(""));
        }
        *held = Some(renewed);
        Ok(())
    }

    /// Sends a request in `space`. Repeats it once with a new authorization if the first one was refused.
    ///
    /// # Errors
    /// There is no answer, or no authorization.
    pub(crate) async fn send(&self, space: &ProtectionSpace, request: Request) -> Result<Answer, Fault> {
        let authorized = |authorization: Option<&HeaderValue>| {
            let mut request = request.clone();
            request.secrets.extend(authorization.map(|value| (header::AUTHORIZATION, value.clone())));
            request
        };
        let first = self.authorization(space).await;
        let answer = self.client.send(authorized(first.as_ref())).await?;
        let status = answer.response.status();
        if status != StatusCode::UNAUTHORIZED || answer.url.origin() != request.url.origin() {
            return Ok(answer);
        }
        let FaultKind::Unauthorized { challenge: Some(challenge) } =
            Fault::of_answer(status, answer.response.headers()).kind
        else {
            return Ok(answer);
        };
        self.renew(space, first.as_ref(), Some(&challenge)).await?;
        self.client.send(authorized(self.authorization(space).await.as_ref())).await
    }

    fn slot(&self, space: &ProtectionSpace) -> Arc<Slot> {
        let mut slots = self.slots.lock();
        Arc::clone(slots.entry((space.base.to_string(), space.scope.clone())).or_default())
    }
}

impl Authorization {
    fn is_valid(&self) -> bool {
        self.expires.is_none_or(|at| Instant::now() < at)
    }
}

impl Scheme {
    /// All schemes in the order of preference: the first one reveals the least.
    const ALL: [Self; 2] = [Self::Bearer, Self::Basic];

    /// Selects the preferred one of several challenges. Returns `None` if none is supported.
    fn choose<'all>(challenges: &'all [Challenge], credentials: &Credentials) -> Option<(Self, &'all Challenge)> {
        let fits = |scheme: Self, challenge: &Challenge| match scheme {
            // The user and the password of a URL are only for its own host.
            Self::Bearer => {
                let is_permitted = matches!(credentials, Credentials::Registry(_));
                challenge.is("bearer") && challenge.parameter("realm").is_some() && is_permitted
            }
            Self::Basic => challenge.is("basic"),
        };
        let find = |scheme: Self| Some((scheme, challenges.iter().find(|challenge| fits(scheme, challenge))?));
        Self::ALL.into_iter().find_map(find)
    }

    /// Answers a challenge.
    async fn authorize(
        self,
        client: &HttpClient,
        auth_file: Option<&Path>,
        space: &ProtectionSpace,
        challenge: &Challenge,
    ) -> Result<Authorization, Fault> {
        let credential = space.credentials.find(auth_file).await?;
        match (self, credential) {
            (Self::Bearer, credential) => bearer::authorize(client, space, challenge, credential).await,
            (Self::Basic, Some(DockerCredential::UsernamePassword(user, password))) => {
                Ok(Authorization { value: basic(&user, &password), expires: None })
            }
            (Self::Basic, _) => Err(space.credentials.missing()),
        }
    }
}

/// The value of `Authorization` with a token.
///
/// # Errors
/// The token is not a valid header value.
pub(crate) fn bearer(token: &str) -> Result<HeaderValue, Fault> {
    secret(&format!("Bearer {token}")).ok_or_else(|| Fault::refused("token is not a valid header value"))
}

/// The value of `Authorization` with a user and a password.
fn basic(user: &str, password: &str) -> HeaderValue {
    let value = format!("Basic {}", BASE64_STANDARD.encode(format!("{user}:{password}")));
    secret(&value).expect("base64 is valid in headers")
}

/// A header value that logs must not show; `None` if the text is not a valid header value.
fn secret(value: &str) -> Option<HeaderValue> {
    let mut value = HeaderValue::from_str(value).ok()?;
    value.set_sensitive(true);
    Some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_challenge_that_reveals_the_least_is_chosen() {
        let (registry, url) = (Credentials::Registry("r".to_owned()), Credentials::Url(None));
        for (header, expected, for_url) in [
            ("Basic realm=\"x\", Bearer realm=\"y\\\"z\"", Some((Scheme::Bearer, Some("y\"z"))), Some(Scheme::Basic)),
            ("Bearer realm=\"y\"", Some((Scheme::Bearer, Some("y"))), None),
            ("Bearer service=\"x\"", None, None),
            ("Bearer service=\"x\", Basic realm=\"y\"", Some((Scheme::Basic, Some("y"))), Some(Scheme::Basic)),
            ("basic", Some((Scheme::Basic, None)), Some(Scheme::Basic)),
            ("Negotiate, NTLM", None, None),
            ("", None, None),
        ] {
            let challenges = Challenge::all(header);
            let chosen = Scheme::choose(&challenges, &registry);
            assert_eq!(chosen.map(|(scheme, challenge)| (scheme, challenge.parameter("realm"))), expected, "{header}");
            assert_eq!(Scheme::choose(&challenges, &url).map(|(scheme, _)| scheme), for_url, "{header}");
        }
    }
}
