"""The messages of proto/polysketch/v1/polysketch.proto that the tests send and read, by their field numbers."""

import struct


def varint(value):
    value &= (1 << 64) - 1
    out = bytearray()
    while value >= 128:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def field(number, value):
    if isinstance(value, float):
        return varint(number << 3 | 5) + struct.pack("<f", value)
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    value = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(value)) + value


def parse(message):
    """Number of a field -> its values: int, bytes, or the bytes of a fixed number."""
    fields, at = {}, 0

    def integer():
        nonlocal at
        value = shift = 0
        while True:
            byte = message[at]
            value, shift, at = value | (byte & 127) << shift, shift + 7, at + 1
            if byte < 128:
                return value

    while at < len(message):
        key = integer()
        if key & 7 == 0:
            value = integer()
        else:
            length = {1: 8, 5: 4}.get(key & 7) or integer()
            value, at = message[at:at + length], at + length
        fields.setdefault(key >> 3, []).append(value)
    return fields


def integers(packed):
    """The values of a packed repeated field."""
    values, value, shift = [], 0, 0
    for byte in packed:
        value, shift = value | (byte & 127) << shift, shift + 7
        if byte < 128:
            values.append(value)
            value = shift = 0
    return values


def complete_request(prompt="", max_tokens=16, seed=7, session="", echo=False, logprobs=None, ignore_eos=True, n=1):
    text = field(1, field(1, prompt)) if prompt else b""
    sampling = field(2, field(1, 0.8) + field(9, seed))
    message = text + sampling + field(3, max_tokens) + field(6, int(ignore_eos))
    if logprobs is not None:
        message += field(8, logprobs)
    if echo:
        message += field(9, 1)
    if n > 1:
        message += field(10, n)
    if session:
        message += field(20, session)
    return message


def append_request(session="", text=""):
    return (field(1, session) if session else b"") + (field(3, text) if text else b"")


def delta_tokens(response):
    """The tokens in a CompleteResponse; empty unless it is a delta."""
    tokens = []
    for delta in parse(response).get(1, ()):
        for packed in parse(delta).get(2, ()):
            tokens += integers(packed) if isinstance(packed, bytes) else [packed]
    return tokens


def session_id(session):
    """Of a Session message."""
    return parse(session)[1][0].decode()


def session_tokens(session):
    return parse(session).get(2, [0])[0]
