//! Reference images from real servers: through every kind of URL, they mount and extract like the files.
//!
//! Each server serves some of the images, or with `FLOE_IMAGES=all` every one.

use std::{
    env,
    ffi::{OsStr, OsString},
    fs,
    path::PathBuf,
};

use floe_testkit::{
    check_rows,
    corpus::{Corpus, ImageRecord, Materialised},
    manifest::{Comparison, Manifest, differences},
    skip::{self, Need},
    walk::{self, DirectoryWalk},
};
use tempfile::TempDir;

use super::remote::Cache;
use crate::support::{
    Served,
    plain_server::Tunnel,
    program::{floe, run, told},
    servers::{Certificate, RealServer},
};

/// The space for extracting two huge images at a time, and two other images.
const HUGE_BYTES: u64 = 10 << 30;
const USUAL_BYTES: u64 = 256 << 20;

/// The type of the kernel's EROFS in `statfs`.
const EROFS_MAGIC: i64 = 0xe0f5_e1e2;

/// Variables of the environment.
type Variables<'a> = &'a [(&'a str, &'a OsStr)];

/// The images that a server serves: every `step`th one that is not huge, or all.
fn images(corpus: &Corpus, step: usize) -> Vec<ImageRecord> {
    if env::var("FLOE_IMAGES").is_ok_and(|value| value == "all") {
        return crate::support::images(corpus);
    }
    corpus.images().into_iter().filter(|image| !image.huge).step_by(step).collect()
}

/// Compares each image with its manifest: mounted and extracted from the URL that `offer` returns for the image and its
/// file.
fn compare_all(
    corpus: &Corpus,
    images: &[ImageRecord],
    (variables, options): (Variables<'_>, &[&str]),
    offer: impl Fn(&ImageRecord, &Materialised) -> Result<String, String> + Sync,
) {
    eprintln!("{} images", images.len());
    check_rows(
        images,
        |image| image.name.clone(),
        |image| {
            let files = corpus.materialise(image);
            match offer(image, &files) {
                Ok(url) => {
                    compared(corpus, image, Materialised { path: PathBuf::from(url), ..files }, variables, options)
                }
                Err(refusal) => vec![refusal],
            }
        },
    );
}

/// The differences between an image, mounted and extracted, and its manifest.
fn compared(
    corpus: &Corpus,
    image: &ImageRecord,
    files: Materialised,
    variables: Variables<'_>,
    more: &[&str],
) -> Vec<String> {
    let cache = Cache::new();
    let options: Vec<OsString> = cache.options().into_iter().chain(more.iter().map(OsString::from)).collect();
    let options: Vec<&OsStr> = options.iter().map(OsString::as_os_str).collect();
    let manifest = corpus.manifest(image);
    let mut complaints = match Served::with(&files, &options, variables) {
        Ok(served) => {
            let shown = walk::directory(&served.path(), DirectoryWalk::default()).expect("walked");
            // The kernel's EROFS in front has directories of its own.
            let is_front = rustix::fs::statfs(served.path()).expect("mounted").f_type == EROFS_MAGIC;
            let mut complaints = differ(&manifest, &shown, is_front || !image.kernel_is_truth());
            complaints.extend(served.end());
            complaints
        }
        Err(refusal) => vec![refusal],
    };
    // The extraction fetches all bytes once more.
    let cache = Cache::new();
    let room_bytes = if image.huge { HUGE_BYTES } else { USUAL_BYTES };
    let target = tempfile::tempdir_in(crate::support::scratch(room_bytes)).expect("a place");
    let mut command = floe();
    command.args(["extract", "--quiet", "--strict"]).args(crate::support::image_arguments(&files));
    command.args(cache.options()).args(more).arg(&files.path).arg("--directory").arg(target.path().join("tree"));
    let (code, errors) = told(&run(command.envs(variables.iter().copied())));
    if code != Some(0) || !errors.is_empty() {
        complaints.push(format!("extract ended with {code:?}: {errors}"));
    } else {
        let extracted = walk::directory(&target.path().join("tree"), DirectoryWalk::default()).expect("walked");
        complaints.extend(differ(&manifest, &extracted, true).into_iter().map(|line| format!("extracted: {line}")));
    }
    complaints
}

fn differ(manifest: &Manifest, shown: &Manifest, directory_shape_is_free: bool) -> Vec<String> {
    differences(manifest, shown, &Comparison { directory_shape_is_free, ..Comparison::default() })
}

#[test]
fn images_on_a_web_server_are_read_exactly() {
    if !skip::ready(&[Need::Fuse, Need::Root, Need::Peer("nginx"), Need::Peer("openssl")]) {
        return;
    }
    let (corpus, certificate) = (Corpus::locate_or_fixtures(), Certificate::of("IP:127.0.0.1"));
    let server = RealServer::tls_nginx(&certificate, "");
    compare_all(&corpus, &images(&corpus, 12), (&[certificate.trusted()], &[]), |image, files| {
        server.offer(&files.path, &image.name);
        Ok(format!("https://127.0.0.1:{}/{}", server.port, image.name))
    });
}

#[test]
fn images_in_a_bucket_are_read_exactly() {
    if !skip::ready(&[Need::Fuse, Need::Root, Need::Peer("versitygw")]) {
        return;
    }
    let (corpus, server) = (Corpus::locate_or_fixtures(), RealServer::s3());
    fs::create_dir(server.path().join("images")).expect("made");
    let endpoint = OsString::from(format!("http://127.0.0.1:{}", server.port));
    let variables = [
        ("AWS_ENDPOINT_URL_S3", endpoint.as_os_str()),
        ("AWS_ACCESS_KEY_ID", OsStr::new("someone")),
        ("AWS_SECRET_ACCESS_KEY", OsStr::new("something")),
        ("AWS_REGION", OsStr::new("us-east-1")),
    ];
    compare_all(&corpus, &images(&corpus, 40), (&variables, &[]), |image, files| {
        server.offer(&files.path, &format!("images/of all/{}", image.name));
        Ok(format!("s3://images/of%20all/{}", image.name))
    });
    let wrong = [("AWS_SECRET_ACCESS_KEY", OsStr::new("wrong"))];
    let mut command = floe();
    command.args(["ls", "--outage", "wait:0s", "--cache-size", "0", "s3://images/x"]);
    let (code, errors) = told(&run(command.envs(variables).envs(wrong)));
    assert!(code == Some(1) && errors.contains("s3://images/x: ") && errors.contains("403"), "{errors}");
}

/// nginx in the place of Google's servers: a proxy leads requests for their names to it. It checks only that requests have a
/// token.
#[test]
fn images_in_a_bucket_of_google_are_read_exactly() {
    if !skip::ready(&[Need::Fuse, Need::Root, Need::Peer("nginx"), Need::Peer("openssl")]) {
        return;
    }
    let (corpus, certificate) = (Corpus::locate_or_fixtures(), Certificate::of("DNS:storage.googleapis.com"));
    let refuse = "if ($http_authorization !~ \"^Bearer ey\") { return 401; }";
    let server = RealServer::tls_nginx(&certificate, refuse);
    let (tunnel, account) = (Tunnel::to(server.port), certificate.google_account());
    let variables = [
        certificate.trusted(),
        ("HTTPS_PROXY", tunnel.url.as_os_str()),
        ("GOOGLE_APPLICATION_CREDENTIALS", account.as_os_str()),
    ];
    compare_all(&corpus, &images(&corpus, 80), (&variables, &[]), |image, files| {
        server.offer(&files.path, &format!("bucket/images/{}", image.name));
        Ok(format!("gs://bucket/images/{}", image.name))
    });
    assert_eq!(tunnel.names(), ["storage.googleapis.com:443"]);
}

/// nginx in the place of Azure's servers, as above. It checks only that requests are signed.
#[test]
fn images_in_a_container_of_azure_are_read_exactly() {
    if !skip::ready(&[Need::Fuse, Need::Root, Need::Peer("nginx"), Need::Peer("openssl")]) {
        return;
    }
    let (corpus, certificate) = (Corpus::locate_or_fixtures(), Certificate::of("DNS:account.blob.core.windows.net"));
    let server = RealServer::tls_nginx(&certificate, "if ($arg_sig = \"\") { return 403; }");
    let tunnel = Tunnel::to(server.port);
    let variables = [
        certificate.trusted(),
        ("HTTPS_PROXY", tunnel.url.as_os_str()),
        ("AZURE_STORAGE_ACCOUNT_NAME", OsStr::new("account")),
        ("AZURE_STORAGE_ACCOUNT_KEY", OsStr::new("c2VjcmV0")),
    ];
    compare_all(&corpus, &images(&corpus, 80), (&variables, &[]), |image, files| {
        server.offer(&files.path, &format!("container/images/{}", image.name));
        Ok(format!("az://container/images/{}", image.name))
    });
    assert_eq!(tunnel.names(), ["account.blob.core.windows.net:443"]);
}

#[test]
fn pushed_images_are_read_exactly_and_verified() {
    if !skip::ready(&[Need::Fuse, Need::Root, Need::Peer("docker-registry")]) {
        return;
    }
    let (corpus, server) = (Corpus::locate_or_fixtures(), RealServer::registry());
    let mut images = images(&corpus, 40);
    // An image at an offset in its file cannot be pushed.
    images.retain(|image| image.offset == 0);
    compare_all(&corpus, &images, (&[], &["--require-verified"]), |image, files| {
        let url = format!("oci://127.0.0.1:{}/images/{}:v1", server.port, repository_name(&image.name));
        let (code, errors) = told(&run(floe().arg("push").arg(&files.path).arg(&url)));
        if code != Some(0) {
            return Err(format!("push ended with {code:?}: {errors}"));
        }
        let directory = TempDir::new().expect("a directory");
        let pulled = directory.path().join("pulled");
        let (code, errors) = told(&run(floe().arg("pull").arg(&url).arg(&pulled)));
        if code != Some(0) || fs::read(&pulled).ok() != fs::read(&files.path).ok() {
            return Err(format!("pull ended with {code:?}: {errors}"));
        }
        Ok(url)
    });
}

#[test]
fn images_at_an_offset_in_an_artifact_are_read_exactly() {
    if !skip::ready(&[Need::Fuse, Need::Root, Need::Peer("docker-registry"), Need::Peer("curl")]) {
        return;
    }
    let (corpus, server) = (Corpus::locate_or_fixtures(), RealServer::registry());
    let mut images = crate::support::images(&corpus);
    images.retain(|image| image.offset > 0);
    compare_all(&corpus, &images, (&[], &[]), |image, files| {
        let name = format!("artifacts/{}", repository_name(&image.name));
        server.store_artifact(&name, &files.path);
        Ok(format!("oci://127.0.0.1:{}/{name}:v1", server.port))
    });
}

/// The name of an image as the last part of the name of a repository.
fn repository_name(image: &str) -> String {
    let name = image.to_lowercase().replace(|character: char| !character.is_ascii_alphanumeric(), "-");
    name.trim_matches('-').to_owned()
}
