//! Excluded paths.

use std::{
    collections::HashSet,
    fs,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering::Relaxed},
};

use floe_image::ShownName;
use regex::bytes::Regex;

use crate::{
    error::Result,
    options::{Options, PathFilter, coding::expression},
};

/// Paths within the image that are excluded with everything below them.
pub(crate) struct Excludes {
    paths: Vec<Exclude>,
    expressions: Vec<Regex>,
    filter: Option<PathFilter>,
    /// The paths, within the source being listed, of the previous image, its blob device and their companions.
    outputs: Vec<(PathBuf, Exclude)>,
}

/// An excluded path.
struct Exclude {
    path: PathBuf,
    is_found: AtomicBool,
}

impl Excludes {
    /// Compiles the options.
    pub(crate) fn new(options: &Options) -> Result<Self> {
        let expressions = options.exclude_expressions.iter().map(|text| expression(text));
        let paths = options.excludes.iter().cloned().map(Exclude::new).collect();
        Ok(Self {
            paths,
            expressions: expressions.collect::<Result<_>>()?,
            filter: options.exclude_filter.clone(),
            outputs: Vec::new(),
        })
    }

    /// Excludes the existing output files and their companions if they are within a source directory.
    pub(crate) fn begin_directory(&mut self, source: &Path, options: &Options) {
        let outputs = [&options.output].into_iter().chain(&options.blob_device).chain(&options.companions);
        let source = fs::canonicalize(source).unwrap_or_default();
        let mut known = HashSet::new();
        let within = outputs.filter_map(|output| {
            let actual = fs::canonicalize(output).ok().filter(|actual| actual.is_file())?;
            let inner = actual.strip_prefix(&source).ok()?.to_path_buf();
            known.insert(inner.clone()).then(|| (output.clone(), Exclude::new(inner)))
        });
        self.outputs = within.collect();
    }

    /// Ends the directory. Returns a warning for each output file that was in it.
    pub(crate) fn end_directory(&mut self) -> Vec<String> {
        let found = self.outputs.drain(..).filter(|(_, within)| within.is_found());
        found.map(|(output, _)| format!("the output {} is inside the source; it was omitted", output.shown())).collect()
    }

    /// An excluded path that was not found.
    pub(crate) fn missing(&self) -> Option<&Path> {
        let missing = self.paths.iter().find(|exclude| {
            // Paths inside an excluded directory were not searched.
            !exclude.is_found() && !exclude.path.parent().is_some_and(|parent| self.has_within(parent))
        });
        missing.map(|exclude| exclude.path.as_path())
    }

    /// Whether the entry at this path, without a leading slash, is excluded. Does not consider its parents.
    pub(crate) fn has(&self, path: &Path) -> bool {
        let bytes = path.as_os_str().as_bytes();
        let mut named = self.paths.iter().chain(self.outputs.iter().map(|(_, within)| within));
        named.any(|exclude| exclude.is_at(path))
            || self.expressions.iter().any(|regex| regex.is_match(bytes))
            || self.filter.as_ref().is_some_and(|filter| filter.excludes(path))
    }

    /// Whether the entry at this path or one of its parents is excluded.
    pub(crate) fn has_within(&self, path: &Path) -> bool {
        let is_empty = self.paths.is_empty() && self.expressions.is_empty() && self.filter.is_none();
        !is_empty && path.ancestors().any(|path| !path.as_os_str().is_empty() && self.has(path))
    }
}

impl Exclude {
    fn new(path: PathBuf) -> Self {
        Self { path, is_found: AtomicBool::new(false) }
    }

    /// Whether this is the excluded path; if so, marks it as found.
    fn is_at(&self, path: &Path) -> bool {
        let is_this = self.path == path;
        if is_this {
            self.is_found.store(true, Relaxed);
        }
        is_this
    }

    fn is_found(&self) -> bool {
        self.is_found.load(Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_and_expressions_leave_out() {
        let mut options = Options::new("unused");
        options.excludes = vec!["usr/share/doc".into()];
        options.exclude_expressions = vec![r"\.o$".into(), "^tmp/[[:digit:]]+".into()];
        let excludes = Excludes::new(&options).expect("they are valid");
        for (path, expected) in [
            ("usr/share/doc", true),
            ("usr/share/docs", false),
            ("usr/share/doc/x", false),
            ("a/b.o", true),
            ("a/b.out", false),
            ("tmp/12", true),
            ("tmp/x", false),
            ("x/tmp/12", false),
        ] {
            assert_eq!(excludes.has(Path::new(path)), expected, "{path}");
        }
        assert!(excludes.has_within(Path::new("usr/share/doc/x/y")));
        options.exclude_filter = Some(PathFilter::new(|path| path.ends_with("secret")));
        let excludes = Excludes::new(&options).expect("they are valid");
        assert!(excludes.has_within(Path::new("a/secret/b")) && !excludes.has(Path::new("a/secrets")));
        options.exclude_expressions = vec!["(".into()];
        let said = Excludes::new(&options).err().expect("it is broken").to_string();
        assert!(said.contains("'(' is not a valid regular expression") && !said.contains('\n'), "{said}");
    }
}
