"""isobar profile --machine and --operators: what they measure, and plans by it."""

import json
import pathlib
import resource
import signal
import subprocess
import xml.etree.ElementTree

from tests.cli.support import HANG_S, ISOBAR, ROOT, CommandTest, holds

MODEL = """model: gpt
layers: 6
hidden: 64
heads: 2
vocabulary: 100
sequence: 16
micro_batch: 2
optimizer: adam
"""


class ProfileOfAMachine(CommandTest):
    def profiled(self, *options):
        workload = self.write("model.yaml", MODEL)
        live = str(self.folder / "live")
        printed = self.run_isobar("profile", workload, "--repetitions", 3, "-o", live, *options).stdout
        return workload, live + ".xml", live + ".profile.json", printed

    def test_a_model_that_is_too_large_for_a_profiled_device_is_planned_with_its_machine(self):
        workload, platform, profile, _ = self.profiled("--scratch", self.folder)
        with_profile = (workload, "--profile", profile)
        resident = json.loads(pathlib.Path(self.make_plan(platform, *with_profile, allocator="resident")).read_text())
        needed = resident["predicted"]["peak_memory_bytes"]["rank-0"]
        text = pathlib.Path(platform).read_text()
        memory = json.loads(pathlib.Path(profile).read_text())["memory_bytes"]
        small = self.write("small.xml", text.replace(f'value="{memory:.0f} B"', f'value="{0.7 * needed:.0f} B"', 1))
        self.make_plan(small, *with_profile, allocator="resident", expect=4)
        plan = self.make_plan(small, *with_profile, allocator="window")
        document = json.loads(pathlib.Path(plan).read_text())
        self.assertIn("host", {stage.get("residence", {}).get("parameters") for stage in document["stages"]})
        self.run_isobar("verify", small, workload, plan, "--profile", profile)
        result = self.json_of("simulate", small, *with_profile, "--plan", plan)
        self.assertAlmostEqual(result["step_time_s"] / document["predicted"]["step_time_s"], 1, delta=1e-3)

    def test_the_platform_has_the_numbers_of_the_profile(self):
        _, platform, profile, printed = self.profiled("--scratch", self.folder, "--slowdowns", "1,4")
        self.assertEqual(sorted(path.name for path in self.folder.iterdir()),
                         ["live.links.csv", "live.profile.json", "live.xml", "model.yaml"])
        machine = json.loads(pathlib.Path(profile).read_text())["machine"]
        self.assertTrue(machine["processor"].endswith(", 1 thread"))
        numbers = {**machine, **machine["disk"], **machine["copy_in"], "out": machine["copy_out"]["bandwidth_bytes_per_s"]}
        for key, number in numbers.items():
            if isinstance(number, (int, float)) and key != "direct":
                self.assertGreater(number, 0, key)
        self.assertLess(machine["memory_bytes"], 1e15)
        self.assertLess(machine["busy_update_flops_per_s"], 100 * machine["update_flops_per_s"])
        self.assertIn("while the device computes", printed)
        self.assertRegex(printed, r"\n  copies: to the device .*, from it .*\n  disk: .* free, reads .*, writes .*\n")

        root = xml.etree.ElementTree.parse(platform).getroot()
        hosts = {host.get("id"): host for host in root.iter("host")}
        self.assertEqual(list(hosts), ["rank-0", "rank-1", "machine-0"])
        props = {name: {prop.get("id"): prop.get("value") for prop in host.findall("prop")} for name, host in hosts.items()}
        self.assertEqual([props[name]["host"] for name in ("rank-0", "rank-1")], ["machine-0", "machine-0"])
        self.assertEqual(props["machine-0"], {"role": "machine", "memory": f"{machine['memory_bytes']:.0f} B"})
        self.assertEqual([float(speed.rstrip("f")) for speed in hosts["machine-0"].get("speed").split(",")],
                         [machine["busy_update_flops_per_s"], machine["update_flops_per_s"]])
        disk, = hosts["machine-0"].findall("disk")
        self.assertEqual([float(disk.get(key).removesuffix("Bps")) for key in ("read_bw", "write_bw")],
                         [machine["disk"][key] for key in ("read_bytes_per_s", "write_bytes_per_s")])
        links = {link.get("id"): link for link in root.iter("link")}
        for rank in (0, 1):
            for way in ("in", "out"):
                link, copy = links[f"{way}-{rank}"], machine[f"copy_{way}"]
                self.assertEqual(float(link.get("bandwidth").removesuffix("Bps")), copy["bandwidth_bytes_per_s"])
                self.assertEqual(float(link.get("latency").removesuffix("s")), copy["latency_s"])
        self.assertIn("2 devices in 1 machine", self.run_isobar("platform", "show", platform).stdout)

    def test_a_machine_without_a_scratch_folder_has_no_disk(self):
        _, platform, profile, printed = self.profiled("--machine")
        self.assertNotIn("disk", json.loads(pathlib.Path(profile).read_text())["machine"])
        self.assertNotIn("disk", printed + pathlib.Path(platform).read_text())
        _, platform, profile, printed = self.profiled()
        self.assertNotIn("machine", json.loads(pathlib.Path(profile).read_text()))
        self.assertNotIn("machine", printed + pathlib.Path(platform).read_text())

    def test_a_scratch_folder_that_cannot_be_used_is_refused_before_anything_is_measured(self):
        # A pass over the block takes half a minute.
        workload = self.write("large.yaml", "model: gpt\nlayers: 1\nhidden: 4096\nheads: 8\nvocabulary: 64\n"
                              "sequence: 1024\nmicro_batch: 8\n")
        missing, locked = self.folder / "missing", self.folder / "locked"
        locked.mkdir()
        for folder, reason in ((missing, "No such file or directory"), (workload, "Not a directory")):
            self.assertEqual(self.fault_of("profile", workload, "-o", self.folder / "x", "--scratch", folder, expect=3),
                             f"{folder}: cannot write there: {reason}")
        # Root, too, may not write there.
        self.assertRegex(self.fault_of("profile", workload, "-o", self.folder / "x", "--scratch", "/sys", expect=3),
                         r"\A/sys: cannot write there: (Permission denied|Operation not permitted|Read-only file system)\Z")
        self.assertIn("--scratch", self.fault_of("profile", workload, "-o", self.folder / "x", "--scratch", ""))
        full = subprocess.run([ISOBAR, "profile", workload, "-o", self.folder / "x", "--scratch", locked], cwd=ROOT,
                              capture_output=True, text=True, timeout=HANG_S, preexec_fn=lambda: resource.setrlimit(
                                  resource.RLIMIT_FSIZE, (1 << 20, resource.RLIM_INFINITY)))
        self.assertEqual((full.returncode, full.stdout, full.stderr),
                         (3, "", f"isobar: {locked}: has no space for a file of 256 MiB: File too large\n"))
        self.assertEqual(sorted(path.name for path in self.folder.rglob("*")), ["large.yaml", "locked"])

    def test_an_interrupt_leaves_no_scratch_file(self):
        workload = self.write("model.yaml", MODEL)
        process = subprocess.Popen([ISOBAR, "profile", workload, "--repetitions", "1000000", "-o", self.folder / "x",
                                    "--scratch", self.folder], cwd=ROOT, text=True, stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE)
        self.addCleanup(process.kill)

        def has_scratch_file():
            self.assertIsNone(process.poll())
            files = [file.readlink() for file in pathlib.Path(f"/proc/{process.pid}/fd").iterdir()]
            return any(file.parent == self.folder and file.name.endswith(" (deleted)") for file in files)

        self.assertTrue(holds(has_scratch_file))
        self.assertEqual([path.name for path in self.folder.iterdir()], ["model.yaml"])
        process.send_signal(signal.SIGINT)
        self.assertEqual((*process.communicate(timeout=HANG_S), process.returncode), ("", "isobar: interrupted\n", 130))
        self.assertEqual([path.name for path in self.folder.iterdir()], ["model.yaml"])


class ProfileOfOperators(CommandTest):
    def test_a_profiled_device_is_planned_and_simulated_by_its_own_operators(self):
        workload, live = self.write("model.yaml", MODEL), self.folder / "live"
        printed = self.run_isobar("profile", workload, "--operators", "--repetitions", 1, "-o", live).stdout
        self.assertEqual(sorted(path.name for path in self.folder.iterdir()),
                         ["live.links.csv", "live.operators.json", "live.xml", "model.yaml"])
        profile = f"{live}.operators.json"
        table = json.loads(pathlib.Path(profile).read_text())
        self.assertEqual((table["schema"], table["dtype"], table["tf32"]), ("isobar-operators/1", "float32", False))
        self.assertTrue(table["device"].endswith(", 1 thread"))
        self.assertEqual({product["layout"] for product in table["products"]}, {"TN", "NN", "NT"})
        self.assertEqual(set(table["memory_bound"]), {"norm", "activation", "residual", "softmax", "copy"})
        self.assertIn(f"{table['device']}: {len(table['products'])} products in float32\n", printed)
        self.assertRegex(printed, r"\nlaunch +\d")
        # The platform's device is the table's.
        host, = xml.etree.ElementTree.parse(f"{live}.xml").getroot().iter("host")
        self.assertIn(table["device"], [prop.get("value") for prop in host.findall("prop")])
        inputs = (f"{live}.xml", workload, "--profile", profile, "--set", "compute=operators", "--set",
                  "framework=megatron-core-0.8")
        plan = self.make_plan(*inputs)
        self.run_isobar("verify", f"{live}.xml", workload, plan, "--profile", profile)
        predicted = json.loads(pathlib.Path(plan).read_text())["predicted"]["step_time_s"]
        self.assertAlmostEqual(self.json_of("simulate", *inputs, "--plan", plan)["step_time_s"] / predicted, 1, delta=1e-3)

    def test_operators_of_models_that_are_not_transformers_are_refused_before_any_file_is_written(self):
        workload = self.write("net.yaml", "model: resnet\ndepth: 50\nimage: 224\nclasses: 1000\n")
        self.assertIn("compute: operators takes models bert, gpt, llama and decoder; use compute: rate",
                      self.fault_of("profile", workload, "--operators", "-o", self.folder / "x"))
        self.assertEqual([path.name for path in self.folder.iterdir()], ["net.yaml"])
