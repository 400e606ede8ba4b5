//! The scheme Bearer: tokens from a token server.

use std::time::{Duration, Instant};

use bytes::Bytes;
use docker_credential::DockerCredential;
use http::{HeaderValue, Method, StatusCode, header};
use serde::Deserialize;
use url::Url;

use super::{Authorization, ProtectionSpace, basic, bearer, challenge::Challenge};
use crate::{
    fault::{Fault, FaultKind},
    http_client::{HttpClient, Request},
};

/// The maximum size of a token server's answer, in bytes.
const ANSWER_BYTES_MAX: u64 = 256 << 10;

/// The default lifetime of a token, according to the specification, in seconds.
const LIFETIME_DEFAULT_S: u64 = 60;

/// The minimum time for which a token is used, unless it is refused.
const LIFETIME_MIN: Duration = Duration::from_secs(1);

/// How long before its expiry a token is no longer used.
const MARGIN: Duration = Duration::from_secs(5);

#[derive(Deserialize)]
struct TokenAnswer {
    token: Option<String>,
    access_token: Option<String>,
    expires_in: Option<u64>,
}

/// Requests a token.
///
/// # Errors
/// The token server refuses the credentials, or cannot be reached.
pub(super) async fn authorize(
    client: &HttpClient,
    space: &ProtectionSpace,
    challenge: &Challenge,
    credential: Option<DockerCredential>,
) -> Result<Authorization, Fault> {
    let asked = Instant::now();
    let answer = client.send(request(space, challenge, credential)?).await?;
    let status = answer.response.status();
    if status != StatusCode::OK {
        let Fault { kind, message } = Fault::of_answer(status, answer.response.headers());
        let kind = if kind == FaultKind::Gone { FaultKind::Refused } else { kind };
        return Err(Fault { kind, message: format!("token server: {message}") });
    }
    let body = client.body(answer.response, ANSWER_BYTES_MAX).await?;
    let answer: TokenAnswer =
        serde_json::from_slice(&body).map_err(|error| Fault::transient(format!("token server: {error}")))?;
    let token = answer.token.or(answer.access_token).filter(|token| !token.is_empty());
    let token = token.ok_or_else(|| Fault::transient("token server: the answer contains no token"))?;
    let lifetime = Duration::from_secs(answer.expires_in.unwrap_or(LIFETIME_DEFAULT_S));
    let lifetime = lifetime.saturating_sub(MARGIN.min(lifetime / 2)).max(LIFETIME_MIN);
    Ok(Authorization { value: bearer(&token)?, expires: asked.checked_add(lifetime) })
}

fn request(
    space: &ProtectionSpace,
    challenge: &Challenge,
    credential: Option<DockerCredential>,
) -> Result<Request, Fault> {
    let realm = challenge.parameter("realm").unwrap_or_default();
    let url = Url::parse(realm).map_err(|_| Fault::refused(format!("token server address '{realm}' is not a URL")))?;
    if url.scheme() != "https" && space.base.scheme() == "https" {
        return Err(Fault::refused(format!("token server address '{realm}' does not use TLS")));
    }
    let mut pairs = vec![("scope", challenge.parameter("scope").unwrap_or(&space.scope))];
    pairs.extend(challenge.parameter("service").map(|service| ("service", service)));
    let mut request = Request::get(url);
    match credential {
        Some(DockerCredential::IdentityToken(identity)) => {
            pairs.extend([("grant_type", "refresh_token"), ("client_id", "floe"), ("refresh_token", &identity)]);
            let form = url::form_urlencoded::Serializer::new(String::new()).extend_pairs(pairs).finish();
            request.method = Method::POST;
            let form_type = HeaderValue::from_static("application/x-www-form-urlencoded");
            request.headers.insert(header::CONTENT_TYPE, form_type);
            request.body = Some(Bytes::from(form));
        }
        credential => {
            if let Some(DockerCredential::UsernamePassword(user, password)) = credential {
                request.secrets.insert(header::AUTHORIZATION, basic(&user, &password));
            }
            request.url.query_pairs_mut().extend_pairs(pairs);
        }
    }
    Ok(request)
}
