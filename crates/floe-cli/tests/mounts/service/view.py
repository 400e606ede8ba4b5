"""Shows a tree as a process of a user sees it: view.py WHAT…. Prints a line for each fact."""
import ctypes, errno, os, socket, stat, struct, sys, tempfile

libc = ctypes.CDLL(None, use_errno=True)


def call(name, *arguments):
    result = name(*arguments) if callable(name) else libc.syscall(name, *arguments)
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


def acl(*entries):
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)


def tree(path, user, devices):
    """Makes a tree with all that a mount shows."""
    os.mkdir(path)
    os.chdir(path)
    os.umask(0)

    def file(name, mode, uid=0, gid=0, content=b"text\n"):
        with open(name, "wb") as new:
            new.write(content)
        os.chown(name, uid, gid)
        os.chmod(name, mode)

    file("plain", 0o644)
    file("secret", 0o600)
    file("own", 0o640, user, user)
    file("of_group", 0o640, 0, user)
    file("high", 0o604, 100_007, 100_008)
    file("empty", 0o644, content=b"")
    file("large", 0o644, content=bytes(range(251)) * 2000)
    file("program", 0o755, content=b"#!/bin/sh\necho run by $(id -u)\n")
    file("suid", 0o4755, content=open("/usr/bin/id", "rb").read())
    file("sgid", 0o2755)
    file("n" * 255, 0o644)
    file(b"\xff\n", 0o644)
    for name, mode, uid in [("open", 0o755, 0), ("closed", 0o700, 0), ("own_directory", 0o700, user), ("sticky", 0o1777, 0)]:
        os.mkdir(name)
        file(name + "/inside", 0o644)
        os.chown(name, uid, uid)
        os.chmod(name, mode)
    os.symlink("plain", "link")
    os.symlink("/nowhere", "dangling")
    file("first_name", 0o644)
    os.link("first_name", "second_name")
    os.mkfifo("fifo", 0o640)
    socket.socket(socket.AF_UNIX).bind("socket")
    os.mknod("whiteout", 0o600 | stat.S_IFCHR, 0)
    if devices:
        os.mknod("device", 0o666 | stat.S_IFCHR, os.makedev(1, 3))
    file("noted", 0o644)
    os.setxattr("noted", "user.note", b"\0\1\xff")
    os.setxattr("noted", "trusted.note", b"root's")
    file("listed", 0o640)
    # The user may read it, and nobody else but its owner.
    os.setxattr("listed", "system.posix_acl_access", acl((1, 6, 0xFFFFFFFF), (2, 4, user), (4, 0, 0xFFFFFFFF), (16, 4, 0xFFFFFFFF), (32, 0, 0xFFFFFFFF)))
    file("denied", 0o644)
    os.setxattr("denied", "system.posix_acl_access", acl((1, 6, 0xFFFFFFFF), (2, 0, user), (4, 4, 0xFFFFFFFF), (16, 4, 0xFFFFFFFF), (32, 4, 0xFFFFFFFF)))
    os.setxattr("open", "system.posix_acl_default", acl((1, 7, 0xFFFFFFFF), (2, 5, user), (4, 5, 0xFFFFFFFF), (16, 5, 0xFFFFFFFF), (32, 5, 0xFFFFFFFF)))
    file("capable", 0o755)
    os.setxattr("capable", "security.capability", struct.pack("<IIIII", 0x02000001, 1 << 13, 0, 0, 0))
    os.utime("plain", ns=(1, 1_600_000_000_123_456_789))


def become(user, process):
    """Enters the namespaces of a process, as the administrator there; or becomes a user."""
    if process:
        spaces = [os.open(f"/proc/{process}/ns/{name}", os.O_RDONLY) for name in ("user", "mnt")]
        for space in spaces:
            call(libc.setns, space, 0)
        user = 0
    os.setgroups([])
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)


def mount(image, directory, process):
    """Mounts an image by the kernel's EROFS alone, in the namespaces of a process."""
    context = call(430, b"erofs", 1)
    call(431, context, 1, b"source", image.encode(), 0)
    call(431, context, 0, b"ro", None, 0)
    call(431, context, 6, None, None, 0)
    made = call(432, context, 1, 1 | 2 | 4)
    if process:
        users = os.open(f"/proc/{process}/ns/user", os.O_RDONLY)
        call(442, made, b"", 0x1000, ctypes.create_string_buffer(struct.pack("QQQQ", 0x100000, 0, 0, users)), 32)
        call(libc.setns, os.open(f"/proc/{process}/ns/mnt", os.O_RDONLY), 0x20000)
    call(429, made, b"", -100, directory.encode(), 4)


def told(work):
    try:
        return work()
    except OSError as error:
        return errno.errorcode[error.errno]


def read(path):
    # A FIFO would wait.
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as opened:
        return hash_of(opened.read())


def hash_of(content):
    return f"{len(content)} bytes, {sum(byte * (index + 1) for index, byte in enumerate(content)) % 1_000_003}"


def ran(path, *arguments):
    output, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.dup2(write, 1)
        try:
            os.execv(path, [path, *arguments])
        except OSError as error:
            os.write(write, errno.errorcode[error.errno].encode())
        os._exit(0)
    os.close(write)
    os.waitpid(child, 0)
    return os.read(output, 4096).decode().strip()


def attributes(path):
    names = sorted(name for name in os.listxattr(path, follow_symlinks=False))
    return ", ".join(f"{name}={told(lambda: os.getxattr(path, name, follow_symlinks=False))}" for name in names)


def stated(path):
    found = os.lstat(path)
    size = found.st_size if stat.S_ISREG(found.st_mode) else "-"
    numbers = f"{found.st_mode:o} {found.st_uid}:{found.st_gid} {size} {found.st_nlink}"
    return f"{numbers} {os.major(found.st_rdev)}:{os.minor(found.st_rdev)} {found.st_mtime_ns}"


def facts(directory):
    """What a mount shows, apart from its root directory."""
    os.chdir(directory)
    names = sorted(os.listdir(b"."))
    print(f"names: {names}")
    names += [name + b"/inside" for name in names if told(lambda: os.path.isdir(name)) is True]
    for name in names:
        rights = [right for right in (os.R_OK, os.W_OK, os.X_OK) if os.access(name, right)]
        print(f"{name} is: {told(lambda: stated(name))}")
        print(f"{name} has: {told(lambda: attributes(name))}")
        print(f"{name} may be: {rights}")
        print(f"{name} contains: {told(lambda: read(name))}")
    print(f"link: {os.readlink('link')}, {os.readlink('dangling')}")
    print(f"one inode: {os.lstat('first_name').st_ino == os.lstat('second_name').st_ino}")
    print(f"closed: {told(lambda: os.listdir('closed'))}")
    print(f"program: {ran('./program')}")
    print(f"suid: {ran('./suid', '-u')}")
    print(f"new: {told(lambda: open('new', 'w'))}")
    print(f"removed: {told(lambda: os.unlink('plain'))}")
    print(f"mode: {told(lambda: os.chmod('own', 0o777))}")
    print(f"owner: {told(lambda: os.chown('plain', 0, 0))}")
    print(f"attribute: {told(lambda: os.setxattr('own', 'user.note', b'x'))}")
    print(f"renamed: {told(lambda: os.rename('plain', 'other'))}")
    print(f"linked: {told(lambda: os.link('plain', 'other'))}")


def overlay(directory):
    """What an overlay on top of a mount shows."""
    def mounted(kind, where, options):
        call(libc.mount, kind, where.encode(), kind, 0, options.encode())

    base = tempfile.mkdtemp()
    mounted(b"tmpfs", base, "")
    os.chdir(base)
    for name in ("upper", "work", "merged"):
        os.mkdir(name)
    mounted(b"overlay", base + "/merged", f"lowerdir={directory},upperdir={base}/upper,workdir={base}/work,userxattr")
    os.chdir("merged")
    print(f"names: {sorted(os.listdir(b'.'))}")
    print(f"hidden: {told(lambda: os.lstat('whiteout'))}")
    print(f"written: {told(lambda: open('plain', 'a').write('more'))}, {told(lambda: stated('plain').split()[:4])}")
    print(f"read: {told(lambda: read('plain'))}")
    print(f"mode: {told(lambda: os.chmod('secret', 0o604))}, {told(lambda: stated('secret'))}")
    print(f"copied: {told(lambda: os.chmod('noted', 0o600))}, {told(lambda: attributes('noted'))}")
    print(f"list: {told(lambda: os.chmod('listed', 0o640))}, {told(lambda: attributes('listed'))}")
    print(f"removed: {told(lambda: os.unlink('link'))}, {told(lambda: os.lstat('link'))}")
    print(f"new: {told(lambda: open('new', 'w').close())}, {told(lambda: stated('new').split()[:4])}")
    print(f"directory: {told(lambda: os.mkdir('closed/new'))}, {told(lambda: sorted(os.listdir('closed')))}")
    print(f"large: {told(lambda: read('large'))}")
    print(f"below: {told(lambda: sorted(os.listdir(base + '/upper')))}")
    os.chdir("/")
    call(libc.umount2, (base + "/merged").encode(), 2)
    call(libc.umount2, base.encode(), 2)
    os.rmdir(base)


def devices(directory):
    """What the owner of a namespace gets who permits devices and set-user-id programs."""
    print(f"permitted: {told(lambda: call(libc.mount, None, directory.encode(), None, 0x1000 | 0x20 | 1, None))}")
    print(f"suid: {ran(directory + '/suid', '-u')}")
    for name in ("device", "whiteout"):
        print(f"{name}: {told(lambda: os.open(directory + '/' + name, os.O_RDWR))}")


what, *rest = sys.argv[1:]
if what == "tree":
    tree(rest[0], int(rest[1]), rest[2] == "devices")
elif what == "mount":
    mount(rest[0], rest[1], int(rest[2]))
else:
    become(int(rest[1]), int(rest[2]))
    {"facts": facts, "overlay": overlay, "devices": devices}[what](rest[0])
