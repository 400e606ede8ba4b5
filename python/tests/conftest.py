import pathlib
import shutil
import subprocess

import pytest

ROOT = pathlib.Path(__file__).parents[2]


@pytest.fixture(scope="session")
def demo() -> pathlib.Path:
    return ROOT / "fixtures/demo.erofs"


@pytest.fixture(scope="session")
def floe_program() -> str:
    for build in ("release", "debug"):
        program = ROOT / "target" / build / "floe"
        if program.exists():
            return str(program)
    program = shutil.which("floe")
    if program is None:
        pytest.skip("the program floe is neither built nor installed")
    return program


@pytest.fixture(scope="session")
def table(tmp_path_factory, floe_program):
    """A parquet file in a zstd image, and the frame that it holds."""
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    directory = tmp_path_factory.mktemp("table")
    tree = directory / "tree" / "data"
    tree.mkdir(parents=True)
    count = 200_000
    frame = pandas.DataFrame({"number": range(count), "text": [f"row {n % 1000}" for n in range(count)]})
    frame.to_parquet(tree / "table.parquet", row_group_size=20_000)
    image = directory / "table.erofs"
    command = [floe_program, "mkfs", "--quiet", "--compress", "zstd", "--pcluster", "64k", image, tree.parent]
    subprocess.run(command, check=True)
    return image, frame
