"""The import profile: chains, cumulative milliseconds and categories from what the interpreter prints."""

from tools.bench.imports import parse

PRINTED = """\
import time: self [us] | cumulative | imported package
import time:       500 |        500 |   zipimport
import time:      1000 |       1500 | site
import time:      2000 |       2000 |     numpy.core
import time:      3000 |       5000 |   numpy
import time:       700 |       5700 | worker.jobs
a line of the program's own
import time:       300 |        300 | _json
"""


def test_each_module_has_its_chain_times_and_category() -> None:
    found = {module.name: module for module in parse(PRINTED)}
    assert list(found) == ["_json", "worker.jobs", "numpy", "numpy.core", "site", "zipimport"]
    core = found["numpy.core"]
    assert (core.chain, core.own_ms, core.all_ms, core.category) == (("worker.jobs", "numpy"), 2.0, 2.0, "numpy")
    assert (found["numpy"].own_ms, found["numpy"].all_ms) == (3.0, 5.0)
    assert found["worker.jobs"].category == "ours"
    assert {found[name].category for name in ("site", "zipimport", "_json")} == {"standard library"}
