//! nydusd, which mounts RAFS images out of registries.

use std::{
    collections::BTreeSet,
    fs, io,
    net::SocketAddr,
    path::{Path, PathBuf},
    process::Command,
};

use floe_testkit::target_dir;
use serde_json::json;
use tempfile::TempDir;

use super::{
    super::{contender::first_line, session::Session},
    link::Link,
    program::succeed,
    server::WebServer,
};
use crate::task_error::{Outcome, TaskError};

/// The names of the contenders: without prefetch, with prefetch of the whole image, and of the files of a profile.
pub(super) const PLAIN: &str = "nydusd";
pub(super) const PREFETCH: &str = "nydusd-prefetch";
pub(super) const PROFILE: &str = "nydusd-profile";

/// The metadata of the image, which is compressed as in a registry. nydusd needs it as a local file.
const BOOTSTRAP: &str = "bootstrap.zst";

/// The level of this compression.
const ZSTD_LEVEL: i32 = 3;

/// The same tree as a RAFS image, version 6, with zstd, on a server that looks like a registry.
pub(super) struct Nydus {
    daemon: PathBuf,
    /// What the server serves, and files of this machine.
    folder: TempDir,
    server: WebServer,
}

impl Nydus {
    /// Converts the tree of `image` with the programs in `programs`. `profile` is a recorded profile.
    pub(super) fn prepare(programs: &Path, floe: &Path, image: &Path, profile: &Path) -> Outcome<Self> {
        eprintln!("converting {} for nydusd …", image.display());
        let parent = target_dir().join("bench");
        fs::create_dir_all(&parent)?;
        let (folder, tree) = (tempfile::tempdir_in(&parent)?, tempfile::tempdir_in(&parent)?);
        succeed(Command::new(floe).args(["extract", "--quiet"]).arg(image).arg("-C").arg(tree.path()))?;
        let bootstrap = folder.path().join("bootstrap");
        let mut create = Command::new(programs.join("nydus-image"));
        create.args(["create", "--log-level", "warn", "--type", "dir-rafs", "--fs-version", "6"]);
        create.args(["--compressor", "zstd", "--blob-dir"]).arg(folder.path()).arg("--bootstrap").arg(&bootstrap);
        succeed(create.arg(tree.path()))?;
        let compressed = zstd::encode_all(fs::File::open(&bootstrap)?, ZSTD_LEVEL)?;
        fs::write(folder.path().join(BOOTSTRAP), compressed)?;
        fs::write(folder.path().join("list"), paths_of(profile)?)?;
        let server = WebServer::new(folder.path())?;
        Ok(Self { daemon: programs.join("nydusd"), folder, server })
    }

    /// The address of the server.
    pub(super) fn address(&self) -> SocketAddr {
        self.server.address()
    }

    /// The version of nydusd, and the sizes of what it reads.
    pub(super) fn version(&self) -> Outcome<String> {
        let line = first_line(Command::new(&self.daemon).arg("--version"))?;
        let version = line.split_whitespace().last().unwrap_or_default();
        let metadata_bytes = fs::metadata(self.folder.path().join(BOOTSTRAP))?.len();
        let data_bytes = fs::metadata(self.folder.path().join(self.blob()?))?.len();
        Ok(format!("nydusd {version}; {} KiB of metadata, {} KiB of data", metadata_bytes >> 10, data_bytes >> 10))
    }

    /// Downloads the metadata and mounts the image through a link, as the contender with this name does. `cache` is an empty
    /// directory.
    pub(super) fn mount(&self, name: &str, link: &Link, cache: &Path) -> Outcome<Session> {
        let compressed_len = fs::metadata(self.folder.path().join(BOOTSTRAP))?.len();
        let mut compressed = Vec::new();
        link.download(BOOTSTRAP, &[compressed_len], &mut compressed)?;
        let (bootstrap, configuration) = (cache.join("bootstrap"), cache.join("configuration"));
        zstd::stream::copy_decode(&*compressed, fs::File::create(&bootstrap)?)?;
        fs::write(&configuration, configuration_of(name, link.address(), cache))?;
        let mut command = Command::new(&self.daemon);
        command.args(["--log-level", "warn", "--log-file"]).arg(cache.join("nydusd.log"));
        // By default, it asks for a higher limit of open files than some machines permit.
        command.args(["--rlimit-nofile", "0", "--config"]).arg(&configuration).arg("--bootstrap").arg(&bootstrap);
        if name == PROFILE {
            command.arg("--prefetch-files").arg(self.folder.path().join("list"));
        }
        Session::by_any(command.arg("--mountpoint"), name)
    }

    /// The name of the file with the data: its digest.
    fn blob(&self) -> Outcome<PathBuf> {
        let files = fs::read_dir(self.folder.path())?.flatten().map(|entry| PathBuf::from(entry.file_name()));
        let is_digest = |name: &PathBuf| name.as_os_str().len() == 64;
        files.into_iter().find(is_digest).ok_or_else(|| TaskError::new("nydus-image made no blob"))
    }
}

/// The configuration that nydus is shipped with, for this registry, with or without prefetch.
fn configuration_of(name: &str, registry: SocketAddr, cache: &Path) -> String {
    let backend = json!({
        "type": "registry",
        "config": {
            "scheme": "http",
            "host": registry.to_string(),
            "repo": "image",
            "timeout": 5,
            "connect_timeout": 5,
            "retry_limit": 2,
        },
    });
    let configuration = json!({
        "device": { "backend": backend, "cache": { "type": "blobcache", "config": { "work_dir": cache } } },
        "mode": "direct",
        "digest_validate": false,
        "iostats_files": false,
        "enable_xattr": true,
        "fs_prefetch": {
            "enable": name != PLAIN,
            "threads_count": 8,
            "merging_size": 1 << 20,
            "prefetch_all": name == PREFETCH,
        },
    });
    configuration.to_string()
}

/// The paths of a profile, one a line.
fn paths_of(profile: &Path) -> io::Result<String> {
    let profile = fs::read_to_string(profile)?;
    let ranges = profile.lines().filter(|line| !line.starts_with('#'));
    let paths: BTreeSet<&str> = ranges.filter_map(|line| line.splitn(3, ' ').nth(2)).collect();
    Ok(paths.into_iter().map(|path| format!("{path}\n")).collect())
}
