//! Every option of mksquashfs 4.7.5, and how this program treats it. sqfstar has the same ones.

use super::program::Program;
pub(super) use crate::drop_in::support::Support;

/// An option.
pub(super) struct OptionRow {
    /// Its names, without the dash; the first one is used in messages.
    pub(super) names: &'static [&'static str],
    /// The notation of its value; empty if it has none.
    pub(super) value: &'static str,
    /// The meaning of the option.
    pub(super) about: &'static str,
    pub(super) support: Support,
}

use Support::{Ignored, Refused, Supported};

const fn row(names: &'static [&'static str], value: &'static str, about: &'static str, support: Support) -> OptionRow {
    OptionRow { names, value, about, support }
}

const APPENDS: &str = "images are always built completely";
const ACTIONS: &str = "there are no actions; use -p, -e, -sort and the options for modes and owners";
const READERS: &str = "threads read and compress in turn";

/// The options, in the order of the original's help.
pub(super) const OPTIONS: &[OptionRow] = &[
    row(&["b"], "SIZE", "size of a block, 4K to 1M (default 128K)", Supported),
    row(&["comp"], "NAME", "compress by gzip (default), lzo, lz4, xz, zstd or lzma", Supported),
    row(&["noI", "noInodeCompression"], "", "do not compress inodes and directories", Supported),
    row(&["noId", "noIdTableCompression"], "", "do not compress owners and groups", Supported),
    row(&["noD", "noDataCompression"], "", "do not compress blocks of files", Supported),
    row(&["noF", "noFragmentCompression"], "", "do not compress fragment blocks", Supported),
    row(&["noX", "noXattrCompression"], "", "do not compress extended attributes", Supported),
    row(&["no-compression"], "", "compress nothing", Supported),
    row(&["Xcompression-level"], "LEVEL", "level of gzip (1 to 9), zstd (1 to 22, below 0) or lzo (8)", Supported),
    row(&["Xwindow-size"], "LOG2", "window of gzip, 8 to 15", Supported),
    row(&["Xstrategy"], "NAMES", "strategies of gzip, of which the best is used", Supported),
    row(&["Xhc"], "", "high compression of lz4", Supported),
    row(&["Xbcj"], "NAMES", "branch filters of xz, of which the best is used", Supported),
    row(&["Xdict-size"], "SIZE", "dictionary of xz: a size, or a percentage of the block size", Supported),
    row(&["Xalgorithm"], "NAME", "algorithm of lzo; lzo1x_999 stands for the only one here", Supported),
    row(&["tar"], "", "read a tar archive from standard input; the only source is -", Supported),
    row(&["no-strip", "tarstyle"], "", "keep the leading directories of sources", Refused("use -keep-as-directory")),
    row(&["cpiostyle"], "", "read names from standard input", Refused("name the sources on the command line")),
    row(&["cpiostyle0"], "", "read names from standard input", Refused("name the sources on the command line")),
    row(&["no-exports"], "", "no export table", Supported),
    row(&["exports"], "", "an export table (default, but not for archives)", Supported),
    row(&["no-sparse"], "", "store blocks of zeros", Supported),
    row(&["no-tailends"], "", "pack no ends of long files (default)", Supported),
    row(&["tailends", "always-use-fragments"], "", "pack ends of long files, too", Supported),
    row(&["no-fragments"], "", "pack nothing", Supported),
    row(&["no-duplicates"], "", "store equal files several times", Supported),
    row(&["no-hardlinks"], "", "store hard links as files of their own", Supported),
    row(&["keep-as-directory"], "", "store a single source as a directory", Supported),
    row(
        &["mkfs-time", "fstime"],
        "TIME",
        "build time: seconds, a date, or inode for the latest time of a file",
        Supported,
    ),
    row(&["inode-time", "all-time"], "TIME", "time of all files: seconds, or a date", Supported),
    row(&["root-time"], "TIME", "time of the root: seconds, or a date", Supported),
    row(&["repro"], "", "as -mkfs-time inode", Supported),
    row(&["repro-time"], "TIME", "as -mkfs-time and -inode-time", Supported),
    row(&["all-root", "root-owned"], "", "make root the owner of all files", Supported),
    row(&["root-mode"], "MODE", "mode of the root, in octal", Supported),
    row(&["root-uid"], "USER", "owner of the root", Supported),
    row(&["root-gid"], "GROUP", "group of the root", Supported),
    row(&["force-file-mode"], "MODE", "mode of all files", Refused("use m definitions of -p, or change the source")),
    row(
        &["force-dir-mode"],
        "MODE",
        "mode of all directories",
        Refused("use m definitions of -p, or change the source"),
    ),
    row(&["force-uid"], "USER", "owner of all files", Supported),
    row(&["force-gid"], "GROUP", "group of all files", Supported),
    row(&["uid-gid-offset"], "NUMBER", "added to all owners and groups", Supported),
    row(
        &["p"],
        "DEFINITION",
        "add or change a file: types d, m, b, c, f, s, i, x, l and h, also as capitals",
        Supported,
    ),
    row(
        &["pd", "pseudo-dir"],
        "DEFINITION",
        "attributes of missing directories",
        Refused("define each directory with -p"),
    ),
    row(&["pf"], "FILE", "read definitions from a file, - for standard input", Supported),
    row(
        &["pseudo-override"],
        "",
        "definitions of owners override -all-root and others",
        Refused("omit -all-root, -force-uid and -force-gid"),
    ),
    row(&["sort"], "FILE", "store files by priorities: lines with a path and -32768 to 32767", Supported),
    row(&["ef"], "FILE", "exclude the paths in a file, one a line", Supported),
    row(&["e"], "PATH...", "exclude the paths that follow, up to the end", Supported),
    row(&["wildcards"], "", "excluded paths are shell wildcards", Supported),
    row(&["regex"], "", "excluded paths are regular expressions, one for each name", Supported),
    row(&["max-depth"], "LEVELS", "descend at most so many directories", Refused("exclude paths with -wildcards")),
    row(&["one-file-system"], "", "do not enter other file systems", Refused("exclude the mountpoints with -e")),
    row(&["one-file-system-x"], "", "omit other file systems", Refused("exclude the mountpoints with -e")),
    row(&["no-xattrs"], "", "no extended attributes", Supported),
    row(&["xattrs"], "", "with extended attributes (default)", Supported),
    row(&["xattrs-exclude"], "REGEX", "exclude attributes by name", Refused("use -no-xattrs, or change the source")),
    row(&["xattrs-include"], "REGEX", "include attributes by name", Refused("use -no-xattrs, or change the source")),
    row(&["xattrs-add"], "NAME=VALUE", "add an attribute to all files", Refused("use x definitions of -p")),
    row(&["version"], "", "show the version", Supported),
    row(&["exit-on-error"], "", "a file that changes or vanishes ends the build", Supported),
    row(&["quiet"], "", "print nothing but errors", Supported),
    row(&["info"], "", "print each file after the build, and no progress bar", Supported),
    row(&["info-file"], "FILE", "write each file to a file after the build", Supported),
    row(&["no-progress"], "", "no progress bar", Supported),
    row(&["progress"], "", "a progress bar (default)", Supported),
    row(&["percentage"], "", "percentages instead of the bar", Supported),
    row(&["throttle"], "PERCENT", "read more slowly", Refused("use ionice, or a control group")),
    row(&["limit"], "PERCENT", "read more slowly", Refused("use ionice, or a control group")),
    row(&["processors"], "NUMBER", "number of threads", Supported),
    row(&["mem"], "SIZE", "limit of file data in memory", Supported),
    row(&["mem-percent"], "PERCENT", "limit of memory", Ignored("-mem sets it; the default is 12 MiB for each thread")),
    row(&["single-reader"], "", "one thread reads", Ignored(READERS)),
    row(&["small-readers"], "NUMBER", "number of threads that read small files", Ignored(READERS)),
    row(&["block-readers"], "NUMBER", "number of threads that read large files", Ignored(READERS)),
    row(&["overcommit"], "PERCENT", "more threads than processors", Ignored("-processors sets the number")),
    row(&["noappend"], "", "replace an existing image", Supported),
    row(&["root-becomes"], "NAME", "when appending, the directory of the old root", Refused(APPENDS)),
    row(&["no-recovery"], "", "no recovery file", Ignored("a failed build keeps the previous image")),
    row(
        &["recovery-path"],
        "NAME",
        "directory of the recovery file",
        Ignored("a failed build keeps the previous image"),
    ),
    row(&["recover"], "NAME", "recover an image", Refused("a failed build keeps the previous image")),
    row(&["action"], "ACTION", "evaluate an expression for each file", Refused(ACTIONS)),
    row(&["log-action"], "ACTION", "evaluate an expression for each file", Refused(ACTIONS)),
    row(&["true-action"], "ACTION", "evaluate an expression for each file", Refused(ACTIONS)),
    row(&["false-action"], "ACTION", "evaluate an expression for each file", Refused(ACTIONS)),
    row(&["action-file"], "FILE", "evaluate expressions for each file", Refused(ACTIONS)),
    row(&["log-action-file"], "FILE", "evaluate expressions for each file", Refused(ACTIONS)),
    row(&["true-action-file"], "FILE", "evaluate expressions for each file", Refused(ACTIONS)),
    row(&["false-action-file"], "FILE", "evaluate expressions for each file", Refused(ACTIONS)),
    row(&["default-mode"], "MODE", "mode of directories that an archive omits, and of the root", Supported),
    row(&["default-uid"], "USER", "owner of directories that an archive omits, and of the root", Supported),
    row(&["default-gid"], "GROUP", "group of directories that an archive omits, and of the root", Supported),
    row(
        &["ignore-zeros"],
        "",
        "read concatenated archives",
        Refused("use floe mkfs --format squashfs with several archives"),
    ),
    row(&["numeric-owner"], "", "use the numbers of owners in an archive", Ignored("they are always used")),
    row(
        &["stream"],
        "",
        "write the image to standard output",
        Refused("an image is read back before it gets its name: name a file"),
    ),
    row(&["fix"], "FILE", "repair a streamed image", Refused("Floe reads streamed images as they are")),
    row(&["nopad"], "", "no padding to 4K", Supported),
    row(&["offset", "o"], "SIZE", "start the image at this offset of the file", Supported),
    row(&["help", "h", "help-all", "ha"], "", "show this help", Supported),
    row(&["Xhelp"], "", "show this help", Supported),
];

/// The option with this name.
pub(super) fn find(name: &str) -> Option<&'static OptionRow> {
    OPTIONS.iter().find(|row| row.names.contains(&name))
}

impl OptionRow {
    /// Its names with their value.
    fn form(&self) -> String {
        let names: Vec<String> = self.names.iter().map(|name| format!("-{name}")).collect();
        let space = if self.value.is_empty() { "" } else { " " };
        format!("{}{space}{}", names.join(", "), self.value)
    }
}

/// The help text.
pub(in crate::drop_in) fn help(program: Program) -> String {
    let syntax = match program {
        Program::Mksquashfs => {
            "SYNTAX: mksquashfs SOURCE... FILESYSTEM [OPTIONS] [-e PATH...]\nBuild a SquashFS image."
        }
        Program::Sqfstar => {
            "SYNTAX: sqfstar [OPTIONS] FILESYSTEM [PATH...]\n\
             Build a SquashFS image of a tar archive from standard input, without the paths that follow."
        }
    };
    let mut help = format!("{syntax} This is floe under the name of {}.\n\n", program.name());
    let mut refused = String::new();
    for row in OPTIONS {
        match row.support {
            Supported => help.push_str(&format!("  {:<28} {}\n", row.form(), row.about)),
            Ignored(why) => help.push_str(&format!("  {:<28} {} (no effect: {why})\n", row.form(), row.about)),
            Refused(why) => refused.push_str(&format!("  {:<28} {}: {why}\n", row.form(), row.about)),
        }
    }
    help.push_str("Refused:\n");
    help.push_str(&refused);
    help
}

#[cfg(test)]
mod tests {
    use std::{collections::HashSet, fs, path::Path};

    use super::*;

    #[test]
    fn the_docs_have_the_same_table() {
        let mut table = String::from("| option | meaning | here |\n| --- | --- | --- |\n");
        for row in OPTIONS {
            let here = match row.support {
                Supported => "supported".to_owned(),
                Ignored(why) => format!("no effect: {why}"),
                Refused(why) => format!("refused: {why}"),
            };
            table.push_str(&format!("| `{}` | {} | {here} |\n", row.form(), row.about));
        }
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/mksquashfs.md");
        let docs = fs::read_to_string(&path).unwrap_or_default();
        assert!(docs.ends_with(&table), "{} has to end with this:\n{table}", path.display());
    }

    #[test]
    fn no_name_has_two_meanings() {
        let mut seen = HashSet::new();
        assert!(OPTIONS.iter().flat_map(|row| row.names).all(|name| seen.insert(*name)));
    }
}
