//! SELinux labels by rules for paths, as in a file_contexts.

use floe_image::FileType;
use regex::bytes::Regex;

use super::coding::expression;
use crate::error::{Error, Result, shown};

/// The label that stands for none.
const NO_LABEL: &[u8] = b"<<none>>";

/// The characters that a path cannot have literally in a rule.
const META: &[u8] = br".^$?*+|[({\";

/// Rules that give files labels by their paths and types.
#[derive(Clone, Debug, Default)]
pub struct FileContexts {
    /// The first one that matches counts.
    rules: Vec<Rule>,
}

/// A line of the file.
#[derive(Clone, Debug)]
struct Rule {
    /// What each path begins with that the expression matches.
    literal: Vec<u8>,
    /// Matches whole paths; `None` if only the literal path matches.
    expression: Option<Regex>,
    file_type: Option<FileType>,
    label: Option<Vec<u8>>,
}

impl FileContexts {
    /// Parses lines of an expression for whole paths, an optional type as `--` or `-d`, and a label or `<<none>>`.
    ///
    /// As in libselinux, a later line takes precedence over an earlier one, and one with a literal path over an expression.
    ///
    /// # Errors
    /// [`Error::Option`]: a line has another form, or its expression is invalid.
    pub fn parse(text: &[u8]) -> Result<Self> {
        let mut rules = Vec::new();
        for (line, number) in text.split(|byte| *byte == b'\n').zip(1..) {
            let fields: Vec<&[u8]> = line.split(u8::is_ascii_whitespace).filter(|field| !field.is_empty()).collect();
            let (path, file_type, label) = match fields.as_slice() {
                [] => continue,
                [first, ..] if first.starts_with(b"#") => continue,
                [path, label] => (path, None, label),
                [path, file_type, label] => (path, Some(file_type_of(file_type, number)?), label),
                _ => return Err(wrong(number, "a rule is an expression, an optional type, and a label")),
            };
            rules.push(Rule::new(path, file_type, label, number)?);
        }
        rules.reverse();
        rules.sort_by_key(|rule| rule.expression.is_some());
        Ok(Self { rules })
    }

    /// The label of a file; its path begins with a slash.
    pub(crate) fn label(&self, path: &[u8], file_type: FileType) -> Option<&[u8]> {
        self.rules.iter().find(|rule| rule.matches(path, file_type)).and_then(|rule| rule.label.as_deref())
    }
}

impl Rule {
    fn new(path: &[u8], file_type: Option<FileType>, label: &[u8], line: usize) -> Result<Self> {
        let (literal, is_whole) = literal_start(path);
        let expression = (!is_whole)
            .then(|| {
                let text = std::str::from_utf8(path).map_err(|_| wrong(line, "the expression is not text"))?;
                expression(&format!("^(?s:{text})$")).map_err(|error| wrong(line, &error.to_string()))
            })
            .transpose()?;
        let label = Some(label).filter(|label| *label != NO_LABEL).map(<[u8]>::to_vec);
        Ok(Self { literal, expression, file_type, label })
    }

    fn matches(&self, path: &[u8], file_type: FileType) -> bool {
        if self.file_type.is_some_and(|wanted| wanted != file_type) || !path.starts_with(&self.literal) {
            return false;
        }
        match &self.expression {
            Some(expression) => expression.is_match(path),
            None => path.len() == self.literal.len(),
        }
    }
}

/// What each path begins with that an expression matches, and whether that is all of the expression.
fn literal_start(expression: &[u8]) -> (Vec<u8>, bool) {
    if expression.contains(&b'|') {
        return (Vec::new(), false);
    }
    let mut literal = Vec::new();
    let mut bytes = expression.iter().copied().peekable();
    while let Some(byte) = bytes.next() {
        let byte = match (byte, bytes.peek()) {
            (b'\\', Some(next)) if !next.is_ascii_alphanumeric() => bytes.next(),
            (byte, _) if META.contains(&byte) => None,
            (byte, _) => Some(byte),
        };
        // A repeat belongs to the character before it.
        match (byte, bytes.peek()) {
            (Some(byte), next) if !next.is_some_and(|next| b"?*{".contains(next)) => literal.push(byte),
            _ => return (literal, false),
        }
    }
    (literal, true)
}

fn file_type_of(text: &[u8], line: usize) -> Result<FileType> {
    Ok(match text {
        b"--" => FileType::Regular,
        b"-d" => FileType::Directory,
        b"-l" => FileType::Symlink,
        b"-c" => FileType::CharacterDevice,
        b"-b" => FileType::BlockDevice,
        b"-p" => FileType::Fifo,
        b"-s" => FileType::Socket,
        _ => return Err(wrong(line, &format!("'{}' is not a type: use --, -d, -l, -c, -b, -p or -s", shown(text)))),
    })
}

fn wrong(line: usize, reason: &str) -> Error {
    Error::Option(format!("file contexts, line {line}: {reason}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn later_and_literal_rules_take_precedence() {
        let rules =
            b"# all\n/.*  all\n/a/b\texact\n\n/a(/.*)?  tree\n/a/c -d directory\n/a/c -- file\n/x <<none>>\n/v1\\.0 \
                      dot\n/d+ more\n/q/a|/q/b either\n";
        let contexts = FileContexts::parse(rules).expect("they are right");
        for (path, file_type, expected) in [
            ("/", FileType::Directory, Some("all")),
            ("/a", FileType::Directory, Some("tree")),
            ("/a/b", FileType::Regular, Some("exact")),
            ("/a/bb", FileType::Regular, Some("tree")),
            ("/a/c", FileType::Regular, Some("file")),
            ("/a/c", FileType::Directory, Some("directory")),
            ("/a/c", FileType::Symlink, Some("tree")),
            ("/x", FileType::Regular, None),
            ("/v1.0", FileType::Regular, Some("dot")),
            ("/v1x0", FileType::Regular, Some("all")),
            ("/ddd", FileType::Regular, Some("more")),
            ("/q/b", FileType::Regular, Some("either")),
            ("/line\nbreak", FileType::Regular, Some("all")),
            ("/\u{ff}", FileType::Regular, Some("all")),
        ] {
            let found = contexts.label(path.as_bytes(), file_type);
            assert_eq!(found, expected.map(str::as_bytes), "{path}");
        }
        for text in ["/a", "/a -- b c", "/a -x b", "/a( b", "/a \n/b -q c"] {
            assert!(FileContexts::parse(text.as_bytes()).is_err(), "{text}");
        }
    }
}
