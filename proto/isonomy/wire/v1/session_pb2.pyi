from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Envelope(_message.Message):
    __slots__ = ("sequence", "ack", "sender", "recipient", "plan", "link", "query_id", "purpose", "hello", "hello_reply", "plan_agreement", "data", "heartbeat", "error_note", "close")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    ACK_FIELD_NUMBER: _ClassVar[int]
    SENDER_FIELD_NUMBER: _ClassVar[int]
    RECIPIENT_FIELD_NUMBER: _ClassVar[int]
    PLAN_FIELD_NUMBER: _ClassVar[int]
    LINK_FIELD_NUMBER: _ClassVar[int]
    QUERY_ID_FIELD_NUMBER: _ClassVar[int]
    PURPOSE_FIELD_NUMBER: _ClassVar[int]
    HELLO_FIELD_NUMBER: _ClassVar[int]
    HELLO_REPLY_FIELD_NUMBER: _ClassVar[int]
    PLAN_AGREEMENT_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    ERROR_NOTE_FIELD_NUMBER: _ClassVar[int]
    CLOSE_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    ack: int
    sender: str
    recipient: str
    plan: bytes
    link: bytes
    query_id: str
    purpose: str
    hello: Hello
    hello_reply: HelloReply
    plan_agreement: PlanAgreement
    data: Data
    heartbeat: Heartbeat
    error_note: ErrorNote
    close: Close
    def __init__(self, sequence: _Optional[int] = ..., ack: _Optional[int] = ..., sender: _Optional[str] = ..., recipient: _Optional[str] = ..., plan: _Optional[bytes] = ..., link: _Optional[bytes] = ..., query_id: _Optional[str] = ..., purpose: _Optional[str] = ..., hello: _Optional[_Union[Hello, _Mapping]] = ..., hello_reply: _Optional[_Union[HelloReply, _Mapping]] = ..., plan_agreement: _Optional[_Union[PlanAgreement, _Mapping]] = ..., data: _Optional[_Union[Data, _Mapping]] = ..., heartbeat: _Optional[_Union[Heartbeat, _Mapping]] = ..., error_note: _Optional[_Union[ErrorNote, _Mapping]] = ..., close: _Optional[_Union[Close, _Mapping]] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("protocol", "role", "token", "resume_secret")
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    RESUME_SECRET_FIELD_NUMBER: _ClassVar[int]
    protocol: int
    role: str
    token: bytes
    resume_secret: bytes
    def __init__(self, protocol: _Optional[int] = ..., role: _Optional[str] = ..., token: _Optional[bytes] = ..., resume_secret: _Optional[bytes] = ...) -> None: ...

class HelloReply(_message.Message):
    __slots__ = ("protocol", "present")
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    PRESENT_FIELD_NUMBER: _ClassVar[int]
    protocol: int
    present: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, protocol: _Optional[int] = ..., present: _Optional[_Iterable[str]] = ...) -> None: ...

class PlanAgreement(_message.Message):
    __slots__ = ("ephemeral", "reply_wanted", "signature")
    EPHEMERAL_FIELD_NUMBER: _ClassVar[int]
    REPLY_WANTED_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    ephemeral: bytes
    reply_wanted: bool
    signature: bytes
    def __init__(self, ephemeral: _Optional[bytes] = ..., reply_wanted: _Optional[bool] = ..., signature: _Optional[bytes] = ...) -> None: ...

class Data(_message.Message):
    __slots__ = ("exchange", "frame", "last", "chunk", "chunks", "digest", "signature", "summed", "total")
    EXCHANGE_FIELD_NUMBER: _ClassVar[int]
    FRAME_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    CHUNKS_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    SUMMED_FIELD_NUMBER: _ClassVar[int]
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    exchange: int
    frame: int
    last: bool
    chunk: int
    chunks: int
    digest: bytes
    signature: bytes
    summed: bool
    total: bytes
    def __init__(self, exchange: _Optional[int] = ..., frame: _Optional[int] = ..., last: _Optional[bool] = ..., chunk: _Optional[int] = ..., chunks: _Optional[int] = ..., digest: _Optional[bytes] = ..., signature: _Optional[bytes] = ..., summed: _Optional[bool] = ..., total: _Optional[bytes] = ...) -> None: ...

class DualValues(_message.Message):
    __slots__ = ("round", "multiplier_bits")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    MULTIPLIER_BITS_FIELD_NUMBER: _ClassVar[int]
    round: int
    multiplier_bits: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, round: _Optional[int] = ..., multiplier_bits: _Optional[_Iterable[int]] = ...) -> None: ...

class Heartbeat(_message.Message):
    __slots__ = ("present",)
    PRESENT_FIELD_NUMBER: _ClassVar[int]
    present: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, present: _Optional[_Iterable[str]] = ...) -> None: ...

class ErrorNote(_message.Message):
    __slots__ = ("code", "text", "fatal")
    CODE_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    FATAL_FIELD_NUMBER: _ClassVar[int]
    code: str
    text: str
    fatal: bool
    def __init__(self, code: _Optional[str] = ..., text: _Optional[str] = ..., fatal: _Optional[bool] = ...) -> None: ...

class Close(_message.Message):
    __slots__ = ("code", "text", "signature")
    CODE_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    code: str
    text: str
    signature: bytes
    def __init__(self, code: _Optional[str] = ..., text: _Optional[str] = ..., signature: _Optional[bytes] = ...) -> None: ...

class PooledTotals(_message.Message):
    __slots__ = ("query_id", "attempt", "masked", "masks_hash")
    QUERY_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    MASKED_FIELD_NUMBER: _ClassVar[int]
    MASKS_HASH_FIELD_NUMBER: _ClassVar[int]
    query_id: str
    attempt: bytes
    masked: bytes
    masks_hash: bytes
    def __init__(self, query_id: _Optional[str] = ..., attempt: _Optional[bytes] = ..., masked: _Optional[bytes] = ..., masks_hash: _Optional[bytes] = ...) -> None: ...

class PooledReply(_message.Message):
    __slots__ = ("header_hashes", "masked_total", "block", "totals_hash")
    HEADER_HASHES_FIELD_NUMBER: _ClassVar[int]
    MASKED_TOTAL_FIELD_NUMBER: _ClassVar[int]
    BLOCK_FIELD_NUMBER: _ClassVar[int]
    TOTALS_HASH_FIELD_NUMBER: _ClassVar[int]
    header_hashes: _containers.RepeatedScalarFieldContainer[bytes]
    masked_total: bytes
    block: int
    totals_hash: bytes
    def __init__(self, header_hashes: _Optional[_Iterable[bytes]] = ..., masked_total: _Optional[bytes] = ..., block: _Optional[int] = ..., totals_hash: _Optional[bytes] = ...) -> None: ...
