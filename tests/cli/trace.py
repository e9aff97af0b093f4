"""Rules for every trace, simulated or measured: those of the Chrome trace format that viewers rely on."""

import collections
import json
import pathlib

NUMBER = (int, float)
FIELDS = {
    "M": {"name": str, "pid": int, "args": dict},
    "X": {"name": str, "cat": str, "pid": int, "tid": int, "ts": NUMBER, "dur": NUMBER, "args": dict},
    "C": {"name": str, "pid": int, "ts": NUMBER, "args": dict},
    "s": {"name": str, "cat": str, "id": int, "pid": int, "tid": int, "ts": NUMBER},
    "f": {"name": str, "cat": str, "id": int, "pid": int, "tid": int, "ts": NUMBER, "bp": str},
}
TRANSFER = {"s": "Send", "f": "Recv"}
COMPUTATIONS = ("Forward", "Backward", "BackwardInput", "BackwardWeight", "Update")


def read_trace(path):
    return json.loads(pathlib.Path(path).read_text())


def assert_is_trace(test, path, tick_us=1e-4):
    """Checks fields and their types, tracks with names and without overlap, positions, counters in order of time, and
    arrows in pairs that begin and end within their events. Returns the events of instructions."""
    events = read_trace(path)["traceEvents"]
    for event in events:
        fields = FIELDS[event["ph"]]
        for field, kind in fields.items():
            test.assertIsInstance(event[field], kind, event)
        if event["ph"] != "M":
            test.assertGreaterEqual(event["ts"], 0, event)
    named = {event["pid"] for event in events if event["name"] == "process_name"}
    tracks = collections.defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            test.assertGreaterEqual(event["dur"], 0, event)
            tracks[event["pid"], event["tid"]].append(event)
    test.assertLessEqual({process for process, _ in tracks}, named)
    test.assertLessEqual(set(tracks), set(track_names(events)))
    for track in tracks.values():
        track.sort(key=lambda event: (event["args"]["step"], event["args"]["position"]))
        for event, following in zip(track, track[1:]):
            test.assertLessEqual(event["ts"] + event["dur"], following["ts"] + tick_us, following)
        for step in {event["args"]["step"] for event in track}:
            positions = [event["args"]["position"] for event in track if event["args"]["step"] == step]
            test.assertEqual(positions, list(range(len(positions))))

    counters = collections.defaultdict(list)
    for event in events:
        if event["ph"] == "C":
            counters[event["pid"], event["name"]].append(event)
            test.assertIn(event["pid"], named)
    test.assertLessEqual({process for process, _ in tracks}, {process for process, name in counters if name == "memory"})
    for counter in counters.values():
        for event, following in zip(counter, counter[1:]):
            test.assertLessEqual(event["ts"], following["ts"], following)
        for event in counter:
            (value,) = event["args"].values()
            test.assertGreaterEqual(value, 0, event)

    arrows = collections.defaultdict(dict)
    for event in events:
        if event["ph"] in TRANSFER:
            test.assertNotIn(event["ph"], arrows[event["id"]], event)
            arrows[event["id"]][event["ph"]] = event
    transfers = [event for track in tracks.values() for event in track if event["cat"] in TRANSFER.values()]
    test.assertEqual(2 * len(arrows), len(transfers))
    for ends in arrows.values():
        test.assertEqual(set(ends), set(TRANSFER))
        places = set()
        for phase, end in ends.items():
            within = [event for event in tracks[end["pid"], end["tid"]] if event["cat"] == TRANSFER[phase] and
                      event["ts"] - tick_us <= end["ts"] <= event["ts"] + event["dur"] + tick_us and
                      event["name"].partition(",")[0] == f"{TRANSFER[phase]} {end['name']}"]
            test.assertEqual(len(within), 1, end)
            places.add(tuple(within[0]["args"][key] for key in ("step", "channel", "position")))
        test.assertEqual(len(places), 1, ends)
        test.assertEqual(ends["s"]["name"], ends["f"]["name"])
        test.assertLessEqual(ends["s"]["ts"], ends["f"]["ts"] + tick_us, ends)
    return [event for track in tracks.values() for event in track]


def track_names(events):
    """Names of the tracks by process and number."""
    return {(event["pid"], event["tid"]): event["args"]["name"] for event in events if event["name"] == "thread_name"}


def compute_s(events):
    """Seconds of computation by process."""
    busy = collections.Counter()
    for event in events:
        if event["cat"] in COMPUTATIONS:
            busy[event["pid"]] += 1e-6 * event["dur"]
    return busy
