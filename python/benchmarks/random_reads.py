r"""Compares random reads from an image in Python with the same reads through FUSE mounts.

    python benchmarks/random_reads.py --rounds 3 --mount 'erofsfuse {image} {directory}' \
        --mount 'floe mount --daemon -o front=fuse {image} {directory}' --mount 'mount -t erofs {image} {directory}'

Each contender starts cold: a new mount, or a new `floe.Image`. The image itself stays in the page cache, so the figures
show the cost of decoding and of getting the bytes to Python, not of the disk. `--drop-caches` also drops the image (root).
All contenders read the same ranges, in random order, on 8 threads, and must read the same bytes. They take turns.
"""

import argparse
import concurrent.futures
import hashlib
import os
import pathlib
import random
import shlex
import shutil
import statistics
import subprocess
import tempfile
import time

import floe

THREADS = 8


def make_image(directory: pathlib.Path, program: str, mebibytes: int, algorithm: str) -> pathlib.Path:
    """An image of files with numbers in columns, as tables have them: they compress to half."""
    generator = random.Random(1)
    image = directory / f"columns-{algorithm}-{mebibytes}.erofs"
    if image.exists():
        return image
    tree = directory / "tree"
    tree.mkdir()
    for index in range(8):
        with open(tree / f"column{index}", "wb") as file:
            for _ in range(mebibytes * 1024 // 8):
                values = [generator.getrandbits(11) * 3 for _ in range(256)]
                file.write(b"".join(value.to_bytes(4, "little") for value in values))
    command = [program, "mkfs", "--quiet", "--compress", algorithm, "--pcluster", "64k", str(image), str(tree)]
    subprocess.run(command, check=True)
    shutil.rmtree(tree)
    return image


def in_threads(work, requests):
    """Runs `work` on a share of the requests in each of the threads; gives the seconds, and a digest of all bytes."""
    shares = [requests[index::THREADS] for index in range(THREADS)]
    with concurrent.futures.ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(lambda _: None, range(THREADS)))
        start = time.perf_counter()
        parts = list(pool.map(work, shares))
        seconds = time.perf_counter() - start
    return seconds, hashlib.sha256(b"".join(part for share in parts for part in share)).hexdigest()


def single_reads(image, requests):
    opened = floe.Image(image)
    files = {path: opened.open(path) for path in {path for path, _, _ in requests}}
    return in_threads(lambda share: [files[path].pread(length, at) for path, at, length in share], requests)


def batches(image, requests):
    opened = floe.Image(image)
    return in_threads(opened.read_many, requests)


def through_mount(command):
    def run(image, requests):
        with tempfile.TemporaryDirectory() as directory:
            words = [word.format(image=image, directory=directory) for word in shlex.split(command)]
            subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
            try:
                paths = {path for path, _, _ in requests}
                files = {path: os.open(directory + path, os.O_RDONLY) for path in paths}
                for file in files.values():
                    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_RANDOM)
                result = in_threads(
                    lambda share: [os.pread(files[path], length, at) for path, at, length in share], requests
                )
                for file in files.values():
                    os.close(file)
                return result
            finally:
                subprocess.run(["umount", directory], check=True)

    return run


def drop_caches():
    os.sync()
    pathlib.Path("/proc/sys/vm/drop_caches").write_text("3")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--floe", default="floe", help="the program, which makes the image")
    parser.add_argument("--mount", action="append", default=[], help="a command that mounts {image} on {directory}")
    parser.add_argument("--compress", default="zstd", help="the algorithm of the image")
    parser.add_argument("--directory", help="keep the image in this directory for later runs")
    parser.add_argument("--mebibytes", type=int, default=256)
    parser.add_argument("--reads", type=int, default=40_000)
    parser.add_argument("--length", type=int, default=4096)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--drop-caches", action="store_true", help="drop the kernel's caches before each contender")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        image = make_image(pathlib.Path(arguments.directory or directory), arguments.floe, arguments.mebibytes, arguments.compress)
        size = arguments.mebibytes * (1 << 20) // 8
        generator = random.Random(2)
        requests = [
            (f"/column{generator.randrange(8)}", generator.randrange(size - arguments.length), arguments.length)
            for _ in range(arguments.reads)
        ]
        contenders = {"Image.read_many": batches, "File.pread": single_reads}
        contenders.update({command: through_mount(command) for command in arguments.mount})
        times = {name: [] for name in contenders}
        digests = set()
        for _ in range(arguments.rounds):
            for name, contender in contenders.items():
                if arguments.drop_caches:
                    drop_caches()
                seconds, digest = contender(image, requests)
                times[name].append(seconds)
                digests.add(digest)
        assert len(digests) == 1, "the contenders read different bytes"
        fastest = statistics.median(times["Image.read_many"])
        print(f"image of {os.path.getsize(image) >> 20} MiB; {arguments.reads} reads of {arguments.length} bytes")
        for name, seconds in times.items():
            median = statistics.median(seconds)
            slowest, best = (arguments.reads / extreme for extreme in (max(seconds), min(seconds)))
            print(
                f"{arguments.reads / median:10.0f} reads/s ({slowest:.0f} to {best:.0f}), "
                f"{median / fastest:5.1f} times the time of read_many  {name}"
            )


if __name__ == "__main__":
    main()
