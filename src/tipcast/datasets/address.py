"""Addresses of data: opening local and remote files, and naming them in messages without
credentials.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import SplitResult, urlsplit

import fsspec

from tipcast.config.errors import TipcastError

REMOTE = ("s3", "https", "http")
LOOPBACK = {"127.0.0.1", "localhost", "::1"}
_CONNECT_S = 10
AT_ONCE = 8
"""Files or parts that one process looks at side by side."""
POINTER_BYTES = 200
"""Of a pointer, enough to tell that it is one."""


def scheme(uri: str) -> str:
    """Return ``s3``, ``https``, ``http`` or, of a local path, nothing.

    Raises D021 for another one, and for http:// off this machine.
    """
    name, mark, _ = uri.partition("://")
    if not mark or name == "file":
        return ""
    if name not in REMOTE:
        what = f"{name}:// addresses are not supported"
        raise TipcastError("D021", shown(uri), what, "use a local path, s3:// or https://")

    host = _split(uri).hostname
    if name == "http" and host not in LOOPBACK:
        raise TipcastError(
            "D021",
            shown(uri),
            "with http://, anyone on the network path could change the data",
            "use https://",
        )

    return name


def _split(uri: str) -> SplitResult:
    try:
        return urlsplit(uri)
    except ValueError as problem:
        where = f"{uri.partition('://')[0]}://..."  # user info cannot be told from the rest
        raise TipcastError(
            "D021", where, f"is not an address: {problem}", "check its host"
        ) from problem


def shown(uri: str) -> str:
    """Return an address without user info, query and fragment, a path relative to the working
    folder if it is in it.
    """
    if "://" not in uri:
        path = Path(uri)
        return (
            str(path.relative_to(Path.cwd()))
            if path.is_absolute() and path.is_relative_to(Path.cwd())
            else uri
        )
    parts = _split(uri)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def last_name(uri: str) -> str:
    path = _split(uri).path if uri.startswith(("http://", "https://")) else uri
    return path.rstrip("/").rpartition("/")[2]


def storage(uri: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fsspec options for an address: the user's, with limits on what a silent server
    costs.
    """
    kind = scheme(uri)
    chosen = dict(options)
    if not kind:
        return {}
    if kind != "s3":
        return {**chosen, "client_kwargs": {"trust_env": True, **chosen.get("client_kwargs", {})}}

    config = {
        "connect_timeout": _CONNECT_S,
        "retries": {"total_max_attempts": 3},
        **chosen.get("config_kwargs", {}),
    }
    return {**chosen, "config_kwargs": config}


def filesystem(uri: str, options: Mapping[str, Any]) -> Any:
    """Return the fsspec file system of an address; ``options`` as ``storage`` made them."""
    return fsspec.filesystem(scheme(uri) or "file", **options)


@contextmanager
def reaching(uri: str) -> Iterator[None]:
    """Turn what goes wrong on the way to a file into an error that names its address and nothing
    secret.

    Raises D001 if it is not there or not readable, D022 if the remote end does not answer or
    refuses.
    """
    try:
        yield
        return
    except TipcastError:
        raise
    except Exception as problem:
        error = _translated(uri, problem)
        if error is None:
            raise

    # out here without the client library's own exception, which may not travel from a worker
    raise error


def _translated(uri: str, problem: BaseException) -> TipcastError | None:
    kind = scheme(uri)
    if kind in ("http", "https") and isinstance(problem, FileNotFoundError):
        # fsspec calls whatever goes wrong over http a missing file
        problem = problem.__cause__ or problem

    status = getattr(problem, "status", None)
    if isinstance(problem, FileNotFoundError) or status == 404:
        return TipcastError("D001", shown(uri), "no such file", "check the path")

    refused = isinstance(problem, PermissionError) or type(problem).__name__ == "NoCredentialsError"
    if not kind:
        where = shown(str(getattr(problem, "filename", None) or uri))
        fix = "change its permissions"
        return TipcastError("D001", where, "is not readable by this user", fix) if refused else None

    if refused or status in (401, 403):
        fix = (
            "set credentials in the environment, such as AWS_ACCESS_KEY_ID; for a public bucket "
            "storage_options.anon=true"
        )
        return TipcastError("D022", shown(uri), "access is denied", fix)

    what = f"cannot be reached ({type(problem).__name__}{f' {status}' if status else ''})"
    return TipcastError(
        "D022", shown(uri), what, "check the network and the address, or use local files"
    )


def changed(uri: str) -> TipcastError:
    """Return the error for a file that is not as it was listed."""
    return TipcastError(
        "D005",
        shown(uri),
        "has changed since it was listed",
        "do not change the file while a job reads it",
    )


def refuse_pointer(uri: str, content: bytes) -> None:
    """Refuse a file that begins as a pointer of git LFS or git-annex does. Raises D005."""
    begin = content[:POINTER_BYTES]
    if begin.startswith(b"version https://git-lfs.github.com/spec/"):
        what = "is a Git LFS pointer, not the data"
        fix = "run git lfs pull in its repository"
        raise TipcastError("D005", shown(uri), what, fix)
    if b"/annex/objects/" in begin.partition(b"\n")[0]:
        raise TipcastError(
            "D005",
            shown(uri),
            "is a git-annex pointer, not the data",
            f"run git annex get {last_name(uri)}",
        )


def no_file(path: Path) -> TipcastError:
    """Return the error (D001) of a local path at which no file can be read."""
    where = shown(str(path))
    try:
        is_there = path.exists()
        target = str(path.readlink()) if path.is_symlink() and not is_there else ""
    except (OSError, ValueError):  # the name is too long, or holds a null
        is_there = False
        target = ""

    if "/annex/objects/" in target:
        fix = f"run git annex get {path.name}"
        return TipcastError("D001", where, "is a git-annex link to data that is not here", fix)
    if target:
        return TipcastError(
            "D001", where, f"is a link to {target}, which does not exist", "fix or remove it"
        )

    what = "is not a regular file" if is_there else "no such file"
    return TipcastError("D001", where, what, "check the path")


@contextmanager
def opened(uri: str, options: Mapping[str, Any]) -> Iterator[BinaryIO]:
    """Open a file for reading bytes. Raises what ``reaching`` raises."""
    with reaching(uri), filesystem(uri, options).open(uri, "rb") as file:
        yield file


def identity(uri: str, options: Mapping[str, Any]) -> str:
    """Return what a store says of a file's content, which costs too much to read without need.

    Raises what ``reaching`` raises.
    """
    with reaching(uri):
        return f"{filesystem(uri, options).ukey(uri)} {size(uri, options)}"


def read_range(uri: str, options: Mapping[str, Any], start: int, length: int) -> bytes:
    """Read ``length`` bytes from ``start`` on (to the end where it is -1).

    Raises what ``reaching`` and ``seekable`` raise.
    """
    with opened(uri, options) as file:
        seekable(uri, file)
        file.seek(start)
        return file.read(length)


def seekable(uri: str, file: Any) -> None:
    """Refuse a remote file that can only be read from its beginning. Raises D022."""
    if scheme(uri) and type(file).__name__ == "HTTPStreamFile":
        what = "the server does not support byte ranges"
        raise TipcastError("D022", shown(uri), what, "download the file and use its local path")


def size(uri: str, options: Mapping[str, Any]) -> int:
    """Return the bytes of a file. Raises what ``reaching`` raises."""
    with reaching(uri):
        return int(filesystem(uri, options).info(uri)["size"] or 0)
