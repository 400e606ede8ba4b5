//! Preloaded libraries that fake owners, modes, device files and attributes: fakeroot and pseudo.
//!
//! Packages and firmware are built by ordinary users with such a library, which replaces functions of the C library and keeps
//! what it fakes in a process of its own. A command that reads or creates a tree takes part: its calls go through the C
//! library, and it is not confined, because the library needs more than the sandbox allows. A static program cannot take
//! part and must say so ([`refusal`]). All other commands [`leave`]: faked user IDs would mislead them, and a mount would
//! die with the process of the library.

use std::{
    env,
    ffi::{OsStr, OsString},
    os::unix::{ffi::OsStrExt, process::CommandExt},
    path::{Path, PathBuf},
    process::Command,
};

use floe_mount::daemon::own_program;
use floe_sandbox::loaded_libraries;

const PRELOAD: &str = "LD_PRELOAD";

/// The value of `LD_PRELOAD` before this program left a fake.
const LEFT: &str = "FLOE_LEFT_PRELOAD";

/// Keeps pseudo from adding itself to the environment of a program that it sees starting.
const PSEUDO_UNLOAD: &str = "PSEUDO_UNLOAD";

/// A variable that is set inside fakechroot.
const FAKECHROOT_BASE: &str = "FAKECHROOT_BASE";

/// A library that fakes owners, modes, device files and attributes.
struct Fake {
    name: &'static str,
    /// How the file name of the library begins.
    library: &'static str,
    /// A variable that is set while the library fakes, whether or not it is loaded.
    session: Option<&'static str>,
    /// Whether variables switch the library off.
    is_off: fn(&Environment<'_>) -> bool,
    /// How a program runs without it.
    way_out: &'static str,
}

/// Finds the value of an environment variable.
type Environment<'a> = dyn Fn(&str) -> Option<OsString> + 'a;

const FAKES: [Fake; 2] = [
    Fake {
        name: "fakeroot",
        library: "libfakeroot",
        session: Some("FAKEROOTKEY"),
        is_off: |_| false,
        way_out: "unset LD_PRELOAD and FAKEROOTKEY",
    },
    Fake { name: "pseudo", library: "libpseudo", session: None, is_off: is_pseudo_off, way_out: "set PSEUDO_UNLOAD=1" },
];

impl Fake {
    fn is_named_by(&self, path: &Path) -> bool {
        path.file_name().is_some_and(|name| name.as_bytes().starts_with(self.library.as_bytes()))
    }

    fn is_among(&self, libraries: &[PathBuf]) -> bool {
        libraries.iter().any(|path| self.is_named_by(path))
    }

    /// Whether the environment asks for the library.
    fn is_requested(&self, environment: &Environment<'_>) -> bool {
        let preload = environment(PRELOAD).unwrap_or_default();
        let is_named = preloaded(&preload).any(|path| self.is_named_by(path));
        let is_in_session = self.session.is_some_and(|session| is_set(environment, session));
        (is_named || is_in_session) && !(self.is_off)(environment)
    }
}

/// Why reading or creating a tree would give a wrong result: the environment asks for a fake that this program does not have,
/// or that does not work for it.
pub(crate) fn refusal() -> Option<String> {
    missing(&|name| env::var_os(name), &loaded_libraries())
}

/// The fake that is loaded into this process and does not work in a sandbox.
pub(crate) fn loaded() -> Option<&'static str> {
    let libraries = loaded_libraries();
    FAKES.iter().find(|fake| fake.is_among(&libraries)).map(|fake| fake.name)
}

/// Executes this program again without the fakes, if there are any. If that is impossible, it continues with them.
pub(crate) fn leave() {
    if loaded().is_none() || env::var_os(LEFT).is_some() {
        return;
    }
    let before = env::var_os(PRELOAD).unwrap_or_default();
    let mut arguments = env::args_os();
    let mut program = Command::new(own_program());
    program.arg0(arguments.next().unwrap_or_else(|| "floe".into())).args(arguments);
    program.env(PRELOAD, without_fakes(&before)).env(LEFT, before).env(PSEUDO_UNLOAD, "1");
    let _ = program.exec();
}

/// Gives a command the fakes back that this program has left.
pub(crate) fn enter_again(command: &mut Command) {
    if let Some(before) = env::var_os(LEFT) {
        command.env(PRELOAD, before).env_remove(LEFT).env_remove(PSEUDO_UNLOAD);
    }
}

fn missing(environment: &Environment<'_>, libraries: &[PathBuf]) -> Option<String> {
    if is_set(environment, FAKECHROOT_BASE) {
        // It looks for the path of an open directory by changing into it, which all threads of the process do then.
        return Some(format!(
            "fakechroot mixes up the directories of a program with several threads: run floe outside of it, or unset \
             {FAKECHROOT_BASE}"
        ));
    }
    let Fake { name, way_out, .. } =
        FAKES.iter().find(|fake| fake.is_requested(environment) && !fake.is_among(libraries))?;
    Some(format!(
        "{name} has no effect on this program, so owners and device files would be wrong: use a dynamically linked floe, as \
         the .deb and the .rpm contain it, or {way_out}"
    ))
}

/// The libraries in a value of `LD_PRELOAD`.
fn preloaded(value: &OsStr) -> impl Iterator<Item = &Path> {
    let parts = value.as_bytes().split(|byte| matches!(byte, b' ' | b':'));
    parts.filter(|part| !part.is_empty()).map(|part| Path::new(OsStr::from_bytes(part)))
}

/// The value without the libraries that are left.
fn without_fakes(value: &OsStr) -> OsString {
    let is_kept = |path: &&Path| !FAKES.iter().any(|fake| fake.is_named_by(path));
    let kept: Vec<&OsStr> = preloaded(value).filter(is_kept).map(Path::as_os_str).collect();
    kept.join(OsStr::new(":"))
}

fn is_set(environment: &Environment<'_>, variable: &str) -> bool {
    environment(variable).is_some_and(|value| !value.is_empty())
}

/// Whether pseudo is not to be loaded, or only passes calls on. BitBake sets these variables for tasks that need no fake.
fn is_pseudo_off(environment: &Environment<'_>) -> bool {
    let is_yes = |value: OsString| !matches!(value.as_bytes().first(), Some(b'0' | b'f' | b'F' | b'n' | b'N'));
    is_set(environment, PSEUDO_UNLOAD) || environment("PSEUDO_DISABLED").is_some_and(is_yes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fake_without_effect_is_noticed() {
        for (variables, loaded, expected) in [
            (&[][..], "", None),
            (&[("LD_PRELOAD", "")], "", None),
            (&[("LD_PRELOAD", "libeatmydata.so /usr/lib/libjemalloc.so.2")], "", None),
            // fakeroot.
            (&[("FAKEROOTKEY", "17"), ("LD_PRELOAD", "libfakeroot-sysv.so")], "libfakeroot-sysv.so", None),
            (&[("FAKEROOTKEY", "17"), ("LD_PRELOAD", "libfakeroot-sysv.so")], "", Some("fakeroot")),
            (&[("FAKEROOTKEY", "17"), ("LD_PRELOAD", "/usr/lib/libfakeroot/libfakeroot-tcp.so")], "", Some("fakeroot")),
            (&[("FAKEROOTKEY", "17")], "", Some("fakeroot")),
            (&[("FAKEROOTKEY", "")], "", None),
            (&[("LD_PRELOAD", "libeatmydata.so:libfakeroot.so")], "", Some("fakeroot")),
            (&[("LD_PRELOAD", "libeatmydata.so libfakeroot.so")], "libfakeroot.so", None),
            (&[("LD_PRELOAD", "/opt/libfakeroot/libother.so")], "", None),
            // pseudo.
            (&[("LD_PRELOAD", "libpseudo.so"), ("PSEUDO_PREFIX", "/usr")], "libpseudo.so", None),
            (&[("LD_PRELOAD", "libpseudo.so"), ("PSEUDO_PREFIX", "/usr")], "", Some("pseudo")),
            (&[("LD_PRELOAD", "libpseudo.so"), ("PSEUDO_DISABLED", "0")], "", Some("pseudo")),
            (&[("LD_PRELOAD", "libpseudo.so"), ("PSEUDO_DISABLED", "1")], "", None),
            (&[("LD_PRELOAD", "libpseudo.so"), ("PSEUDO_UNLOAD", "1")], "", None),
            // As BitBake sets it for tasks that do not run under pseudo.
            (&[("PSEUDO_PREFIX", "/usr"), ("PSEUDO_LOCALSTATEDIR", "/state"), ("PSEUDO_DISABLED", "1")], "", None),
            // fakechroot.
            (&[("LD_PRELOAD", "libfakechroot.so"), ("FAKECHROOT", "true")], "", None),
            (&[("LD_PRELOAD", "libfakechroot.so"), ("FAKECHROOT_BASE", "/root")], "", Some("fakechroot")),
            (
                &[("LD_PRELOAD", "libfakechroot.so"), ("FAKECHROOT_BASE", "/root")],
                "libfakechroot.so",
                Some("fakechroot"),
            ),
        ] {
            let environment = |name: &str| {
                let set = variables.iter().find(|(other, _)| *other == name);
                set.map(|(_, value)| OsString::from(value))
            };
            let message = missing(&environment, &[PathBuf::from("/lib/libc.so.6"), PathBuf::from(loaded)]);
            let name = message.as_deref().and_then(|message| message.split(' ').next());
            assert_eq!(name, expected, "{variables:?} {loaded}");
        }
    }

    #[test]
    fn only_fakes_are_left() {
        for (before, after) in [
            ("", ""),
            ("libfakeroot-sysv.so", ""),
            ("libeatmydata.so:libfakeroot-sysv.so", "libeatmydata.so"),
            ("/a/libfakeroot.so  libfakechroot.so:libpseudo.so:libother.so", "libfakechroot.so:libother.so"),
        ] {
            assert_eq!(without_fakes(OsStr::new(before)), after, "{before}");
        }
    }
}
