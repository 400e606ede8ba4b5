//! Parses files of compression hints, which set the compression of some files.

use floe_mkfs::{Coding, Compression, Hint};

/// Parses hints, one per line: the size of a pcluster in bytes, optionally the index of an algorithm, and an extended
/// regular expression for paths without a leading slash. A size of 0 stores files uncompressed. `algorithm` returns the
/// algorithm with an index for a pcluster size.
///
/// # Errors
/// A message with the number of the invalid line.
pub(crate) fn parse(text: &str, algorithm: impl Fn(usize, u32) -> Option<Compression>) -> Result<Vec<Hint>, String> {
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty() && !line.starts_with('#'));
    let hint = |(number, line): (usize, &str)| {
        let wrong = |what: String| format!("line {}: {what}", number + 1);
        let (size, rest) = first_word(line.trim());
        let pcluster_bytes = size.parse().map_err(|_| wrong(format!("'{size}' is not a size in bytes")))?;
        let (index, expression) = match first_word(rest) {
            ("", _) => return Err(wrong("the expression after the size is missing".into())),
            (expression, "") => ("0", expression),
            (index, expression) => (index, expression),
        };
        let found = index.parse().ok().and_then(|index| algorithm(index, pcluster_bytes));
        let compression = found.ok_or_else(|| wrong(format!("there is no algorithm {index}: the first is 0")))?;
        let coding = (pcluster_bytes > 0).then_some(Coding { compression, pcluster_bytes });
        Ok(Hint { expression: expression.to_owned(), coding })
    };
    lines.map(hint).collect()
}

/// Splits a text at the first run of blanks and tabs.
fn first_word(text: &str) -> (&str, &str) {
    text.split_once([' ', '\t']).map_or((text, ""), |(word, rest)| (word, rest.trim_start()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hint_lines_are_parsed() {
        let algorithms = [Compression::Deflate { level: 1 }, Compression::Deflate { level: 9 }];
        let algorithm = |index: usize, _| algorithms.get(index).copied();
        let hint = |expression: &str, coding: Option<(usize, u32)>| Hint {
            expression: expression.to_owned(),
            coding: coding.map(|(index, pcluster_bytes)| Coding { compression: algorithms[index], pcluster_bytes }),
        };
        let text = "# a comment\n\n65536 \\.so$\n4096 \t 1   ^usr/a  b/\n0\t \\.jpg$  \n";
        let expected = [hint("\\.so$", Some((0, 65536))), hint("^usr/a  b/", Some((1, 4096))), hint("\\.jpg$", None)];
        assert_eq!(parse(text, algorithm).as_deref(), Ok(expected.as_slice()));
        for (text, said) in [
            ("big x", "line 1: 'big' is not a size in bytes"),
            ("# fine\n4096", "line 2: the expression after the size is missing"),
            ("4096 2 x", "line 1: there is no algorithm 2: the first is 0"),
        ] {
            assert_eq!(parse(text, algorithm), Err(said.to_owned()));
        }
    }
}
