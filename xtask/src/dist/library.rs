//! The C library, as programs are compiled against it.

use std::{
    env, fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::Command,
};

use floe_testkit::{target_dir, workspace_root};

use super::{cargo, run_tool, tree::copy};
use crate::task_error::{During, Outcome};

/// Changes when programs must be compiled anew.
const ABI_VERSION: &str = "0";

/// The header, the libraries, and what pkg-config says of them, below what `/usr` becomes.
///
/// The shared library is linked from the static one, because rustc cannot give symbols versions.
pub(super) fn make(path: &Path) -> Outcome {
    let target = format!("{}-unknown-linux-gnu", env::consts::ARCH);
    let mut build = cargo();
    build.args(["build", "--profile", "dist", "-p", "floe-capi", "--lib", "--target", &target]);
    run_tool(&mut build, &format!("rustup target add {target}"))?;
    if path.exists() {
        fs::remove_dir_all(path).during(path.display())?;
    }
    let sources = workspace_root().join("crates/capi");
    let (libraries, version) = (path.join("lib"), env!("CARGO_PKG_VERSION"));
    copy(&sources.join("include/floe.h"), &path.join("include/floe.h"))?;
    let archive = libraries.join("libfloe.a");
    copy(&target_dir().join(&target).join("dist/libfloe_capi.a"), &archive)?;
    run_tool(Command::new("strip").arg("--strip-debug").arg(&archive), "apt-get install binutils")?;
    let (name, soname) = (format!("libfloe.so.{version}"), format!("libfloe.so.{ABI_VERSION}"));
    share(&archive, &sources.join("floe.map"), &soname, &libraries.join(&name))?;
    symlink(&name, libraries.join(&soname))?;
    symlink(&soname, libraries.join("libfloe.so"))?;
    let description = format!(
        "prefix=${{pcfiledir}}/../..\n\
         includedir=${{prefix}}/include\n\
         libdir=${{prefix}}/lib\n\n\
         Name: floe\n\
         Description: Reads EROFS and SquashFS images\n\
         URL: {url}\n\
         Version: {version}\n\
         Cflags: -I${{includedir}}\n\
         Libs: -L${{libdir}} -lfloe\n\
         Libs.private: -lpthread -ldl -lm -lgcc_s\n",
        url = env!("CARGO_PKG_REPOSITORY"),
    );
    fs::create_dir_all(libraries.join("pkgconfig"))?;
    fs::write(libraries.join("pkgconfig/floe.pc"), description)?;
    let documents = path.join("share/doc/libfloe-dev");
    copy(&sources.join("examples/read.c"), &documents.join("examples/read.c"))?;
    for name in ["go.mod", "main.go"] {
        copy(&sources.join("examples/go").join(name), &documents.join("examples/go").join(name))?;
    }
    for name in ["LICENSE-APACHE", "LICENSE-MIT"] {
        copy(&workspace_root().join(name), &documents.join(name))?;
    }
    Ok(())
}

/// Links a shared library that has the symbols of a static one which a version script names.
fn share(archive: &Path, symbols: &Path, soname: &str, library: &Path) -> Outcome {
    let option = |name: &str, value: &Path| format!("-Wl,{name}{}", value.display());
    let mut linker = Command::new(env::var_os("CC").map_or_else(|| PathBuf::from("cc"), PathBuf::from));
    linker.args(["-shared", "-Wl,--gc-sections,--whole-archive"]).arg(archive).arg("-Wl,--no-whole-archive");
    linker.arg(option("--version-script=", symbols)).arg(format!("-Wl,-soname,{soname}"));
    linker.args(["-Wl,-z,relro,-z,now,--no-undefined-version", "-lgcc_s", "-lpthread", "-ldl", "-lm", "-lc", "-o"]);
    run_tool(linker.arg(library), "apt-get install gcc")
}
