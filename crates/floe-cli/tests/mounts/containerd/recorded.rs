//! `floe record --container`, and images that are converted with the profile.

use floe_testkit::skip::{self, Need};

use super::{registry, run_script};
use crate::support::container_root::ContainerRoot;

#[test]
fn the_reads_of_a_container_become_its_profile() {
    if !skip::ready(&[Need::Root, Need::Fuse, Need::ContainerRoot, Need::Peer("docker-registry")]) {
        return;
    }
    let root = ContainerRoot::new();
    let script = r#"
record() {
    : > /run/recorded
    floe record "$@" > /run/recorded 2>&1 &
    recorder=$!
}
# A container that starts while it is waited for.
pull floe erofs:v1
record --container first --output /run/first.profile
until grep -q waiting /run/recorded; do kill -0 $recorder; sleep 0.05; done
ctr run --rm --snapshotter floe "$registry/erofs:v1" first /bin/sh -c 'read line < /etc/config; [ ${#line} = 50 ] && [ ! -e /etc/none ]'
wait $recorder || { cat /run/recorded; exit 1; }
grep -q ' /etc/config$' /run/first.profile
grep -q '^missing /etc/none$' /run/first.profile
grep -q '^[0-9]* [0-9]* /bin/sh$' /run/first.profile
refuse grep -E 'third|tool' /run/first.profile
# One that runs already, until nothing new is read.
mkdir /run/share
ctr run --detach --snapshotter floe --mount "type=bind,src=/run/share,dst=/share,options=rbind:rw" "$registry/erofs:v1" second \
    /bin/sh -c 'until [ -e /share/go ]; do :; done; read line < /opaque/third; until [ -e /share/stop ]; do :; done'
record --container second --output /run/second.profile --drop-caches
until grep -q recording /run/recorded; do kill -0 $recorder; sleep 0.05; done
# A mount is recorded for one client at a time.
refuse floe record --container second --output /run/third.profile > /run/said 2>&1
touch /run/share/go
wait $recorder || { cat /run/recorded; exit 1; }
grep -q ' /opaque/third$' /run/second.profile
ctr tasks ls | grep -q '^second .*RUNNING'
# By its control group, for some time.
record --cgroup default/second --duration 1s --output /run/third.profile --drop-caches
until grep -q recording /run/recorded; do kill -0 $recorder; sleep 0.05; done
touch /run/share/stop
wait $recorder || { cat /run/recorded; exit 1; }
until ctr tasks ls | grep -q '^second .*STOPPED'; do sleep 0.05; done
ctr tasks rm second
ctr containers rm second
# Recording has no effect on other clients of the mounts, and none on later ones.
in_container floe erofs:v1 'read first < /etc/config; [ ${#first} = 50 ]'
refuse floe record --container none --output /run/third.profile --duration never 2> /run/said
# The converted image has the profile, in the layers that it is about, and the launch is replayed.
floe convert --quiet --only-converted --containerd-2.1 --profile /run/first.profile "oci://$registry/both:v1" "oci://$registry/launched:v1"
ctr images rm --sync "$registry/erofs:v1" > /run/removed
pull floe launched:v1
in_container floe launched:v1 'read first < /etc/config; [ ${#first} = 50 ]'
# The layers are mounted at the same time, in any order.
profiles=0 layers=0
for directory in $(grep -o '/run/snapshots/snapshots/[0-9]*/fs' /proc/self/mountinfo); do
    layers=$((layers + 1))
    [ "$(floe status $directory --json | jq -r '.launch.state')" = none ] || profiles=$((profiles + 1))
done
[ "$profiles of $layers" = "2 of 3" ] || { echo "$profiles of $layers"; exit 1; }
ctr images rm --sync "$registry/launched:v1" > /run/removed
"#;
    for service in ["", "start_service\n"] {
        let scene = tempfile::tempdir().expect("a folder");
        let server = registry(scene.path());
        run_script(&root, scene.path(), server.port, &format!("{service}{script}"));
    }
}
