"""The section about notebooks, run cell by cell in a kernel of Jupyter."""

import re
from pathlib import Path

import pytest

from time_limits import HANG_S

pytest.importorskip("nbclient")
pytest.importorskip("ipykernel")

pytestmark = [pytest.mark.real_time, pytest.mark.slow]

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "where-to-open.md"


def test_the_page_does_in_a_kernel_what_it_says(tmp_path, monkeypatch):
    import nbformat
    from nbclient import NotebookClient

    for name in ("JUPYTER_RUNTIME_DIR", "JUPYTER_DATA_DIR", "IPYTHONDIR"):
        monkeypatch.setenv(name, str(tmp_path / name))
    _, after = PAGE.read_text("utf-8").split("\n### In notebooks\n")
    section, _ = after.split("\n## ", 1)
    fences = re.findall(r"^```(py|text)\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
    cells: list[list[str]] = []
    for language, text in fences:
        if language == "py":
            cells.append([text, ""])
        else:
            cells[-1][1] = text
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(code) for code, _ in cells])
    NotebookClient(book, timeout=HANG_S, kernel_name="python3").execute()
    printed = [
        "".join(output.text for output in cell.outputs if output.get("name") == "stdout")
        for cell in book.cells
    ]
    assert printed == [wanted for _, wanted in cells]
