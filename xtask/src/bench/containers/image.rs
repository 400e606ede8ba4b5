//! The image of the containers: its layers, the profiles of the launches, and the registry that has it in several forms.

use std::{
    collections::BTreeSet,
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use floe_testkit::{manifest::sha256_hex, target_dir};

use super::{
    super::{
        remote::{needed::needed_bytes, program::succeed, registry::Registry},
        setting::Contest,
    },
    launched::Launched,
    layout::{blobs_of, make_layout},
};
use crate::task_error::{Outcome, TaskError};

/// The files of the lowest layer: a system with many programs and libraries, without the leading slash.
const SYSTEM: [&str; 6] = ["bin", "lib", "lib64", "usr/lib64", "usr/bin", "usr/lib/x86_64-linux-gnu"];
/// The files of the topmost layer.
const TOPMOST: [&str; 3] = ["etc/passwd", "etc/group", "usr/share/zoneinfo"];

/// An image of about a gigabyte, in a registry: with gzipped archives as layers, with EROFS layers, and with EROFS layers that are
/// prepared for the launch of a program.
pub(super) struct ContainerImage {
    pub(super) registry: Registry,
    /// The image as an OCI layout.
    layout: PathBuf,
    /// Its layers merged into one image.
    merged: PathBuf,
    folder: PathBuf,
}

impl ContainerImage {
    /// The tag of the image with archives, and of the one with EROFS layers.
    pub(super) const ARCHIVES: &str = "archives";
    pub(super) const EROFS: &str = "erofs";

    /// Makes the image out of files of this machine, once for all runs, and converts it.
    pub(super) fn prepare(floe: &Path, programs: &[Launched], contest: &Contest) -> Outcome<Self> {
        let layers = layers()?;
        let key = &sha256_hex(format!("{layers:?}").as_bytes())[..16];
        let folder = target_dir().join(format!("bench/containers-{key}"));
        fs::create_dir_all(&folder)?;
        let layout = folder.join("layout");
        if !layout.join("index.json").exists() {
            let empty = tempfile::tempdir()?;
            for name in ["dev", "proc", "sys", "tmp", "run", "etc"] {
                fs::create_dir(empty.path().join(name))?;
            }
            let packed = layers.iter().map(|layer| (layer.name, layer.packed(empty.path())));
            make_layout(&layout, &packed.collect::<Vec<_>>())?;
        }
        let merged = folder.join("merged");
        if !merged.join("index.json").exists() {
            eprintln!("merging the layers …");
            let mut convert = Command::new(floe);
            convert.args(["convert", "--quiet", "--merged", "--only-converted"]).arg(&layout).arg(&merged);
            succeed(&mut convert)?;
        }
        let registry = Registry::serve_from(contest, &folder.join("registry"))?;
        let image = Self { registry, layout, merged, folder };
        for program in programs {
            image.record(floe, *program)?;
        }
        // A registry from an earlier run has the layers, if Floe makes the same of them.
        image.convert(floe, Self::ARCHIVES, &[])?;
        image.convert(floe, Self::EROFS, &["--only-converted", "--containerd-2.1"])?;
        for program in programs {
            let profile = image.profile(*program).display().to_string();
            image.convert(floe, program.name(), &["--only-converted", "--containerd-2.1", "--profile", &profile])?;
        }
        Ok(image)
    }

    /// A directory for the files of a run.
    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    /// The sizes of its layers in the registry, together.
    pub(super) fn archive_bytes(&self) -> Outcome<u64> {
        let layers = blobs_of(&self.layout)?;
        layers.iter().map(|layer| Ok(fs::metadata(layer)?.len())).sum()
    }

    /// The number of bytes of the merged image that a launch needs.
    pub(super) fn needed_bytes(&self, program: Launched) -> Outcome<u64> {
        needed_bytes(&self.merged_layer()?, &self.profile(program))
    }

    /// The path below the registry's address of a blob with at least as many bytes as any launch needs.
    pub(super) fn large_blob(&self) -> Outcome<String> {
        let layers = blobs_of(&self.layout)?;
        let name = layers.first().and_then(|layer| layer.file_name()).unwrap_or_default();
        Ok(format!("v2/image/blobs/sha256:{}", name.to_string_lossy()))
    }

    fn profile(&self, program: Launched) -> PathBuf {
        self.folder.join(format!("{}.profile", program.name()))
    }

    /// Its layers merged into one image.
    pub(super) fn merged_layer(&self) -> Outcome<PathBuf> {
        blobs_of(&self.merged)?.pop().ok_or_else(|| TaskError::new("the merged image has no layer"))
    }

    /// Records a launch of a program out of the merged image.
    fn record(&self, floe: &Path, program: Launched) -> Outcome {
        let profile = self.profile(program);
        if profile.exists() {
            return Ok(());
        }
        eprintln!("recording {} …", program.title());
        let (mount, unfinished) = (tempfile::tempdir()?, profile.with_extension("unfinished"));
        let mut record = Command::new("unshare");
        record.args(["--mount", "--"]).arg(floe).arg("record").arg(mount.path()).arg("--image");
        record.arg(self.merged_layer()?).arg("--output").arg(&unfinished).args(["--", "sh", "-c"]);
        // In the container, too, these are other file systems.
        record.arg(r#"root=$1; shift; mount -t proc proc "$root/proc"; mount --rbind /dev "$root/dev"; exec env -i PATH=/usr/sbin:/usr/bin:/bin chroot "$root" "$@""#);
        record.arg("sh").arg(mount.path()).args(program.command()?).stdin(Stdio::null());
        succeed(&mut record)?;
        Ok(fs::rename(unfinished, profile)?)
    }

    fn convert(&self, floe: &Path, tag: &str, options: &[&str]) -> Outcome {
        eprintln!("converting the image to {tag} …");
        let mut convert = Command::new(floe);
        convert.args(["convert", "--quiet"]).arg(&self.layout);
        succeed(convert.arg(format!("oci://{}/image:{tag}", self.registry.address)).args(options))
    }
}

/// A layer.
#[derive(Debug)]
struct Layer {
    name: &'static str,
    members: Vec<PathBuf>,
    /// The directories above the members. Layers of image builders have entries for them, and ctr-remote insists on it.
    parents: BTreeSet<PathBuf>,
    /// What other layers have.
    excluded: Vec<PathBuf>,
}

impl Layer {
    fn new(name: &'static str, members: Vec<PathBuf>, excluded: Vec<PathBuf>) -> Self {
        let parents = members.iter().flat_map(|member| member.ancestors().skip(1));
        let parents = parents.filter(|parent| !parent.as_os_str().is_empty()).map(Path::to_path_buf).collect();
        Self { name, members, parents, excluded }
    }

    /// The arguments of tar for the content of a directory and the members.
    fn packed(&self, beside: &Path) -> Vec<OsString> {
        let mut options: Vec<OsString> = Vec::new();
        options.extend(self.excluded.iter().map(|path| format!("--exclude={}", path.display()).into()));
        options.extend(["--directory".into(), beside.into(), ".".into(), "--directory=/".into()]);
        options.push("--no-recursion".into());
        options.extend(self.parents.iter().map(|parent| parent.clone().into()));
        options.push("--recursion".into());
        options.extend(self.members.iter().map(|member| member.clone().into()));
        options
    }
}

/// The layers, the lowest first.
fn layers() -> Outcome<Vec<Layer>> {
    let paths = |names: &[&str]| names.iter().map(PathBuf::from).collect::<Vec<_>>();
    let mut programs = Vec::new();
    for program in Launched::ALL {
        programs.extend(program.members()?);
    }
    Ok(vec![
        Layer::new("system", paths(&SYSTEM), programs.clone()),
        Layer::new("programs", programs, Vec::new()),
        Layer::new("topmost", paths(&TOPMOST), Vec::new()),
    ])
}
