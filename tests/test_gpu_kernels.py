"""Kernels of a GPU are compiled ahead by what a trace of the run launches; nothing runs, and no GPU is needed."""

import importlib.util
import json
import os
import shutil
import sysconfig
import threading
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

import pytest
import torch

from penstock.processes import start_python
from training_graphs import community_graph

PROGRAM = """
import json, sys
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

class Driver:
    def get_current_device(self): return 0
    def get_current_stream(self, device): return 0
    def get_current_target(self): return GPUTarget("cuda", 90, 32)

driver.set_active(Driver())
asked = []
def ask(*, fn, **other):
    asked.append(fn.name)
    return True  # Nothing more is done for this kernel.
triton.knobs.runtime.jit_cache_hook = ask

from penstock.cli import main
from penstock.train.device import traced
from penstock.traced import compiling
traced_run = traced.traced_run
def compiled_run(*given):
    with compiling():
        return traced_run(*given)
traced.traced_run = compiled_run
sys.argv = ["penstock", "memory", "--device", "cuda", "--json", *sys.argv[1:]]
try:
    main()
finally:
    print(json.dumps(asked))
"""
"""Predicts a job's memory on a GPU by traces that launch its kernels, and prints which they would compile."""


needs_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")


@needs_triton
def test_a_kernel_is_loaded_before_anyone_gets_it():
    """Triton sets a kernel's launcher before its function: whoever got it meanwhile would launch nothing."""
    from penstock.gpu_kernels import Loading

    loads, may_load = [], threading.Event()

    class Compiled:
        @property
        def run(self):
            may_load.wait(30)
            loads.append(threading.current_thread().name)

    def failing():
        raise ValueError("too many registers")

    with ThreadPoolExecutor(1, "compile") as pool:
        compiled, failed = (Loading(pool).submit(each) for each in (Compiled, failing))
        assert not wait([compiled], 0.05).done
        may_load.set()
        assert isinstance(compiled.result(30), Compiled) and loads == ["compile_0"]
        assert str(failed.exception(30)) == "too many registers"


LAUNCHER = """
#include <Python.h>
static PyObject *launch(PyObject *self, PyObject *given) {{ return PyLong_FromLong({number}); }}
static PyMethodDef methods[] = {{{{"launch", launch, METH_VARARGS, NULL}}, {{NULL, NULL, 0, NULL}}}};
static struct PyModuleDef definition = {{PyModuleDef_HEAD_INIT, "launcher_of_a_test", NULL, -1, methods}};
PyMODINIT_FUNC PyInit_launcher_of_a_test(void) {{ return PyModule_Create(&definition); }}
"""
"""A C module as Triton writes one for each kernel's arguments, all under one name."""


@needs_triton
@pytest.mark.skipif(not (shutil.which("gcc") or shutil.which("clang")), reason="there is no C compiler")
@pytest.mark.skipif(
    not Path(sysconfig.get_paths()["include"], "Python.h").exists(), reason="Python's headers are not installed"
)
def test_loading_a_launcher_again_leaves_others_as_they_are(tmp_path, monkeypatch):
    import triton
    from triton.runtime import build

    import penstock.gpu_kernels  # noqa: F401

    monkeypatch.setattr(triton.knobs.cache, "dir", str(tmp_path))
    one, two = (LAUNCHER.format(number=number) for number in (1, 2))

    def loaded(source):
        return build.compile_module_from_src(source, "launcher_of_a_test")

    modules = [loaded(source) for source in (one, two, one, two, one)]
    assert [module.launch() for module in modules] == [1, 2, 1, 2, 1]


@needs_triton
def test_an_interrupt_while_kernels_are_compiled_leaves_nothing_behind(monkeypatch):
    import triton

    from penstock.gpu_kernels import compiled_ahead

    def interrupted(*given):
        raise KeyboardInterrupt

    device = torch.device("cuda", 0)
    with monkeypatch.context() as patch:
        patch.setattr(triton.AsyncCompileMode, "__exit__", interrupted)
        with pytest.raises(KeyboardInterrupt), compiled_ahead(device, 1):
            pass
    with compiled_ahead(device, 1):
        pass


@needs_triton
def test_a_trace_that_compiles_launches_the_kernels_of_draws_and_steps(tmp_path):
    community_graph().save(tmp_path / "graph")
    flags = ["--graph", str(tmp_path / "graph"), "--fanouts", "4,3", "--hidden", "16", "--batch-size", "64"]
    without = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    program = start_python(["-c", PROGRAM, *flags], stdout=-1, text=True, env=without)
    *forecast, asked = program.communicate(timeout=600)[0].splitlines()
    assert program.returncode == 0
    assert json.loads("".join(forecast))["device_memory"]["allocated"] > 0
    names = {name.rpartition(".")[2] for name in json.loads(asked)}
    assert {"start", "draw", "number_new", "finish", "take_labels", "gather_rows", "order_readers"} <= names
