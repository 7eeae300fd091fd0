"""The notebooks run from top to bottom. Oracle: their own assertions, and that nothing raises.

They name the embedded default model; here a tiny one takes its place, so nothing is downloaded.
"""

import os
from pathlib import Path

import nbformat
import pytest
from golden import golden
from nbclient import NotebookClient

NOTEBOOKS = sorted((Path(__file__).parents[1] / "notebooks").glob("*.ipynb"))


@pytest.mark.filterwarnings("default")  # of the notebook machinery's own libraries
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_and_is_committed_without_output(path, tmp_path, monkeypatch):
    notebook = nbformat.read(path, as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells)
    tiny = golden("llama_llama3_rope")
    tiny.config["max_position_embeddings"] = 256
    model = tiny.write(tmp_path / "model")
    default = 'MODEL = ""'
    assert sum(default in cell.source for cell in notebook.cells) == 1
    for cell in notebook.cells:
        cell.source = cell.source.replace(default, f"MODEL = {str(model)!r}")
    root = str(Path(__file__).parents[1])
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([root, os.environ.get("PYTHONPATH", "")]))
    NotebookClient(notebook, timeout=300, kernel_name="python3").execute(cwd=str(tmp_path))
