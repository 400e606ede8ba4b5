//! Finds the user's credentials for a registry, in the files and with the helpers of docker and Podman.

use std::env;

use docker_credential::{CredentialRetrievalError, DockerCredential};

use crate::fault::Fault;

/// The key under which docker stores the credentials of its own registry.
const DOCKER_HUB_KEY: &str = "https://index.docker.io/v1/";

/// The user's credentials for a registry; `None` if there are none. Reads files and runs helpers each time, because
/// credentials expire.
///
/// # Errors
/// A helper fails, or an entry cannot be parsed.
pub(crate) async fn credential(registry: String) -> Result<Option<DockerCredential>, Fault> {
    let found = tokio::task::spawn_blocking(move || find(&registry)).await;
    found.map_err(|error| Fault::transient(format!("credentials: {error}")))?
}

fn find(registry: &str) -> Result<Option<DockerCredential>, Fault> {
    type Lookup = fn(&str) -> Result<DockerCredential, CredentialRetrievalError>;
    let docker: Lookup = docker_credential::get_credential;
    let podman: Lookup = docker_credential::get_podman_credential;
    // REGISTRY_AUTH_FILE was set explicitly, so Podman's file takes precedence.
    let order = if env::var_os("REGISTRY_AUTH_FILE").is_some() { [podman, docker] } else { [docker, podman] };
    let key = if is_docker_hub(registry) { DOCKER_HUB_KEY } else { registry };
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

/// Whether this is docker's own registry.
pub(crate) fn is_docker_hub(registry: &str) -> bool {
    matches!(registry, "docker.io" | "index.docker.io" | "registry-1.docker.io")
}
