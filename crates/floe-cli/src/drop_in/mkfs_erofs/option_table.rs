//! Every option of mkfs.erofs 1.9.4, also the extended ones of `-E`, and how this program treats it.

use Support::{Ignored, Refused, Supported};
use Value::{None as Nothing, Optional, Required};

/// An option, or a value of one.
pub(super) struct OptionRow {
    /// The name without dashes; for a short option, its letter.
    pub(super) name: &'static str,
    pub(super) value: Value,
    /// The notation of the option with its value.
    pub(super) form: &'static str,
    /// The meaning of the option.
    pub(super) about: &'static str,
    pub(super) support: Support,
}

/// Whether an option has a value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Value {
    None,
    /// The value is optional and follows `=`.
    Optional,
    Required,
}

const fn row(name: &'static str, value: Value, form: &'static str, about: &'static str, support: Support) -> OptionRow {
    OptionRow { name, value, form, about, support }
}

/// The options, in the order of the original's help.
pub(super) const OPTIONS: &[OptionRow] = &[
    row("V", Nothing, "-V", "show the version", Supported),
    row("version", Nothing, "--version", "show the version", Supported),
    row("h", Nothing, "-h", "show this help", Supported),
    row("help", Nothing, "--help", "show this help", Supported),
    row("b", Required, "-b#", "block size in bytes, 512 to 65536", Supported),
    row("d", Required, "-d<0-9>", "verbosity; 0 writes nothing to standard output", Supported),
    row("x", Required, "-x#", "share attributes of more than # inodes; below 0: store none", Supported),
    row(
        "z",
        Required,
        "-zX[,level=#][,dictsize=#][:...]",
        "compress by lz4, lz4hc (0-12), lzma (0-9, 100-109), deflate (1-9), libdeflate (1-12) or zstd (0-22); hints and -m \
         name those after a colon by their numbers",
        Supported,
    ),
    row("C", Required, "-C#", "largest pcluster in bytes", Supported),
    row("E", Required, "-EX[,...]", "extended options, see below", Supported),
    row("L", Required, "-L X", "volume label, at most 15 bytes", Supported),
    row(
        "m",
        Required,
        "-m#[:X]",
        "compress inodes, in pclusters of # bytes by algorithm X (a name or a number of -z)",
        Supported,
    ),
    row("T", Required, "-T#", "build time in seconds since 1970; $SOURCE_DATE_EPOCH takes precedence", Supported),
    row("all-time", Nothing, "--all-time", "also set the time of all files to it (default)", Supported),
    row("mkfs-time", Nothing, "--mkfs-time", "keep the times of files", Supported),
    row("U", Required, "-U X", "UUID; clear; random (default: derived from the content)", Supported),
    row("zD", Optional, "--zD[=<0|1>]", "compress directories", Supported),
    row(
        "MZ",
        Optional,
        "--MZ[=<0|i|id>]",
        "store inodes and directories in their own area",
        Ignored("inodes and directories are always stored together after the data"),
    ),
    row("all-root", Nothing, "--all-root", "make root the owner of all files", Supported),
    row(
        "async-queue-limit",
        Required,
        "--async-queue-limit=#",
        "length of the queue between threads",
        Ignored("memory is bounded in bytes"),
    ),
    row("blobdev", Required, "--blobdev=X", "store chunks in the file X", Supported),
    row("chunksize", Required, "--chunksize=#", "store files in chunks of # bytes", Supported),
    row(
        "clean",
        Optional,
        "--clean[=X]",
        "merge images with their data (data or no value), instead of referring to it",
        Supported,
    ),
    row(
        "incremental",
        Optional,
        "--incremental[=X]",
        "add SOURCE to the image FILE (data or no value): the new image has the files of both, and replaces FILE",
        Supported,
    ),
    row(
        "compress-hints",
        Required,
        "--compress-hints=X",
        "lines of `<pcluster bytes> [algorithm number] <expression>`",
        Supported,
    ),
    row("dsunit", Required, "--dsunit=#", "align the data of files to # blocks", Supported),
    row("exclude-path", Required, "--exclude-path=X", "exclude the path X", Supported),
    row("exclude-regex", Required, "--exclude-regex=X", "exclude paths that match X", Supported),
    row("file-contexts", Required, "--file-contexts=X", "set SELinux labels by the rules in X", Supported),
    row("force-uid", Required, "--force-uid=#", "make user # the owner of all files", Supported),
    row("force-gid", Required, "--force-gid=#", "make group # the group of all files", Supported),
    row(
        "fsalignblks",
        Required,
        "--fsalignblks=#",
        "make the number of blocks a multiple of # (rounded up to a power of two)",
        Supported,
    ),
    row("uid-offset", Required, "--uid-offset=#", "add # to all user ids", Supported),
    row("gid-offset", Required, "--gid-offset=#", "add # to all group ids", Supported),
    row("hard-dereference", Nothing, "--hard-dereference", "store each hard link as a separate inode", Supported),
    row("ignore-mtime", Nothing, "--ignore-mtime", "give compact inodes without times the build time", Supported),
    row(
        "max-extent-bytes",
        Required,
        "--max-extent-bytes=#",
        "maximum bytes of a file in one pcluster; 0: no separate limit",
        Supported,
    ),
    row(
        "mount-point",
        Required,
        "--mount-point=X",
        "the future mountpoint of the image, with which the paths in --file-contexts and --fs-config-file begin",
        Supported,
    ),
    row("preserve-mtime", Nothing, "--preserve-mtime", "keep the times of files", Supported),
    row("offset", Required, "--offset=#", "start the image at byte # of FILE", Supported),
    row(
        "root-xattr-isize",
        Required,
        "--root-xattr-isize=#",
        "reserve at least # bytes for the attributes of the root",
        Supported,
    ),
    row("aufs", Nothing, "--aufs", "convert whiteouts of aufs to those of overlayfs", Supported),
    row(
        "sort",
        Required,
        "--sort=<path|none>",
        "order of data from tar archives",
        Ignored("data is always in the order of the tree"),
    ),
    row(
        "s3",
        Required,
        "--s3=X",
        "fetch the source from an object store",
        Refused("sources are local; fetch the objects first", &[]),
    ),
    row(
        "oci",
        Optional,
        "--oci[=X]",
        "fetch the source from a registry",
        Refused("sources are local; fetch the layers first and use floe mkfs --whiteouts", &[]),
    ),
    row(
        "tar",
        Optional,
        "--tar[=X]",
        "SOURCE is a tar archive, by default standard input; f: with its data; i: refer to the data in the archive",
        Supported,
    ),
    row(
        "ovlfs-strip",
        Optional,
        "--ovlfs-strip[=<0|1>]",
        "omit whiteouts and opaque marks of overlayfs; those of archives only with --aufs",
        Supported,
    ),
    row("quiet", Nothing, "--quiet", "write nothing to standard output", Supported),
    row("gzip", Nothing, "--gzip", "the archive is compressed", Ignored("compression is detected")),
    row(
        "ungzip",
        Optional,
        "--ungzip[=X]",
        "the archive is compressed; write it uncompressed to X",
        Refused("floe writes no copy of the archive; run gzip -dc first", &[""]),
    ),
    row(
        "unxz",
        Optional,
        "--unxz[=X]",
        "the archive is compressed; write it uncompressed to X",
        Refused("floe writes no copy of the archive; run xz -dc first", &[""]),
    ),
    row(
        "unlzma",
        Optional,
        "--unlzma[=X]",
        "the archive is compressed; write it uncompressed to X",
        Refused("floe writes no copy of the archive; run xz -dc first", &[""]),
    ),
    row(
        "gzinfo",
        Optional,
        "--gzinfo[=X]",
        "write an index for random access to the archive",
        Refused("the image needs no index of the archive", &[]),
    ),
    row(
        "vmdk-desc",
        Required,
        "--vmdk-desc=X",
        "write a VMDK descriptor",
        Refused("virtual machines can use the image itself as a raw disk", &[]),
    ),
    row("workers", Required, "--workers=#", "number of compressing threads", Supported),
    row(
        "xattr-inode-digest",
        Optional,
        "--xattr-inode-digest[=X]",
        "store the digest of each file in the attribute X (erofs.fingerprint.v1), which Linux uses to share cached pages",
        Supported,
    ),
    row("xattr-prefix", Required, "--xattr-prefix=X", "store this prefix of attribute names once", Supported),
    row("zfeature-bits", Required, "--zfeature-bits=#", "extended options by their bits", Supported),
    row(
        "product-out",
        Required,
        "--product-out=X",
        "Android: directory of the product",
        Ignored("owners and modes are those of --fs-config-file, or of the source"),
    ),
    row(
        "fs-config-file",
        Required,
        "--fs-config-file=X",
        "Android: set owners, modes and capabilities by the lines of X: path, owner, group, octal mode, capabilities=#",
        Supported,
    ),
    row(
        "random-pclusterblks",
        Nothing,
        "--random-pclusterblks",
        "debugging: use pclusters of random sizes",
        Refused("only for tests of the original", &[]),
    ),
    row(
        "random-algorithms",
        Nothing,
        "--random-algorithms",
        "debugging: choose algorithms at random",
        Refused("only for tests of the original", &[]),
    ),
];

/// Values of options above that are refused.
pub(super) const VALUES: &[OptionRow] = &[
    row(
        "z",
        Required,
        "-zlzma,lc=#,lp=#,pb=#",
        "set how the encoder models bytes",
        Refused("the usual values suit EROFS; omit them", &[]),
    ),
    row(
        "z",
        Required,
        "-zdeflate,dictsize=#",
        "set the window of deflate",
        Refused("the encoder's window is always 32768 bytes", &["32768"]),
    ),
    row(
        "tar",
        Optional,
        "--tar=0",
        "the archive has no data",
        Refused("images without data are not supported; use --tar=f or --tar=i", &[]),
    ),
    row(
        "clean",
        Optional,
        "--clean=<0|rvsp>",
        "with space for the data of the sources (rvsp), or without it (0)",
        Refused("images without data are not supported; use --clean=data", &[]),
    ),
    row(
        "max-extent-bytes",
        Required,
        "--max-extent-bytes=-#",
        "begin pclusters anywhere in a block",
        Refused("pclusters always begin with a block; use a size above 0", &[]),
    ),
];

/// The option with this name, which may be abbreviated if that is unambiguous.
///
/// # Errors
/// The abbreviation is ambiguous.
pub(super) fn find(name: &str) -> Result<Option<&'static OptionRow>, String> {
    let exact = OPTIONS.iter().find(|row| row.name == name);
    if exact.is_some() || name.chars().count() < 2 {
        return Ok(exact);
    }
    let mut longer = OPTIONS.iter().filter(|row| row.name.len() > 1 && row.name.starts_with(name));
    match (longer.next(), longer.next()) {
        (found, None) => Ok(found),
        (_, Some(_)) => Err(format!("option '--{name}' is ambiguous")),
    }
}

/// The output of `--help`.
pub(in crate::drop_in) fn help() -> String {
    let mut help = String::from(
        "Usage: mkfs.erofs [OPTIONS] FILE SOURCE\nBuild an EROFS image from a directory or a tar archive. This is floe under \
         the name of mkfs.erofs.\n\n",
    );
    let lines = OPTIONS.iter().chain(VALUES).map(|row| (row.form, row.about, row.support));
    put_lines(&mut help, lines);
    help.push_str("\nExtended options, of -E:\n");
    put_lines(&mut help, FEATURES.iter().map(|row| (row.form, row.about, row.support)));
    help
}

fn put_lines(help: &mut String, lines: impl Iterator<Item = (&'static str, &'static str, Support)>) {
    let (mut taken, mut refused) = (String::new(), String::new());
    for (form, about, support) in lines {
        match support {
            Supported => taken.push_str(&format!(" {form:<22} {about}\n")),
            Ignored(why) => taken.push_str(&format!(" {form:<22} {about} (no effect: {why})\n")),
            Refused(why, _) => refused.push_str(&format!(" {form:<22} {about}: {why}\n")),
        }
    }
    help.push_str(&taken);
    help.push_str("Refused:\n");
    help.push_str(&refused);
}

/// How this program treats an option or a feature.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Support {
    /// Same effect as in the original.
    Supported,
    /// Accepted without effect, for this reason.
    Ignored(&'static str),
    /// Refused, for this reason, except with one of these values, which describe the behaviour of this program; ""
    /// means no value.
    Refused(&'static str, &'static [&'static str]),
}

/// An extended option.
pub(super) struct FeatureRow {
    pub(super) name: &'static str,
    /// The notation of the option with its value.
    pub(super) form: &'static str,
    /// The meaning of the option.
    pub(super) about: &'static str,
    pub(super) support: Support,
    /// Whether it may have a value.
    pub(super) has_value: bool,
}

const fn feature(name: &'static str, form: &'static str, about: &'static str, support: Support) -> FeatureRow {
    FeatureRow { name, form, about, support, has_value: false }
}

const fn valued(name: &'static str, form: &'static str, about: &'static str, support: Support) -> FeatureRow {
    FeatureRow { name, form, about, support, has_value: true }
}

/// The extended options: first those of `--zfeature-bits`, from bit 0 on.
pub(super) const FEATURES: &[FeatureRow] = &[
    feature("legacy-compress", "[^]legacy-compress", "use full indexes instead of compact ones", Supported),
    feature("ztailpacking", "[^]ztailpacking", "store small ends of compressed files behind their inodes", Supported),
    valued("fragments", "[^]fragments[=#]", "pack the ends of files together, in pclusters of # bytes", Supported),
    valued("all-fragments", "[^]all-fragments[=#]", "pack whole files together, in pclusters of # bytes", Supported),
    feature("dedupe", "[^]dedupe", "store equal data once", Supported),
    valued("fragdedupe", "[^]fragdedupe[=<full|inode>]", "store equal fragments once", Ignored("always on")),
    feature("48bit", "[^]48bit", "use the layout for more than 2^32 blocks", Supported),
    feature(
        "dot-omitted",
        "[^]dot-omitted",
        "directories without an entry for themselves",
        Refused("each directory has an entry for itself", &["^dot-omitted"]),
    ),
    feature(
        "force-inode-compact",
        "force-inode-compact",
        "use compact inodes, which all have the build time",
        Supported,
    ),
    feature("force-inode-extended", "force-inode-extended", "long inodes", Supported),
    feature("nosbcrc", "nosbcrc", "store no checksum of the superblock", Supported),
    feature("inline_data", "[^]inline_data", "store the ends of uncompressed files behind their inodes", Supported),
    feature("noinline_data", "noinline_data", "store them in blocks", Supported),
    feature("force-inode-blockmap", "force-inode-blockmap", "use chunk maps of block numbers", Supported),
    feature("force-chunk-indexes", "force-chunk-indexes", "use chunk maps of full records", Supported),
    feature("xattr-name-filter", "[^]xattr-name-filter", "store filters of absent attributes (default)", Supported),
    feature(
        "plain-xattr-prefixes",
        "plain-xattr-prefixes",
        "store attribute prefixes outside the packed inode and the metabox",
        Ignored("they are always there"),
    ),
];

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    use super::*;

    /// The table in the format of docs/mkfs.erofs.md.
    fn markdown() -> String {
        let mut text = String::from("| option | meaning | here |\n| --- | --- | --- |\n");
        put_rows(&mut text, OPTIONS.iter().chain(VALUES).map(|row| (row.form, row.about, row.support)));
        text.push_str("\n| extended option | meaning | here |\n| --- | --- | --- |\n");
        put_rows(&mut text, FEATURES.iter().map(|row| (row.form, row.about, row.support)));
        text
    }

    fn put_rows(text: &mut String, rows: impl Iterator<Item = (&'static str, &'static str, Support)>) {
        for (form, about, support) in rows {
            let here = match support {
                Supported => "supported".to_owned(),
                Ignored(why) => format!("no effect: {why}"),
                Refused(why, []) => format!("refused: {why}"),
                Refused(why, values) => {
                    let values: Vec<String> = values.iter().map(|value| format!("`{value}`")).collect();
                    format!("refused: {why}; accepted with {}", values.join(", ").replace("``", "no value"))
                }
            };
            text.push_str(&format!("| `{}` | {about} | {here} |\n", form.replace('|', "\\|")));
        }
    }

    #[test]
    fn the_docs_have_the_same_table() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/mkfs.erofs.md");
        let docs = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        assert!(docs.ends_with(&markdown()), "{} has to end with this:\n{}", path.display(), markdown());
    }

    #[test]
    fn option_names_may_be_abbreviated_unambiguously() {
        for (name, expected) in [
            ("tar", Ok(Some("tar"))),
            ("compress-h", Ok(Some("compress-hints"))),
            ("exclude", Err(())),
            ("z", Ok(Some("z"))),
            ("zf", Ok(Some("zfeature-bits"))),
            ("nothing", Ok(None)),
            ("Q", Ok(None)),
        ] {
            let found = find(name).map(|row| row.map(|row| row.name)).map_err(|_| ());
            assert_eq!(found, expected, "{name}");
        }
    }
}
