"""Settings: where they come from, in which order, and all problems at once."""

from pathlib import Path

import pytest

from mainspring.config import Config, load, unknown_settings
from mainspring.errors import ConfigError
from mainspring.postgres.database import DatabaseOptions


def problems(environ: dict[str, str]) -> tuple[str, ...]:
    with pytest.raises(ConfigError) as refusal:
        load(environ)
    return refusal.value.problems


def test_the_defaults_make_sense() -> None:
    assert load({}) == Config()


def test_the_environment_is_read_and_converted() -> None:
    config = load(
        {
            "MAINSPRING_PORT": "8080",
            "MAINSPRING_LEASE": "30",
            "MAINSPRING_DATABASE_POOLER": "yes",
            "MAINSPRING_HOST": "::1",
        }
    )
    assert (config.port, config.lease, config.database_pooler, config.host) == (
        8080, 30.0, True, "::1",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("text", "value"),
    [("true", True), ("1", True), ("YES", True), ("false", False), ("0", False), ("No", False)],
)
def test_truths(text: str, value: bool) -> None:
    assert load({"MAINSPRING_DATABASE_POOLER": text}).database_pooler is value


def test_files_hold_secrets(tmp_path: Path) -> None:
    secret = tmp_path / "key"
    secret.write_text("s3cret\n")
    assert load({"MAINSPRING_API_KEY_FILE": str(secret)}).api_key == "s3cret"


def test_the_toml_file_is_read(tmp_path: Path) -> None:
    file = tmp_path / "mainspring.toml"
    file.write_text('port = 9000\nlease = 20\ndatabase_pooler = true\nnode_name = "a"\n')
    config = load({"MAINSPRING_CONFIG": str(file)})
    assert (config.port, config.lease, config.database_pooler, config.node_name) == (
        9000, 20.0, True, "a",
    )  # fmt: skip


def test_what_is_nearer_wins(tmp_path: Path) -> None:
    toml, file = tmp_path / "mainspring.toml", tmp_path / "port"
    toml.write_text("port = 1001")
    file.write_text("1002")
    environ = {"MAINSPRING_CONFIG": str(toml)}
    assert load(environ).port == 1001
    environ["MAINSPRING_PORT_FILE"] = str(file)
    assert load(environ).port == 1002
    environ["MAINSPRING_PORT"] = "1003"
    assert load(environ).port == 1003
    assert load(environ, port=1004).port == 1004
    assert load(environ, port=None).port == 1003


def test_the_usual_variable_names_the_database() -> None:
    environ = {"DATABASE_URL": "postgresql://usual"}
    assert load(environ).database_url == "postgresql://usual"
    environ["MAINSPRING_DATABASE_URL"] = "postgresql://ours"
    assert load(environ).database_url == "postgresql://ours"


def test_an_empty_text_is_none_where_there_may_be_none(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    (tmp_path / "mainspring.toml").write_text('database_url = "postgresql://written"')
    for environ in (
        {"DATABASE_URL": ""},
        {"MAINSPRING_DATABASE_URL": ""},
        {"MAINSPRING_DATABASE_URL_FILE": str(tmp_path / "empty")},
    ):
        assert load(environ).database_url is None
    environ = {"DATABASE_URL": "", "MAINSPRING_CONFIG": str(tmp_path / "mainspring.toml")}
    assert load(environ).database_url == "postgresql://written"


@pytest.mark.parametrize("text", ["nan", "inf", "-inf"])
def test_numbers_are_finite(text: str) -> None:
    assert problems({"MAINSPRING_LOOK_AHEAD": text}) == (f"look_ahead: {text!r} is not a number",)


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("port = 7070.9", "port: 7070.9 is not a whole number"),
        ("lease = inf", "lease: inf is not a number"),
        (f"lease = 1{'0' * 400}", f"lease: 1{'0' * 400} is not a number"),
    ],
)
def test_no_number_of_a_file_is_bent(tmp_path: Path, line: str, problem: str) -> None:
    file = tmp_path / "mainspring.toml"
    file.write_text(line)
    assert problems({"MAINSPRING_CONFIG": str(file)}) == (problem,)


def test_a_mistyped_variable_is_reported_with_a_suggestion() -> None:
    known = ("LEASE", "LEASE_FILE", "URL", "API_KEY", "API_KEY_FILE", "API_CA", "PROXY", "CONFIG")
    environ = {f"MAINSPRING_{name}": "1" for name in (*known, "LAESE", "ZZZ", "API_KEY_FLE")}
    assert unknown_settings({"LAESE": "1", **environ}) == [
        "MAINSPRING_API_KEY_FLE is not a setting; is MAINSPRING_API_KEY_FILE meant?",
        "MAINSPRING_LAESE is not a setting; is MAINSPRING_LEASE meant?",
        "MAINSPRING_ZZZ is not a setting",
    ]


def test_all_problems_are_reported_together(tmp_path: Path) -> None:
    file = tmp_path / "mainspring.toml"
    file.write_text('colour = "red"\nhost = 5\n')
    found = problems(
        {
            "MAINSPRING_CONFIG": str(file),
            "MAINSPRING_PORT": "seventy",
            "MAINSPRING_DATABASE_POOLER": "perhaps",
            "MAINSPRING_LEASE": "0.1",
            "MAINSPRING_API_KEY_FILE": str(tmp_path / "missing"),
            "MAINSPRING_LOG_LEVEL": "loud",
            "MAINSPRING_LOG_FORMAT": "xml",
        }
    )
    wanted = ("colour", "host", "port", "database_pooler", "lease", "API_KEY_FILE", "log_level")
    for subject in (*wanted, "log_format"):
        assert any(subject in problem for problem in found), subject
    assert len(found) == 8


@pytest.mark.parametrize("text", ["not toml at all", "port = 1\nport = 2"])
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, text: str) -> None:
    file = tmp_path / "mainspring.toml"
    file.write_text(text)
    (problem,) = problems({"MAINSPRING_CONFIG": str(file)})
    assert str(file) in problem
    (problem,) = problems({"MAINSPRING_CONFIG": str(tmp_path / "missing.toml")})
    assert "missing.toml" in problem


@pytest.mark.parametrize(
    ("environ", "subject"),
    [
        ({"MAINSPRING_NODE_TTL": "1", "MAINSPRING_HEARTBEAT": "0.5"}, "three heartbeats"),
        ({"MAINSPRING_NODE_TTL": "20"}, "lease"),
    ],
)
def test_settings_that_contradict_each_other(environ: dict[str, str], subject: str) -> None:
    assert any(subject in problem for problem in problems(environ))


@pytest.mark.parametrize(("look_ahead", "near"), [(1.0, 26.0), (10.0, 35.0), (60.0, 180.0)])
def test_a_wake_reaches_well_beyond_what_is_loaded(look_ahead: float, near: float) -> None:
    """By more than the time after which a statement is given up, however little is loaded."""
    assert Config(look_ahead=look_ahead).near == near
    assert near - look_ahead > DatabaseOptions("postgresql:///x").statement_timeout
