//! The programs of a release.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
    time::Instant,
};

use floe_testkit::target_dir;

use super::{Architecture, PROFILE, cargo, run_tool};
use crate::task_error::{During, Outcome, TaskError};

/// The oldest glibc that dynamic programs run with: that of Rust's own library, and of the wheels. The packages depend on it.
const GLIBC: &str = "2.17";

/// How a program is linked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Linkage {
    /// Statically, with musl: the program needs neither libraries nor a loader.
    Static,
    /// With the glibc of the system: libraries that are preloaded into the program have an effect, as those of fakeroot.
    Dynamic,
}

/// A program without debug information.
pub(super) struct Program {
    pub(super) architecture: Architecture,
    pub(super) path: PathBuf,
    /// The name of its archive and of its tree.
    pub(super) name: String,
}

impl Program {
    /// Builds the program. Its debug information goes to `directory`.
    pub(super) fn build(architecture: Architecture, linkage: Linkage, directory: &Path) -> Outcome<Self> {
        let machine = architecture.machine();
        let (target, system) = match linkage {
            Linkage::Static => (architecture.musl_target(), "linux"),
            Linkage::Dynamic => (architecture.glibc_target(), "linux-gnu"),
        };
        let mut command = cargo();
        let remedy = match c_compiler(architecture).filter(|_| linkage == Linkage::Static) {
            Some(compiler) => {
                command.args(["build"]).env(format!("CC_{}", target.replace('-', "_")), compiler);
                format!("rustup target add {target}")
            }
            None => {
                command.args(["zigbuild"]);
                format!("rustup target add {target}; pip install ziglang cargo-zigbuild")
            }
        };
        let linked_for = match linkage {
            Linkage::Static => target.to_owned(),
            Linkage::Dynamic => format!("{target}.{GLIBC}"),
        };
        command.args(["--profile", PROFILE, "-p", "floe-cli", "--target", &linked_for]);
        run_tool(&mut command, &remedy)?;
        let path = target_dir().join(target).join(PROFILE).join("floe");
        let name = format!("floe-{}-{machine}-{system}", env!("CARGO_PKG_VERSION"));
        separate_debug_information(&path, &directory.join(format!("{name}.debug")))?;
        let program = Self { architecture, path, name };
        program.describe()?;
        Ok(program)
    }

    /// Whether this machine can run it.
    pub(super) fn runs_here(&self) -> bool {
        env::consts::ARCH == self.architecture.machine()
    }

    /// Reports its size and its start time.
    fn describe(&self) -> Outcome {
        let size = fs::metadata(&self.path)?.len();
        println!("{}: {:.1} MiB", self.path.display(), size as f64 / f64::from(1 << 20));
        if !self.runs_here() {
            return Ok(());
        }
        let mut times = Vec::new();
        for _ in 0..21 {
            let start = Instant::now();
            let output = Command::new(&self.path).arg("--version").output().during("the program does not start")?;
            times.push(start.elapsed());
            if !output.status.success() {
                return Err(TaskError::new("the program does not start"));
            }
        }
        times.sort();
        println!(
            "{} --version: {:.2} ms (median of {})",
            self.path.display(),
            times[10].as_secs_f64() * 1e3,
            times.len()
        );
        Ok(())
    }
}

/// A C compiler for musl, if one is installed. zig is one for every target.
fn c_compiler(architecture: Architecture) -> Option<String> {
    let named = format!("{}-linux-musl-gcc", architecture.machine());
    let own = (env::consts::ARCH == architecture.machine()).then(|| "musl-gcc".to_owned());
    [Some(named), own].into_iter().flatten().find(|name| Command::new(name).arg("--version").output().is_ok())
}

/// Moves the debug information of a program to a separate file, and links to it.
fn separate_debug_information(program: &Path, debug: &Path) -> Outcome {
    let objcopy = objcopy()?;
    let remedy = "rustup component add llvm-tools";
    run_tool(Command::new(&objcopy).arg("--only-keep-debug").arg(program).arg(debug), remedy)?;
    run_tool(Command::new(&objcopy).arg("--strip-debug").arg(program), remedy)?;
    let link = format!("--add-gnu-debuglink={}", debug.display());
    run_tool(Command::new(&objcopy).arg(link).arg(program), remedy)
}

/// The `objcopy` of the toolchain, which supports every target.
fn objcopy() -> Outcome<PathBuf> {
    let output = Command::new("rustc").args(["--print", "target-libdir"]).output().during("rustc cannot be run")?;
    let libraries = PathBuf::from(String::from_utf8_lossy(&output.stdout).trim());
    let path = libraries.with_file_name("bin").join("rust-objcopy");
    if path.exists() { Ok(path) } else { Err(TaskError::new(format!("{} is missing", path.display()))) }
}
