"""Rounds of steps at several sites: isobar plan --outer, and simulate and verify of what it writes."""

import json
import pathlib
import re
import subprocess
import sys

from tests.cli.support import GPT, HANG_S, ROOT, CommandTest

PAIRS = """from,to,bandwidth_gbit_s,rtt_ms
a,b,0.4,80
a,c,0.2,120
b,c,0.3,40
"""
SITES = """site,devices,lan_bandwidth_gbit_s,lan_rtt_ms
a,2xA100-SXM4-40GB,10,0.2
b,2xA100-SXM4-40GB,10,0.2
c,2xT4,10,0.2
"""
MODEL = GPT.replace("layers: 4", "layers: 12").replace("hidden: 64", "hidden: 512").replace("sequence: 32", "sequence: 512")


class RoundsTest(CommandTest):
    def setUp(self):
        super().setUp()
        self.platform = str(self.folder / "wan.xml")
        self.run_isobar("platform", "import", self.write("pairs.csv", PAIRS), "--sites", self.write("sites.csv", SITES),
                        "--undirected", "-o", self.platform)
        self.model = str(self.write("model.yaml", MODEL))
        self.file = str(self.folder / "rounds.json")

    def plan(self, *options, expect=0):
        return self.run_isobar("plan", self.platform, self.model, "--allocator", "hybrid", *options, "-o", self.file,
                               expect=expect)

    def simulate(self, *options):
        return json.loads(self.run_isobar("simulate", self.platform, self.model, "--plan", self.file, "--json",
                                          *options).stdout)

    def test_simulated_rounds_are_the_predicted_ones(self):
        for options in (["--outer", "20"], ["--outer", "20", "--fragments", "3", "--delay", "4", "--outer-codec", "int8"],
                        ["--outer", "13", "--outer-sync", "direct", "--steps-by-speed"],
                        ["--outer", "9", "--outer-sync", "server", "--outer-codec", "int4"],
                        ["--outer", "9", "--outer-codec", "top-k 0.02 2-bit", "--delay", "8"]):
            with self.subTest(options=options):
                self.plan(*options)
                result = self.simulate()
                predicted = result["predicted_round_time_s"]
                self.assertAlmostEqual(result["round_time_s"] / predicted, 1, delta=1e-6)
                self.assertLessEqual(result["round_bound_s"], predicted * (1 + 1e-9))
                verified = self.run_isobar("verify", self.platform, self.model, self.file)
                self.assertIn("every claim holds", verified.stdout)

    def test_each_worker_sends_twice_all_but_one_part_over_its_wan_link(self):
        self.plan("--outer", "10", "--outer-codec", "int8")
        plan = json.loads(pathlib.Path(self.file).read_text())
        result = self.simulate("--rounds", "4")
        workers = len(plan["workers"])
        self.assertGreaterEqual(workers, 2)
        sent = {(pair["from"], pair["to"]): pair["bytes"] for pair in result["traffic"]}
        self.assertEqual(len(sent), workers)
        carried = {link["name"]: link["bytes_per_round"] for link in result["links"] if link["name"].startswith("wan.")}
        self.assertEqual(sum(carried.values()), sum(sent.values()))

    def test_the_step_of_a_worker_is_the_plan_that_its_site_has_alone(self):
        self.plan("--outer", "10")
        plan = json.loads(pathlib.Path(self.file).read_text())
        worker = next(worker for worker in plan["workers"] if worker["name"] == "a")
        own = self.run_isobar("plan", self.platform, self.model, "--allocator", "hybrid", "--without", "b,c", "--json")
        self.assertEqual(json.loads(own.stdout)["predicted"], worker["plan"]["predicted"])
        alone = self.write("a.json", json.dumps(worker["plan"]))
        simulated = self.run_isobar("simulate", self.platform, self.model, "--plan", alone, "--json")
        step = json.loads(simulated.stdout)["step_time_s"]
        self.assertAlmostEqual(step / worker["plan"]["predicted"]["step_time_s"], 1, delta=1e-6)

    def test_left_out_sites_stay_left_out(self):
        self.plan("--outer", "10", "--without", "c")
        plan = json.loads(pathlib.Path(self.file).read_text())
        self.assertEqual({worker["name"] for worker in plan["workers"]}, {"a", "b"})
        self.simulate()
        self.assertIn("every claim holds", self.run_isobar("verify", self.platform, self.model, self.file).stdout)

    def test_auto_shows_both_kinds_of_plans_and_writes_the_faster_one(self):
        text = self.plan("--outer", "auto").stdout
        rates = [float(rate) for rate in re.findall(r"^(?:rounds of \d+ steps|every step together): ([\d.]+) tokens/s", text,
                                                    re.MULTILINE)]
        self.assertEqual(len(rates), 2, text)
        self.assertIn("for the same samples, not for the same loss", text)
        schema = json.loads(pathlib.Path(self.file).read_text())["schema"]
        self.assertEqual(schema.startswith("isobar-rounds/"), rates[0] >= rates[1])

    def test_a_codec_is_said_to_change_the_numerics(self):
        self.assertNotIn("changes the numerics", self.plan("--outer", "10").stdout)
        self.assertIn("codec bf16 changes the numerics", self.plan("--outer", "10", "--outer-codec", "bf16").stdout)
        self.assertIn("same samples, not the same loss", self.simulate()["numerics"])

    def test_a_false_claim_is_found(self):
        self.plan("--outer", "10", "--outer-codec", "int8")
        text = pathlib.Path(self.file).read_text()
        plan = json.loads(text)
        changes = {
            "predicted.round_time_s: claims ": lambda: plan["predicted"].update(round_time_s=1e-3),
            "round_bound_s: claims ": lambda: plan.update(round_bound_s=1e9),
            "predicted.traffic: is not what these workers exchange": lambda: plan["predicted"].update(traffic=[]),
            "predicted.step_time_s": lambda: plan["workers"][0]["plan"]["predicted"].update(step_time_s=1e-3),
        }
        for fault, change in changes.items():
            with self.subTest(fault=fault):
                plan = json.loads(text)
                change()
                self.write("rounds.json", json.dumps(plan))
                result = self.run_isobar("verify", self.platform, self.model, self.file, expect=5)
                self.assertIn(fault, result.stdout)
                refused = self.run_isobar("simulate", self.platform, self.model, "--plan", self.file, expect=2)
                self.assertIn(fault, refused.stderr)

    def test_wrong_options_have_one_line_each(self):
        for options, message in (
                (["--outer", "0"], '--outer: "0" is neither auto nor a whole number of steps in 1 to 100000'),
                (["--outer", "ten"], '--outer: "ten" is neither auto nor a whole number'),
                (["--outer", "1e9"], '--outer: "1e9" is neither auto'),
                (["--outer", "10", "--fragments", "0"], "--fragments: 0 is not in 1 to 10, the steps of a round"),
                (["--outer", "10", "--fragments", "11"], "--fragments: 11 is not in 1 to 10"),
                (["--outer", "50", "--fragments", "40"], "--fragments: 40; the model has 14 layers"),
                (["--outer", "10", "--delay", "10"], "--delay: 10 is not below 10, the steps of a round"),
                (["--outer", "10", "--outer-codec", "int7"], '--outer-codec: "int7" is no codec; write fp32, bf16, int8'),
                (["--outer", "10", "--outer-codec", "top-k 1.5"], '--outer-codec: "top-k 1.5" is no codec'),
                (["--outer", "10", "--outer-sync", "tree"], '--outer-sync: "tree" is none of ring, direct, server'),
                (["--outer", "10", "--simulate", "2"], "--outer: plans each site by itself; leave out --simulate"),
                (["--fragments", "2"], "--fragments requires --outer"),
        ):
            with self.subTest(options=options):
                result = self.plan(*options, expect=2)
                self.assertIn(message, result.stderr)
                self.assertEqual(result.stderr.count("\n"), 1, result.stderr)
        self.plan("--outer", "10")
        for options, message in ((["--stamp"], "--stamp: is for plans without rounds"),
                                 (["--iterations", "2"], "--iterations: is for plans without rounds"),
                                 (["--rounds", "0"], "--rounds: 0 is not in 1 to 1000000")):
            with self.subTest(options=options):
                result = self.run_isobar("simulate", self.platform, self.model, "--plan", self.file, *options, expect=2)
                self.assertIn(message, result.stderr)

    def test_time_to_a_loss_needs_a_factor_with_its_source(self):
        tokens = ["--outer", "10", "--tokens", "1000000000"]
        text = self.plan(*tokens).stdout
        rate = float(re.search(r"([\d.]+) tokens/s", text).group(1))
        days = float(re.search(r"1000000000 tokens take ([\d.e+]+) days; for the loss of training together give", text).group(1))
        self.assertAlmostEqual(days * 86400 * rate / 1e9, 1, delta=1e-3)
        text = self.plan(*tokens, "--token-factor", "1.5", "--factor-source", "arXiv 2311.08105").stdout
        later = float(re.search(r"1\.5 times as many \(arXiv 2311\.08105\): ([\d.e+]+) days", text).group(1))
        self.assertAlmostEqual(later / days, 1.5, delta=2e-3)
        self.assertIn("--token-factor requires --factor-source", self.plan(*tokens, "--token-factor", "2", expect=2).stderr)
        for factor in ("0.5", "nan", "1000"):
            result = self.plan(*tokens, "--token-factor", factor, "--factor-source", "x", expect=2)
            self.assertRegex(result.stderr, r"--token-factor: \S+ is not in 1 to 100")

    def test_devices_without_sites_and_a_single_site_are_refused(self):
        for devices, message in (("2xT4", "all devices are at site a; rounds need two sites or more"),):
            self.write("sites.csv", f"site,devices,lan_bandwidth_gbit_s,lan_rtt_ms\na,{devices},10,0.2\n")
            platform = str(self.folder / "one.xml")
            self.run_isobar("platform", "import", self.folder / "pairs.csv", "--sites", self.folder / "sites.csv",
                            "--undirected", "-o", platform)
            result = self.run_isobar("plan", platform, self.model, "--allocator", "hybrid", "--outer", "10", expect=2)
            self.assertIn(message, result.stderr)
        result = self.run_isobar("plan", "platforms/sky16.xml", "workloads/bert24.yaml", "--allocator", "hybrid", "--outer",
                                 "10", expect=2)
        self.assertRegex(result.stderr, r"--outer: device \S+ has no site, and rounds are of sites")

    def test_sites_without_room_are_named_where_there_are_no_rounds(self):
        big = self.write("big.yaml", MODEL.replace("hidden: 512", "hidden: 16384"))
        result = self.run_isobar("plan", self.platform, big, "--allocator", "hybrid", "--outer", "10", expect=4)
        self.assertIn("no rounds: fewer than two sites have a plan", result.stdout)
        self.assertRegex(result.stdout, r"site a: device a\.\d")

    def test_other_commands_say_what_a_plan_of_rounds_is(self):
        self.plan("--outer", "10")
        result = self.run_isobar("convert", self.file, "--to", "torchtitan", "-o", str(self.folder / "out"), expect=2)
        self.assertIn("schema: isobar-rounds/1, a plan of rounds (isobar plan --outer)", result.stderr)

    def test_a_trace_has_what_passes_between_sites(self):
        self.plan("--outer", "6")
        trace = self.folder / "trace.json"
        self.run_isobar("simulate", self.platform, self.model, "--plan", self.file, "--trace", str(trace))
        names = {event.get("name") for event in json.loads(trace.read_text())["traceEvents"]}
        self.assertTrue(any("outer gradient" in str(name) for name in names), sorted(map(str, names))[:20])

    def test_the_page_of_results_shows_the_committed_rows(self):
        page = self.write("page.md", (ROOT / "results/rounds/README.md").read_text())
        subprocess.run([sys.executable, ROOT / "tools/rounds_table.py", "--keep-rows", "--page", page], check=True,
                       timeout=HANG_S)
        self.assertEqual(pathlib.Path(page).read_text(), (ROOT / "results/rounds/README.md").read_text(),
                         "run tools/rounds_table.py")
