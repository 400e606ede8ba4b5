//! Layers that are converted after containerd has unpacked them.

use floe_testkit::skip::{self, Need};

use super::{registry, run_script};
use crate::support::container_root::ContainerRoot;

#[test]
fn unpacked_layers_are_converted_in_the_background() {
    if !skip::ready(&[Need::Root, Need::Fuse, Need::ContainerRoot, Need::Peer("docker-registry")]) {
        return;
    }
    let root = ContainerRoot::new();
    let scene = tempfile::tempdir().expect("a folder");
    let server = registry(scene.path());
    let script = r#"
converts() { start_snapshotter --convert-in-background 1G; }
crash() {
    kill -9 $snapshotter
    wait $snapshotter || true
}
kill $snapshotter
wait $snapshotter || true
converts
pull overlayfs both:v1
tree overlayfs both:v1 plain
pull floe both:v1
ctr containers create --snapshotter floe "$registry/both:v1" before /bin/sh -c :
# Conversions continue after crashes.
for pause in 0 0.03 0.1; do
    crash
    converts
    sleep $pause
done
images() { ls /run/snapshots/snapshots/*/converted.erofs 2> /run/said | wc -l; }
until [ "$(images)" = 3 ]; do kill -0 $snapshotter; sleep 0.05; done
# The record follows the image.
until [ "$(grep -l '"converted":[0-9]' /run/snapshots/records/* | wc -l)" = 3 ]; do kill -0 $snapshotter; sleep 0.05; done
mounted() { grep -c ' /run/snapshots/snapshots/[0-9]*/converted ' /proc/self/mountinfo || true; }
[ "$(mounted)" = 0 ]
# New snapshots use the images, and that of an earlier container uses the directories.
tree floe both:v1 converted
cmp /run/overlayfs-plain.tar /run/floe-converted.tar
[ "$(mounted)" = 3 ]
lower() { ctr snapshots --snapshotter floe mounts /run/tree "$1" | tr ':,= ' '\n' | grep -c "/$2\$" || true; }
[ "$(lower before fs) $(lower before converted)" = '4 0' ]
in_container floe both:v1 'read first < /etc/config; [ ${#first} = 50 ] && echo > /new && [ ! -e /etc/gone ]'
collect() { ctr leases create --id collect > /run/said && ctr leases delete --sync collect > /run/said; }
collect
for image in /run/snapshots/snapshots/*/converted.erofs; do [ -d "${image%/*}/fs" ]; done
# Without that container, the directories are removed.
ctr containers rm before
collect
for image in /run/snapshots/snapshots/*/converted.erofs; do [ ! -e "${image%/*}/fs" ]; done
tree floe both:v1 alone
cmp /run/overlayfs-plain.tar /run/floe-alone.tar
crash
start_snapshotter
# Mounts that are gone, as after a restart of the machine, are mounted again.
for directory in /run/snapshots/snapshots/*/converted; do umount -l "$directory"; done
in_container floe both:v1 'read first < /etc/config; [ ${#first} = 50 ]'
# Nothing is left of images that are removed.
ctr images rm --sync "$registry/both:v1" > /run/removed
refuse sh -c 'ctr snapshots --snapshotter floe ls | grep Committed'
[ -z "$(ls /run/snapshots/snapshots /run/snapshots/records | grep -v :)" ]
refuse grep /run/snapshots /proc/self/mountinfo
kill $snapshotter
wait $snapshotter
"#;
    run_script(&root, scene.path(), server.port, script);
}
