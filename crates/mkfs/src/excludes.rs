//! What is left out.

use std::{
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
};

use regex::bytes::{Regex, RegexBuilder};

use crate::{
    error::{Error, Result},
    options::Options,
};

/// How much memory an expression may take once it is compiled, in bytes.
const EXPRESSION_SIZE_MAX: usize = 10 << 20;

/// The paths within the image that are left out, with all that is below them.
pub(crate) struct Excludes {
    paths: Vec<PathBuf>,
    expressions: Vec<Regex>,
}

impl Excludes {
    /// What the options say.
    pub(crate) fn new(options: &Options) -> Result<Self> {
        let expressions = options.exclude_expressions.iter().map(|text| expression(text));
        Ok(Self { paths: options.excludes.clone(), expressions: expressions.collect::<Result<_>>()? })
    }

    /// Whether the entry at this path, without a leading slash, is left out; what is above it is not looked at.
    pub(crate) fn has(&self, path: &Path) -> bool {
        let bytes = path.as_os_str().as_bytes();
        self.paths.iter().any(|exclude| exclude == path) || self.expressions.iter().any(|regex| regex.is_match(bytes))
    }

    /// Whether the entry at this path or something above it is left out.
    pub(crate) fn has_within(&self, path: &Path) -> bool {
        let is_empty = self.paths.is_empty() && self.expressions.is_empty();
        !is_empty && path.ancestors().any(|path| !path.as_os_str().is_empty() && self.has(path))
    }
}

/// An extended regular expression over bytes.
pub(crate) fn expression(text: &str) -> Result<Regex> {
    let built = RegexBuilder::new(text).unicode(false).size_limit(EXPRESSION_SIZE_MAX).build();
    built.map_err(|error| {
        let said = error.to_string();
        let reason = said.lines().last().unwrap_or_default().trim_start_matches("error: ");
        Error::Option(format!("'{text}' is no regular expression: {reason}"))
    })
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
        options.exclude_expressions = vec!["(".into()];
        let said = Excludes::new(&options).err().expect("it is broken").to_string();
        assert!(said.contains("'(' is no regular expression") && !said.contains('\n'), "{said}");
    }
}
