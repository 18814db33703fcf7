"""Files against the schemas that come with check-jsonschema."""

from pathlib import Path


def check_schema(name: str, *paths: Path) -> None:
    """Fails where a file does not fit a schema; in the tests' process, which has its imports."""
    from check_jsonschema import main
    from click.testing import CliRunner

    ran = CliRunner().invoke(main, ["--builtin-schema", name, *map(str, paths)])
    assert ran.exit_code == 0, ran.output
