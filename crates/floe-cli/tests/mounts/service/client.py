"""A client of the service that sends what it likes: client.py SOCKET UID IMAGE DIRECTORY. Prints a line for each request."""
import os, socket, struct, sys

path, uid, image, directory = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4]
# Opened as root, as by a process that passes it on.
unreadable = os.open(image + ".secret", os.O_PATH)
root_directory = os.open(directory + ".root", os.O_PATH | os.O_DIRECTORY)
sticky_directory = os.open(directory + ".sticky", os.O_PATH | os.O_DIRECTORY)
covered_directory = os.open(directory + ".covered", os.O_PATH | os.O_DIRECTORY)
os.system(f"mount -t tmpfs -o uid={uid} none {directory}.covered")
os.setgroups([])
os.setgid(uid)
os.setuid(uid)


def text(data):
    return struct.pack("<I", len(data)) + data


def mount(options=b"", devices=0, target=b"\1"):
    return b"\2" + text(b"/image") + struct.pack("<I", devices) + text(b"/device") * devices + text(options) + target


def connect():
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.settimeout(60)
    connection.connect(path)
    answer = b"\5"
    # On a busy machine, the service may still be about to end the requests before.
    while answer[0] == 5:
        connection.send(b"\1\2\0\0\0")
        answer = connection.recv(1 << 16)
    assert answer[0] == 1, answer
    return connection


def show(name, answer):
    if answer[:1] == b"\5":
        print(f"{name}: refused: {answer[6:].decode()}", flush=True)
    else:
        print(f"{name}: answer {answer[0] if answer else 'none'}", flush=True)


def ask(name, message, files, connection=None):
    connection = connection or connect()
    try:
        socket.send_fds(connection, [message], files)
        answer = connection.recv(1 << 16)
    except OSError:
        answer = b""
    show(name, answer)


read = os.open(image, os.O_RDONLY)
place = os.open(directory, os.O_PATH | os.O_DIRECTORY)
pipe, _ = os.pipe()
own = os.open(image + ".own", os.O_RDWR | os.O_CREAT)
link = directory + ".link"
os.symlink("/etc", link)
for name, message, files in [
    ("a directory as the image", mount(), [os.open("/", os.O_RDONLY), place]),
    ("a file open for writing", mount(), [own, place]),
    ("a file open for writing alone", mount(), [os.open(image + ".own", os.O_WRONLY), place]),
    ("a path of the image", mount(), [os.open(image, os.O_PATH), place]),
    ("a file that only root may read", mount(), [unreadable, place]),
    ("a pipe", mount(), [pipe, place]),
    ("a file as the directory", mount(), [read, os.open(image, os.O_PATH)]),
    ("a readable directory", mount(), [read, os.open(directory, os.O_RDONLY)]),
    ("a directory of root", mount(), [read, root_directory]),
    ("a sticky directory", mount(), [read, sticky_directory]),
    ("a covered directory", mount(), [read, covered_directory]),
    ("a symbolic link", mount(), [read, os.open(link, os.O_PATH | os.O_NOFOLLOW)]),
    ("the target of a link", mount(), [read, os.open(link, os.O_PATH)]),
    ("the root directory", mount(), [read, os.open("/", os.O_PATH)]),
    ("a directory of the kernel", mount(), [read, os.open(f"/proc/{os.getpid()}/fdinfo", os.O_PATH)]),
    ("other users", mount(b"allow_other"), [read, place]),
    ("the label of a security module", mount(b"context=system_u:object_r:etc_t:s0"), [read, place]),
    ("the kernel's read-ahead", mount(b"read-ahead=1M"), [read, place]),
    ("a missing descriptor", mount(), [read]),
    ("another connection", mount(target=b"\2" + text(b"/mnt") + b"\0" * 8), [read, place]),
    ("a device as the connection", mount(target=b"\2" + text(b"/mnt") + b"\0" * 8), [read, os.open("/dev/null", os.O_RDWR)]),
    ("another unmount", b"\3" + b"\0" * 8 + b"\1", []),
    ("another control socket", b"\6" + b"\0" * 8, []),
    ("descriptors beside a list", b"\4" + b"\0" * 8, [read, place, pipe, own] * 8),
    ("a broken message", b"\2\xff", [read, place]),
]:
    ask(name, message, files)

# Half-closed connections, and one whose process goes with a request in progress.
for how in [socket.SHUT_RD, socket.SHUT_WR, socket.SHUT_RDWR]:
    connection = connect()
    connection.shutdown(how)
    try:
        socket.send_fds(connection, [mount(b"no-such-option")], [read, place])
    except OSError:
        pass
many = [connect() for _ in range(40)]
ask("after many connections", b"\5", [], many[-1])

# A directory that takes the place of the one that was opened: the mount lands in the one that was opened.
moved = directory + ".moved"
os.rename(directory, moved)
os.mkdir(directory)
ask("a moved directory", mount(), [read, place])
print(f"the mount: {os.path.ismount(moved)}, {os.path.ismount(directory)}", flush=True)
device = os.stat(moved).st_dev
ask("the unmount", b"\3" + struct.pack("<II", os.major(device), os.minor(device)) + b"\0", [])
print(f"the end: {os.path.ismount(moved)}", flush=True)
os.rmdir(directory)
os.rename(moved, directory)
os.mkdir(directory + ".gone")
gone = os.open(directory + ".gone", os.O_PATH)
os.rmdir(directory + ".gone")
ask("a directory that is gone", mount(), [read, gone])
os.unlink(link)

# The process that has connected ends; its parent goes on with the connection.
ours, theirs = socket.socketpair()
if os.fork() == 0:
    connection = connect()
    socket.send_fds(theirs, [b"x"], [connection.fileno()])
    os._exit(0)
theirs.close()
_, passed, _, _ = socket.recv_fds(ours, 1, 1)
os.wait()
connection = socket.socket(fileno=passed[0])
# The other process has made it non-blocking.
connection.settimeout(60)
ask("a process that has ended", mount(), [read, place], connection)
