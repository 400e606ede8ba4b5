//! The endpoints of a registry's API: the registry itself and its mirrors.

use http::{HeaderMap, HeaderName, HeaderValue};
use url::Url;

use crate::{
    authentication::{Credentials, ProtectionSpace},
    fault::Fault,
    location::{ImageReference, is_docker_hub, is_loopback},
    registry::hosts_file::{HostsFile, Mirror},
};

/// The API host of docker's own registry.
const DOCKER_HUB_HOST: &str = "registry-1.docker.io";

/// An endpoint of a registry's API.
#[derive(Clone, Debug)]
pub(crate) struct Endpoint {
    /// The base URL, which ends with a slash.
    pub(crate) base: Url,
    /// The registry with the credentials for this endpoint.
    credentials_of: String,
    /// The registry that this endpoint mirrors.
    mirrored: Option<String>,
    /// Further headers, only for this endpoint.
    pub(crate) headers: HeaderMap,
    pub(crate) can_pull: bool,
    pub(crate) can_resolve: bool,
}

impl Endpoint {
    /// The mirrors of a registry, followed by the registry itself.
    ///
    /// # Errors
    /// The file that names the mirrors cannot be used.
    pub(crate) fn all(registry: &str, plain_http: bool) -> Result<Vec<Self>, Fault> {
        let file = HostsFile::find(registry).map_err(Fault::refused)?;
        let mirrors = file.mirrors.iter().map(|mirror| Self::mirror(mirror, registry));
        let mut endpoints = mirrors.collect::<Result<Vec<_>, _>>()?;
        let own = match file.server {
            Some(server) => {
                let mut own = Self::at(&format!("{}/v2/", server.trim_end_matches("/v2").trim_end_matches('/')))?;
                own.credentials_of = registry.to_owned();
                own
            }
            None => Self::own(registry, plain_http)?,
        };
        endpoints.push(own);
        Ok(endpoints)
    }

    /// The registry itself, which is the only endpoint for pushes.
    ///
    /// # Errors
    /// Its name is not a valid host.
    pub(crate) fn own(registry: &str, plain_http: bool) -> Result<Self, Fault> {
        let host = if is_docker_hub(registry) { DOCKER_HUB_HOST } else { registry };
        let scheme = if plain_http || is_loopback(registry) { "http" } else { "https" };
        let mut own = Self::at(&format!("{scheme}://{host}/v2/"))?;
        own.credentials_of = registry.to_owned();
        Ok(own)
    }

    fn mirror(mirror: &Mirror, registry: &str) -> Result<Self, Fault> {
        let base = mirror.url.trim_end_matches('/');
        let base = if mirror.overrides_path { format!("{base}/") } else { format!("{base}/v2/") };
        let mut endpoint = Self::at(&base)?;
        endpoint.mirrored = Some(registry.to_owned());
        endpoint.can_pull = mirror.can_pull;
        endpoint.can_resolve = mirror.can_resolve;
        for (name, value) in &mirror.headers {
            let parsed = HeaderName::try_from(name).ok().zip(HeaderValue::from_str(value).ok());
            let (name, mut value) =
                parsed.ok_or_else(|| Fault::refused(format!("hosts.toml: '{name}' is not a valid header")))?;
            value.set_sensitive(true);
            endpoint.headers.append(name, value);
        }
        Ok(endpoint)
    }

    fn at(base: &str) -> Result<Self, Fault> {
        let url = Url::parse(base).ok().filter(|url| matches!(url.scheme(), "http" | "https") && url.has_host());
        let base = url.ok_or_else(|| Fault::refused(format!("'{base}' is not the URL of a registry")))?;
        let port = base.port().map(|port| format!(":{port}")).unwrap_or_default();
        let credentials_of = format!("{}{port}", base.host_str().unwrap_or_default());
        Ok(Self { base, credentials_of, mirrored: None, headers: HeaderMap::new(), can_pull: true, can_resolve: true })
    }

    /// The protection space of requests with this scope.
    pub(crate) fn space(&self, scope: &str) -> ProtectionSpace {
        let credentials = Credentials::Registry(self.credentials_of.clone());
        ProtectionSpace { base: self.base.clone(), scope: scope.to_owned(), credentials }
    }

    /// A URL in a repository.
    pub(crate) fn url(&self, repository: &str, path: &str) -> Result<Url, Fault> {
        let url = self.base.join(&format!("{repository}/{path}"));
        let mut url = url.map_err(|error| Fault::refused(format!("'{repository}/{path}': {error}")))?;
        if let Some(registry) = &self.mirrored {
            url.query_pairs_mut().append_pair("ns", registry);
        }
        Ok(url)
    }
}

/// The repository's name in the API: docker's own registry has some repositories under `library/`.
pub(crate) fn repository_of(reference: &ImageReference) -> String {
    let is_short = is_docker_hub(&reference.registry) && !reference.repository.contains('/');
    if is_short { format!("library/{}", reference.repository) } else { reference.repository.clone() }
}

/// The token scope for reading a repository.
pub(crate) fn pull_scope(repository: &str) -> String {
    format!("repository:{repository}:pull")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn registries_are_where_their_names_say() {
        for (registry, plain, expected) in [
            ("ghcr.io", false, "https://ghcr.io/v2/a/b/tags/list"),
            ("docker.io", false, "https://registry-1.docker.io/v2/a/b/tags/list"),
            ("localhost:5000", false, "http://localhost:5000/v2/a/b/tags/list"),
            ("[::1]:5000", false, "http://[::1]:5000/v2/a/b/tags/list"),
            ("registry.example:80", true, "http://registry.example/v2/a/b/tags/list"),
        ] {
            let endpoint = Endpoint::own(registry, plain).expect("a registry");
            assert_eq!(endpoint.url("a/b", "tags/list").expect("a URL").as_str(), expected);
            assert_eq!(endpoint.credentials_of, registry);
        }
    }

    #[test]
    fn mirrors_receive_the_name_of_their_registry() {
        let mirror = Mirror {
            url: "http://mirror:5000/".to_owned(),
            can_pull: true,
            can_resolve: true,
            overrides_path: false,
            headers: vec![("x-a".to_owned(), "b".to_owned())],
        };
        let endpoint = Endpoint::mirror(&mirror, "ghcr.io").expect("a mirror");
        assert_eq!(endpoint.url("a", "blobs/x").expect("a URL").as_str(), "http://mirror:5000/v2/a/blobs/x?ns=ghcr.io");
        assert_eq!((endpoint.credentials_of.as_str(), endpoint.headers.len()), ("mirror:5000", 1));
        let mirror = Mirror { overrides_path: true, url: "http://mirror/v2/proxy".to_owned(), ..mirror };
        let endpoint = Endpoint::mirror(&mirror, "ghcr.io").expect("a mirror");
        assert_eq!(endpoint.url("a", "b").expect("a URL").as_str(), "http://mirror/v2/proxy/a/b?ns=ghcr.io");
    }
}
