//! The C library with the files that programs are compiled against.

use std::{env, fs, path::Path, process::Command};

use floe_testkit::{target_dir, workspace_root};

use super::{PROFILE, cargo, run_tool};
use crate::task_error::{During, Outcome};

/// Creates the tree for `/usr`: the header, the libraries, the pkg-config file, and the examples.
pub(super) fn make(path: &Path) -> Outcome {
    let target = format!("{}-unknown-linux-gnu", env::consts::ARCH);
    let mut build = cargo();
    // Link-time optimisation needs a library that no Rust crate links with.
    build.args(["rustc", "--profile", PROFILE, "-p", "floe-capi", "--lib", "--crate-type", "staticlib"]);
    build.args(["--target", &target]);
    run_tool(&mut build, &format!("rustup target add {target}"))?;
    if path.exists() {
        fs::remove_dir_all(path).during(path.display())?;
    }
    let mut install = Command::new(workspace_root().join("packaging/install-libfloe"));
    install.arg(target_dir().join(&target).join(PROFILE).join("libfloe_capi.a")).arg(path);
    run_tool(&mut install, "apt-get install gcc binutils")
}
