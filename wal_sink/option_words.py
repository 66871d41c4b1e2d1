"""Says of an option what it is for, and which values it takes; errors quote it."""

from __future__ import annotations

import msgspec


def description(field: msgspec.structs.FieldInfo) -> str:
    """Return an option's description, with the values it can have where they are few."""
    info = msgspec.inspect.type_info(field.type)
    schema = getattr(info, "extra_json_schema", None) or {}
    text = str(schema.get("description", field.encode_name))
    match _types(field):
        case [msgspec.inspect.LiteralType(values)]:
            text += f"; one of {', '.join(map(str, values))}"
    return text


def takes(field: msgspec.structs.FieldInfo) -> str:
    """Return which numbers an option takes; empty for what its description says, such as words."""
    match _types(field):
        case [msgspec.inspect.IntType(), *_]:
            return " takes a whole number"
        case [msgspec.inspect.FloatType(), *_]:
            return " takes a number"
    return ""


def _types(field: msgspec.structs.FieldInfo) -> list[msgspec.inspect.Type]:
    """Return the types that an option's value may have."""

    def bare(type_: msgspec.inspect.Type) -> msgspec.inspect.Type:
        return type_.type if isinstance(type_, msgspec.inspect.Metadata) else type_

    found = bare(msgspec.inspect.type_info(field.type))
    several = found.types if isinstance(found, msgspec.inspect.UnionType) else (found,)
    return [bare(each) for each in several]
