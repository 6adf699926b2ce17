"""Numba's `njit` for Penstock's kernels: one compiled version for arrays that may be written and arrays that may not,
kept under a key made from the sources.

Numba by itself keeps compiled kernels beside each source file, so every checkout and virtual environment compiles them
again, and a kernel is not compiled anew when a kernel or constant that it takes from another file changes.
Here a module's kernels are kept in the user's cache folder, under a digest of its source and of every source of
Penstock that it imports, directly or not. Checkouts with the same sources share them. Of processes that want the same
version at the same time, as the workers of a run do, one compiles it.
"""

import fcntl
import functools
import gc
import hashlib
import inspect
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from numba.core import cgutils, config, event, sigutils, types
from numba.core.caching import CacheImpl, FunctionCache, IndexDataCacheFile
from numba.core.compiler import Flags
from numba.core.compiler_lock import global_compiler_lock
from numba.core.registry import CPUDispatcher
from numba.core.typing import templates
from numba.extending import intrinsic

from penstock.cache_folders import kernel_folder

_PACKAGE = Path(__file__).parent
_IMPORT = re.compile(
    r"^[ \t]*(?:from[ \t]+(penstock[\w.]*)[ \t]+import[ \t]+(\([^)]*\)|[^\n]*)|import[ \t]+(penstock[\w.]*))",
    re.MULTILINE,
)
_KEPT_SECONDS = 30 * 24 * 3600
_LONGEST_COMPILATION_S = 120.0

_types: Any = types
_signatures: Any = sigutils
_events: Any = event
_config: Any = config
_templates: Any = templates
_Cache: Any = FunctionCache
_Flags: Any = Flags
_CacheFile: Any = IndexDataCacheFile

Kernel = TypeVar("Kernel", bound=Callable[..., Any])


def njit(*, cache: bool, writes: tuple[str, ...] | None = None, **options: Any) -> Callable[[Kernel], Kernel]:
    """`numba.njit`, without its cache where no folder can hold one; kernels are then compiled by every process.

    A kernel with `writes` is compiled once for all arrays of one type that Python passes to it: arrays that it does not
    name there are taken as read-only. Without it, Numba compiles a version for every combination of arrays that may be
    written, as those in memory, and of arrays that may not, as those of mapped files.
    """
    # No kernel is passed to another as a function pointer, which is what the wrapper for C is for.
    settings = {"nopython": True, "boundscheck": None, "no_cfunc_wrapper": True, **options}

    def compiled(function: Kernel) -> Kernel:
        if _config.DISABLE_JIT:
            return function
        kernel: Any = KernelDispatcher(function, targetoptions=settings)
        if writes is not None:
            parameters = list(inspect.signature(function).parameters)
            kernel.written = frozenset(map(parameters.index, writes))
        if cache and kernel_folder() is not None:
            kernel.enable_caching()
            if isinstance(kernel._cache, FunctionCache):
                _kept_kernels[f"{function.__module__}:{function.__qualname__}"] = kernel
        return kernel  # type: ignore[no-any-return]

    return compiled


_kept_kernels = dict[str, Any]()
"""The kernels of this process whose versions are kept, by module and name."""


def used_kernels() -> set[str]:
    """Kernels of which this process has a version, by module and name."""
    return {name for name, kernel in _kept_kernels.items() if kernel.overloads}


def load_kept(name: str) -> None:
    """Load all versions of a kernel that are kept for this processor; nothing where its module is not imported."""
    kernel = _kept_kernels.get(name)
    if kernel is None:
        return
    cache: Any = kernel._cache
    for key in list(cache._cache_file._load_index()):
        if key == cache._index_key(key[0], kernel.targetctx.codegen()):
            kernel.compile(key[0])


class KernelDispatcher(CPUDispatcher):
    """Numba's dispatcher with few versions: arrays that a kernel only reads are compiled as read-only, and other
    kernels call one version of it for all numbers that they may pass.
    """

    written: frozenset[int] | None = None
    """Positions of the arguments that are written; None: all arrays are compiled as they are passed."""

    def compile(self, sig: Any) -> Any:
        """The entry point for arguments of some types, compiled or loaded where there is none yet."""
        with global_compiler_lock:
            given, _ = _signatures.normalize_signature(sig)
            read = tuple(kind if self._is_written(k) else _read_only(kind) for k, kind in enumerate(given))
            with _compiled_by_one_process(self, read):
                entry = super().compile(read)
            if read != given:
                # The next call finds the same machine code by the types that it passes.
                self._insert([kind._code for kind in given], entry, False)  # type: ignore[attr-defined]
            return entry

    def get_call_template(self, args: Any, kws: Any) -> Any:
        """What another kernel calls for arguments of some types; Numba converts its arguments to those returned."""
        pysig, args = self.fold_argument_types(args, kws)
        passed = tuple(_passed(kind, self._is_written(k)) for k, kind in enumerate(args))
        if passed not in self.overloads and passed not in self._called.overloads:
            with _compiled_by_one_process(self._called, passed):
                self._called.compile(passed)
        name = self.py_func.__name__
        return _templates.make_concrete_template(name, name, [self._result(passed).signature]), pysig, passed, {}

    def get_overload(self, sig: Any) -> Any:
        """The compiled function that another kernel calls."""
        return self._result(tuple(_signatures.normalize_signature(sig)[0])).entry_point

    @property
    def is_compiling(self) -> Any:
        """Whether a version is being compiled, so that a call of it is recursive."""
        return self._compiling_counter or ("_called" in vars(self) and self._called._compiling_counter)

    @functools.cached_property
    def _called(self) -> Any:
        """The versions that only kernels call: without what takes Python's objects apart, a third of a small kernel."""
        called: Any = CPUDispatcher(self.py_func, targetoptions={**self.targetoptions, "no_cpython_wrapper": True})
        if isinstance(vars(self)["_cache"], FunctionCache):
            # In files of their own: what is in the others, Python may call.
            kept = called._cache = _Cache(self.py_func)
            name, stamp = f"{kept._impl.filename_base}.called", kept._impl.locator.get_source_stamp()
            kept._cache_file = _CacheFile(kept.cache_path, name, stamp)
        return called

    def _is_written(self, argument: int) -> bool:
        return self.written is None or argument in self.written

    def _result(self, kinds: tuple[Any, ...]) -> Any:
        return self.overloads.get(kinds) or self._called.overloads[kinds]


_compiled_here = set[Path]()
"""Locks of versions that this process compiles now: a kernel may be met again while it is compiled."""


@contextmanager
def _compiled_by_one_process(kernel: Any, kinds: tuple[Any, ...]) -> Iterator[None]:
    """Others that want this version wait meanwhile, and then find it in the cache.

    A process that has ended holds no lock. One that was stopped is not waited for much longer than compiling takes; nor
    does anybody wait where files cannot be locked: the version is then compiled more than once, as without a cache.
    """
    path = _lock_of(kernel, kinds)
    if path is None or path in _compiled_here:
        yield
        return
    try:
        file = os.open(path, os.O_CREAT | os.O_RDWR, 0o600)
    except OSError:
        yield
        return
    _compiled_here.add(path)
    try:
        end = time.monotonic() + _LONGEST_COMPILATION_S
        while _is_locked_by_another(file) and time.monotonic() < end:
            time.sleep(0.02)
        yield
        path.unlink(missing_ok=True)
    finally:
        _compiled_here.discard(path)
        os.close(file)


def _lock_of(kernel: Any, kinds: tuple[Any, ...]) -> Path | None:
    """The file that is locked while a version is compiled; None if it is compiled already, or will not be kept."""
    cache = kernel._cache
    if kinds in kernel.overloads or not isinstance(cache, FunctionCache):
        return None
    kept: Any = cache
    try:
        known = kept._index_key(kinds, kernel.targetctx.codegen()) in kept._cache_file._load_index()
    except OSError:
        return None
    version = hashlib.sha256(repr(kinds).encode()).hexdigest()[:16]
    return None if known else Path(kept._cache_file._index_path).with_suffix(f".{version}.lock")


def _is_locked_by_another(file: int) -> bool:
    """Try to lock a file: whether another process has done so. Some file systems have no locks."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def _read_only(kind: Any) -> Any:
    """The type of an argument with every array in it read-only."""
    if isinstance(kind, _types.Array):
        return kind.copy(readonly=True)
    if isinstance(kind, _types.BaseTuple):
        return _types.BaseTuple.from_types(list(map(_read_only, kind.types)), getattr(kind, "instance_class", None))
    return kind


def _passed(kind: Any, written: bool) -> Any:
    """The type that a kernel takes from another that passes a type.

    Constants are numbers like others, and 32-bit ones become 64-bit ones, with which Numba computes anyway.
    """
    kind = _types.unliteral(kind)
    if kind == _types.int32:
        return _types.int64
    return kind if written or not isinstance(kind, _types.Array) else _read_only(kind)


class _Compilation(event.Listener):
    """Python's garbage collection waits while kernels are compiled, which makes and drops many objects: it would take
    a tenth of the time.
    """

    depth, enabled = 0, False
    begun = 0
    """Kernels, and parts of them, that this process has compiled: what it found in the cache does not count."""

    def on_start(self, event: Any) -> None:
        """A kernel begins to be compiled, perhaps for another one; the caller holds Numba's lock."""
        self.begun += 1
        if not self.depth:
            self.enabled = gc.isenabled()
            gc.disable()
        self.depth += 1

    def on_end(self, event: Any) -> None:
        """A kernel is compiled, or could not be."""
        self.depth -= 1
        if not self.depth and self.enabled:
            gc.enable()


compilation = _Compilation()
_events.register("numba:compile", compilation)

_equal_flags: Any = _Flags.__eq__


def _quickly_equal_flags(flags: Any, others: Any) -> Any:
    """Whether flags of two compilations are equal. Numba asks about every call in a kernel, and would make a mapping of
    all flags each time: a tenth of what compiling takes.
    """
    set_here, set_there = (getattr(each, "_values", None) for each in (flags, others))
    return (set_here is not None and set_here == set_there) or _equal_flags(flags, others)


_HASH = hash(_Flags())
"""Numba computes it from the names of flags alone, so that it is the same for all."""
_Flags.__eq__, _Flags.__hash__ = _quickly_equal_flags, lambda flags: _HASH


@functools.cache
def source_key(module: Path) -> str:
    """A digest of a module of Penstock and of all that it imports from Penstock, whatever folder they lie in."""
    digest = hashlib.sha256()
    for source in sorted(_imported(module)):
        digest.update(f"{source.relative_to(_PACKAGE)}\0".encode())
        digest.update(_text(source).encode())
    return digest.hexdigest()[:32]


def _imported(module: Path) -> set[Path]:
    """A module and all modules of Penstock that it imports, directly or not."""
    found, waiting = {module}, [module]
    while waiting:
        new = _imports(waiting.pop()) - found
        found |= new
        waiting += new
    return found


@functools.cache
def _imports(module: Path) -> set[Path]:
    names: set[str] = set()
    for package, imported, plain in _IMPORT.findall(_text(module)):
        names |= {package or plain, *(f"{package}.{name}" for name in re.findall(r"\w+", imported))}
    # The package itself has no kernel, and imports its names on demand.
    return {file for name in names if (file := _file_of(name)) is not None and file != _PACKAGE / "__init__.py"}


@functools.cache
def _file_of(name: str) -> Path | None:
    """The source of a module or package, or None for another name."""
    path = _PACKAGE.joinpath(*name.split(".")[1:])
    for file in (path.with_suffix(".py"), path / "__init__.py"):
        if file.is_file():
            return file
    return None


@functools.cache
def _text(module: Path) -> str:
    return module.read_text(encoding="utf-8")


class SourceKeyedLocator:
    """Tells Numba where the kernels of one function are cached; Numba calls it in place of its own locators."""

    def __init__(self, file: Path, line: int, folder: Path) -> None:
        self._py_file = str(file)  # Numba reads this name when it warns
        self._line, self._key = line, source_key(file)
        self._modules = folder / ".".join(file.relative_to(_PACKAGE).with_suffix("").parts)

    @classmethod
    def from_function(cls, function: Callable[..., Any], file: str) -> "SourceKeyedLocator | None":
        """A locator for a function of Penstock; None for others, for which Numba tries its own locators."""
        path, folder = Path(file), kernel_folder()
        if folder is None or not path.is_relative_to(_PACKAGE):
            return None
        locator = cls(path, function.__code__.co_firstlineno, folder)
        try:
            locator.ensure_cache_path()
        except OSError:
            return None
        return locator

    def ensure_cache_path(self) -> None:
        """Make the folder, and remove folders of the same module that were not used for a month."""
        folder = self._modules / self._key
        try:
            os.utime(folder)
            return
        except OSError:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for other in self._modules.iterdir():
            if time.time() - other.stat().st_mtime > _KEPT_SECONDS:
                shutil.rmtree(other, ignore_errors=True)

    def get_cache_path(self) -> str:
        """The folder of this module's kernels, which depends on its sources."""
        return str(self._modules / self._key)

    def get_source_stamp(self) -> str:
        """The digest of the sources that the kernels were compiled from."""
        return self._key

    def get_disambiguator(self) -> str:
        """The function's line, which tells functions of one name in one module apart."""
        return str(self._line)


_LOCATORS: list[Any] = CacheImpl._locator_classes
_LOCATORS.insert(0, SourceKeyedLocator)


# Kernels inside kernels: inlined by the compiler, over arrays whose references are not counted.
#
# Numba counts references of an array whenever a kernel passes it to another, with an atomic operation each that costs
# more than the work of a small kernel. An array without an owner is not counted, and what is inlined as machine code
# (not as source, which would count references again) passes nothing. Together they make an event several times cheaper.

_structures: Any = cgutils


def _borrowed(typingctx: Any, array: Any) -> Any:
    """The same array without an owner. The caller must hold the original for as long as this is used."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        view = _structures.create_struct_proxy(signature.args[0])(context, builder, value=arguments[0])
        view.meminfo = _structures.get_null_value(view.meminfo.type)
        view.parent = _structures.get_null_value(view.parent.type)
        return view._getvalue()

    return array(array), generate


if TYPE_CHECKING:
    Inner = TypeVar("Inner")

    def borrowed(array: Any) -> Any:
        """As `_borrowed`, within a kernel."""

    def inner(kernel: Inner) -> Inner:
        """A kernel that only kernels call."""

else:
    borrowed = intrinsic(_borrowed)
    inner = njit(nogil=True, cache=True, forceinline=True, error_model="numpy")
