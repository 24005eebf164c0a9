from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Query(_message.Message):
    __slots__ = ("protocol", "query_id", "plan", "purpose", "kind", "shape", "attributes", "positions", "columns", "mechanism", "noise", "norm_bits", "weight_bits", "parameters", "declaration", "triangular")
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    QUERY_ID_FIELD_NUMBER: _ClassVar[int]
    PLAN_FIELD_NUMBER: _ClassVar[int]
    PURPOSE_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    ATTRIBUTES_FIELD_NUMBER: _ClassVar[int]
    POSITIONS_FIELD_NUMBER: _ClassVar[int]
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    MECHANISM_FIELD_NUMBER: _ClassVar[int]
    NOISE_FIELD_NUMBER: _ClassVar[int]
    NORM_BITS_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_BITS_FIELD_NUMBER: _ClassVar[int]
    PARAMETERS_FIELD_NUMBER: _ClassVar[int]
    DECLARATION_FIELD_NUMBER: _ClassVar[int]
    TRIANGULAR_FIELD_NUMBER: _ClassVar[int]
    protocol: int
    query_id: str
    plan: bytes
    purpose: str
    kind: str
    shape: str
    attributes: _containers.RepeatedScalarFieldContainer[str]
    positions: bytes
    columns: int
    mechanism: str
    noise: int
    norm_bits: int
    weight_bits: _containers.RepeatedScalarFieldContainer[int]
    parameters: str
    declaration: Declaration
    triangular: bool
    def __init__(self, protocol: _Optional[int] = ..., query_id: _Optional[str] = ..., plan: _Optional[bytes] = ..., purpose: _Optional[str] = ..., kind: _Optional[str] = ..., shape: _Optional[str] = ..., attributes: _Optional[_Iterable[str]] = ..., positions: _Optional[bytes] = ..., columns: _Optional[int] = ..., mechanism: _Optional[str] = ..., noise: _Optional[int] = ..., norm_bits: _Optional[int] = ..., weight_bits: _Optional[_Iterable[int]] = ..., parameters: _Optional[str] = ..., declaration: _Optional[_Union[Declaration, _Mapping]] = ..., triangular: _Optional[bool] = ...) -> None: ...

class Declaration(_message.Message):
    __slots__ = ("strategy", "notion", "dual_counts", "dual_step", "constraint_gradient", "audit")
    STRATEGY_FIELD_NUMBER: _ClassVar[int]
    NOTION_FIELD_NUMBER: _ClassVar[int]
    DUAL_COUNTS_FIELD_NUMBER: _ClassVar[int]
    DUAL_STEP_FIELD_NUMBER: _ClassVar[int]
    CONSTRAINT_GRADIENT_FIELD_NUMBER: _ClassVar[int]
    AUDIT_FIELD_NUMBER: _ClassVar[int]
    strategy: str
    notion: str
    dual_counts: DualCounts
    dual_step: DualStep
    constraint_gradient: ConstraintGradient
    audit: Audit
    def __init__(self, strategy: _Optional[str] = ..., notion: _Optional[str] = ..., dual_counts: _Optional[_Union[DualCounts, _Mapping]] = ..., dual_step: _Optional[_Union[DualStep, _Mapping]] = ..., constraint_gradient: _Optional[_Union[ConstraintGradient, _Mapping]] = ..., audit: _Optional[_Union[Audit, _Mapping]] = ...) -> None: ...

class DualCounts(_message.Message):
    __slots__ = ("step", "bound", "damping", "signed", "least", "totals")
    STEP_FIELD_NUMBER: _ClassVar[int]
    BOUND_FIELD_NUMBER: _ClassVar[int]
    DAMPING_FIELD_NUMBER: _ClassVar[int]
    SIGNED_FIELD_NUMBER: _ClassVar[int]
    LEAST_FIELD_NUMBER: _ClassVar[int]
    TOTALS_FIELD_NUMBER: _ClassVar[int]
    step: int
    bound: int
    damping: int
    signed: bool
    least: int
    totals: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, step: _Optional[int] = ..., bound: _Optional[int] = ..., damping: _Optional[int] = ..., signed: _Optional[bool] = ..., least: _Optional[int] = ..., totals: _Optional[_Iterable[int]] = ...) -> None: ...

class DualStep(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ConstraintGradient(_message.Message):
    __slots__ = ("attribute", "event")
    ATTRIBUTE_FIELD_NUMBER: _ClassVar[int]
    EVENT_FIELD_NUMBER: _ClassVar[int]
    attribute: int
    event: int
    def __init__(self, attribute: _Optional[int] = ..., event: _Optional[int] = ...) -> None: ...

class Audit(_message.Message):
    __slots__ = ("name", "cells", "totals", "selected", "whose", "model_sha256")
    NAME_FIELD_NUMBER: _ClassVar[int]
    CELLS_FIELD_NUMBER: _ClassVar[int]
    TOTALS_FIELD_NUMBER: _ClassVar[int]
    SELECTED_FIELD_NUMBER: _ClassVar[int]
    WHOSE_FIELD_NUMBER: _ClassVar[int]
    MODEL_SHA256_FIELD_NUMBER: _ClassVar[int]
    name: str
    cells: str
    totals: _containers.RepeatedScalarFieldContainer[int]
    selected: str
    whose: str
    model_sha256: str
    def __init__(self, name: _Optional[str] = ..., cells: _Optional[str] = ..., totals: _Optional[_Iterable[int]] = ..., selected: _Optional[str] = ..., whose: _Optional[str] = ..., model_sha256: _Optional[str] = ...) -> None: ...

class SeededColumn(_message.Message):
    __slots__ = ("body", "seed")
    BODY_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    body: bytes
    seed: bytes
    def __init__(self, body: _Optional[bytes] = ..., seed: _Optional[bytes] = ...) -> None: ...

class ColumnsHeader(_message.Message):
    __slots__ = ("query_id", "attempt", "query_hash", "block", "blocks", "indicators", "zero")
    QUERY_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    QUERY_HASH_FIELD_NUMBER: _ClassVar[int]
    BLOCK_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    INDICATORS_FIELD_NUMBER: _ClassVar[int]
    ZERO_FIELD_NUMBER: _ClassVar[int]
    query_id: str
    attempt: bytes
    query_hash: bytes
    block: int
    blocks: int
    indicators: int
    zero: SeededColumn
    def __init__(self, query_id: _Optional[str] = ..., attempt: _Optional[bytes] = ..., query_hash: _Optional[bytes] = ..., block: _Optional[int] = ..., blocks: _Optional[int] = ..., indicators: _Optional[int] = ..., zero: _Optional[_Union[SeededColumn, _Mapping]] = ...) -> None: ...

class Column(_message.Message):
    __slots__ = ("block", "indicator", "column")
    BLOCK_FIELD_NUMBER: _ClassVar[int]
    INDICATOR_FIELD_NUMBER: _ClassVar[int]
    COLUMN_FIELD_NUMBER: _ClassVar[int]
    block: int
    indicator: int
    column: SeededColumn
    def __init__(self, block: _Optional[int] = ..., indicator: _Optional[int] = ..., column: _Optional[_Union[SeededColumn, _Mapping]] = ...) -> None: ...

class SumHeader(_message.Message):
    __slots__ = ("query_id", "attempt", "query_hash", "columns_hash", "commitment", "parts_hash", "parts")
    QUERY_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    QUERY_HASH_FIELD_NUMBER: _ClassVar[int]
    COLUMNS_HASH_FIELD_NUMBER: _ClassVar[int]
    COMMITMENT_FIELD_NUMBER: _ClassVar[int]
    PARTS_HASH_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    query_id: str
    attempt: bytes
    query_hash: bytes
    columns_hash: bytes
    commitment: bytes
    parts_hash: bytes
    parts: int
    def __init__(self, query_id: _Optional[str] = ..., attempt: _Optional[bytes] = ..., query_hash: _Optional[bytes] = ..., columns_hash: _Optional[bytes] = ..., commitment: _Optional[bytes] = ..., parts_hash: _Optional[bytes] = ..., parts: _Optional[int] = ...) -> None: ...

class SumPart(_message.Message):
    __slots__ = ("index", "ciphertext")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    CIPHERTEXT_FIELD_NUMBER: _ClassVar[int]
    index: int
    ciphertext: bytes
    def __init__(self, index: _Optional[int] = ..., ciphertext: _Optional[bytes] = ...) -> None: ...

class Answer(_message.Message):
    __slots__ = ("query_id", "plan", "request_hash", "values", "units", "sequence", "ledger_head", "signature")
    QUERY_ID_FIELD_NUMBER: _ClassVar[int]
    PLAN_FIELD_NUMBER: _ClassVar[int]
    REQUEST_HASH_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    UNITS_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    LEDGER_HEAD_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    query_id: str
    plan: bytes
    request_hash: bytes
    values: bytes
    units: int
    sequence: int
    ledger_head: bytes
    signature: bytes
    def __init__(self, query_id: _Optional[str] = ..., plan: _Optional[bytes] = ..., request_hash: _Optional[bytes] = ..., values: _Optional[bytes] = ..., units: _Optional[int] = ..., sequence: _Optional[int] = ..., ledger_head: _Optional[bytes] = ..., signature: _Optional[bytes] = ...) -> None: ...

class Refusal(_message.Message):
    __slots__ = ("query_id", "code", "text")
    QUERY_ID_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    query_id: str
    code: str
    text: str
    def __init__(self, query_id: _Optional[str] = ..., code: _Optional[str] = ..., text: _Optional[str] = ...) -> None: ...

class OpeningDemand(_message.Message):
    __slots__ = ("query_id", "plan", "request_hash", "auditor", "signature", "seed", "millionths", "cells_hash")
    QUERY_ID_FIELD_NUMBER: _ClassVar[int]
    PLAN_FIELD_NUMBER: _ClassVar[int]
    REQUEST_HASH_FIELD_NUMBER: _ClassVar[int]
    AUDITOR_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    MILLIONTHS_FIELD_NUMBER: _ClassVar[int]
    CELLS_HASH_FIELD_NUMBER: _ClassVar[int]
    query_id: str
    plan: bytes
    request_hash: bytes
    auditor: bytes
    signature: bytes
    seed: bytes
    millionths: int
    cells_hash: bytes
    def __init__(self, query_id: _Optional[str] = ..., plan: _Optional[bytes] = ..., request_hash: _Optional[bytes] = ..., auditor: _Optional[bytes] = ..., signature: _Optional[bytes] = ..., seed: _Optional[bytes] = ..., millionths: _Optional[int] = ..., cells_hash: _Optional[bytes] = ...) -> None: ...

class OpeningHeader(_message.Message):
    __slots__ = ("query_id", "request_hash", "size", "parts", "box_hash", "signature")
    QUERY_ID_FIELD_NUMBER: _ClassVar[int]
    REQUEST_HASH_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    BOX_HASH_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    query_id: str
    request_hash: bytes
    size: int
    parts: int
    box_hash: bytes
    signature: bytes
    def __init__(self, query_id: _Optional[str] = ..., request_hash: _Optional[bytes] = ..., size: _Optional[int] = ..., parts: _Optional[int] = ..., box_hash: _Optional[bytes] = ..., signature: _Optional[bytes] = ...) -> None: ...

class OpeningPart(_message.Message):
    __slots__ = ("index", "body")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    BODY_FIELD_NUMBER: _ClassVar[int]
    index: int
    body: bytes
    def __init__(self, index: _Optional[int] = ..., body: _Optional[bytes] = ...) -> None: ...

class KeyRequest(_message.Message):
    __slots__ = ("plan", "cohort", "attribute", "first", "points")
    PLAN_FIELD_NUMBER: _ClassVar[int]
    COHORT_FIELD_NUMBER: _ClassVar[int]
    ATTRIBUTE_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    POINTS_FIELD_NUMBER: _ClassVar[int]
    plan: bytes
    cohort: bytes
    attribute: str
    first: int
    points: bytes
    def __init__(self, plan: _Optional[bytes] = ..., cohort: _Optional[bytes] = ..., attribute: _Optional[str] = ..., first: _Optional[int] = ..., points: _Optional[bytes] = ...) -> None: ...

class KeyHeader(_message.Message):
    __slots__ = ("request_hash", "point")
    REQUEST_HASH_FIELD_NUMBER: _ClassVar[int]
    POINT_FIELD_NUMBER: _ClassVar[int]
    request_hash: bytes
    point: bytes
    def __init__(self, request_hash: _Optional[bytes] = ..., point: _Optional[bytes] = ...) -> None: ...

class KeyPart(_message.Message):
    __slots__ = ("index", "body")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    BODY_FIELD_NUMBER: _ClassVar[int]
    index: int
    body: bytes
    def __init__(self, index: _Optional[int] = ..., body: _Optional[bytes] = ...) -> None: ...

class Frame(_message.Message):
    __slots__ = ("query", "columns_header", "column", "sum_header", "sum_part", "answer", "refusal", "opening_demand", "opening_header", "opening_part", "key_request", "key_header", "key_part")
    QUERY_FIELD_NUMBER: _ClassVar[int]
    COLUMNS_HEADER_FIELD_NUMBER: _ClassVar[int]
    COLUMN_FIELD_NUMBER: _ClassVar[int]
    SUM_HEADER_FIELD_NUMBER: _ClassVar[int]
    SUM_PART_FIELD_NUMBER: _ClassVar[int]
    ANSWER_FIELD_NUMBER: _ClassVar[int]
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    OPENING_DEMAND_FIELD_NUMBER: _ClassVar[int]
    OPENING_HEADER_FIELD_NUMBER: _ClassVar[int]
    OPENING_PART_FIELD_NUMBER: _ClassVar[int]
    KEY_REQUEST_FIELD_NUMBER: _ClassVar[int]
    KEY_HEADER_FIELD_NUMBER: _ClassVar[int]
    KEY_PART_FIELD_NUMBER: _ClassVar[int]
    query: Query
    columns_header: ColumnsHeader
    column: Column
    sum_header: SumHeader
    sum_part: SumPart
    answer: Answer
    refusal: Refusal
    opening_demand: OpeningDemand
    opening_header: OpeningHeader
    opening_part: OpeningPart
    key_request: KeyRequest
    key_header: KeyHeader
    key_part: KeyPart
    def __init__(self, query: _Optional[_Union[Query, _Mapping]] = ..., columns_header: _Optional[_Union[ColumnsHeader, _Mapping]] = ..., column: _Optional[_Union[Column, _Mapping]] = ..., sum_header: _Optional[_Union[SumHeader, _Mapping]] = ..., sum_part: _Optional[_Union[SumPart, _Mapping]] = ..., answer: _Optional[_Union[Answer, _Mapping]] = ..., refusal: _Optional[_Union[Refusal, _Mapping]] = ..., opening_demand: _Optional[_Union[OpeningDemand, _Mapping]] = ..., opening_header: _Optional[_Union[OpeningHeader, _Mapping]] = ..., opening_part: _Optional[_Union[OpeningPart, _Mapping]] = ..., key_request: _Optional[_Union[KeyRequest, _Mapping]] = ..., key_header: _Optional[_Union[KeyHeader, _Mapping]] = ..., key_part: _Optional[_Union[KeyPart, _Mapping]] = ...) -> None: ...
