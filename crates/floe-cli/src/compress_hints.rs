//! Parses files of compression hints, which set the compression of some files.

use floe_mkfs::{Coding, Compression, Hint};

use crate::expression_text::expression_text;

/// The maximum size of a pcluster in bytes.
const PCLUSTER_BYTES_MAX: u32 = 1 << 20;

/// Parses hints, one per line: the size of a pcluster in bytes, optionally the index of an algorithm, and an extended
/// regular expression for paths without a leading slash. A size of 0 stores files uncompressed; other sizes are multiples of
/// `block_bytes`. `algorithm` returns the algorithm with an index for a pcluster size. `impossible_size` gets the message
/// about a line with a size that is none, and decides whether the line is skipped.
///
/// # Errors
/// A message with the number of the invalid line.
pub(crate) fn parse(
    text: &[u8],
    block_bytes: u32,
    algorithm: impl Fn(usize, u32) -> Option<Compression>,
    mut impossible_size: impl FnMut(String) -> Result<(), String>,
) -> Result<Vec<Hint>, String> {
    let text = expression_text(text);
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty() && !line.starts_with('#'));
    let hint = |(number, line): (usize, &str)| {
        let wrong = |what: String| format!("line {}: {what}", number + 1);
        let (size, rest) = first_word(line.trim());
        let (index, expression) = match first_word(rest) {
            ("", _) => return Err(wrong("the expression after the size is missing".into())),
            (expression, "") => ("0", expression),
            (index, expression) => (index, expression),
        };
        let usable = || wrong(format!("{size} is not a multiple of {block_bytes} bytes, up to {PCLUSTER_BYTES_MAX}"));
        let pcluster_bytes: Result<u32, String> = match size.parse::<u64>() {
            Err(_) => Err(wrong(format!("'{size}' is not a size in bytes"))),
            Ok(bytes) if !bytes.is_multiple_of(block_bytes.into()) => Err(usable()),
            Ok(bytes) => {
                Ok(u32::try_from(bytes).ok().filter(|bytes| *bytes <= PCLUSTER_BYTES_MAX).ok_or_else(usable)?)
            }
        };
        let algorithm_bytes = *pcluster_bytes.as_ref().unwrap_or(&block_bytes);
        let found = index.parse().ok().and_then(|index| algorithm(index, algorithm_bytes));
        let compression = found.ok_or_else(|| wrong(format!("there is no algorithm {index}: the first is 0")))?;
        let pcluster_bytes = match pcluster_bytes {
            Ok(bytes) => bytes,
            Err(message) => return impossible_size(message).map(|()| None),
        };
        let coding = (pcluster_bytes > 0).then_some(Coding { compression, pcluster_bytes });
        Ok(Some(Hint { expression: expression.to_owned(), coding }))
    };
    lines.map(hint).filter_map(Result::transpose).collect()
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
        let text =
            b"# a comment \xff\n\n65536 \\.so$\n4096 \t 1   ^usr/a  b/\n0\t \\.jpg$  \n4096 \xc3\xa4[\xe4\xff]\n";
        let expected = [
            hint("\\.so$", Some((0, 65536))),
            hint("^usr/a  b/", Some((1, 4096))),
            hint("\\.jpg$", None),
            hint("ä[\\xE4\\xFF]", Some((0, 4096))),
        ];
        assert_eq!(parse(text, 4096, algorithm, Err).as_deref(), Ok(expected.as_slice()));
        for (text, said, is_size) in [
            ("big x", "line 1: 'big' is not a size in bytes", true),
            ("# fine\n4096", "line 2: the expression after the size is missing", false),
            ("5000", "line 1: the expression after the size is missing", false),
            ("4096 2 x", "line 1: there is no algorithm 2: the first is 0", false),
            ("5000 2 x", "line 1: there is no algorithm 2: the first is 0", false),
            ("5000 x", "line 1: 5000 is not a multiple of 4096 bytes, up to 1048576", true),
            ("1048577 x", "line 1: 1048577 is not a multiple of 4096 bytes, up to 1048576", true),
            ("1052672 x", "line 1: 1052672 is not a multiple of 4096 bytes, up to 1048576", false),
        ] {
            let text = format!("{text}\n0 y\n");
            assert_eq!(parse(text.as_bytes(), 4096, algorithm, Err), Err(said.to_owned()));
            let mut skipped = Vec::new();
            let parsed = parse(text.as_bytes(), 4096, algorithm, |message| {
                skipped.push(message);
                Ok(())
            });
            let expected = if is_size { Ok(vec![hint("y", None)]) } else { Err(said.to_owned()) };
            assert_eq!((parsed, skipped), (expected, if is_size { vec![said.to_owned()] } else { Vec::new() }));
        }
    }
}
