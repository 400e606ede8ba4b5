//! A launch of Python out of an image, while other processes use the CPUs.

use std::{
    path::{Path, PathBuf},
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use floe_lab::{
    load::{Load, LoadKind},
    machine::Undo,
};

use crate::{
    bench::{
        listing::ListedFile,
        workload::{Measurement, Scene, Workload},
    },
    task_error::{During, Outcome, TaskError},
};

/// The load: as many processes that each use so much of a CPU.
pub(super) const LOAD: LoadKind = LoadKind::Cpu { count: 8, percent: 90 };

/// How long the load runs before the launch.
pub(super) const LOAD_LEAD: Duration = Duration::from_secs(1);

/// The modules that Python imports.
const IMPORTS: &str = "import json, email, argparse, http.client";

/// Launches Python under load.
pub(super) struct Launch;

/// Python in an image: paths relative to its root.
struct Python {
    program: PathBuf,
    /// The directory with `bin` and `lib`.
    home: PathBuf,
    /// The dynamic linker, in the directory of the libraries, if the image has it.
    linker: Option<PathBuf>,
}

impl Launch {
    /// Whether an image with these files has Python.
    pub(super) fn is_possible(files: &[ListedFile]) -> bool {
        Python::find(files).is_some()
    }
}

impl Workload for Launch {
    fn name(&self) -> String {
        "launch".to_owned()
    }

    fn title(&self) -> String {
        format!("python3 under load ({LOAD})")
    }

    fn run(&self, scene: &Scene<'_>) -> Outcome<Vec<Measurement>> {
        let python = Python::find(scene.files).ok_or(TaskError::new("the image has no python3"))?;
        let undo = Undo::new().during("the load")?;
        let load = Load::start(&undo, &[LOAD]).during("the load")?;
        thread::sleep(LOAD_LEAD);
        let started = Instant::now();
        let output = python.command(scene.mount).stdin(Stdio::null()).output().during("python3")?;
        let elapsed = started.elapsed();
        drop(load);
        if !output.status.success() {
            let words = String::from_utf8_lossy(&output.stderr).into_owned();
            return Err(TaskError::new(format!("python3 fails: {}", words.trim())));
        }
        Ok(vec![Measurement::less("ms", elapsed.as_secs_f64() * 1e3)])
    }
}

impl Python {
    fn find(files: &[ListedFile]) -> Option<Self> {
        let is_version = |name: &str| {
            name.strip_prefix("python3.").is_some_and(|minor| minor.bytes().all(|byte| byte.is_ascii_digit()))
        };
        let name = |path: &Path| Some(path.file_name()?.to_str()?.to_owned());
        let program = files.iter().map(|file| &file.path).find(|path| {
            name(path).is_some_and(|name| is_version(&name))
                && path.parent().is_some_and(|parent| parent.ends_with("bin"))
        })?;
        let linker = files
            .iter()
            .map(|file| &file.path)
            .find(|path| name(path).is_some_and(|name| name.starts_with("ld-linux-") && name.contains(".so.")));
        let home = program.parent()?.parent()?.to_path_buf();
        Some(Self { program: program.clone(), home, linker: linker.cloned() })
    }

    fn command(&self, mount: &Path) -> Command {
        let program = mount.join(&self.program);
        let mut command = match &self.linker {
            Some(linker) => {
                let mut command = Command::new(mount.join(linker));
                command.arg("--library-path").arg(mount.join(linker.parent().unwrap_or(Path::new("")))).arg(program);
                command
            }
            None => Command::new(program),
        };
        command.env("PYTHONHOME", mount.join(&self.home)).args(["-S", "-c", IMPORTS]);
        command
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn python_is_found_with_its_linker() {
        let files = |paths: &[&str]| -> Vec<ListedFile> {
            paths.iter().map(|path| ListedFile { path: path.into(), size: 1 }).collect()
        };
        let python = Python::find(&files(&["usr/bin/python3.11", "usr/lib/x/ld-linux-x86-64.so.2"])).expect("found");
        assert_eq!((python.home, python.linker), ("usr".into(), Some("usr/lib/x/ld-linux-x86-64.so.2".into())));
        assert!(Launch::is_possible(&files(&["bin/python3.9"])));
        assert!(!Launch::is_possible(&files(&["bin/python3.9-config", "share/python3.9", "bin/python3"])));
    }
}
