# The data of containerd, of the snapshotter and of their cache is in $data.
PATH=/run/floe:/usr/sbin:/usr/bin:/sbin:/bin
export CONTAINERD_ADDRESS=/run/containerd/containerd.sock FLOE_SERVICE=/run/service/socket
cat > /run/config.toml <<END
version = 3
root = "$data/containerd-root"
state = "/run/containerd"
disabled_plugins = ["io.containerd.grpc.v1.cri", "io.containerd.cri.v1.images", "io.containerd.cri.v1.runtime"]
[proxy_plugins.floe]
  type = "snapshot"
  address = "/run/snapshotter.sock"
  capabilities = ["remap-ids"]
  [proxy_plugins.floe.exports]
    root = "$data/snapshots"
    enable_remote_snapshot_annotations = "true"
[[plugins."io.containerd.transfer.v1.local".unpack_config]]
  platform = "linux"
  snapshotter = "overlayfs"
[[plugins."io.containerd.transfer.v1.local".unpack_config]]
  platform = "linux"
  snapshotter = "floe"
END
# Before the start of containerd: its differ for EROFS unpacks layers, also for its own EROFS snapshotter.
use_erofs_differ() {
    cat >> /run/config.toml <<END
  differ = "erofs"
[[plugins."io.containerd.transfer.v1.local".unpack_config]]
  platform = "linux"
  snapshotter = "erofs"
  differ = "erofs"
[plugins."io.containerd.service.v1.diff-service"]
  default = ["erofs", "walking"]
END
}
start_service() {
    : > /run/served
    floe serve > /run/served 2>> /run/service.log < /dev/null &
    service=$!
    until grep -q serving /run/served; do kill -0 $service; sleep 0.05; done
}
start_snapshotter() {
    : > /run/snapshotter.log
    floe snapshotter ${twins-} --address /run/snapshotter.sock --root "$data/snapshots" "$@" -- --cache-directory "$data/cache" \
        ${mount_options-} > /run/snapshotter.log 2>&1 < /dev/null &
    snapshotter=$!
    until grep -q serving /run/snapshotter.log; do kill -0 $snapshotter; sleep 0.05; done
    # After a failed attempt, containerd waits before it connects again.
    while kill -0 ${containerd:-none} 2> /run/said && ! ctr snapshots --snapshotter floe ls > /run/said 2>&1; do sleep 0.05; done
}
start_containerd() {
    containerd --config /run/config.toml >> /run/containerd.log 2>&1 < /dev/null &
    containerd=$!
    until ctr version > /run/version 2>&1 < /dev/null; do kill -0 $containerd; sleep 0.1; done
}
# Pulls an image for a snapshotter. If $registry is set, the image is one of that registry.
pull() {
    ctr images pull --plain-http --snapshotter "$1" "${registry+$registry/}$2" > /run/pull.log 2>&1 < /dev/null ||
        { cat /run/pull.log >&2; exit 1; }
}
