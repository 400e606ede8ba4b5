//! Parses containerd's `hosts.toml`: the mirrors of a registry.

use std::{
    env, fs, io,
    path::{Path, PathBuf},
};

use floe_image::ShownName;
use toml::{Table, Value};

/// The maximum size of a file, in bytes.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// The maximum number of mirrors of one registry.
const MIRRORS_MAX: usize = 16;

/// The settings of a `hosts.toml` for one registry.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct HostsFile {
    /// The registry's own location, if it differs from its name.
    pub(crate) server: Option<String>,
    /// The mirrors, in order of preference.
    pub(crate) mirrors: Vec<Mirror>,
}

/// A mirror of a registry.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Mirror {
    pub(crate) url: String,
    pub(crate) can_pull: bool,
    pub(crate) can_resolve: bool,
    /// Whether the path of the URL is the path of the API, so that `/v2` is not appended.
    pub(crate) overrides_path: bool,
    /// Further headers.
    pub(crate) headers: Vec<(String, String)>,
}

impl HostsFile {
    /// Reads the file for a registry in the directories of the user and of the machine. Without a file, the result is
    /// empty.
    ///
    /// # Errors
    /// The file cannot be read, or contains unsupported settings.
    pub(crate) fn find(registry: &str) -> Result<Self, String> {
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
                url: if url.contains("://") { url.clone() } else { format!("https://{url}") },
                can_pull: can("pull"),
                can_resolve: can("resolve"),
                overrides_path: settings.get("override_path").and_then(Value::as_bool).unwrap_or(false),
                headers: settings.get("header").and_then(Value::as_table).map(headers).unwrap_or_default(),
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
