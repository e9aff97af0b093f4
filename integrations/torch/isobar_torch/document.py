"""Strict reading of plans (JSON) and workloads (YAML): every fault has its file, line and key."""

import json
import math
import pathlib
from collections.abc import Callable, Collection, Iterator
from typing import Any, NoReturn

import yaml

# The largest file that is read: plans of thousands of stages have a few megabytes.
MOST_BYTES = 64 * 2**20


class InputError(Exception):
    """The user's file, option or plan is wrong. Its text is one line: `place: what is there; what would be right`."""


def shown(value: Any) -> str:
    """A value for a message: on one line, at most 60 characters."""
    text = value if isinstance(value, str) else json.dumps(value)
    text = " ".join(text.split())
    return text if len(text) <= 60 else text[:57] + "..."


def read_text(path: str) -> str:
    """The text of a file. Raises InputError if it cannot be read, is too large, or is not UTF-8."""
    try:
        with open(path, "rb") as file:
            content = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from None
    if len(content) > MOST_BYTES:
        raise InputError(f"{path}: larger than {MOST_BYTES} bytes; it is no plan or workload")
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: byte {error.start + 1} is not UTF-8; save it as UTF-8") from None


def fnv1a(content: bytes) -> str:
    """64-bit FNV-1a in hexadecimal, as plans have it of their inputs."""
    value = 0xCBF29CE484222325
    for byte in content:
        value = (value ^ byte) * 0x100000001B3 % 2**64
    return f"{value:016x}"


def number_of(value: Any) -> float | None:
    """A finite number, also written as text; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


class Reader:
    """A mapping of a file. Each key is taken once; `finish` refuses the others.

    Values of YAML are texts, values of JSON have their types; the methods below read both.
    """

    def __init__(self, value: Any, source: "Source", path: tuple[str | int, ...] = ()) -> None:
        self.source, self.path = source, path
        if not isinstance(value, dict):
            self.fail(f"{shown(value)} is not a mapping")
        self.value: dict[str, Any] = value
        self.taken: set[str] = set()

    def fail(self, what: str, key: str | None = None) -> NoReturn:
        """Raises InputError at a key of this mapping, or at the mapping itself."""
        path = self.path if key is None else (*self.path, key)
        raise InputError(f"{self.source.place(path)}{what}")

    def has(self, key: str) -> bool:
        """Whether the mapping has the key, and not as null."""
        return self.value.get(key) is not None

    def any(self, key: str) -> Any:
        """The value of a key, of any type; None without it."""
        self.taken.add(key)
        return self.value.get(key)

    def required(self, key: str) -> Any:
        """The value of a key that must be there."""
        if not self.has(key):
            self.fail(f"{key} is missing")
        return self.any(key)

    def count(self, key: str, lowest: int, highest: int, default: int | None = None) -> int:
        """A whole number within the limits. Without a default the key must be there."""
        if default is not None and not self.has(key):
            self.taken.add(key)
            return default
        value = self.required(key)
        number = number_of(value)
        if number is None or number != int(number) or not lowest <= number <= highest:
            self.fail(f"{shown(value)} is not a whole number from {lowest} to {highest}", key)
        return int(number)

    def number(self, key: str, lowest: float, highest: float, default: float) -> float:
        """A number within the limits."""
        if not self.has(key):
            self.taken.add(key)
            return default
        value = self.any(key)
        number = number_of(value)
        if number is None or not lowest <= number <= highest:
            self.fail(f"{shown(value)} is not a number from {lowest:g} to {highest:g}", key)
        return number

    def text(self, key: str, default: str | None = None) -> str:
        """A text. Without a default the key must be there."""
        if default is not None and not self.has(key):
            self.taken.add(key)
            return default
        value = self.required(key)
        if not isinstance(value, str) or not value:
            self.fail(f"{shown(value)} is not a text", key)
        return value

    def choice(self, key: str, choices: Collection[str], default: str | None = None) -> str:
        """One of the texts."""
        value = self.text(key, default)
        if value not in choices:
            self.fail(f"{shown(value)}; use {' or '.join(choices)}", key)
        return value

    def flag(self, key: str, default: bool) -> bool:
        """A truth value."""
        value = self.any(key)
        if value is None:
            return default
        if value not in (True, False, "true", "false"):
            self.fail(f"{shown(value)} is not true or false", key)
        return value in (True, "true")

    def list(self, key: str) -> list[Any]:
        """A list that must be there."""
        value = self.required(key)
        if not isinstance(value, list):
            self.fail(f"{shown(value)} is not a list", key)
        return value

    def mappings(self, key: str) -> "Iterator[Reader]":
        """The mappings of a list that must be there."""
        for index, each in enumerate(self.list(key)):
            yield Reader(each, self.source, (*self.path, key, index))

    def mapping(self, key: str) -> "Reader":
        """A mapping that must be there."""
        return Reader(self.required(key), self.source, (*self.path, key))

    def skip(self, *keys: str) -> None:
        """Keys that may be there and change nothing here."""
        self.taken.update(keys)

    def finish(self, reason: Callable[[str], str] = lambda key: "unknown key; remove it") -> None:
        """Refuses the first key that was not taken."""
        for key in self.value:
            if key not in self.taken:
                self.fail(reason(key), key)


class Source:
    """The text of a file, to find the lines of its keys."""

    def __init__(self, name: str, text: str) -> None:
        self.name, self.text = name, text

    def place(self, path: tuple[str | int, ...]) -> str:
        """`file:line: key: `. Parses the text again, so it is for messages only."""
        line = 1
        node = yaml.compose(self.text, Loader=yaml.CSafeLoader if hasattr(yaml, "CSafeLoader") else yaml.SafeLoader)
        for step in path:
            if isinstance(node, yaml.MappingNode):
                found = [(key, value) for key, value in node.value if key.value == step]
                if not found:
                    break
                line, node = found[-1][0].start_mark.line + 1, found[-1][1]
            elif isinstance(node, yaml.SequenceNode) and isinstance(step, int) and step < len(node.value):
                node = node.value[step]
                line = node.start_mark.line + 1
        key = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path).lstrip(".")
        return f"{self.name}:{line}: {key}: " if key else f"{self.name}:{line}: "


def _without_duplicates(name: str) -> Callable[[list[tuple[str, Any]]], dict[str, Any]]:
    def make(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        keys = [key for key, _ in pairs]
        for key in keys:
            if keys.count(key) > 1:
                raise InputError(f"{name}: {shown(key)}: the key stands there twice; remove one")
        return dict(pairs)
    return make


def _refuse_constant(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not a number of JSON")


def read_json(path: str) -> Reader:
    """A JSON file whose top is an object. Raises InputError with the line of a fault."""
    text = read_text(path)
    try:
        value = json.loads(text, object_pairs_hook=_without_duplicates(path), parse_constant=_refuse_constant)
    except json.JSONDecodeError as error:
        raise InputError(f"{path}:{error.lineno}: {error.msg}; it is not JSON") from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: {error}") from None
    return Reader(value, Source(path, text))


def _value_of(node: yaml.Node, name: str) -> Any:
    if isinstance(node, yaml.ScalarNode):
        return None if node.value in ("", "~", "null") and not node.style else node.value
    if isinstance(node, yaml.SequenceNode):
        return [_value_of(each, name) for each in node.value]
    value: dict[str, Any] = {}
    for key, each in node.value:
        if key.value in value:
            raise InputError(f"{name}:{key.start_mark.line + 1}: {shown(key.value)}: the key stands there twice; remove one")
        value[key.value] = _value_of(each, name)
    return value


def read_yaml(path: str) -> Reader:
    """A YAML file whose top is a mapping, with texts as values. Raises InputError with the line of a fault."""
    text = read_text(path)
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise InputError(f"{path}:{line}: {error.problem}; it is not YAML") from None
    except (yaml.YAMLError, RecursionError) as error:
        raise InputError(f"{path}: {shown(str(error))}; it is not YAML") from None
    return Reader(_value_of(node, path) if node else None, Source(path, text))


def write_atomically(path: str, text: str) -> None:
    """Writes a file under a temporary name and renames it, so that a fault leaves the old file."""
    target = pathlib.Path(path)
    fresh = target.with_name(f".{target.name}.new")
    try:
        fresh.write_text(text, encoding="utf-8")
        fresh.replace(target)
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}; choose a file that can be written") from None
