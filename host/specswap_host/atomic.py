"""Files that are either the old text or the new text, never half of one."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from pathlib import Path
from typing import Any, Union

PathLike = Union[str, "os.PathLike[str]"]

_CHUNK_BYTES = 1 << 20


def fsync_directory(path: PathLike) -> None:
    """Make the names in directory `path` durable; errors: OSError."""
    fd = os.open(os.fspath(path), os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write_bytes(path: PathLike, data: bytes, mode: int = 0o644) -> None:
    """Replace `path` by `data` with permissions `mode`: temporary file beside it, fsync, rename, directory fsync.

    The parent directory must exist. Errors: OSError; the old file is then untouched and no temporary file stays.
    """
    target = Path(path)
    fd, temporary = tempfile.mkstemp(prefix=f".{target.name}.", suffix=".tmp", dir=target.parent)
    try:
        with os.fdopen(fd, "wb") as stream:
            stream.write(data)
            stream.flush()
            os.fchmod(stream.fileno(), mode)
            os.fsync(stream.fileno())
        Path(temporary).replace(target)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    fsync_directory(target.parent)


def write_text(path: PathLike, text: str, mode: int = 0o644) -> None:
    """Replace `path` by `text` (UTF-8), durable and all at once; see `write_bytes`."""
    write_bytes(path, text.encode("utf-8"), mode)


def json_text(obj: Any) -> str:
    """The one JSON form of files we write: sorted keys, two blanks of indent, a final newline."""
    return json.dumps(obj, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def write_json(path: PathLike, obj: Any, mode: int = 0o644) -> None:
    """Replace `path` by `obj` as JSON, durable and all at once; see `write_bytes` and `json_text`."""
    write_text(path, json_text(obj), mode)


def read_json(path: PathLike) -> Any:
    """The JSON value in `path`. Errors: FileNotFoundError; ValueError that names the file when it is no JSON."""
    text = Path(path).read_text(encoding="utf-8")
    try:
        return json.loads(text)
    except ValueError as error:
        raise ValueError(f"{os.fspath(path)}: not valid JSON ({error})") from error


def sha256_bytes(data: bytes) -> str:
    """Hex SHA-256 (64 digits) of `data`."""
    return hashlib.sha256(data).hexdigest()


def sha256_file(path: PathLike) -> str:
    """Hex SHA-256 (64 digits) of the file's content, read in chunks. Errors: OSError."""
    digest = hashlib.sha256()
    with Path(path).open("rb") as stream:
        for chunk in iter(lambda: stream.read(_CHUNK_BYTES), b""):
            digest.update(chunk)
    return digest.hexdigest()
