# An ordinary user, who may mount and has a range of user numbers. crun refuses a machine with both versions of control groups.
umount -R /sys/fs/cgroup
mount -t cgroup2 cgroup2 /sys/fs/cgroup
mkdir -p /run/etc/upper /run/etc/work
mount -t overlay -o lowerdir=/etc,upperdir=/run/etc/upper,workdir=/run/etc/work overlay /etc
echo 'user:x:1000:1000::/run/scene/home:/bin/sh' >> /etc/passwd
for file in subuid subgid; do echo user:100000:65536 >> /etc/$file; done
# apptainer binds it into its containers.
[ -e /etc/localtime ] || : > /etc/localtime
mknod -m 666 /run/fuse c 10 229
mount --bind /run/fuse /dev/fuse
export HOME=/run/scene/home XDG_RUNTIME_DIR=/run/scene/home/run
as_user() { (cd $HOME && exec setpriv --reuid 1000 --regid 1000 --clear-groups "$@"); }
install -d -o 1000 -g 1000 $HOME
as_user mkdir $XDG_RUNTIME_DIR
# Programs that wait for the end of their input do so until the node ends.
mkfifo -m 666 /run/open
exec 7<> /run/open
# Runs a program, and then reports whether Floe runs.
launch() {
    wait_for_go
    (as_user "$@" < /run/open || echo failed) &
    read -r line
    if ls -l /proc/[0-9]*/exe 2> /run/said | grep -q ' /run/floe/floe$'; then echo floe; else echo own; fi
}
launch_sif() {
    if [ $1 = floe ]; then
        mkdir /run/names
        ln -s /run/floe/floe /run/names/squashfuse_ll
        PATH=/run/names:$PATH
    fi
    shift
    launch apptainer --silent exec --userns --no-mount tmp /run/scene/image.sif "$@"
}
launch_appimage() {
    if [ $1 = own ]; then
        launch /run/scene/Tool.AppImage
    else
        launch sh -euc 'mkdir app && floe mount --daemon --offset auto /run/scene/Tool.AppImage app > mounted
            APPIMAGE=/run/scene/Tool.AppImage APPDIR=$HOME/app ARGV0=Tool.AppImage exec app/AppRun'
    fi
}
# The image in a registry, which Podman asks Floe for or pulls.
launch_podman() {
    mounter=$1 image=$2
    shift 2
    export CONTAINERS_STORAGE_CONF=$HOME/storage.conf CONTAINERS_REGISTRIES_CONF=$HOME/registries.conf
    cat > $CONTAINERS_STORAGE_CONF <<CONFIGURATION
[storage]
driver = "overlay"
runroot = "$HOME/runroot"
graphroot = "$HOME/graphroot"
[storage.options]
additionallayerstores = [$([ $mounter = own ] || echo "\"$HOME/layers:ref\"")]
CONFIGURATION
    cat > $CONTAINERS_REGISTRIES_CONF <<CONFIGURATION
[[registry]]
location = "${image%%/*}"
insecure = true
CONFIGURATION
    as_user mkdir layers
    as_user podman unshare true
    if [ $mounter = floe ]; then
        : > /run/store.log
        as_user podman unshare floe store $HOME/layers --root $HOME/store --cache-directory $HOME/cache > /run/store.log 2>&1 < /dev/null &
        until grep -q serving /run/store.log; do kill -0 $!; sleep 0.05; done
    fi
    launch podman run --quiet --rm --interactive --network none --cgroups disabled --runtime crun "$image" "$@"
}
