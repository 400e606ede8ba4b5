//! Parses the URLs of remote images.

use std::{fmt, str::FromStr};

use floe_remote_cache::Digest;
use url::{Host, Url};

/// The location of a remote image. Parsed once; [`fmt::Display`] prints it without credentials.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum RemoteLocation {
    /// `https://…` or `http://…`.
    Web {
        /// The URL, without its fragment.
        url: Url,
        /// The digest of the digest table that is published beside the image: `#table=sha256:…`.
        table: Option<Digest>,
    },
    /// `s3://bucket/key`, `gs://bucket/key` or `az://container/key`.
    Object {
        /// The service.
        service: ObjectService,
        /// The bucket, or the container.
        bucket: String,
        /// The key of the object in the bucket.
        key: String,
        /// As for [`RemoteLocation::Web`].
        table: Option<Digest>,
    },
    /// `oci://registry/repository[:tag|@sha256:…][#layer]`.
    Registry(ImageReference),
}

/// An object store.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ObjectService {
    /// Amazon S3, and servers with its protocol.
    S3,
    /// Google Cloud Storage.
    Gcs,
    /// Azure Blob Storage.
    Azure,
}

/// An image or an artifact in an OCI registry.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ImageReference {
    /// The host, with its port if one is given.
    pub registry: String,
    /// The repository in the registry.
    pub repository: String,
    /// The version of the manifest.
    pub version: Version,
    /// The layer of the manifest, if one was chosen.
    pub layer: Option<LayerChoice>,
}

/// The version of a manifest.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Version {
    /// The manifest that currently has this tag.
    Tag(String),
    /// The manifest with this digest.
    Digest(Digest),
}

/// The choice of a layer in an image.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum LayerChoice {
    /// The layer with this index; the lowest layer has index 0.
    Index(usize),
    /// The layer with this digest.
    Digest(Digest),
}

/// The text is not the location of a remote image. The message says what is wrong and what is expected.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BadLocation(String);

/// The supported URL schemes.
const SCHEMES: [&str; 6] = ["https", "http", "s3", "gs", "az", "oci"];

/// The maximum length of a location, in bytes.
const LOCATION_BYTES_MAX: usize = 8 << 10;

/// The maximum length of a tag, according to the distribution specification.
const TAG_BYTES_MAX: usize = 128;

/// The maximum length of a repository name, according to the distribution specification.
const REPOSITORY_BYTES_MAX: usize = 255;

impl RemoteLocation {
    /// Whether `text` is intended as a location: it begins with `https://`, `oci://` or another supported scheme.
    pub fn is_meant_by(text: &str) -> bool {
        text.split_once("://").is_some_and(|(scheme, _)| SCHEMES.contains(&scheme.to_ascii_lowercase().as_str()))
    }

    /// Whether a text that is meant as a location has a password or a query, which may contain a signature.
    pub fn has_secrets(text: &str) -> bool {
        without_secrets(text) != text
    }

    /// The text of a location for display, valid or not: without user, password, and query.
    pub fn shown(text: &str) -> String {
        text.parse::<Self>().map_or_else(|_| without_secrets(text), |location| location.to_string())
    }
}

impl FromStr for RemoteLocation {
    type Err = BadLocation;

    fn from_str(text: &str) -> Result<Self, BadLocation> {
        if text.len() > LOCATION_BYTES_MAX {
            return Err(BadLocation(format!("a URL of more than {LOCATION_BYTES_MAX} bytes")));
        }
        let bad = |problem: &str| BadLocation(format!("'{}': {problem}", without_secrets(text)));
        if text.chars().any(|character| character.is_control() || character.is_whitespace()) {
            return Err(bad("it has a space or a control character; write it as %20, for example"));
        }
        let Some((scheme, rest)) = text.split_once("://") else { return Err(bad("not a URL: there is no '://'")) };
        let (rest, fragment) = rest.split_once('#').map_or((rest, None), |(rest, fragment)| (rest, Some(fragment)));
        let scheme = scheme.to_ascii_lowercase();
        match scheme.as_str() {
            "https" | "http" => {
                let url = Url::parse(&format!("{scheme}://{rest}"));
                let url = url.map_err(|error| bad(&format!("not a URL: {error}")))?;
                Ok(Self::Web { url, table: table(fragment).map_err(bad)? })
            }
            "s3" => object(ObjectService::S3, rest, fragment).map_err(bad),
            "gs" => object(ObjectService::Gcs, rest, fragment).map_err(bad),
            "az" => object(ObjectService::Azure, rest, fragment).map_err(bad),
            "oci" if rest.contains('?') => Err(bad("a registry URL takes no query: remove the part after '?'")),
            "oci" if without_secrets(text) != text => {
                Err(bad("credentials do not belong in the URL: use 'docker login' or REGISTRY_AUTH_FILE"))
            }
            "oci" => ImageReference::parse(rest, fragment).map(Self::Registry).map_err(|problem| bad(&problem)),
            _ => Err(bad(&format!("unknown scheme '{scheme}'; expected one of {}", SCHEMES.join(", ")))),
        }
    }
}

impl ImageReference {
    fn parse(rest: &str, fragment: Option<&str>) -> Result<Self, String> {
        let expected = "expected oci://registry/repository[:tag|@sha256:…][#layer]";
        let Some((registry, path)) = rest.split_once('/') else { return Err(format!("no repository; {expected}")) };
        // An invalid host must not get into the URLs of requests.
        let is_host = Url::parse(&format!("https://{registry}/"))
            .is_ok_and(|url| url.path() == "/" && url.query().is_none() && url.username().is_empty() && url.has_host());
        if !is_host || registry.contains(['\\', '%', '?']) {
            return Err(format!("'{registry}' is not a registry; {expected}"));
        }
        let (name, digest) = path.split_once('@').map_or((path, None), |(name, digest)| (name, Some(digest)));
        let (repository, tag) = name.split_once(':').map_or((name, None), |(name, tag)| (name, Some(tag)));
        check_repository(repository)?;
        if let Some(tag) = tag {
            check_tag(tag)?;
        }
        // If both a tag and a digest are given, the digest takes precedence, as in other tools.
        let version = match digest {
            Some(digest) => Version::Digest(sha256(digest)?),
            None => Version::Tag(tag.unwrap_or("latest").to_owned()),
        };
        let layer = fragment.map(LayerChoice::from_str).transpose()?;
        Ok(Self { registry: registry.to_ascii_lowercase(), repository: repository.to_owned(), version, layer })
    }
}

impl FromStr for LayerChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.starts_with("sha256:") {
            return sha256(text).map(Self::Digest);
        }
        let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        let index = text.parse().ok().filter(|_| is_number);
        let index =
            index.ok_or_else(|| format!("'#{text}' is not a layer: expected a number, such as '#0', or a digest"));
        index.map(Self::Index)
    }
}

/// Whether a host, possibly with a port, is this machine.
pub(crate) fn is_loopback(host: &str) -> bool {
    let Ok(url) = Url::parse(&format!("https://{host}/")) else { return false };
    match url.host() {
        Some(Host::Domain(name)) => name == "localhost" || name.ends_with(".localhost"),
        Some(Host::Ipv4(address)) => address.is_loopback(),
        Some(Host::Ipv6(address)) => address.is_loopback(),
        None => false,
    }
}

/// Whether this is docker's own registry.
pub(crate) fn is_docker_hub(registry: &str) -> bool {
    matches!(registry, "docker.io" | "index.docker.io" | "registry-1.docker.io")
}

fn object(service: ObjectService, rest: &str, fragment: Option<&str>) -> Result<RemoteLocation, &'static str> {
    let Some((bucket, key)) = rest.split_once('/') else { return Err("no key; expected scheme://bucket/key") };
    let is_bucket_name = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    if bucket.contains('@') {
        return Err("credentials do not belong in the URL: use the service's environment variables or profiles");
    }
    if bucket.is_empty() || !bucket.bytes().all(is_bucket_name) {
        return Err("the bucket's name may hold letters, digits, '-', '_' and '.'");
    }
    let key = percent_encoding::percent_decode_str(key).decode_utf8().map_err(|_| "the key is not UTF-8")?;
    if key.is_empty() || key.ends_with('/') {
        return Err("no key; expected scheme://bucket/key");
    }
    let is_path = key.split('/').all(|part| !part.is_empty() && part != "." && part != "..");
    if !is_path {
        return Err("keys with empty parts, '.' or '..' are not supported");
    }
    let table = table(fragment)?;
    Ok(RemoteLocation::Object { service, bucket: bucket.to_owned(), key: key.into_owned(), table })
}

fn table(fragment: Option<&str>) -> Result<Option<Digest>, &'static str> {
    let Some(fragment) = fragment else { return Ok(None) };
    let digest = fragment.strip_prefix("table=sha256:").and_then(|digits| digits.parse().ok());
    digest.map(Some).ok_or("only 'table=sha256:…', the digest of the image's digest table, may follow '#'")
}

fn sha256(text: &str) -> Result<Digest, String> {
    let digest = text.strip_prefix("sha256:").and_then(|digits| digits.parse().ok());
    digest.ok_or_else(|| format!("'{text}' is not a digest; expected 'sha256:' and 64 hexadecimal digits"))
}

fn check_repository(repository: &str) -> Result<(), String> {
    let is_part = |part: &str| {
        let is_allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-_.".contains(&byte);
        let is_edge = |byte: Option<u8>| byte.is_some_and(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit());
        part.bytes().all(is_allowed) && is_edge(part.bytes().next()) && is_edge(part.bytes().next_back())
    };
    if repository.is_empty() {
        return Err("no repository; expected oci://registry/repository[:tag|@sha256:…][#layer]".to_owned());
    }
    if repository.len() > REPOSITORY_BYTES_MAX || !repository.split('/').all(is_part) {
        return Err(format!(
            "'{repository}' is not a repository: lower-case letters, digits, '-', '_', '.' between '/'"
        ));
    }
    Ok(())
}

fn check_tag(tag: &str) -> Result<(), String> {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    let begins_well = tag.bytes().next().is_some_and(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
    if tag.len() > TAG_BYTES_MAX || !begins_well || !tag.bytes().all(is_allowed) {
        return Err(format!("'{tag}' is not a tag: letters, digits, '-', '_', '.', at most {TAG_BYTES_MAX}"));
    }
    Ok(())
}

/// A text that may be an invalid URL, for display: without user, password, and query. An unescaped password may contain '/', '?',
/// '#' and '@'. If its end is ambiguous, the rest of the URL is omitted.
fn without_secrets(text: &str) -> String {
    let Some((scheme, rest)) = text.split_once("://") else { return text.to_owned() };
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    let (path, query) = rest.split_once('?').unwrap_or((rest, ""));
    // Digests in references follow an '@' too, but these URLs have no password.
    let is_reference = scheme.eq_ignore_ascii_case("oci") && is_host(authority) && path.len() > authority.len();
    let shown = match path.rsplit_once('@') {
        _ if is_reference => path,
        _ if query.contains('@') && !is_host(authority) => "…",
        Some((_, host)) => host,
        None => path,
    };
    format!("{scheme}://{shown}")
}

/// Whether the part of a URL before its path is a host, possibly with a port, without user and password.
fn is_host(authority: &str) -> bool {
    let port = authority.rsplit_once(':').map_or("", |(_, port)| port);
    let is_port = port.bytes().all(|byte| byte.is_ascii_digit()) || authority.ends_with(']');
    is_port && !authority.contains('@')
}

/// A URL for display: without user, password, and the query, which may contain signatures.
pub(crate) fn shown(url: &Url) -> String {
    let mut url = url.clone();
    let _ = url.set_username("");
    let _ = url.set_password(None);
    url.set_query(None);
    url.set_fragment(None);
    url.into()
}

impl fmt::Display for RemoteLocation {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Web { url, .. } => formatter.write_str(&shown(url)),
            Self::Object { service, bucket, key, .. } => {
                let scheme = match service {
                    ObjectService::S3 => "s3",
                    ObjectService::Gcs => "gs",
                    ObjectService::Azure => "az",
                };
                write!(formatter, "{scheme}://{bucket}/{key}")
            }
            Self::Registry(reference) => reference.fmt(formatter),
        }
    }
}

impl fmt::Display for ImageReference {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "oci://{}/{}", self.registry, self.repository)?;
        match &self.version {
            Version::Tag(tag) => write!(formatter, ":{tag}")?,
            Version::Digest(digest) => write!(formatter, "@sha256:{digest}")?,
        }
        match &self.layer {
            None => Ok(()),
            Some(LayerChoice::Index(index)) => write!(formatter, "#{index}"),
            Some(LayerChoice::Digest(digest)) => write!(formatter, "#sha256:{digest}"),
        }
    }
}

impl fmt::Display for BadLocation {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

impl std::error::Error for BadLocation {}

#[cfg(test)]
mod tests {
    use super::*;

    const DIGEST: &str = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

    #[test]
    fn locations_are_shown_as_they_were_written() {
        for (text, expected) in [
            ("https://example.org/a.erofs", "https://example.org/a.erofs"),
            ("HTTPS://example.org:8443/a%20b", "https://example.org:8443/a%20b"),
            ("https://user:secret@example.org/a?X-Signature=abc", "https://example.org/a"),
            ("http://[::1]:8000/a", "http://[::1]:8000/a"),
            ("s3://bucket/a/b.erofs", "s3://bucket/a/b.erofs"),
            ("gs://my_bucket/key", "gs://my_bucket/key"),
            ("az://container/key%20x", "az://container/key x"),
            ("oci://ghcr.io/floe/demo", "oci://ghcr.io/floe/demo:latest"),
            ("oci://localhost:5000/demo:v1#2", "oci://localhost:5000/demo:v1#2"),
            ("oci://[::1]:5000/a/b", "oci://[::1]:5000/a/b:latest"),
            (&format!("oci://host/a@{DIGEST}#{DIGEST}"), &format!("oci://host/a@{DIGEST}#{DIGEST}")),
            (&format!("oci://host/a:tag@{DIGEST}"), &format!("oci://host/a@{DIGEST}")),
        ] {
            assert_eq!(text.parse::<RemoteLocation>().map(|location| location.to_string()), Ok(expected.to_owned()));
            assert!(RemoteLocation::is_meant_by(text), "{text}");
        }
    }

    #[test]
    fn a_table_may_be_named_behind_a_web_url_or_an_object() {
        for text in ["https://example.org/a", "s3://bucket/a"] {
            let location: RemoteLocation = format!("{text}#table={DIGEST}").parse().expect("a location");
            let (RemoteLocation::Web { table, .. } | RemoteLocation::Object { table, .. }) = location else { panic!() };
            assert_eq!(table, Some(Digest::of(b"")));
        }
    }

    #[test]
    fn wrong_locations_are_refused_with_advice() {
        for (text, expected) in [
            ("image.erofs", "not a URL"),
            ("ftp://example.org/a", "unknown scheme 'ftp'"),
            ("https://", "not a URL"),
            ("https://host/a b", "write it as %20"),
            ("https://host/a\n", "write it as %20"),
            ("https://host/a#sha256:12", "table=sha256"),
            ("https://host/a#table=sha256:12", "table=sha256"),
            ("s3://bucket", "no key"),
            ("s3://bucket/", "no key"),
            ("s3://bucket/a/../b", "'..'"),
            ("s3://bucket/a//b", "empty parts"),
            ("s3:///key", "bucket's name"),
            ("s3://key:secret@bucket/key", "credentials do not belong"),
            ("oci://host", "no repository"),
            ("oci://host/", "no repository"),
            ("oci://user:pw@host/a", "docker login"),
            ("http://alice:top#secret@host/a", "'http://host/a'"),
            ("http://alice:top/secret@host/a", "'http://host/a'"),
            ("http://alice:top?se@cret@host/a b", "'http://…'"),
            ("http://alice:top/se@cret@host/a b?top", "'http://host/a b'"),
            ("https://host/a b?X-Signature=topsecret", "'https://host/a b'"),
            ("https://host:80/a b?mail=top@secret", "'https://host:80/a b'"),
            ("https://[::1]/a b?mail=top@secret", "'https://[::1]/a b'"),
            ("https://host:x/a?mail=top@secret", "'https://…'"),
            ("s3://bucket/a//b?secret", "'s3://bucket/a//b'"),
            ("ftp://host/a?secret", "'ftp://host/a'"),
            ("oci://host/a:v1?secret", "takes no query"),
            ("http://alice:top secret@host/a", "'http://host/a'"),
            ("oci://alice:top/secret@host/a", "'oci://host/a'"),
            ("oci://host:5000/a@sha256:12", "'oci://host:5000/a@sha256:12'"),
            ("oci:///a", "is not a registry"),
            ("oci://host?x/a", "takes no query"),
            ("oci://host\\evil/a", "is not a registry"),
            ("oci://host/A", "is not a repository"),
            ("oci://host/../a", "is not a repository"),
            ("oci://host/a/", "is not a repository"),
            ("oci://host/a?b", "takes no query"),
            ("oci://host/a:", "is not a tag"),
            ("oci://host/a:b/c", "is not a tag"),
            ("oci://host/a@sha256:12", "is not a digest"),
            ("oci://host/a@md5:12", "is not a digest"),
            ("oci://host/a#", "is not a layer"),
            ("oci://host/a#-1", "is not a layer"),
            ("oci://host/a#+1", "is not a layer"),
        ] {
            let error = text.parse::<RemoteLocation>().expect_err(text).to_string();
            assert!(
                error.contains(expected)
                    && !error.contains("secret")
                    && !error.contains(":pw")
                    && !error.contains("top"),
                "{text}: {error}"
            );
        }
        assert!(!RemoteLocation::is_meant_by("image.erofs") && !RemoteLocation::is_meant_by("/a://b"));
    }

    #[test]
    fn registries_on_this_machine_are_known() {
        for (registry, expected) in [
            ("localhost", true),
            ("localhost:5000", true),
            ("a.localhost", true),
            ("127.0.0.1:5000", true),
            ("127.9.9.9", true),
            ("[::1]:5000", true),
            ("localhost.example.org", false),
            ("10.0.0.1", false),
            ("ghcr.io", false),
        ] {
            assert_eq!(is_loopback(registry), expected, "{registry}");
        }
    }
}
