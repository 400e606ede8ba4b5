//! Every option of sqfs2tar and tar2sqfs 1.3.1, and how this program treats it.

pub(super) use crate::drop_in::support::Support;

/// The name of the program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::drop_in) enum Program {
    /// An image becomes an archive on standard output.
    Sqfs2tar,
    /// An archive from standard input becomes an image.
    Tar2sqfs,
}

/// An option.
pub(super) struct OptionRow {
    pub(super) letter: char,
    /// Its long name.
    pub(super) name: &'static str,
    /// The notation of its value; empty if it has none.
    pub(super) value: &'static str,
    /// The meaning of the option.
    pub(super) about: &'static str,
    pub(super) support: Support,
}

use Support::{Ignored, Refused, Supported};

const fn row(
    letter: char,
    name: &'static str,
    value: &'static str,
    about: &'static str,
    support: Support,
) -> OptionRow {
    OptionRow { letter, name, value, about, support }
}

const SQFS2TAR: &[OptionRow] = &[
    row('c', "compressor", "<name>", "compress the archive", Refused("pipe it into gzip, xz or zstd")),
    row('d', "subdir", "<dir>", "only this directory; several keep their paths", Supported),
    row('r', "root-becomes", "<dir>", "the name of the root, which precedes all others", Supported),
    row('k', "keep-as-dir", "", "also a single --subdir keeps its path", Supported),
    row('X', "no-xattr", "", "no extended attributes", Supported),
    row('L', "no-hard-links", "", "store hard links as files of their own", Supported),
    row('s', "no-skip", "", "end with an error at an entry that an archive cannot hold, such as a socket", Supported),
    row('h', "help", "", "show this help", Supported),
    row('V', "version", "", "show the version", Supported),
];

const TAR2SQFS: &[OptionRow] = &[
    row('r', "root-becomes", "<dir>", "this directory of the archive becomes the root", Supported),
    row('S', "no-symlink-retarget", "", "with --root-becomes: leave symbolic links as they are", Supported),
    row('c', "compressor", "<name>", "compress by xz (default), zstd, gzip, lz4, lzo or lzma", Supported),
    row('X', "comp-extra", "<options>", "options of the compressor, see below", Supported),
    row('j', "num-jobs", "<count>", "number of threads", Supported),
    row('Q', "queue-backlog", "<count>", "length of the queue between threads", Ignored("memory is bounded in bytes")),
    row('b', "block-size", "<size>", "size of a block, 4K to 1M (default 128K)", Supported),
    row('B', "dev-block-size", "<size>", "pad the image to a multiple of this size, 1K to 4K (default 4K)", Supported),
    row('d', "defaults", "<options>", "uid=, gid=, mode= and mtime= of directories that the archive omits", Supported),
    row('s', "no-skip", "", "end with an error at a member that cannot be stored", Ignored("it always is an error")),
    row('x', "no-xattr", "", "no extended attributes", Supported),
    row('k', "no-keep-time", "", "give everything the default time", Supported),
    row('e', "exportable", "", "an export table", Supported),
    row('T', "no-tail-packing", "", "pack no ends of files that are longer than a block", Supported),
    row('E', "exclude-dir", "<glob>", "exclude members by name", Supported),
    row('f', "force", "", "replace an existing image", Supported),
    row('q', "quiet", "", "print nothing but errors", Supported),
    row('h', "help", "", "show this help", Supported),
    row('V', "version", "", "show the version", Supported),
];

impl Program {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Sqfs2tar => "sqfs2tar",
            Self::Tar2sqfs => "tar2sqfs",
        }
    }

    pub(super) const fn rows(self) -> &'static [OptionRow] {
        match self {
            Self::Sqfs2tar => SQFS2TAR,
            Self::Tar2sqfs => TAR2SQFS,
        }
    }

    /// The letters of options without a value.
    pub(super) const fn flags(self) -> &'static str {
        match self {
            Self::Sqfs2tar => "kXLshV",
            Self::Tar2sqfs => "SsxkeTfqhV",
        }
    }
}

impl OptionRow {
    /// Its names with their value.
    fn form(&self) -> String {
        let space = if self.value.is_empty() { "" } else { " " };
        format!("--{}, -{}{space}{}", self.name, self.letter, self.value)
    }
}

/// The help text.
pub(in crate::drop_in) fn help(program: Program) -> String {
    let about = match program {
        Program::Sqfs2tar => {
            "Usage: sqfs2tar [OPTIONS...] <sqfsfile>\n\nWrite a SquashFS image to standard output as a tar archive."
        }
        Program::Tar2sqfs => {
            "Usage: tar2sqfs [OPTIONS...] <sqfsfile>\n\nBuild a SquashFS image of a tar archive from standard input."
        }
    };
    let mut help = format!("{about} This is floe under the name of {}.\n\n", program.name());
    let mut refused = String::new();
    for row in program.rows() {
        match row.support {
            Supported => help.push_str(&format!("  {:<30} {}\n", row.form(), row.about)),
            Ignored(why) => help.push_str(&format!("  {:<30} {} (no effect: {why})\n", row.form(), row.about)),
            Refused(why) => refused.push_str(&format!("  {:<30} {}: {why}\n", row.form(), row.about)),
        }
    }
    if !refused.is_empty() {
        help.push_str("Refused:\n");
        help.push_str(&refused);
    }
    if program == Program::Tar2sqfs {
        help.push_str(
            "\nOptions of the compressors:\n  gzip: level=, window=, default, filtered, huffman, rle, fixed\n  xz:   dictsize=, \
             x86, powerpc, ia64, arm, armthumb, sparc\n  zstd: level=\n  lz4:  hc\n  lzo:  algorithm=lzo1x_999, level=8\n",
        );
    }
    help
}

#[cfg(test)]
mod tests {
    use std::{collections::HashSet, fs, path::Path};

    use super::*;

    #[test]
    fn the_docs_have_the_same_tables() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/squashfs-tools-ng.md");
        let docs = fs::read_to_string(&path).unwrap_or_default();
        for program in [Program::Sqfs2tar, Program::Tar2sqfs] {
            let mut table = String::from("| option | meaning | here |\n| --- | --- | --- |\n");
            for row in program.rows() {
                let here = match row.support {
                    Supported => "supported".to_owned(),
                    Ignored(why) => format!("no effect: {why}"),
                    Refused(why) => format!("refused: {why}"),
                };
                table.push_str(&format!("| `{}` | {} | {here} |\n", row.form(), row.about));
            }
            assert!(docs.contains(&table), "{} has to have this table:\n{table}", path.display());
        }
    }

    #[test]
    fn no_name_has_two_meanings() {
        for program in [Program::Sqfs2tar, Program::Tar2sqfs] {
            let mut seen = HashSet::new();
            for row in program.rows() {
                assert!(seen.insert(row.letter.to_string()) && seen.insert(row.name.to_owned()));
                assert_eq!(program.flags().contains(row.letter), row.value.is_empty(), "{}", row.name);
            }
        }
    }
}
