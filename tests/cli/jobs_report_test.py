"""Pages and figures of schedules and of mixes of jobs."""

import contextlib
import json
import unittest
import xml.dom.minidom

from tests.cli.browser import browser, need_browser
from tests.cli.support import CommandTest


@contextlib.contextmanager
def drawn_page(test, file):
    """A page in a browser, once its script has drawn it. The test fails if it complains."""
    complaints = []
    with browser() as chromium:
        opened = chromium.new_page()
        opened.on("console", lambda message: complaints.append(message.text))
        opened.on("pageerror", lambda error: complaints.append(str(error)))
        opened.goto(file.as_uri())
        opened.wait_for_selector("html[data-drawn]", state="attached")
        yield opened
    test.assertEqual(complaints, [])


def texts_of(figure):
    """The texts of an SVG file."""
    nodes = xml.dom.minidom.parse(str(figure)).getElementsByTagName("text")
    return [node.firstChild.data for node in nodes if node.firstChild]


class Schedules(CommandTest):
    JOBS = "job,model,devices,arrival_s,first_start_s,end_s,jct_s,alone_s,waiting_s,longest_wait_s,starts\n"

    def jobs_of(self, policy):
        file = self.folder / f"{policy}.csv"
        self.run_isobar("cluster", "workloads/jobs/cluster_trace.csv", "platforms/muri_8x8.xml", "--policy", policy, "-o",
                        file)
        return str(file)

    def test_have_the_numbers_of_cluster_and_curves_of_their_jobs(self):
        report = self.json_of("report", self.jobs_of("fifo"), self.jobs_of("crossover"))
        self.assertEqual(report["schema"], "isobar-report/1")
        for shown, policy in zip(report["schedules"], ("fifo", "crossover"), strict=True):
            run = self.json_of("cluster", "workloads/jobs/cluster_trace.csv", "platforms/muri_8x8.xml", "--policy", policy)
            for key in ("jobs", "mean_jct_s", "median_jct_s", "p99_jct_s", "makespan_s", "mean_waiting_s", "longest_wait_s"):
                self.assertAlmostEqual(shown[key] / run[key], 1, places=9)
            times, fractions = shown["completion"].values()
            self.assertEqual(times, sorted(times))
            self.assertEqual(fractions[-1], 1)
            self.assertEqual(len(times), run["jobs"])
            # The area below the number of jobs in the system is the sum of their completion times.
            times, jobs = shown["population"].values()
            self.assertEqual(jobs[-1], 0)
            area = sum(count * (after - before) for count, before, after in zip(jobs, times, times[1:]))
            self.assertAlmostEqual(area / (run["mean_jct_s"] * run["jobs"]), 1, places=9)

    def test_of_many_jobs_have_as_many_points_as_a_page_draws(self):
        jobs = self.write("many.csv", self.JOBS + "".join(f"{i},gpt2,1,{i},{i},{i + 5},5,5,0,0,1\n" for i in range(5000)))
        shown, = self.json_of("report", jobs)["schedules"]
        self.assertEqual([len(shown["completion"]["times_s"]), len(shown["population"]["times_s"])], [2000, 2000])
        self.assertEqual((shown["completion"]["fractions"][-1], shown["population"]["jobs"][-1]), (1, 0))

    def test_refuse_what_is_no_file_of_jobs(self):
        bad = self.write("bad.csv", self.JOBS + "a,gpt2,1,3,3,2,5,5,x,0,1\n")
        self.assertEqual(self.fault_of("report", bad), f'{bad}:2: waiting_s: "x" is not a time; write seconds, 0 or more\n'
                                                       f"{bad}:2: end_s: is before arrival_s")
        empty = self.write("empty.csv", self.JOBS)
        self.assertEqual(self.fault_of("report", empty), f"{empty}: has no job")
        jobs = self.write("jobs.csv", self.JOBS + "a,gpt2,1,0,0,5,5,5,0,0,1\n")
        result = self.write("result.json", "{}")
        self.assertEqual(self.fault_of("report", jobs, result), f"{result}: is a result of a plan; {jobs} holds jobs of a "
                                                                "schedule; a report shows one or the other")
        self.assertEqual(self.fault_of("report", jobs, "--plan-anew"), "--plan-anew: plans; the files hold jobs of a schedule")
        self.assertEqual(self.fault_of("report", jobs, "--measured", result),
                         "--measured: is a trace of a plan; the files hold jobs of a schedule")
        self.assertEqual(self.fault_of("plot", jobs, "--chart", "timeline", "-o", self.folder / "x.svg"),
                         f'--chart: "timeline" does not show what {jobs} holds; write completion, population')
        self.assertEqual(self.fault_of("report", jobs, "-o", jobs), f"{jobs}: is an input; name another file to write")

    def test_are_drawn_for_papers_and_on_a_page(self):
        need_browser()
        files = self.jobs_of("fifo"), self.jobs_of("srtf"), self.jobs_of("muri")
        for chart, mark in (("completion", "completion time"), ("population", "jobs that have arrived")):
            figure = self.folder / f"{chart}.svg"
            self.run_isobar("plot", *files, "--chart", chart, "-o", figure)
            texts = texts_of(figure)
            self.assertLessEqual({"fifo", "srtf", "muri"}, set(texts))
            self.assertIn(mark, " ".join(texts))
        page = self.folder / "page.html"
        self.assertEqual(self.run_isobar("report", *files, "-o", page).stdout, f"{page}: 3 schedules; open it in a browser\n")
        with drawn_page(self, page) as opened:
            report = self.json_of("report", *files)
            shown = opened.eval_on_selector_all(
                '[aria-label="Schedules"] tbody tr',
                "rows => rows.map(row => [...row.querySelectorAll('[data-value]')].map(cell => Number(cell.dataset.value)))")
            self.assertEqual(shown, [[each[key] for key in ("jobs", "mean_jct_s", "median_jct_s", "p99_jct_s", "makespan_s",
                                                            "mean_waiting_s", "longest_wait_s")]
                                     for each in report["schedules"]])
            self.assertEqual(opened.title(), "Schedules of jobs")
            self.assertEqual(opened.locator("#completion-chart .lines path.js-line").count(), 3)


class Mix(CommandTest):
    """Two jobs that share the devices of examples/pair.xml."""

    def setUp(self):
        super().setUp()
        jobs = []
        for name, allocator in (("first", "even"), ("second", "chain-dp")):
            plan = str(self.folder / f"{allocator}.json")
            self.run_isobar("plan", "examples/pair.xml", "examples/pair.yaml", "--allocator", allocator, "--microbatches", 4,
                            "-o", plan)
            jobs.append({"name": name, "plan": plan, "workload": "examples/pair.yaml"})
        mix = self.write("mix.json", json.dumps({
            "schema": "isobar-mix/1", "jobs": jobs, "turns": [{"job": job["name"], "steps": 1} for job in jobs],
            "discipline": "strict", "hand_over": "instruction", "links": "fifo"}))
        self.result, self.trace = self.folder / "result.json", self.folder / "trace.json"
        self.run_isobar("simulate", "examples/pair.xml", "--mix", mix, "--rounds", 5, "-o", self.result, "--trace", self.trace)

    def test_shows_the_numbers_of_its_result_and_who_holds_what(self):
        result = json.loads(self.result.read_text())
        report = self.json_of("report", self.result, "--trace", self.trace)
        shown = report["mix"]
        for key in ("round_time_s", "bound_s", "binds", "gap_fraction", "serial_s", "speedup", "jobs", "devices", "links"):
            self.assertEqual(shown[key], result[key])
        self.assertAlmostEqual(shown["saved_s"], result["serial_s"] - result["round_time_s"], places=12)
        timeline = shown["timeline"]
        self.assertEqual(timeline["rounds"], 3)
        self.assertAlmostEqual(timeline["end_s"], sum(result["round_times_s"][:3]), places=12)
        spans = [dict(zip(timeline["spans"], each)) for each in zip(*timeline["spans"].values())]
        self.assertEqual({span["row"] for span in spans}, {"slow", "fast", "wire"})
        self.assertEqual({span["kind"] for span in spans if span["row"] == "wire"}, {"transfer"})
        for device in ("slow", "fast"):
            own = sorted((span["begin_s"], span["end_s"], span["job"]) for span in spans
                         if (span["row"], span["kind"]) == (device, "compute"))
            self.assertEqual({job for _, _, job in own}, {0, 1})
            # Turns: no two computations at once.
            for (_, end, _), (begin, _, _) in zip(own, own[1:]):
                self.assertLessEqual(end, begin + 1e-6)
        waits = [span["end_s"] - span["begin_s"] for span in spans if span["kind"] == "wait"]
        self.assertLessEqual(max(waits), max(job["longest_wait_s"] for job in result["jobs"]) + 1e-6)

    def test_refuses_what_does_not_go_together(self):
        self.assertEqual(self.fault_of("report", self.result),
                         "--trace: missing; name the trace that isobar simulate --mix --trace wrote with the result")
        self.assertEqual(self.fault_of("report", self.result, self.result, "--trace", self.trace),
                         f"{self.result}: is a second result; a page shows one mix")
        self.assertEqual(self.fault_of("report", self.result, "--trace", self.trace, "--plan-anew"),
                         "--plan-anew: plans; the file is a result of a mix")
        self.assertEqual(self.fault_of("plot", self.result, "--trace", self.trace, "--chart", "timeline", "-o",
                                       self.folder / "x.svg"),
                         f'--chart: "timeline" does not show what {self.result} holds; write turns, rates')
        jobs = self.write("jobs.csv", Schedules.JOBS + "a,gpt2,1,0,0,5,5,5,0,0,1\n")
        self.assertEqual(self.fault_of("report", jobs, "--trace", self.trace),
                         f"--trace: goes with a result of a mix; {jobs} holds jobs of a schedule")
        other = self.write("other.json", '{"traceEvents": []}')
        self.assertEqual(self.fault_of("report", self.result, "--trace", other),
                         f'{other}: has no rank of job "first" of {self.result}; name the trace that --trace wrote with it')
        self.write("moved.json", self.result.read_text().replace('"examples/pair.xml"', '"nowhere/pair.xml"'))
        self.assertEqual(self.fault_of("report", self.folder / "moved.json", "--trace", self.trace),
                         f'{self.folder}/moved.json: inputs.platform: nowhere/pair.xml does not exist, nor next to this file; '
                         "put it there, or simulate again")

    def test_is_drawn_for_papers_and_on_a_page(self):
        need_browser()
        for chart, marks in (("turns", {"slow", "fast", "wire", "first"}), ("rates", {"step alone", "first"})):
            figure = self.folder / f"{chart}.svg"
            self.run_isobar("plot", self.result, "--trace", self.trace, "--chart", chart, "-o", figure)
            self.assertLessEqual(marks, set(texts_of(figure)))
        page = self.folder / "page.html"
        done = self.run_isobar("report", self.result, "--trace", self.trace, "-o", page)
        self.assertEqual(done.stdout, f"{page}: 1 mix; open it in a browser\n")
        result = json.loads(self.result.read_text())
        with drawn_page(self, page) as opened:
            facts = opened.eval_on_selector_all("[data-fact]", "all => all.map(each => Number(each.dataset.value))")
            self.assertEqual(facts, [result["round_time_s"], result["bound_s"], result["gap_fraction"], result["serial_s"],
                                     result["serial_s"] - result["round_time_s"]])
            self.assertEqual(opened.locator('[aria-label="Jobs"] tbody tr').count(), 2)
            self.assertGreater(opened.locator("#turns-chart .bars .point").count(), 10)
            self.assertEqual(opened.title(), "first, second on examples/pair.xml")


if __name__ == "__main__":
    unittest.main()
