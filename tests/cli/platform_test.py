import json
import os
import pathlib
import subprocess

from tests.cli.support import PLATFORM, ROOT, CommandTest
from tools import fit_collectives, hidup_platforms


class Platform(CommandTest):
    def test_generate_says_what_joins_the_devices_of_sites_and_of_nodes(self):
        sites = " ".join(self.run_isobar("platform", "generate", "sites", "--help").stdout.split())
        self.assertIn("each device has a network card of its own, and no NVLink: for nodes with NVLink, see nodes or machine", sites)
        nodes = " ".join(self.run_isobar("platform", "generate", "nodes", "--help").stdout.split())
        self.assertIn("devices are joined by NVLink or PCI Express and share a node's link to its site", nodes)

    def test_platforms_of_hidup_are_what_their_tool_fits(self):
        known = hidup_platforms.constants()
        for name, text in hidup_platforms.platforms(known).items():
            self.assertEqual((ROOT / f"platforms/{name}.xml").read_text(), text)
        text = (ROOT / "platforms/hidup.profile.json").read_text()
        self.assertEqual(json.loads(text), hidup_platforms.profile(known))
        shown = self.json_of("platform", "show", "platforms/hidup_1x4.xml")["devices"]
        self.assertEqual([device["interference"] for device in shown], 4 * [known["interference_one_node"]])
        for setup, ranks, latency, bandwidth in (("1x4", 4, "nvlink_latency_us", "nvlink_GBps"),
                                                 ("2x4", 8, "nic_latency_us", "nic_GBps")):
            for messages, size, seconds in hidup_platforms.collective_points(setup, ranks):
                fitted = messages * known[latency] / 1e6 + size / known[bandwidth] / 1e9
                self.assertAlmostEqual(fitted / seconds, 1, delta=0.16)

    def test_shows_the_devices_in_the_order_of_the_file(self):
        text = self.run_isobar("platform", "show", "platforms/sky16.xml").stdout
        self.assertIn("sky16: 15 devices\ndata server: node-0\n", text)
        names = [line.split()[0] for line in text.splitlines() if line.startswith("node-")]
        self.assertEqual(names, [f"node-{rank}" for rank in range(1, 16)])

    def test_shows_every_pair_as_json(self):
        cluster = self.json_of("platform", "show", "platforms/sky4.xml")
        self.assertEqual(cluster["schema"], "isobar-cluster/1")
        self.assertEqual(cluster["data_server"], "node-0")
        self.assertEqual(len(cluster["latency_s"]), 4)
        self.assertAlmostEqual(cluster["latency_s"][0][1], 0.002)

    def test_shows_the_machines_and_the_machine_of_each_device(self):
        text = self.run_isobar("platform", "show", "platforms/two_t4_nvme.xml", "--wide").stdout
        self.assertIn("two_t4_nvme: 2 devices in 1 machine\n", text)
        self.assertRegex(text, r"gpu0 .* cpu +12.0 GB/s +12.0 GB/s\n")
        self.assertRegex(text, r"machine +memory +updates +while computing +disk +reads +writes\n")
        self.assertRegex(text, r"cpu +64.0 GiB +4.88 GFLOP/s +4.88 GFLOP/s +931 GiB +2.50 GB/s +1.25 GB/s\n")
        machines = self.json_of("platform", "show", "platforms/stronghold_v100.xml")["machines"]
        self.assertEqual([machine["busy_update_flops_per_s"] for machine in machines], [2.16e9])

    def test_a_machine_that_a_device_does_not_name_is_noted(self):
        text = (ROOT / "platforms/stronghold_v100.xml").read_text().replace('<prop id="host" value="cpu"/>', "")
        platform = self.write("unnamed.xml", text)
        line = text.splitlines().index('    <host id="v100" speed="11.45Tf">') + 1
        shown = self.run_isobar("platform", "show", platform)
        self.assertEqual(shown.stderr, f"isobar: {platform}:{line}: host v100: no prop host, taken to be in the nearest "
                                       "machine, cpu\n")

    def test_a_configuration_of_the_file_writes_nothing_and_is_noted(self):
        trace = self.folder / "written.trace"
        config = ('<config id="General"><prop id="tracing" value="yes"/><prop id="tracing/platform" value="yes"/>'
                  f'<prop id="tracing/filename" value="{trace}"/></config>')
        platform = self.write("traced.xml", PLATFORM.replace("MEMORY", "16 GiB").replace("<zone", config + "<zone", 1))
        shown = self.run_isobar("platform", "show", platform)
        self.assertEqual(shown.stderr, f"isobar: {platform}:4: <config> is ignored; "
                                       "Isobar sets SimGrid's options itself\n")
        self.assertFalse(trace.exists())

    def test_reads_a_platform_from_a_pipe(self):
        platform = self.write("piped.xml", PLATFORM.replace("MEMORY", "16 GiB"))
        pipe = self.folder / "pipe"
        os.mkfifo(pipe)
        with subprocess.Popen(["cp", platform, pipe]):
            self.assertIn("2 devices", self.run_isobar("platform", "show", pipe).stdout)

    def test_generates_the_platforms_that_are_shipped(self):
        for nodes in (4, 16, 32, 64):
            output = self.folder / f"sky{nodes}.xml"
            self.run_isobar("platform", "generate", "sky", "--nodes", nodes, "-o", output)
            self.assertEqual(output.read_text(), (ROOT / f"platforms/sky{nodes}.xml").read_text())

    def machine(self, text, *options):
        platform = self.folder / "machine.xml"
        self.run_isobar("platform", "generate", "machine", self.write("machine.yaml", text), *options, "-o", platform)
        return platform.read_text()

    def test_links_of_machines_attain_what_their_tool_fits(self):
        machines = {"NVSwitch of A100-SXM4": ("A100-SXM4-40GB", "switch", 8),
                    "NVSwitch of H100-SXM5": ("H100-SXM5-80GB", "switch", 8),
                    "NVLink cube of V100-SXM2": ("V100-SXM2-16GB", "switch", 8),
                    "NVLink pairs of V100-SXM2": ("V100-SXM2-16GB", "mesh", 7),
                    "PCI Express of A10G": ("A10G", "pcie", 2), "PCI Express of L4": ("L4", "pcie", 2)}
        self.assertEqual(list(machines), list(fit_collectives.FABRICS))
        for fabric, (device, topology, gpus) in machines.items():
            fraction, latency_us, start_us = fit_collectives.fit(fabric)
            nominal = fit_collectives.FABRICS[fabric][0]
            key = "bandwidth_per_pair" if topology == "mesh" else "bandwidth_per_gpu"
            xml = self.machine(f"nodes: 1\ngpus_per_node: {gpus}\ndevice: {device}\n"
                               f"inside: {{topology: {topology}, {key}: {nominal} GB/s}}\n")
            links = 1 if topology == "mesh" else 2
            latency = latency_us / links
            text = f"{latency:.6g}us" if latency >= 1 else f"{1000 * latency:.6g}ns"
            self.assertRegex(xml, rf'bandwidth="{fraction * nominal:.6g}GBps" latency="{text}"')
            start = f'id="collective_start" value="{start_us} us"'
            self.assertEqual(start in xml, start_us > 0, fabric)
            xml = self.machine(f"nodes: 1\ngpus_per_node: {gpus}\ndevice: {device}\n"
                               f"inside: {{topology: {topology}, measured_send_recv: 1 GB/s}}\n")
            gain = fit_collectives.ring_gain(fabric)
            self.assertRegex(xml, rf'id="\w+\.n0g0[.g1]*" bandwidth="{gain:.6g}GBps"')

    def test_links_between_nodes_have_the_latency_that_their_tool_fits(self):
        latency_us, _ = fit_collectives.fit_network()
        xml = self.machine("nodes: 2\ngpus_per_node: 1\ndevice: H100-SXM5-80GB\noutside: {bandwidth_per_nic: 400 Gbit/s}\n")
        self.assertIn(f'latency="{latency_us / 2:.6g}us"', xml)

    def test_makes_a_platform_of_a_machine_with_other_counts(self):
        text = (ROOT / "examples/machine.yaml").read_text()
        self.assertEqual(self.machine(text).count("<host "), 16)
        xml = self.machine(text, "--set", "nodes=3", "--set", "gpus_per_node=2")
        self.assertEqual(xml.count("<host "), 6)
        self.assertRegex(xml, r'"isobar platform generate machine \S+machine.yaml --set gpus_per_node=2 --set nodes=3"/>')
        generate = "platform", "generate", "machine", self.folder / "machine.yaml"
        self.assertEqual(self.fault_of(*generate, "--set", "node=3"),
                         "--set: node: unknown; write nodes, gpus_per_node or count_A100-SXM4-80GB")
        file = self.folder / "machine.yaml"
        self.assertEqual(self.fault_of(*generate, "-o", file), f"{file}: is an input; name another file to write")

    def test_an_import_does_not_overwrite_its_inputs(self):
        for name in ("matrix", "sites"):
            self.write(f"{name}.csv", (ROOT / f"tests/instances/import_{name}.csv").read_text())
        inputs = self.folder / "matrix.csv", self.folder / "sites.csv"
        for file in inputs:
            before = file.read_text()
            self.assertEqual(self.fault_of("platform", "import", inputs[0], "--sites", inputs[1], "-o", file),
                             f"{file}: is an input; name another file to write")
            self.assertEqual(file.read_text(), before)

    def test_generates_large_stars_that_can_be_planned_for(self):
        platform = self.folder / "star.xml"
        self.run_isobar("platform", "generate", "star", "--devices", 4096, "-o", platform)
        workload = self.write("long.yaml", pathlib.Path(ROOT / "workloads/bert160.yaml").read_text()
                              .replace("encoders: 160", "encoders: 33333"))
        plan = self.json_of("plan", platform, workload, "--allocator", "even")
        self.assertEqual(len(plan["stages"]), 4096)
        self.assertEqual(plan["stages"][-1]["last_layer"], 3 * 33333 + 2)

    def test_an_option_out_of_range_is_a_fault_of_the_user(self):
        self.assertTrue(self.fault_of("platform", "generate", "sky", "--nodes", "1").startswith("--nodes: 1 "))
        self.assertTrue(self.fault_of("platform", "generate", "star", "--bandwidth", "10")
                        .startswith('--bandwidth: "10" is not a bandwidth'))

    def test_a_fault_in_an_xml_file_names_file_and_line(self):
        platform = self.write("bad.xml", (pathlib.Path(ROOT) / "platforms/sky4.xml").read_text().replace('role', 'rolle'))
        line = next(number for number, text in enumerate(pathlib.Path(platform).read_text().splitlines(), 1)
                    if "rolle" in text and "<prop" in text)
        self.assertIn(f"{platform}:{line}: ", self.fault_of("platform", "show", platform))

    def test_sites_may_be_unequal(self):
        generate = "platform", "generate", "sites"
        platform = str(self.folder / "unequal.xml")
        self.run_isobar(*generate, "--site-devices", "1xA10,2xT4+1xA10", "-o", platform)
        devices = self.json_of("platform", "show", platform)["devices"]
        self.assertEqual([(device["name"], device["type"]) for device in devices],
                         [("site-0.0", "A10"), ("site-1.0", "T4"), ("site-1.1", "T4"), ("site-1.2", "A10")])
        self.assertIn("generate sites --site-devices 1xA10,2xT4+1xA10 ", pathlib.Path(platform).read_text())
        self.assertIn("--site-devices", self.fault_of(*generate, "--site-devices", "1,2", "--sites", 2))
        self.assertIn("65536 and the sites before are too many", self.fault_of(*generate, "--site-devices", "1,65536"))
        self.assertIn("129 sites; there are at most 128", self.fault_of(*generate, "--site-devices", "1," * 128 + "1"))

    def test_the_rates_of_every_dtype_are_shown(self):
        platform = str(self.folder / "mixed.xml")
        self.run_isobar("platform", "generate", "star", "--devices", "1xA10+1xT4", "-o", platform)
        text = self.run_isobar("platform", "show", platform, "--wide").stdout
        self.assertRegex(text, r"device +type +site +float32 +bf16 +fp16 +memory ")
        self.assertRegex(text, r"device-0 +A10 +– +31.2 TFLOP/s +125 TFLOP/s +125 TFLOP/s ")
        self.assertRegex(text, r"device-1 +T4 +– +8.10 TFLOP/s +– +65.0 TFLOP/s ")

    def test_a_table_fits_a_terminal_unless_it_is_wide(self):
        platform = str(self.folder / "mixed.xml")
        self.run_isobar("platform", "generate", "star", "--devices", "1xA100-SXM4-40GB+1xT4", "-o", platform)
        lines = self.run_isobar("platform", "show", platform).stdout.splitlines()
        for line in lines:
            self.assertLessEqual(len(line), 80, line)
        self.assertRegex(lines[2], r"device +type +site +float32 +memory +to the next +latency")
        self.assertEqual(lines[-1], "not shown without --wide: fp16, bf16, USD/h")
        self.assertGreater(len(self.run_isobar("platform", "show", platform, "--wide").stdout.splitlines()[2]), 80)
