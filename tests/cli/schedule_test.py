"""isobar schedule: the orders of plans as pictures and files, and plans with orders of one's own."""

import json
import pathlib
import subprocess
import sys
import unittest

from tests.cli.support import HANG_S, CommandTest
from tests.support.peers import need_peers, peers_environment

PICTURE = """1f1b: 2 devices, 2 stages, 4 micro-batches
slow  F0F1    B0--F2B1--F3B2--  B3--
fast    F0B0--F1B1--F2B2--F3B3--
15 units of time; F takes 1, B 2
"""

CSV = """0F0,0F1,0B0,0F2,0B1,0F3,0B2,0B3
1F0,1B0,1F1,1B1,1F2,1B2,1F3,1B3
"""

JSON = """{
  "schema": "isobar-orders/1",
  "schedule": "1f1b",
  "microbatches": 4,
  "device_of_stage": ["slow", "fast"],
  "orders": {
    "slow": [
      [1, "F0.0"],
      [3, "F0.1+ B0.0+"],
      [1, "B0.3"]
    ],
    "fast": [
      [4, "F0.0+ B0.0+"]
    ]
  }
}
"""

# Prints the schedules of torch for two ranks, by name and micro-batches and then by form, as _dump_csv writes them.
TORCH = """
import json, os, tempfile
from torch.distributed.pipelining import schedules

class Stage:
    def __init__(self, index):
        self.stage_index, self.num_stages, self.group_size, self.group_rank = index, 4, 2, 0
        self.is_first, self.is_last, self.has_backward, self.submod = index == 0, index == 3, True, None

schedules._check_torch_compile_compatibility = lambda *_: None  # it looks at the module of each stage
written = {}
for name, stages, microbatches in (("DualPipeV", (0, 3), 4), ("DualPipeV", (0, 3), 7), ("ZBVZeroBubble", (0, 3), 4),
                                   ("Interleaved1F1B", (0, 2), 4), ("Interleaved1F1B", (0, 2), 3),
                                   ("InterleavedZeroBubble", (0, 2), 4), ("LoopedBFS", (0, 2), 4)):
    stages = [Stage(index) for index in stages]
    schedule = schedules.get_schedule_class(name)(stages, microbatches, loss_fn=lambda *_: 0)
    for form in ("compute_comms", "compute_only"):
        with tempfile.TemporaryDirectory() as folder:
            file = os.path.join(folder, "schedule.csv")
            schedule._dump_csv(file, form)
            with open(file, newline="") as text:
                written.setdefault(f"{name} {microbatches}", {})[form] = text.read()
print(json.dumps(written))
"""


class Schedule(CommandTest):
    def setUp(self):
        super().setUp()
        self.inputs = self.small_inputs()
        self.plan = self.make_plan(*self.inputs, "--microbatches", "4")
        self.listed = str(self.folder / "listed.json")

    def read(self, plan):
        return json.loads(pathlib.Path(plan).read_text())

    def import_orders(self, name, text, plan=None, expect=0):
        file = self.write(name, text)
        return self.run_isobar("schedule", "import", file, *self.inputs, "--plan", plan or self.plan, "-o", self.listed,
                               expect=expect).stdout

    def refusal(self, name, text, plan=None):
        """Why orders are refused, after the name of their file; nothing is written."""
        file = self.write(name, text)
        fault = self.fault_of("schedule", "import", file, *self.inputs, "--plan", plan or self.plan, "-o", self.listed)
        self.assertTrue(fault.startswith(file + ":"), fault)
        self.assertFalse(pathlib.Path(self.listed).exists())
        return fault.removeprefix(file + ":").lstrip()

    # Orders of a plan

    def test_shows_the_orders_of_a_plan(self):
        for options, printed in (((), PICTURE), (("--wide",), PICTURE), (("--csv",), CSV), (("--json",), JSON)):
            self.assertEqual(self.run_isobar("schedule", "show", self.plan, *options).stdout, printed)

    def test_a_long_step_fits_a_terminal_unless_it_may_be_wide(self):
        plan = self.make_plan(*self.inputs, "--microbatches", "64")
        narrow = self.run_isobar("schedule", "show", plan).stdout
        self.assertLessEqual(max(map(len, narrow.splitlines())), 80)
        self.assertIn(" … ", narrow)
        self.assertRegex(narrow, r"\n195 units of time; F takes 1, B 2\n…: \d+ units that are not shown\n\Z")
        wide = self.run_isobar("schedule", "show", plan, "--wide").stdout
        self.assertNotIn("…", wide)
        self.assertIn("F63B63", wide.replace("-", ""))

    def test_a_plan_that_verify_refuses_for_its_residences_is_refused_likewise(self):
        inputs = "platforms/stronghold_v100.xml", "workloads/stronghold.yaml", "--set", "layers=20"
        made = self.json_of("plan", *inputs, "--allocator", "stronghold", "--window", "2", "-o", self.folder / "plan.json")
        made["microbatches"], made["schedule"]["name"] = 2, "1f1b"
        for stage in made["stages"]:
            stage["replicas"][0]["microbatches"] = 2
        plan = self.write("edited.json", json.dumps(made))
        fault = self.fault_of("schedule", "show", plan)
        self.assertRegex(fault, r"^\S+edited.json:1: stages\[\d\]\.residence\.gradient_slots: \d+; the backward passes of more "
                                r"stages of the device overlap, and each needs a place until its last micro-batch; give as "
                                r"many, or use schedule gpipe$")
        self.assertEqual(self.fault_of("verify", *inputs, plan), fault)

    def test_a_plan_whose_schedule_does_not_exist_is_refused(self):
        self.import_orders("orders.csv", CSV)
        plan = self.read(self.listed)
        plan["schedule"] = {"name": "interleavd"}
        file = self.write("wrong.json", json.dumps(plan))
        self.assertEqual(self.fault_of("schedule", "show", file),
                         f'{file}:1: schedule: "interleavd" is not known; did you mean interleaved?')

    def test_a_plan_without_stages_has_no_orders(self):
        plan = self.make_plan(*self.small_inputs(memory="1 GB"), expect=4)
        self.assertEqual(self.fault_of("schedule", "show", plan),
                         f"{plan}: has no stages, so there is nothing to order; name a plan with some")

    # Plans with orders

    def test_imported_orders_of_the_same_schedule_take_as_long(self):
        before = self.read(self.plan)
        self.assertEqual(before["schema"], "isobar-plan/1")
        for name, text in (("orders.csv", CSV), ("orders.json", JSON)):
            printed = self.import_orders(name, text)
            self.assertRegex(printed, rf"^{self.listed}: schedule 1f1b of {self.plan} replaced by listed\n"
                                      r"slow: stage 0; 8 tasks in \d runs\nfast: stage 1; 8 tasks in 1 run\n"
                                      r"predicted step \S+ s; \S+ s before\n\Z")
            after = self.read(self.listed)
            self.assertEqual(after["schema"], "isobar-plan/2")
            self.assertEqual(after["schedule"]["name"], "listed")
            self.assertEqual(set(after["schedule"]["orders"]), {"slow", "fast"})
            self.assertEqual(after["predicted"]["step_time_by"], "played")
            self.assertAlmostEqual(after["predicted"]["step_time_s"], before["predicted"]["step_time_s"], places=9)
            self.assertEqual(after["predicted"]["peak_memory_bytes"], before["predicted"]["peak_memory_bytes"])
            self.assertIn("every claim holds", self.run_isobar("verify", *self.inputs, self.listed).stdout)
            step, listed_step = (self.json_of("simulate", *self.inputs, "--plan", plan)["step_time_s"]
                                 for plan in (self.plan, self.listed))
            self.assertAlmostEqual(step, listed_step, places=9)

    def test_other_orders_have_other_times_and_memory(self):
        forwards_first = "".join(",".join(f"{stage}F{m}" for m in range(4)) + "," +
                                 ",".join(f"{stage}B{m}" for m in range(4)) + "\n" for stage in range(2))
        self.import_orders("orders.csv", forwards_first)
        after = self.read(self.listed)
        self.assertEqual(after["schedule"]["orders"]["slow"], [[4, "F0.0+"], [4, "B0.0+"]])
        self.assertGreater(after["predicted"]["peak_memory_bytes"]["fast"],
                           self.read(self.plan)["predicted"]["peak_memory_bytes"]["fast"])
        self.assertIn("every claim holds", self.run_isobar("verify", *self.inputs, self.listed).stdout)

    def test_torchs_schedules_are_read_with_and_without_transfers(self):
        need_peers()
        done = subprocess.run([sys.executable, "-c", TORCH], env=peers_environment(), check=True, capture_output=True,
                              text=True, timeout=HANG_S)
        written = json.loads(done.stdout)
        self.inputs = self.inputs[0], "examples/tiny_gpt.yaml"
        self.assertIn("OVERLAP_F_B", written["DualPipeV 4"]["compute_only"])
        self.assertIn("REDUCE_GRAD", written["LoopedBFS 4"]["compute_comms"])
        # Of 3 micro-batches, torch's interleaved schedule makes one group for its two ranks.
        of_isobar = {"DualPipeV 4": "dualpipe-v", "DualPipeV 7": "dualpipe-v", "ZBVZeroBubble 4": "zero-bubble-v",
                     "Interleaved1F1B 4": "interleaved(chunks=2)", "Interleaved1F1B 3": "interleaved(chunks=2;group=3)"}
        for name, forms in written.items():
            schedule = of_isobar.get(name, "interleaved(chunks=2)")
            plan = self.make_plan(*self.inputs, "--microbatches", name.split()[1], "--schedule", schedule)
            orders = []
            for form, text in forms.items():
                self.import_orders(f"{name}-{form}.csv", text, plan)
                orders.append(self.read(self.listed)["schedule"]["orders"])
                self.assertIn("every claim holds", self.run_isobar("verify", *self.inputs, self.listed).stdout)
            self.assertEqual(*orders, name)
            if name in of_isobar:
                own, listed = (self.run_isobar("schedule", "show", file, "--csv").stdout for file in (plan, self.listed))
                self.assertEqual(own, listed, name)

    def test_ranks_may_have_other_numbers_than_in_the_plan(self):
        self.import_orders("orders.csv", "".join(reversed(CSV.splitlines(keepends=True))))
        self.assertEqual(self.run_isobar("schedule", "show", self.listed, "--csv").stdout, CSV)

    def test_a_byte_order_mark_is_skipped(self):
        for name, text in (("orders.csv", CSV), ("orders.json", JSON)):
            self.import_orders(name, "\ufeff" + text)
            self.assertEqual(self.run_isobar("schedule", "show", self.listed, "--csv").stdout, CSV)

    def test_a_plan_made_for_another_platform_is_priced_on_the_given_one_with_a_warning(self):
        platform, workload = self.inputs
        other = self.write("other.xml", pathlib.Path(platform).read_text().replace("10ms", "20ms"))
        orders = self.write("orders.csv", CSV)
        result = self.run_isobar("schedule", "import", orders, other, workload, "--plan", self.plan, "-o", self.listed)
        self.assertRegex(result.stderr, rf"\Aisobar: {self.plan}: inputs\.platform: made for \S+ \(hash \w+\); this is "
                                        rf"{other} \(hash \w+\)\n\Z")
        self.assertIn("every claim holds", self.run_isobar("verify", other, workload, self.listed).stdout)

    def test_split_backward_passes_are_shown_as_they_were_written(self):
        split = JSON.replace("F0.1+ B0.0+", "F0.1+ B0.0+ W0.0+").replace('"B0.3"', '"B0.3 W0.3"')
        self.import_orders("orders.json", split)
        printed = self.run_isobar("schedule", "show", self.listed, "--json").stdout
        self.assertEqual(printed, split.replace('"1f1b"', '"listed"'))
        self.assertIn("0I0,0W0", self.run_isobar("schedule", "show", self.listed, "--csv").stdout)

    def test_orders_beyond_the_memory_are_infeasible(self):
        self.inputs = self.small_inputs(memory="5 GB")
        forwards_first = "".join(",".join(f"{stage}F{m}" for m in range(4)) + "," +
                                 ",".join(f"{stage}B{m}" for m in range(4)) + "\n" for stage in range(2))
        plan = self.make_plan(*self.inputs, "--microbatches", "4")
        printed = self.import_orders("orders.csv", forwards_first, plan, expect=4)
        self.assertIn("orders.csv: infeasible: device slow", printed)
        self.assertFalse(pathlib.Path(self.listed).exists())

    # Refused orders

    def test_a_dash_writes_only_the_plan(self):
        orders = self.write("orders.csv", CSV)
        printed = self.run_isobar("schedule", "import", orders, *self.inputs, "--plan", self.plan, "-o", "-").stdout
        self.assertEqual(json.loads(printed)["schema"], "isobar-plan/2")

    def test_inputs_are_not_overwritten(self):
        orders = self.write("orders.csv", CSV)
        fault = self.fault_of("schedule", "import", orders, *self.inputs, "--plan", self.plan, "-o", orders)
        self.assertIn("is an input", fault)

    def test_orders_of_another_pipeline_are_refused(self):
        self.assertEqual(self.refusal("orders.csv", "0F0,0B0\n"), "1 stage; the plan has 2")
        self.assertEqual(self.refusal("orders.csv", "0F0,0B0\n1F0,1B0\n"),
                         "1 micro-batch; the plan has 4, so make one with --microbatches 1")
        together = ",".join(f"0F{m},1F{m},1B{m},0B{m}" for m in range(4)) + "\n"
        self.assertEqual(self.refusal("orders.csv", together),
                         "1: rank 0: has stages 0, 1; in the plan, device slow has stage 0")
        self.assertEqual(self.refusal("orders.json", JSON.replace('"slow", "fast"', '"fast", "slow"')),
                         "5: device_of_stage: is not that of the plan; write slow, fast")
        self.assertEqual(self.refusal("orders.json", JSON.replace('hes": 4', 'hes": 5')),
                         "4: microbatches: 5 micro-batches; the plan has 4, so make one with --microbatches 5")

    def test_orders_with_faults_are_refused_with_their_place(self):
        self.assertEqual(self.refusal("orders.csv", CSV.replace("0B2", "0X2")),
                         '1: column 7: "0X2" is not a task; write the stage, F, B, I or W, and the micro-batch, such '
                         "as 2F0")
        self.assertEqual(self.refusal("orders.json", JSON.replace("F0.1+", "F1.1+")),
                         '9: orders.slow[1]: slot 1: "F1.1+" is of part 1; the device has one part, 0')
        self.assertEqual(self.refusal("orders.csv", CSV.replace("1F0,1B0", "1B0,1F0")),
                         "2: rank 1: 1B0 (column 1) comes before 1F0 (column 2); move it behind")
        self.assertEqual(self.refusal("orders.json", JSON.replace("F0.0+ B0.0+", "B0.0+ F0.0+")),
                         "12: orders.fast: B0.0 (position 0) comes before F0.0 (position 1); move it behind")
        crossing = JSON.replace('[4, "F0.0+ B0.0+"]', '[1, "F0.1 F0.0 B0.0 B0.1"], [2, "F0.2+ B0.2+"]')
        self.assertEqual(self.refusal("orders.json", crossing),
                         "6: orders: slow has F0.0 (position 0) before F0.1 (position 1) and fast has F0.1 (position 0) "
                         "before F0.0 (position 1), so their transfers cross; use one order for both")
        self.assertEqual(self.refusal("orders.json", '{"schema": "isobar-orders/2"}').splitlines()[0],
                         '1: schema: "isobar-orders/2" is not isobar-orders/1')

    def test_many_faults_are_counted(self):
        file = self.write("orders.csv", 30 * "\n")
        lines = self.fault_of("schedule", "import", file, *self.inputs, "--plan", self.plan, "-o", self.listed).splitlines()
        self.assertEqual(len(lines), 21)
        self.assertEqual(lines[-1], f"{file}: and 10 more")

    def test_orders_that_are_too_long_to_show_are_printed_as_json(self):
        plan = self.read(self.plan)
        plan["microbatches"] = 9_000_000
        file = self.write("long.json", json.dumps(plan))
        self.assertEqual(self.fault_of("schedule", "show", file),
                         f"{file}: schedule: 2 stages and 9000000 micro-batches are too many for a picture of at most "
                         "10000000 tasks; use --json")
        self.assertEqual(self.fault_of("schedule", "show", file, "--csv"),
                         f"{file}: schedule: has 36000000 tasks, and a CSV file at most 4000000; use --json")
        self.assertIn('"microbatches": 9000000', self.run_isobar("schedule", "show", file, "--json").stdout)


if __name__ == "__main__":
    unittest.main()
