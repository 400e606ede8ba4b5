//! The programs that containers launch.

use std::{fs, path::PathBuf};

use crate::task_error::{During, Outcome};

/// A program that prints a line when it has started, and then waits for its standard input to end.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub(super) enum Launched {
    /// python3 importing json, email, argparse and http.client
    Python,
    /// node loading npm
    Node,
    /// A Java virtual machine printing its version
    Java,
}

impl Launched {
    /// All of them.
    pub(super) const ALL: [Self; 3] = [Self::Python, Self::Node, Self::Java];

    /// The name in tags and file names.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Python => "python",
            Self::Node => "node",
            Self::Java => "java",
        }
    }

    /// The launch, for the title of the results.
    pub(super) const fn title(self) -> &'static str {
        match self {
            Self::Python => "python3 importing json, email, argparse and http.client",
            Self::Node => "node loading npm",
            Self::Java => "java --version",
        }
    }

    /// The beginning of its first line.
    pub(super) const fn first_words(self) -> &'static str {
        match self {
            Self::Python | Self::Node => "started",
            Self::Java => "openjdk",
        }
    }

    /// The files and directories that it needs besides the C library and the shell, without the leading slash.
    pub(super) fn members(self) -> Outcome<Vec<PathBuf>> {
        let fixed: &[&str] = match self {
            Self::Python => &["usr/bin/python3.11", "usr/lib/python3.11"],
            Self::Node => &["usr/bin/node", "usr/lib/node_modules"],
            Self::Java => {
                let program = fs::canonicalize("/usr/bin/java").during("/usr/bin/java")?;
                // The program is in bin of its installation, whose configuration Debian keeps in /etc.
                let home = program.ancestors().nth(2).unwrap_or(&program);
                let mut members = vec![home.strip_prefix("/").unwrap_or(home).to_owned()];
                for entry in fs::read_dir("/etc")?.flatten() {
                    if entry.file_name().to_string_lossy().starts_with("java") {
                        members.push(PathBuf::from("etc").join(entry.file_name()));
                    }
                }
                return Ok(members);
            }
        };
        Ok(fixed.iter().map(PathBuf::from).collect())
    }

    /// The command inside the container.
    pub(super) fn command(self) -> Outcome<Vec<String>> {
        let words = match self {
            Self::Python => {
                let script =
                    "import json, email, argparse, http.client, sys; print('started', flush=True); sys.stdin.read()";
                vec!["/usr/bin/python3.11", "-c", script]
            }
            Self::Node => {
                let script =
                    "require('/usr/lib/node_modules/npm/lib/npm.js'); console.log('started'); process.stdin.resume()";
                vec!["/usr/bin/node", "-e", script]
            }
            Self::Java => {
                let program = fs::canonicalize("/usr/bin/java").during("/usr/bin/java")?;
                let line = format!("{} --version; read line || true", program.display());
                return Ok(vec!["/bin/sh".to_owned(), "-c".to_owned(), line]);
            }
        };
        Ok(words.into_iter().map(str::to_owned).collect())
    }
}
