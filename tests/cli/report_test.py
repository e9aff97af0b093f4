import json
import pathlib
import subprocess
import tempfile
import unittest
import xml.dom.minidom

from tests.cli.browser import browser, need_browser
from tests.cli.support import HANG_S, ISOBAR, ROOT, CommandTest

GEO = "platforms/geo_8cities.xml"
GPT = "workloads/gpt2_124m.yaml"
SKY64 = "platforms/sky64.xml"
BERT160 = "workloads/bert160.yaml"
# Models larger than their device: the first has updates that run into the next step, the second also needs a disk.
WINDOW = ("platforms/stronghold_v100.xml", "workloads/stronghold.yaml"), ("--set", "layers=40")
WITH_DISK = ("platforms/two_t4_nvme.xml", "workloads/stronghold.yaml"), ("--set", "layers=100")

# Names that would end a script, be a tag or end a text unless they are escaped.
SLOW = "</script><script>document.title='broken'</script>"
FAST = "<img src=x onerror=\"document.title='broken'\"> & \u201cü\u65e5\u672c\u201d"
HOSTILE = """<?xml version='1.0' encoding='UTF-8'?>
<!DOCTYPE platform SYSTEM "https://simgrid.org/simgrid.dtd">
<platform version="4.1">
  <zone id="z" routing="Full">
    <host id="SLOW" speed="1Tf"><prop id="memory" value="16 GB"/><prop id="site" value="&lt;b&gt;here&lt;/b&gt;"/></host>
    <host id="FAST" speed="2Tf"><prop id="memory" value="16 GB"/><prop id="site" value="&quot;there&quot;"/></host>
    <link id="&lt;/script&gt;&lt;!--" bandwidth="1GBps" latency="10ms"/>
    <route src="SLOW" dst="FAST"><link_ctn id="&lt;/script&gt;&lt;!--"/></route>
  </zone>
</platform>
"""


def in_xml(text):
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace('"', "&quot;")


def contrast(one, other):
    """Contrast ratio of WCAG 2 for two colours as the browser spells them: rgb(17, 21, 26)."""
    def luminance(colour):
        parts = [int(part) / 255 for part in colour[colour.index("(") + 1:-1].split(",")[:3]]
        red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue
    darker, lighter = sorted((luminance(one), luminance(other)))
    return (lighter + 0.05) / (darker + 0.05)


class ResultTest(CommandTest):
    def result_of(self, *inputs, name="result.json", options=(), allocator="even"):
        plan = self.make_plan(*inputs, *options, allocator=allocator)
        result = str(self.folder / name)
        self.run_isobar("simulate", *inputs, "--plan", plan, "-o", result)
        return result


class ReportCommand(ResultTest):
    def edit(self, file, **changes):
        content = json.loads(pathlib.Path(file).read_text())
        content.update(changes)
        pathlib.Path(file).write_text(json.dumps(content))

    def test_a_result_names_all_that_is_needed_to_simulate_it_again(self):
        platform, workload = self.small_inputs()
        result = json.loads(pathlib.Path(self.result_of(platform, workload)).read_text())
        plan = json.loads((self.folder / "plan.json").read_text())
        del plan["wall"]
        self.assertEqual(result["plan"], plan)
        self.assertEqual(result["inputs"], plan["inputs"])
        again = self.write("again.json", json.dumps(result["plan"]))
        self.assertEqual(self.json_of("simulate", platform, workload, "--plan", again) | {"wall": None},
                         result | {"wall": None})

    def test_compare_keeps_what_a_report_compares(self):
        kept = self.folder / "kept"
        inputs = self.small_inputs()
        rows = self.json_of("compare", *inputs, "--objective", "sequential,pipeline", "--allocators", "even,chain-dp",
                            "--keep", kept)["rows"]
        names = sorted(f"{row['objective']}.{row['allocator']}.{kind}.json" for row in rows
                       for kind in ("plan", "result"))
        self.assertEqual(sorted(path.name for path in kept.iterdir()), names)
        for row in rows:
            result = json.loads((kept / f"{row['objective']}.{row['allocator']}.result.json").read_text())
            self.assertEqual(result["step_time_s"], row["step_time_s"])
            self.run_isobar("verify", *inputs, kept / f"{row['objective']}.{row['allocator']}.plan.json")
        report = self.json_of("report", *sorted(kept.glob("*.result.json")))
        self.assertEqual([(run["objective"], run["allocator"], run["step_time_s"]) for run in report["runs"]],
                         sorted((row["objective"], row["allocator"], row["step_time_s"]) for row in rows))

    def test_compare_leaves_devices_out(self):
        inputs = self.small_inputs()
        kept = self.folder / "kept"
        self.run_isobar("compare", *inputs, "--allocators", "even,exact", "--without", "slow", "--keep", kept)
        for allocator in ("even", "exact"):
            plan = kept / f"step.{allocator}.plan.json"
            content = json.loads(plan.read_text())
            self.assertEqual(content["without"], ["slow"])
            self.assertEqual([stage["devices"][0]["name"] for stage in content["stages"]], ["fast"])
            self.run_isobar("verify", *inputs, plan)
        self.assertEqual(len(self.json_of("report", *sorted(kept.glob("*.result.json")))["runs"]), 2)
        self.assertEqual(self.fault_of("compare", *inputs, "--without", "quick"),
                         '--without: "quick" is not a device of small; its devices are slow, fast')

    def test_a_row_without_a_placement_keeps_nothing(self):
        kept = self.folder / "kept"
        self.run_isobar("compare", *self.small_inputs(memory="1 GB"), "--keep", kept, expect=4)
        self.assertEqual(list(kept.iterdir()), [])

    def test_refuses_to_keep_rows_whose_files_would_have_the_same_name(self):
        inputs = self.small_inputs()
        file = self.write("file", "")
        self.assertEqual(self.fault_of("compare", *inputs, "--keep", file), f"{file}: is not a folder; name one, or a new one")
        kept = self.folder / "kept"
        self.assertEqual(self.fault_of("compare", *inputs, "--allocators", "exec:a/b,exec:a-b", "--keep", kept),
                         f"{kept}/step.exec-a-b.plan.json: is written twice; name two files")

    def test_every_change_is_simulated_with_the_plan_kept(self):
        run, = self.json_of("report", self.result_of(*self.small_inputs()))["runs"]
        answers = {each["change"]: each for each in run["what_ifs"]}
        platform = pathlib.Path(self.folder / "small.xml")
        xml = platform.read_text()
        for change, before, after in (("+10 % speed of slow", 'speed="1Tf"', 'speed="1.1Tf"'),
                                      ("+10 % speed of fast", 'speed="2Tf"', 'speed="2.2Tf"'),
                                      ("+10 % bandwidth of all links", "1GBps", "1.1GBps"),
                                      ("\u221210 % latency of all links", "10ms", "9ms")):
            self.write("changed.xml", xml.replace(before, after))
            plan = json.loads((self.folder / "plan.json").read_text())
            # even considers only counts, so it makes the same plan.
            again = self.make_plan(self.folder / "changed.xml", self.folder / "small.yaml")
            layers = lambda plan: [(stage["first_layer"], stage["last_layer"]) for stage in plan["stages"]]
            self.assertEqual(layers(json.loads(pathlib.Path(again).read_text())), layers(plan))
            expected = self.json_of("simulate", self.folder / "changed.xml", self.folder / "small.yaml", "--plan", again)
            self.assertAlmostEqual(answers[change]["step_time_s"] / expected["step_time_s"], 1, places=9)
            self.assertIsNone(answers[change]["planned_anew_step_time_s"])
        best = [each["step_time_s"] for each in run["what_ifs"]]
        self.assertEqual(best, sorted(best))

    def test_a_change_that_cannot_be_simulated_has_a_reason(self):
        platform, workload = self.small_inputs()
        self.write("wire.bw", "0 1e9\n")
        xml = pathlib.Path(platform).read_text()
        self.write("small.xml", xml.replace('latency="10ms"', 'latency="10ms" bandwidth_file="wire.bw"'))
        run, = self.json_of("report", self.result_of(platform, workload))["runs"]
        answer = next(each for each in run["what_ifs"] if each["change"] == "+10 % bandwidth of wire")
        self.assertIsNone(answer["step_time_s"])
        self.assertIn("wire", answer["fault"])
        self.assertIn("fault", run["what_ifs"][-1])  # after those that have an answer

    def test_recomputed_layers_stay_recomputed(self):
        result = self.result_of(*self.small_inputs(), options=("--recompute", "1-2"))
        run, = self.json_of("report", result)["runs"]
        self.assertLessEqual({1.5, 5}, set(run["timeline"]["events"]["alone_s"]))

    def test_plans_again_on_request(self):
        result = self.result_of(*self.small_inputs(), allocator="chain-dp")
        run, = self.json_of("report", result, "--plan-anew")["runs"]
        for answer in run["what_ifs"]:
            self.assertIsNotNone(answer["planned_anew_step_time_s"], answer)
            if "memory" in answer["change"]:
                self.assertIsNone(answer["step_time_s"])

    def test_a_new_plan_that_is_worse_than_the_kept_one_is_reported(self):
        result = self.result_of(*self.small_inputs(), allocator="exact")
        content = json.loads(pathlib.Path(result).read_text())
        content["plan"]["allocator"] = "even"  # which finds a worse plan
        pathlib.Path(result).write_text(json.dumps(content))
        done = self.run_isobar("report", result, "--plan-anew", "--json")
        run, = json.loads(done.stdout)["runs"]
        worst = {"saved": 0}
        for answer in run["what_ifs"]:
            kept, new = answer["step_time_s"], answer["planned_anew_step_time_s"]
            if kept is None or new is None or kept >= new:
                self.assertNotIn("note", answer)
                continue
            saved = 100 * (1 - kept / new)
            self.assertEqual(answer["note"], f"the kept plan is better: its step is {saved:.3g} % shorter")
            worst = max(worst, {"saved": saved, "change": answer["change"]}, key=lambda each: each["saved"])
        self.assertGreater(worst["saved"], 0)
        worse = sum("note" in answer for answer in run["what_ifs"])
        self.assertIn(f"{result}: for {worse} of {len(run['what_ifs'])} changes the kept plan is better than the new one; its "
                      f"step is up to {worst['saved']:.3g} % shorter ({worst['change']})\n", done.stderr)
        for answer in self.json_of("report", result)["runs"][0]["what_ifs"]:
            self.assertNotIn("note", answer)

    def test_two_runs_give_the_same_bytes(self):
        result = self.result_of(GEO, GPT)
        pages = []
        for name in ("a.html", "b.html"):
            self.run_isobar("report", result, "-o", self.folder / name)
            pages.append((self.folder / name).read_bytes())
        self.assertEqual(*pages)

    def test_the_page_loads_nothing(self):
        page = self.folder / "page.html"
        self.run_isobar("report", self.result_of(*self.small_inputs()), "-o", page)
        self.assertIn('http-equiv="Content-Security-Policy" content="default-src \'none\';', page.read_text())

    def test_refuses_files_that_are_not_results(self):
        result = self.result_of(*self.small_inputs())
        page = self.write("page.html", "what was there before")
        report = "report", result, "-o", page
        text = pathlib.Path(result).read_text()
        faults = {
            text[:len(text) // 2]: "not JSON",
            "{}": "schema: missing",
            (self.folder / "plan.json").read_text(): 'is a plan; name a result',
            text.replace('"step_bound_s": ', '"step_bound_s": "x", "was": ', 1): "step_bound_s",
            text.replace('"device": "slow"', '"device": "fast"', 1): "stages: do not match the stages of the plan",
        }
        for content, expected in faults.items():
            pathlib.Path(result).write_text(content)
            fault = self.fault_of(*report)
            self.assertTrue(fault.startswith(f"{result}:"), fault)
            self.assertIn(expected, fault)
            self.assertEqual(pathlib.Path(page).read_text(), "what was there before")
        missing = self.folder / "missing.json"
        self.assertEqual(self.fault_of("report", missing, "-o", page), f"{missing}: no such file")
        self.assertEqual(self.fault_of("report", "-o", page), "RESULT is required; see isobar report --help")

    def test_refuses_a_result_whose_inputs_are_missing_or_have_changed(self):
        platform, workload = self.small_inputs()
        result = self.result_of(platform, workload)
        xml = pathlib.Path(platform).read_text()
        self.write("small.xml", xml.replace("1GBps", "2GBps"))
        self.assertRegex(self.fault_of("report", result),
                         rf"^{result}: inputs.platform: {platform} had hash \w{{16}} when it was simulated and has "
                         r"\w{16} now; simulate again$")
        pathlib.Path(platform).unlink()
        self.assertEqual(self.fault_of("report", result),
                         f"{result}: inputs.platform: {platform} does not exist, nor next to this file; put it there, or "
                         "simulate again")
        self.write("small.xml", xml)
        pathlib.Path(workload).unlink()
        self.assertEqual(self.fault_of("report", result),
                         f"{result}: inputs.workload: {workload} does not exist, nor next to this file; put it there, or "
                         "simulate again")

    def test_finds_the_inputs_of_a_result_next_to_it(self):
        platform, workload = self.small_inputs()
        result = self.result_of(platform, workload)
        shown = self.json_of("report", result)
        mailed = self.folder / "mailed"
        mailed.mkdir()
        for file in (platform, workload, result):
            pathlib.Path(file).rename(mailed / pathlib.Path(file).name)
        result = mailed / pathlib.Path(result).name
        self.assertEqual(self.json_of("report", result)["runs"][0]["what_ifs"], shown["runs"][0]["what_ifs"])
        (mailed / "small.xml").write_text((mailed / "small.xml").read_text().replace("1GBps", "2GBps"))
        self.assertIn("when it was simulated and has", self.fault_of("report", result))

    def test_refuses_results_of_other_files_than_the_first(self):
        first = self.result_of(*self.small_inputs())
        other = self.result_of("platforms/sky4.xml", "workloads/bert10.yaml", name="other.json")
        self.assertRegex(self.fault_of("report", first, other),
                         rf"^{other}: inputs.platform: platforms/sky4.xml \(hash \w+\); {first} has "
                         rf"{self.folder}/small.xml \(hash \w+\); a report shows plans of one platform$")

    def test_refuses_numbers_and_plans_that_do_not_hold(self):
        result = self.result_of(*self.small_inputs())
        content = json.loads(pathlib.Path(result).read_text())
        self.edit(result, step_times_s=[1.0], step_time_s=1.0)
        self.assertRegex(self.fault_of("report", result),
                         rf"^{result}: step_times_s: the first is 1, and [\d.]+ when it is simulated again \(by SimGrid "
                         r"[\d.]+; this is [\d.]+\); simulate again$")
        self.edit(result, step_times_s=content["step_times_s"], step_time_s=1.0)
        self.assertRegex(self.fault_of("report", result), rf"^{result}:\d+: step_time_s: 1; the mean of step_times_s is ")
        self.edit(result, step_time_s=content["step_time_s"], links=[{"name": "wire", "bytes": 1, "busy_fraction": 2}])
        self.assertIn("links[0].busy_fraction: 2; no link is busy for longer than the step",
                      self.fault_of("report", result))
        self.edit(result, links=content["links"], network={**content["network"], "network/model": "LV08"})
        self.assertEqual(self.fault_of("report", result),
                         f"{result}: network: simulated with other options than this Isobar's; simulate again")
        self.edit(result, network=content["network"])
        plan = content["plan"]
        plan["stages"][0]["last_layer"] = 0
        self.edit(result, step_times_s=content["step_times_s"], plan=plan)
        self.assertIn(f"{result}: plan: stages[1]: layer 1 is not placed", self.fault_of("report", result))

    def test_refuses_to_write_over_its_input(self):
        result = self.result_of(*self.small_inputs())
        before = pathlib.Path(result).read_bytes()
        for command in (("report", result, "-o", result), ("plot", result, "--chart", "map", "-o", result)):
            self.assertEqual(self.fault_of(*command), f"{result}: is an input; name another file to write")
        self.assertEqual(pathlib.Path(result).read_bytes(), before)
        for file in (self.folder / "small.xml", self.folder / "small.yaml"):
            self.assertEqual(self.fault_of("report", result, "-o", file),
                             f"{file}: is an input; name another file to write")

    def test_a_measured_trace_goes_with_one_result_and_its_plan(self):
        result = self.result_of(*self.small_inputs())
        trace = self.folder / "trace.json"
        self.run_isobar("simulate", *self.small_inputs(), "--plan", self.folder / "plan.json", "--iterations", 3,
                        "--trace", trace)
        run, = self.json_of("report", result, "--measured", trace)["runs"]
        self.assertAlmostEqual(run["measured"]["step_time_s"], run["step_time_s"], places=6)
        self.assertEqual(run["measured"]["timeline"]["instructions"], run["timeline"]["instructions"])
        self.assertGreaterEqual(min(run["measured"]["timeline"]["events"]["begin_s"]), 0)
        self.assertEqual(self.fault_of("report", result, result, "--measured", trace),
                         "--measured: is a trace of one plan; name only one result")
        elsewhere = self.write("elsewhere.json", trace.read_text().replace('"slow"', '"elsewhere"'))
        self.assertEqual(self.fault_of("report", result, "--measured", elsewhere),
                         f"{elsewhere}: has other devices than the plan of {result}")
        other = self.result_of(*self.small_inputs(), options=("--microbatches", 3))
        self.assertIn("the trace is of another plan", self.fault_of("report", other, "--measured", trace))

    def report_of(self, inputs, options, allocator, *measured):
        """The only run of a report, and its plan."""
        run, = self.json_of("report", self.result_of(*inputs, options=options, allocator=allocator), *measured)["runs"]
        return run, json.loads((self.folder / "plan.json").read_text())

    def test_a_model_larger_than_its_device_shows_what_each_memory_holds_and_has(self):
        has = {"v100": 33135001600, "gpu0": 16e9, "cpu/nvme0": 1e12}
        for (inputs, options), allocator in ((WINDOW, "window"), (WINDOW, "zero-infinity"), (WINDOW, "stronghold-published"),
                                             (WITH_DISK, "window")):
            with self.subTest(allocator=allocator, platform=inputs[0]):
                run, plan = self.report_of(inputs, options, allocator)
                self.assertEqual({each["name"] for each in run["memory"]}, set(plan["predicted"]["peak_memory_bytes"]))
                for each in run["memory"]:
                    self.assertAlmostEqual(each["peak_bytes"] / plan["predicted"]["peak_memory_bytes"][each["name"]], 1, 9)
                    self.assertEqual(each["peak_bytes"], max(each["bytes"]))
                    self.assertEqual(each["times_s"], sorted(each["times_s"]))
                    self.assertAlmostEqual(each["times_s"][-1], run["step_time_s"])
                    self.assertEqual(each["has_bytes"], has.get(each["name"], each["has_bytes"]))
                kept = {each["change"]: each["step_time_s"] for each in run["what_ifs"]}
                self.assertLess(kept["+10 % update speed of all machines"], run["step_time_s"])
        self.assertEqual([each["tier"] for each in run["memory"]], ["device", "host", "disk"])

    def test_a_stage_that_passes_layer_by_layer_is_one_stage_as_in_its_plan(self):
        run, plan = self.report_of(*WINDOW, "window")
        keys = "first_layer", "last_layer"
        self.assertLess(len(plan["stages"]), 5)
        self.assertEqual([[stage[key] for key in keys] for stage in run["stages"]],
                         [[stage[key] for key in keys] for stage in plan["stages"]])
        self.assertEqual([stage["residence"] for stage in run["stages"]],
                         [stage.get("residence") for stage in plan["stages"]])
        result = json.loads((self.folder / "result.json").read_text())
        self.assertGreater(len(result["stages"]), 40)
        self.assertAlmostEqual(sum(stage["compute_s"] for stage in run["stages"]),
                               sum(stage["compute_s"] for stage in result["stages"]))

    def test_a_step_that_overlaps_others_is_drawn_between_them(self):
        run, plan = self.report_of(*WINDOW, "window")
        self.assertIn("next-forward", {stage.get("residence", {}).get("overlap") for stage in plan["stages"]})
        self.assertEqual(run["first_step_time_s"], run["step_time_s"])
        events = run["timeline"]["events"]
        self.assertEqual(set(events["lane"]), {"compute", "copy in", "copy out", "host update"})
        self.assertLess(min(events["begin_s"]), 0)  # before the last update of the step before
        ends, begins = ([[time for time, of in zip(events[key], events["step"]) if of == step] for step in (0, 1)] for key in ("end_s", "begin_s"))
        self.assertEqual(len(ends[0]), run["timeline"]["instructions"])
        self.assertAlmostEqual(max(ends[0]), run["step_time_s"])
        self.assertTrue(begins[1] and max(begins[1]) < run["step_time_s"])  # of the next step, what begins within this one
        kept = next(each["step_time_s"] for each in run["what_ifs"] if each["change"] == "+10 % speed of all devices")
        self.assertLess(kept, run["step_time_s"])
        trace = self.folder / "trace.json"
        self.run_isobar("simulate", *WINDOW[0], "--plan", self.folder / "plan.json", "--iterations", 3, "--trace", trace)
        run, = self.json_of("report", self.folder / "result.json", "--measured", trace)["runs"]
        self.assertAlmostEqual(run["measured"]["step_time_s"], run["step_time_s"], places=6)
        for simulated, measured in zip(run["memory"], run["measured"]["memory"], strict=True):
            self.assertEqual((measured["name"], measured["peak_bytes"]), (simulated["name"], simulated["peak_bytes"]))

    def test_a_missing_browser_is_said_in_one_line(self):
        result = self.result_of(*self.small_inputs())
        figure = self.folder / "figure.svg"
        nowhere = self.folder / "nowhere"
        self.assertEqual(self.fault_of("plot", result, "--chart", "plan", "-o", figure, "--browser", nowhere, expect=3),
                         f"{nowhere}: cannot start: No such file or directory")
        self.assertFalse(figure.exists())
        alone = subprocess.run([ISOBAR, "plot", result, "--chart", "plan", "-o", figure], cwd=ROOT, capture_output=True,
                               text=True, env={"PATH": str(nowhere)})
        self.assertEqual((alone.returncode, alone.stderr),
                         (3, "isobar: no browser to draw with: none of chromium, chromium-browser, google-chrome, "
                          "google-chrome-stable is on the PATH; install chromium, or name one with --browser\n"))
        self.assertIn("--chart: pie not in {", self.fault_of("plot", result, "--chart", "pie", "-o", figure))


class Plot(ResultTest):
    def test_draws_every_chart_as_plain_svg_with_the_same_bytes_each_time(self):
        need_browser()
        result = self.result_of(GEO, GPT)
        marks = {"timeline": "Send activation", "memory": "device memory, GiB", "plan": "speed, TFLOP/s", "map": "Oregon", "comparison": "even"}
        for chart, mark in marks.items():
            texts = []
            for _ in range(2 if chart == "timeline" else 1):
                figure = self.folder / f"{chart}.svg"
                self.run_isobar("plot", result, "--chart", chart, "-o", figure)
                texts.append(figure.read_text())
            self.assertEqual(len(set(texts)), 1)
            document = xml.dom.minidom.parseString(texts[0])
            self.assertEqual(document.documentElement.tagName, "svg")
            for tag in ("script", "foreignObject", "image", "font-face", "style"):
                self.assertEqual(len(document.getElementsByTagName(tag)), 0, (chart, tag))
            self.assertIn(mark, " ".join(node.firstChild.data for node in document.getElementsByTagName("text")
                                         if node.firstChild and node.firstChild.nodeType == node.TEXT_NODE))
            self.assertGreater(len(document.getElementsByTagName("path")), 10)
        self.assertNotIn("http", texts[0].replace("http://www.w3.org/", ""))


class Page(unittest.TestCase):
    """Pages in a browser that records every request and every error."""

    @classmethod
    def setUpClass(cls):
        need_browser()
        temporary = tempfile.TemporaryDirectory()
        cls.addClassCleanup(temporary.cleanup)
        cls.tests = ResultTest()
        cls.folder = cls.tests.folder = pathlib.Path(temporary.name)
        cls.chromium = cls.enterClassContext(browser())
        cls.run_isobar("compare", GEO, GPT, "--allocators", "even,chain-dp", "--keep", cls.folder / "geo")
        cls.geo = cls.page_of("geo", sorted((cls.folder / "geo").glob("*.result.json")))

    @classmethod
    def run_isobar(cls, *arguments):
        return cls.tests.run_isobar(*arguments)

    @classmethod
    def page_of(cls, name, results, *options):
        page = cls.folder / f"{name}.html"
        cls.run_isobar("report", *results, "-o", page, *options)
        return page, json.loads(cls.run_isobar("report", *results, "--json", *options).stdout)

    def open(self, page, **context):
        context = self.chromium.new_context(**{"viewport": {"width": 1200, "height": 900}, **context})
        self.addCleanup(context.close)
        context.set_default_timeout(1000 * HANG_S)
        opened = context.new_page()
        requests = []
        complaints = []
        opened.on("request", lambda request: requests.append(request.url))
        opened.on("console", lambda message: complaints.append(message.text))
        opened.on("pageerror", lambda error: complaints.append(str(error)))
        opened.on("dialog", lambda dialog: complaints.append(dialog.message))
        opened.goto(page.as_uri())
        opened.wait_for_selector("html[data-drawn]", state="attached")
        self.addCleanup(lambda: self.assertEqual((requests, complaints), ([page.as_uri()], [])))
        return opened

    def values(self, page, table):
        """The numbers of a table, which its cells take from the JSON."""
        return page.eval_on_selector_all(
            f'[aria-label="{table}"] tbody tr',
            "rows => rows.map(row => [...row.querySelectorAll('[data-value]')].map(cell => Number(cell.dataset.value)))")

    def choose(self, page, allocator):
        page.select_option("#run", label=allocator)
        page.wait_for_function("document.querySelectorAll('#plan-chart .bars .point').length > 0")

    def test_charts_have_room_for_their_names_on_a_phone(self):
        page = self.open(self.geo[0], viewport={"width": 420, "height": 900})
        self.assertLessEqual(page.evaluate("document.documentElement.scrollWidth"), 420)
        boxes = page.evaluate("""() => ["comparison", "bounds"].map(id => {
            const box = each => { const {left, right, top, bottom} = each.getBoundingClientRect(); return {left, right, top, bottom}; };
            const chart = document.getElementById(`${id}-chart`);
            return {chart: box(chart), headings: [...chart.querySelectorAll(".annotation-text")].map(box),
                    names: [...chart.querySelectorAll(".ytick text, .y2tick text, .y3tick text")].map(box)};
        })""")
        self.assertEqual(len(boxes[0]["headings"]), 3)
        for shown in boxes:
            for text in shown["headings"] + shown["names"]:
                self.assertGreaterEqual(text["left"], shown["chart"]["left"])
                self.assertLessEqual(text["right"], shown["chart"]["right"])
        tops = [heading["top"] for heading in boxes[0]["headings"]]
        bottoms = [heading["bottom"] for heading in boxes[0]["headings"]]
        for bottom, top in zip(bottoms, tops[1:]):
            self.assertLess(bottom, top)
        page.set_viewport_size({"width": 1200, "height": 900})
        page.wait_for_function("() => new Set([...document.querySelectorAll('#comparison-chart .annotation-text')].map("
                               "each => Math.round(each.getBoundingClientRect().top))).size === 1")

    def test_names_and_tables_of_several_schedules_have_room(self):
        self.run_isobar("compare", "platforms/sky4.xml", "workloads/bert10.yaml", "--allocators", "even,exact", "--schedule",
                        "1f1b,1f1b(warm_up=auto),interleaved", "--keep", self.folder / "schedules")
        file, report = self.page_of("schedules", sorted((self.folder / "schedules").glob("*.result.json")))
        page = self.open(file, viewport={"width": 1300, "height": 900})
        names = page.eval_on_selector_all("#comparison-chart .ytick text", "all => all.map(each => each.textContent)")
        self.assertEqual(names, [run["allocator"] + run["schedule"] for run in report["runs"]])
        lefts = page.eval_on_selector_all("#comparison-chart .ytick text", "all => all.map(each => each.getBoundingClientRect().left)")
        self.assertGreater(min(lefts), page.evaluate("document.getElementById('comparison-chart').getBoundingClientRect().left"))
        options = page.eval_on_selector_all("#run option", "all => all.map(each => each.textContent)")
        self.assertEqual(options, [f"{run['allocator']} ({run['schedule']})" for run in report["runs"]])
        for width in page.eval_on_selector_all(".scroll", "all => all.map(each => each.scrollWidth - each.clientWidth)"):
            self.assertEqual(width, 0)

    def test_a_gap_of_rounding_is_none(self):
        percents = {0: "0 %", 1e-10: "0 %", 5e-5: "<0.01 %", 0.25: "25 %"}
        file, report = self.geo
        for gap, text in percents.items():
            edited = {**report, "runs": [{**report["runs"][0], "gap_fraction": gap}]}
            source = file.read_text()
            begin = source.index(start := '<script type="application/json" id="report">') + len(start)
            page_file = self.folder / "gap.html"
            page_file.write_text(source[:begin] + json.dumps(edited) + source[source.index("</script>", begin):])
            page = self.open(page_file)
            self.assertEqual(page.locator('[data-fact="gap"]').inner_text().split("\n")[0], text)

    def test_a_small_map_names_devices_and_links(self):
        platform, workload = self.tests.small_inputs()
        plan = self.tests.make_plan(platform, workload)
        result = self.folder / "named.json"
        self.run_isobar("simulate", platform, workload, "--plan", plan, "-o", result)
        file, _ = self.page_of("named", [result])
        page = self.open(file)
        texts = page.eval_on_selector_all("#map-chart .annotation-text", "all => all.map(each => each.textContent)")
        for name in ("slow", "fast"):
            self.assertTrue(any(text.startswith(f"{name}wire: busy ") for text in texts), texts)
        self.assertEqual(page.locator("#map summary").inner_text(), "1 link that carried data")

    def test_says_where_the_kept_plan_is_better_than_a_new_one(self):
        result = self.folder / "kept.json"
        platform, workload = self.tests.small_inputs()
        plan = self.tests.make_plan(platform, workload, allocator="exact")
        self.run_isobar("simulate", platform, workload, "--plan", plan, "-o", result)
        content = json.loads(result.read_text())
        content["plan"]["allocator"] = "even"  # which finds a worse plan
        result.write_text(json.dumps(content))
        file, report = self.page_of("kept", [result], "--plan-anew")
        changes = report["runs"][0]["what_ifs"]
        notes = [each["note"] for each in changes if "note" in each]
        page = self.open(file)
        self.assertIn(f"For {len(notes)} of the {len(changes)} changes the kept plan is better than the new one; the table says "
                      "by how much.", page.locator("#next-change").inner_text())
        table = page.locator("#bounds table").text_content()
        for note in notes:
            self.assertIn(note, table)

    def test_every_chart_draws_its_marks(self):
        page = self.open(self.geo[0])
        self.choose(page, "even")
        run = next(run for run in self.geo[1]["runs"] if run["allocator"] == "even")
        count = lambda selector: page.locator(selector).count()
        self.assertEqual(count("#comparison-chart .bars .point path"), 3 * 2)
        self.assertEqual(count("#plan-chart .bars .point path"), 5 * len(run["stages"]))
        self.assertEqual(count("#timeline-chart .bars .point path"), len(run["timeline"]["events"]["rank"]))
        self.assertEqual(count("#bounds-chart .bars .point path"), len(run["what_ifs"]))
        devices = sum(len(site["devices"]) for site in run["sites"])
        self.assertEqual(count("#map-chart .point"), devices + len(run["connections"]) + len(run["stages"]))
        lines = page.eval_on_selector_all("#map-chart .scatterlayer .js-line", "all => all.map(each => each.getAttribute('d')).join('')")
        self.assertEqual(lines.count("M"), len(run["connections"]) + len(run["stages"]))

    def test_its_numbers_are_those_of_the_results(self):
        page = self.open(self.geo[0])
        runs = self.geo[1]["runs"]
        for run, row in zip(runs, self.values(page, "Placements")):
            result = json.loads(pathlib.Path(run["file"]).read_text())
            self.assertEqual(row, [len(result["stages"]), result["step_time_s"], result["step_bound_s"],
                                   *(result[key] for key in ("tokens_per_s", "mfu_fraction", "bubble_fraction")),
                                   *(result["plan"][key] for key in ("objective_s", "objective_bound_s", "gap_fraction")),
                                   max(stage["peak_memory_bytes"] for stage in result["stages"])])
        self.choose(page, "even")
        run = next(run for run in runs if run["allocator"] == "even")
        result = json.loads(pathlib.Path(run["file"]).read_text())
        for i, (row, stage) in enumerate(zip(self.values(page, "Stages"), result["stages"], strict=True)):
            self.assertEqual(row[0], i)
            self.assertEqual([row[2], *row[4:]], [stage[key] for key in ("peak_memory_bytes", "compute_s", "send_s", "idle_s")])
        links = sorted(result["links"], key=lambda link: -link["busy_fraction"])
        self.assertEqual(self.values(page, "Links"), [[link["bytes"], link["busy_fraction"]] for link in links])
        step = result["step_time_s"]
        for row, answer in zip(self.values(page, "Changes"), run["what_ifs"], strict=True):
            self.assertEqual(row, [answer["step_time_s"], answer["step_time_s"] / step - 1])
        self.assertEqual(page.locator('[data-fact="step time"]').inner_text().split("\n")[0], f"{step:.5g} s")
        for row, connection in zip(self.values(page, "Between sites"), run["connections"], strict=True):
            self.assertEqual(row[:3], [connection["a_to_b_bytes"], connection["b_to_a_bytes"],
                                       connection["busiest_link"]["busy_fraction"]])
            # The link between the sites carried what crosses, and there is one for each direction.
            carried = {link["name"]: link["bytes"] for link in result["links"]}
            self.assertIn(carried[connection["busiest_link"]["name"]], row[:2])

    def test_the_keyboard_reaches_everything(self):
        page = self.open(self.geo[0])
        wanted = page.eval_on_selector_all(
            "a, button, select, summary, .chart, .scroll", """all => all.filter(each => each.checkVisibility())
            .map((each, i) => each.dataset.stop = String(i)).length""")
        reached = set()
        for _ in range(wanted + 5):
            page.keyboard.press("Tab")
            stop = page.evaluate("document.activeElement.dataset.stop")
            if stop is not None:
                self.assertNotEqual(page.evaluate("getComputedStyle(document.activeElement).outlineStyle"), "none")
                reached.add(stop)
        self.assertEqual(len(reached), wanted)
        for name in page.eval_on_selector_all(".chart, .scroll, button, select", "all => all.map(each => each.ariaLabel || each.labels?.[0].textContent)"):
            self.assertTrue(name)

    def test_the_timeline_zooms_and_moves_by_keys(self):
        page = self.open(self.geo[0])
        shown = lambda: page.evaluate("document.getElementById('timeline-chart').layout.xaxis.range")
        whole = shown()
        page.focus("#timeline-chart")
        page.keyboard.press("+")
        near = shown()
        self.assertAlmostEqual(near[1] - near[0], (whole[1] - whole[0]) / 2)
        page.keyboard.press("ArrowRight")
        self.assertGreater(shown()[0], near[0])
        page.keyboard.press("0")
        self.assertEqual(shown(), whole)

    def test_hovering_describes_an_instruction(self):
        page = self.open(self.geo[0])
        page.locator("#timeline-chart").scroll_into_view_if_needed()
        bar = page.locator("#timeline-chart .bars .point path").first.bounding_box()
        page.mouse.move(bar["x"] + bar["width"] / 2, bar["y"] + bar["height"] / 2)
        text = page.locator("#timeline-chart .hovertext").first.text_content()
        for part in ("Forward 0", "stage 0 on", "layers 0", " alone"):
            self.assertIn(part, text)

    def test_dark_and_light_differ_and_can_be_read(self):
        backs = set()
        for scheme in ("light", "dark"):
            page = self.open(self.geo[0], color_scheme=scheme)
            back = page.evaluate("getComputedStyle(document.documentElement).backgroundColor")
            backs.add(back)
            for selector in ("h1", "#about", "nav a", "figcaption", "td", "th", "dt", "summary", "#provenance"):
                colour = page.evaluate("selector => getComputedStyle(document.querySelector(selector)).color", selector)
                self.assertGreaterEqual(contrast(colour, back), 4.5, (scheme, selector))
            axis = page.evaluate("document.querySelector('#plan-chart .xtick text').style.fill")
            self.assertGreaterEqual(contrast(axis, back), 4.5, scheme)
        self.assertEqual(len(backs), 2)

    def test_the_colours_follow_the_system_while_the_page_is_open(self):
        page = self.open(self.geo[0], color_scheme="light")
        page.emulate_media(color_scheme="dark")
        back = page.evaluate("getComputedStyle(document.documentElement).backgroundColor")
        page.wait_for_function("back => document.querySelector('#plan-chart .main-svg').style.background === back", arg=back)

    def test_prints_all_tables_on_white(self):
        page = self.open(self.geo[0], color_scheme="dark")
        pdf = page.pdf(format="A4")
        self.assertTrue(pdf.startswith(b"%PDF-"))
        self.assertGreaterEqual(pdf.count(b"/Type /Page\n") + pdf.count(b"/Type /Page "), 2)
        page.evaluate("dispatchEvent(new Event('beforeprint'))")
        page.emulate_media(media="print", color_scheme="dark")
        self.assertEqual(page.evaluate("getComputedStyle(document.documentElement).backgroundColor"), "rgb(255, 255, 255)")
        page.wait_for_function("document.querySelector('#plan-chart .main-svg').style.background === 'rgb(255, 255, 255)'")
        self.assertTrue(page.locator('[aria-label="Stages"]').is_visible())
        self.assertFalse(page.locator("nav").is_visible())

    def test_a_plan_of_63_stages_stays_usable(self):
        self.run_isobar("compare", SKY64, BERT160, "--allocators", "even", "--keep", self.folder / "sky")
        file, report = self.page_of("sky", [self.folder / "sky" / "step.even.result.json"])
        run, = report["runs"]
        self.assertEqual(len(run["stages"]), 63)
        page = self.open(file)
        self.assertEqual(page.locator("#timeline-chart .bars .point path").count(), len(run["timeline"]["events"]["rank"]))
        self.assertEqual(page.locator("#plan-chart .xtick").count(), 63)
        self.assertEqual(page.locator("#memory-chart .annotation-text").text_content(), "device memory, of what each has")
        self.assertEqual(page.locator("#memory-chart .scatterlayer .js-line").count(), 63 + 1)  # and the limit
        self.assertLessEqual(page.evaluate("document.documentElement.scrollWidth"), 1200)
        page.click("#timeline-chart >> xpath=../.. >> button[title='zoom in']")
        self.assertAlmostEqual(page.evaluate("document.getElementById('timeline-chart').layout.xaxis.range[1]"),
                               0.75 * run["step_time_s"], places=6)
        page.click("text=The first 500 instructions")
        page.locator('[aria-label="Instructions"] tbody tr').first.wait_for()
        self.assertEqual(page.locator('[aria-label="Instructions"] tbody tr').count(), 500)

    def test_a_very_long_step_is_cut_and_the_page_reports_it(self):
        platform, workload = self.tests.small_inputs()
        plan = self.tests.make_plan(platform, workload, "--microbatches", 3000)
        result = self.folder / "long.json"
        self.run_isobar("simulate", platform, workload, "--plan", plan, "-o", result)
        file, report = self.page_of("long", [result])
        recorded = report["runs"][0]["timeline"]
        self.assertEqual(len(recorded["events"]["rank"]), 10000)
        self.assertEqual(recorded["instructions"], 6 * 3000 + 2)
        page = self.open(file)
        self.assertIn("Shows the first 10000 of 18002 instructions; isobar simulate --trace writes all.",
                      page.locator("#timeline").inner_text())

    def test_hostile_names_do_no_harm(self):
        platform = self.folder / "hostile.xml"
        platform.write_text(HOSTILE.replace("SLOW", in_xml(SLOW)).replace("FAST", in_xml(FAST)))
        _, workload = self.tests.small_inputs()
        plan = self.tests.make_plan(platform, workload)
        result = self.folder / "hostile.json"
        self.run_isobar("simulate", platform, workload, "--plan", plan, "-o", result)
        file, _ = self.page_of("hostile", [result])
        page = self.open(file)
        self.assertTrue(page.title().endswith("hostile.xml"))
        self.assertEqual(page.locator("img").count(), 0)
        page.click("text=All stages")
        devices = page.eval_on_selector_all('[aria-label="Stages"] tbody tr', "rows => rows.map(row => row.children[1].textContent)")
        self.assertEqual(devices, [SLOW, FAST])
        self.assertIn("</script><!--", page.locator('[aria-label="Between sites"]').inner_text())
        self.assertIn("<b>here</b>", page.locator("#map-chart").text_content())
        ticks = page.eval_on_selector_all("#plan-chart .xtick", "all => all.map(each => each.textContent)")
        self.assertEqual(ticks, [name[:21] + "…" for name in (SLOW, FAST)])

    def test_a_measured_step_is_below_the_simulated_one(self):
        platform, workload = self.tests.small_inputs()
        plan = self.tests.make_plan(platform, workload)
        result, trace = self.folder / "one.json", self.folder / "one.trace.json"
        self.run_isobar("simulate", platform, workload, "--plan", plan, "-o", result, "--trace", trace)
        file, _ = self.page_of("measured", [result], "--measured", trace)
        page = self.open(file)
        count = lambda chart: page.locator(f"#{chart}-chart .bars .point path").count()
        self.assertEqual(count("measured"), count("timeline"))
        self.assertGreater(page.locator("#measured-chart").bounding_box()["y"], page.locator("#timeline-chart").bounding_box()["y"])

    def test_a_model_larger_than_its_device_shows_copies_updates_disk_and_memory(self):
        inputs, options = WITH_DISK
        result, trace = self.folder / "disk.json", self.folder / "disk.trace.json"
        plan = self.tests.make_plan(*inputs, *options, allocator="window")
        self.run_isobar("simulate", *inputs, "--plan", plan, "-o", result, "--trace", trace)
        file, report = self.page_of("disk", [result], "--measured", trace)
        run, = report["runs"]
        page = self.open(file)
        texts = lambda selector: page.eval_on_selector_all(selector, "all => all.map(each => each.textContent)")
        for chart, timeline in (("timeline", run["timeline"]), ("measured", run["measured"]["timeline"])):
            self.assertEqual(texts(f"#{chart}-chart .ytick"),
                             ["gpu0", "copy in", "copy out", "host update", "disk read", "disk write"])
            self.assertEqual(page.locator(f"#{chart}-chart .bars .point path").count(), len(timeline["events"]["rank"]))
            self.assertLessEqual({"Copy of parameters", "Copy of gradients", "Copy of activations", "Copy of optimizer state",
                                  "Update by the machine"}, set(texts(f"#{chart}-chart .legendtext")))
        names = texts("#memory-chart .annotation-text")
        self.assertEqual([name.split(",")[0] for name in names], ["device memory", "machine memory", "disk"])
        page.click("text=All memories")
        measured = [each["peak_bytes"] for each in run["measured"]["memory"]]
        self.assertEqual(self.values(page, "Memories"), [[each["peak_bytes"], peak, each["has_bytes"]]
                                                         for each, peak in zip(run["memory"], measured, strict=True)])
        # Two lines for each memory, simulated and measured, and a limit for those that are nearly full.
        near = [each for each in run["memory"] if each["has_bytes"] <= 2.5 * each["peak_bytes"]]
        self.assertEqual(page.locator("#memory-chart .scatterlayer .js-line").count(), 2 * 3 + len(near))
        page.click("text=All stages")
        rows = page.eval_on_selector_all('[aria-label="Stages"] tbody tr', "rows => rows.map(row => [...row.children].map(cell => cell.textContent))")
        self.assertEqual([row[3] for row in rows], [f"{stage['first_layer']}–{stage['last_layer']}" if stage["first_layer"] < stage["last_layer"]
                                                    else f"{stage['first_layer']}" for stage in run["stages"]])
        on_disk = next(i for i, stage in enumerate(run["stages"]) if stage["residence"] and stage["residence"]["optimizer"] == "disk")
        self.assertIn("optimizer (disk)", rows[on_disk][5])
        self.assertTrue(rows[on_disk][4].startswith("0 of "))
        self.assertEqual(rows[on_disk][6:8], ["2 of parameters, 2 of gradients", "next-forward"])
        self.assertLessEqual(page.evaluate("document.documentElement.scrollWidth"), 1200)

    def test_hovering_describes_a_copy(self):
        inputs, options = WINDOW
        plan = self.tests.make_plan(*inputs, *options, allocator="zero-infinity")
        result = self.folder / "copies.json"
        self.run_isobar("simulate", *inputs, "--plan", plan, "-o", result)
        file, _ = self.page_of("copies", [result])
        page = self.open(file)
        page.locator("#timeline-chart").scroll_into_view_if_needed()
        traces = page.evaluate("document.getElementById('timeline-chart').data.map(each => [each.name, [...each.hovertext]])")
        texts = dict(traces)
        self.assertRegex(texts["Copy of parameters"][0], r"^Load parameters for the forward<br>stage 0 on v100<br>layers 0<br>[\d.]+ MiB<br>")
        self.assertRegex(texts["Copy of gradients"][0], r"^Store gradients after the backward<br>stage 0 on v100<br>layers 41<br>")
        self.assertRegex(texts["Update by the machine"][0], r"^Update by the machine<br>stage 0 on v100<br>layers 41<br>[\d.]+ µs alone<br>")
        bar = page.locator("#timeline-chart .trace.bars").nth([name for name, _ in traces].index("Copy of parameters")).locator(".point path").first.bounding_box()
        page.mouse.move(bar["x"] + bar["width"] / 2, bar["y"] + bar["height"] / 2)
        self.assertIn("Load parameters for the forward", page.locator("#timeline-chart .hovertext").first.text_content())

    def test_keeps_the_licence_of_plotly(self):
        page = self.open(self.geo[0])
        page.click("text=Licence of plotly.js")
        self.assertIn("Permission is hereby granted, free of charge", page.locator("footer pre").inner_text())


if __name__ == "__main__":
    unittest.main()
