//! The kernel's EROFS in front in rootless containers of a real Podman.

use std::{
    fs::{self, Permissions},
    os::unix::fs::{PermissionsExt, chown},
    path::Path,
    process::Command,
    thread,
};

use floe_testkit::{
    peer,
    skip::{self, Need},
};

use crate::support::{
    container_image::add_programs,
    container_root::ContainerRoot,
    front,
    program::{floe, run, until},
};

const USER: u32 = 1000;

/// The rows of the table that both mounts must show.
const CHECKS_MIN: usize = 30;

/// What root does: a user with subordinate ids, and a service that mounts fronts for users. crun refuses a machine that has both versions
/// of control groups.
const SCRIPT: &str = r#"
exec 2>&1
umount -R /sys/fs/cgroup && mount -t cgroup2 cgroup2 /sys/fs/cgroup
mkdir -p /run/home /run/bin
cp new?idmap /run/bin && chmod 4755 /run/bin/new?idmap || true
for file in passwd subuid subgid; do cp /etc/$file /run/$file 2> /dev/null || : > /run/$file; done
echo 'alice:x:1000:1000::/run/home:/bin/sh' >> /run/passwd
[ ! -e /run/bin/newuidmap ] || for file in subuid subgid; do echo alice:100000:65536 >> /run/$file; done
for file in passwd subuid subgid; do [ ! -e /etc/$file ] || mount --bind /run/$file /etc/$file; done
chown 1000:1000 /run/home
cp /run/floe/floe /run/bin/floe
start_service() {
    FLOE_TEST_KEEP_AFTER_MS=100 /run/bin/floe serve --socket /run/service --users=fronts --users-socket /run/users -o cache-directory=/run/scene/cache > /run/served 2>&1 &
    service=$!
    until grep -q serving /run/served; do kill -0 $service; sleep 0.05; done
}
trap 'status=$?; [ $status = 0 ] || cat /run/served /run/home/said; exit $status' EXIT
start_service
(
    set -eu
    cd /run/home
    exec setpriv --reuid 1000 --regid 1000 --clear-groups sh -eu /run/scene/as-user
) & user=$!
# While a container runs, the process that reads images is killed, then the broker, then the next process.
for turn in 1 2 3; do
    until [ -e /run/scene/signals/kill-$turn ]; do kill -0 $user; sleep 0.05; done
    if [ $turn = 2 ]; then
        kill -9 $service
        wait $service || true
        rm /run/users
        start_service
        until grep -q 'goes on with its 2 mounts' /run/served; do sleep 0.05; done
    else
        kill -9 $(pgrep -u 1000 -f serve-for-another)
    fi
    touch /run/scene/signals/killed-$turn
done
wait $user
until ! pgrep -u 1000 -f serve-for-another > /run/found; do sleep 0.05; done
"#;

/// What the user does: mounts two images in the user namespace of Podman, and starts a container from them.
const AS_USER: &str = r#"
PATH=/run/bin:/usr/sbin:/usr/bin:/sbin:/bin
home=/run/home
export HOME=$home XDG_RUNTIME_DIR=$home/run FLOE_SERVICE=/run/users
mkdir -p $XDG_RUNTIME_DIR $home/root $home/tree
signal() { touch /run/scene/signals/$1; }
await() { until [ -e /run/scene/signals/$1 ]; do sleep 0.05; done; }
for name in root tree; do
    podman unshare floe mount --service -o front=kernel /run/scene/$name.erofs $home/$name > $home/said 2>&1
done
options='--network none --cgroups disabled --runtime crun'
podman run -d --name lives $options -v $home/tree:/front:ro -v $home/tree:/layered:O --rootfs $home/root:O \
    /bin/sh -c 'trap "exit 7" TERM; while :; do sleep 1; done' "$(cat /run/scene/mark)" > $home/said 2>&1
signal runs
await compared
said() { podman exec $1 lives /bin/sh -c "$2" 2> $home/said; }
# Inside, with the rights of the container.
[ "$(said '' 'id -u; stat -c %u:%g:%a /front/own /layered/own /bin/sh')" = "0
1000:1000:640
1000:1000:640
0:0:755" ]
[ "$(said '--user 1000' 'cat /front/own /front/listed')" = "text
text" ]
! said '--user 1000' 'cat /front/denied'
! said '--user 1001' 'cat /front/own'
! said '' 'echo > /front/plain'
# A capability of a file takes effect in a layer, on which nosuid is not set.
[ "$(said '--user 1001' '/bin/capable /front/secret')" = text ]
said '' 'echo more >> /layered/plain; cat /layered/plain; rm /layered/link; echo > /new' > $home/found
[ "$(cat $home/found)" = "text
more" ]
! said '' 'ls /layered/link'
for turn in 1 2 3; do
    signal kill-$turn
    await killed-$turn
    for name in root tree; do
        until podman unshare floe status $home/$name > $home/said 2>&1; do sleep 0.1; done
    done
done
[ "$(said '' 'cksum < /front/large; cksum < /layered/large')" = "$(cksum < /run/scene/tree/large; cksum < /run/scene/tree/large)" ]
podman run --rm $options --rootfs $home/root:O /bin/sh -c '[ ! -e /new ] && stat -c %a /bin/sh' > $home/found 2> $home/said
[ "$(cat $home/found)" = 755 ]
podman stop -t 20 lives > $home/said 2>&1
[ "$(podman wait lives 2> $home/said)" = 7 ]
podman rm lives > $home/said 2>&1
podman unshare umount $home/root $home/tree > $home/said 2>&1
"#;

fn ready() -> bool {
    skip::ready(&[Need::Root, Need::Fuse, Need::ContainerRoot, Need::Peer("python3"), Need::Peer("newuidmap")])
        && skip::ready(&[Need::Peer("setcap")])
        && front::ready()
}

/// What the script for users' mounts prints.
fn view(arguments: &[&str]) -> String {
    let output = run(Command::new("python3").arg("-c").arg(include_str!("service/view.py")).args(arguments));
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

/// Makes the images: `tree.erofs` with all that a mount shows, `root.erofs` with programs.
fn make_images(folder: &Path) {
    let path = |name: &str| folder.join(name).to_str().expect("text").to_owned();
    view(&["tree", &path("tree"), &USER.to_string(), "plain"]);
    add_programs(folder, &["sh", "cat", "id", "stat", "rm", "ls", "sleep", "cksum"]);
    fs::rename(folder.join("one"), folder.join("root")).expect("ours");
    for name in ["dev", "proc", "sys", "tmp", "run", "etc", "front", "layered", "reference"] {
        fs::create_dir_all(folder.join("root").join(name)).expect("ours");
    }
    fs::copy(folder.join("root/bin/cat"), folder.join("root/bin/capable")).expect("ours");
    let set = run(Command::new("setcap").arg("cap_dac_override+ep").arg(folder.join("root/bin/capable")));
    assert!(set.status.success(), "{set:?}");
    for name in ["tree", "root"] {
        let made = run(floe().args(["mkfs", "--compress", "lz4"]).arg(path(&format!("{name}.erofs"))).arg(path(name)));
        assert!(made.status.success(), "{made:?}");
    }
}

/// The process with a mark among its arguments.
fn process_with(mark: &str) -> Option<String> {
    let processes = fs::read_dir("/proc").expect("it is mounted").flatten();
    let is_marked = |process: &String| {
        let arguments = fs::read(format!("/proc/{process}/cmdline")).unwrap_or_default();
        arguments.starts_with(b"/bin/sh\0") && arguments.split(|byte| *byte == 0).any(|word| word == mark.as_bytes())
    };
    processes.filter_map(|entry| entry.file_name().into_string().ok()).find(is_marked)
}

#[test]
fn a_rootless_container_has_fronts_as_root_and_volume() {
    if !ready() {
        return;
    }
    let root = ContainerRoot::new();
    let scene = tempfile::tempdir().expect("a folder");
    let folder = scene.path().to_owned();
    fs::set_permissions(&folder, Permissions::from_mode(0o755)).expect("ours");
    make_images(&folder);
    for program in ["newuidmap", "newgidmap"] {
        fs::copy(peer(program).expect("it is there"), folder.join(program)).expect("copied");
    }
    let signals = folder.join("signals");
    fs::create_dir(&signals).expect("ours");
    chown(&signals, Some(USER), Some(USER)).expect("root may");
    let mark = format!("container of {}", folder.display());
    fs::write(folder.join("mark"), &mark).expect("ours");
    fs::write(folder.join("as-user"), AS_USER).expect("ours");
    let running = thread::spawn({
        let folder = folder.clone();
        move || root.run(&folder, SCRIPT)
    });
    until("the container runs", || signals.join("runs").exists() || running.is_finished());
    // If they differ, the script ends nevertheless.
    let compared = process_with(&mark).map(|process| {
        let folder = folder.clone();
        thread::spawn(move || compare(&folder, &process)).join()
    });
    fs::write(signals.join("compared"), "").expect("ours");
    let output = running.join().expect("no panic");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    compared.expect("the container ran").expect("both mounts show the same");
}

/// Compares the volume in a container with the kernel's mount of the same image, which root makes there.
fn compare(folder: &Path, process: &str) {
    let image = folder.join("tree.erofs");
    view(&["mount", image.to_str().expect("text"), "/reference", process]);
    let user = USER.to_string();
    let shown = |what: &str, path: &str| view(&[what, path, &user, process]);
    let expected = shown("facts", "/reference");
    assert!(expected.lines().count() >= CHECKS_MIN, "{expected}");
    let found = shown("facts", "/front");
    let pairs = expected.lines().zip(found.lines()).filter(|(expected, found)| expected != found);
    assert_eq!(pairs.collect::<Vec<_>>(), Vec::new());
    assert_eq!(expected.lines().count(), found.lines().count());
    assert_eq!(shown("overlay", "/front"), shown("overlay", "/reference"));
}
