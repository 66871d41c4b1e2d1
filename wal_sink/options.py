"""Declares the options of the sink itself, and parses options. Targets declare their options in the same way.

An option is a field of a frozen struct, with a name, a type, a default and a description. Errors quote the
description, and `reference` makes the documentation from it. Spark passes strings, which msgspec converts and
validates. A duration or a size may have a suffix, see `units`.
"""

from __future__ import annotations

import functools
import json
import re
import threading
from collections import Counter
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, TypeVar
from urllib.parse import parse_qsl

import msgspec
from msgspec import Meta

from wal_sink.errors import OptionError
from wal_sink.units import EXAMPLES, plain_number, with_unit


class Declared(NamedTuple):
    """An option, as a struct declares it."""

    field: str
    """Name of the field."""
    name: str
    """The name that a user writes."""
    default: object
    """`msgspec.NODEFAULT` if the option is required."""
    types: tuple[msgspec.inspect.Type, ...]
    """The types that a value may have."""
    words: Mapping[str, str]
    """The words that the option accepts, by the same words in lower case."""
    text: str
    """The description, as declared."""
    extra: Mapping[str, object]
    """The marks of the option, such as `SECRET`."""
    unit: str
    """The unit of a number, a key of `UNITS`; empty for none."""

    @property
    def required(self) -> bool:
        """True if the option has no default."""
        return self.default is msgspec.NODEFAULT

    @property
    def default_text(self) -> str:
        """The default as the log has it; empty for a required option."""
        return "" if self.required else str(self.default)

    @property
    def accepted_values(self) -> list[str]:
        """The values that the option accepts, in words, the default first."""
        words: list[str] = []
        for type_ in self.types:
            match type_:
                case msgspec.inspect.LiteralType(values):
                    words += sorted(map(str, filter(None, values)), key=lambda v: v != self.default)
                case msgspec.inspect.BoolType():
                    words += ["true", "false"]
                case msgspec.inspect.IntType() | msgspec.inspect.FloatType() if self.unit:
                    words.append("a size" if self.unit == "bytes" else "a duration")
                case msgspec.inspect.IntType():
                    words.append("a whole number")
                case msgspec.inspect.FloatType():
                    words.append("a number")
                case msgspec.inspect.StrType() | msgspec.inspect.DictType():
                    words.append("text")
        return words


def _declared(field: msgspec.structs.FieldInfo) -> Declared:
    def bare(type_: msgspec.inspect.Type) -> msgspec.inspect.Type:
        return type_.type if isinstance(type_, msgspec.inspect.Metadata) else type_

    info = msgspec.inspect.type_info(field.type)
    kind = bare(info)
    several = kind.types if isinstance(kind, msgspec.inspect.UnionType) else (kind,)
    types = tuple(map(bare, several))
    literals = [kind.values for kind in types if isinstance(kind, msgspec.inspect.LiteralType)]
    extra = getattr(info, "extra", None) or {}
    return Declared(
        field.name,
        field.encode_name,
        field.default_factory() if callable(field.default_factory) else field.default,
        types,
        {str(word).lower(): str(word) for values in literals for word in values},
        str((getattr(info, "extra_json_schema", None) or {}).get("description", "")),
        extra,
        extra.get("unit", ""),
    )


SPARK_OPTIONS = ("checkpointLocation", "queryName", "path")
"""Spark's own options. Spark passes them to the sink, too."""

SECRET = {"secret": True}
"""`extra` of an option whose value is never written or printed."""

CONNECTS = {"connects": True}
"""`extra` of an option that says where a connection goes, or how it is protected. Its value decides who gets
the secrets. So a command that has a secret uses the value in the log only after the operator has confirmed
the value."""

SHAPES = {"shapes": True}
"""`extra` of an option that changes what is written. A log has one plan for each schema and set of these
options, see `shape`."""

SECONDS, MILLISECONDS, BYTES = ({"unit": unit} for unit in ("seconds", "milliseconds", "bytes"))
"""`extra` of an option that is a number of this unit, or a number with a suffix: `10s`, `64m`."""

_CENTURY = {"seconds": 100 * 365 * 86_400, "milliseconds": 100 * 365 * 86_400_000}


COLUMN = "<column>"
"""End of the name of an option that has a value for each column: for `a.b.<column>` a user writes
`a.b.price`. The field is a dict of texts by column, in lower case as Spark passes them."""


_SECRET_PARAMETER = re.compile(r"pass(word|wd)?$|pwd$|secret|token|odbc_connect", re.IGNORECASE)


def secret_parameter(url: str) -> str:
    """Return the name of a URL's parameter that is a secret, which the log must not have; empty for none."""
    names = (name for name, _ in parse_qsl(url.partition("?")[2], keep_blank_values=True))
    return next(filter(_SECRET_PARAMETER.search, names), "")


def connecting(struct: type[Options]) -> list[str]:
    """Return the names of the options that say where a connection goes, and who connects."""
    return [
        f"{option.name} (or {option.extra['environment']})"
        if "environment" in option.extra
        else option.name
        for option in fields(struct)
        if option.extra.keys() & {"connects", "environment"}
    ]


def from_environment(variable: str) -> dict[str, object]:
    """Return the `extra` of an option whose value may also be in an environment variable."""
    return {"environment": variable}


VARIABLE_IS_READ = (
    "A query uses the variable's value of when the Spark session was made; a flusher reads it at each"
    " try."
)
"""The end of the remedy for a login that a target refuses."""


def about(description: str, *extras: Mapping[str, object], **bounds: Any) -> Meta:
    """Return the metadata of an option, for the annotation of its type.

    :param extras: marks, such as `SECRET` and `SHAPES`.
    :param bounds: arguments of `msgspec.Meta`. A duration with a bound is also limited to a century, since
        database drivers cannot wait for `inf`.
    """
    extra = {k: v for e in extras for k, v in e.items()}
    if bounds and (century := _CENTURY.get(str(extra.get("unit")))) is not None:
        bounds = {"le": century, **bounds}
    return Meta(description=description, extra=extra, **bounds)


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """The base of every struct that declares options. `repr` shows no secret."""

    others: ClassVar[Mapping[str, str]] = MappingProxyType({})
    """Options of other clients of the database, with what to do about each."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({public(self)})"


class SinkOptions(Options, frozen=True, kw_only=True):
    """The sink's own options, which are the same for every target."""

    checkpoint: Annotated[
        str,
        about(
            "Spark's checkpoint of the query. Its query id is the identity of the sink. Give it as an"
            " option: Spark does not pass the setting spark.sql.streaming.checkpointLocation to a sink",
            min_length=1,
        ),
    ] = msgspec.field(name="checkpointLocation")
    wal_location: Annotated[
        str,
        about(
            "URL of the folder of the log. Driver and executors share it. Default: the folder wal_sink in"
            " the checkpoint"
        ),
    ] = msgspec.field(name="wal.location", default="")
    storage_options: Annotated[
        str, about("JSON object for the fsspec file system of the log, such as its keys", SECRET)
    ] = msgspec.field(name="wal.storageOptions", default="")
    checkpoint_storage_options: Annotated[
        str,
        about(
            "JSON object for the fsspec file system of the checkpoint. Default: wal.storageOptions, if"
            " both are in one kind of store",
            SECRET,
        ),
    ] = msgspec.field(name="checkpoint.storageOptions", default="")
    one_driver: Annotated[
        bool,
        about(
            "true: you make sure that a driver of the query has ended before the next one starts. A"
            " checkpoint in a bucket is refused without it, and one that Spark writes by another class than"
            " its own"
        ),
    ] = msgspec.field(name="checkpoint.oneDriver", default=False)
    compression: Annotated[
        Literal["lz4", "zstd", "none"], about("Compression of the segments of the log")
    ] = msgspec.field(name="wal.compression", default="lz4")
    max_bytes: Annotated[
        int,
        about(
            "Budget of the log: most bytes of unflushed data, 1 or more, such as 10g", BYTES, ge=1
        ),
    ] = msgspec.field(name="wal.maxBytes", default=10 * 1024**3)
    on_full: Annotated[
        Literal["block", "fail"],
        about(
            "What happens when the log has reached wal.maxBytes. block: the next epoch waits. fail: the"
            " query fails"
        ),
    ] = msgspec.field(name="wal.onFull", default="block")
    distributed_above_bytes: Annotated[
        int,
        about(
            "Bytes of segments in one window. A Spark job writes a larger window, and the thread of the"
            " flusher a smaller one. -1: never a Spark job",
            BYTES,
            ge=-1,
        ),
    ] = msgspec.field(name="flush.distributedAboveBytes", default=32 * 1024 * 1024)
    targets: Annotated[
        str,
        about(
            "Names of several targets, comma-separated, such as orders,lake. Each gets every row. The"
            " options of each begin with its name: orders.target, orders.table"
        ),
    ] = msgspec.field(name="targets", default="")
    target: Annotated[
        str, about("Kind of store: the name of an installed target, or module:Class of your own")
    ] = msgspec.field(name="target", default="cassandra")
    on_invalid_row: Annotated[
        Literal["fail", "quarantine"],
        about(
            "What happens to a row that the target refuses. fail: the query or its flush stops."
            " quarantine: the row is kept with its reason, and the others are written. See wal-sink"
            " quarantine"
        ),
    ] = msgspec.field(name="onInvalidRow", default="fail")
    epoch_column: Annotated[
        str, about("A bigint column of the table, into which the sink writes the epoch of each row")
    ] = msgspec.field(name="epochColumn", default="")
    retention: Annotated[
        float,
        about(
            "How long a flushed epoch stays in the log, 0 or more: a target that goes back, for example to"
            " a restored backup or a promoted replica, gets it again. At most a tenth of wal.maxBytes stays",
            SECONDS,
            ge=0,
        ),
    ] = msgspec.field(name="wal.retention", default=600.0)
    max_rows_per_second: Annotated[
        Annotated[int, Meta(ge=1)] | None,
        about(
            "Most rows that the flush of the query writes in a second, 1 or more. Default: no bound"
        ),
    ] = msgspec.field(name="flush.maxRowsPerSecond", default=None)


S = TypeVar("S", bound=Options)


@functools.cache
def fields(struct: type[Options]) -> tuple[Declared, ...]:
    """Return the options that a struct declares, required options first.

    The result is cached, since inspecting a struct takes milliseconds, and a worker calls this function every
    epoch.
    """
    declared = map(_declared, msgspec.structs.fields(struct))
    return tuple(sorted(declared, key=lambda option: not option.required))


def names(*declared: type[Options]) -> list[str]:
    """Return the names of all options that structs declare."""
    return [option.name for struct in declared for option in fields(struct)]


class Named(NamedTuple):
    """A declared option, found by a name that a user has written."""

    option: str
    """The declared name of the option."""
    column: str = ""
    """The column in lower case, if the option ends with `COLUMN`; otherwise empty."""


def named(written: str, declared: Iterable[str]) -> Named | None:
    """Return the declared option that `written` names, in upper or lower case; None if there is none."""
    lower = written.lower()
    for option in declared:
        first = option.lower().removesuffix(COLUMN)
        if option.endswith(COLUMN):
            if lower.startswith(first) and lower != first:
                return Named(option, lower[len(first) :])
        elif lower == first:
            return Named(option)
    return None


_LEARNING = threading.Lock()
"""Held while msgspec converts options, since the first conversion to a type is not thread-safe, see
`model.codec.prepare_decoders`."""


def parse(raw: Mapping[str, str], struct: type[S]) -> S:
    """Parse the options in `raw` that `struct` declares, and ignore others; names are case-insensitive.

    :raises OptionError: a required option is missing, or a value is not of the option's type.
    """
    mine: dict[str, str | dict[str, str]] = {}
    declared = names(struct)
    for key, value in raw.items():
        if (name := named(key, declared)) is None:
            continue
        if name.column:
            columns = mine.setdefault(name.option, {})
            assert isinstance(columns, dict)
            columns[name.column] = value
        else:
            mine[name.option] = value
    for option in fields(struct):
        text = mine.get(option.name)
        if isinstance(text, str):
            word = option.words.get(text.strip().lower(), text)
            mine[option.name] = plain_number(text, option.unit) if option.unit else word
        if option.required and not str(mine.get(option.name, "")).strip():
            raise OptionError(
                f"Option {option.name} is missing.",
                f'Add .option("{option.name}", …): {option.text or option.name}.',
            )
    try:
        with _LEARNING:
            return msgspec.convert(mine, struct, strict=False)
    except msgspec.ValidationError as error:
        _, _, place = str(error).rstrip("`").partition(" - at `$.")
        written = next((raw[key] for key in raw if key.lower() == place.lower()), mine.get(place))
        raise _unfit(place, written, struct) from error


def refuse_repeated(option: str, names: Iterable[str]) -> None:
    """Refuse an option that has a name twice.

    :raises OptionError: a name is repeated.
    """
    for name, count in Counter(names).items():
        if count > 1:
            raise OptionError(f"Option {option} has '{name}' twice.", "Leave out one of the two.")


def json_pairs(
    option: str, text: str, example: str, *, secret: bool = False
) -> tuple[tuple[str, object], ...]:
    """Return the names and values of the JSON object in an option.

    :param example: the correct form of the option.
    :param secret: True if errors must not show its text.
    :raises OptionError: the text is not a JSON object, or a name is repeated.
    """
    try:
        pairs = json.loads(text, object_pairs_hook=tuple)  # an array is a list
    except ValueError:
        pairs = None
    if not isinstance(pairs, tuple):
        raise OptionError(
            f"Option {option} is not a JSON object" + ("." if secret else f": {text}"),
            f"Write it as {example}, names and texts in double quotes.",
        )
    refuse_repeated(option, (name for name, _ in pairs))
    return pairs


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """An option, as the reference of options shows it."""

    name: str
    takes: str
    """The values that the option accepts, in words."""
    default: str
    """The default as a user would write it; `required`, or empty if there is none."""
    text: str
    """The purpose of the option, in sentences."""
    environment: str
    """The environment variable that may have the value; empty for none."""
    secret: bool
    """True if the value is never shown."""


_DEFAULT = re.compile(r"[;.] [Dd]efault: (?P<default>.*)$")
"""The end of a description that names the default."""


_VALUE_FIRST = re.compile(r"\w+: ")
"""The beginning of a description whose first word is a value."""


def reference(struct: type[Options]) -> list[Entry]:
    """Return the options that a struct declares, in the order of `fields`."""
    return [_entry(option) for option in fields(struct)]


def _entry(option: Declared) -> Entry:
    text, default = option.text, _written(option)
    if match := _DEFAULT.search(text):
        text, default = text[: match.start()], match["default"]
    return Entry(
        name=option.name,
        takes=", ".join(option.accepted_values),
        default=default,
        text=f"{text}." if _VALUE_FIRST.match(text) else f"{text[:1].upper()}{text[1:]}.",
        environment=str(option.extra.get("environment", "")),
        secret="secret" in option.extra,
    )


def _written(option: Declared) -> str:
    """Return a default as a user would write it."""
    if option.required:
        return "required"
    default = option.default
    if isinstance(default, bool):
        return str(default).lower()
    if option.unit and isinstance(default, int | float):
        return with_unit(default, option.unit)
    return str(default) if isinstance(default, str | int | float) else ""


def lowered(raw: Mapping[str, str]) -> dict[str, str]:
    """Return options by their names in lower case."""
    return {name.lower(): value for name, value in raw.items()}


def options_of(name: str, raw: Mapping[str, str]) -> dict[str, str]:
    """Return the options of a target, without the prefix `<name>.`; all options for an empty name."""
    if not name:
        return dict(raw)
    first = f"{name}."
    return {key[len(first) :]: value for key, value in raw.items() if key.lower().startswith(first)}


def qualified(name: str, option: str) -> str:
    """Return an option or a heading with the name of its target in front; unchanged if the name is empty."""
    return f"{name}.{option}" if name else option


def as_texts(options: Mapping[str, object]) -> dict[str, str]:
    """Return Python values as the texts that Spark would pass. Values of None are left out."""
    return {
        name: str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in options.items()
        if value is not None
    }


def public(options: Options) -> dict[str, str]:
    """Return options as texts by name, without secrets and without empty values."""
    return _texts(
        options, (option for option in fields(type(options)) if "secret" not in option.extra)
    )


def shape(options: Options) -> dict[str, str]:
    """Return the options with `SHAPES` as texts by name.

    Options that have their default are left out. So a new option does not change the key of existing plans.
    """
    shaping = (
        option
        for option in fields(type(options))
        if "shapes" in option.extra and getattr(options, option.field) != option.default
    )
    return _texts(options, shaping)


def _texts(options: Options, declared: Iterable[Declared]) -> dict[str, str]:
    texts: dict[str, str] = {}
    for option in declared:
        value = getattr(options, option.field)
        if isinstance(value, dict):
            prefix = option.name.removesuffix(COLUMN)
            texts |= {f"{prefix}{column}": item for column, item in value.items()}
        elif value not in (None, ""):
            texts[option.name] = str(value)
    return texts


def marked(struct: type[Options], mark: str) -> dict[str, object]:
    """Return `extra[mark]` of each option that has the mark, by field."""
    return {option.field: option.extra[mark] for option in fields(struct) if mark in option.extra}


def _unfit(name: str, value: object, struct: type[Options]) -> OptionError:
    """Return the error for a value that does not fit an option, without the value of a secret."""
    option = next((option for option in fields(struct) if option.name == name), None)
    if option is None:
        return OptionError(f"Option {name} has a value that does not fit.", "Correct the value.")
    problem = "have this value" if "secret" in option.extra else f"be {value!r:.200}"
    takes = EXAMPLES[option.unit] if option.unit else " or ".join(option.accepted_values)
    return OptionError(
        f"Option {name} cannot {problem}.", f"{name} takes {takes}: {option.text or name}."
    )
