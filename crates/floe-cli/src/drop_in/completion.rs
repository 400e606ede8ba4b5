//! Shell completions of the drop-in names, from their help texts.

use std::collections::BTreeSet;

use clap_complete::Shell;

/// The script that completes the options of a drop-in program, and file names; `None` for shells without one.
pub(crate) fn script(shell: Shell, name: &str, help: &str) -> Option<String> {
    let options = options(help);
    let words = options.iter().map(String::as_str).collect::<Vec<_>>().join(" ");
    match shell {
        Shell::Bash => Some(format!(
            "_floe_{function}() {{\n    \
                 COMPREPLY=()\n    \
                 case $2 in\n        \
                     -*) mapfile -t COMPREPLY < <(compgen -W '{words}' -- \"$2\") ;;\n    \
                 esac\n    \
                 case ${{COMPREPLY[0]-}} in\n        \
                     *=) compopt -o nospace ;;\n    \
                 esac\n\
             }}\n\
             complete -o default -F _floe_{function} {name}\n",
            function = name.replace('.', "_"),
        )),
        Shell::Zsh => Some(format!(
            "#compdef {name}\n\
             if [[ $PREFIX == -* ]]; then\n    \
                 compadd -- {words}\n\
             else\n    \
                 _files\n\
             fi\n"
        )),
        Shell::Fish => Some(options.iter().map(|option| fish_line(name, option)).collect()),
        _ => None,
    }
}

/// Fish distinguishes letters, words with one dash and words with two.
fn fish_line(name: &str, option: &str) -> String {
    let has_value = if option.ends_with('=') { " -r" } else { "" };
    let option = option.trim_end_matches('=');
    let kind = match option.strip_prefix("--") {
        Some(long) => format!("-l {long}"),
        None if option.len() == 2 => format!("-s {}", &option[1..]),
        None => format!("-o {}", &option[1..]),
    };
    format!("complete -c {name} {kind}{has_value}\n")
}

/// The options in a help text. Those that the program refuses are omitted; `--name=` takes a value.
fn options(help: &str) -> BTreeSet<String> {
    let mut options = BTreeSet::new();
    let mut is_refused = false;
    for line in help.lines() {
        is_refused = line == "Refused:" || is_refused && line.starts_with(' ');
        if !is_refused && line.trim_start().starts_with('-') {
            line.split_whitespace().for_each(|word| put_option(word, &mut options));
        }
    }
    options
}

/// Adds the options of a word in the notation of the help texts: `-d[est]`, `--[no-]xattrs`, `-C#`, `-zX[,level=#]`, `--offset=#`.
fn put_option(word: &str, options: &mut BTreeSet<String>) {
    let is_dashed = word.trim_start_matches('-').starts_with(|first: char| first.is_ascii_alphabetic() || first == '[');
    if !word.starts_with('-') || !is_dashed {
        return;
    }
    if let Some((before, rest)) = word.split_once('[')
        && let Some((part, after)) = rest.split_once(']')
        && part.chars().all(is_in_name)
    {
        put_option(&format!("{before}{part}{after}"), options);
        if part.ends_with('-') {
            put_option(&format!("{before}{after}"), options);
        }
        return;
    }
    let name: String = word.chars().take_while(|character| is_in_name(*character)).collect();
    let has_value = name.starts_with("--") && word[name.len()..].starts_with('=');
    options.insert(if has_value { name + "=" } else { name });
}

/// Whether a character belongs to names of options. X stands for a value.
fn is_in_name(character: char) -> bool {
    character.is_ascii_alphanumeric() && character != 'X' || character == '-'
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_read_from_their_notation() {
        for (line, expected) in [
            (" -d<0-9>   verbosity", "-d"),
            (" -zX[,level=#][,dictsize=#][:...] compress, see -m", "-m -z"),
            (" --[no-]xattrs  extract", "--no-xattrs --xattrs"),
            ("  -d[est] DIR   extract to DIR", "-dest"),
            ("  -e[f] FILE, -extract-file FILE   a list", "-ef -extract-file"),
            (" --extract[=X]   decode", "--extract"),
            (" --offset=#      offset", "--offset="),
            (" -h, --help, -V, --version", "--help --version -V -h"),
            ("   - is standard output", ""),
            (" [^]dedupe   store equal data once", ""),
            ("Refused:\n --s3=X   fetch", ""),
        ] {
            assert_eq!(options(line).into_iter().collect::<Vec<_>>().join(" "), expected, "{line}");
        }
    }

    #[test]
    fn fish_knows_kinds_of_dashes() {
        for (option, expected) in [("--offset=", "-l offset -r"), ("-d", "-s d"), ("-dest", "-o dest")] {
            assert_eq!(fish_line("program", option), format!("complete -c program {expected}\n"));
        }
    }
}
