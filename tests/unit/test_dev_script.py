"""`./dev`, the entry point of a checkout: when the environment is good enough as it is."""

from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).parents[2] / "dev"
LOCK = "aiohttp==3.9 \\\n    --hash=sha256:0\nidna==3.1 ; sys_platform == 'x'\n    # via aiohttp\n"


@pytest.fixture
def dev(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script as a module, with a stamp of its own."""
    module = ModuleType("dev")
    module.__file__ = str(SCRIPT)
    exec(compile(SCRIPT.read_text(), SCRIPT, "exec"), module.__dict__)
    monkeypatch.setattr(module, "LOCK_STAMP", tmp_path / "lock.stamp")
    return module


@pytest.mark.parametrize(
    ("installed", "outgrown"),
    [
        (LOCK, False),
        (LOCK.replace("3.9", "3.8"), False),  # another version takes its place
        (LOCK.replace("idna==3.1", ""), False),
        (LOCK + "urllib3==2.0\n", True),
        ("a stamp of another kind", True),
    ],
)
def test_an_environment_is_rebuilt_when_a_package_left_the_lock(
    dev: ModuleType, installed: str, outgrown: bool
) -> None:
    dev.LOCK_STAMP.write_text(installed)
    assert dev.outgrown(LOCK) is outgrown
