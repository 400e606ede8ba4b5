//! Real servers of remote images, on ports of this machine.

use std::{
    ffi::{OsStr, OsString},
    fs,
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use floe_testkit::{manifest::sha256_hex, peer};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

/// How long a server may take to listen.
const PATIENCE: Duration = Duration::from_secs(60);

/// A running server. It is killed when dropped.
pub(crate) struct RealServer {
    command: Command,
    child: Child,
    pub(crate) port: u16,
    /// The directory with the files that it serves or stores.
    pub(crate) directory: TempDir,
}

impl RealServer {
    /// nginx, which serves the files of its directory.
    pub(crate) fn nginx() -> Self {
        Self::nginx_with("", "", "")
    }

    /// nginx, which answers 429 to requests beyond this number per second.
    pub(crate) fn limited_nginx(requests_per_s: u32) -> Self {
        let zone = format!("limit_req_zone $server_addr zone=all:1m rate={requests_per_s}r/s; limit_req_status 429;");
        Self::nginx_with(&zone, "limit_req zone=all;", "")
    }

    /// nginx with TLS, and additional directives.
    pub(crate) fn tls_nginx(certificate: &Certificate, directives: &str) -> Self {
        let [certificate, key] = [certificate.file(), certificate.key()];
        let (certificate, key) = (certificate.display(), key.display());
        Self::nginx_with("", &format!("ssl_certificate {certificate}; ssl_certificate_key {key}; {directives}"), "ssl")
    }

    fn nginx_with(for_all: &str, for_server: &str, protocol: &str) -> Self {
        let (port, directory) = (free_port(), directory());
        let path = directory.path().display();
        let configuration = format!(
            "daemon off; pid {path}/.pid; error_log stderr; user root; worker_processes 1; events {{}}\n\
             http {{ {for_all} access_log off; client_body_temp_path {path}/.a; proxy_temp_path {path}/.b; fastcgi_temp_path \
             {path}/.c; uwsgi_temp_path {path}/.d; scgi_temp_path {path}/.e;\n\
             server {{ listen 127.0.0.1:{port} {protocol}; root {path}; disable_symlinks off; {for_server} }} }}\n"
        );
        let file = directory.path().join(".conf");
        fs::write(&file, configuration).expect("written");
        let mut command = Command::new(peer("nginx").expect("the test needs it"));
        command.arg("-c").arg(&file);
        Self::start(command, port, directory)
    }

    /// docker's registry, with an empty store.
    pub(crate) fn registry() -> Self {
        Self::registry_with("")
    }

    /// docker's registry, with an empty store, and additional sections in its configuration.
    pub(crate) fn registry_with(sections: &str) -> Self {
        let (port, directory) = (free_port(), directory());
        let configuration = format!(
            "version: 0.1\nlog: {{level: error}}\nstorage: {{filesystem: {{rootdirectory: {}}}}}\nhttp: {{addr: \
             '127.0.0.1:{port}'}}\n{sections}",
            directory.path().display()
        );
        let file = directory.path().join("config.yml");
        fs::write(&file, configuration).expect("written");
        let mut command = Command::new(peer("docker-registry").expect("the test needs it"));
        command.arg("serve").arg(&file);
        Self::start(command, port, directory)
    }

    /// versitygw, an S3 server. Buckets are folders of its directory.
    pub(crate) fn s3() -> Self {
        let (port, directory) = (free_port(), directory());
        let mut command = Command::new(peer("versitygw").expect("the test needs it"));
        command.args(["--access", "someone", "--secret", "something", "--region", "us-east-1", "--quiet"]);
        command.arg("--port").arg(format!("127.0.0.1:{port}")).arg("posix").arg("--nometa").arg(directory.path());
        Self::start(command, port, directory)
    }

    fn start(mut command: Command, port: u16, directory: TempDir) -> Self {
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let child = command.spawn().expect("the server starts");
        let mut server = Self { command, child, port, directory };
        server.wait();
        server
    }

    /// Ends the server; its directory stays.
    pub(crate) fn stop(&mut self) {
        // nginx has a worker process, which ends with the first process only if that ends regularly.
        let _ = kill_process(Pid::from_child(&self.child), Signal::TERM);
        let started = Instant::now();
        while self.child.try_wait().is_ok_and(|ended| ended.is_none()) {
            if started.elapsed() > Duration::from_secs(5) {
                let _ = self.child.kill();
            }
            thread::sleep(Duration::from_millis(10));
        }
    }

    /// Starts the server again, on the same port.
    pub(crate) fn start_again(&mut self) {
        self.child = self.command.spawn().expect("the server starts");
        self.wait();
    }

    fn wait(&mut self) {
        let started = Instant::now();
        while TcpStream::connect(("127.0.0.1", self.port)).is_err() {
            let ended = self.child.try_wait().expect("our own child");
            assert!(ended.is_none(), "{:?} ended with {ended:?}", self.command);
            assert!(started.elapsed() < PATIENCE, "{:?} does not listen", self.command);
            thread::sleep(Duration::from_millis(20));
        }
    }

    pub(crate) fn path(&self) -> &Path {
        self.directory.path()
    }

    /// Stores a file in docker's registry, as the only layer of an artifact with the tag `v1`.
    pub(crate) fn store_artifact(&self, name: &str, file: &Path) {
        let temporary = |content: &str| {
            let file = tempfile::NamedTempFile::new_in(self.path()).expect("a file");
            fs::write(&file, content).expect("written");
            file
        };
        let descriptor = |media_type: &str, file: &Path| {
            let bytes = fs::read(file).expect("read");
            let digest = format!("sha256:{}", sha256_hex(&bytes));
            let started = self.curl(&["-i", "-X", "POST"], &format!("{name}/blobs/uploads/"), None);
            let location = started.lines().find_map(|line| line.strip_prefix("Location: ")).expect("a place").trim();
            let upload = location.split_once("/v2/").map_or(location, |(_, path)| path);
            self.curl(&["-X", "PUT"], &format!("{upload}&digest={digest}"), Some(("application/octet-stream", file)));
            serde_json::json!({ "mediaType": media_type, "digest": digest, "size": bytes.len() })
        };
        let manifest_type = "application/vnd.oci.image.manifest.v1+json";
        let manifest = serde_json::json!({
            "schemaVersion": 2,
            "mediaType": manifest_type,
            "config": descriptor("application/vnd.oci.empty.v1+json", temporary("{}").path()),
            "layers": [descriptor("application/octet-stream", file)],
        });
        let manifest = temporary(&manifest.to_string());
        self.curl(&["-X", "PUT"], &format!("{name}/manifests/v1"), Some((manifest_type, manifest.path())));
    }

    /// Sends a request to docker's registry, with a file as its body, and returns the answer.
    fn curl(&self, options: &[&str], path: &str, body: Option<(&str, &Path)>) -> String {
        let mut curl = Command::new(peer("curl").expect("the test needs it"));
        curl.args(["--silent", "--show-error", "--fail"]).args(options);
        if let Some((media_type, file)) = body {
            curl.args(["-H", &format!("Content-Type: {media_type}"), "--data-binary", &format!("@{}", file.display())]);
        }
        let output = curl.arg(format!("http://127.0.0.1:{}/v2/{path}", self.port)).output().expect("curl runs");
        assert!(output.status.success(), "{path}: {output:?}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Links a file into the directory under this name.
    pub(crate) fn offer(&self, file: &Path, name: &str) -> PathBuf {
        let path = self.path().join(name);
        fs::create_dir_all(path.parent().expect("it is in the directory")).expect("made");
        if fs::hard_link(file, &path).is_err() {
            fs::copy(file, &path).expect("copied");
        }
        path
    }
}

impl Drop for RealServer {
    fn drop(&mut self) {
        self.stop();
    }
}

pub(crate) fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.local_addr().expect("an address").port()
}

fn directory() -> TempDir {
    let directory = tempfile::Builder::new().prefix("floe-server-").tempdir().expect("a directory");
    // The servers run without root's rights.
    fs::set_permissions(directory.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).expect("set");
    directory
}

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

/// A proxy to one server. It is killed when dropped.
pub(crate) struct Toxiproxy {
    child: Child,
    control: u16,
    /// The address for clients.
    pub(crate) port: u16,
}

impl Toxiproxy {
    /// A proxy to the server that listens on `upstream`.
    pub(crate) fn to(upstream: u16) -> Self {
        let [control, port] = [(); 2].map(|()| free_port());
        let mut command = Command::new(peer("toxiproxy-server").expect("the test needs it"));
        command.args(["-host", "127.0.0.1", "-port", &control.to_string()]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let proxy = Self { child: command.spawn().expect("toxiproxy starts"), control, port };
        let started = Instant::now();
        while TcpStream::connect(("127.0.0.1", control)).is_err() {
            assert!(started.elapsed() < PATIENCE, "toxiproxy does not listen");
            thread::sleep(Duration::from_millis(20));
        }
        proxy.ask(
            "/proxies",
            &format!(r#"{{"name":"it","listen":"127.0.0.1:{port}","upstream":"127.0.0.1:{upstream}"}}"#),
        );
        proxy
    }

    /// Cuts all connections and accepts none, or accepts connections again.
    pub(crate) fn set_reachable(&self, is_reachable: bool) {
        self.ask("/proxies/it", &format!(r#"{{"enabled":{is_reachable}}}"#));
    }

    /// Closes each connection after this many bytes to the client.
    pub(crate) fn limit_answers(&self, bytes: u64) {
        self.ask("/proxies/it/toxics", &format!(r#"{{"type":"limit_data","attributes":{{"bytes":{bytes}}}}}"#));
    }

    fn ask(&self, path: &str, body: &str) {
        let mut stream = TcpStream::connect(("127.0.0.1", self.control)).expect("it listens");
        let request = format!(
            "POST {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\n\
             Content-Length: {}\r\n\r\n{body}",
            body.len()
        );
        stream.write_all(request.as_bytes()).expect("sent");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an answer");
        assert!(answer.starts_with("HTTP/1.1 20"), "{path} {body}: {answer}");
    }
}

impl Drop for Toxiproxy {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
