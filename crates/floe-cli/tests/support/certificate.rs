//! Certificates of servers of tests.

use std::{
    ffi::{OsStr, OsString},
    fs,
    path::PathBuf,
    process::Command,
};

use tempfile::TempDir;

/// A key and a certificate, which is trusted if the environment names it.
pub(crate) struct Certificate {
    directory: TempDir,
    path: OsString,
}

impl Certificate {
    /// A certificate for this name, such as `DNS:example.org` or `IP:127.0.0.1`.
    pub(crate) fn of(name: &str) -> Self {
        let directory = TempDir::new().expect("a directory");
        let path = directory.path().join("certificate.pem");
        let configuration = directory.path().join("configuration");
        let text = format!(
            "[req]\ndistinguished_name = name\nx509_extensions = extensions\nprompt = no\n[name]\nCN = a server of \
             tests\n[extensions]\nbasicConstraints = critical, CA:FALSE\nsubjectAltName = {name}\n"
        );
        fs::write(&configuration, text).expect("written");
        let mut openssl = Command::new("openssl");
        openssl.args(["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-config"]).arg(&configuration);
        let output = openssl.arg("-keyout").arg(directory.path().join("key.pem")).arg("-out").arg(&path).output();
        let output = output.expect("openssl runs");
        assert!(output.status.success(), "{output:?}");
        Self { path: path.into(), directory }
    }

    /// The variable of the environment that makes Floe trust it.
    pub(crate) fn trusted(&self) -> (&str, &OsStr) {
        ("SSL_CERT_FILE", &self.path)
    }

    /// The file with the certificate.
    pub(crate) fn file(&self) -> PathBuf {
        PathBuf::from(&self.path)
    }

    /// The file with the key.
    pub(crate) fn key(&self) -> PathBuf {
        self.directory.path().join("key.pem")
    }

    /// A file with the credentials of a service account of Google's that has this key.
    pub(crate) fn google_account(&self) -> OsString {
        let key = fs::read_to_string(self.key()).expect("written");
        let account = serde_json::json!({
            "type": "service_account", "client_email": "someone@example.org", "private_key_id": "1", "private_key": key,
        });
        let path = self.directory.path().join("account.json");
        fs::write(&path, account.to_string()).expect("written");
        path.into()
    }
}
