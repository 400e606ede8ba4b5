import pytest

fsspec = pytest.importorskip("fsspec")


def test_pandas_reads_parquet_from_an_image(table):
    import pandas

    image, frame = table
    read = pandas.read_parquet("erofs://data/table.parquet", storage_options={"fo": str(image)})
    pandas.testing.assert_frame_equal(read, frame)
    some = pandas.read_parquet("erofs://data/table.parquet", storage_options={"fo": str(image)}, columns=["text"])
    assert list(some.columns) == ["text"]


def test_pyarrow_reads_a_dataset_from_an_image(table):
    import pyarrow.dataset

    image, frame = table
    files = fsspec.filesystem("erofs", fo=str(image))
    dataset = pyarrow.dataset.dataset("data/table.parquet", filesystem=files)
    assert dataset.count_rows() == len(frame)


def test_images_behind_other_urls(table):
    image, frame = table
    memory = fsspec.filesystem("memory")
    memory.pipe("/images/table.erofs", image.read_bytes())
    with fsspec.open("erofs://data/table.parquet::memory://images/table.erofs") as file:
        head = file.read(4)
    assert head == b"PAR1"


def test_listings_and_ranges(demo):
    files = fsspec.filesystem("erofs", fo=str(demo))
    assert files.exists("README.txt") and not files.exists("nowhere")
    assert files.info("README.txt")["type"] == "file"
    assert "README.txt" in files.ls("", detail=False)
    assert any(path.endswith("reading.txt") for path in files.find(""))
    whole = files.cat_file("README.txt")
    assert files.cat_file("README.txt", -5) == whole[-5:]
    ranges = files.cat_ranges(["README.txt"] * 3, [0, 10, None], [5, 20, None])
    assert ranges == [whole[:5], whole[10:20], whole]
    failed = files.cat_ranges(["README.txt", "nowhere"], 0, 5)
    assert failed[0] == whole[:5] and isinstance(failed[1], FileNotFoundError)
    with pytest.raises(OSError):
        files.open("README.txt", "wb")


def test_the_wrong_format_is_told(demo):
    with pytest.raises(ValueError, match="erofs, not squashfs"):
        fsspec.filesystem("squashfs", fo=str(demo))
