//! Images mounted with the kernel's EROFS in front.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    sync::OnceLock,
};

use floe_testkit::{
    Random,
    skip::{self, Need},
};

use super::program::{Serving, floe, run, told};

/// Whether the kernel's EROFS can be in front here, which one mount of this process tries. If not, Floe gives the reason.
pub(crate) fn ready() -> bool {
    static REFUSAL: OnceLock<Option<String>> = OnceLock::new();
    if !skip::ready(&[Need::Root, Need::Fuse, Need::KernelErofs]) {
        return false;
    }
    let refusal = REFUSAL.get_or_init(|| {
        let scene = Scene::new(&[("file", 1)]);
        let place = super::program::Place::new();
        let (code, errors) =
            told(&run(floe().args(["mount", "-d", "-o", "front=kernel"]).arg(&scene.image).arg(&place.path)));
        (code != Some(0)).then(|| errors.trim().to_owned())
    });
    if let Some(reason) = refusal {
        skip::skipped(reason);
    }
    refusal.is_none()
}

/// An image and its contents.
pub(crate) struct Scene {
    pub(crate) folder: tempfile::TempDir,
    pub(crate) image: PathBuf,
    pub(crate) contents: BTreeMap<PathBuf, Vec<u8>>,
}

impl Scene {
    /// An image of text files with these names and lengths.
    pub(crate) fn new(files: &[(&str, usize)]) -> Self {
        Self::made(files, &["--compress", "lz4", "-C65536"])
    }

    /// The same, made with these options.
    pub(crate) fn made(files: &[(&str, usize)], options: &[&str]) -> Self {
        let folder = tempfile::tempdir().expect("a directory");
        let tree = folder.path().join("tree");
        let mut random = Random::new(7);
        let mut contents = BTreeMap::new();
        for (name, len) in files {
            let path = tree.join(name);
            fs::create_dir_all(path.parent().expect("a parent")).expect("ours");
            let text = random.text(*len);
            fs::write(path, &text).expect("ours");
            contents.insert(PathBuf::from(name), text);
        }
        let image = folder.path().join("image.erofs");
        made(floe().arg("mkfs").args(options).arg(&image).arg(tree));
        Self { folder, image, contents }
    }

    /// Many files of this size in bytes.
    pub(crate) fn many(count: usize, len: usize) -> Self {
        let names: Vec<String> = (0..count).map(|number| format!("{}/{number}", number % 10)).collect();
        let files: Vec<_> = names.iter().map(|name| (name.as_str(), len)).collect();
        Self::new(&files)
    }

    /// A mount of it with the kernel's EROFS in front.
    pub(crate) fn fronted(&self, options: &str) -> Serving {
        Serving::new(&self.image, ["-o", "front=kernel", "-o", options])
    }

    /// The files that read different from what was written.
    pub(crate) fn wrong(&self, mount: &Path) -> Vec<String> {
        let read = self.contents.iter().filter_map(|(name, expected)| match fs::read(mount.join(name)) {
            Ok(bytes) if bytes == *expected => None,
            Ok(bytes) => Some(format!("{}: {} other bytes", name.display(), bytes.len())),
            Err(error) => Some(format!("{}: {error}", name.display())),
        });
        read.collect()
    }
}

fn made(command: &mut std::process::Command) {
    let output = run(command);
    assert!(output.status.success(), "{output:?}");
}
