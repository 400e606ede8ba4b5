import concurrent.futures
import hashlib
import io
import stat
import subprocess

import pytest

import floe


def test_lists_and_reads(demo):
    image = floe.Image(demo)
    assert image.format == "erofs"
    assert "README.txt" in image.listdir()
    paths = dict(image.walk())
    assert stat.S_ISDIR(paths["/"].st_mode)
    files = [path for path, status in paths.items() if stat.S_ISREG(status.st_mode)]
    assert len(files) > 3
    for path in files:
        content = image.read(path)
        assert len(content) == paths[path].st_size
        with image.open(path) as file:
            assert file.read() == content
            assert file.seek(-3, io.SEEK_END) == len(content) - 3
            assert file.read() == content[-3:]
            assert file.pread(10, 5) == content[5:15]
        with pytest.raises(ValueError):
            file.read()


def test_files_are_readers_for_the_standard_library(demo):
    image = floe.Image(demo)
    with image.open("/README.txt") as file:
        lines = io.TextIOWrapper(io.BufferedReader(file)).readlines()
    assert "".join(lines).encode() == image.read("/README.txt")
    buffer = bytearray(100)
    assert image.open("/README.txt").readinto(buffer) == 100
    assert bytes(buffer) == image.read("/README.txt", 0, 100)
    with pytest.raises(BufferError):
        image.open("/README.txt").readinto(bytes(10))


def test_many_reads_are_like_single_ones(demo):
    image = floe.Image(demo)
    wanted = [(path, offset, 3000) for path, status in image.walk() if stat.S_ISREG(status.st_mode)
              for offset in range(0, status.st_size + 1, 2000)]
    assert image.read_many(wanted) == [image.read(*request) for request in wanted]


def test_many_reads_are_clipped_to_their_files(demo):
    image = floe.Image(demo)
    size = image.stat("/README.txt").st_size
    content = image.read("/README.txt")
    wanted = [("/README.txt", 0, 0), (b"/README.txt", size - 1, 2**63), ("/README.txt", size, 1), ("/README.txt", 2**63, 9)]
    assert image.read_many(wanted) == [b"", content[-1:], b"", b""]
    assert image.read_many([]) == []
    with pytest.raises(FileNotFoundError):
        image.read_many([("/README.txt", 0, 1), ("/nowhere", 0, 1)])
    with pytest.raises(IsADirectoryError):
        image.read_many([("/", 0, 1)])


def test_files_larger_than_memory_raise_a_python_error(tmp_path, floe_program):
    tree = tmp_path / "tree"
    tree.mkdir()
    size = 1 << 42
    with open(tree / "holes", "wb") as file:
        file.truncate(size)
    path = tmp_path / "holes.erofs"
    subprocess.run([floe_program, "mkfs", "--quiet", path, tree], check=True)
    image = floe.Image(path)
    with pytest.raises(MemoryError):
        image.read_many([("/holes", 0, size)])
    assert image.read_many([("/holes", size - 4, 10)]) == [bytes(4)]


def test_threads_share_an_image(demo):
    image = floe.Image(demo)
    paths = [path for path, status in image.walk() if stat.S_ISREG(status.st_mode)]
    expected = {path: hashlib.sha256(image.read(path)).digest() for path in paths}
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        for path, content in pool.map(lambda path: (path, image.read(path)), paths * 50):
            assert hashlib.sha256(content).digest() == expected[path]


def test_an_object_like_a_file_may_hold_the_image(demo):
    plain = floe.Image(demo)
    for source in (open(demo, "rb"), io.BytesIO(demo.read_bytes()), io.BytesIO(bytes(4096) + demo.read_bytes())):
        image = floe.Image(source, offset="auto")
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            for content in pool.map(image.read, ["/README.txt"] * 20):
                assert content == plain.read("/README.txt")


def test_errors_are_those_of_python(demo, tmp_path):
    image = floe.Image(demo)
    with pytest.raises(FileNotFoundError):
        image.stat("/nowhere")
    with pytest.raises(NotADirectoryError):
        image.stat("/README.txt/x")
    with pytest.raises(IsADirectoryError):
        image.open("/")
    with pytest.raises(FileNotFoundError):
        floe.Image(tmp_path / "nothing")
    broken = tmp_path / "broken"
    broken.write_bytes(bytes(8192))
    with pytest.raises(floe.FloeError, match="not an EROFS or SquashFS image"):
        floe.Image(broken)
    with pytest.raises(TypeError):
        floe.Image(42)
