//! `floe snapshotter` with a real containerd.

mod background;
mod recorded;
mod survival;

use std::path::Path;

use floe_testkit::{
    CONTAINERD_NODE,
    skip::{self, Need},
};

use crate::support::{
    container_image::{add_programs, make_layers, make_layout},
    container_root::ContainerRoot,
    program::{floe, run},
    servers::RealServer,
};

/// Reports errors, and has one place for data, before [`CONTAINERD_NODE`].
const PREPARE: &str = r#"
exec 2>&1
trap 'status=$?; [ $status = 0 ] || { echo "status $status"; tail -n 40 /run/*.log; }; exit $status' EXIT
data=/run
"#;

/// Starts containerd and the snapshotter after [`CONTAINERD_NODE`]. `$registry` has the images `plain` and `erofs`.
const START: &str = r#"
# Most tests have ordinary layers that are unpacked.
twins=--no-twins
start_snapshotter
start_containerd
refuse() { if "$@"; then exit 1; fi; }
# The control groups of containers are those of the machine, where other tests have theirs.
name=test-${registry##*:}
# Runs a shell command in a container. The status tells that it was reached: ctr loses output of containers that end at once.
in_container() {
    status=0
    ctr run --rm --snapshotter "$1" "$registry/$2" $name /bin/sh -c "$3 && exit 3" || status=$?
    [ $status = 3 ]
}
# All that a tree has, in the order of its names: attributes, times, contents. containerd does not set the time of the root.
tree() {
    mkdir -p /run/tree
    ctr images mount --snapshotter "$1" "$registry/$2" /run/tree > /run/mounted
    (cd /run/tree && tar --create --sort=name --format=pax --xattrs --xattrs-include='*' --numeric-owner \
        --pax-option=delete=atime,delete=ctime --file "/run/$1-$3.tar" -- $(ls -A))
    stat --format '%f %u %g' /run/tree >> "/run/$1-$3.tar"
    ctr images unmount --snapshotter "$1" --rm /run/tree > /run/unmounted
}
"#;

/// A registry with an image whose layers are archives, `both`, which also has EROFS layers, the same with EROFS layers that refer to it,
/// `refer`, with these alone, `erofs`, with one EROFS layer, `merged`, and with EROFS layers that have a launch profile, `launch`.
fn registry(folder: &Path) -> RealServer {
    add_programs(folder, &["sh", "cksum", "dd"]);
    make_layers(folder);
    make_layout(folder);
    std::fs::write(folder.join("profile"), "# floe profile 1\n0 300000 /bin/tool\n0 100 /opaque/new\n")
        .expect("written");
    let server = RealServer::registry();
    let url = |name: &str| format!("oci://localhost:{}/{name}:v1", server.port);
    for (target, options) in [
        ("both", &[][..]),
        ("refer", &["--referrers"]),
        ("erofs", &["--only-converted", "--containerd-2.1"]),
        ("merged", &["--only-converted", "--containerd-2.1", "--merged"]),
        ("launch", &["--only-converted", "--containerd-2.1", "--profile", "profile"]),
    ] {
        let mut convert = floe();
        convert.args(["convert", "--quiet", "--platform", "linux/amd64", "layout"]).arg(url(target)).args(options);
        let output = run(convert.current_dir(folder));
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
    server
}

/// Runs a script after [`START`], with the registry at a port.
fn run_script(root: &ContainerRoot, folder: &Path, port: u16, script: &str) {
    let output = root.run(folder, &format!("{PREPARE}registry=localhost:{port}\n{CONTAINERD_NODE}{START}\n{script}"));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn containerd_runs_layers_that_are_mounted_from_a_registry() {
    if !skip::ready(&[Need::Root, Need::Fuse, Need::ContainerRoot, Need::Peer("docker-registry")]) {
        return;
    }
    let root = ContainerRoot::new();
    let scene = tempfile::tempdir().expect("a folder");
    let server = registry(scene.path());
    let script = r#"
pull overlayfs both:v1
pull floe both:v1
tree overlayfs both:v1 plain
tree floe both:v1 plain
cmp /run/overlayfs-plain.tar /run/floe-plain.tar
pull floe erofs:v1
index=$(ctr images ls | grep erofs:v1 | grep -o 'sha256:[0-9a-f]*')
manifest=$(ctr content get "$index" | jq -r '.manifests[0].digest')
layers=$(ctr content get "$manifest" | jq -r '.layers[].digest')
[ "$(echo "$layers" | wc -l)" = 3 ]
for layer in $layers; do refuse ctr content get "$layer" > /run/content 2>&1; done
[ "$(ctr snapshots --snapshotter floe ls | grep -c Committed)" = 6 ]
[ "$(grep -c ' /run/snapshots/snapshots/[0-9]*/fs ' /proc/self/mountinfo)" = 3 ]
tree floe erofs:v1 erofs
cmp /run/overlayfs-plain.tar /run/floe-erofs.tar
pull floe launch:v1
tree floe launch:v1 launch
cmp /run/overlayfs-plain.tar /run/floe-launch.tar
ctr images rm --sync "$registry/launch:v1" > /run/removed
for image in both erofs; do
    in_container floe $image:v1 'read first < /etc/config; [ ${#first} = 50 ] && echo > /new && [ ! -e /etc/gone ]'
done
# The snapshotter can be replaced, also after a crash.
kill -9 $snapshotter
wait $snapshotter || true
start_snapshotter
tree floe erofs:v1 again
cmp /run/overlayfs-plain.tar /run/floe-again.tar
in_container floe erofs:v1 'read first < /etc/config; [ ${#first} = 50 ]'
# Layers whose processes were killed are mounted again for the next container.
killed=$(pgrep -f 'mount --daemon')
kill -9 $killed
in_container floe erofs:v1 'read first < /etc/config; [ ${#first} = 50 ]'
# Mounts that are gone, as after a restart of the machine, are mounted again.
for directory in /run/snapshots/snapshots/*/fs; do umount -l "$directory" || true; done
in_container floe erofs:v1 'read first < /etc/config; [ ${#first} = 50 ]'
# Nothing is left of images that are removed.
ctr images rm --sync "$registry/erofs:v1" "$registry/both:v1" > /run/removed
refuse sh -c 'ctr snapshots --snapshotter floe ls | grep Committed'
[ -z "$(ls /run/snapshots/snapshots /run/snapshots/records | grep -v :)" ]
refuse grep /run/snapshots /proc/self/mountinfo
kill $snapshotter
wait $snapshotter
"#;
    run_script(&root, scene.path(), server.port, script);
}

#[test]
fn containerds_erofs_differ_calls_floe() {
    if !skip::ready(&[Need::Root, Need::Fuse, Need::KernelErofs, Need::ContainerRoot, Need::Peer("docker-registry")]) {
        return;
    }
    let root = ContainerRoot::new();
    let scene = tempfile::tempdir().expect("a folder");
    let server = registry(scene.path());
    // containerd finds Floe under the name mkfs.erofs. Its own snapshotter mounts what that builds, and so does Floe's.
    let script = r#"
kill $containerd $snapshotter
wait $containerd $snapshotter || true
mkdir /run/bin
ln -s /run/floe/floe /run/bin/mkfs.erofs
PATH=/run/bin:$PATH
use_erofs_differ
start_snapshotter --convert
start_containerd
pull overlayfs both:v1
tree overlayfs both:v1 plain
for snapshotter in erofs floe; do
    pull $snapshotter both:v1
    tree $snapshotter both:v1 converted
    cmp /run/overlayfs-plain.tar /run/$snapshotter-converted.tar
    in_container $snapshotter both:v1 'read first < /etc/config; [ ${#first} = 50 ]'
done
[ "$(ls /run/snapshots/snapshots/*/layer.erofs | wc -l)" = 3 ]
[ "$(ls /run/containerd-root/io.containerd.snapshotter.v1.erofs/snapshots/*/layer.erofs | wc -l)" = 3 ]
ctr images rm --sync "$registry/both:v1" > /run/removed
refuse grep /run/snapshots /proc/self/mountinfo
"#;
    run_script(&root, scene.path(), server.port, script);
}

#[test]
fn ordinary_images_have_converted_twins() {
    if !skip::ready(&[Need::Root, Need::Fuse, Need::ContainerRoot, Need::Peer("docker-registry")]) {
        return;
    }
    let root = ContainerRoot::new();
    let scene = tempfile::tempdir().expect("a folder");
    let server = registry(scene.path());
    let script = r#"
kill $snapshotter
wait $snapshotter || true
twins=
start_snapshotter
mounted() { grep -c ' /run/snapshots/snapshots/[0-9]*/fs ' /proc/self/mountinfo || true; }
remove() {
    ctr images rm --sync "$@" > /run/removed
    [ "$(mounted)" = 0 ]
}
# containerd takes the manifest of the original, whose layers it does not fetch. In one image, the index also has the converted one; in
# the other, that refers to the original.
for image in both refer; do
    pull floe $image:v1
    [ "$(mounted)" = 3 ]
    index=$(ctr images ls | grep $image:v1 | grep -o 'sha256:[0-9a-f]*')
    manifest=$(ctr content get "$index" | jq -r '.manifests[] | select(.platform.architecture == "amd64") | .digest' | head -n 1)
    for layer in $(ctr content get "$manifest" | jq -r '.layers[].digest'); do refuse ctr content get "$layer" > /run/content 2>&1; done
    in_container floe $image:v1 'read first < /etc/config; [ ${#first} = 50 ] && [ ! -e /etc/gone ]'
    tree floe $image:v1 $image
    remove "$registry/$image:v1"
done
# A digest does not pin what refers to it.
pull floe "refer@$index"
[ "$(mounted)" = 0 ]
remove "$registry/refer@$index"
kill $snapshotter
wait $snapshotter || true
start_snapshotter --trust-referrers
pull floe "refer@$index"
[ "$(mounted)" = 3 ]
remove "$registry/refer@$index"
pull overlayfs both:v1
tree overlayfs both:v1 plain
for image in both refer; do cmp /run/overlayfs-plain.tar /run/floe-$image.tar; done
refuse grep /run/snapshots /proc/self/mountinfo
"#;
    run_script(&root, scene.path(), server.port, script);
}

#[test]
fn user_namespaces_of_containers_see_their_own_owners() {
    if !skip::ready(&[Need::Root, Need::Fuse, Need::ContainerRoot, Need::Peer("docker-registry")]) {
        return;
    }
    let root = ContainerRoot::new();
    let scene = tempfile::tempdir().expect("a folder");
    let server = registry(scene.path());
    // Layers that are mounted, and layers that are unpacked.
    let script = r#"
mapped() {
    status=0
    ctr run --rm --snapshotter floe --remap-labels --uidmap "0:$2:65536" --gidmap "0:$2:65536" "$registry/$1" $name \
        /bin/sh -c "$3 && exit 3" || status=$?
    [ $status = 3 ]
}
for image in erofs:v1 both:v1; do
    pull floe $image
    # The root of the namespace has the files of root, and can change them.
    mapped $image 100000 '[ -O /etc/config ] && [ -G /etc ] && [ -u /bin/tool ] && [ ! -O /opaque/new ] &&
        echo > /etc/config && echo > /new && [ -O /new ] && : > /opaque/third'
    # Each namespace has its own owners, and so has a container without one.
    mapped $image 200000 '[ -O /etc/config ] && [ -s /opaque/third ]'
    in_container floe $image '[ -O /etc/config ] && [ -s /opaque/third ]'
done
refuse ctr run --rm --snapshotter floe --remap-labels --uidmap 0:100000:65536 --gidmap 5:100000:65536 "$registry/erofs:v1" $name \
    /bin/sh -c : > /run/said 2>&1
ctr images rm --sync "$registry/erofs:v1" "$registry/both:v1" > /run/removed
[ -z "$(ls /run/snapshots/snapshots /run/snapshots/records | grep -v :)" ]
refuse grep /run/snapshots /proc/self/mountinfo
"#;
    run_script(&root, scene.path(), server.port, script);
}
