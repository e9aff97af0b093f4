#!/usr/bin/env python3
"""Writes results/rounds/rounds.csv and the table of results/rounds/README.md: plans that train together in every step
beside plans of rounds (isobar plan --outer).

For each pair, `hybrid` plans the whole platform, with 8 micro-batches for each site, and then rounds: of 100 steps with
each codec, and those that --outer auto takes. Every plan is simulated, as the page says. Traffic between sites is that of
the links that platforms made by `isobar platform import` name wan.A.B. A cost needs the price of every device.
"""

import argparse
import csv
import json
import os
import pathlib
import shutil
import subprocess
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
FOLDER = ROOT / "results/rounds"
BEGIN, END = "<!-- begin of what tools/rounds_table.py writes -->\n", "<!-- end -->\n"
PAIRS = [(platform, workload) for platform in ("geo_8cities", "geo_12regions")
         for workload in ("gpt2_1.5b", "llama_8b")]
CHOICES = [["--outer", "100", "--outer-codec", "fp32"], ["--outer", "100", "--outer-codec", "int8"],
           ["--outer", "100", "--outer-codec", "int4", "--fragments", "4", "--delay", "5"], ["--outer", "auto"]]
MICROBATCHES = 8
COLUMNS = ["platform", "workload", "options", "sites", "devices", "steps", "codec", "fragments", "delay", "period_s",
           "simulated_s", "tokens_per_s", "utilization_fraction", "wan_bytes_per_s", "usd_per_million_tokens"]


def parser():
    result = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    built = ROOT / "build/release/bin/isobar"
    result.add_argument("--isobar", default=os.environ.get("ISOBAR") or shutil.which("isobar") or built,
                        help="the command (default: $ISOBAR, else isobar on the PATH, else build/release/bin/isobar)")
    result.add_argument("--results", type=pathlib.Path, default=FOLDER / "rounds.csv", help="the rows to write")
    result.add_argument("--page", type=pathlib.Path, default=FOLDER / "README.md", help="the page to change")
    result.add_argument("--keep-rows", action="store_true", help="keep the rows that the file has; run nothing")
    return result


class Runner:
    """Plans and simulates on one platform."""

    def __init__(self, isobar, platform, workload):
        self.isobar = isobar
        self.names = (platform, workload)
        self.files = [f"platforms/{platform}.xml", f"workloads/{workload}.yaml"]
        cluster = json.loads(self.run("platform", "show", self.files[0], "--json"))
        self.devices = {device["name"]: device for device in cluster["devices"]}

    def run(self, *arguments):
        return subprocess.run([self.isobar, *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout

    def row(self, options):
        """The row of a plan with these options of `isobar plan`."""
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder) / "plan.json"
            arguments = ["--allocator", "hybrid", "--recompute", "all", *options]
            self.run("plan", *self.files, *arguments, "-o", str(file))
            plan = json.loads(file.read_text())
            result = json.loads(self.run("simulate", *self.files, "--plan", str(file), "--json"))
        made = self.of_rounds(plan, result) if "workers" in plan else self.of_steps(plan, result)
        return {"platform": self.names[0], "workload": self.names[1], "options": " ".join(arguments)} | made

    def usd(self, used, tokens_per_s):
        prices = [self.devices[name]["price_usd_per_hour"] for name in used]
        return "" if None in prices else sum(prices) / 3600 / tokens_per_s * 1e6

    def sites(self, used):
        return len({self.devices[name]["site"] for name in used})

    @staticmethod
    def devices_of(plan):
        shards = [shard for stage in plan["stages"] for replica in stage.get("replicas", [stage])
                  for shard in replica.get("shards", replica.get("devices", []))]
        return {shard.get("device") or shard["name"] for shard in shards}

    def of_rounds(self, plan, result):
        used = set().union(*(self.devices_of(worker["plan"]) for worker in plan["workers"]))
        outer = plan["outer"]
        wan = sum(pair["bytes"] for pair in result["traffic"]) / result["round_time_s"]
        return {"sites": len(plan["workers"]), "devices": len(used), "steps": outer["steps"], "codec": outer["codec"],
                "fragments": outer["fragments"], "delay": outer["delay"],
                "period_s": plan["predicted"]["round_time_s"], "simulated_s": result["round_time_s"],
                "tokens_per_s": result["tokens_per_s"], "utilization_fraction": result["utilization_fraction"],
                "wan_bytes_per_s": wan, "usd_per_million_tokens": self.usd(used, result["tokens_per_s"])}

    def of_steps(self, plan, result):
        used = self.devices_of(plan)
        wan = sum(link["bytes"] for link in result["links"] if link["name"].startswith("wan."))
        return {"sites": self.sites(used), "devices": len(used), "steps": 1, "codec": "", "fragments": "", "delay": "",
                "period_s": plan["predicted"]["step_time_s"], "simulated_s": result["step_time_s"],
                "tokens_per_s": result["tokens_per_s"], "utilization_fraction": "",
                "wan_bytes_per_s": wan / result["step_time_s"],
                "usd_per_million_tokens": self.usd(used, result["tokens_per_s"])}


def rows_of(isobar):
    for platform, workload in PAIRS:
        runner = Runner(isobar, platform, workload)
        yield runner.row(["--microbatches", str(MICROBATCHES * runner.sites(runner.devices))])
        for choice in CHOICES:
            yield runner.row(["--microbatches", str(MICROBATCHES), *choice])


def text_of(value):
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def table_of(rows):
    lines = ["| platform | workload | plan | sites | devices | tokens/s | between sites MB/s | in steps | USD per million tokens |",
             "|---|---|---|---|---|---|---|---|---|"]
    for row in rows:
        plan = "every step together"
        if row["steps"] != "1":
            plan = f"{row['steps']} steps, {row['codec']}"
            if row["fragments"] != "1":
                plan += f", {row['fragments']} fragments"
            if row["delay"] != "0":
                plan += f", delay {row['delay']}"
            plan += " (auto)" if row["options"].endswith("--outer auto") else ""
        busy = f"{100 * float(row['utilization_fraction']):.1f} %" if row["utilization_fraction"] else "–"
        usd = f"{float(row['usd_per_million_tokens']):.3f}" if row["usd_per_million_tokens"] else "–"
        lines.append(f"| {row['platform']} | {row['workload']} | {plan} | {row['sites']} | {row['devices']} | "
                     f"{float(row['tokens_per_s']):.0f} | {float(row['wan_bytes_per_s']) / 1e6:.1f} | {busy} | {usd} |")
    return "\n".join(lines) + "\n"


def write_page(page, table):
    text = page.read_text()
    if BEGIN not in text or END not in text:
        raise SystemExit(f"rounds_table.py: {page}: has no lines {BEGIN.strip()} and {END.strip()}; copy them from "
                         "results/rounds/README.md")
    before, rest = text.split(BEGIN, 1)
    page.write_text(before + BEGIN + table + END + rest.split(END, 1)[1])


def main():
    options = parser().parse_args()
    if not options.keep_rows:
        with options.results.open("w", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
            writer.writeheader()
            for row in rows_of(options.isobar):
                writer.writerow({name: text_of(value) for name, value in row.items()})
    with options.results.open() as file:
        write_page(options.page, table_of(csv.DictReader(file)))


if __name__ == "__main__":
    main()
