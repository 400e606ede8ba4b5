//! `cargo xtask dist`: builds the files of a release in `target/dist`.
//!
//! Builds for each processor a static program for an archive and a container image, a dynamic one for a Debian package and
//! an RPM, their debug information in separate files, and a Python wheel. Adds the licences and components of everything
//! linked in, and checksums of all files.

mod program;
mod tree;

use std::{
    env,
    ffi::OsStr,
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::Command,
};

use clap::ValueEnum;
use floe_testkit::{target_dir, workspace_root};
use sha2::{Digest, Sha256};

use self::{
    program::{Linkage, Program},
    tree::InstalledTree,
};
use crate::task_error::{During, Outcome, TaskError};

/// The profile of Cargo that programs and libraries are built with. Cargo names folders in `target` after profiles, so it must
/// not be called like the folder of the files.
const PROFILE: &str = "release-dist";

/// The options of `dist`.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// The processors to build for
    #[arg(long, value_delimiter = ',', default_value = "x86-64,aarch64")]
    architecture: Vec<Architecture>,
    /// The files to build for each program
    #[arg(long, value_delimiter = ',', default_value = "archive,deb,rpm,container,wheel,library,components")]
    only: Vec<Product>,
    /// Afterwards, try the package in a Debian root and the program in a root with busybox; needs root and debootstrap
    #[arg(long = "try")]
    tries: bool,
}

/// A processor that programs are built for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum Architecture {
    /// 64-bit x86
    #[value(name = "x86-64")]
    X86_64,
    /// 64-bit Arm
    #[value(name = "aarch64")]
    Aarch64,
}

impl Architecture {
    /// Rust's name of the target with musl, for static programs.
    fn musl_target(self) -> &'static str {
        match self {
            Self::X86_64 => "x86_64-unknown-linux-musl",
            Self::Aarch64 => "aarch64-unknown-linux-musl",
        }
    }

    /// The name in the output of `uname -m`.
    fn machine(self) -> &'static str {
        match self {
            Self::X86_64 => "x86_64",
            Self::Aarch64 => "aarch64",
        }
    }

    /// Rust's name of the target with glibc, for packages and wheels.
    fn glibc_target(self) -> &'static str {
        match self {
            Self::X86_64 => "x86_64-unknown-linux-gnu",
            Self::Aarch64 => "aarch64-unknown-linux-gnu",
        }
    }

    /// The name in the metadata of container images.
    fn container(self) -> &'static str {
        match self {
            Self::X86_64 => "amd64",
            Self::Aarch64 => "arm64",
        }
    }
}

/// A file that users download.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum Product {
    /// A tar archive
    Archive,
    /// A Debian package, by cargo-deb
    Deb,
    /// An RPM, by cargo-generate-rpm
    Rpm,
    /// A container image, as an OCI archive
    Container,
    /// A Python wheel, by maturin
    Wheel,
    /// The C library for this machine's processor and glibc: an archive, and Debian packages by cargo-deb
    Library,
    /// The licences (by cargo-about) and the components (by cargo-cyclonedx) of everything linked in; the licences also
    /// become part of the other files
    Components,
}

impl Product {
    /// How the program in the file is linked, if there is one. Distributions with packages have glibc, and build their own
    /// packages under fakeroot, which has no effect on static programs.
    fn linkage(self) -> Option<Linkage> {
        match self {
            Self::Archive | Self::Container => Some(Linkage::Static),
            Self::Deb | Self::Rpm => Some(Linkage::Dynamic),
            Self::Wheel | Self::Library | Self::Components => None,
        }
    }
}

/// Builds a release.
pub(crate) fn run(arguments: &Arguments) -> Outcome {
    let directory = target_dir().join("dist");
    fs::create_dir_all(&directory).during(directory.display())?;
    let version = env!("CARGO_PKG_VERSION");
    let has_licences = arguments.only.contains(&Product::Components);
    let licences_path = directory.join("LICENCES.html");
    if has_licences {
        components(&directory)?;
        licences("crates/floe-cli", &licences_path)?;
    }
    for &architecture in &arguments.architecture {
        for linkage in [Linkage::Static, Linkage::Dynamic] {
            let products = arguments.only.iter().copied().filter(|product| product.linkage() == Some(linkage));
            let products: Vec<Product> = products.collect();
            if !products.is_empty() {
                let licences = has_licences.then_some(licences_path.as_path());
                products_of(architecture, linkage, &products, licences, &directory)?;
            }
        }
        if arguments.only.contains(&Product::Wheel) {
            wheel(architecture, has_licences, &directory)?;
        }
    }
    if arguments.only.contains(&Product::Library) {
        let machine = env::consts::ARCH;
        let name = format!("libfloe-{version}-{machine}-linux-gnu");
        let path = installed(&name)?;
        make(&path)?;
        if has_licences {
            licences("crates/capi", &path.join("share/doc/libfloe-dev/LICENCES.html"))?;
        }
        point("libfloe", &path)?;
        tree::pack(&path, &directory.join(format!("{name}.tar.gz")))?;
        let target = format!("{machine}-unknown-linux-gnu");
        deb("floe-capi", Some("runtime"), &target, &directory)?;
        deb("floe-capi", None, &target, &directory)?;
    }
    sums(&directory)?;
    if arguments.tries {
        for (trial, remedy) in [
            ("try-release", "apt-get install debootstrap busybox-static"),
            ("try-emulated", "apt-get install qemu-user-static"),
        ] {
            run_tool(Command::new(workspace_root().join("packaging").join(trial)).arg(&directory), remedy)?;
        }
    }
    Ok(())
}

/// Builds a program, and the files that contain it.
fn products_of(
    architecture: Architecture,
    linkage: Linkage,
    products: &[Product],
    licences: Option<&Path>,
    directory: &Path,
) -> Outcome {
    let program = Program::build(architecture, linkage, directory)?;
    let name = &program.name;
    let tree = InstalledTree::make(&program, licences, &installed(name)?)?;
    for product in products {
        match product {
            Product::Archive => tree.archive(&directory.join(format!("{name}.tar.gz")))?,
            Product::Deb => deb("floe-cli", None, architecture.glibc_target(), directory)?,
            Product::Rpm => rpm(architecture, directory)?,
            Product::Container => {
                tree::make_container_image(
                    &program,
                    licences,
                    architecture,
                    &directory.join(format!("{name}.oci.tar")),
                )?;
            }
            Product::Wheel | Product::Library | Product::Components => {}
        }
    }
    Ok(())
}

/// Builds a Debian package of the tree of a crate that was created last: the crate's package, or a variant of it.
fn deb(package: &str, variant: Option<&str>, target: &str, directory: &Path) -> Outcome {
    let mut command = cargo();
    command.args(["deb", "--no-build", "--no-strip", "-p", package, "--target", target, "--profile", PROFILE]);
    if let Some(variant) = variant {
        command.args(["--variant", variant]);
    }
    run_tool(command.arg("--output").arg(directory), "cargo install cargo-deb")
}

/// Builds an RPM of the program's tree that was created last.
fn rpm(architecture: Architecture, directory: &Path) -> Outcome {
    let mut command = cargo();
    command.args(["generate-rpm", "-p", "crates/floe-cli", "--profile", PROFILE]);
    command.args(["--target", architecture.glibc_target()]);
    run_tool(command.arg("--output").arg(directory), "cargo install cargo-generate-rpm")
}

/// Builds a wheel. zig links it against an old glibc, so that it can be installed on old distributions too.
fn wheel(architecture: Architecture, has_licences: bool, directory: &Path) -> Outcome {
    let target = architecture.glibc_target();
    // pyproject.toml names it, if it exists.
    let licences_path = workspace_root().join("python/LICENCES.html");
    if has_licences {
        licences("python", &licences_path)?;
    }
    let mut maturin = Command::new("maturin");
    maturin.current_dir(workspace_root().join("python")).env("CARGO_TARGET_DIR", target_dir().join("python"));
    maturin.args(["build", "--release", "--zig", "--compatibility", "manylinux2014", "--target", target, "--out"]);
    let outcome = run_tool(maturin.arg(directory), &format!("pip install maturin ziglang; rustup target add {target}"));
    let _ = fs::remove_file(licences_path);
    outcome
}

/// A path in `target/installed`, which has the trees that packages install.
fn installed(name: &str) -> Outcome<PathBuf> {
    let directory = target_dir().join("installed");
    fs::create_dir_all(&directory).during(directory.display())?;
    Ok(directory.join(name))
}

/// Makes a link in `target/installed` to a tree. Packagers take the files of the next package from there.
fn point(name: &str, tree: &Path) -> Outcome {
    let link = installed(name)?;
    if link.symlink_metadata().is_ok() {
        fs::remove_file(&link)?;
    }
    symlink(tree, &link).during(link.display())
}

/// Writes the licences of everything that is linked into the program or library of a crate. They require that their texts
/// accompany it, so the packages contain the file.
fn licences(package: &str, path: &Path) -> Outcome {
    let mut about = cargo();
    about.args(["about", "generate", "--fail", "--config", "packaging/about.toml", "--manifest-path"]);
    about.arg(format!("{package}/Cargo.toml")).arg("-o").arg(path).arg("packaging/about.hbs");
    run_tool(&mut about, "cargo install cargo-about --features cli")
}

/// Writes the components of everything that is linked into the program.
fn components(directory: &Path) -> Outcome {
    let manifest = workspace_root().join("crates/floe-cli/Cargo.toml");
    let mut bill = cargo();
    bill.args(["cyclonedx", "--format", "json", "--override-filename", "floe.cdx", "--manifest-path"]).arg(&manifest);
    run_tool(&mut bill, "cargo install cargo-cyclonedx")?;
    // The tool writes one file beside each manifest of the workspace.
    for folder in fs::read_dir(workspace_root().join("crates"))? {
        let written = folder?.path().join("floe.cdx.json");
        if written.parent().and_then(Path::file_name) == Some(OsStr::new("floe-cli")) {
            fs::copy(&written, directory.join("floe.cdx.json")).during(written.display())?;
        }
        let _ = fs::remove_file(written);
    }
    let _ = fs::remove_file(workspace_root().join("xtask/floe.cdx.json"));
    Ok(())
}

/// Writes the SHA-256 sums of all files for download, in the format of `sha256sum --check`.
fn sums(directory: &Path) -> Outcome {
    let mut files: Vec<PathBuf> = fs::read_dir(directory)?.map(|entry| Ok(entry?.path())).collect::<Outcome<_>>()?;
    files.retain(|path| path.is_file() && path.file_name() != Some(OsStr::new("SHA256SUMS")));
    files.sort();
    let mut text = String::new();
    for path in files {
        let sum = hex(&Sha256::digest(fs::read(&path).during(path.display())?));
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        text += &format!("{sum}  {name}\n");
    }
    fs::write(directory.join("SHA256SUMS"), &text)?;
    print!("{text}");
    Ok(())
}

/// Bytes in hexadecimal digits.
fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Cargo, in the root of the workspace.
fn cargo() -> Command {
    let mut command = Command::new(env::var_os("CARGO").unwrap_or("cargo".into()));
    command.current_dir(workspace_root());
    command
}

/// Runs a tool to its end. `remedy` says how to install it.
fn run_tool(command: &mut Command, remedy: &str) -> Outcome {
    eprintln!("== {command:?}");
    let status = command.status().during(format!("{} cannot be run", command.get_program().display()))?;
    if status.success() {
        return Ok(());
    }
    Err(TaskError::new(format!("{command:?} failed, {status}; if the tool is missing: {remedy}")))
}

/// Creates the tree for `/usr`: the header, the libraries, the pkg-config file, and the examples.
fn make(path: &Path) -> Outcome {
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
