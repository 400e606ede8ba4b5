//! Credentials that Podman and CRI-O pass to the store, through the program that `additional-layer-store-auth-helper` names.

use std::{
    collections::BTreeMap,
    fmt,
    fs::{self, DirBuilder},
    io::{self, Read},
    os::unix::fs::{DirBuilderExt, MetadataExt},
    path::{Path, PathBuf},
};

use base64::{Engine, prelude::BASE64_STANDARD};
use floe_image::ShownName;
use floe_remote::ImageReference;
use floe_remote_cache::Digest;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::name::Reference;

/// The maximum size of a message with credentials, in bytes.
const MESSAGE_BYTES_MAX: u64 = 1 << 20;

/// The key under which docker stores the credentials of its own registry.
const DOCKER_HUB_KEY: &str = "https://index.docker.io/v1/";

/// Why credentials were not taken.
#[derive(Debug)]
pub enum CredentialsError {
    /// The message is not one of Podman or CRI-O.
    Message(String),
    /// They cannot be stored.
    File(PathBuf, io::Error),
}

/// The credentials for an image.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[derive(Default)]
struct Login {
    username: String,
    password: String,
    identity_token: String,
}

/// Takes the credentials in a message `{REFERENCE: {username, password, identityToken}}`, and stores them in a directory that
/// belongs to this user alone. Empty ones replace earlier ones.
///
/// # Errors
/// The message is not valid, or the directory cannot be used.
pub fn take(message: impl Read, directory: &Path) -> Result<(), CredentialsError> {
    let wrong = |problem: &dyn fmt::Display| CredentialsError::Message(problem.to_string());
    let mut bytes = Vec::new();
    message.take(MESSAGE_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(|error| wrong(&error))?;
    if bytes.len() as u64 > MESSAGE_BYTES_MAX {
        return Err(wrong(&format_args!("more than {MESSAGE_BYTES_MAX} bytes")));
    }
    let logins: BTreeMap<String, Login> = serde_json::from_slice(&bytes).map_err(|error| wrong(&error))?;
    let failed = |error| CredentialsError::File(directory.to_owned(), error);
    make_directory(directory).map_err(failed)?;
    for (reference, login) in logins {
        let image = Reference::new(&reference)
            .ok_or_else(|| wrong(&format_args!("'{}' is not an image", reference.escape_debug())))?
            .image();
        store(&image, &login, directory).map_err(failed)?;
    }
    Ok(())
}

/// The file with the credentials for an image, which need not exist.
pub(crate) fn file(directory: &Path, image: &ImageReference) -> PathBuf {
    let repository = format!("{}/{}", image.registry, image.repository);
    directory.join(format!("{}.json", Digest::of(repository.as_bytes())))
}

fn store(image: &ImageReference, login: &Login, directory: &Path) -> io::Result<()> {
    let path = file(directory, image);
    let Login { username, password, identity_token } = login;
    let login = if !identity_token.is_empty() {
        json!({ "identitytoken": identity_token })
    } else if !username.is_empty() {
        json!({ "auth": BASE64_STANDARD.encode(format!("{username}:{password}")) })
    } else {
        return match fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        };
    };
    let key = if image.registry == "docker.io" { DOCKER_HUB_KEY } else { &image.registry };
    let logins = Value::Object([(key.to_owned(), login)].into_iter().collect());
    // Temporary files are readable by their owner alone.
    let file = tempfile::NamedTempFile::new_in(directory)?;
    serde_json::to_writer(&file, &json!({ "auths": logins }))?;
    file.persist(path).map_err(|error| error.error)?;
    Ok(())
}

/// Makes a directory that belongs to this user alone.
fn make_directory(directory: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
    let metadata = fs::symlink_metadata(directory)?;
    let is_own = metadata.uid() == rustix::process::geteuid().as_raw();
    if !metadata.is_dir() || !is_own || metadata.mode() & 0o077 != 0 {
        return Err(io::Error::other("other users have access to it: remove it"));
    }
    Ok(())
}

impl fmt::Display for CredentialsError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Message(problem) => write!(formatter, "the credentials on standard input: {problem}"),
            Self::File(path, error) => write!(formatter, "{}: {error}", path.shown()),
        }
    }
}

impl std::error::Error for CredentialsError {}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn image(text: &str) -> ImageReference {
        Reference::new(text).expect("a reference").image()
    }

    #[test]
    fn credentials_are_stored_for_their_repository() {
        let folder = tempfile::tempdir().expect("a folder");
        let directory = folder.path().join("own");
        let message = r#"{"host:5000/app:v1":{"username":"alice","password":"s3"},
            "docker.io/library/a:b":{"identityToken":"t"},"host/none:v1":{}}"#;
        take(message.as_bytes(), &directory).expect("taken");
        let stored = |text: &str| fs::read_to_string(file(&directory, &image(text))).ok();
        let expected = r#"{"auths":{"host:5000":{"auth":"YWxpY2U6czM="}}}"#;
        assert_eq!(stored("host:5000/app:v2").as_deref(), Some(expected));
        assert_eq!(
            stored("docker.io/library/a:b").as_deref(),
            Some(r#"{"auths":{"https://index.docker.io/v1/":{"identitytoken":"t"}}}"#)
        );
        assert_eq!((stored("host:5000/other:v1"), stored("host/none:v1")), (None, None));
        let mode = fs::metadata(file(&directory, &image("host:5000/app:v1"))).expect("there").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        // A logout.
        take(&br#"{"host:5000/app:v1":{}}"#[..], &directory).expect("taken");
        assert_eq!(stored("host:5000/app:v1"), None);
    }

    #[test]
    fn wrong_messages_and_directories_are_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        let directory = folder.path().join("own");
        for message in ["", "[]", "{\"x\":{}}", "{\"host/app\":1}", "{\"host/app\":{\"username\":7}}"] {
            let error = take(message.as_bytes(), &directory).expect_err(message).to_string();
            assert!(error.starts_with("the credentials on standard input: "), "{error}");
        }
        let long = vec![b' '; 1 + MESSAGE_BYTES_MAX as usize];
        assert!(take(&long[..], &directory).expect_err("too long").to_string().contains("more than"));
        fs::set_permissions(&directory, fs::Permissions::from_mode(0o755)).expect("set");
        let error = take(&b"{}"[..], &directory).expect_err("open to others").to_string();
        assert!(error.contains("other users"), "{error}");
    }
}
