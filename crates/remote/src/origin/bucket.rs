//! Objects in buckets, accessed by signed URLs (also with profiles from `~/.aws`) or by a token.

use std::{
    env, fmt, fs, io,
    path::PathBuf,
    pin::Pin,
    sync::{Arc, OnceLock},
    time::{Duration, Instant},
};

use floe_image::ShownName;
use floe_sync::Mutex;
use http::{HeaderMap, HeaderValue, Method, header};
use object_store::{
    ClientOptions,
    aws::{AmazonS3, AmazonS3Builder, AmazonS3ConfigKey},
    azure::{AzureConfigKey, AzureCredential, MicrosoftAzure, MicrosoftAzureBuilder},
    client::{
        HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpService, ReqwestConnector,
    },
    gcp::{GoogleCloudStorage, GoogleCloudStorageBuilder},
    path::Path,
    signer::Signer,
};
use url::Url;

use super::Target;
use crate::{ObjectService, authentication::bearer, fault::Fault, location::is_loopback};

/// How long a signed URL is valid, and how long it is used.
const SIGNED_FOR: Duration = Duration::from_secs(15 * 60);
const SIGNATURE_USED_FOR: Duration = Duration::from_secs(10 * 60);

/// The version of Azure's protocol for requests with tokens.
const AZURE_VERSION: HeaderValue = HeaderValue::from_static("2023-11-03");

/// An object in a bucket.
pub(crate) struct Bucket {
    store: Store,
    bucket: String,
    key: Path,
    /// The last target, and the time of its creation.
    target: Mutex<Option<(Target, Instant)>>,
}

/// The client that provides credentials and signs URLs. Requests for the object itself are sent like all others.
enum Store {
    S3 { store: Arc<AmazonS3>, is_anonymous: bool, endpoint: Option<String> },
    Gcs(Arc<GoogleCloudStorage>),
    Azure { store: Arc<MicrosoftAzure>, account: String, endpoint: Option<String> },
}

impl Bucket {
    /// Creates an object with the credentials of the environment and the profiles.
    ///
    /// # Errors
    /// The credentials contradict each other, or a setting is missing.
    pub(crate) fn new(service: ObjectService, bucket: &str, key: &str) -> Result<Self, Fault> {
        // Like requests for images, requests for credentials use plain HTTP for servers on this machine.
        let client = |is_plain| ClientOptions::new().with_allow_http(is_plain);
        let store = match service {
            ObjectService::S3 => Self::s3(bucket, client)?,
            ObjectService::Gcs => {
                let builder = GoogleCloudStorageBuilder::from_env().with_bucket_name(bucket);
                let builder = builder.with_http_connector(LateConnector);
                Store::Gcs(Arc::new(builder.build().map_err(misconfigured)?))
            }
            ObjectService::Azure => {
                let builder = MicrosoftAzureBuilder::from_env().with_container_name(bucket);
                let endpoint = builder.get_config_value(&AzureConfigKey::Endpoint);
                let account = builder.get_config_value(&AzureConfigKey::AccountName);
                let account = account.ok_or_else(|| Fault::refused("AZURE_STORAGE_ACCOUNT_NAME is not set"))?;
                let is_plain = endpoint.as_deref().is_some_and(is_plain);
                let builder = builder.with_client_options(client(is_plain)).with_http_connector(LateConnector);
                Store::Azure { store: Arc::new(builder.build().map_err(misconfigured)?), account, endpoint }
            }
        };
        let key = Path::parse(key).map_err(|error| Fault::refused(error.to_string()))?;
        Ok(Self { store, bucket: bucket.to_owned(), key, target: Mutex::default() })
    }

    fn s3(bucket: &str, client: impl Fn(bool) -> ClientOptions) -> Result<Store, Fault> {
        let mut builder = AmazonS3Builder::from_env().with_bucket_name(bucket);
        let is_set = |builder: &AmazonS3Builder, key| builder.get_config_value(&key).is_some();
        let profile = AwsProfile::load(|name| env::var_os(name).map(PathBuf::from), env::var("AWS_PROFILE").ok());
        let profile = profile.map_err(Fault::refused)?;
        if !is_set(&builder, AmazonS3ConfigKey::AccessKeyId) {
            for (key, value) in [
                (AmazonS3ConfigKey::AccessKeyId, profile.access_key_id),
                (AmazonS3ConfigKey::SecretAccessKey, profile.secret_access_key),
                (AmazonS3ConfigKey::Token, profile.session_token),
            ] {
                if let Some(value) = value {
                    builder = builder.with_config(key, value);
                }
            }
        }
        // The variable for this service takes precedence over the one for all services, as in AWS's own tools.
        let endpoint = env::var("AWS_ENDPOINT_URL_S3").ok();
        let endpoint = endpoint.or_else(|| builder.get_config_value(&AmazonS3ConfigKey::Endpoint));
        let endpoint = endpoint.or(profile.endpoint_url);
        if let Some(endpoint) = &endpoint {
            builder = builder.with_endpoint(endpoint);
        }
        let has_region =
            is_set(&builder, AmazonS3ConfigKey::Region) || is_set(&builder, AmazonS3ConfigKey::DefaultRegion);
        if let Some(region) = profile.region.filter(|_| !has_region) {
            builder = builder.with_region(region);
        }
        let is_anonymous = builder.get_config_value(&AmazonS3ConfigKey::SkipSignature);
        let is_anonymous = is_anonymous.is_some_and(|value| value.eq_ignore_ascii_case("true"));
        let builder = builder.with_client_options(client(endpoint.as_deref().is_some_and(is_plain)));
        let builder = builder.with_http_connector(LateConnector);
        let store = Arc::new(builder.build().map_err(misconfigured)?);
        Ok(Store::S3 { store, is_anonymous, endpoint })
    }

    /// The URL of the object, without credentials.
    ///
    /// # Errors
    /// The configured endpoint is not a URL.
    pub(crate) fn url(&self) -> Result<Url, Fault> {
        match &self.store {
            Store::S3 { endpoint: Some(endpoint), .. } => self.url_at(endpoint, Some(&self.bucket)),
            Store::S3 { endpoint: None, .. } => self.url_at(&format!("https://{}.s3.amazonaws.com", self.bucket), None),
            Store::Gcs(_) => self.url_at("https://storage.googleapis.com", Some(&self.bucket)),
            Store::Azure { endpoint: Some(endpoint), .. } => self.url_at(endpoint, Some(&self.bucket)),
            Store::Azure { account, endpoint: None, .. } => {
                self.url_at(&format!("https://{account}.blob.core.windows.net"), Some(&self.bucket))
            }
        }
    }

    /// The current target of requests.
    ///
    /// # Errors
    /// Credentials cannot be obtained.
    pub(super) async fn target(&self) -> Result<Target, Fault> {
        if let Some((target, since)) = &*self.target.lock()
            && since.elapsed() < SIGNATURE_USED_FOR
        {
            return Ok(target.clone());
        }
        let began = Instant::now();
        let target = self.make_target().await?;
        *self.target.lock() = Some((target.clone(), began));
        Ok(target)
    }

    /// Makes the next request use a new signature.
    pub(super) fn renew(&self) {
        *self.target.lock() = None;
    }

    async fn make_target(&self) -> Result<Target, Fault> {
        let mut secrets = HeaderMap::new();
        let url = match &self.store {
            Store::S3 { is_anonymous: true, .. } => self.url()?,
            Store::S3 { store, .. } => signed(store.as_ref(), &self.key).await?,
            Store::Gcs(store) => {
                let credential = store.credentials().get_credential().await.map_err(no_credentials)?;
                if !credential.bearer.is_empty() {
                    secrets.insert(header::AUTHORIZATION, bearer(&credential.bearer)?);
                }
                self.url()?
            }
            Store::Azure { store, .. } => {
                let credential = store.credentials().get_credential().await.map_err(no_credentials)?;
                let mut url = self.url()?;
                match credential.as_ref() {
                    AzureCredential::AccessKey(_) => url = signed(store.as_ref(), &self.key).await?,
                    AzureCredential::SASToken(pairs) => {
                        url.query_pairs_mut().extend_pairs(pairs);
                    }
                    AzureCredential::BearerToken(token) => {
                        secrets.insert(header::AUTHORIZATION, bearer(token)?);
                        secrets.insert("x-ms-version", AZURE_VERSION);
                    }
                }
                url
            }
        };
        Ok(Target { url, secrets, mirror: 0 })
    }

    fn url_at(&self, base: &str, bucket: Option<&str>) -> Result<Url, Fault> {
        let mut url = Url::parse(base).map_err(|error| Fault::refused(format!("'{base}': {error}")))?;
        let mut path = url.path_segments_mut().map_err(|()| Fault::refused(format!("'{base}' has no host")))?;
        path.pop_if_empty().extend(bucket).extend(self.key.parts().map(|part| part.as_ref().to_owned()));
        drop(path);
        Ok(url)
    }
}

async fn signed(store: &impl Signer, key: &Path) -> Result<Url, Fault> {
    store.signed_url(Method::GET, key, SIGNED_FOR).await.map_err(no_credentials)
}

/// Whether plain HTTP is used for an endpoint: its URL says so, and it is on this machine or was given by the user.
fn is_plain(endpoint: &str) -> bool {
    let host = Url::parse(endpoint).ok().and_then(|url| url.host_str().map(str::to_owned));
    endpoint.starts_with("http://") || host.is_some_and(|host| is_loopback(&host))
}

fn misconfigured(error: impl fmt::Display) -> Fault {
    Fault::refused(format!("the configuration of the object store: {error}"))
}

fn no_credentials(error: impl fmt::Display) -> Fault {
    Fault::transient(format!("no credentials: {error}"))
}

/// Connects with [`ReqwestConnector`] when the first request is made. Making a client loads the system's certificates,
/// which takes tens of milliseconds, and most stores never need it, because their credentials are present without a
/// request.
#[derive(Debug)]
struct LateConnector;

impl HttpConnector for LateConnector {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        Ok(HttpClient::new(LateClient { options: options.clone(), client: OnceLock::new() }))
    }
}

struct LateClient {
    options: ClientOptions,
    client: OnceLock<Result<HttpClient, Arc<object_store::Error>>>,
}

impl LateClient {
    fn client(&self) -> Result<&HttpClient, HttpError> {
        let made = || ReqwestConnector::default().connect(&self.options).map_err(Arc::new);
        let client = self.client.get_or_init(made).as_ref();
        client.map_err(|error| HttpError::new(HttpErrorKind::Unknown, Arc::clone(error)))
    }
}

impl HttpService for LateClient {
    fn call<'this, 'future>(
        &'this self,
        request: HttpRequest,
    ) -> Pin<Box<dyn Future<Output = Result<HttpResponse, HttpError>> + Send + 'future>>
    where
        'this: 'future,
        Self: 'future,
    {
        Box::pin(async move { self.client()?.execute(request).await })
    }
}

impl fmt::Debug for LateClient {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("LateClient")
    }
}

/// The maximum size of a file, in bytes.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// The supported settings of a profile in `~/.aws/credentials` and `~/.aws/config`.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
struct AwsProfile {
    access_key_id: Option<String>,
    secret_access_key: Option<String>,
    session_token: Option<String>,
    region: Option<String>,
    endpoint_url: Option<String>,
}

impl AwsProfile {
    /// Reads the profile with this name, or the profile `default`. `variable` returns the value of an environment
    /// variable.
    ///
    /// # Errors
    /// A file cannot be read, or the named profile is in neither file.
    fn load(variable: impl Fn(&str) -> Option<PathBuf>, name: Option<String>) -> Result<Self, String> {
        let home = variable("HOME").map(|home| home.join(".aws"));
        let file = |name: &str, default: &str| variable(name).or_else(|| home.as_ref().map(|home| home.join(default)));
        let credentials = text(file("AWS_SHARED_CREDENTIALS_FILE", "credentials"))?;
        let config = text(file("AWS_CONFIG_FILE", "config"))?;
        let wanted = name.as_deref().unwrap_or("default");
        let mut profile = Self::default();
        // The credentials file is read last, because it takes precedence.
        let in_config = profile.take(&config, |section| {
            section == wanted && wanted == "default" || section.strip_prefix("profile ").map(str::trim) == Some(wanted)
        });
        let in_credentials = profile.take(&credentials, |section| section == wanted);
        match name {
            Some(name) if !in_config && !in_credentials => Err(format!("AWS_PROFILE: there is no profile '{name}'")),
            _ => Ok(profile),
        }
    }

    /// Applies the settings of all matching sections. Returns whether there are any.
    fn take(&mut self, text: &str, fits: impl Fn(&str) -> bool) -> bool {
        let (mut is_within, mut is_found) = (false, false);
        for line in text.lines() {
            let is_indented = line.starts_with([' ', '\t']);
            let line = line.trim();
            if line.is_empty() || line.starts_with(['#', ';']) {
                continue;
            }
            if let Some(section) = line.strip_prefix('[').and_then(|line| line.split(']').next()) {
                is_within = fits(section.trim());
                is_found |= is_within;
                continue;
            }
            // Indented lines belong to the preceding value.
            let Some((key, value)) = line.split_once('=').filter(|_| is_within && !is_indented) else { continue };
            let place = match key.trim() {
                "aws_access_key_id" => &mut self.access_key_id,
                "aws_secret_access_key" => &mut self.secret_access_key,
                "aws_session_token" => &mut self.session_token,
                "region" => &mut self.region,
                "endpoint_url" => &mut self.endpoint_url,
                _ => continue,
            };
            *place = Some(value.trim().to_owned());
        }
        is_found
    }
}

fn text(path: Option<PathBuf>) -> Result<String, String> {
    let Some(path) = path else { return Ok(String::new()) };
    let failed = |error: io::Error| format!("{}: {error}", path.shown());
    match fs::metadata(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(String::new()),
        Err(error) => Err(failed(error)),
        Ok(metadata) if metadata.len() > FILE_BYTES_MAX => Err(failed(io::ErrorKind::FileTooLarge.into())),
        Ok(_) => fs::read_to_string(&path).map_err(failed),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn profiles_are_read_from_both_files() {
        let home = tempfile::tempdir().expect("a directory");
        fs::create_dir(home.path().join(".aws")).expect("made");
        let credentials =
            "[default]\naws_access_key_id = A\naws_secret_access_key=B=\n# x\n[other]\naws_access_key_id=C\n";
        let config = "[default]\nregion = eu-1\n[profile other]\nregion=us-1\nservices = x\n  endpoint_url = http://no\n\
                      endpoint_url = http://localhost:1\naws_access_key_id=no\n[other]\nregion=no\n";
        fs::write(home.path().join(".aws/credentials"), credentials).expect("written");
        fs::write(home.path().join(".aws/config"), config).expect("written");
        let variable = |name: &str| (name == "HOME").then(|| home.path().to_owned());
        let text = |text: &str| Some(text.to_owned());
        let default = AwsProfile {
            access_key_id: text("A"),
            secret_access_key: text("B="),
            region: text("eu-1"),
            ..AwsProfile::default()
        };
        let other = AwsProfile {
            access_key_id: text("C"),
            region: text("us-1"),
            endpoint_url: text("http://localhost:1"),
            ..AwsProfile::default()
        };
        assert_eq!(AwsProfile::load(variable, None), Ok(default));
        assert_eq!(AwsProfile::load(variable, text("other")), Ok(other));
        assert_eq!(AwsProfile::load(variable, text("none")), Err("AWS_PROFILE: there is no profile 'none'".to_owned()));
        assert_eq!(AwsProfile::load(|_| None, None), Ok(AwsProfile::default()));
    }
}
