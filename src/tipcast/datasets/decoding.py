"""Texts of other encodings as UTF-8."""

import codecs
from collections.abc import Iterator

from tipcast.config.errors import TipcastError


def decoded(stored: Iterator[bytes], encoding: str, where: str) -> Iterator[bytes]:
    """Yield a text in UTF-8, given pieces of its bytes in another encoding.

    A text that begins with UTF-8's byte order mark is UTF-8 whatever is said. Raises D016 with the
    line for bytes that are not of the encoding, and for a text that is UTF-8 where it is said to be
    of one byte a letter: its letters would become others without a word.
    """
    first = next(stored, b"")
    if first.startswith(codecs.BOM_UTF8):
        yield first
        yield from stored
        return

    if _has_single_bytes(encoding) and _is_utf8(first):
        what = f"is UTF-8, not {encoding}"
        fix = "set data.encoding=utf-8 (for scoring, encoding=utf-8)"
        raise TipcastError("D016", where, what, fix)

    decoder = codecs.getincrementaldecoder(encoding)()
    line = 1
    for piece, is_last in _with_end(first, stored):
        try:
            text = decoder.decode(piece, final=is_last)
        except UnicodeDecodeError as problem:
            before = problem.object[: problem.start].decode(encoding, "replace")
            what = f"line {line + before.count(chr(10))} is not {encoding}: {problem.reason}"
            raise _not_so(where, what) from problem
        except UnicodeError as problem:
            raise _not_so(where, f"is not {encoding}: {problem}") from problem

        line += text.count("\n")
        yield text.encode("utf-8", "surrogatepass")


def _not_so(where: str, what: str) -> TipcastError:
    fix = "set the file's encoding, such as data.encoding=cp1252 (for scoring, encoding=cp1252)"
    return TipcastError("D016", where, what, fix)


def _with_end(first: bytes, stored: Iterator[bytes]) -> Iterator[tuple[bytes, bool]]:
    """Yield pieces, and an empty one as the end."""
    yield first, False
    for piece in stored:
        yield piece, False
    yield b"", True


def _has_single_bytes(encoding: str) -> bool:
    """Whether a letter of an encoding is always one byte."""
    return len(bytes(range(256)).decode(encoding, "replace")) == 256


def _is_utf8(text: bytes) -> bool:
    """Whether the beginning of a text has other letters than ASCII's, all of them in UTF-8."""
    if text.isascii():
        return False
    try:
        codecs.getincrementaldecoder("utf-8")().decode(text)
    except UnicodeDecodeError:
        return False
    return True
