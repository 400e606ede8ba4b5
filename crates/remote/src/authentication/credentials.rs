//! The credentials of users: from URLs, and from the files and helpers of docker and Podman.

use std::{
    env,
    fs::File,
    io::BufReader,
    path::{Path, PathBuf},
};

use docker_credential::{CredentialRetrievalError, DockerCredential, get_credential_from_reader};
use floe_image::ShownName;
use http::HeaderValue;

use super::basic;
use crate::{
    fault::{Fault, FaultKind},
    location::is_docker_hub,
};

/// The key under which docker stores the credentials of its own registry.
const DOCKER_HUB_KEY: &str = "https://index.docker.io/v1/";

/// The source of the credentials for a server.
#[derive(Clone, PartialEq, Eq)]
pub(crate) enum Credentials {
    /// The files and helpers of docker and Podman, for the registry with this name.
    Registry(String),
    /// The user and the password in a URL, if it has them.
    Url(Option<(String, String)>),
}

impl Credentials {
    /// The credentials; `None` if there are none. `auth_file` is searched before the files of docker and Podman. Reads files and
    /// runs helpers each time, because credentials expire.
    ///
    /// # Errors
    /// A helper fails, or an entry cannot be parsed.
    pub(super) async fn find(&self, auth_file: Option<&Path>) -> Result<Option<DockerCredential>, Fault> {
        match self.clone() {
            Self::Registry(registry) => {
                let auth_file = auth_file.map(Path::to_owned);
                let found = tokio::task::spawn_blocking(move || of_registry(&registry, auth_file)).await;
                found.map_err(|error| Fault::transient(format!("credentials: {error}")))?
            }
            Self::Url(login) => Ok(login.map(|(user, password)| DockerCredential::UsernamePassword(user, password))),
        }
    }

    /// The authorization that is sent without a challenge, which saves a request.
    pub(super) fn unasked(&self) -> Option<HeaderValue> {
        match self {
            Self::Url(Some((user, password))) => Some(basic(user, password)),
            Self::Url(None) | Self::Registry(_) => None,
        }
    }

    /// Whether the user can provide other credentials later.
    pub(super) fn can_change(&self) -> bool {
        matches!(self, Self::Registry(_))
    }

    /// The fault of a request that these credentials do not permit. `message` is for credentials that can change.
    pub(super) fn fault(&self, message: &str) -> Fault {
        if self.can_change() {
            Fault { kind: FaultKind::Unauthorized { challenge: None }, message: message.to_owned() }
        } else {
            Fault::refused("the URL does not give access")
        }
    }

    /// The fault of a request that needs a user and a password.
    pub(super) fn missing(&self) -> Fault {
        match self {
            Self::Registry(registry) => self.fault(&format!("log in with 'docker login {registry}'")),
            Self::Url(_) => self.fault(""),
        }
    }
}

fn of_registry(registry: &str, auth_file: Option<PathBuf>) -> Result<Option<DockerCredential>, Fault> {
    type Lookup = fn(&str) -> Result<DockerCredential, CredentialRetrievalError>;
    let docker: Lookup = docker_credential::get_credential;
    let podman: Lookup = docker_credential::get_podman_credential;
    let key = if is_docker_hub(registry) { DOCKER_HUB_KEY } else { registry };
    if let Some(path) = auth_file {
        let failed = |error: &dyn std::fmt::Display| Fault::transient(format!("{}: {error}", path.shown()));
        match File::open(&path) {
            Ok(file) => match get_credential_from_reader(BufReader::new(file), key) {
                Ok(credential) => return Ok(Some(credential)),
                Err(CredentialRetrievalError::NoCredentialConfigured) => {}
                Err(error) => return Err(failed(&error)),
            },
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err(failed(&error)),
        }
    }
    // REGISTRY_AUTH_FILE was set explicitly, so Podman's file takes precedence.
    let order = if env::var_os("REGISTRY_AUTH_FILE").is_some() { [podman, docker] } else { [docker, podman] };
    for lookup in order {
        match lookup(key) {
            Ok(credential) => return Ok(Some(credential)),
            Err(
                CredentialRetrievalError::NoCredentialConfigured
                | CredentialRetrievalError::ConfigNotFound
                | CredentialRetrievalError::ConfigReadError,
            ) => {}
            // Helpers report missing credentials as a failure.
            Err(CredentialRetrievalError::HelperFailure { stdout, .. }) if stdout.contains("credentials not found") => {
            }
            Err(error) => return Err(Fault::transient(format!("credentials for {registry}: {error}"))),
        }
    }
    Ok(None)
}
