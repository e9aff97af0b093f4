"""Rows of measured runs as platform, workload and plan: other commands say the same of them as fidelity does.

ISOBAR_ALL_ROWS=1 takes every row of every set, not only those below.
"""

import csv
import io
import json
import os

from tests.cli.support import HANG_S, ROOT, CommandTest

MEASURED = ROOT / "results/fidelity/measured"
# Of each set, rows of every kind whose plans play in a second or two.
ROWS = {
    "megatron_sc21": ["sc21-1.7B", "sc21-3.6B", "sc21-7.5B"],
    "megatron_seqsel": ["seq-22B-full", "seq-22B-sel", "seq-175B-full", "seq-175B-sel"],
    "megatron_core_h100": ["mcore-1.7B"],
    "mpt_a100_80": ["30b-s2048-n8-b504-ck", "13b-s2048-n8-b48", "13b-s1024-n8-b960-ck", "7b-s2048-n8-b96", "7b-s65536-n8-b16-ck",
                    "3b-s8192-n8-b144", "3b-s2048-n8-b160", "1b-s512-n8-b1792", "1b-s65536-n8-b16-ck", "760m-s32768-n8-b16",
                    "350m-s2048-n8-b512", "125m-s2048-n8-b640"],
    "mpt_h100": ["30b-s8192-n8-b168-ck", "13b-s2048-n8-b16", "7b-s2048-n8-b48", "3b-s8192-n8-b144", "760m-s512-n8-b1536"],
    "sailor_gh200_opt350": [],
    "vtrain_multi": ["18.4B-t8d32p1-m8"],
    "mpt_a100_40": ["7b-s16384-n8-b32-ck"],
    "mpt_h100_multi": ["1b-s2048-n128-b1536"],
    "mist_aceso": ["a10g-2.6B-3stages", "l4-13B-15stages"],
    "simumax_b200": ["llama3_405b_l4_tp2_cp4_pp1_dp1_seq32768_mbc4_cef"],
    "sailor_gh200_neo": ["N4-D2-P2-G64"],
    "sailor_mixed": ["N2-D1-P2"],
    "fms_fsdp": ["llama2_7b-ibm_a100"],
    "internevo": ["7b-n8-tp2-zero-1", "7b-n8-ckpt-b8"],
    "vocab_parallel": ["s2k-v128k-baseline"],
    "bridge_summary": ["25.11-b200-llama3_8b-n8-g128-m2-t1p1c1v1e1-mxfp8"],
    "bridge_cards": ["moonlight-h100-8-recompute-none"],
    "megatron_llama3_fp8": [],
}

UNSUPPORTED = ["vocab_parallel_other"]  # schedules that plans lack


# Rows of hundreds of devices take minutes each.
TAKES_ALL = "ISOBAR_ALL_ROWS" in os.environ


class ExportedRows(CommandTest):
    hang_s = 3600 if TAKES_ALL else HANG_S

    @staticmethod
    def names(name):
        with (MEASURED / f"{name}.csv").open(newline="") as file:
            rows = list(csv.DictReader(file))
        return [row["row"] for row in rows if row["role"] != "excluded" and row["set"] not in UNSUPPORTED]

    def table(self, name, names):
        """These rows of a set; paths are absolute."""
        with (MEASURED / f"{name}.csv").open(newline="") as file:
            reader = csv.DictReader(file)
            rows = [row for row in reader if row["row"] in names]
            columns = reader.fieldnames
        for row in rows:
            for column in ("platform", "workload", "plan", "profiles"):
                if row[column]:
                    row[column] = ";".join(str((MEASURED / path).resolve()) for path in row[column].split(";"))
        text = io.StringIO()
        writer = csv.DictWriter(text, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        return self.write(f"{name}.csv", text.getvalue())

    def test_verify_and_simulate_say_what_fidelity_says(self):
        count = 0
        for name, names in ROWS.items():
            folder = self.folder / "rows"
            # One at a time, as all of a set take long together.
            for wanted in self.names(name) if TAKES_ALL or not names else names:
                row, = self.json_of("fidelity", self.table(name, [wanted]), "--export", folder)["rows"]
                with self.subTest(set=name, row=row["row"]):
                    self.assertEqual((row["status"], row["reason"]), ("predicted", ""))
                    count += 1
                    files = folder / row["set"] / row["row"]
                    plan = json.loads((files / "plan.json").read_text())
                    profiles = []
                    for profile in plan["inputs"].get("profile", {}).get("name", "").split(" + "):
                        profiles += ["--profile", profile] if profile else []
                    inputs = [files / "platform.xml", files / "workload.yaml", *profiles]
                    self.run_isobar("verify", *inputs, files / "plan.json")
                    result = self.json_of("simulate", *inputs, "--plan", files / "plan.json")
                    self.assertAlmostEqual(result["step_time_s"] / row["predicted_s"], 1, delta=1e-3)
                    peak = max(stage["peak_memory_bytes"] for stage in result["stages"])
                    self.assertAlmostEqual(max(plan["predicted"]["peak_memory_bytes"].values()) / peak, 1, delta=1e-9)
                    if row["memory_kind"] in (None, "device"):
                        self.assertAlmostEqual(peak / row["predicted_memory_bytes"], 1, delta=1e-3)
        self.assertGreaterEqual(count, 40)

    def test_plan_finds_the_published_run_of_39_b_parameters_as_it_is_predicted(self):
        """512 A100, arXiv 2104.04473, table 1. The planner once refused it for memory."""
        row = self.json_of("fidelity", self.table("megatron_sc21", ["sc21-39B"]))["rows"][0]
        platform = self.folder / "selene.xml"
        self.run_isobar("platform", "generate", "machine", MEASURED / "machines/selene.yaml", "--set", "nodes=64", "-o", platform)
        plan = self.folder / "plan.json"
        settings = {"layers": 48, "hidden": 8192, "heads": 64, "micro_batch": 4, "unit": "operator", "compute": "operators",
                    "framework": "megatron-lm-2021"}
        options = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
        self.run_isobar("plan", platform, MEASURED / "workloads/gpt_megatron.yaml", *options, "--allocator", "grid",
                        "--pipeline", "2", "--tensor", "8", "--replicas", "32", "--microbatches", "384", "--recompute", "all",
                        "-o", plan)
        predicted = json.loads(plan.read_text())["predicted"]
        self.assertAlmostEqual(predicted["step_time_s"] / row["predicted_s"], 1, delta=1e-3)
        self.assertAlmostEqual(max(predicted["peak_memory_bytes"].values()) / row["predicted_memory_bytes"], 1, delta=1e-3)
        self.assertAlmostEqual(row["predicted_memory_bytes"] / 2**30, 51.1, delta=0.1)

    def test_a_row_that_cannot_name_a_folder_is_refused(self):
        table = self.table("sailor_gh200_opt350", ["N1-D1-P1-G1"])
        text = (self.folder / "sailor_gh200_opt350.csv").read_text().replace("N1-D1-P1-G1,", "../N1,", 1)
        self.write("sailor_gh200_opt350.csv", text)
        self.assertIn('sailor_gh200_opt350.csv:2: row: "../N1" cannot name a folder of --export; leave / out',
                      self.fault_of("fidelity", table, "--export", self.folder / "rows"))
        self.assertFalse((self.folder / "N1").exists())
