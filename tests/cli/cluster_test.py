import csv
import re

from tests.cli.support import SKY16, CommandTest

TRACE3 = "workloads/jobs/trace3.csv"
MURI = "platforms/muri_8x8.xml"
HEADER = ("job_id,num_gpu,submit_time,iterations,model_name,iteration_time,"
          "resource_time_0,resource_time_1,resource_time_2\n")


class Cluster(CommandTest):
    def small_trace(self):
        return self.write("jobs.csv", HEADER + "a,8,0,100,gpt2,437,0.6,419,49\nb,128,0,100,gpt2,437,0.6,419,49\n"
                                               "c,64,1000,100,vgg16,336,87,67,131\n")

    def test_reproduces_the_published_numbers(self):
        run = self.json_of("cluster", TRACE3, MURI, "--policy", "srtf", "--semantics", "published")
        self.assertEqual(run["schema"], "isobar-cluster-run/1")
        self.assertAlmostEqual(run["mean_jct_s"], 193081.796, places=3)
        self.assertAlmostEqual(run["makespan_s"], 8174135.28, places=3)
        self.assertAlmostEqual(run["p99_jct_s"], 4538890.607, places=3)
        self.assertEqual((run["jobs"], run["nodes"], run["devices"], run["left_out"]), (992, 8, 64, []))

    def test_lets_all_jobs_arrive_at_once(self):
        run = self.json_of("cluster", TRACE3, MURI, "--policy", "srtf", "--semantics", "published", "--at-once")
        self.assertAlmostEqual(run["mean_jct_s"], 844394.780, places=3)

    def test_lets_jobs_arrive_faster(self):
        rows = {}
        for load in (1, 4):
            file = self.folder / f"{load}.csv"
            self.run_isobar("cluster", self.small_trace(), MURI, "--policy", "fifo", "--load", load, "-o", file)
            rows[load] = list(csv.DictReader(file.read_text().splitlines()))
        self.assertEqual([float(row["arrival_s"]) for row in rows[1]], [0, 1])
        self.assertEqual([float(row["arrival_s"]) for row in rows[4]], [0, 0.25])
        run = "cluster", self.small_trace(), MURI, "--policy", "fifo"
        self.assertEqual([self.json_of(*run, *more)["load"] for more in ((), ("--load", 4), ("--at-once",))], [1, 4, None])

    def test_every_policy_stays_above_its_bounds(self):
        for policy in ("fifo", "backfill", "srtf", "srsf", "tiresias", "muri", "crossover"):
            run = self.json_of("cluster", "workloads/jobs/cluster_trace.csv", MURI, "--policy", policy)
            for what in ("mean_jct", "p99_jct", "makespan"):
                self.assertLessEqual(run[what + "_bound_s"], run[what + "_s"], policy)
            self.assertEqual(run["shared_starts"] > 0, policy in ("muri", "crossover"), policy)

    def test_counts_jobs_that_never_fit(self):
        printed = self.run_isobar("cluster", self.small_trace(), MURI, "--policy", "fifo").stdout
        self.assertIn("64 devices in 8 nodes, --policy fifo: 2 jobs; 1 row left out: more devices than the platform has\n",
                      printed)
        self.assertRegex(printed, r"completion +\d")
        run = self.json_of("cluster", self.small_trace(), MURI, "--policy", "fifo")
        self.assertEqual(run["left_out"], [{"reason": "more devices than the platform has", "rows": 1}])

    def test_writes_a_row_for_each_job(self):
        file = self.folder / "out.csv"
        self.run_isobar("cluster", self.small_trace(), MURI, "--policy", "fifo", "--step-factor", 1, "-o", file)
        rows = list(csv.DictReader(file.read_text().splitlines()))
        self.assertEqual([row["job"] for row in rows], ["a", "c"])
        self.assertAlmostEqual(float(rows[0]["end_s"]), 10 + 43.7)
        self.assertAlmostEqual(float(rows[1]["first_start_s"]), 53.7)

    def test_says_that_models_are_drawn(self):
        trace = self.write("helios.csv", "job_id,gpu_num,submit_time,start_time,end_time\n"
                                         "1,8,2020-04-01 15:17:00,2020-04-01 15:17:00,2020-04-01 16:17:00\n")
        done = self.run_isobar("cluster", trace, MURI, "--policy", "srtf", "--seed", 3)
        self.assertRegex(done.stderr, r"helios.csv: gives no steps; each job draws a model with seed 3\n$")
        self.assertEqual(self.json_of("cluster", trace, MURI, "--policy", "srtf")["seed"], 0)

    def test_refuses_what_it_cannot_do(self):
        command = "cluster", self.small_trace(), MURI, "--policy"
        for options, fault in (
                (["strf"], '--policy: "strf" is none of fifo, backfill, srtf, srsf, tiresias, muri, crossover; did you '
                           "mean srtf?"),
                (["srtf", "--semantics", "paper"], '--semantics: "paper" is none of corrected, published'),
                (["srtf", "--round", "360"], '--round: "360" is not a time; write a number and a unit, such as "20 ms"'),
                (["srtf", "--round", "0 s"], "--round: is 0 s; leave it out for decisions at every event"),
                (["srtf", "--semantics", "published", "--round", "6min"],
                 "--round: the published simulator decides at every event; leave it out"),
                (["srtf", "--semantics", "published", "--charge-moves"],
                 "--charge-moves: the published simulator charges running jobs at every event; leave it out"),
                (["srtf", "--step-factor", "0.5"], "--step-factor: 0.5 is not from 1 to 1000"),
                (["srtf", "--load", 0], "--load: 0 is not from 1e-6 to 1e6"),
                (["srtf", "--load", 2, "--at-once"], "--load: all jobs arrive at once; leave one of the two out"),
                (["srtf", "--largest-group", 2], "--largest-group: goes with --policy muri or crossover"),
                (["srtf", "--order", "srsf"], "--order: goes with --policy muri or crossover"),
                (["muri", "--order", "fifo"], '--order: "fifo" is none of srsf, tiresias'),
                (["muri", "--round-form", "slot"], '--round-form: "slot" is none of overlap, slots; did you mean slots?'),
                (["muri", "--largest-group", 7], "--largest-group: 7 is not from 2 to 6"),
                (["muri", "--largest-group", 0], "--largest-group: 0 is not from 2 to 6"),
                (["srtf", "--format", "csv"], '--format: "csv" is none of muri, helios, pai, philly')):
            self.assertEqual(self.fault_of(*command, *options), fault)
        self.assertRegex(self.fault_of("cluster", self.small_trace(), SKY16, "--policy", "fifo"),
                         re.escape(SKY16) + r": has \d+ types of devices; the steps of a trace were measured on one")
        big = self.write("big.csv", HEADER + "b,128,0,100,gpt2,437,0.6,419,49\n")
        self.assertEqual(self.fault_of("cluster", big, MURI, "--policy", "fifo"),
                         f"{big}: has no job that fits on {MURI}; 1 row left out: more devices than the platform has")
