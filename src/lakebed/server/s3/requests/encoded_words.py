"""Metadata beyond ASCII in headers: decode it by RFC 2047 when it arrives, and encode it when it is sent, as S3
does.
"""

from __future__ import annotations

import base64
import binascii
import quopri
import re
from typing import Final

_WORD: Final = re.compile(r"=\?(utf-8|us-ascii|iso-8859-1)(?:\*[a-z-]{0,8})?\?([bq])\?([^?\s]*)\?=", re.IGNORECASE)
_CONTROLS: Final = re.compile(r"[\x00-\x1f\x7f]")


def encode_words(text: str) -> str:
    """Encode a text so that any header can contain it. ASCII is not changed."""
    return text if text.isascii() else f"=?UTF-8?B?{base64.b64encode(text.encode()).decode()}?="


def decode_words(text: str) -> str:
    """Decode the text of a header. A text that no header could contain again stays encoded."""
    if "=?" not in text:
        return text
    shown = ""
    end = 0
    for match in _WORD.finditer(text):
        between = text[end : match.start()]
        if not end or not between.isspace():
            shown += between  # White space between two encoded words is not part of the text.
        try:
            shown += _decoded(match[2], match[3]).decode(match[1])
        except (binascii.Error, UnicodeError):
            return text
        end = match.end()
    shown += text[end:]
    return text if _CONTROLS.search(shown) else shown


def _decoded(encoding: str, text: str) -> bytes:
    if encoding in "bB":
        return base64.b64decode(text.encode(), validate=True)
    return quopri.decodestring(text.encode(), header=True)
