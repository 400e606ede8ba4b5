//! `floe convert --record`: a command runs in the image, and what it reads becomes the profiles of the layers.

use std::{
    fs::{self, Permissions},
    os::unix::fs::PermissionsExt,
    path::Path,
    process::{Command, Output},
};

use floe::{FormatImage, Image, OpenOptions};
use floe_testkit::skip::{self, Need};
use serde_json::Value;

use crate::support::{
    container_image::{add_programs, blob, make_layers, make_layout, named, read},
    program::{floe, run, said},
};

/// Reads a file of the lowest and one of the second layer.
const COMMAND: &str = "read line < /etc/config; [ ${#line} = 50 ] && [ ! -e /etc/gone ] && mkdir /new && [ $$ -lt 9 ]";

/// The layers of the image for this machine with EROFS layers in a layout.
fn layers(layout: &Path) -> Vec<Value> {
    let index = named(layout, "app");
    let entries = index["manifests"].as_array().expect("a list");
    let entry = entries.iter().find(|entry| entry["platform"]["os.features"] == serde_json::json!(["erofs"]));
    read(layout, entry.expect("it was converted"))["layers"].as_array().expect("a list").clone()
}

/// The profile in a layer; empty if it has none.
fn profile(layout: &Path, layer: &Value) -> String {
    let image = Image::open(blob(layout, layer), &OpenOptions::default()).expect("an image");
    let FormatImage::Erofs(erofs) = image.format_image() else { panic!("it is EROFS") };
    let profile = erofs.launch_profile().expect("it can be read");
    String::from_utf8(profile.unwrap_or_default()).expect("text")
}

fn check_layers(recorded: &Path, plain: &Path) {
    let (recorded_layers, plain_layers) = (layers(recorded), layers(plain));
    let [one, two, three] = &recorded_layers[..] else { panic!("{recorded_layers:?}") };
    let (one, two) = (profile(recorded, one), profile(recorded, two));
    assert!(one.lines().any(|line| line.ends_with(" /bin/sh") && !line.starts_with("name")), "{one}");
    assert!(two.lines().any(|line| line == "0 50 /etc/config"), "{two}");
    assert!(!one.contains("/bin/tool") && !two.contains("/opaque/new"), "{one}{two}");
    // A layer that the launch does not read is the same as without it.
    assert_eq!((profile(recorded, three), &three["digest"]), (String::new(), &plain_layers[2]["digest"]));
    assert_eq!(profile(plain, &plain_layers[0]), "");
}

fn expect_success(output: &Output) {
    assert!(output.status.success(), "{}", said(output));
}

#[test]
fn a_launch_is_recorded_in_the_image() {
    if !skip::ready(&[Need::Root, Need::Fuse]) {
        return;
    }
    let scene = tempfile::tempdir().expect("a folder");
    let folder = scene.path();
    add_programs(folder, &["sh", "mkdir"]);
    make_layers(folder);
    make_layout(folder);
    let convert = |arguments: &[&str]| {
        run(floe().args(["convert", "--platform", "linux/amd64", "layout"]).args(arguments).current_dir(folder))
    };
    expect_success(&convert(&["plain"]));
    let command = ["--record", "--", "/bin/sh", "-c", COMMAND];
    expect_success(&convert(&[&["recorded"], &command[..]].concat()));
    check_layers(&folder.join("recorded"), &folder.join("plain"));
    // With the same profile, nothing is built again.
    fs::write(folder.join("profile"), "# floe profile 1\n0 50 /opaque/third\n").expect("written");
    for built in [3, 0] {
        let output = convert(&["profiled", "--json", "--profile", "profile"]);
        let summary: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", said(&output)));
        assert_eq!(summary["layers_built"], built, "{summary}");
    }
    let profiles: Vec<String> =
        layers(&folder.join("profiled")).iter().map(|layer| profile(&folder.join("profiled"), layer)).collect();
    assert_eq!(profiles, ["", "", "# floe profile 1\n0 50 /opaque/third\n"]);
    // The image names a program that is none; others fail, or do not exist.
    for (arguments, reason) in [
        (&["other", "--record"][..], "/bin/tool failed in the image"),
        (&["other", "--record", "--", "/bin/sh", "-c", "exit 7"], "/bin/sh failed in the image"),
        (&["other", "--record", "--", "/bin/none"], "/bin/none"),
        (&["other", "--record", "--profile", "x"], "cannot be used with"),
        (&["other", "--", "/bin/sh"], "--record"),
        (&["other", "--profile", "layout/index.json"], "the first line of a profile"),
    ] {
        let output = convert(arguments);
        assert!(!output.status.success() && said(&output).contains(reason), "{arguments:?}: {}", said(&output));
        assert!(!folder.join("other/index.json").exists(), "{arguments:?}");
    }
    let mounts = fs::read_to_string("/proc/self/mountinfo").expect("there is /proc");
    assert!(!mounts.contains("floe-convert-"), "{mounts}");
}

#[test]
fn a_user_records_a_launch() {
    if !skip::ready(&[Need::Root, Need::Fuse, Need::Peer("unshare"), Need::Peer("setpriv")]) {
        return;
    }
    let scene = tempfile::tempdir().expect("a folder");
    let folder = scene.path();
    add_programs(folder, &["sh", "mkdir"]);
    make_layers(folder);
    make_layout(folder);
    fs::set_permissions(folder, Permissions::from_mode(0o777)).expect("set");
    fs::create_dir(folder.join("tmp")).expect("made");
    fs::set_permissions(folder.join("tmp"), Permissions::from_mode(0o1777)).expect("set");
    expect_success(&run(floe().args(["convert", "--platform", "linux/amd64", "layout", "plain"]).current_dir(folder)));
    // The device is open to all users on other machines.
    let device = "mknod -m 666 fuse c 10 229 && mount --bind fuse /dev/fuse && exec setpriv \"$@\"";
    let mut convert = Command::new("unshare");
    convert.args(["--mount", "--propagation", "private", "sh", "-c", device, "setpriv"]);
    convert.args(["--reuid", "65534", "--regid", "65534", "--clear-groups"]).arg(env!("CARGO_BIN_EXE_floe"));
    convert.args([
        "convert",
        "--platform",
        "linux/amd64",
        "layout",
        "recorded",
        "--record",
        "--",
        "/bin/sh",
        "-c",
        COMMAND,
    ]);
    expect_success(&run(convert.env("TMPDIR", folder.join("tmp")).current_dir(folder)));
    check_layers(&folder.join("recorded"), &folder.join("plain"));
    assert_eq!(fs::read_dir(folder.join("tmp")).expect("there").count(), 0);
}
