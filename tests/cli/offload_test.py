"""Models larger than their device: what users type, and how close the plans are to the published runs."""

import csv
import json
import os
import pty
import subprocess

from tests.cli.support import ISOBAR, ROOT, SKY16, BERT24, CommandTest

V100 = "platforms/stronghold_v100.xml"
T4S = "platforms/two_t4_nvme.xml"
STRONGHOLD = "workloads/stronghold.yaml"
DATA = ROOT / "platforms/data/stronghold"
ALLOCATORS = {"megatron-lm": "resident", "stronghold": "stronghold-published", "zero-offload": "zero-offload",
              "zero-infinity": "zero-infinity", "l2l": "l2l"}

TINY = """model: gpt
layers: 4
hidden: 16
heads: 2
vocabulary: 60
sequence: 8
micro_batch: 2
optimizer: adam
"""
TINY_PLATFORM = """<?xml version="1.0"?>
<!DOCTYPE platform SYSTEM "https://simgrid.org/simgrid.dtd">
<platform version="4.1">
  <zone id="node" routing="Full">
    <host id="gpu0" speed="1Gf"><prop id="memory" value="100 MB"/><prop id="host" value="cpu"/></host>
    <host id="cpu" speed="2Mf,4Mf"><prop id="role" value="machine"/><prop id="memory" value="400 MB"/></host>
    <link id="pcie0" bandwidth="1MBps" latency="5us" sharing_policy="SPLITDUPLEX"/>
    <route src="gpu0" dst="cpu"><link_ctn id="pcie0" direction="UP"/></route>
  </zone>
</platform>
"""

GPT = """model: gpt
layers: 24
hidden: 4096
heads: 32
vocabulary: 50304
sequence: 1024
micro_batch: 1
dtype: bf16
optimizer: adamw
attention: fused
unit: operator
"""
EIGHT_DEVICES = """<?xml version="1.0"?>
<!DOCTYPE platform SYSTEM "https://simgrid.org/simgrid.dtd">
<platform version="4.1">
  <cluster id="x" prefix="n" suffix="" radical="0-7" speed="38.7Tf" bw="16GBps" lat="5us">
    <prop id="memory" value="32 GB"/>
  </cluster>
</platform>
"""

BOX_MODEL = """model: gpt
layers: 8
hidden: 6144
heads: 48
vocabulary: 49152
sequence: 2048
dtype: bf16
optimizer: adamw
"""


def box_of(gpus):
    """A platform of equal GPUs in one machine with a disk, each with a link of its own."""
    names = [f"gpu{i}" for i in range(gpus)]
    hosts = [f'<host id="{name}" speed="35.6Tf"><prop id="memory" value="24 GB"/><prop id="host" value="cpu"/></host>'
             for name in names]
    links = [f'<link id="pcie{i}" bandwidth="12GBps" latency="5us" sharing_policy="SPLITDUPLEX"/>' for i in range(gpus)]
    routes = [f'<route src="{name}" dst="cpu"><link_ctn id="pcie{i}" direction="UP"/></route>'
              for i, name in enumerate(names)]
    routes += [f'<route src="gpu{i}" dst="gpu{j}"><link_ctn id="pcie{i}" direction="UP"/>'
               f'<link_ctn id="pcie{j}" direction="DOWN"/></route>' for j in range(gpus) for i in range(j)]
    return "\n".join(['<?xml version="1.0"?>', '<!DOCTYPE platform SYSTEM "https://simgrid.org/simgrid.dtd">',
                      '<platform version="4.1">', '<zone id="box" routing="Full">',
                      '<host id="cpu" speed="20Gf"><prop id="role" value="machine"/><prop id="memory" value="256 GB"/>'
                      '<disk id="nvme" read_bw="3GBps" write_bw="2GBps"><prop id="capacity" value="4 TB"/></disk></host>',
                      *hosts, *links, *routes, "</zone>", "</platform>", ""])


def rows_of(file):
    with (DATA / file).open() as table:
        return list(csv.DictReader(table))


class PublishedRuns(CommandTest):
    def test_take_the_time_of_their_plans_within_four_percent(self):
        for run in rows_of("calibration.csv"):
            with self.subTest(f"{run['system']} {run['layers']} {run['window']}"):
                layers = "--set", f"layers={run['layers']}"
                window = ("--window", run["window"]) if run["window"] else ()
                self.json_of("plan", V100, STRONGHOLD, *layers, "--allocator", ALLOCATORS[run["system"]], *window, "-o",
                             self.folder / "plan.json")
                self.run_isobar("verify", V100, STRONGHOLD, *layers, self.folder / "plan.json")
                result = self.json_of("simulate", V100, STRONGHOLD, *layers, "--plan", self.folder / "plan.json")
                measured = float(run["iteration_ms"]) / 1e3
                self.assertLess(abs(result["step_time_s"] / measured - 1), 0.04)

    def test_have_the_largest_models_within_seven_percent(self):
        largest = {ALLOCATORS[row["system"]]: int(row["layers"]) for row in rows_of("readme_tables.csv")
                   if row["table"] == "largest"}
        # The artifact's largest model ran with window 4.
        fit = self.json_of("fit", V100, STRONGHOLD, "--allocators", ",".join(largest), "--window", 4)
        self.assertEqual((fit["schema"], fit["vary"]), ("isobar-fit/1", "layers"))
        self.assertEqual([row["allocator"] for row in fit["rows"]], list(largest))
        for row in fit["rows"]:
            with self.subTest(row["allocator"]):
                self.assertLess(abs(row["largest"] / largest[row["allocator"]] - 1), 0.07)
                self.assertGreater(row["unmeasured"]["largest"], row["largest"])
                self.assertRegex(row["reason"], "(device v100|host cpu): .* needs? .* and it has")


class Offload(CommandTest):
    def test_places_stages_that_their_devices_do_not_hold(self):
        inputs = T4S, "workloads/gpt3_6.7b.yaml"
        options = "--allocator", "hybrid", "--microbatches", 4, "--schedule", "gpipe", "--recompute", "inner"
        self.run_isobar("plan", *inputs, *options, expect=4)
        plan = self.json_of("plan", *inputs, *options, "--offload", "auto", "--simulate", 8, "-o",
                            self.folder / "plan.json")
        self.assertTrue(any("residence" in stage for stage in plan["stages"]))
        self.assertEqual(plan["certificate"]["kind"], "window")
        self.run_isobar("verify", *inputs, self.folder / "plan.json")
        result = self.json_of("simulate", *inputs, "--plan", self.folder / "plan.json")
        self.assertGreaterEqual(result["step_time_s"], plan["objective_bound_s"])

    def test_places_stages_with_other_numbers_of_replicas(self):
        platform, model = self.folder / "box.xml", self.folder / "model.yaml"
        platform.write_text(box_of(4))
        model.write_text(BOX_MODEL)
        plan = self.json_of("plan", platform, model, "--allocator", "hybrid", "--offload", "auto", "--microbatches", 4,
                            "-o", self.folder / "plan.json")
        self.run_isobar("verify", platform, model, self.folder / "plan.json")
        result = self.json_of("simulate", platform, model, "--plan", self.folder / "plan.json")
        self.assertGreaterEqual(result["step_time_s"], plan["objective_bound_s"])

    def test_has_optimizer_states_on_the_disk_where_the_memory_of_the_machine_is_too_small(self):
        inputs = T4S, "workloads/gpt3_6.7b.yaml"
        plan = self.json_of("plan", *inputs, "--allocator", "zero-infinity", "-o", self.folder / "plan.json")
        self.assertEqual({stage["residence"]["optimizer"] for stage in plan["stages"]}, {"disk"})
        self.run_isobar("verify", *inputs, self.folder / "plan.json")
        result = self.json_of("simulate", *inputs, "--plan", self.folder / "plan.json")
        self.assertAlmostEqual(result["step_time_s"] / plan["objective_s"], 1, delta=1e-6)

    def test_names_what_is_too_small(self):
        for allocator in ("exact", "hybrid"):
            result = self.run_isobar("plan", V100, STRONGHOLD, "--set", "layers=300", "--allocator", allocator,
                                     "--offload", "auto", expect=4)
            self.assertRegex(result.stdout, r"has (121|30\.9|90\.0) GiB")

    def test_chooses_gpipe_and_recomputation_unless_told_otherwise(self):
        plan = self.json_of("plan", T4S, "workloads/gpt3_6.7b.yaml", "--allocator", "exact", "--offload", "auto")
        self.assertEqual((plan["schedule"]["name"], plan["recompute"]), ("gpipe", list(range(1, 33))))

    def test_refuses_what_it_does_not_know(self):
        self.assertEqual(self.fault_of("plan", T4S, BERT24, "--allocator", "exact", "--offload", "maybe"),
                         '--offload: "maybe" is neither auto nor none')
        self.assertEqual(self.fault_of("plan", T4S, BERT24, "--allocator", "even", "--offload", "auto"),
                         "--offload: works only with allocator exact or hybrid, not with even")
        faults = self.fault_of("plan", V100, STRONGHOLD, "--allocator", "exact", "--offload", "auto", "--objective",
                               "bottleneck", "--recompute", "inner")
        self.assertEqual(faults, "--offload: auto is for objective step, not for bottleneck, which counts no copies and "
                                 "updates")
        self.assertEqual(self.fault_of("plan", SKY16, BERT24, "--allocator", "exact", "--window", 3),
                         "--window: works only with allocator stronghold or stronghold-published, not with exact")


class Tables(CommandTest):
    """Allocators that let layers pass through devices, in tables beside others."""

    def planned_with(self, row):
        return row["schedule"], row["microbatches"], row["recompute"]

    def test_of_compare_have_the_defaults_of_each_allocator(self):
        inputs = V100, STRONGHOLD, "--set", "layers=20"
        output = self.folder / "rows.csv"
        result = self.run_isobar("compare", *inputs, "--allocators", "even,window,chain-dp,resident", "-o", output)
        self.assertRegex(result.stdout, r"(?s)^step, 1f1b, M = 8(:.*?)?\n\nallocator.*\neven .*\nchain-dp .*\n\n"
                                        r"step, gpipe, M = 1, recompute inner: .*\nwindow .*\nresident ")
        with output.open() as table:
            rows = {row["allocator"]: row for row in csv.DictReader(table)}
        for allocator in ("window", "resident"):
            self.assertEqual(self.planned_with(rows[allocator]), ("gpipe", "1", "inner"))
            plan = self.json_of("plan", *inputs, "--allocator", allocator)
            self.assertEqual(float(rows[allocator]["objective_s"]), plan["objective_s"])
        for allocator in ("even", "chain-dp"):
            self.assertEqual(self.planned_with(rows[allocator]), ("1f1b", "8", "none"))

    def test_of_compare_have_what_the_user_sets(self):
        rows = self.json_of("compare", V100, STRONGHOLD, "--set", "layers=20", "--allocators", "even,window",
                            "--microbatches", 2, "--recompute", "all")["rows"]
        self.assertEqual([self.planned_with(row) for row in rows], [("1f1b", 2, "all"), ("gpipe", 2, "all")])
        self.assertEqual(self.fault_of("compare", V100, STRONGHOLD, "--allocators", "even,window", "--recompute", "iner"),
                         '--recompute: "iner" is neither none, all, inner, nor layers in order, such as 3-10,12')

    def test_of_compare_give_options_to_the_allocators_that_take_them(self):
        inputs = "compare", T4S, STRONGHOLD, "--set", "layers=20"
        rows = self.json_of(*inputs, "--allocators", "even,exact,stronghold", "--offload", "auto", "--window", 3)["rows"]
        self.assertEqual([self.planned_with(row) for row in rows],
                         [("1f1b", 8, "none"), ("gpipe", 8, "inner"), ("gpipe", 1, "inner")])
        plan = self.json_of("plan", *inputs[1:], "--allocator", "stronghold", "--window", 3)
        self.assertEqual(rows[2]["objective_s"], plan["objective_s"])
        self.assertTrue(rows[2]["uses_machines"])
        self.assertNotIn("uses_machines", rows[0])
        self.assertEqual(self.fault_of(*inputs, "--allocators", "even,chain-dp", "--offload", "auto"),
                         "--offload: works only with allocator exact or hybrid, not with even or chain-dp")
        self.assertEqual(self.fault_of(*inputs, "--allocators", "even,exact", "--offload", "yes"),
                         '--offload: "yes" is neither auto nor none')

    def test_of_compare_fail_only_where_a_default_does_not_hold(self):
        rows = self.json_of("compare", "platforms/sky4.xml", "workloads/bert10.yaml", "--allocators", "even,window")["rows"]
        self.assertEqual([row["outcome"] for row in rows], ["feasible", "failed"])
        self.assertIn("--recompute inner, the default of allocator window: memory_model sky does not model recomputation",
                      rows[1]["reason"])

    def test_of_compare_explain_rows_with_their_own_recomputation(self):
        result = self.run_isobar("compare", V100, STRONGHOLD, "--set", "layers=20", "--allocators", "even,window",
                                 "--explain")
        self.assertIn("\nwindow, step (gpipe, M = 1, recompute inner, communication played): ", result.stdout)

    def sweep_of(self, *lines):
        return self.write("sweep.yaml", "\n".join((f"platform: {T4S}", f"workload: {{file: {STRONGHOLD}, layers: 20}}",
                                                   *lines)) + "\n")

    def swept(self, *lines):
        rows = self.folder / "rows.csv"
        printed = self.run_isobar("sweep", self.sweep_of(*lines), "--database", self.folder / "sweep.db", "--csv", rows)
        with rows.open() as table:
            return list(csv.DictReader(table)), printed.stdout

    def test_of_sweeps_have_the_defaults_of_each_allocator(self):
        rows, printed = self.swept("allocator: [even, window]")
        self.assertEqual([self.planned_with(row) for row in rows], [("1f1b", "8", "none"), ("gpipe", "1", "inner")])
        self.assertRegex(printed, r"^allocator +schedule +microbatches +recompute ")
        plan = self.json_of("plan", T4S, STRONGHOLD, "--set", "layers=20", "--allocator", "window")
        self.assertEqual(float(rows[1]["objective_s"]), plan["objective_s"])

    def test_of_sweeps_take_the_options_of_plan(self):
        rows, _ = self.swept("allocator: [stronghold, exact]", "window: [2, 4]", "offload: [none, auto]")
        self.assertEqual([(row["allocator"], row["window"], row["offload"], row["schedule"]) for row in rows],
                         [(allocator, window, offload, "gpipe" if allocator == "stronghold" or offload == "auto" else "1f1b")
                          for allocator in ("stronghold", "exact") for window in ("2", "4") for offload in ("none", "auto")])
        plan = self.json_of("plan", T4S, STRONGHOLD, "--set", "layers=20", "--allocator", "stronghold", "--window", 4)
        self.assertEqual(float(rows[2]["objective_s"]), plan["objective_s"])
        self.assertNotEqual(rows[0]["objective_s"], rows[2]["objective_s"])

    def test_of_sweeps_name_the_line_of_what_is_wrong(self):
        def fault_of(*lines):
            return self.fault_of("sweep", self.sweep_of(*lines)).replace(f"{self.folder}/", "")
        self.assertEqual(fault_of("allocator: [even, chain-dp]", "offload: auto"),
                         "sweep.yaml:4: offload: works only with allocator exact or hybrid, not with even or chain-dp")
        self.assertEqual(fault_of("allocator: even", "window: 3"), "sweep.yaml:4: window: works only with allocator "
                         "stronghold or stronghold-published, not with even")
        self.assertEqual(fault_of("allocator: exact", "offload: atuo"),
                         'sweep.yaml:4: offload: "atuo" is not one of auto, none; did you mean auto?')
        self.assertEqual(fault_of("allocator: stronghold", "window: few"),
                         'sweep.yaml:4: window: "few" is not a whole number; write a whole number, 0 or more')

    def test_of_baselines_have_the_defaults_of_each_allocator(self):
        baseline = self.folder / "gate.csv"
        self.run_isobar("check", baseline, "--init", "--platforms", V100, "--workloads", "workloads/stronghold_1.7b.yaml",
                        "--allocators", "even,resident,window")
        self.run_isobar("check", baseline, "--approve")
        with baseline.open() as table:
            rows = {row["allocator"]: row for row in csv.DictReader(table)}
        self.assertEqual([(row["schedule"], row["microbatches"]) for row in rows.values()],
                         [("1f1b", "8"), ("gpipe", "1"), ("gpipe", "1")])
        with (ROOT / "results/tiers/quality.csv").open() as table:
            approved = {row["allocator"]: row for row in csv.DictReader(table)
                        if row["platform"] == V100 and row["workload"] == "workloads/stronghold_1.7b.yaml"}
        for allocator in ("resident", "window"):
            self.assertEqual(rows[allocator]["step_time_s"], approved[allocator]["step_time_s"])
        self.run_isobar("check", baseline)
        self.run_isobar("check", baseline, "--base", ISOBAR)

    def test_of_baselines_take_the_options_of_plan(self):
        meta = self.folder / "gate.meta.json"

        def with_keys(**keys):
            grid = {"platforms": [V100], "workloads": ["workloads/stronghold_4b.yaml"],
                    "allocators": ["even", "exact", "stronghold"], "objectives": ["step"], **keys}
            meta.write_text(json.dumps({"schema": "isobar-baseline/1", "grid": grid}))

        baseline = self.folder / "gate.csv"
        with_keys(window=4, offload="auto")
        self.run_isobar("check", baseline, "--approve")
        with baseline.open() as table:
            rows = {row["allocator"]: row for row in csv.DictReader(table)}
        self.assertEqual(rows["exact"]["schedule"], "gpipe")
        self.assertIn(rows["exact"]["outcome"], ("feasible", "optimal"))
        plan = self.json_of("plan", V100, "workloads/stronghold_4b.yaml", "--allocator", "stronghold", "--window", 4)
        self.assertEqual(float(rows["stronghold"]["objective_s"]), plan["objective_s"])
        self.run_isobar("check", baseline, "--base", ISOBAR)
        with_keys(allocators=["even"], offload="auto")
        self.assertEqual(self.fault_of("check", baseline, "--approve"),
                         f"{meta}: grid.offload: works only with allocator exact or hybrid, not with even")
        with_keys(allocators=["even"], window=3)
        self.assertEqual(self.fault_of("check", baseline, "--approve"), f"{meta}: grid.window: works only with allocator "
                         "stronghold or stronghold-published, not with even")


class Window(CommandTest):
    def test_stores_activations_where_that_is_faster(self):
        plan = self.json_of("plan", V100, STRONGHOLD, "--set", "layers=64", "--allocator", "window", "-o",
                            self.folder / "plan.json")
        self.assertIn("host", [stage.get("residence", {}).get("activations") for stage in plan["stages"]])
        self.assertGreater(plan["objective_bound_s"], 0.95 * plan["objective_s"])
        self.run_isobar("verify", V100, STRONGHOLD, "--set", "layers=64", self.folder / "plan.json")
        result = self.json_of("simulate", V100, STRONGHOLD, "--set", "layers=64", "--plan", self.folder / "plan.json")
        self.assertAlmostEqual(result["step_time_s"] / plan["objective_s"], 1, delta=1e-6)

    def test_names_the_memory_that_is_too_small(self):
        result = self.run_isobar("plan", V100, STRONGHOLD, "--set", "layers=300", "--allocator", "window", expect=4)
        self.assertIn("host cpu: at least 207 GiB is needed and it has 90.0 GiB; 117 GiB more there would be enough, as "
                      "would a disk with a capacity for the optimizer's states", result.stdout)
        result = self.run_isobar("plan", SKY16, STRONGHOLD, "--allocator", "window", expect=4)
        self.assertIn("no device of platform sky16 has a machine; give devices the prop host", result.stdout)

    def test_passes_layers_once_a_step(self):
        inputs = V100, STRONGHOLD, "--allocator", "window"
        self.assertEqual(self.fault_of("plan", *inputs, "--schedule", "1f1b", "--microbatches", 4),
                         "schedule: 1f1b passes layers once for each of 4 micro-batches; use gpipe, which lets window "
                         "pass them once a step")
        self.assertEqual(self.fault_of("plan", *inputs, "--recompute", "none"),
                         "recompute: layer 1 keeps its activations; those that pass through the device with window "
                          "recompute them: use --recompute all")


class Fit(CommandTest):
    def test_prints_a_table_with_reasons(self):
        result = self.run_isobar("fit", V100, STRONGHOLD, "--allocators", "resident,window")
        header, rule, *rows = result.stdout.splitlines()
        self.assertEqual(header.split()[:5], ["allocator", "layers", "parameters", "step", "s"])
        self.assertEqual([row.split()[:2] for row in rows[:2]], [["resident", "34"], ["window", "149"]])
        self.assertRegex(result.stdout, "resident: layers 35: device v100: .*; 737 MiB more memory there would be enough")

    def test_ends_with_4_if_no_model_fits(self):
        result = self.run_isobar("fit", SKY16, STRONGHOLD, "--allocators", "window", expect=4)
        self.assertIn("window: layers 1: no device of platform sky16 has a machine", result.stdout)
        fit = self.json_of("fit", SKY16, STRONGHOLD, "--allocators", "window", expect=4)
        self.assertIsNone(fit["rows"][0]["largest"])

    def test_begins_with_one_layer_beyond_a_window(self):
        fit = self.json_of("fit", V100, STRONGHOLD, "--allocators", "stronghold", "--window", 4)
        self.assertGreater(fit["rows"][0]["largest"], 100)

    def test_skips_values_with_which_the_workload_is_not_valid(self):
        inputs = V100, STRONGHOLD, "--allocators", "resident"
        row = self.json_of("fit", *inputs, "--set", "sequence=16", "--vary", "heads")["rows"][0]
        self.assertEqual(row["largest"], 2048)
        self.assertEqual(row["reason"], "heads: 2049 does not divide hidden, 2048; write a divisor of it")
        printed = self.run_isobar("fit", *inputs, "--vary", "hidden").stdout
        largest = int(printed.splitlines()[2].split()[1])
        self.assertEqual(largest % 16, 0)
        self.assertGreaterEqual(largest, 2048)
        self.assertIn(f"resident: hidden {largest + 16}: device v100: ", printed)
        plan = "plan", V100, STRONGHOLD, "--allocator", "resident", "-o", self.folder / "plan.json"
        self.run_isobar(*plan, "--set", f"hidden={largest}")
        self.run_isobar(*plan, "--set", f"hidden={largest + 16}", expect=4)

    def test_fits_larger_models_where_their_layers_recompute(self):
        inputs = self.write("eight.xml", EIGHT_DEVICES), self.write("gpt.yaml", GPT)
        shape = "--allocators", "grid", "--tensor", 8, "--pipeline", 1, "--replicas", 1, "--microbatches", 8
        none, inner, every = (self.json_of("fit", *inputs, *shape, "--recompute", layers)["rows"][0]["largest"]
                              for layers in ("none", "inner", "all"))
        self.assertGreater(inner, none)
        self.assertGreater(every, none)

    def test_fits_thousands_of_small_layers(self):
        workload = self.write("tiny.yaml", TINY)
        row = self.json_of("fit", self.write("tiny.xml", TINY_PLATFORM), workload, "--allocators", "window")["rows"][0]
        self.assertGreater(row["largest"], 8192)
        self.assertRegex(row["reason"], "^host cpu: at least 381 MiB is needed")

    def test_shows_its_progress_on_a_terminal(self):
        inputs = self.write("tiny.xml", TINY_PLATFORM), self.write("tiny.yaml", TINY)
        ours, theirs = pty.openpty()
        self.addCleanup(os.close, ours)
        process = subprocess.Popen([ISOBAR, "fit", *map(str, inputs), "--allocators", "window,l2l,zero-infinity"], cwd=ROOT,
                                   stdout=subprocess.DEVNULL, stderr=theirs)
        os.close(theirs)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        shown = ""
        while "layers" not in shown:
            shown += os.read(ours, 4096).decode()
        self.assertRegex(shown, "fit: [a-z0-9-]+, layers [0-9]+")

    def test_needs_allocators(self):
        self.assertEqual(self.fault_of("fit", V100, STRONGHOLD),
                         "--allocators: none; write some of isobar list allocators, such as resident,window")

    def test_refuses_keys_that_are_fixed_or_unknown(self):
        inputs = V100, STRONGHOLD, "--allocators", "window"
        self.assertEqual(self.fault_of("fit", *inputs, "--set", "layers=3"),
                         "--vary: layers is what --set fixes; leave one of them out")
        result = self.run_isobar("fit", *inputs, "--vary", "depth", expect=2)
        self.assertRegex(result.stderr, "--vary: depth: unknown key; the keys here are .*layers")
