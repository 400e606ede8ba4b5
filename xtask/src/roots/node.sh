# A Debian system, base.tar, becomes an image, in which apt-get and other programs change the system: each change is a layer, which umoci
# makes of the difference. Then the image is pushed and mounted in several ways.
umoci init --layout layout
umoci new --image layout:root
umoci raw add-layer --image layout:root base.tar
umoci unpack --image layout:root bundle
rm base.tar
system=bundle/rootfs
# Services do not start in a container without an init system.
mkdir -p $system/usr/sbin
printf '#!/bin/sh\nexit 101\n' > $system/usr/sbin/policy-rc.d
chmod 755 $system/usr/sbin/policy-rc.d
[ ! -d $system/etc/apt ] || cp resolv.conf $system/etc/resolv.conf
change() {
    mount -t proc proc $system/proc
    [ ! -d $system/var/cache/apt/archives ] || mount --bind packages $system/var/cache/apt/archives
    env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C DEBIAN_FRONTEND=noninteractive chroot $system /bin/sh -euc "$1" >&2 < /dev/null
    umount $system/var/cache/apt/archives 2> /run/said || true
    umount $system/proc
    umoci repack --refresh-bundle --image layout:root bundle
}
install() { apt="apt-get -q -y --no-install-recommends" && change "$apt update && $apt install $1"; }
serve_registry() {
    cat > /run/registry.yml <<CONFIGURATION
version: 0.1
log: {level: error}
storage: {filesystem: {rootdirectory: /run/scene/registry}}
http: {addr: '$registry'}
CONFIGURATION
    docker-registry serve /run/registry.yml > /run/registry.log 2>&1 < /dev/null &
    until curl --silent --fail --output /run/said "http://$registry/v2/"; do kill -0 $!; sleep 0.05; done
}
# Mounts the image with each program below /run/trees.
mount_trees() {
    for tree in overlayfs floe merged mkfs; do mkdir -p /run/trees/$tree; done
    manifest=layout/blobs/sha256/$(jq -r '.manifests[0].digest' layout/index.json | cut -d: -f2)
    layers=$(jq -r '.layers[].digest' "$manifest" | sed 's|sha256:|layout/blobs/sha256/|')
    serve_registry
    floe convert --quiet layout "oci://$registry/root:plain"
    floe convert --quiet --only-converted --containerd-2.1 layout "oci://$registry/root:erofs"
    floe convert --quiet --only-converted --merged layout "oci://$registry/root:merged"
    floe mkfs --quiet --whiteouts built.erofs $layers
    start_containerd
    start_snapshotter
    pull overlayfs root:plain
    ctr images mount --snapshotter overlayfs "$registry/root:plain" /run/trees/overlayfs >&2
    pull floe root:erofs
    ctr images mount --snapshotter floe "$registry/root:erofs" /run/trees/floe >&2
    [ "$(grep -c ' /run/scene/snapshots/snapshots/[0-9]*/fs ' /proc/self/mountinfo)" = "$(echo "$layers" | wc -l)" ]
    floe mount --daemon --cache-directory cache "oci://$registry/root:merged" /run/trees/merged >&2
    floe mount --daemon built.erofs /run/trees/mkfs >&2
}
