//! `cargo xtask roots`: images of real systems, whose trees in containerd and in Floe must be equal.

mod recipe;

use std::{
    fs,
    net::TcpListener,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    process::Command,
    time::Instant,
};

use floe_testkit::{
    container_root,
    manifest::{Comparison, Entry, Manifest, differences},
    skip::Need,
    target_dir,
    walk::{DirectoryWalk, directory},
};

use self::recipe::{RECIPES, Recipe};
use crate::{
    bench::Node,
    roundtrip::{release, succeed},
    task_error::{During, Outcome, TaskError},
};

/// Makes the images and mounts them.
const SCRIPT: &str = include_str!("roots/node.sh");

/// The tree that the others must be equal to, and these.
const REFERENCE: &str = "overlayfs";
const TREES: [&str; 3] = ["floe", "merged", "mkfs"];

/// What the root directory with containerd must have besides.
const PROGRAMS: [&str; 3] = ["umoci", "docker-registry", "jq"];

/// The directory with downloaded packages, which stays for other runs.
const PACKAGES: &str = "packages";

/// Makes images of Debian systems, with two to four layers, and compares the tree that containerd unpacks for its overlayfs
/// snapshotter with those of Floe: the layers of floe convert in floe snapshotter (floe), those of floe convert --merged (merged), and
/// the same layers in one image of floe mkfs --whiteouts (mkfs). Compares types, modes, owners, sizes, times, extended attributes, link
/// targets, hard links, device numbers and the SHA-256 of all content. Needs root, mmdebstrap, and the root directory with containerd,
/// umoci and docker-registry (FLOE_CONTAINERS); otherwise, it is skipped
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// The systems, by their names; without any, all
    roots: Vec<String>,
    /// The release of Debian
    #[arg(long, default_value = "bookworm")]
    suite: String,
    /// Where packages come from
    #[arg(long, default_value = "http://deb.debian.org/debian")]
    debian: String,
    /// Use this program, whose name is floe, instead of building Floe
    #[arg(long, value_name = "PROGRAM")]
    floe: Option<PathBuf>,
}

/// Makes the images and compares their trees.
///
/// # Errors
/// The differences, or a program that fails.
pub(crate) fn run(arguments: &Arguments) -> Outcome {
    let is_known = |name: &String| RECIPES.iter().any(|recipe| recipe.name == *name);
    if let Some(unknown) = arguments.roots.iter().find(|name| !is_known(name)) {
        let names = RECIPES.map(|recipe| recipe.name).join(", ");
        return Err(TaskError::new(format!("there is no root '{unknown}', only {names}")));
    }
    if let Some(reason) = missing() {
        println!("skipped: {reason}");
        return Ok(());
    }
    let floe = match &arguments.floe {
        Some(program) => fs::canonicalize(program).during(program.display())?,
        None => release()?,
    };
    let folder = target_dir().join("roots");
    fs::create_dir_all(folder.join(PACKAGES))?;
    let is_wanted =
        |recipe: &&Recipe| arguments.roots.is_empty() || arguments.roots.iter().any(|name| name == recipe.name);
    let mut wrong = Vec::new();
    println!("| root | layers | paths | MiB | hard links | devices | with xattrs | {} | s |", TREES.join(" | "));
    println!("| --- |{}{} ---: |", " ---: |".repeat(6), " --- |".repeat(TREES.len()));
    for recipe in RECIPES.iter().filter(is_wanted) {
        clear(&folder)?;
        if let Err(error) = examine(recipe, arguments, &floe, &folder, &mut wrong) {
            println!("| {} | failed |", recipe.name);
            wrong.push(format!("{}: {error}", recipe.name));
        }
    }
    clear(&folder)?;
    TaskError::from_lines("trees differ", &wrong)
}

/// Why this machine cannot run the task.
fn missing() -> Option<String> {
    let needs = [Need::Root, Need::Fuse, Need::ContainerRoot, Need::Peer("mmdebstrap")];
    let root = container_root().unwrap_or_default();
    let program = PROGRAMS.into_iter().find(|program| !root.join("usr/bin").join(program).is_file());
    let absent = program.map(|program| format!("there is no {program} in FLOE_CONTAINERS"));
    needs.iter().find_map(|need| need.missing()).or(absent)
}

/// Makes the image of a root, compares its trees, and prints a row. Differences are added to `wrong`.
fn examine(recipe: &Recipe, arguments: &Arguments, floe: &Path, folder: &Path, wrong: &mut Vec<String>) -> Outcome {
    let begun = Instant::now();
    bootstrap(recipe, arguments, folder)?;
    fs::copy("/etc/resolv.conf", folder.join("resolv.conf")).during("/etc/resolv.conf")?;
    let registry = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
    let changes = recipe.changes.join("\n");
    let script = format!("registry={registry}\n{SCRIPT}\n{changes}\nmount_trees\nwait_for_go");
    let node = Node::start(folder, floe, &script)?;
    let packed_s = fs::metadata(folder.join("layout/index.json"))?.mtime();
    let tree = |name: &str| directory(&node.path(&format!("run/trees/{name}")), DirectoryWalk::default());
    let expected = tree(REFERENCE)?;
    let count = |is_counted: fn(&Entry) -> bool| expected.entries().filter(|(_, entry)| is_counted(entry)).count();
    let bytes: u64 = expected.entries().filter(|(_, entry)| entry.link_of.is_none()).map(|(_, entry)| entry.size).sum();
    let mut verdicts = Vec::new();
    for name in TREES {
        let told = differences_from(&expected, tree(name)?, packed_s);
        verdicts.push(if told.is_empty() { "equal" } else { "different" });
        wrong.extend(told.iter().map(|difference| format!("{}: {name}: {difference}", recipe.name)));
    }
    println!(
        "| {} | {} | {} | {} | {} | {} | {} | {} | {} |",
        recipe.name,
        1 + recipe.changes.len(),
        expected.len(),
        bytes >> 20,
        count(|entry| entry.link_of.is_some()),
        count(|entry| entry.device.is_some()),
        count(|entry| !entry.xattrs.is_empty()),
        verdicts.join(" | "),
        begun.elapsed().as_secs()
    );
    Ok(())
}

/// Makes the lowest layer, `base.tar`.
fn bootstrap(recipe: &Recipe, arguments: &Arguments, folder: &Path) -> Outcome {
    let packages = folder.join(PACKAGES);
    let mut command = Command::new("mmdebstrap");
    command.args(["--quiet", "--format=tar", "--skip=download/empty", "--skip=essential/unlink"]);
    command.arg("--setup-hook=mkdir -p \"$1\"/var/cache/apt/archives");
    command.arg(format!("--setup-hook=sync-in {} /var/cache/apt/archives", packages.display()));
    command.arg(format!("--customize-hook=sync-out /var/cache/apt/archives {}", packages.display()));
    command.arg(format!("--variant={}", recipe.variant));
    if !recipe.packages.is_empty() {
        command.arg(format!("--include={}", recipe.packages));
    }
    succeed(command.arg(&arguments.suite).arg(folder.join("base.tar")).arg(&arguments.debian))
}

/// The differences of a tree from the one that containerd has unpacked.
fn differences_from(expected: &Manifest, mut actual: Manifest, packed_s: i64) -> Vec<String> {
    for (path, entry) in actual.entries_mut() {
        let Some(expected) = expected.entry(path).filter(|expected| expected.file_type == 'd') else { continue };
        // containerd sets neither the time of the root nor those of directories that a layer has content of, but no entry.
        if path == b"/" || expected.modified.0 > packed_s {
            entry.modified = expected.modified;
        }
    }
    differences(expected, &actual, &Comparison { directory_shape_is_free: true, ..Comparison::default() })
}

/// Removes the files of a run, but not the packages.
fn clear(folder: &Path) -> Outcome {
    for entry in fs::read_dir(folder)?.flatten().filter(|entry| entry.file_name() != PACKAGES) {
        let path = entry.path();
        if entry.file_type()?.is_dir() { fs::remove_dir_all(&path) } else { fs::remove_file(&path) }
            .during(path.display())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use floe_testkit::corpus::Overrides;

    use super::*;

    /// Made before 1000, and unpacked then.
    const LINES: &str = concat!(
        r#"{"path":"/","type":"d","mode":"0755","uid":0,"gid":0,"size":60,"nlink":4,"mtime":[1005,1]}"#,
        "\n",
        r#"{"path":"/a","type":"d","mode":"0755","uid":0,"gid":0,"size":60,"nlink":2,"mtime":[900,0]}"#,
        "\n",
        r#"{"path":"/implied","type":"d","mode":"0755","uid":0,"gid":0,"size":60,"nlink":2,"mtime":[1005,2]}"#,
        "\n",
        r#"{"path":"/implied/f","type":"f","mode":"0755","uid":0,"gid":0,"size":2,"nlink":1,"mtime":[900,3],"#,
        r#""xattrs":{"security.capability":"01"},"sha256":"80"}"#,
        "\n",
    );

    #[test]
    fn only_times_that_containerd_does_not_set_may_differ() {
        let expected = Manifest::parse(LINES, &Overrides::new()).expect("well formed");
        for (change, is_difference) in [
            (r#"{}"#, false),
            (r#"{"/":{"mtime":[900,0]},"/implied":{"mtime":[800,0]}}"#, false),
            (r#"{"/implied":{"mode":"0700"}}"#, true),
            (r#"{"/":{"uid":1}}"#, true),
            (r#"{"/a":{"mtime":[900,1]}}"#, true),
            (r#"{"/implied/f":{"mtime":[900,4]}}"#, true),
            (r#"{"/implied/f":{"xattrs":{"security.capability":"02"}}}"#, true),
            (r#"{"/implied/f":{"sha256":"81"}}"#, true),
            (r#"{"/a":null}"#, true),
        ] {
            let overrides = serde_json::from_str(change).expect("JSON");
            let actual = Manifest::parse(LINES, &overrides).expect("well formed");
            assert_eq!(!differences_from(&expected, actual, 1000).is_empty(), is_difference, "{change}");
        }
    }
}
