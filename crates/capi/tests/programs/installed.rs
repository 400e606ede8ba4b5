//! The library as it is installed: what it exports, and programs in C, with `FLOE_GO=1` also in Go, that are compiled
//! against it.

use std::{collections::BTreeSet, env, fs, path::Path, process::Command, time::Duration};

use floe::{FileType, Image, OpenOptions};
use floe_testkit::{run_bounded, skip, target_dir, workspace_root};

/// How long the compilers and the programs may take, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(900);

/// The functions that the version script exports.
fn exported() -> BTreeSet<String> {
    let script = fs::read_to_string(workspace_root().join("crates/capi/floe.map")).expect("the version script");
    let names = script.lines().filter_map(|line| line.trim().strip_suffix(';'));
    names.filter(|name| name.starts_with("floe_")).map(str::to_owned).collect()
}

#[test]
fn the_header_matches_the_sources() {
    let root = workspace_root().join("crates/capi");
    let config = cbindgen::Config::from_file(root.join("cbindgen.toml")).expect("the configuration");
    let mut builder = cbindgen::Builder::new().with_config(config);
    for name in ["types", "exports_sys"] {
        builder = builder.with_src(root.join(format!("src/{name}.rs")));
    }
    let mut generated = Vec::new();
    builder.generate().expect("the sources are understood").write(&mut generated);
    let generated = String::from_utf8(generated).expect("text");
    let path = root.join("include/floe.h");
    if env::var_os("FLOE_BLESS").is_some() {
        fs::write(&path, &generated).expect("the header can be written");
    }
    let header = fs::read_to_string(&path).expect("the header");
    let advice = "FLOE_BLESS=1 cargo test -p floe-capi --test programs writes it anew";
    assert!(header == generated, "include/floe.h does not match the sources: {advice}");
    for name in exported() {
        assert!(header.contains(&format!("{name}(")), "floe.map has {name}, and floe.h has not");
    }
    let declared = header.matches("\n */\n").count();
    assert!(declared >= exported().len(), "{header}");
}

#[test]
fn every_function_has_a_version() {
    let source = fs::read_to_string(workspace_root().join("crates/capi/src/exports_sys.rs")).expect("the source");
    let functions = source.split("(no_mangle)]\n").skip(1).map(|rest| {
        let (_, rest) = rest.split_once("extern \"C\" fn ").expect("a function");
        rest.split('(').next().expect("a name").to_owned()
    });
    assert_eq!(functions.collect::<BTreeSet<_>>(), exported());
}

#[test]
fn packages_need_the_runtime_of_their_own_version() {
    let manifest = fs::read_to_string(workspace_root().join("crates/capi/Cargo.toml")).expect("the manifest");
    let dependency = format!("depends = \"libfloe0 (>= {})\"", env!("CARGO_PKG_VERSION"));
    assert!(manifest.contains(&dependency), "Cargo.toml does not say {dependency}");
}

#[test]
fn examples_compile_against_the_installed_library() {
    for tool in ["cc", "pkg-config", "objdump"] {
        if Command::new(tool).arg("--version").output().is_err() {
            skip::skipped(&format!("{tool} is not installed"));
            return;
        }
    }
    let directory = tempfile::tempdir().expect("a directory");
    let (prefix, tree) = (directory.path().join("usr"), directory.path().join("tree"));
    let archive = env::current_exe().expect("this test").with_file_name("libfloe_capi.a");
    let packaging = workspace_root().join("packaging");
    passes(Command::new(packaging.join("install-libfloe")).arg(archive).arg(&prefix));
    let demo = workspace_root().join("fixtures/demo.erofs");
    unpack(&demo, &tree);
    let mut trial = Command::new(packaging.join("try-libfloe"));
    trial.arg(prefix.join("share/doc/libfloe-dev/examples")).arg(&tree).arg(&demo);
    trial.env("PKG_CONFIG_PATH", prefix.join("lib/pkgconfig"));
    // Go compiles its own library first, twice, which later runs find here.
    match env::var_os("FLOE_GO") {
        Some(_) => trial.env("GOCACHE", target_dir().join("go-cache")),
        None => trial.env("WITHOUT_GO", "1"),
    };
    let said = passes(&mut trial);
    for step in ["C with the static library", "C with the shared library"] {
        assert!(said.contains(&format!("ok: {step}\n")), "{said}");
    }
    said.lines().filter_map(|line| line.strip_prefix("skipped: ")).for_each(skip::skipped);
}

/// Writes the directories and regular files of an image below a directory.
fn unpack(image: &Path, tree: &Path) {
    let image = Image::open(image, &OpenOptions::default()).expect("the demo image");
    fs::create_dir_all(tree).expect("ours");
    for entry in image.walk() {
        let entry = entry.expect("an entry");
        let path = tree.join(String::from_utf8(entry.path).expect("text").trim_start_matches('/'));
        if entry.attr.file_type == FileType::Directory {
            fs::create_dir_all(path).expect("ours");
        } else if entry.attr.file_type == FileType::Regular {
            let mut content = vec![0; usize::try_from(entry.attr.size).expect("a small file")];
            image.read_at(entry.attr.nid, 0, &mut content).expect("its content");
            fs::write(path, content).expect("ours");
        }
    }
}

/// Runs a program that must succeed, and returns its standard output.
fn passes(command: &mut Command) -> String {
    let run = run_bounded(command, PATIENCE).expect("it runs");
    let said = String::from_utf8_lossy(&run.stdout).into_owned();
    assert!(run.status.success(), "{command:?}: {}\n{said}{}", run.status, run.stderr);
    said
}
