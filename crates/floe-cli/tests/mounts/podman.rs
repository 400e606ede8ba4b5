//! `floe store` with a real Podman.

use std::{fs, os::unix::fs::PermissionsExt, path::Path};

use floe_testkit::{
    peer,
    skip::{self, Need},
};

use crate::support::{
    container_image::{add_shell, make_layers, make_layout},
    container_root::ContainerRoot,
    meter::Meter,
    program::{floe, run},
    servers::RealServer,
};

/// Bytes that no program reads, in the lowest layer.
const BALLAST_BYTES: usize = 20 << 20;

/// What a lazy pull and a run of the shell may fetch: documents, digest tables, metadata, and the shell with its libraries.
const LAZY_BYTES_MAX: u64 = 8 << 20;

/// What root does before [`START`]. crun refuses a machine that has both versions of control groups.
const PREPARE: &str = r#"
umount -R /sys/fs/cgroup && mount -t cgroup2 cgroup2 /sys/fs/cgroup
mkdir -p /run/home /run/bin
ln -s /run/floe/floe /run/bin/floe-store-auth
"#;

/// Settings of Podman, and functions. `$registry` has the images `both` and `erofs`; `$home` belongs to the user who runs this.
const START: &str = r#"
exec 2>&1
PATH=/run/bin:/run/floe:/usr/sbin:/usr/bin:/sbin:/bin
export HOME=$home XDG_RUNTIME_DIR=$home/run CONTAINERS_STORAGE_CONF=$home/storage.conf
export CONTAINERS_REGISTRIES_CONF=$home/registries.conf
mkdir -p $XDG_RUNTIME_DIR
trap 'status=$?; [ $status = 0 ] || cat $home/said $home/store.log; exit $status' EXIT
cat > $home/storage.conf <<END
[storage]
driver = "overlay"
runroot = "$home/runroot"
graphroot = "$home/graphroot"
[storage.options]
additionallayerstores = ["$home/layers:ref"]
END
cat > $home/registries.conf <<END
additional-layer-store-auth-helper = "/run/bin/floe-store-auth"
[[registry]]
location = "$registry"
insecure = true
END
start_store() {
    : > $home/store.log
    $unshare floe store $home/layers --root $home/store --cache-directory $home/cache "$@" > $home/store.log 2>&1 &
    store=$!
    until grep -q serving $home/store.log; do kill -0 $store; sleep 0.05; done
}
refuse() { if "$@"; then exit 1; fi; }
# Podman 5.8 does not store layers of an additional store, and loses them if another process, such as the one that cleans up after the
# container before, has changed the list of layers.
lazily() {
    attempts=0
    until "$@" 2> $home/said; do
        attempts=$((attempts + 1))
        [ $attempts -lt 20 ] && grep -q '^Error: .*layer not known' $home/said || { cat $home/said; exit 1; }
        sleep 0.2
    done
}
in_container() {
    lazily podman run --rm --network none --cgroups disabled --runtime crun "$registry/$1" /bin/sh -c "$2"
}
mounts() { $unshare grep -c " $home/store/[0-9a-f]*/diff " /proc/self/mountinfo || true; }
"#;

/// A registry with an image whose layers are archives, `both`, which also has EROFS layers behind them, and the same with EROFS layers
/// only, `erofs`.
fn registry(folder: &Path) -> RealServer {
    let server = RealServer::registry();
    add_shell(folder);
    make_layers(folder);
    make_layout(folder);
    push(folder, &server, &[]);
    server
}

fn push(folder: &Path, server: &RealServer, options: &[&str]) {
    let url = |name: &str| format!("oci://localhost:{}/{name}:v1", server.port);
    for (target, only) in [("both", None), ("erofs", Some("--only-converted"))] {
        let mut convert = floe();
        convert.args(["convert", "--quiet", "--platform", "linux/amd64", "layout"]).arg(url(target)).args(only);
        let output = run(convert.args(options).current_dir(folder));
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
}

/// Runs a script after [`START`], as root.
fn run_script(root: &ContainerRoot, folder: &Path, port: u16, script: &str) {
    let output =
        root.run(folder, &format!("{PREPARE}registry=localhost:{port}\nhome=/run/home\nunshare=\n{START}\n{script}"));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
}

fn is_ready() -> bool {
    skip::ready(&[Need::Root, Need::Fuse, Need::ContainerRoot, Need::Peer("docker-registry")])
}

#[test]
fn podman_runs_layers_that_it_did_not_pull() {
    if !is_ready() {
        return;
    }
    let root = ContainerRoot::new();
    let scene = tempfile::tempdir().expect("a folder");
    let folder = scene.path();
    let noise: Vec<u8> = (0..BALLAST_BYTES as u64).map(|place| (place.wrapping_mul(0x9e37_79b9) >> 13) as u8).collect();
    fs::create_dir_all(folder.join("one")).expect("made");
    fs::write(folder.join("one/ballast"), noise).expect("written");
    let server = registry(folder);
    let meter = Meter::before(server.port);
    let script = r#"
start_store
in_container erofs:v1 'read first < /etc/config; [ ${#first} = 50 ] && echo > /new && [ ! -e /etc/gone ]'
[ "$(mounts)" = 3 ]
"#;
    run_script(&root, folder, meter.port, script);
    assert!(meter.sent() < LAZY_BYTES_MAX, "{} bytes", meter.sent());
}

#[test]
fn containers_survive_the_store() {
    if !is_ready() {
        return;
    }
    let root = ContainerRoot::new();
    let scene = tempfile::tempdir().expect("a folder");
    let server = registry(scene.path());
    // Podman 5.8 forgets such layers when it ends, and looks them up again.
    let script = r#"
start_store
# Original manifests come first, and Podman pulls their layers.
podman pull -q "$registry/both:v1" > $home/said
[ "$(mounts)" = 0 ]
run='read first < /etc/config; [ ${#first} = 50 ] && [ ! -e /etc/gone ] && [ ! -e /opaque/old ] && echo > /new'
in_container both:v1 "$run"
in_container erofs:v1 "$run"
[ "$(mounts)" = 3 ]
lazily podman run -d --replace --name lives --network none --cgroups disabled --runtime crun "$registry/erofs:v1" \
    /bin/sh -c 'while [ ! -e /end ]; do read line < /opaque/third; done; exit 7' > $home/id
kill -9 $store
wait $store || true
start_store
in_container erofs:v1 "$run"
# Layers whose processes were killed are mounted again for the next container.
kill -9 $(pgrep -f 'mount --daemon')
podman rm -f lives > $home/said 2>&1
in_container erofs:v1 "$run"
# So are mounts that are gone, as after a restart of the machine.
kill $store
wait $store
refuse grep " $home/layers " /proc/self/mountinfo
[ "$(mounts)" = 3 ]
podman run -d --name lives --network none --cgroups disabled --runtime crun "$registry/erofs:v1" > $home/id 2> $home/said && exit 1
for directory in $home/store/*/diff; do umount -l $directory; done
start_store
in_container erofs:v1 "$run"
lazily podman run -d --replace --name lives --network none --cgroups disabled --runtime crun "$registry/erofs:v1" \
    /bin/sh -c 'while [ ! -e /end ]; do read line < /opaque/third; done; exit 7' > $home/id
kill $store
wait $store
podman exec lives /bin/sh -c 'echo > /end'
[ "$(podman wait lives 2> $home/said)" = 7 ]
podman rm lives > $home/said 2>&1
"#;
    run_script(&root, scene.path(), server.port, script);
}

#[test]
fn a_store_answers_only_for_layers_that_it_can_mount() {
    if !is_ready() {
        return;
    }
    let root = ContainerRoot::new();
    let scene = tempfile::tempdir().expect("a folder");
    let server = registry(scene.path());
    let script = r#"
start_store --outage wait:0s
name() { printf %s "$1" | base64 -w 0; }
said() { stat "$home/layers/$1" 2>&1 | grep -o '[A-Z][a-z/ ]*$' || true; }
digest=sha256:$(printf %064d 1)
manifest=$(curl -fsS -H 'Accept: application/vnd.oci.image.index.v1+json' "http://$registry/v2/erofs/manifests/v1" |
    jq -r '.manifests[0].digest')
layer=$(curl -fsS -H 'Accept: application/vnd.oci.image.manifest.v1+json' "http://$registry/v2/erofs/manifests/$manifest" |
    jq -r '.layers[0]')
toc=$(printf %s "$layer" | jq -r '.annotations."containerd.io/snapshot/stargz/toc.digest"')
image=$(name "$registry/erofs:v1")
# Layers that are not there, and names that are no images and no layers.
for path in "$image/$digest/diff" "$image/$digest/blob" "$image/$toc/use" "$image/$toc/other" \
    "$image/latest" "$image/../$image/SHA256:x" "$(name "$registry/erofs:v1#0")" "$(name ../../etc)" "$registry" "x%" \
    "$(name "$registry/missing:v1")/$toc/diff"; do
    case $(said "$path") in
    'No such file or directory') ;;
    'Input/output error') [ "$path" = "$(name "$registry/missing:v1")/$toc/diff" ] ;;
    *) echo "$path: $(said "$path")"; exit 1 ;;
    esac
done
[ "$(mounts)" = 0 ]
# The contract of containers/storage.
directory=$home/layers/$image/$toc
[ "$(jq -r '."toc-digest"' $directory/info)" = "$toc" ]
[ "$(jq -r '.flags."expected-layer-diffid"' $directory/info)" = "$(printf %s "$layer" | jq -r .digest)" ]
[ "$(jq -r '."compressed-size"' $directory/info)" = "$(printf %s "$layer" | jq -r .size)" ]
echo "$(printf %s "$layer" | jq -r .digest | cut -d: -f2)  $directory/blob" | sha256sum -c --quiet
[ -x $directory/diff/bin/tool ] && [ ! -e $directory/diff/absent ]
[ "$(mounts)" = 1 ]
use() { refuse sh -c "exec 2> $home/said; : > $directory/use"; grep -q 'No such file' $home/said || [ -s $home/said ]; }
release() { refuse rmdir $directory 2> $home/said; grep -q 'No such file or directory' $home/said; }
use; use; release
[ "$(mounts)" = 1 ]
[ "$(ls $home/layers)" = "$image" ] && [ "$(ls $home/layers/$image)" = "$toc" ]
release
[ "$(mounts)" = 0 ]
release
# Nothing else can be created, removed or changed.
refuse mkdir $home/layers/new 2> $home/said
refuse sh -c ": > $directory/new" 2> $home/said
refuse rmdir $home/layers/$image 2> $home/said
refuse sh -c "echo > $directory/info" 2> $home/said
# A second store cannot use the same state, nor can a registry that is gone make anybody wait.
refuse floe store $home/other --root $home/store > $home/said 2>&1
grep -q 'another store uses it' $home/said
[ "$(said "$(name localhost:1/app:v1)/$toc/diff")" = 'Input/output error' ]
grep -q 'localhost:1' $home/store.log
kill $store
wait $store
"#;
    run_script(&root, scene.path(), server.port, script);
}

#[test]
fn podman_passes_its_credentials_to_the_store() {
    if !is_ready() {
        return;
    }
    let root = ContainerRoot::new();
    let scene = tempfile::tempdir().expect("a folder");
    let folder = scene.path();
    add_shell(folder);
    make_layers(folder);
    make_layout(folder);
    // alice, with the password secret.
    fs::write(folder.join("users"), "alice:$2b$05$abcdefghijklmnopqrstuuOQiyCxlgf/oeuTqixKmWdcYUh4Hjl0a\n")
        .expect("written");
    let users = folder.join("users");
    let server = RealServer::registry_with(&format!("auth: {{htpasswd: {{realm: it, path: {}}}}}\n", users.display()));
    let login = format!(r#"{{"auths":{{"localhost:{}":{{"auth":"YWxpY2U6c2VjcmV0"}}}}}}"#, server.port);
    fs::write(folder.join("login.json"), login).expect("written");
    let file = folder.join("login.json");
    push(folder, &server, &["--auth-file", file.to_str().expect("text")]);
    let script = r#"
start_store --outage wait:0s
refuse podman pull -q "$registry/erofs:v1" > $home/said 2>&1
[ "$(mounts)" = 0 ]
podman login --username alice --password secret --authfile $home/login "$registry" > $home/said 2>&1
export REGISTRY_AUTH_FILE=$home/login
in_container erofs:v1 'read first < /etc/config; [ ${#first} = 50 ]'
[ "$(mounts)" = 3 ]
[ "$(stat -c %a /run/floe/store-auth)" = 700 ]
refuse sh -c 'echo "{" | floe-store-auth' 2> $home/said
grep -q 'the credentials on standard input' $home/said
kill $store
wait $store
"#;
    run_script(&root, folder, server.port, script);
}

#[test]
fn users_run_layers_that_they_did_not_pull() {
    if !is_ready() {
        return;
    }
    let root = ContainerRoot::new();
    let scene = tempfile::tempdir().expect("a folder");
    let folder = scene.path();
    fs::set_permissions(folder, fs::Permissions::from_mode(0o755)).expect("set");
    let server = registry(folder);
    for program in ["newuidmap", "newgidmap"] {
        if let Some(path) = peer(program) {
            fs::copy(path, folder.join(program)).expect("copied");
        }
    }
    fs::write(folder.join("as-user"), format!("set -eu\n{START}\n{USER}")).expect("written");
    let script = format!(
        r#"
{PREPARE}
cp new?idmap /run/bin && chmod 4755 /run/bin/new?idmap || true
for file in passwd subuid subgid; do cp /etc/$file /run/$file 2> /dev/null || : > /run/$file; done
echo 'alice:x:1000:1000::/run/home:/bin/sh' >> /run/passwd
[ ! -e /run/bin/newuidmap ] || for file in subuid subgid; do echo alice:100000:65536 >> /run/$file; done
for file in passwd subuid subgid; do [ ! -e /etc/$file ] || mount --bind /run/$file /etc/$file; done
mknod -m 666 /run/fuse c 10 229
mount --bind /run/fuse /dev/fuse
chown 1000:1000 /run/home
cd /run/home
export registry=localhost:{} home=/run/home unshare='podman unshare'
setpriv --reuid 1000 --regid 1000 --clear-groups sh /run/scene/as-user
"#,
        server.port
    );
    let output = root.run(folder, &script);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
}

/// What an ordinary user does after [`START`].
const USER: &str = r#"
mkdir -p $home/layers
$unshare true
start_store
in_container erofs:v1 'read first < /etc/config; [ ${#first} = 50 ] && [ ! -e /etc/gone ] && [ ! -e /opaque/old ] && echo > /new'
[ "$(mounts)" = 3 ]
in_container erofs:v1 'read first < /etc/config; [ ${#first} = 50 ]'
$unshare sh -c 'umount $0/layers && umount $0/store/*/diff' $home
wait $store
"#;
