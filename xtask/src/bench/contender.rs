//! The programs under measurement.

use std::{
    ffi::OsString,
    path::{Path, PathBuf},
    process::Command,
};

use floe_testkit::{corpus::Format, skip::Need};

use super::{ordinary_user::OrdinaryUser, setting::Contest};
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
    user: Option<OrdinaryUser>,
}

#[derive(Clone, Debug)]
enum How {
    /// Directly from the file if the kernel can.
    Kernel,
    /// Through a loop device.
    KernelLoop,
    /// `PROGRAM ARGUMENTS IMAGE DIRECTORY`, which stays in the foreground.
    Program { program: PathBuf, arguments: Vec<OsString> },
    /// The service of Floe behind this socket: the same command, which ends once the mount works.
    Service { program: PathBuf, arguments: Vec<OsString>, socket: PathBuf },
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
            user: None,
        })
    }

    /// The service of Floe behind a socket, with options of `-o`.
    pub(super) fn service(name: &str, program: &Path, socket: &Path, options: &str) -> Outcome<Self> {
        let mut contender = Self::floe(name, program, &["--service".to_owned(), "-o".to_owned(), options.to_owned()])?;
        if let How::Program { program, arguments } = contender.how {
            contender.how = How::Service { program, arguments, socket: socket.to_path_buf() };
        }
        Ok(contender)
    }

    /// The same mounts, made by an ordinary user.
    pub(super) fn of_user(mut self, user: OrdinaryUser) -> Self {
        self.user = Some(user);
        self
    }

    /// The same contender under another name.
    pub(super) fn named(mut self, name: &str) -> Self {
        name.clone_into(&mut self.name);
        self
    }

    /// The user who mounts, if it is an ordinary one.
    pub(super) const fn user(&self) -> Option<OrdinaryUser> {
        self.user
    }

    /// The program, if it is Floe.
    pub(super) fn program_of_floe(&self) -> Option<&Path> {
        match &self.how {
            How::Program { program, .. } | How::Service { program, .. } if self.is_floe => Some(program),
            _ => None,
        }
    }

    /// A command of Floe that asks about its mounts, as the user who mounts; `None` for others.
    pub(super) fn query(&self) -> Option<Command> {
        let mut command = self.run_by_user(self.program_of_floe()?);
        if let How::Service { socket, .. } = &self.how {
            command.env("FLOE_SERVICE", socket);
        }
        Some(command)
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
    pub(super) fn peers(format: Format, contest: &Contest) -> (Vec<Self>, Vec<String>) {
        let (mut here, mut absent) = (Vec::new(), Vec::new());
        match Self::fuse_peer(format, contest) {
            Ok(peer) => here.push(peer),
            Err(reason) => absent.push(reason),
        }
        match Self::kernel(format) {
            Ok(kernel) => {
                here.push(kernel.clone());
                // The kernel's SquashFS reads devices only.
                if format == Format::Erofs {
                    here.push(kernel.through_loop());
                }
            }
            Err(reason) => absent.push(reason),
        }
        (here, absent)
    }

    /// The program that mounts a format through FUSE.
    ///
    /// # Errors
    /// It is not found; the string states where it was looked for.
    pub(super) fn fuse_peer(format: Format, contest: &Contest) -> Result<Self, String> {
        let name = match format {
            Format::Erofs => "erofsfuse",
            Format::Squashfs => "squashfuse_ll",
        };
        let program = contest.peer(name)?;
        Ok(Self {
            name: name.to_owned(),
            version: fuse_version(&program, name),
            how: How::Program { program, arguments: vec![OsString::from("-f")] },
            is_floe: false,
            user: None,
        })
    }

    /// The kernel's own mount of a format.
    ///
    /// # Errors
    /// The kernel does not have it, or this user may not mount; the string states which.
    pub(super) fn kernel(format: Format) -> Result<Self, String> {
        let need = match format {
            Format::Erofs => Need::KernelErofs,
            Format::Squashfs => Need::KernelSquashfs,
        };
        if let Some(reason) = need.missing() {
            return Err(format!("kernel: {reason}"));
        }
        let version = format!("Linux {}", rustix::system::uname().release().to_string_lossy());
        Ok(Self { name: "kernel".to_owned(), version, how: How::Kernel, is_floe: false, user: None })
    }

    /// The kernel's mount through a loop device.
    pub(super) fn through_loop(self) -> Self {
        Self { name: "kernel-loop".to_owned(), how: How::KernelLoop, ..self }
    }

    /// Whether the kernel reads through a loop device though it need not.
    pub(super) fn wants_loop(&self) -> bool {
        matches!(self.how, How::KernelLoop)
    }

    /// Whether its command ends once the image is mounted.
    pub(super) const fn is_client(&self) -> bool {
        matches!(self.how, How::Service { .. })
    }

    /// The command that serves `image` at `directory`; `None` for the kernel.
    pub(super) fn command(&self, image: &Path, directory: &Path) -> Option<Command> {
        let (How::Program { program, arguments } | How::Service { program, arguments, .. }) = &self.how else {
            return None;
        };
        let mut command = self.run_by_user(program);
        if let How::Service { socket, .. } = &self.how {
            command.env("FLOE_SERVICE", socket);
        }
        command.args(arguments).arg(image).arg(directory);
        Some(command)
    }

    fn run_by_user(&self, program: &Path) -> Command {
        self.user.map_or_else(|| Command::new(program), |user| user.command(program))
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
