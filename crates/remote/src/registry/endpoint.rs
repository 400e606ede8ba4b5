//! The endpoints of a registry's API: the registry itself, and its mirrors according to `hosts.toml`.

use std::{
    env, fs, io,
    path::{Path, PathBuf},
};

use floe_image::ShownName;
use http::{HeaderMap, HeaderName, HeaderValue};
use toml::{Table, Value};
use url::Url;

use crate::{
    RemoteOptions,
    authentication::{Credentials, ProtectionSpace},
    fault::Fault,
    location::{ImageReference, is_docker_hub, is_loopback},
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
    /// The mirrors of a registry, those of the options first, followed by the registry itself.
    ///
    /// # Errors
    /// A mirror, or the file that names them, cannot be used.
    pub(crate) fn all(registry: &str, options: &RemoteOptions) -> Result<Vec<Self>, Fault> {
        let file = HostsFile::find(registry).map_err(Fault::refused)?;
        let own = options.mirrors.iter().map(|url| Mirror::at(url));
        let mirrors: Vec<Mirror> = own.chain(file.mirrors).collect();
        let mirrors = mirrors.iter().map(|mirror| Self::mirror(mirror, registry));
        let mut endpoints = mirrors.collect::<Result<Vec<_>, _>>()?;
        let own = match file.server {
            Some(server) => {
                let mut own = Self::at(&format!("{}/v2/", server.trim_end_matches("/v2").trim_end_matches('/')))?;
                own.credentials_of = registry.to_owned();
                own
            }
            None => Self::own(registry, options.plain_http)?,
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

/// The maximum size of a file, in bytes.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// The maximum number of mirrors of one registry.
const MIRRORS_MAX: usize = 16;

/// The settings of a `hosts.toml` for one registry.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
struct HostsFile {
    /// The registry's own location, if it differs from its name.
    server: Option<String>,
    /// The mirrors, in order of preference.
    mirrors: Vec<Mirror>,
}

/// A mirror of a registry.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Mirror {
    url: String,
    can_pull: bool,
    can_resolve: bool,
    /// Whether the path of the URL is the path of the API, so that `/v2` is not appended.
    overrides_path: bool,
    /// Further headers.
    headers: Vec<(String, String)>,
}

impl Mirror {
    /// A mirror with all capabilities.
    fn at(url: &str) -> Self {
        Self {
            url: if url.contains("://") { url.to_owned() } else { format!("https://{url}") },
            can_pull: true,
            can_resolve: true,
            overrides_path: false,
            headers: Vec::new(),
        }
    }
}

impl HostsFile {
    /// Reads the file for a registry in the directories of the user and of the machine. Without a file, the result is
    /// empty.
    ///
    /// # Errors
    /// The file cannot be read, or contains unsupported settings.
    fn find(registry: &str) -> Result<Self, String> {
        let config = env::var_os("XDG_CONFIG_HOME").map(PathBuf::from);
        let config = config.or_else(|| env::var_os("HOME").map(|home| Path::new(&home).join(".config")));
        let own = config.map(|config| config.join("containerd/certs.d"));
        for directory in own.into_iter().chain([PathBuf::from("/etc/containerd/certs.d")]) {
            for name in names(registry) {
                let path = directory.join(name).join("hosts.toml");
                let failed = |error: String| format!("{}: {error}", path.shown());
                match fs::metadata(&path) {
                    Err(_) => {}
                    Ok(metadata) if metadata.len() > FILE_BYTES_MAX => return Err(failed("it is too long".to_owned())),
                    Ok(_) => {
                        let text = fs::read_to_string(&path).map_err(|error: io::Error| failed(error.to_string()))?;
                        return Self::parse(&text).map_err(failed);
                    }
                }
            }
        }
        Ok(Self::default())
    }

    fn parse(text: &str) -> Result<Self, String> {
        let table: Table = text.parse().map_err(|error: toml::de::Error| error.message().to_owned())?;
        check(&table)?;
        let server =
            table.get("server").map(|value| value.as_str().map(str::to_owned).ok_or("'server' is not a string"));
        let mut mirrors = Vec::new();
        let hosts = match table.get("host") {
            None => &Table::new(),
            Some(hosts) => hosts.as_table().ok_or("'host' is not a table")?,
        };
        for (url, settings) in hosts.iter().take(MIRRORS_MAX) {
            let settings = settings.as_table().ok_or("a host is not a table")?;
            check(settings)?;
            let can = |name: &str| match settings.get("capabilities").and_then(Value::as_array) {
                None => true,
                Some(capabilities) => capabilities.iter().any(|capability| capability.as_str() == Some(name)),
            };
            mirrors.push(Mirror {
                can_pull: can("pull"),
                can_resolve: can("resolve"),
                overrides_path: settings.get("override_path").and_then(Value::as_bool).unwrap_or(false),
                headers: settings.get("header").and_then(Value::as_table).map(headers).unwrap_or_default(),
                ..Mirror::at(url)
            });
        }
        Ok(Self { server: server.transpose()?, mirrors })
    }
}

/// The directory names that containerd uses for a registry.
fn names(registry: &str) -> Vec<String> {
    let with_port = registry.rsplit_once(':').filter(|(_, port)| port.bytes().all(|byte| byte.is_ascii_digit()));
    let with_port = with_port.map(|(host, port)| format!("{host}_{port}_"));
    with_port.into_iter().chain([registry.to_owned(), "_default".to_owned()]).collect()
}

/// Refuses settings that would otherwise be ignored.
fn check(settings: &Table) -> Result<(), String> {
    if settings.get("skip_verify").and_then(Value::as_bool) == Some(true) {
        return Err("'skip_verify' is not supported: name the registry's certificate with SSL_CERT_FILE".to_owned());
    }
    for key in ["ca", "client"] {
        if settings.contains_key(key) {
            return Err(format!("'{key}' is not supported: name certificates with SSL_CERT_FILE or SSL_CERT_DIR"));
        }
    }
    Ok(())
}

fn headers(table: &Table) -> Vec<(String, String)> {
    let values = |value: &Value| match value {
        Value::String(text) => vec![text.clone()],
        Value::Array(array) => array.iter().filter_map(|value| value.as_str().map(str::to_owned)).collect(),
        _ => Vec::new(),
    };
    table.iter().flat_map(|(name, value)| values(value).into_iter().map(|value| (name.clone(), value))).collect()
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

    #[test]
    fn mirrors_keep_their_order() {
        let text = r#"
            server = "https://registry-1.docker.io"
            [host."https://zebra.example"]
            capabilities = ["pull"]
            [host."http://ant.example:5000/v2/proxy"]
            override_path = true
            [host."http://ant.example:5000/v2/proxy".header]
            x-one = "1"
            x-two = ["2", "3"]
        "#;
        let file = HostsFile::parse(text).expect("sound");
        assert_eq!(file.server.as_deref(), Some("https://registry-1.docker.io"));
        let urls: Vec<_> = file.mirrors.iter().map(|mirror| mirror.url.as_str()).collect();
        assert_eq!(urls, ["https://zebra.example", "http://ant.example:5000/v2/proxy"]);
        assert!(file.mirrors[0].can_pull && !file.mirrors[0].can_resolve && !file.mirrors[0].overrides_path);
        assert!(file.mirrors[1].can_resolve && file.mirrors[1].overrides_path);
        assert_eq!(file.mirrors[1].headers.len(), 3);
    }

    #[test]
    fn unsupported_hosts_files_are_refused() {
        for (text, expected) in [
            ("ca = 'x'", "SSL_CERT_FILE"),
            ("[host.'https://a']\nskip_verify = true", "skip_verify"),
            ("[host.'https://a']\nclient = 'x'", "client"),
            ("host = 1", "not a table"),
            ("server = 1", "not a string"),
            ("[", ""),
        ] {
            let error = HostsFile::parse(text).expect_err(text);
            assert!(error.contains(expected), "{text}: {error}");
        }
        assert_eq!(HostsFile::parse(""), Ok(HostsFile::default()));
    }

    #[test]
    fn directories_are_named_as_containerd_names_them() {
        assert_eq!(names("ghcr.io"), ["ghcr.io", "_default"]);
        assert_eq!(names("localhost:5000"), ["localhost_5000_", "localhost:5000", "_default"]);
    }
}
