PATH=/run/floe:/usr/sbin:/usr/bin:/sbin:/bin
export CONTAINERD_ADDRESS=/run/containerd/containerd.sock FLOE_SERVICE=/run/service/socket
cat > /run/config.toml <<END
version = 3
root = "/run/scene/containerd"
state = "/run/containerd"
disabled_plugins = ["io.containerd.grpc.v1.cri", "io.containerd.cri.v1.images", "io.containerd.cri.v1.runtime"]
[proxy_plugins.floe]
  type = "snapshot"
  address = "/run/snapshotter.sock"
  [proxy_plugins.floe.exports]
    root = "/run/scene/snapshots"
    enable_remote_snapshot_annotations = "true"
[proxy_plugins.stargz]
  type = "snapshot"
  address = "/run/stargz.sock"
[[plugins."io.containerd.transfer.v1.local".unpack_config]]
  platform = "linux"
  snapshotter = "overlayfs"
[[plugins."io.containerd.transfer.v1.local".unpack_config]]
  platform = "linux"
  snapshotter = "floe"
[[plugins."io.containerd.transfer.v1.local".unpack_config]]
  platform = "linux"
  snapshotter = "erofs"
  differ = "erofs"
[plugins."io.containerd.service.v1.diff-service"]
  default = ["erofs", "walking"]
END
start_service() {
    : > /run/served
    floe serve > /run/served 2>&1 < /dev/null &
    until grep -q serving /run/served; do kill -0 $!; sleep 0.05; done
}
start_snapshotter() {
    : > /run/snapshotter.log
    floe snapshotter --address /run/snapshotter.sock --root /run/scene/snapshots -- --cache-directory /run/scene/cache \
        > /run/snapshotter.log 2>&1 < /dev/null &
    until grep -q serving /run/snapshotter.log; do kill -0 $!; sleep 0.05; done
}
start_stargz() {
    cat > /run/stargz.toml <<END
[[resolver.host."$1".mirrors]]
  host = "$1"
  insecure = true
END
    ./containerd-stargz-grpc --log-level warn --address /run/stargz.sock --config /run/stargz.toml --root /run/scene/stargz \
        > /run/stargz.log 2>&1 < /dev/null &
    until [ -S /run/stargz.sock ]; do kill -0 $!; sleep 0.05; done
}
start_containerd() {
    containerd --config /run/config.toml > /run/containerd.log 2>&1 < /dev/null &
    until ctr version > /run/version 2>&1 < /dev/null; do kill -0 $!; sleep 0.1; done
}
pull() {
    ctr images pull --plain-http --snapshotter "$1" "$2" > /run/pull.log 2>&1 < /dev/null || { cat /run/pull.log >&2; exit 1; }
}
# Runs a program in a container that lasts until it is ended.
run() {
    snapshotter=$1 image=$2 container=$3
    shift 3
    (ctr run --rm --snapshotter "$snapshotter" "$image" "$container" "$@" < /dev/null || echo failed) &
    job=$!
}
end() {
    ctr task kill --signal KILL "$1"
    wait $job || true
}
pull_stargz() {
    ctr-remote images rpull --plain-http "$1" > /run/pull.log 2>&1 < /dev/null || { cat /run/pull.log >&2; exit 1; }
}
wait_for_go() {
    echo ready
    read -r line
}
