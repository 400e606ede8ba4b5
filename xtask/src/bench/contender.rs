//! The programs under measurement.

use std::{
    ffi::OsString,
    path::{Path, PathBuf},
    process::Command,
};

use floe_testkit::{corpus::Format, skip::Need};

use super::setting::Setting;
use crate::task_error::{During, Outcome};

/// A program that mounts an image, or the kernel.
#[derive(Clone, Debug)]
pub(super) struct Contender {
    /// Its name in tables.
    pub(super) name: String,
    /// Its version.
    pub(super) version: String,
    how: How,
    is_floe: bool,
}

#[derive(Clone, Debug)]
enum How {
    /// Directly from the file if the kernel can.
    Kernel,
    /// Through a loop device.
    KernelLoop,
    /// `PROGRAM ARGUMENTS IMAGE DIRECTORY`, which stays in the foreground.
    Program { program: PathBuf, arguments: Vec<OsString> },
}

impl Contender {
    /// Floe with options of `floe mount`.
    pub(super) fn floe(name: &str, program: &Path, options: &[String]) -> Outcome<Self> {
        let mut arguments = vec![OsString::from("mount")];
        arguments.extend(options.iter().map(OsString::from));
        Ok(Self {
            name: name.to_owned(),
            version: first_line(Command::new(program).arg("--version"))?,
            how: How::Program { program: program.to_path_buf(), arguments },
            is_floe: true,
        })
    }

    /// The program, if it is Floe.
    pub(super) fn program_of_floe(&self) -> Option<&Path> {
        match &self.how {
            How::Program { program, .. } if self.is_floe => Some(program),
            _ => None,
        }
    }

    /// This contender; Floe keeps the metadata of fronts in the directory `cache`.
    pub(super) fn keeping(&self, cache: &Path) -> Self {
        let mut contender = self.clone();
        if let How::Program { arguments, .. } = &mut contender.how
            && self.is_floe
        {
            let mut options = OsString::from("front-metadata=keep,cache-directory=");
            options.push(cache);
            arguments.extend([OsString::from("-o"), options]);
        }
        contender
    }

    /// The available peers that read a format, and the reasons why others are not available.
    pub(super) fn peers(format: Format, setting: &Setting) -> (Vec<Self>, Vec<String>) {
        let (fuse, kernel_need) = match format {
            Format::Erofs => ("erofsfuse", Need::KernelErofs),
            Format::Squashfs => ("squashfuse_ll", Need::KernelSquashfs),
        };
        let (mut here, mut absent) = (Vec::new(), Vec::new());
        match setting.contest.peer(fuse) {
            Ok(program) => here.push(Self {
                name: fuse.to_owned(),
                version: fuse_version(&program, fuse),
                how: How::Program { program, arguments: vec![OsString::from("-f")] },
                is_floe: false,
            }),
            Err(reason) => absent.push(reason),
        }
        match kernel_need.missing() {
            None => {
                let version = format!("Linux {}", rustix::system::uname().release().to_string_lossy());
                let kernel =
                    |name: &str, how| Self { name: name.to_owned(), version: version.clone(), how, is_floe: false };
                here.push(kernel("kernel", How::Kernel));
                // The kernel's SquashFS reads devices only.
                if format == Format::Erofs {
                    here.push(kernel("kernel-loop", How::KernelLoop));
                }
            }
            Some(reason) => absent.push(format!("kernel: {reason}")),
        }
        (here, absent)
    }

    /// Whether the kernel reads through a loop device though it need not.
    pub(super) fn wants_loop(&self) -> bool {
        matches!(self.how, How::KernelLoop)
    }

    /// The command that serves `image` at `directory`; `None` for the kernel.
    pub(super) fn command(&self, image: &Path, directory: &Path) -> Option<Command> {
        match &self.how {
            How::Kernel | How::KernelLoop => None,
            How::Program { program, arguments } => {
                let mut command = Command::new(program);
                command.args(arguments).arg(image).arg(directory);
                Some(command)
            }
        }
    }
}

/// The first line of a program's output.
pub(super) fn first_line(command: &mut Command) -> Outcome<String> {
    let output = command.output().during(command.get_program().display())?;
    let text = [output.stdout, output.stderr].concat();
    Ok(String::from_utf8_lossy(&text).lines().next().unwrap_or_default().trim().to_owned())
}

/// Both peers print their version together with that of the FUSE library, in a line that begins with the name of their
/// project.
fn fuse_version(program: &Path, name: &str) -> String {
    let Ok(output) = Command::new(program).arg("--help").output() else { return "unknown version".to_owned() };
    let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    let family = name.trim_end_matches("_ll");
    let is_version = |line: &&str| line.starts_with(family) && line.contains(|letter: char| letter.is_ascii_digit());
    let line = text.lines().find(is_version).unwrap_or("unknown version");
    line.split_whitespace().take(2).collect::<Vec<_>>().join(" ")
}
