//! Faults between a mount and real servers: reads wait or fail according to the options, return the right bytes, and
//! recover.

use std::{
    env,
    ffi::OsStr,
    fs,
    io::{BufRead, BufReader, Write},
    net::{TcpListener, TcpStream},
    os::unix::fs::{FileExt, MetadataExt},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant, SystemTime},
};

use floe_remote_cache::Digest;
use floe_testkit::{
    Random,
    corpus::{Format, Materialised},
    skip::{self, Need},
};
use tempfile::TempDir;

use crate::support::{
    Served,
    program::{floe, run, told, until},
    servers::{RealServer, Toxiproxy},
};

/// The size of the only file of the image, in bytes.
const LEN: usize = 8 << 20;

/// An image with one incompressible file.
struct Noise {
    directory: TempDir,
    image: PathBuf,
    bytes: Vec<u8>,
}

impl Noise {
    fn new(seed: u64) -> Self {
        let directory = TempDir::new().expect("a directory");
        let (tree, image) = (directory.path().join("tree"), directory.path().join("image.erofs"));
        fs::create_dir(&tree).expect("made");
        let bytes = Random::new(seed).noise(LEN);
        fs::write(tree.join("noise"), &bytes).expect("written");
        let (code, errors) = told(&run(floe().args(["mkfs", "--quiet"]).arg(&image).arg(&tree)));
        assert_eq!(code, Some(0), "{errors}");
        Self { directory, image, bytes }
    }

    fn push(&self, url: &str) {
        let (code, errors) = told(&run(floe().args(["push", "--quiet"]).arg(&self.image).arg(url)));
        assert_eq!(code, Some(0), "{errors}");
    }

    fn cache(&self) -> PathBuf {
        self.directory.path().join("cache")
    }

    /// Mounts it from `url`, with its own cache unless `options` name another one.
    fn mount(&self, url: &str, options: &[&str]) -> Served {
        let cache = self.cache();
        let own: Vec<&OsStr> = match options.contains(&"--cache-directory") {
            true => Vec::new(),
            false => vec!["--cache-directory".as_ref(), cache.as_os_str()],
        };
        let options: Vec<&OsStr> = own.into_iter().chain(options.iter().map(OsStr::new)).collect();
        let files = Materialised::single(url, Format::Erofs);
        Served::with(&files, &options, &[]).expect("mounted")
    }

    /// Reads a part of the file in a mount. No other read requests its pages.
    fn read(&self, served: &Served, offset: usize, len: usize) -> std::io::Result<()> {
        let mut bytes = vec![0; len];
        fs::File::open(served.path().join("noise"))?.read_exact_at(&mut bytes, offset as u64)?;
        assert!(bytes == self.bytes[offset..offset + len], "wrong bytes at {offset}");
        Ok(())
    }
}

/// The counters of a mount in `floe status`.
fn counts(served: &Served) -> serde_json::Value {
    let output = run(floe().args(["status", "--json"]).arg(served.path()));
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    report["remote"]["counts"].clone()
}

/// The duration of an outage: some seconds, or the value of `FLOE_OUTAGE_S`.
fn outage_time() -> Duration {
    let seconds = env::var("FLOE_OUTAGE_S").ok().and_then(|text| text.parse().ok());
    Duration::from_secs(seconds.unwrap_or(2))
}

#[test]
fn reads_wait_through_an_outage_or_fail_and_heal() {
    if !skip::ready(&[Need::Fuse, Need::Peer("docker-registry"), Need::Peer("toxiproxy-server")]) {
        return;
    }
    let (server, noise) = (RealServer::registry(), Noise::new(11));
    let proxy = Toxiproxy::to(server.port);
    let url = format!("oci://localhost:{}/noise", proxy.port);
    noise.push(&url);
    let patient = noise.mount(&url, &["--outage", "wait:10m"]);
    let other = TempDir::new().expect("a directory");
    let other = other.path().to_str().expect("text");
    let impatient = noise.mount(&url, &["--outage", "wait:0s", "--cache-directory", other]);
    proxy.set_reachable(false);
    thread::scope(|scope| {
        let readers: Vec<_> = (0..4)
            .map(|index| {
                scope.spawn({
                    let (noise, patient) = (&noise, &patient);
                    move || noise.read(patient, index * (LEN / 4), LEN / 4)
                })
            })
            .collect();
        until("the outage is seen", || counts(&patient)["remote"]["outage_ms"].is_u64());
        let error = noise.read(&impatient, LEN / 2, 4096).expect_err("it is out of reach");
        assert_eq!(error.raw_os_error(), Some(libc::EIO));
        thread::sleep(outage_time());
        assert!(readers.iter().all(|reader| !reader.is_finished()), "they wait");
        proxy.set_reachable(true);
        for reader in readers {
            reader.join().expect("right bytes").expect("healed");
        }
    });
    noise.read(&impatient, LEN / 2, 4096).expect("it recovers without a restart");
    let counts = counts(&patient);
    assert!(counts["remote"]["outage_ms"].is_null() && counts["remote"]["outages"].as_u64() > Some(0), "{counts}");
    for served in [patient, impatient] {
        assert!(served.end().is_empty());
    }
}

#[test]
fn truncated_answers_are_requested_again() {
    if !skip::ready(&[Need::Fuse, Need::Peer("nginx"), Need::Peer("toxiproxy-server")]) {
        return;
    }
    let (server, noise) = (RealServer::nginx(), Noise::new(12));
    server.offer(&noise.image, "image");
    let proxy = Toxiproxy::to(server.port);
    let served = noise.mount(&format!("http://127.0.0.1:{}/image", proxy.port), &["--outage", "wait:10m"]);
    // Less than two chunks: a larger request cannot succeed on any connection, and a small one only on a fresh connection.
    proxy.limit_answers(400 << 10);
    (0..16).for_each(|index| noise.read(&served, index * (LEN / 16), 4096).expect("read"));
    assert!(counts(&served)["remote"]["retries"].as_u64() > Some(0));
    assert!(served.end().is_empty());
}

#[test]
fn a_storm_of_429_slows_reads_and_fails_none() {
    if !skip::ready(&[Need::Fuse, Need::Peer("nginx"), Need::Peer("toxiproxy-server")]) {
        return;
    }
    let (server, noise) = (RealServer::limited_nginx(5), Noise::new(13));
    server.offer(&noise.image, "image");
    let proxy = Toxiproxy::to(server.port);
    let served = noise.mount(&format!("http://127.0.0.1:{}/image", proxy.port), &["--outage", "wait:10m"]);
    thread::scope(|scope| {
        let read = |index: usize| noise.read(&served, index * (LEN / 8), LEN / 8).expect("read");
        for index in 0..8 {
            scope.spawn(move || read(index));
        }
    });
    let counts = counts(&served);
    assert!(counts["remote"]["throttled"].as_u64() > Some(0) && counts["remote"]["failed"] == 0, "{counts}");
    assert!(served.end().is_empty());
}

#[test]
fn expired_tokens_are_renewed() {
    let needs = [Need::Fuse, Need::Peer("docker-registry"), Need::Peer("toxiproxy-server"), Need::Peer("openssl")];
    if !skip::ready(&needs) {
        return;
    }
    let (authority, noise) = (Authority::start(), Noise::new(14));
    let server = RealServer::registry_with(&authority.registry_section());
    let proxy = Toxiproxy::to(server.port);
    let url = format!("oci://localhost:{}/noise", proxy.port);
    noise.push(&url);
    let before = authority.given();
    let served = noise.mount(&url, &["--outage", "wait:10m", "--require-verified"]);
    noise.read(&served, 0, 4096).expect("read");
    let first = authority.given();
    assert!(first > before, "the registry wants tokens");
    thread::sleep(TOKEN_TIME + Duration::from_secs(1));
    let began = Instant::now();
    thread::scope(|scope| {
        let read = |index: usize| noise.read(&served, index * (LEN / 8), LEN / 8).expect("read");
        for index in 0..8 {
            scope.spawn(move || read(index));
        }
    });
    let renewed = authority.given() - first;
    // On a busy machine the reads take longer than a token is valid.
    let expired = (began.elapsed().as_secs_f64() / TOKEN_TIME.as_secs_f64()) as u64;
    assert!((1..=3 + 3 * expired).contains(&renewed), "{renewed} tokens for eight readers");
    assert!(served.end().is_empty());
}

#[test]
fn expired_signed_urls_are_resolved_again() {
    if !skip::ready(&[Need::Fuse, Need::Peer("versitygw"), Need::Peer("toxiproxy-server")]) {
        return;
    }
    let (server, noise) = (RealServer::s3(), Noise::new(15));
    fs::create_dir(server.path().join("images")).expect("made");
    server.offer(&noise.image, "images/noise");
    let proxy = Toxiproxy::to(server.port);
    let asked = Arc::new(AtomicU64::new(0));
    let (port, counted) = (proxy.port, Arc::clone(&asked));
    // Redirects to URLs that are valid for two seconds.
    let origin = answering(move |_| {
        counted.fetch_add(1, Relaxed);
        let target = signed_url(port, "/images/noise", Duration::from_secs(2));
        format!("HTTP/1.1 307 X\r\nLocation: {target}\r\nContent-Length: 0\r\n\r\n")
    });
    let served = noise.mount(&format!("http://127.0.0.1:{origin}/noise"), &["--outage", "wait:10m"]);
    noise.read(&served, 0, 4096).expect("read");
    let first = asked.load(Relaxed);
    thread::sleep(Duration::from_secs(3));
    noise.read(&served, LEN / 2, LEN / 2).expect("read");
    assert!(asked.load(Relaxed) > first, "the origin was asked again");
    assert!(counts(&served)["remote"]["resolved_again"].as_u64() > Some(0));
    assert!(served.end().is_empty());
    // Floe cannot sign the user's URL again, so the read soon fails with an error that says so.
    let target = signed_url(proxy.port, "/images/noise", Duration::from_secs(1));
    thread::sleep(Duration::from_secs(2));
    let mut ls = floe();
    let (code, errors) = told(&run(ls.args(["ls", "--outage", "wait:0s", "--cache-size", "0", &target])));
    assert!(code == Some(1) && errors.contains("403") && !errors.contains("Signature"), "{errors}");
}

#[test]
fn a_full_disk_does_not_stop_reads() {
    if !skip::ready(&[Need::Fuse, Need::Root, Need::Peer("docker-registry"), Need::Peer("toxiproxy-server")]) {
        return;
    }
    let (server, noise) = (RealServer::registry(), Noise::new(16));
    let proxy = Toxiproxy::to(server.port);
    let url = format!("oci://localhost:{}/noise", proxy.port);
    noise.push(&url);
    let small = SmallDisk::new(2 << 20);
    let served = noise.mount(&url, &["--cache-directory", small.path.path().to_str().expect("text")]);
    thread::scope(|scope| {
        let read = |index: usize| noise.read(&served, index * (LEN / 4), LEN / 4).expect("read");
        for index in 0..4 {
            scope.spawn(move || read(index));
        }
    });
    assert!(counts(&served)["uncached_chunks"].as_u64() > Some(0), "{}", counts(&served));
    assert!(served.end().is_empty());
}

#[test]
fn a_cache_below_the_working_set_keeps_its_limit() {
    if !skip::ready(&[Need::Fuse, Need::Peer("docker-registry"), Need::Peer("toxiproxy-server")]) {
        return;
    }
    const LIMIT: u64 = 2 << 20;
    let (server, noise) = (RealServer::registry(), Noise::new(17));
    let proxy = Toxiproxy::to(server.port);
    let url = format!("oci://localhost:{}/noise", proxy.port);
    noise.push(&url);
    let served = noise.mount(&url, &["--cache-size", &LIMIT.to_string()]);
    let most = AtomicU64::new(0);
    thread::scope(|scope| {
        for seed in 0..6 {
            let (noise, served, most) = (&noise, &served, &most);
            scope.spawn(move || {
                let mut random = Random::new(seed);
                for _ in 0..40 {
                    let offset = random.below((LEN - 70_000) as u64) as usize;
                    noise.read(served, offset, 70_000).expect("read");
                    most.fetch_max(allocated(&noise.cache()), Relaxed);
                }
            });
        }
    });
    // Besides chunks there are small files.
    let most = most.load(Relaxed);
    assert!(most > LIMIT / 2 && most < LIMIT + LIMIT / 4, "{most} bytes");
    assert!(served.end().is_empty());
}

#[test]
fn eight_mounts_at_once_fetch_each_byte_once() {
    if !skip::ready(&[Need::Fuse, Need::Peer("docker-registry"), Need::Peer("toxiproxy-server")]) {
        return;
    }
    let (server, noise) = (RealServer::registry(), Noise::new(18));
    let proxy = Toxiproxy::to(server.port);
    let url = format!("oci://localhost:{}/noise", proxy.port);
    noise.push(&url);
    let mounts: Vec<Served> = thread::scope(|scope| {
        let mount = || {
            let served = noise.mount(&url, &["--require-verified"]);
            noise.read(&served, 0, LEN).expect("read");
            served
        };
        let mounting: Vec<_> = (0..8).map(|_| scope.spawn(mount)).collect();
        mounting.into_iter().map(|mounting| mounting.join().expect("mounted and read")).collect()
    });
    let fetched = |served: &Served| {
        let counts = counts(served);
        let causes = counts["remote"]["causes"].as_array().expect("causes").clone();
        causes.iter().filter_map(|cause| cause["bytes"].as_u64()).sum::<u64>()
    };
    let fetched: Vec<u64> = mounts.iter().map(fetched).collect();
    let len = fs::metadata(&noise.image).expect("there").len();
    assert_eq!(fetched.iter().sum::<u64>(), len, "{fetched:?}");
    for served in mounts {
        assert!(served.end().is_empty());
    }
}

/// The bytes on disk of the files below a directory.
fn allocated(directory: &Path) -> u64 {
    let Ok(entries) = fs::read_dir(directory) else { return 0 };
    let size = |entry: fs::DirEntry| match entry.metadata() {
        Ok(metadata) if metadata.is_dir() => allocated(&entry.path()),
        Ok(metadata) => metadata.blocks() * 512,
        Err(_) => 0,
    };
    entries.flatten().map(size).sum()
}

/// A tmpfs with this size in bytes.
struct SmallDisk {
    path: TempDir,
}

impl SmallDisk {
    fn new(bytes: u64) -> Self {
        let path = TempDir::new().expect("a directory");
        let options = format!("size={bytes}");
        let mut mount = Command::new("mount");
        let mounted = mount.args(["-t", "tmpfs", "-o", &options, "tmpfs"]).arg(path.path()).status().expect("it runs");
        assert!(mounted.success());
        Self { path }
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(self.path.path(), rustix::mount::UnmountFlags::DETACH);
    }
}

/// Answers each request on a local port with the result of `answer` for its first line.
fn answering(answer: impl Fn(&str) -> String + Send + Sync + 'static) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("an address").port();
    let answer = Arc::new(answer);
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let answer = Arc::clone(&answer);
            thread::spawn(move || answer_all(&stream, answer.as_ref()));
        }
    });
    port
}

fn answer_all(mut stream: &TcpStream, answer: &(impl Fn(&str) -> String + ?Sized)) {
    let mut lines = BufReader::new(stream).lines();
    while let Some(Ok(first)) = lines.next() {
        if lines.by_ref().map_while(Result::ok).all(|line| !line.is_empty())
            || stream.write_all(answer(&first).as_bytes()).is_err()
        {
            return;
        }
    }
}

/// A URL of an object of the S3 server, signed by version 4 of Amazon's signatures.
fn signed_url(port: u16, path: &str, time: Duration) -> String {
    let output = Command::new("date").args(["-u", "+%Y%m%dT%H%M%SZ"]).output().expect("date runs");
    let now = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    let scope = format!("{}/us-east-1/s3/aws4_request", &now[..8]);
    let host = format!("127.0.0.1:{port}");
    let query = format!(
        "X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential=someone%2F{}&X-Amz-Date={now}&X-Amz-Expires={}&\
         X-Amz-SignedHeaders=host",
        scope.replace('/', "%2F"),
        time.as_secs()
    );
    let request = format!("GET\n{path}\n{query}\nhost:{host}\n\nhost\nUNSIGNED-PAYLOAD");
    let text = format!("AWS4-HMAC-SHA256\n{now}\n{scope}\n{}", Digest::of(request.as_bytes()));
    let key = scope.split('/').fold(b"AWS4something".to_vec(), |key, part| hmac(&key, part.as_bytes()).0.to_vec());
    format!("http://{host}{path}?{query}&X-Amz-Signature={}", hmac(&key, text.as_bytes()))
}

/// HMAC with SHA-256, for keys of up to 64 bytes.
fn hmac(key: &[u8], text: &[u8]) -> Digest {
    let pad = |value: u8| -> Vec<u8> { (0..64).map(|index| key.get(index).unwrap_or(&0) ^ value).collect() };
    let inner = Digest::salted(&pad(0x36), text);
    Digest::salted(&pad(0x5c), &inner.0)
}

/// The lifetime of a token. The registry accepts it for one more minute, so the token is issued in the past.
const TOKEN_TIME: Duration = Duration::from_secs(3);
const REGISTRY_LEEWAY: Duration = Duration::from_secs(60);

/// Issues a token for any requested scope to every client.
struct Authority {
    directory: TempDir,
    port: u16,
    given: Arc<AtomicU64>,
}

impl Authority {
    fn start() -> Self {
        let directory = TempDir::new().expect("a directory");
        let (key, certificate) = (directory.path().join("key.pem"), directory.path().join("certificate.pem"));
        let mut openssl = Command::new("openssl");
        openssl.args(["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=authority", "-keyout"]);
        assert!(openssl.arg(&key).arg("-out").arg(&certificate).output().expect("it runs").status.success());
        let pem = fs::read_to_string(&certificate).expect("written");
        let chain: String = pem.lines().filter(|line| !line.starts_with("--")).collect();
        let given = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&given);
        let port = answering(move |first| {
            let number = counted.fetch_add(1, Relaxed);
            let scope = first.split("scope=").nth(1).and_then(|rest| rest.split(['&', ' ']).next()).unwrap_or_default();
            let scope = scope.replace("%3A", ":").replace("%2F", "/").replace("%2C", ",");
            let body = format!(r#"{{"token":"{}"}}"#, token(&key, &chain, &scope, number));
            format!("HTTP/1.1 200 X\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}", body.len())
        });
        Self { directory, port, given }
    }

    fn given(&self) -> u64 {
        self.given.load(Relaxed)
    }

    fn registry_section(&self) -> String {
        let certificate = self.directory.path().join("certificate.pem");
        format!(
            "auth: {{token: {{realm: 'http://127.0.0.1:{}/token', service: registry, issuer: authority, \
             rootcertbundle: {}}}}}\n",
            self.port,
            certificate.display()
        )
    }
}

/// A token in the form that docker's registry expects.
fn token(key: &Path, chain: &str, scope: &str, number: u64) -> String {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("the clock is after 1970");
    let expires = (now + TOKEN_TIME - REGISTRY_LEEWAY).as_secs();
    let mut parts = scope.splitn(3, ':');
    let mut part = || parts.next().unwrap_or_default().to_owned();
    let (kind, name) = (part(), part());
    let actions: Vec<String> = part().split(',').map(|action| format!("\"{action}\"")).collect();
    let head = format!(r#"{{"typ":"JWT","alg":"RS256","x5c":["{chain}"]}}"#);
    let claims = format!(
        r#"{{"iss":"authority","sub":"","aud":"registry","exp":{expires},"nbf":{},"iat":{},"jti":"{number}",
        "access":[{{"type":"{kind}","name":"{name}","actions":[{}]}}]}}"#,
        expires - 600,
        expires - 600,
        actions.join(",")
    );
    let signed = format!("{}.{}", base64(head.as_bytes()), base64(claims.as_bytes()));
    let mut openssl = Command::new("openssl");
    openssl.args(["dgst", "-sha256", "-sign"]).arg(key).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut openssl = openssl.spawn().expect("it runs");
    openssl.stdin.take().expect("it is piped").write_all(signed.as_bytes()).expect("sent");
    let signature = openssl.wait_with_output().expect("it ends").stdout;
    format!("{signed}.{}", base64(&signature))
}

/// Base64 for URLs, without padding.
fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let mut text = String::new();
    for group in bytes.chunks(3) {
        let word = (0..3).fold(0, |word, index| word << 8 | u32::from(*group.get(index).unwrap_or(&0)));
        let digit = |index: usize| char::from(DIGITS[(word >> (18 - 6 * index) & 63) as usize]);
        text.extend((0..=group.len()).map(digit));
    }
    text
}
