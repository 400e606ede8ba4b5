//! Image options in the syntax of each program.

use std::path::Path;

use crate::task_error::{Outcome, TaskError};

/// Options of mkfs.erofs that the other programs support too.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct MkfsOptions {
    text: String,
    algorithm: String,
    level: Option<String>,
    pcluster_bytes: Option<String>,
    extended: Vec<String>,
}

impl MkfsOptions {
    /// Parses `-zX[,[level=]N]`, `-C#` and `-EX[,X]`, one word each.
    pub(super) fn parse(text: &str) -> Outcome<Self> {
        let mut options = Self {
            text: text.to_owned(),
            algorithm: String::new(),
            level: None,
            pcluster_bytes: None,
            extended: Vec::new(),
        };
        for word in text.split_whitespace() {
            if let Some(algorithm) = word.strip_prefix("-z") {
                let (name, level) = algorithm.split_once(',').map_or((algorithm, None), |(a, b)| (a, Some(b)));
                options.algorithm = name.to_owned();
                options.level = level.map(|level| level.trim_start_matches("level=").to_owned());
            } else if let Some(bytes) = word.strip_prefix("-C") {
                options.pcluster_bytes = Some(bytes.to_owned());
            } else if let Some(extended) = word.strip_prefix("-E") {
                options.extended = extended.split(',').map(str::to_owned).collect();
            } else {
                return Err(TaskError::new(format!("{word}: unknown option; use -zX,level=N, -C# and -EX,X")));
            }
        }
        let names = ["ztailpacking", "fragments", "all-fragments", "dedupe"];
        match options.extended.iter().find(|name| !names.contains(&name.as_str())) {
            Some(name) => Err(TaskError::new(format!("unknown option -E{name}; use one of {}", names.join(", ")))),
            None => Ok(options),
        }
    }

    /// The options as given.
    pub(super) fn text(&self) -> &str {
        &self.text
    }

    /// The command line of `floe mkfs`.
    pub(super) fn floe(&self, image: &Path, tree: &Path) -> Vec<String> {
        let mut words = vec!["mkfs".to_owned(), "--quiet".to_owned(), shown(image), shown(tree)];
        if !self.algorithm.is_empty() {
            let name = if self.algorithm == "libdeflate" { "deflate" } else { &self.algorithm };
            let level = self.level.as_ref().map(|level| format!(",{level}")).unwrap_or_default();
            words.extend(["--compress".to_owned(), format!("{name}{level}")]);
        }
        words.extend(self.pcluster_bytes.iter().flat_map(|bytes| ["--pcluster".to_owned(), bytes.clone()]));
        for (name, option) in [
            ("ztailpacking", "--inline-tails"),
            ("fragments", "--fragments=tails"),
            ("all-fragments", "--fragments=all"),
            ("dedupe", "--dedupe"),
        ] {
            if self.has(name) {
                words.push(option.to_owned());
            }
        }
        words
    }

    /// The command line of `floe mkfs` for a SquashFS image like that of [`MkfsOptions::mksquashfs`].
    pub(super) fn floe_squashfs(&self, image: &Path, tree: &Path) -> Vec<String> {
        let name = match self.algorithm.as_str() {
            "" => "none",
            "lzma" => "xz",
            name @ ("lz4" | "lz4hc" | "zstd") => name,
            _ => "gzip",
        };
        let level = match name {
            "zstd" | "gzip" => self.level.clone().unwrap_or_else(|| if name == "zstd" { "3" } else { "6" }.to_owned()),
            _ => String::new(),
        };
        let compression = if level.is_empty() { name.to_owned() } else { format!("{name},{level}") };
        let words =
            ["mkfs", "--quiet", &shown(image), &shown(tree), "--format", "squashfs", "--compress", &compression];
        words.map(str::to_owned).to_vec()
    }

    /// The command line of mkfs.erofs.
    pub(super) fn mkfs_erofs(&self, image: &Path, tree: &Path) -> Vec<String> {
        let mut words = vec!["--quiet".to_owned()];
        words.extend(self.text.split_whitespace().map(str::to_owned));
        words.extend([shown(image), shown(tree)]);
        words
    }

    /// The command line of mksquashfs, which chooses its own block size and always uses fragments and duplicate
    /// detection.
    pub(super) fn mksquashfs(&self, image: &Path, tree: &Path) -> Vec<String> {
        let mut words: Vec<String> = vec![shown(tree), shown(image)];
        let level = |default: &str| self.level.clone().unwrap_or_else(|| default.to_owned());
        let compression = match self.algorithm.as_str() {
            "" => vec!["-noD".to_owned(), "-noF".to_owned()],
            "lz4" => vec!["-comp".to_owned(), "lz4".to_owned()],
            "lz4hc" => vec!["-comp".to_owned(), "lz4".to_owned(), "-Xhc".to_owned()],
            "lzma" => vec!["-comp".to_owned(), "xz".to_owned()],
            "zstd" => vec!["-comp".to_owned(), "zstd".to_owned(), "-Xcompression-level".to_owned(), level("3")],
            _ => vec!["-comp".to_owned(), "gzip".to_owned(), "-Xcompression-level".to_owned(), level("6")],
        };
        words.extend(compression);
        words.extend(["-noappend", "-no-progress", "-quiet"].map(str::to_owned));
        words
    }

    /// The command line of tar2sqfs for an image like that of [`Self::mksquashfs`].
    pub(super) fn tar2sqfs(&self, image: &Path, _tree: &Path) -> Vec<String> {
        let level = |default: &str| format!("level={}", self.level.as_deref().unwrap_or(default));
        let (name, extra) = match self.algorithm.as_str() {
            "lz4" => ("lz4", None),
            "lz4hc" => ("lz4", Some("hc".to_owned())),
            "lzma" => ("xz", None),
            "zstd" => ("zstd", Some(level("3"))),
            _ => ("gzip", Some(level("6"))),
        };
        let mut words = vec!["--quiet".to_owned(), "--compressor".to_owned(), name.to_owned()];
        words.extend(extra.into_iter().flat_map(|extra| ["--comp-extra".to_owned(), extra]));
        words.push(shown(image));
        words
    }

    fn has(&self, name: &str) -> bool {
        self.extended.iter().any(|extended| extended == name)
    }
}

fn shown(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_program_gets_its_own_words() {
        let (image, tree) = (Path::new("i"), Path::new("t"));
        for (text, floe, squashfs, floe_squashfs, tar2sqfs) in [
            ("-zlz4", "mkfs --quiet i t --compress lz4", "t i -comp lz4 -noappend -no-progress -quiet", "lz4", "lz4"),
            (
                "-zzstd,level=3 -C65536 -Eztailpacking,fragments",
                "mkfs --quiet i t --compress zstd,3 --pcluster 65536 --inline-tails --fragments=tails",
                "t i -comp zstd -Xcompression-level 3 -noappend -no-progress -quiet",
                "zstd,3",
                "zstd --comp-extra level=3",
            ),
            (
                "-zlzma,6 -Eall-fragments,dedupe",
                "mkfs --quiet i t --compress lzma,6 --fragments=all --dedupe",
                "t i -comp xz -noappend -no-progress -quiet",
                "xz",
                "xz",
            ),
        ] {
            let options = MkfsOptions::parse(text).expect("it is known");
            assert_eq!(options.floe(image, tree).join(" "), floe);
            assert_eq!(options.mksquashfs(image, tree).join(" "), squashfs);
            assert_eq!(options.tar2sqfs(image, tree).join(" "), format!("--quiet --compressor {tar2sqfs} i"));
            let found = options.floe_squashfs(image, tree).join(" ");
            assert_eq!(found, format!("mkfs --quiet i t --format squashfs --compress {floe_squashfs}"));
            assert_eq!(options.mkfs_erofs(image, tree).join(" "), format!("--quiet {text} i t"));
        }
        for text in ["lz4", "-zlz4 -Emagic"] {
            assert!(MkfsOptions::parse(text).is_err(), "{text}");
        }
    }
}
