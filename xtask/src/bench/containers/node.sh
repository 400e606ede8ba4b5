use_erofs_differ
cat >> /run/config.toml <<END
[proxy_plugins.stargz]
  type = "snapshot"
  address = "/run/stargz.sock"
END
# containerd's differ finds Floe under the name mkfs.erofs.
use_mkfs_of_floe() {
    mkdir -p /run/bin
    ln -s /run/floe/floe /run/bin/mkfs.erofs
    PATH=/run/bin:$PATH
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
