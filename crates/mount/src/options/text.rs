//! The options as text, for `--help` and docs/options.md.

use std::fmt::Write;

use super::{
    row::{OptionRow, WhileMounted},
    table::{FOR_THE_KERNEL, GROUPS, WITHOUT_EFFECT, find},
};

/// The column at which descriptions begin, and the total width.
const ABOUT_COLUMN: usize = 26;
const WIDTH: usize = 100;

/// The output of `floe mount -o help`, also part of `floe mount --help`.
pub fn help() -> String {
    let mut help = String::from(
        "Options for -o; options of mount(8) and FUSE that describe any read-only mount are accepted too:\n",
    );
    for group in GROUPS {
        let _ = writeln!(help, "\n{}:", group.title);
        if let Some(note) = group.note {
            help.push_str("  ");
            put_words(&mut help, 2, note);
        }
        for row in group.rows {
            put_line(&mut help, row);
        }
    }
    help
}

/// The effect of an option and its default, as a sentence of `--help`.
pub fn about(name: &str) -> String {
    let text = find(name).map_or_else(String::new, described);
    let mut characters = text.chars();
    characters.next().map_or_else(String::new, |first| first.to_uppercase().chain(characters).collect())
}

/// docs/options.md, which `floe mount -o help=markdown` prints.
pub fn page() -> String {
    let mut page = String::from(INTRODUCTION);
    for group in GROUPS {
        let note = group.note.map_or_else(String::new, |note| format!("{note}\n\n"));
        let _ = write!(page, "\n## {}\n\n{note}{TABLE_HEAD}", group.title);
        for row in group.rows {
            put_row(&mut page, row);
        }
    }
    let list = |names: &[&str]| names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
    let _ = write!(
        page,
        "\n## Other options\n\nThese options of security modules are passed to the kernel: {}.\n\nThese options are accepted \
         and have no effect, because they concern mount(8) or describe any read-only mount: {}. So are options \
         that begin with `x-`.\n",
        list(FOR_THE_KERNEL),
        list(WITHOUT_EFFECT)
    );
    page
}

const INTRODUCTION: &str = "\
# Options of a mount

`floe mount -o option,option=value,…` sets these options; so do the fourth column of fstab and `mount -o` with the types
`floe` and `fuse.floe`. `floe mount -o help` lists them. `floe tune DIR option=value…` changes some of them while the image is
mounted, and `floe status DIR` shows their values.

SIZE is a number of bytes, or a number with k, M, G or T (powers of 1024). TIME is a number of seconds, or a number with
us, ms, s or m. In names, underscores and dashes are equivalent. Default sizes are smaller if the machine or its control
groups have little memory.
";

const TABLE_HEAD: &str = "\
| option | meaning | default | while mounted |
| --- | --- | --- | --- |
";

fn put_line(help: &mut String, row: &OptionRow) {
    let form = row.form();
    let mut line = format!("  {form}");
    if line.len() + 2 > ABOUT_COLUMN {
        let _ = writeln!(help, "{line}");
        line.clear();
    }
    let _ = write!(help, "{line}{:1$}", "", ABOUT_COLUMN - line.chars().count());
    put_words(help, ABOUT_COLUMN, &described(row));
}

/// Appends a text whose lines begin at a column, where the first line already is.
fn put_words(help: &mut String, column: usize, text: &str) {
    let mut width = column;
    for (index, word) in text.split(' ').enumerate() {
        let word_width = word.chars().count();
        if index > 0 && width + 1 + word_width > WIDTH {
            let _ = write!(help, "\n{:column$}", "");
            width = column;
        } else if index > 0 {
            help.push(' ');
            width += 1;
        }
        help.push_str(word);
        width += word_width;
    }
    help.push('\n');
}

fn described(row: &OptionRow) -> String {
    let default = row.default_text().map_or_else(String::new, |default| format!(" [{default}]"));
    format!("{}{default}", row.about)
}

fn put_row(page: &mut String, row: &OptionRow) {
    let code = |text: &str| format!("`{}`", text.replace('|', "\\|"));
    let bounds = row.bounds().map_or_else(String::new, |bounds| format!(" ({bounds})"));
    let while_mounted = match row.while_mounted {
        WhileMounted::Fixed => "fixed".to_owned(),
        WhileMounted::Tunable => "`floe tune`".to_owned(),
        WhileMounted::Elsewhere(place) => place.to_owned(),
    };
    let _ = writeln!(
        page,
        "| {} | {}{bounds} | {} | {while_mounted} |",
        code(&row.form()),
        row.about,
        row.default_text().unwrap_or_default()
    );
}
