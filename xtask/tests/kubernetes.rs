//! The manifests for Kubernetes, checked with its schemas: `pip install kubernetes-validate`.
#![allow(clippy::disallowed_macros, reason = "tests may print")]

use std::{
    fs,
    path::Path,
    process::{Command, Output},
};

use floe_testkit::{skip, workspace_root};

/// The versions of Kubernetes that the manifests are for.
const VERSIONS: [&str; 2] = ["1.33", "1.35"];

/// Validates files strictly: an unknown field is an error. A program, because the package's own one reads no standard input.
const VALIDATE: &str = "
import sys, yaml, kubernetes_validate
version, *paths = sys.argv[1:]
for path in paths:
    documents = [document for document in yaml.safe_load_all(open(path)) if document]
    assert documents, path
    for document in documents:
        try:
            kubernetes_validate.validate(document, version, strict=True)
        except kubernetes_validate.ValidationError as error:
            sys.exit(f'{path}: {document[\"kind\"]}: {error.message}')
";

fn validate(version: &str, paths: &[&Path]) -> Output {
    Command::new("python3").args(["-c", VALIDATE, version]).args(paths).output().expect("python3 runs")
}

fn has_schemas() -> bool {
    let found = Command::new("python3").args(["-c", "import kubernetes_validate, yaml"]).output();
    found.is_ok_and(|output| output.status.success())
}

#[test]
fn manifests_follow_the_schemas() {
    if !has_schemas() {
        return skip::skipped("there is no Python package kubernetes-validate");
    }
    let folder = workspace_root().join("packaging/kubernetes");
    let manifests: Vec<_> =
        ["node.yaml", "cri-snapshotter.yaml", "image-volume.yaml"].map(|name| folder.join(name)).into();
    let paths: Vec<&Path> = manifests.iter().map(AsRef::as_ref).collect();
    let scene = tempfile::tempdir().expect("a folder");
    let broken = scene.path().join("broken.yaml");
    for version in VERSIONS {
        let output = validate(version, &paths);
        assert!(output.status.success(), "{version}: {}", String::from_utf8_lossy(&output.stderr));
        // The check finds what it is for.
        for (manifest, from, to) in [
            ("node.yaml", "hostPID: true", "hostPid: true"),
            ("node.yaml", "containerPort: 9598", "containerPort: metrics"),
            ("cri-snapshotter.yaml", "handler: floe", "handlers: floe"),
            ("image-volume.yaml", "reference:", "name:"),
        ] {
            let text = fs::read_to_string(folder.join(manifest)).expect("a manifest");
            assert!(text.contains(from), "{manifest}: {from}");
            fs::write(&broken, text.replace(from, to)).expect("written");
            assert!(!validate(version, &[&broken]).status.success(), "{version}: {to}");
        }
    }
}

#[test]
fn the_image_has_what_the_manifests_and_the_installation_use() {
    let folder = workspace_root().join("packaging/kubernetes");
    let read = |name: &str| fs::read_to_string(folder.join(name)).expect(name);
    let (node, install, image) = (read("node.yaml"), read("install"), read("Containerfile"));
    for (text, expected) in [
        (&node, "/usr/libexec/floe-install"),
        (&node, "/opt/floe/bin/floe"),
        (&install, "/opt/floe/bin"),
        (&image, "packaging/kubernetes/install /usr/libexec/floe-install"),
        (&image, "packaging/floe.service packaging/floe.socket packaging/kubernetes/units /usr/share/floe/units/"),
    ] {
        assert!(text.contains(expected), "{expected}");
    }
    for unit in ["../floe.service", "../floe.socket", "units/floe-snapshotter.service"] {
        let name = Path::new(unit).file_name().and_then(|name| name.to_str()).expect("a name");
        assert!(folder.join(unit).is_file() && install.contains(name), "{unit}");
    }
    // A copy of the installation, with a root directory and a systemd of its own.
    let scene = tempfile::tempdir().expect("a folder");
    let path = |name: &str| scene.path().join(name);
    fs::create_dir_all(path("units")).expect("made");
    for unit in ["../floe.service", "../floe.socket", "units/floe-snapshotter.service"] {
        let source = folder.join(unit);
        fs::copy(&source, path("units").join(source.file_name().expect("a name"))).expect("copied");
    }
    fs::write(path("floe"), "program").expect("written");
    let script = install
        .replace("/usr/bin/floe >", &format!("{} >", path("floe").display()))
        .replace("/usr/share/floe/units", path("units").to_str().expect("text"))
        .replace("nsenter --target 1 --mount --uts --ipc --net --pid --", "echo");
    fs::write(path("install"), script).expect("written");
    for _ in 0..2 {
        let output = Command::new("sh").arg(path("install")).arg(path("host")).output().expect("sh runs");
        let (text, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success() && errors.is_empty(), "{errors}");
        assert_eq!(text.lines().nth(1), Some("systemctl enable --now floe.socket floe-snapshotter.service"));
    }
    assert_eq!(fs::read(path("host/opt/floe/bin/floe")).expect("installed"), b"program");
    assert_eq!(fs::read_dir(path("host/opt/floe/bin")).expect("there").count(), 1);
    let unit = fs::read_to_string(path("host/etc/systemd/system/floe-snapshotter.service")).expect("installed");
    assert!(unit.contains("ExecStart=/opt/floe/bin/floe snapshotter\n") && unit.contains("KillMode=process"), "{unit}");
    let configuration = fs::read_to_string(path("host/etc/containerd/conf.d/floe.toml")).expect("installed");
    let configuration: toml::Table = configuration.parse().expect("TOML");
    assert_eq!(configuration["proxy_plugins"]["floe"]["address"].as_str(), Some("/run/floe/snapshotter.sock"));
}
