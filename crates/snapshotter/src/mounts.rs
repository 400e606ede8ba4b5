//! What containerd mounts for a snapshot.

use std::path::Path;

use crate::messages::Mount;

/// The features of overlayfs that the machine has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Overlay {
    /// Whether the index of inodes can be switched off. With it, a lower directory cannot be used by two mounts.
    has_index: bool,
    /// Whether attributes of overlayfs are those of users, because this is a user namespace.
    is_user: bool,
}

/// The directories of a snapshot.
pub(crate) struct Directories<'a> {
    /// Where changes go; `None` for a view.
    pub(crate) upper: Option<&'a Path>,
    pub(crate) work: &'a Path,
    /// Those of the parents, the nearest first.
    pub(crate) lower: &'a [String],
    /// The own directory of a snapshot without parents.
    pub(crate) own: &'a Path,
}

impl Overlay {
    /// Finds out what the machine has.
    pub(crate) fn detect() -> Self {
        let map = std::fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
        let is_user = map.split_whitespace().nth(2).is_some_and(|len| len != "4294967295");
        Self { has_index: Path::new("/sys/module/overlay/parameters/index").exists(), is_user }
    }

    /// The mounts that show a snapshot.
    pub(crate) fn mounts(self, directories: &Directories<'_>) -> Vec<Mount> {
        let text = |path: &Path| path.to_string_lossy().into_owned();
        let bind = |source: String, mode: &str| Mount {
            kind: "bind".to_owned(),
            source,
            target: String::new(),
            options: vec![mode.to_owned(), "rbind".to_owned()],
        };
        let Directories { upper, work, lower, own } = directories;
        match (upper, lower) {
            (Some(_), []) => return vec![bind(text(own), "rw")],
            (None, []) => return vec![bind(text(own), "ro")],
            (None, [only]) => return vec![bind(only.clone(), "ro")],
            _ => {}
        }
        let mut options = Vec::new();
        if self.has_index {
            options.push("index=off".to_owned());
        }
        if self.is_user {
            options.push("userxattr".to_owned());
        }
        if let Some(upper) = upper {
            options.extend([format!("workdir={}", text(work)), format!("upperdir={}", text(upper))]);
        }
        options.push(format!("lowerdir={}", lower.join(":")));
        vec![Mount { kind: "overlay".to_owned(), source: "overlay".to_owned(), target: String::new(), options }]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn snapshots_are_bind_and_overlay_mounts() {
        let overlay = Overlay { has_index: true, is_user: false };
        let [upper, work, own] = ["/s/3/fs", "/s/3/work", "/s/3/fs"].map(Path::new);
        for (is_writable, lower, expected) in [
            (true, &[][..], "bind /s/3/fs rw rbind"),
            (false, &[], "bind /s/3/fs ro rbind"),
            (false, &["/s/1/fs"], "bind /s/1/fs ro rbind"),
            (false, &["/s/2/fs", "/s/1/fs"], "overlay overlay index=off lowerdir=/s/2/fs:/s/1/fs"),
            (
                true,
                &["/s/2/fs", "/s/1/fs"],
                "overlay overlay index=off workdir=/s/3/work upperdir=/s/3/fs lowerdir=/s/2/fs:/s/1/fs",
            ),
        ] {
            let lower: Vec<String> = lower.iter().map(|path| (*path).to_owned()).collect();
            let upper = is_writable.then_some(upper);
            let mounts = overlay.mounts(&Directories { upper, work, lower: &lower, own });
            let [mount] = &mounts[..] else { panic!("{mounts:?}") };
            assert_eq!(format!("{} {} {}", mount.kind, mount.source, mount.options.join(" ")), expected);
        }
    }
}
