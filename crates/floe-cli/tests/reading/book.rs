//! Runs the commands of the documentation: the lines that begin with `$ ` in `console` blocks.
//!
//! The blocks of a page run one after the other in one directory, until a command fails. Only root can run blocks of the
//! kind `console,root`. Other blocks with commands or programs are listed with the reason why they are not run here.

use std::{
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::Command,
};

use floe_testkit::{
    check_rows,
    skip::{self, Need},
    workspace_root,
};

use crate::support::program;

/// The kinds of blocks that contain neither commands nor programs.
const WITHOUT_COMMANDS: [&str; 5] = ["text", "fstab", "ini", "toml", "yaml"];

/// The blocks with commands or programs that are not run here: the page, the beginning of the block, and the reason.
const NOT_RUN: [(&str, &str, &str); 44] = [
    ("README.md", "cargo run --release", "builds and tests the project"),
    ("README.md", "apt install", "installs files that do not exist yet; packaging/try-release installs the packages"),
    ("README.md", "floe mount oci://", "needs a registry; tests/remotes mounts from one"),
    (
        "README.md",
        "let image = floe::Image::open",
        "crates/floe/examples/embed.rs is compiled and run by the tests of floe",
    ),
    ("building.md", "fakeroot sh", "needs fakeroot; tests/building/fakes.rs builds under it"),
    ("containers.md", "podman load", "needs podman and the image, which `cargo xtask dist` makes"),
    ("containers.md", "podman run", "needs podman; tests/mounts/containers.rs mounts with the rights of a container"),
    ("containers.md", "floe mount --daemon app.erofs app", "needs podman; overlayfs below does the same"),
    (
        "containers.md",
        "floe record --cgroup",
        "needs a unit of systemd; tests/mounts/containerd/recorded.rs records so",
    ),
    ("containers.md", "mkdir -p ~/.local/lib/floe", "needs apptainer; tests/mounts/drop_in_mounts.rs runs it"),
    ("containers.md", "mkdir app", "needs an AppImage; tests/mounts/containers.rs launches one"),
    ("podman.md", "floe convert", "needs a registry; tests/mounts/podman.rs converts an image for Podman"),
    ("podman.md", "systemctl", "needs systemd; tests/mounts/podman.rs runs the store and containers"),
    ("podman.md", "mkdir", "changes the user's settings; tests/mounts/podman.rs runs containers of a user"),
    ("kubernetes.md", "podman load", "needs a cluster; xtask/tests/kubernetes.rs checks manifests and installation"),
    ("kubernetes.md", "grep imports", "needs a node; tests/mounts/containerd.rs runs containerd"),
    ("kubernetes.md", "floe convert oci://registry.example/team/app", "needs a cluster; as in containerd.md"),
    ("kubernetes.md", "floe convert oci://registry.example/team/data", "needs a cluster; as in containerd.md"),
    ("containerd.md", "floe convert", "needs a registry; tests/building and tests/remotes convert images"),
    ("containerd.md", "floe push", "needs a registry; tests/mounts/layer_caches.rs pushes and serves a layer"),
    ("containerd.md", "floe snapshotter", "does not end; tests/mounts/containerd.rs runs it"),
    ("containerd.md", "systemctl", "needs systemd; tests/mounts/containerd.rs runs containerd"),
    ("front.md", "floe mount -o front-metadata=render", "needs an image; tests/mounts/fronts/kept.rs mounts so"),
    ("front.md", "floe lab launch --image IMAGE", "takes minutes; tests/lab runs the lab"),
    ("lab.md", "floe lab launch", "takes a minute; tests/lab runs the lab"),
    ("lab.md", "floe lab launch --image app.erofs", "takes a minute; tests/lab runs the lab"),
    ("lab.md", "floe lab launch --image py.erofs", "takes minutes; tests/lab runs the lab"),
    ("lab.md", "floe lab launch --image py64k.erofs", "takes minutes; tests/lab runs the lab"),
    ("lab.md", "floe lab launch --image /dev/shm/py64k.erofs", "takes minutes; tests/lab runs the lab"),
    ("library.md", "let image = floe::Image::open", "as in README.md"),
    (
        "library.md",
        "apt install",
        "packaging/try-release installs the packages; crates/capi/tests/programs/installed.rs compiles read.c",
    ),
    ("library.md", "import floe", "python/tests does the same with the wheel"),
    ("library.md", "import fsspec", "python/tests does the same with the wheel"),
    ("library.md", "class Samples", "python/tests/test_processes.py does the same without PyTorch"),
    ("mounting.md", "systemctl", "needs systemd; packaging/try-release mounts with mount(8), which a mount unit calls"),
    ("installing.md", "tar -xf", "changes the system; packaging/try-release unpacks the packages with the same tree"),
    ("operations.md", "floe exporter", "does not end; tests/mounts/exporter.rs runs it"),
    ("operations.md", "journalctl", "needs systemd; tests/mounts/service_manager.rs reads what is logged"),
    ("remote-cache.md", "floe cache ls", "changes the user's cache; tests/remotes/remote_cache.rs runs them"),
    ("scripting.md", "floe ls --json", "needs jq; the blocks before it run the commands"),
    ("service.md", "systemctl", "needs systemd; tests/mounts/service mounts through the service"),
    (
        "service.md",
        "floe mount --service -o transport=uring",
        "needs Linux 6.14; tests/mounts/service/rings.rs mounts so",
    ),
    (
        "service.md",
        "let mut service = floe::service",
        "as the example of ServiceClient, which the tests of floe-ipc compile",
    ),
    ("tuning.md", "floe lab launch --image app.erofs --variant", "takes minutes; tests/lab runs the lab"),
];

/// The blocks with commands for servers. tests/remotes runs their commands against real servers.
const FOR_SERVERS: [(&str, &str); 2] = [("remote.md", "floe mount oci://"), ("remote.md", "floe mkfs --verity")];

/// A block of commands in a page.
struct Block {
    /// Its line.
    line: usize,
    script: String,
    needs: Vec<Need>,
}

/// The blocks of a page.
fn blocks(page: &Path) -> Vec<Block> {
    let text = fs::read_to_string(page).expect("a page");
    let mut blocks: Vec<Block> = Vec::new();
    let mut is_console = false;
    for (number, line) in text.lines().enumerate() {
        match line.strip_prefix("```") {
            Some("") if is_console => is_console = false,
            Some(kind) if kind.starts_with("console") => {
                is_console = true;
                let needs = if kind.ends_with(",root") { vec![Need::Root] } else { Vec::new() };
                blocks.push(Block { line: number + 1, script: String::new(), needs });
            }
            _ => {}
        }
        if let (true, Some(block), Some(command)) = (is_console, blocks.last_mut(), line.strip_prefix("$ ")) {
            block.script += command;
            block.script.push('\n');
        }
    }
    for block in &mut blocks {
        if ["floe mount", "floe record", "floe demo"].iter().any(|command| block.script.contains(command)) {
            block.needs.push(Need::Fuse);
        }
    }
    blocks
}

/// The pages: those of the book, and the documents at the root of the repository.
fn pages() -> Vec<PathBuf> {
    let docs = workspace_root().join("docs");
    let mut pages: Vec<PathBuf> =
        fs::read_dir(docs).expect("docs").map(|entry| entry.expect("an entry").path()).collect();
    pages.retain(|path| path.extension().is_some_and(|extension| extension == "md"));
    pages.push(workspace_root().join("README.md"));
    pages.sort();
    pages
}

/// The pages with measurements. Their commands take minutes to hours, so they are not run.
fn measurements() -> Vec<PathBuf> {
    let directory = workspace_root().join("docs/measurements");
    fs::read_dir(directory).expect("measurements").map(|entry| entry.expect("an entry").path()).collect()
}

/// Runs the blocks of a page, and returns the failed ones.
fn run(page: &Path, path: &str) -> Vec<String> {
    let directory = tempfile::tempdir().expect("a directory");
    let mut complaints = Vec::new();
    for block in blocks(page) {
        if !skip::ready(&block.needs) {
            continue;
        }
        let mut shell = Command::new("bash");
        shell.args(["-euo", "pipefail", "-c", &block.script]).current_dir(directory.path()).env("PATH", path);
        let output = program::run(&mut shell);
        if !output.status.success() {
            let errors = String::from_utf8_lossy(&output.stderr);
            complaints.push(format!("line {}: {}: {errors}", block.line, output.status));
            // A mount that a failed block left keeps the directory.
            let mount = directory.path().join("mnt");
            let _ = Command::new(env!("CARGO_BIN_EXE_floe")).arg("umount").arg(mount).output();
        }
    }
    complaints
}

#[test]
fn commands_of_the_documentation_work() {
    let bin = tempfile::tempdir().expect("a directory");
    symlink(env!("CARGO_BIN_EXE_floe"), bin.path().join("floe")).expect("a link");
    let path = format!("{}:{}", bin.path().display(), std::env::var("PATH").unwrap_or_default());
    let pages = pages();
    let block_count: usize = pages.iter().map(|page| blocks(page).len()).sum();
    assert!(block_count >= 20, "the book has {block_count} blocks of commands");
    check_rows(&pages, |page| page.display().to_string(), |page| run(page, &path));
}

/// The blocks of a page, as kind and text. Blocks in lists are indented.
fn fences(page: &Path) -> Vec<(String, String)> {
    let text = fs::read_to_string(page).expect("a page");
    let (mut fences, mut is_inside) = (Vec::<(String, String)>::new(), false);
    for line in text.lines().map(str::trim_start) {
        match (line.strip_prefix("```"), is_inside) {
            (Some(kind), false) => fences.push((kind.to_owned(), String::new())),
            (Some(_), true) => {}
            (None, true) => {
                if let Some((_, text)) = fences.last_mut() {
                    *text += line;
                    text.push('\n');
                }
                continue;
            }
            (None, false) => continue,
        }
        is_inside = !is_inside;
    }
    assert!(!is_inside, "{}: a block does not end", page.display());
    fences
}

#[test]
fn every_command_is_run_or_listed() {
    let mut used = Vec::new();
    for page in pages() {
        let name = page.file_name().expect("a name").to_string_lossy().into_owned();
        let runnable = blocks(&page).len();
        let fences = fences(&page);
        let consoles = fences.iter().filter(|(kind, _)| matches!(kind.as_str(), "console" | "console,root"));
        assert_eq!(consoles.count(), runnable, "{name}: an indented block is not run");
        for (kind, text) in fences {
            let kind = kind.as_str();
            if WITHOUT_COMMANDS.contains(&kind) || matches!(kind, "console" | "console,root") {
                continue;
            }
            assert!(!kind.is_empty(), "{name}: a block has no kind: {text}");
            let listed = NOT_RUN.iter().map(|(page, beginning, _)| (*page, *beginning)).chain(FOR_SERVERS);
            // The longest match, because one beginning may be the prefix of another.
            let listed = listed.filter(|(page, beginning)| *page == name && text.starts_with(beginning));
            let listed = listed.max_by_key(|(_, beginning)| beginning.len());
            used.push(listed.unwrap_or_else(|| panic!("{name}: this is neither run nor listed:\n{text}")));
        }
    }
    for listed in NOT_RUN.iter().map(|(page, beginning, _)| (*page, *beginning)).chain(FOR_SERVERS) {
        assert!(used.contains(&listed), "{listed:?} is listed, but is not in the documentation");
    }
    for (_, _, reason) in NOT_RUN {
        for path in reason.split([' ', ';']).filter(|word| word.contains("tests/") || word.contains("crates/")) {
            let found = [workspace_root().join(path), Path::new(env!("CARGO_MANIFEST_DIR")).join(path)];
            assert!(found.iter().any(|path| path.exists()), "{path} does not exist");
        }
    }
}

#[test]
fn pages_of_the_book_are_listed() {
    let summary = fs::read_to_string(workspace_root().join("docs/SUMMARY.md")).expect("the summary");
    for page in pages() {
        let name = page.file_name().expect("a name").to_string_lossy().into_owned();
        let is_listed = summary.contains(&format!("({name})"));
        assert!(is_listed || name == "SUMMARY.md" || name == "README.md", "docs/SUMMARY.md does not list {name}");
    }
    for page in measurements() {
        let name = page.file_name().expect("a name").to_string_lossy().into_owned();
        assert!(
            summary.contains(&format!("(measurements/{name})")),
            "docs/SUMMARY.md does not list measurements/{name}"
        );
    }
}

/// The anchor that mdBook gives a heading.
fn anchor(heading: &str) -> String {
    let letters = heading.trim().to_lowercase();
    let letters = letters.chars().filter(|letter| letter.is_alphanumeric() || matches!(letter, ' ' | '-' | '_'));
    letters.map(|letter| if letter == ' ' { '-' } else { letter }).collect()
}

/// The broken links of a page to other pages.
fn broken_links(page: &Path) -> Vec<String> {
    let text = fs::read_to_string(page).expect("a page");
    let mut complaints = Vec::new();
    let inline = text.split("](").skip(1).filter_map(|rest| rest.split_once(')')).map(|(link, _)| link);
    let definitions = text.lines().filter(|line| line.starts_with('['));
    let definitions = definitions.filter_map(|line| line.split_once("]: ")).map(|(_, link)| link);
    for link in inline.chain(definitions) {
        let (path, wanted) = link.split_once('#').unwrap_or((link, ""));
        if link.starts_with("https://") || link.starts_with("http://") || link.contains(char::is_whitespace) {
            continue;
        }
        let target = if path.is_empty() { page.to_owned() } else { page.with_file_name(path) };
        if target.is_dir() {
            continue;
        }
        let Ok(text) = fs::read_to_string(&target) else {
            complaints.push(format!("{link}: there is no such file"));
            continue;
        };
        let mut headings = text.lines().filter(|line| line.starts_with('#')).map(|line| line.trim_start_matches('#'));
        if !wanted.is_empty() && !headings.any(|heading| anchor(heading) == wanted) {
            complaints.push(format!("{link}: there is no such heading"));
        }
    }
    complaints
}

#[test]
fn links_of_the_documentation_lead_somewhere() {
    let mut pages = pages();
    pages.extend(measurements());
    let docs = workspace_root().join("docs");
    pages.extend(
        ["format/erofs.md", "format/squashfs.md", "../ARCHITECTURE.md", "../CONTRIBUTING.md"]
            .map(|page| docs.join(page)),
    );
    check_rows(&pages, |page| page.display().to_string(), |page| broken_links(page));
}
