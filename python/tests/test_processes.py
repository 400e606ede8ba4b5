"""Images in several processes, as the workers of data loaders are."""

import concurrent.futures
import multiprocessing
import pickle

import pytest

import floe

PATH = "/README.txt"


class Samples:
    """A data set as PyTorch has it: its workers get a copy, by fork or by pickle."""

    def __init__(self, path):
        self.path, self.image = path, None

    def __getitem__(self, index):
        self.image = self.image or floe.Image(self.path)
        return self.image.read_many([(PATH, index, 10)])[0]


def read(image, offset):
    return image.read(PATH, offset, 10)


def test_pickled_images_are_opened_again(demo, monkeypatch):
    monkeypatch.chdir(demo.parent)
    image = floe.Image(demo.name, offset="auto", cache_bytes=1 << 20)
    pickled = pickle.dumps(image)
    monkeypatch.chdir("/")
    assert pickle.loads(pickled).read(PATH) == image.read(PATH)


def test_an_image_of_an_object_is_not_pickled(demo):
    with open(demo, "rb") as file, pytest.raises(TypeError, match="opened from an object"):
        pickle.dumps(floe.Image(file))


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_new_processes_read_an_image_that_they_are_passed(demo, method):
    image = floe.Image(demo)
    context = multiprocessing.get_context(method)
    with concurrent.futures.ProcessPoolExecutor(2, mp_context=context) as pool:
        found = list(pool.map(read, [image] * 8, range(8)))
    assert found == [read(image, offset) for offset in range(8)]


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_of_a_data_loader_open_the_image_themselves(demo, method):
    context = multiprocessing.get_context(method)
    with concurrent.futures.ProcessPoolExecutor(2, mp_context=context) as pool:
        found = list(pool.map(Samples(demo).__getitem__, range(8)))
    whole = floe.Image(demo).read(PATH)
    assert found == [whole[offset : offset + 10] for offset in range(8)]
