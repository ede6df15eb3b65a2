"""The manifest of a checkpoint lists its files with sizes and SHA-256. It is written last and contains its own SHA-256."""

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, ClassVar

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from laser_rl.checkpoint import guarded
from laser_rl.checkpoint.guarded import JSON_LIMIT_BYTES, Damaged, OtherFormat
from laser_rl.checkpoint.segments import SegmentEntry

FORMAT = 2
NAME = "manifest.json"
# Stands for the manifest's own SHA-256 while that is computed. Later formats must do the same: the SHA-256 is checked before the format.
_BLANK = "0" * 64
_Size = Annotated[int, Field(ge=0)]
_Sha256 = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


@dataclass(frozen=True)
class FileEntry:
    """The size and the SHA-256 that a file must have."""

    bytes: _Size
    sha256: _Sha256


@dataclass(frozen=True)
class Manifest:
    """What a checkpoint consists of."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    step: _Size
    files: dict[str, FileEntry]
    segments: tuple[SegmentEntry, ...] = ()
    format: int = FORMAT
    sha256: _Sha256 = _BLANK


_ADAPTER = TypeAdapter(Manifest)


def encode(manifest: Manifest) -> bytes:
    blank = json.dumps(asdict(manifest), indent=1, sort_keys=True).encode()
    return blank.replace(_BLANK.encode(), hashlib.sha256(blank).hexdigest().encode())


def decode(path: Path, data: bytes) -> Manifest:
    """The manifest that was read from `path`; raises `Damaged` if a single bit differs from what was written."""
    fields = guarded.parse_json(path, data)
    claimed = fields.get("sha256")
    if not isinstance(claimed, str) or len(claimed) != len(_BLANK):
        raise Damaged(path, f"has the SHA-256 {claimed!r}, expected {len(_BLANK)} digits")
    if hashlib.sha256(data.replace(claimed.encode(), _BLANK.encode())).hexdigest() != claimed:
        raise Damaged(path, "does not match its own SHA-256")
    # Only now: a flipped bit in the number of the format must not be taken for a newer release.
    if fields.get("format") != FORMAT:
        raise OtherFormat(path, fields.get("format"), FORMAT)
    try:
        manifest = _ADAPTER.validate_json(data, strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        raise Damaged(path, f"is wrong at {'.'.join(map(str, first['loc']))}: {first['msg']}") from None
    for name in (*manifest.files, *(entry.name for entry in manifest.segments)):
        if not guarded.plain_name(name):
            raise Damaged(path, f"names {name!r}, expected the name of a file in the run directory")
    return manifest


def read(folder: Path) -> Manifest:
    path = folder / NAME
    return decode(path, guarded.read_bytes(path, limit=JSON_LIMIT_BYTES))


def entry_of(data: bytes) -> FileEntry:
    return FileEntry(len(data), hashlib.sha256(data).hexdigest())
