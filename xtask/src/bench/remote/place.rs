//! The images, their registry, and the launched command.

use std::{
    fs::{self, File},
    io::{self, Read},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use floe_testkit::{manifest::sha256_hex, target_dir};

use super::{
    super::setting::Contest,
    needed::needed_bytes,
    program::{Program, succeed},
    registry::Registry,
};
use crate::task_error::{During, Outcome};

/// Two images of one tree, one of them with a launch profile, in a registry on this machine.
pub(super) struct Place {
    pub(super) floe: PathBuf,
    pub(super) registry: Registry,
    /// The image without a profile.
    pub(super) plain: PathBuf,
    /// Its SHA-256, in hexadecimal digits.
    pub(super) digest: String,
    /// The program that is launched.
    program: Program,
    /// The number of bytes of the image that a launch needs.
    pub(super) needed_bytes: u64,
}

impl Place {
    /// Builds the images, once for all runs, and pushes them.
    pub(super) fn prepare(floe: &Path, program: Program, tree: &[PathBuf], contest: &Contest) -> Outcome<Self> {
        let registry = Registry::serve(contest)?;
        let mut members = program.members();
        members.extend(tree.iter().cloned());
        members.sort();
        // Directories inside another requested directory are copied with it.
        members.dedup_by(|next, kept| next.starts_with(&*kept));
        let key = &sha256_hex(format!("{members:?}").as_bytes())[..16];
        let folder = target_dir().join("bench");
        fs::create_dir_all(&folder)?;
        let file = |name: &str| folder.join(format!("remote-{key}{name}"));
        let profile = file(&format!("-{}.profile", program.name()));
        let (plain, launch) = (file(".erofs"), file(&format!("-{}-launch.erofs", program.name())));
        if !plain.exists() {
            make(floe, &members, &[], &plain)?;
        }
        if !profile.exists() {
            let mount = tempfile::tempdir()?;
            let mut record = Command::new(floe);
            record.arg("record").arg(mount.path()).arg("--image").arg(&plain).arg("--output").arg(&profile).arg("--");
            let launched = program.command(mount.path());
            record.arg("env").args(
                launched
                    .get_envs()
                    .filter_map(|(name, value)| Some(format!("{}={}", name.to_str()?, value?.to_str()?))),
            );
            succeed(record.arg(launched.get_program()).args(launched.get_args()))?;
        }
        if !launch.exists() {
            make(floe, &members, &[Path::new("--profile"), &profile], &launch)?;
        }
        let needed_bytes = needed_bytes(&launch, &profile)?;
        let digest = sha256_of(&plain)?;
        for (image, tag) in [(&plain, "plain"), (&launch, "launch")] {
            registry.push(floe, image, tag)?;
        }
        Ok(Self { floe: floe.to_owned(), registry, plain, digest, program, needed_bytes })
    }

    /// A directory for the files of a run.
    pub(super) fn folder(&self) -> &Path {
        self.registry.folder()
    }

    /// The length of the image.
    pub(super) fn image_bytes(&self) -> Outcome<u64> {
        Ok(fs::metadata(&self.plain)?.len())
    }

    /// Launches the program out of a mount.
    pub(super) fn launch(&self, mount: &Path) -> Outcome {
        succeed(&mut self.program.command(mount))
    }

    /// Reads all files of a mount, in the order of their directories.
    pub(super) fn read_all(&self, mount: &Path) -> Outcome {
        let mut open = vec![mount.to_path_buf()];
        let mut buffer = vec![0; 1 << 20];
        while let Some(directory) = open.pop() {
            for entry in fs::read_dir(&directory).during(directory.display())? {
                let entry = entry?;
                let file_type = entry.file_type()?;
                if file_type.is_dir() {
                    open.push(entry.path());
                } else if file_type.is_file() {
                    let mut file = File::open(entry.path())?;
                    while file.read(&mut buffer).during(entry.path().display())? > 0 {}
                }
            }
        }
        Ok(())
    }
}

fn make(floe: &Path, members: &[PathBuf], options: &[&Path], image: &Path) -> Outcome {
    eprintln!("making {} …", image.display());
    let mut tar = Command::new("tar");
    tar.args(["--create", "--directory", "/"]).args(members.iter().map(|member| Path::new("usr").join(member)));
    let mut tar = tar.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().during("tar")?;
    let mut mkfs = Command::new(floe);
    mkfs.args(["mkfs", "--quiet", "-zlz4"]).args(options).arg(image).arg("-");
    if let Some(archive) = tar.stdout.take() {
        mkfs.stdin(archive);
    }
    let made = succeed(&mut mkfs);
    tar.wait()?;
    made
}

fn sha256_of(path: &Path) -> Outcome<String> {
    use sha2::Digest as _;
    struct Hashing(sha2::Sha256);
    impl io::Write for Hashing {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.update(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let mut hashing = Hashing(sha2::Sha256::new());
    io::copy(&mut File::open(path)?, &mut hashing)?;
    Ok(hashing.0.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}
