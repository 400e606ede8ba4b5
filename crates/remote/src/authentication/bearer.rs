//! The scheme Bearer: tokens from a token server, which `WWW-Authenticate` names.

use std::time::{Duration, Instant};

use bytes::Bytes;
use docker_credential::DockerCredential;
use http::{HeaderValue, Method, StatusCode, header};
use serde::Deserialize;
use url::Url;

use super::{Authorization, ProtectionSpace, basic, bearer};
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

/// A challenge: a scheme with its parameters.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Challenge {
    scheme: String,
    parameters: Vec<(String, String)>,
}

impl Challenge {
    /// Parses the header, which may contain several challenges.
    pub(super) fn all(header: &str) -> Vec<Self> {
        let mut challenges: Vec<Self> = Vec::new();
        let mut rest = header;
        loop {
            rest = rest.trim_start_matches([' ', '\t', ',']);
            let word_len = rest.find([' ', '\t', ',', '=']).unwrap_or(rest.len());
            if word_len == 0 {
                return challenges;
            }
            let (word, behind) = rest.split_at(word_len);
            let behind = behind.trim_start_matches([' ', '\t']);
            let Some(value) = behind.strip_prefix('=') else {
                challenges.push(Self { scheme: word.to_owned(), parameters: Vec::new() });
                rest = behind;
                continue;
            };
            let (value, behind) = parameter(value.trim_start_matches([' ', '\t']));
            if let Some(challenge) = challenges.last_mut() {
                challenge.parameters.push((word.to_owned(), value));
            }
            rest = behind;
        }
    }

    /// Whether the scheme has this name, in lower case.
    pub(super) fn is(&self, scheme: &str) -> bool {
        self.scheme.eq_ignore_ascii_case(scheme)
    }

    /// The value of a parameter.
    pub(super) fn parameter(&self, name: &str) -> Option<&str> {
        let (_, value) = self.parameters.iter().find(|(key, _)| key.eq_ignore_ascii_case(name))?;
        Some(value)
    }
}

/// Splits off the value at the beginning.
fn parameter(text: &str) -> (String, &str) {
    let Some(quoted) = text.strip_prefix('"') else {
        let len = text.find([' ', '\t', ',']).unwrap_or(text.len());
        return (text[..len].to_owned(), &text[len..]);
    };
    let mut value = String::new();
    let mut characters = quoted.char_indices();
    while let Some((at, character)) = characters.next() {
        match character {
            '"' => return (value, &quoted[at + 1..]),
            '\\' => value.extend(characters.next().map(|(_, escaped)| escaped)),
            _ => value.push(character),
        }
    }
    (value, "")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn challenges_are_read() {
        type Expected = &'static [(&'static str, &'static [(&'static str, &'static str)])];
        let rows: &[(&str, Expected)] = &[
            (
                "Bearer realm=\"https://auth/token\",service=\"reg\",scope=\"repository:a/b:pull,push\"",
                &[(
                    "bearer",
                    &[("realm", "https://auth/token"), ("service", "reg"), ("scope", "repository:a/b:pull,push")],
                )],
            ),
            ("bearer  realm = https://a , Service=b", &[("bearer", &[("realm", "https://a"), ("service", "b")])]),
            (
                "Basic realm=\"x\", Bearer realm=\"y\\\"z\"",
                &[("basic", &[("realm", "x")]), ("bearer", &[("realm", "y\"z")])],
            ),
            ("Negotiate, NTLM", &[("negotiate", &[]), ("ntlm", &[])]),
            ("Bearer realm=\"open", &[("bearer", &[("realm", "open")])]),
            ("=,=", &[]),
            ("", &[]),
        ];
        for (header, expected) in rows {
            let found = Challenge::all(header);
            assert_eq!(found.len(), expected.len(), "{header}");
            for (challenge, (scheme, parameters)) in found.iter().zip(*expected) {
                assert!(challenge.is(scheme) && challenge.parameters.len() == parameters.len(), "{header}");
                for (name, value) in *parameters {
                    assert_eq!(challenge.parameter(name), Some(*value), "{header}");
                }
            }
        }
    }
}
