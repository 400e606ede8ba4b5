//! Processes are killed, and the registry goes away, while containers read.

use std::{
    fs,
    path::Path,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    thread,
    time::Duration,
};

use floe_testkit::{
    Random,
    skip::{self, Need},
};

use super::{registry, run_script};
use crate::support::{container_root::ContainerRoot, servers::RealServer};

fn can_run() -> bool {
    skip::ready(&[Need::Root, Need::Fuse, Need::ContainerRoot, Need::Peer("docker-registry")])
}

#[test]
fn containers_do_not_notice_killed_processes() {
    if !can_run() {
        return;
    }
    let root = ContainerRoot::new();
    let scene = tempfile::tempdir().expect("a folder");
    let server = registry(scene.path());
    let script = r#"
# Reads files again and again, past the page cache, and notes a wrong byte or an error.
load='
first=$(cksum /bin/tool /opaque/third) count=0
while [ ! -e /share/stop ]; do
    for file in /bin/tool /opaque/third; do
        dd if=$file iflag=nocache count=0 2> /share/message || { echo dd > /share/failed; exit 1; }
    done
    now=$(cksum /bin/tool /opaque/third) && [ "$now" = "$first" ] || { echo "$now" > /share/failed; exit 1; }
    count=$((count + 1))
    echo $count > /share/next
    read line < /share/next
    echo "$line" > /share/count
done'
containers=
run_load() {
    mkdir -p /run/share/$2
    ctr run --detach --snapshotter floe --env PATH=/bin --mount "type=bind,src=/run/share/$2,dst=/share,options=rbind:rw" \
        "$registry/$1" $2 /bin/sh -c "$load"
    containers="$containers $2"
}
# Waits until all containers have read again, twice.
check() {
    for container in $containers; do
        share=/run/share/$container
        before=$(cat $share/count 2> /dev/null || true) tries=0
        until now=$(cat $share/count 2> /dev/null || true); [ ${now:-0} -ge $((${before:-0} + 2)) ]; do
            [ ! -e $share/failed ] || { echo "$1: $container: $(cat $share/failed $share/message)"; exit 1; }
            tries=$((tries + 1))
            [ $tries -lt 1200 ] || { echo "$1: $container does not go on"; exit 1; }
            sleep 0.05
        done
    done
    ctr snapshots --snapshotter floe ls > /run/snapshots.now
    cmp /run/snapshots.before /run/snapshots.now
}
process() { pgrep -f "floe $1"; }
kill_process() {
    killed=$(process $1)
    kill -9 $killed
    check "$1"
    tries=0
    while next=$(process $1 || true); [ -z "$next" ] || [ "$next" = "$killed" ]; do
        tries=$((tries + 1))
        [ $tries -lt 200 ] || { echo "no other $1"; exit 1; }
        sleep 0.05
    done
}
pull floe erofs:v1
pull floe merged:v1
for container in 1 2; do
    run_load erofs:v1 erofs-$container
    run_load merged:v1 merged-$container
done
# One engine and one process that fetches serve all layers.
[ "$(process serve-for-another | wc -l)" = 1 ] && [ "$(process fetch-for-others | wc -l)" = 1 ]
refuse process mount
[ "$(grep -c ' /run/snapshots/snapshots/[0-9]*/fs ' /proc/self/mountinfo)" = 4 ]
ctr snapshots --snapshotter floe ls > /run/snapshots.before
check "the beginning"
for round in 1 2; do
    kill -9 $snapshotter; wait $snapshotter || true; start_snapshotter
    check snapshotter
    kill_process serve-for-another
    kill_process fetch-for-others
    kill -9 $service; wait $service || true; start_service
    check broker
    kill -9 $containerd; wait $containerd || true; start_containerd
    check containerd
done
# A newer program takes the place of the snapshotter.
mkdir /run/newer
cp /run/floe/floe /run/newer/floe
kill $snapshotter; wait $snapshotter
PATH=/run/newer:$PATH
start_snapshotter
check "a newer program"
in_container floe erofs:v1 'read first < /etc/config; [ ${#first} = 50 ]'
refuse grep lost /run/service.log
[ "$(ctr tasks ls | grep -c RUNNING)" = 4 ]
# Nothing is left.
for container in $containers; do touch /run/share/$container/stop; done
for container in $containers; do
    until ctr tasks ls | grep -q "^$container .*STOPPED"; do sleep 0.05; done
    [ ! -e /run/share/$container/failed ]
    ctr tasks rm $container 2> /run/exit-code || true
    ctr containers rm $container
done
ctr images rm --sync "$registry/erofs:v1" "$registry/merged:v1" > /run/removed
[ -z "$(ls /run/snapshots/snapshots /run/snapshots/records | grep -v :)" ]
refuse grep /run/snapshots /proc/self/mountinfo
tries=0
while process serve-for-another > /run/left || process fetch-for-others > /run/left; do
    tries=$((tries + 1))
    [ $tries -lt 200 ]
    sleep 0.05
done
kill $snapshotter $service
wait $snapshotter
wait $service
refuse pgrep -f 'floe (serve|fetch|mount|snapshotter)'
"#;
    run_script(&root, scene.path(), server.port, &format!("start_service\n{script}"));
}

/// Stops and starts a registry, as a script asks for in a file, until it has ended.
fn obey(server: &mut RealServer, folder: &Path, has_ended: &AtomicBool) {
    let (wanted, answer) = (folder.join("registry-wanted"), folder.join("registry-is"));
    let mut state = "up".to_owned();
    while !has_ended.load(Relaxed) {
        let now = fs::read_to_string(&wanted).unwrap_or_default().trim().to_owned();
        if !now.is_empty() && now != state {
            if now == "up" {
                server.start_again()
            } else {
                server.stop()
            }
            fs::write(&answer, &now).expect("written");
            state = now;
        }
        thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn the_rule_for_outages_of_the_registry_holds() {
    if !can_run() {
        return;
    }
    let root = ContainerRoot::new();
    let scene = tempfile::tempdir().expect("a folder");
    fs::create_dir(scene.path().join("one")).expect("made");
    fs::write(scene.path().join("one/large"), Random::new(1).noise(16 << 20)).expect("written");
    let mut server = registry(scene.path());
    let port = server.port;
    let script = r#"
registry_is() {
    echo $1 > /run/scene/registry-wanted
    until [ "$(cat /run/scene/registry-is 2> /dev/null)" = $1 ]; do sleep 0.05; done
}
# A part of a file that nobody has read.
part() { echo "dd if=/large bs=4096 count=1 skip=$1 of=/new 2> /message"; }
# At the pull.
registry_is down
(pull floe erofs:v1) > /run/refused && exit 1
registry_is up
pull floe erofs:v1
in_container floe erofs:v1 'read first < /etc/config; [ ${#first} = 50 ]'
# In the middle of a run, with the default rule: reads wait.
registry_is down
in_container floe erofs:v1 'read first < /etc/config; [ ${#first} = 50 ]'
in_container floe erofs:v1 "$(part 2000)" & waiter=$!
sleep 1
kill -0 $waiter
registry_is up
wait $waiter
# With the other one: reads fail.
kill $snapshotter; wait $snapshotter
mount_options='--outage eio'
start_snapshotter
pull floe merged:v1
in_container floe merged:v1 'read first < /etc/config; [ ${#first} = 50 ]'
registry_is down
in_container floe merged:v1 "! $(part 3000)"
# At boot: there is what was read before. No process and no mount is left of the time before.
kill -9 $snapshotter $service $(pgrep -f 'floe (serve|fetch)-for')
wait $snapshotter $service || true
for directory in /run/snapshots/snapshots/*/fs; do umount -l "$directory" 2> /dev/null || true; done
start_service
start_snapshotter
in_container floe erofs:v1 'read first < /etc/config; [ ${#first} = 50 ]'
registry_is up
in_container floe merged:v1 "$(part 3000)"
ctr images rm --sync "$registry/erofs:v1" "$registry/merged:v1" > /run/removed
refuse grep /run/snapshots /proc/self/mountinfo
"#;
    let has_ended = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| obey(&mut server, scene.path(), &has_ended));
        let ended = std::panic::catch_unwind(|| {
            run_script(&root, scene.path(), port, &format!("start_service\n{script}"));
        });
        has_ended.store(true, Relaxed);
        ended.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
}
