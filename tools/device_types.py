"""The table of device types, platforms/data/device_types.csv, for the tools beside it."""
import csv
import pathlib

TABLE = pathlib.Path(__file__).resolve().parent.parent / "platforms/data/device_types.csv"


def device_types():
    """The rows by every name of their type."""
    with open(TABLE, newline="") as lines:
        rows = list(csv.DictReader(line for line in lines if not line.startswith("#")))
    return {name: row for row in rows for name in [row["name"], *row["other_names"].split("|")]}


def sheet(name):
    """Peak of fp16 in FLOP/s and bandwidth of the memory in B/s, as the data sheet of a type has them."""
    row = device_types()[name]
    return float(row["fp16_tflop_s"]) * 1e12, float(row["memory_gb_s"]) * 1e9
