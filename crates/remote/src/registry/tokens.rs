//! Keeps tokens of registries, and requests one at a time for each registry and scope.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use bytes::Bytes;
use docker_credential::DockerCredential;
use http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use serde::Deserialize;
use url::Url;

use crate::{
    fault::{Fault, FaultKind},
    http_client::{HttpClient, Request},
    origin::{basic, secret},
    range_reply::refusal,
    registry::{challenge::Challenge, credentials::credential, endpoint::Endpoint},
};

/// The maximum size of a token server's answer, in bytes.
const ANSWER_BYTES_MAX: u64 = 256 << 10;

/// The default lifetime of a token, according to the specification, in seconds.
const LIFETIME_DEFAULT_S: u64 = 60;

/// How long a token is used at least, unless it is refused.
const LIFETIME_MIN: Duration = Duration::from_secs(1);

/// How long before its expiry a token is no longer used.
const MARGIN: Duration = Duration::from_secs(5);

/// The tokens of all registries.
pub(crate) struct Tokens {
    client: HttpClient,
    places: Mutex<HashMap<(String, String), Arc<Place>>>,
}

/// The token of one registry and scope. The lock is held while a token is requested, so that other requests wait for
/// that token.
type Place = tokio::sync::Mutex<Option<Token>>;

struct Token {
    authorization: HeaderValue,
    expires: Option<Instant>,
}

impl Token {
    /// Whether it has not expired yet.
    fn is_valid(&self) -> bool {
        self.expires.is_none_or(|at| Instant::now() < at)
    }
}

#[derive(Deserialize)]
struct Answer {
    token: Option<String>,
    access_token: Option<String>,
    expires_in: Option<u64>,
}

impl Tokens {
    pub(crate) fn new(client: HttpClient) -> Self {
        Self { client, places: Mutex::default() }
    }

    /// The value of `Authorization`, if it is known without a request.
    pub(crate) async fn authorization(&self, endpoint: &Endpoint, scope: &str) -> Option<HeaderValue> {
        let place = self.place(endpoint, scope);
        let token = place.lock().await;
        token.as_ref().filter(|token| token.is_valid()).map(|token| token.authorization.clone())
    }

    /// Gets a new token to replace the refused one, unless another request has already done so.
    ///
    /// # Errors
    /// There are no credentials, or they are refused.
    pub(crate) async fn renew(
        &self,
        endpoint: &Endpoint,
        scope: &str,
        refused: Option<&HeaderValue>,
        challenge: Option<&str>,
    ) -> Result<(), Fault> {
        let place = self.place(endpoint, scope);
        let mut token = place.lock().await;
        // A request without a token was refused as well if the token has expired since.
        let newer = token.as_ref().filter(|token| token.is_valid() && Some(&token.authorization) != refused);
        if newer.is_some() {
            return Ok(());
        }
        *token = None;
        let challenge = challenge.and_then(Challenge::parse);
        let challenge = challenge.ok_or_else(|| unauthorized("there is no way to get access"))?;
        let credential = credential(endpoint.credentials_of.clone()).await?;
        *token = Some(match challenge {
            Challenge::Basic => match credential {
                Some(DockerCredential::UsernamePassword(user, password)) => {
                    Token { authorization: basic(&user, &password), expires: None }
                }
                _ => return Err(unauthorized(&format!("log in with 'docker login {}'", endpoint.credentials_of))),
            },
            Challenge::Bearer { realm, service, scope: wanted } => {
                let scope = wanted.as_deref().unwrap_or(scope);
                self.ask(endpoint, &realm, service.as_deref(), scope, credential).await?
            }
        });
        Ok(())
    }

    fn place(&self, endpoint: &Endpoint, scope: &str) -> Arc<Place> {
        let mut places = self.places.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(places.entry((endpoint.base.to_string(), scope.to_owned())).or_default())
    }

    async fn ask(
        &self,
        endpoint: &Endpoint,
        realm: &str,
        service: Option<&str>,
        scope: &str,
        credential: Option<DockerCredential>,
    ) -> Result<Token, Fault> {
        let mut url =
            Url::parse(realm).map_err(|_| Fault::refused(format!("token server address '{realm}' is not a URL")))?;
        if url.scheme() != "https" && endpoint.base.scheme() == "https" {
            return Err(Fault::refused(format!("token server address '{realm}' does not use TLS")));
        }
        let mut request = Request {
            method: Method::GET,
            url: url.clone(),
            headers: HeaderMap::new(),
            secrets: HeaderMap::new(),
            body: None,
        };
        let mut pairs = vec![("scope", scope)];
        pairs.extend(service.map(|service| ("service", service)));
        match credential {
            Some(DockerCredential::IdentityToken(identity)) => {
                let mut form = Url::parse("form:").map_err(|_| Fault::refused("no form"))?;
                pairs.extend([("grant_type", "refresh_token"), ("client_id", "floe"), ("refresh_token", &identity)]);
                form.query_pairs_mut().extend_pairs(pairs);
                request.method = Method::POST;
                let form_type = HeaderValue::from_static("application/x-www-form-urlencoded");
                request.headers.insert(header::CONTENT_TYPE, form_type);
                request.body = Some(Bytes::from(form.query().unwrap_or_default().to_owned()));
            }
            credential => {
                if let Some(DockerCredential::UsernamePassword(user, password)) = credential {
                    request.secrets.insert(header::AUTHORIZATION, basic(&user, &password));
                }
                url.query_pairs_mut().extend_pairs(pairs);
            }
        }
        request.url = url;
        let asked = Instant::now();
        let answer = self.client.send(request).await?;
        let status = answer.response.status();
        if status != StatusCode::OK {
            let mut fault = refusal(status, answer.response.headers());
            fault.message = format!("token server: {}", fault.message);
            if let FaultKind::Gone = fault.kind {
                fault.kind = FaultKind::Refused;
            }
            return Err(fault);
        }
        let body = self.client.body(answer.response, ANSWER_BYTES_MAX).await?;
        let answer: Answer =
            serde_json::from_slice(&body).map_err(|error| Fault::transient(format!("no token: {error}")))?;
        let token = answer.token.or(answer.access_token).filter(|token| !token.is_empty());
        let token = token.ok_or_else(|| Fault::transient("no token in the answer"))?;
        let authorization = secret(&format!("Bearer {token}"));
        let authorization = authorization.ok_or_else(|| Fault::refused("token is not a valid header value"))?;
        let lifetime = Duration::from_secs(answer.expires_in.unwrap_or(LIFETIME_DEFAULT_S));
        let lifetime = lifetime.saturating_sub(MARGIN.min(lifetime / 2)).max(LIFETIME_MIN);
        let expires = asked.checked_add(lifetime);
        Ok(Token { authorization, expires })
    }
}

fn unauthorized(message: &str) -> Fault {
    Fault { kind: FaultKind::Unauthorized { challenge: None }, message: message.to_owned() }
}
