"""Rank 0 is the rank that saves: as rank 0 of N a script writes nothing where the user's files are.

Checkpoints and uploads are left out and reported. Any other file that the script opens for writing, and any folder
that it makes, goes into a folder of ours, where it finds them again; what it would remove or rename stays. Temporary
folders, caches and devices are as always. Standard library only.
"""

# pathlib is slow to import, and asks functions that are replaced here.
# ruff: noqa: PTH100, PTH103, PTH109, PTH111, PTH112, PTH113, PTH118, PTH120
from __future__ import annotations

import builtins
import functools
import io
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from typing import Any

_ELSEWHERE = ("/dev/", "/proc/", "/sys/")
_MOST = 50  # Lines about saves
_Note = Callable[[str], None]


class Writes:
    """Files that a script would change, and where they go instead."""

    def __init__(self, folder: str, saved: _Note, warn: _Note) -> None:
        self._ours = os.path.realpath(folder)
        # The same for all processes of a session, and apart for each of several that run next to each other.
        self._shadow = os.path.join(self._ours, f"writes-{os.getsid(0)}")
        self._saved, self._warn = saved, warn
        self._said: set[str] = set()
        self._moved: set[str] = set()  # Paths that are in our folder now
        self._began_in = os.getcwd()
        self._near: dict[str, tuple[str, ...]] = {}
        self._free = tuple(_folders())
        sys.dont_write_bytecode = True
        self._replace_functions()
        self.watches: dict[str, Callable[[Any], None]] = {
            "torch.serialization": self._watch_torch,
            "torch.distributed.checkpoint.state_dict_saver": self._watch_saver,
            "torch.distributed.checkpoint.state_dict_loader": self._watch_loader,
            "safetensors.torch": self._watch_safetensors,
            "huggingface_hub.hf_api": self._watch_hub,
        }

    # Whose a path is

    def _is_users(self, path: str) -> bool:
        """True for all in the folders of the script and of its start, wherever they are, and for most elsewhere."""
        script = getattr(sys.modules.get("__main__"), "__file__", None) or ""
        if script not in self._near:
            near = {self._began_in, os.path.dirname(os.path.realpath(script))} if script else {self._began_in}
            self._near[script] = tuple(each + os.sep for each in near - {"/", tempfile.gettempdir()})
        inside = path + os.sep
        if inside.startswith(self._ours + os.sep) or inside.startswith(_ELSEWHERE):
            return False
        return inside.startswith(self._near[script]) or not inside.startswith(self._free)

    def _is_moved(self, path: str) -> bool:
        """True if a path, or a folder around it, is in our folder now."""
        while self._moved and len(path) > 1:
            if path in self._moved:
                return True
            path = os.path.dirname(path)
        return False

    def _path(self, given: Any) -> str:
        """The whole path of a file that is the user's; empty: it is not, or no path at all."""
        try:
            text = os.fspath(given)
        except TypeError:  # a descriptor
            return ""
        path = os.path.realpath(os.fsdecode(text))
        return path if self._is_users(path) else ""

    def _in_shadow(self, path: str) -> str:
        return self._shadow + path

    def _say(self, what: str) -> None:
        if what not in self._said and len(self._said) < _MOST:
            self._said.add(what)
            self._saved(what)

    # Functions of Python's own

    def _replace_functions(self) -> None:
        opens = functools.wraps(io.open)(functools.partial(self._open, io.open))
        builtins.open = io.open = opens
        changed: dict[str, Callable[..., Any]] = {
            "open": self._os_open,
            "mkdir": self._mkdir,
            "stat": self._look,
            "lstat": self._look,
            "listdir": self._look,
            "scandir": self._look,
            "access": self._look,
        }
        for name in ("remove", "unlink", "rmdir", "rename", "replace", "truncate", "symlink", "link", "chmod", "utime"):
            changed[name] = functools.partial(self._leave, name)
        for name, function in changed.items():
            original = getattr(os, name)
            ours = _by_position(functools.partial(function, original), original)
            setattr(os, name, ours)
            for able in (os.supports_dir_fd, os.supports_fd, os.supports_follow_symlinks, os.supports_effective_ids):
                if original in able:
                    able.add(ours)
        rmtree: Any = shutil.rmtree
        shutil.rmtree = _by_position(functools.partial(self._leave, "rmtree", rmtree), rmtree)

    def _open(self, original: Any, file: Any, mode: Any = "r", *more: Any, **options: Any) -> Any:
        writes = bool(set(str(mode)) & set("wax+"))  # what is only read is not looked at closely: it may be all data
        path = self._path(file) if writes and not isinstance(file, int) else ""
        if not path:
            return self._look(original, file, mode, *more, **options)
        self._move(path, keeps="w" not in mode)
        return original(self._in_shadow(path), mode, *more, **options)

    def _os_open(self, original: Any, file: Any, flags: int, *more: Any, **options: Any) -> Any:
        writes = flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
        path = self._path(file) if writes and options.get("dir_fd") is None else ""
        if not path:
            return self._look(original, file, flags, *more, **options)
        self._move(path, keeps=not flags & os.O_TRUNC)
        return original(self._in_shadow(path) if self._is_moved(path) else file, flags, *more, **options)

    def _move(self, path: str, *, keeps: bool) -> None:
        """From now on this file is in our folder, with what is in it if that is kept."""
        there = self._in_shadow(path)
        if not self._is_moved(path):
            folder = os.path.dirname(path)
            if not os.path.isdir(folder):
                return  # as without us: there is no such folder
            _make_folders(os.path.dirname(there))
            if keeps and os.path.isfile(path):
                shutil.copyfile(path, there)
            self._moved.add(path)
            self._say(f"a file: {path}")

    def _mkdir(self, original: Any, folder: Any, *more: Any, **options: Any) -> Any:
        path = self._path(folder)
        if not path or os.path.isdir(path):
            return original(folder, *more, **options)
        if not os.path.isdir(os.path.dirname(path)):
            return original(folder, *more, **options)
        _make_folders(self._in_shadow(path))
        self._moved.add(path)
        self._say(f"a folder: {path}")
        return None

    def _look(self, original: Any, file: Any = ".", *more: Any, **options: Any) -> Any:
        """Look up moved paths where they are now; a folder that was there before shows only its own files."""
        if self._moved and not isinstance(file, int):
            try:
                path = os.path.abspath(os.fsdecode(file))
            except TypeError:
                path = ""
            if self._is_moved(path):
                return original(self._in_shadow(path), *more, **options)
        return original(file, *more, **options)

    def _leave(self, name: str, original: Any, file: Any, *more: Any, **options: Any) -> Any:
        """Files of the user stay as they are; those that were moved are ours."""
        path = self._path(file) if options.get("dir_fd") is None else ""
        target = self._path(more[0]) if more and name in ("rename", "replace", "symlink", "link") else ""
        if not path and not target:
            return original(file, *more, **options)
        if name in ("rename", "replace") and (not path or self._is_moved(path)):
            self._move(target, keeps=False) if target else None
            source = self._in_shadow(path) if path else file
            self._moved.discard(path)
            return original(source, self._in_shadow(target) if target else more[0])
        if self._is_moved(path):
            if name in ("remove", "unlink", "rmdir", "rmtree"):
                self._moved.discard(path)
            return original(self._in_shadow(path), *more, **options)
        self._say(f"{name} of {path or target}")
        return None

    # Checkpoints and uploads

    def _watch_torch(self, module: Any) -> None:
        save, load = module.save, module.load

        @functools.wraps(save)
        def saves(obj: Any, f: Any, *more: Any, **options: Any) -> Any:
            path = self._of_file(f)
            if path:
                self._say(f"torch.save: {path}")
                return None
            return save(obj, self._aside(f), *more, **options)

        @functools.wraps(load)
        def loads(f: Any, *more: Any, **options: Any) -> Any:
            if path := self._of_file(f):
                self._warn(f"the script loads {path}: it may go on from a checkpoint")
            return load(f, *more, **options)

        module.save, module.load = saves, loads

    def _aside(self, file: Any) -> Any:
        """A name in our folder for a temporary file, which somebody may keep, or load again; anything else as it is."""
        if not isinstance(file, (str, bytes, os.PathLike)):
            return file
        path = os.path.realpath(os.fsdecode(os.fspath(file)))
        if not path.startswith((self._ours + os.sep, *_ELSEWHERE)):
            self._move(path, keeps=False)
        return self._in_shadow(path) if self._is_moved(path) else file

    def _of_file(self, file: Any) -> str:
        """The user's path of a file, by name or open; empty: it is in memory, or none of the user's."""
        name = getattr(file, "name", None) if hasattr(file, "write") or hasattr(file, "read") else file
        if not isinstance(name, (str, bytes, os.PathLike)):
            return ""
        path = self._path(name)
        text = os.path.realpath(os.fsdecode(os.fspath(name)))
        inside = text.startswith(self._shadow + os.sep)  # one that we opened elsewhere
        return path or (text[len(self._shadow) :] if inside else "")

    def _watch_saver(self, module: Any) -> None:
        """Eight equal plans are no valid plan, and nothing is to be written anyway."""
        for name in ("save", "async_save", "save_state_dict", "_save_state_dict"):
            if hasattr(module, name):
                setattr(module, name, self._left_out(f"torch.distributed.checkpoint.{name}", getattr(module, name)))

    def _watch_loader(self, module: Any) -> None:
        for name in ("load", "load_state_dict"):
            original = getattr(module, name, None)
            if original is not None:
                setattr(module, name, self._warned(original))

    def _warned(self, original: Any) -> Any:
        @functools.wraps(original)
        def load(*arguments: Any, **options: Any) -> Any:
            self._warn("the script loads a sharded checkpoint: it may go on from it")
            return original(*arguments, **options)

        return load

    def _watch_safetensors(self, module: Any) -> None:
        for name in ("save_file", "save_model"):
            setattr(module, name, self._left_out(f"safetensors {name}", getattr(module, name), is_file=True))

    def _watch_hub(self, module: Any) -> None:
        for name in ("create_repo", "create_commit", "upload_file", "upload_folder", "upload_large_folder"):
            if hasattr(module.HfApi, name):
                function = self._left_out(f"Hugging Face Hub: {name}", getattr(module.HfApi, name), _Repository)
                setattr(module.HfApi, name, function)
                if hasattr(module, name):  # bound to one instance for everybody
                    setattr(module, name, functools.partial(function, None))

    def _left_out(
        self,
        what: str,
        original: Any,
        result: Callable[..., Any] = lambda *_, **__: None,
        *,
        is_file: bool = False,
    ) -> Any:
        """The function that says what it would do; one that writes a file named second does it elsewhere."""

        @functools.wraps(original)
        def leave(*arguments: Any, **options: Any) -> Any:
            file = options.get("filename") or "".join(map(str, arguments[1:2]))
            if is_file and not self._path(file):
                return original(*arguments, **options)
            named = options.get("checkpoint_id") or options.get("filename") or options.get("repo_id")
            words = [each for each in (*arguments, named) if isinstance(each, (str, os.PathLike))]
            self._say(f"{what}: {os.fspath(words[0])}" if words else what)
            return result(*arguments, **options)

        return leave


class _Repository(str):
    """Result of an upload: the name of the repository, wherever it is asked for."""

    def __new__(cls, *arguments: Any, **options: Any) -> _Repository:
        named = options.get("repo_id") or next((each for each in arguments if isinstance(each, str)), "")
        made = super().__new__(cls, named)
        made.repo_id = named  # type: ignore[attr-defined]
        return made

    def __getattr__(self, name: str) -> str:
        if name.startswith("__"):
            raise AttributeError(name)
        return ""

    def result(self, timeout: Any = None) -> _Repository:
        """Return the repository, as a finished upload in the background would."""
        return self

    def done(self) -> bool:
        """Return True: the upload counts as done."""
        return True


def _folders() -> list[str]:
    """Beginnings of temporary folders and caches, in which a script works as always."""
    named = [os.environ.get(name) for name in ("XDG_CACHE_HOME", "HF_HOME", "TORCH_HOME", "TORCHINDUCTOR_CACHE_DIR")]
    found = [tempfile.gettempdir(), "/tmp", "/var/tmp", "/run", *filter(None, named)]
    hidden = os.path.realpath(os.path.expanduser("~")) + os.sep + "."  # .cache, .triton, .config and so on
    return [*(os.path.realpath(each) + os.sep for each in found), hidden]


def _by_position(function: Callable[..., Any], original: Any) -> Any:
    """The function, called with its paths by position however a script calls it."""

    @functools.wraps(original)
    def call(*arguments: Any, **options: Any) -> Any:
        paths = [options.pop(name) for name in ("path", "src", "dst") if name in options]
        return function(*arguments, *paths, **options)

    return call


def _make_folders(path: str) -> None:
    """In our own folder; os.makedirs asks functions that we replaced."""
    os.makedirs(path, exist_ok=True)
