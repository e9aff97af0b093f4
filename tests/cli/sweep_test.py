"""isobar sweep: its runs, its exports, and what it keeps when it is killed, out of disk space or started twice."""

import contextlib
import csv
import ctypes
import json
import math
import os
import pathlib
import resource
import signal
import sqlite3
import statistics
import subprocess

from tests.cli.support import HANG_S, ISOBAR, PLATFORM, ROOT, WORKLOAD, CommandTest, holds

GRID = """platform:
  generate: sky
  nodes: [4, 8]
  speed-spread: [2, 7]
workload: {file: workloads/bert10.yaml, encoders: [4, 10]}
allocator: [even, chain-dp]
objective: sequential
"""


class Sweep(CommandTest):
    def setUp(self):
        super().setUp()
        self.database = self.folder / "sweep.db"

    def opened(self):
        return contextlib.closing(sqlite3.connect(self.database))

    def sweep_command(self, content, *options, name="sweep.yaml"):
        return ("sweep", self.write(name, content), "--database", self.database, *options)

    def rows_of(self, content, *options, expect=0):
        """The rows of the JSON lines."""
        lines = self.folder / "rows.jsonl"
        self.run_isobar(*self.sweep_command(content, "--jsonl", lines, *options), expect=expect)
        return [json.loads(line) for line in lines.read_text().splitlines()]

    def fault(self, content):
        return self.fault_of(*self.sweep_command(content)).replace(f"{self.folder}/", "")

    def small_sweep(self, *more):
        platform, workload = self.small_inputs()
        return "\n".join((f"platform: {platform}", f"workload: {workload}", *more)) + "\n"


class Grids(Sweep):
    def test_runs_every_combination_in_the_order_of_the_file(self):
        rows = self.rows_of(GRID)
        expected = [(nodes, spread, encoders, allocator) for nodes in (4, 8) for spread in (2, 7)
                    for encoders in (4, 10) for allocator in ("even", "chain-dp")]
        self.assertEqual([(row["platform_nodes"], row["platform_speed_spread"], row["workload_encoders"],
                           row["allocator"]) for row in rows], expected)
        self.assertEqual({row["outcome"] for row in rows} - {"feasible", "optimal"}, set())

    def test_a_run_gives_what_compare_gives(self):
        rows = self.rows_of(GRID)
        xml = self.folder / "sky.xml"
        self.run_isobar("platform", "generate", "sky", "--nodes", 8, "--speed-spread", 7, "-o", xml)
        # One allocator at a time: a run has its own bound, and a comparison the best of its rows.
        other = [row for allocator in ("even", "chain-dp") for row in
                 self.json_of("compare", xml, "workloads/bert10.yaml", "--allocators", allocator, "--objective",
                              "sequential")["rows"]]
        mine = [row for row in rows if (row["platform_nodes"], row["platform_speed_spread"], row["workload_encoders"])
                == (8, 7, 10)]
        for key in ("outcome", "objective_s", "objective_bound_s", "gap_fraction", "step_time_s", "step_bound_s",
                    "peak_memory_bytes", "bottleneck_s", "stages", "schedule", "communication", "microbatches"):
            self.assertEqual([row[key] for row in mine], [row[key] for row in other], key)

    def test_zipped_lists_go_together(self):
        rows = self.rows_of(GRID + "zip: [[platform.nodes, workload.encoders]]\n")
        self.assertEqual([(row["platform_nodes"], row["workload_encoders"]) for row in rows],
                         [(4, 4)] * 4 + [(8, 10)] * 4)

    def test_scales_a_platform(self):
        rows = self.rows_of(self.small_sweep("allocator: even", "objective: sequential", "scale:",
                                             "  speed: [1, 2]", "  bandwidth: [1, 4]"))
        # even: 6 s + 1.5 s; two transfers of 0.1 GB at 1 GB/s, 10 ms each.
        self.assertEqual([(row["scale_bandwidth"], row["scale_speed"]) for row in rows],
                         [(1, 1), (1, 2), (4, 1), (4, 2)])
        expected = [7.72, 3.97, 7.57, 3.82]
        for row, objective in zip(rows, expected):
            self.assertAlmostEqual(row["objective_s"], objective, places=9)

    def test_plans_by_what_an_allocator_believes_are_simulated_on_the_platform(self):
        sweep = ("allocator: [chain-dp, even]", "microbatches: 4")
        plain = self.rows_of(self.small_sweep(*sweep))
        rows = self.rows_of(self.small_sweep(*sweep, "believed:", "  speed: [1, 1000]", "  bandwidth: [1, 1e-9]"))
        self.assertEqual([(row["allocator"], row["believed_bandwidth"], row["believed_speed"]) for row in rows][:4],
                         [("chain-dp", 1, 1), ("chain-dp", 1, 1000), ("chain-dp", 1e-9, 1), ("chain-dp", 1e-9, 1000)])
        keys = ("outcome", "step_time_s", "objective_s", "stages", "peak_memory_bytes")
        by = {(row["allocator"], row["believed_bandwidth"], row["believed_speed"]): row for row in rows}
        for row in plain:
            same = by[row["allocator"], 1, 1]
            self.assertEqual([same[key] for key in keys], [row[key] for key in keys])
            for others in (by[row["allocator"], 1e-9, 1], by[row["allocator"], 1, 1000]):
                # A step that happens, with claims about it.
                self.assertGreaterEqual(others["step_time_s"], same["step_time_s"] * (1 - 1e-9))
                self.assertLess(abs(others["objective_s"] / others["step_time_s"] - 1), 0.2)
        # Who believes in a network that stands still takes one device, whatever it costs.
        self.assertEqual(by["chain-dp", 1e-9, 1]["stages"], 1)
        self.assertEqual(by["even", 1e-9, 1]["stages"], by["even", 1, 1]["stages"])

    def test_errors_of_a_profile_are_drawn_by_the_seed(self):
        rows = self.rows_of(self.small_sweep("allocator: chain-dp", "believed: {layer_noise: [0, 0.9]}",
                                             "repetitions: 4"))
        exact, noisy = rows[:4], rows[4:]
        self.assertEqual(len({row["step_time_s"] for row in exact}), 1)
        for row in noisy:
            self.assertGreaterEqual(row["step_time_s"], exact[0]["step_time_s"] * (1 - 1e-9))

    def test_more_latency_and_less_memory_do_what_they_should(self):
        rows = self.rows_of(self.small_sweep("allocator: even", "objective: sequential", "scale:",
                                             "  latency: [1, 3]", "  memory: [1, 0.1]"))
        self.assertEqual([row["outcome"] for row in rows], ["feasible", "infeasible"] * 2)
        self.assertAlmostEqual(rows[2]["objective_s"] - rows[0]["objective_s"], 0.04, places=9)
        self.assertRegex(rows[1]["reason"], "slow|fast")

    def test_a_key_of_a_workload_may_be_one_that_its_file_leaves_out(self):
        rows = self.rows_of("platform: platforms/sky4.xml\nallocator: even\n"
                            "workload: {file: workloads/bert10.yaml, dropout: [0, 0.5], micro_batch: [16, 32]}\n"
                            "objective: sequential\n")
        self.assertEqual([(row["workload_dropout"], row["workload_micro_batch"]) for row in rows],
                         [(0, 16), (0, 32), (0.5, 16), (0.5, 32)])
        self.assertLess(rows[0]["step_time_s"], rows[1]["step_time_s"])
        self.assertEqual(rows[0]["step_time_s"], rows[2]["step_time_s"])

    def test_a_budget_may_be_each_allocators_own(self):
        rows = self.rows_of(self.small_sweep("allocator: [even, local-search]", "objective: pipeline",
                                             "budget: {local-search: 50}"))
        self.assertEqual([row["outcome"] for row in rows], ["feasible", "optimal"])
        with self.opened() as database:
            definitions = database.execute("SELECT definition FROM runs").fetchall()
        self.assertEqual(sorted(json.loads(text)["allocator"] + str(json.loads(text).get("budget"))
                                for text, in definitions), ["evenNone", "local-search50"])

    def test_exports_are_read_back_as_they_are(self):
        table = self.folder / "rows.csv"
        rows = self.rows_of(GRID, "--csv", table)
        with table.open(newline="") as file:
            read = list(csv.DictReader(file))
        self.assertEqual(list(read[0]), list(rows[0]))
        for line, row in zip(read, rows, strict=True):
            for column, value in row.items():
                if isinstance(value, (int, float)):
                    self.assertEqual(float(line[column]), value)
                else:
                    self.assertEqual(line[column], value or "")


class Repetitions(Sweep):
    NOISY = "allocator: even\nobjective: sequential\nnoise: 0.2\nrepetitions: 3\nplatform: {}\nworkload: {}\n"

    def test_have_seeds_that_differ_and_a_mean_with_its_interval(self):
        summary = self.folder / "summary.csv"
        rows = self.rows_of(self.NOISY.format(*self.small_inputs()), "--summary", summary)
        self.assertEqual([row["seed"] for row in rows], [1, 2, 3])
        times = [row["step_time_s"] for row in rows]
        self.assertEqual(len(set(times)), 3)
        with summary.open(newline="") as file:
            point, = csv.DictReader(file)
        # Student's t for two degrees of freedom in closed form: P(|t| <= x) = x / sqrt(2 + x^2).
        student = 0.95 * math.sqrt(2 / (1 - 0.95 ** 2))
        self.assertAlmostEqual(float(point["step_time_mean_s"]), statistics.mean(times), places=12)
        self.assertAlmostEqual(float(point["step_time_ci95_s"]),
                               student * statistics.stdev(times) / math.sqrt(3), places=9)
        self.assertEqual((point["runs"], point["simulated_runs"]), ("3", "3"))

    def test_the_same_seed_draws_the_same_noise(self):
        first = self.rows_of(self.NOISY.format(*self.small_inputs()))
        self.database = self.folder / "other.db"
        self.assertEqual(self.rows_of(self.NOISY.format(*self.small_inputs())), first)

    def test_a_star_without_a_seed_is_drawn_with_the_seed_of_each_run(self):
        sweep = ("platform: {generate: star, devices: 4, speed-spread: 3SEED}\nworkload: workloads/bert10.yaml\n"
                 "objective: sequential\nallocator: even\nseed: [1, 2]\n")
        drawn = [row["step_time_s"] for row in self.rows_of(sweep.replace("SEED", ""))]
        given = [row["step_time_s"] for row in self.rows_of(sweep.replace("SEED", ", seed: 1"))]
        self.assertEqual(len(set(drawn)), 2)
        self.assertEqual(given, [drawn[0]] * 2)


class Schedules(Sweep):
    TRACE = ("job_id,num_gpu,submit_time,iterations,model_name,iteration_time,resource_time_0,resource_time_1,"
             "resource_time_2\na,8,0,1000,gpt2,437,0.6,419,49\nb,64,0,1000,gpt2,437,0.6,419,49\n"
             "c,64,1000,100,vgg16,336,87,67,131\n")
    GRID = """platform: platforms/muri_8x8.xml
trace: [workloads/jobs/cluster_trace.csv, TRACE]
policy: [fifo, srtf, muri]
load: [1, 2]
largest_group: 2
"""

    def grid(self, *more):
        return self.GRID.replace("TRACE", self.write("jobs.csv", self.TRACE)) + "".join(f"{line}\n" for line in more)

    def test_a_run_gives_what_cluster_gives(self):
        rows = self.rows_of(self.grid())
        self.assertEqual([(row["policy"], row["load"]) for row in rows],
                         [(policy, load) for load in (1, 2) for policy in ("fifo", "srtf", "muri")] * 2)
        self.assertEqual({row["outcome"] for row in rows}, {"scheduled"})
        for row in rows[-6:]:
            options = ("--largest-group", 2) if row["policy"] == "muri" else ()
            run = self.json_of("cluster", row["trace"], row["platform"], "--policy", row["policy"], "--load", row["load"],
                               *options)
            numbers = {key: value for key, value in run.items() if isinstance(value, (int, float))}
            self.assertEqual({key: row[key] for key in numbers if key not in ("step_factor", "load", "round_s", "seed")},
                             {key: numbers[key] for key in numbers if key not in ("step_factor", "load", "round_s", "seed")})
        self.assertEqual(list(rows[0])[:7], ["platform", "trace", "policy", "semantics", "seed", "load", "largest_group"])

    def test_more_load_makes_jobs_wait_longer(self):
        rows = self.rows_of("platform: platforms/muri_8x8.xml\ntrace: workloads/jobs/cluster_trace.csv\npolicy: backfill\n"
                            "load: [0.01, 1, 100]\n")
        waits = [row["mean_waiting_s"] for row in rows]
        self.assertLess(waits[0], waits[1])
        self.assertLess(waits[1], waits[2])

    def test_a_second_start_makes_only_what_is_new_or_has_changed(self):
        table = self.folder / "rows.csv"
        self.rows_of(self.grid(), "--csv", table)
        first = table.read_bytes()
        self.rows_of(self.grid(), "--csv", table, "--jobs", 1)
        self.assertEqual(table.read_bytes(), first)
        with self.opened() as database:
            # Nothing but the runs of a group takes largest_group.
            self.assertEqual(database.execute("SELECT count(*), count(DISTINCT definition) FROM schedules").fetchone(),
                             (12, 12))
            database.execute("DELETE FROM schedules WHERE rowid % 2")
            database.commit()
        self.run_isobar(*self.sweep_command(self.grid(), "--csv", table))
        self.assertEqual(table.read_bytes(), first)
        self.TRACE = self.TRACE.replace("a,8,0,1000", "a,8,0,2000")
        self.run_isobar(*self.sweep_command(self.grid(), "--csv", table))
        self.assertNotEqual(table.read_bytes(), first)
        with self.opened() as database:
            self.assertEqual(database.execute("SELECT count(*) FROM schedules").fetchone(), (18,))

    def test_means_are_over_the_seeds_of_drawn_models(self):
        trace = self.write("helios.csv", "job_id,gpu_num,submit_time,start_time,end_time\n" + "".join(
            f"{job},8,2020-04-01 15:17:00,2020-04-01 15:17:00,2020-04-01 {hour}:17:00\n" for job, hour in
            enumerate((16, 17, 18, 19) * 4)))
        summary = self.folder / "summary.csv"
        rows = self.rows_of(f"platform: platforms/muri_8x8.xml\ntrace: {trace}\npolicy: crossover\nrepetitions: 3\n",
                            "--summary", summary)
        self.assertEqual([row["seed"] for row in rows], [1, 2, 3])
        with summary.open(newline="") as file:
            point, = csv.DictReader(file)
        self.assertAlmostEqual(float(point["mean_jct_mean_s"]), statistics.mean(row["mean_jct_s"] for row in rows), places=6)
        self.assertEqual((point["runs"], point["simulated_runs"]), ("3", "3"))

    def test_a_platform_with_several_types_of_devices_is_a_failed_row(self):
        rows = self.rows_of(self.grid().replace("platforms/muri_8x8.xml", "platforms/sky16.xml"), expect=3)
        self.assertEqual({row["outcome"] for row in rows}, {"failed"})
        self.assertRegex(rows[0]["reason"],
                         r"platforms/sky16.xml: has \d+ types of devices; the steps of a trace were measured on one")

    def test_faults_name_the_line_of_the_sweep_file(self):
        jobs = self.write("jobs.csv", self.TRACE)
        start = f"platform: platforms/muri_8x8.xml\ntrace: {jobs}\n"
        self.assertEqual(self.fault(start), "sweep.yaml:1: policy: missing; write a value")
        self.assertEqual(self.fault(start + "policy: [srtf, strf]\n"),
                         'sweep.yaml:3: policy: "strf" is none of fifo, backfill, srtf, srsf, tiresias, muri, crossover; '
                         "did you mean srtf?")
        self.assertEqual(self.fault(start + "policy: srtf\nsemantics: [corrected, published]\nround: 6min\n"),
                         "sweep.yaml:5: round: the published simulator decides at every event; leave it out")
        self.assertEqual(self.fault(start + "policy: srtf\nstep_factor:\n  - 1\n  - 0.5\n"),
                         "sweep.yaml:6: step_factor: 0.5 is not from 1 to 1000")
        self.assertEqual(self.fault(start + "policy: srtf\nload: 2\nat_once: true\n"),
                         "sweep.yaml:4: load: all jobs arrive at once; leave one of the two out")
        self.assertEqual(self.fault(start + "policy: [srtf, fifo]\nround_form: slots\n"),
                         "sweep.yaml:4: round_form: goes with muri or crossover, and the sweep has neither")
        self.assertEqual(self.fault(start + "policy: [srtf, muri]\nlargest_group: 7\n"),
                         "sweep.yaml:4: largest_group: 7 is not from 2 to 6")
        self.assertEqual(self.fault(start + "policy: srtf\nworkload: workloads/bert10.yaml\nallocator: even\n"),
                         "sweep.yaml:4: workload: does not go with `trace`, whose jobs are scheduled; leave one of them out\n"
                         "sweep.yaml:5: allocator: unknown key; the keys here are at_once, charge_moves, format, header, "
                         "largest_group, load, order, platform, policy, repetitions, round, round_form, seed, semantics, "
                         "step_factor, trace, workload, zip")
        self.assertEqual(self.fault(start + "policy: srtf\nformat: csv\n"),
                         'sweep.yaml:4: format: "csv" is none of muri, helios, pai, philly')
        self.assertEqual(self.fault(start.replace(jobs, "nothing.csv") + "policy: srtf\n"), "nothing.csv: no such file")
        self.write("jobs.csv", self.TRACE.replace("c,64,1000", "c,0,1000"))
        self.assertRegex(self.fault(start + "policy: srtf\n"), r"^jobs.csv:4: num_gpu: ")


class Faults(Sweep):
    def test_name_the_line_of_the_sweep_file(self):
        self.assertEqual(self.fault("""platform: {generate: sky, nodes: [1, 16]}
workload:
  file: workloads/bert10.yaml
  encoders: [10, x]
allocator: even
"""), """sweep.yaml:1: platform.nodes: 1 is out of range; write a number from 2 to 65536
sweep.yaml:4: workload.encoders: "x" is not a whole number; write a whole number from 1 to 333332""")
        self.assertEqual(self.fault("""platform: platforms/sky4.xml
workload: {file: workloads/bert10.yaml, encodrs: [3, 4]}
allocator: even
"""), """sweep.yaml:2: workload.encodrs: unknown key; the keys here are attention, beta1, beta2, classes, clip_norm, compute, decay_steps, differences, dropout, dtype, encoders, epsilon, framework, heads, hidden, intermediate, learning_rate, learning_rate_decay, matmul_dtype, memory_model, micro_batch, min_learning_rate, model, momentum, optimizer, positions, sequence, vocabulary, warmup_steps, weight_decay""")

    def test_of_keys_and_values_are_reported_all_at_once(self):
        self.assertEqual(self.fault("""platform:
  generate: sky
  speed-sprad: [2, 7]
workload: workloads/bert10.yaml
allocator: [even, evn]
objective: sequentia
noise: [0, -0.1]
scale: {bandwidth: 0, speed: -2}
seed: [1, 2]
repetitions: 2
zip: [[a, noise], [allocator, seed, noise]]
schedul: 1f1b
"""), """sweep.yaml:3: platform.speed-sprad: unknown key; did you mean speed-spread?
sweep.yaml:5: allocator: "evn" is not known; did you mean even?
sweep.yaml:6: objective: "sequentia" is not one of step, dtfm, sequential, bottleneck, pipeline; did you mean sequential?
sweep.yaml:7: noise: "-0.1" is out of range; write a number, 0 or more
sweep.yaml:8: scale.bandwidth: is not a factor; write a number above 0
sweep.yaml:8: scale.speed: is not a factor; write a number above 0
sweep.yaml:10: repetitions: cannot be combined with a list of seeds; write one of the two
sweep.yaml:11: zip: "a" is not a parameter of this sweep; the parameters are platform, workload, allocator, objective, scale.bandwidth, scale.speed, noise, seed
sweep.yaml:11: zip: "noise" is listed twice; remove one
sweep.yaml:12: schedul: unknown key; did you mean schedule?""")

    def test_of_beliefs_name_their_line(self):
        self.assertEqual(self.fault("""platform: platforms/sky4.xml
workload: workloads/bert10.yaml
allocator: even
believed: {speed: 0, layer_noise: [0.2, 1], memory: 2}
"""), """sweep.yaml:4: believed.speed: is not a factor; write a number above 0
sweep.yaml:4: believed.layer_noise: is 1 or more; write a number below 1
sweep.yaml:4: believed.memory: unknown key; the keys here are bandwidth, latency, layer_noise, speed""")
        self.assertEqual(self.fault("""platform: platforms/sky4.xml
workload: workloads/bert10.yaml
allocator: even
objective: bottleneck
believed: {speed: 2}
"""), """sweep.yaml:4: objective: bottleneck with `believed`, whose plans get the claims of objective step; write step, or leave one of them out""")

    def test_of_schedules_and_their_numbers_are_found_before_anything_runs(self):
        grid = "platform: platforms/sky4.xml\nworkload: workloads/bert10.yaml\nallocator: even\n"
        self.assertEqual(self.fault(grid + """schedule:
  - interleaved(chunks=0)
  - interleaved(chunks=2/3)
  - 1f1b
"""), """sweep.yaml:5: schedule: interleaved(chunks=0): chunks is one number, at least 2
sweep.yaml:6: schedule: interleaved(chunks=2/3): chunks is one number, at least 2""")
        self.assertEqual(self.fault(grid + "schedule: [1f1b, interleaved(chunks=2), 1f1b(warm_up=0/1)]\n"),
                         "sweep.yaml:4: schedule: warm_up[1] is 1 and warm_up[0] is 0, so the two devices would wait for "
                         "each other; give no device more than the one before")
        self.assertFalse(self.database.exists())
        self.assertEqual(self.fault(grid + "microbatches: [8, 100000]\n"),
                         'sweep.yaml:4: microbatches: "100000" is out of range; write a whole number from 1 to 65536')

    def test_of_values_that_do_not_go_together_name_the_line(self):
        grid = "platform: platforms/sky4.xml\nworkload: workloads/bert10.yaml\nallocator: even\n"
        self.assertEqual(self.fault(grid + "objective: [step, pipeline]\nschedule: [1f1b, zero-bubble-v]\n"),
                         "sweep.yaml:5: schedule: zero-bubble-v does not go with objective pipeline, a formula for "
                         "sequential, gpipe and 1f1b; use objective step")
        self.assertEqual(self.fault("platform: platforms/sky4.xml\nworkload: workloads/bert10.yaml\n"
                                    "allocator: [even, amp, exact]\nschedule:\n- 1f1b\n- zero-bubble-v\n"),
                         "sweep.yaml:3: allocator: exact knows the schedules sequential, gpipe and 1f1b; use chain-dp, even, "
                         "grid, hybrid, local-search, sky-dynamic, sky-dynamic-fixed, sky-optimal under zero-bubble-v\n"
                         "sweep.yaml:6: schedule: zero-bubble-v gives a device several stages; allocator amp takes 1f1b, "
                         "gpipe, sequential, zero-bubble-h1, zero-bubble-h2")
        self.assertFalse(self.database.exists())
        self.assertEqual(self.fault(grid + "objective: pipeline\ncommunication: played\n"),
                         "sweep.yaml:5: communication: played does not go with objective pipeline; played is for "
                         "objectives step and dtfm")

    def test_zipped_lists_have_equal_lengths_and_distinct_values(self):
        self.assertEqual(self.fault(GRID.replace("[4, 8]", "[4, 8, 16]") +
                                    "zip: [[platform.nodes, workload.encoders]]\n"),
                         "sweep.yaml:8: zip: platform.nodes has 3 values and workload.encoders has 2; write zipped "
                         "lists of the same length")
        self.assertEqual(self.fault(GRID.replace("[4, 8]", "[4, 4]")),
                         'sweep.yaml:3: platform.nodes: "4" is given twice; remove one')

    def test_of_files_name_what_is_missing(self):
        self.assertEqual(self.fault("platform: [nowhere.xml]\nworkload: nothing.yaml\nallocator: even\n"),
                         'sweep.yaml:1: platform: "nowhere.xml": no such file; names are read from the working folder\n'
                         "nothing.yaml: no such file")
        self.assertEqual(self.fault("allocator: even\n"), "sweep.yaml:1: platform: missing; write a value\n"
                         "sweep.yaml:1: workload: missing; write a value")

    def test_other_files_are_not_databases(self):
        self.database = self.write("sweep.db", "a text that is longer than a hundred bytes, as SQLite's header is" * 3)
        self.assertEqual(self.fault(GRID), "sweep.db: is not a valid database (file is not a database); name another file")
        self.database = self.folder / "other.db"
        with self.opened() as other, other:
            other.execute("CREATE TABLE runs (a)")
        self.assertEqual(self.fault(GRID), "other.db: is a database, but not of a sweep; name another file")

    def test_an_output_is_not_an_input(self):
        sweep = self.write("sweep.yaml", GRID)
        self.assertEqual(self.fault_of("sweep", sweep, "--database", self.database, "--csv", sweep),
                         f"{sweep}: is an input; name another file to write")

    def test_files_named_by_inputs_are_inputs_too(self):
        allocator = self.write("allocator.py", "#!/usr/bin/env python3\n")
        command = self.sweep_command(self.small_sweep(f"allocator: 'exec:{allocator}'"))
        devices = self.write("small.devices.yaml", '"slow": {memory: 15 GB}\n')
        for file in (allocator, devices, self.folder / "small.xml", self.folder / "small.yaml"):
            self.assertEqual(self.fault_of(*command, "--csv", file), f"{file}: is an input; name another file to write")

    def test_no_file_is_written_twice_under_two_names(self):
        command = self.sweep_command(self.small_sweep("allocator: even"))
        for file in (f"{self.folder}/./sweep.db", f"{self.database}-wal"):
            self.assertEqual(self.fault_of(*command, "--csv", file), f"{file}: is written twice; name two files")
        self.assertEqual(self.fault_of(*command, "--csv", self.folder / "a", "--jsonl", f"{self.folder}/./a"),
                         f"{self.folder}/./a: is written twice; name two files")

    def test_a_database_is_a_file_whatever_its_name(self):
        sweep = self.write("sweep.yaml", self.small_sweep("allocator: even"))
        subprocess.run([ISOBAR, "sweep", sweep, "--database", ":memory:"], cwd=self.folder, check=True,
                       capture_output=True)
        self.assertTrue((self.folder / ":memory:").is_file())

    def test_an_empty_database_of_another_program_stays_its_own(self):
        with self.opened() as other, other:
            other.execute("PRAGMA application_id = 99")
            other.execute("PRAGMA user_version = 7")
        self.assertEqual(self.fault(self.small_sweep("allocator: even")),
                         "sweep.db: is a database, but not of a sweep; name another file")

    def test_an_export_needs_a_database(self):
        self.assertEqual(self.fault_of(*self.sweep_command(GRID, "--export-only")),
                         f"{self.database}: no such file; without --export-only the sweep makes it")


class ReadOnlyFolder(Sweep):
    def make_read_only(self):
        self.folder.chmod(0o555)
        self.addCleanup(self.folder.chmod, 0o755)

    def run_unprivileged(self, *arguments):
        """Runs as a user that is subject to permissions, unlike root."""
        drop, dac_override = 24, 1  # PR_CAPBSET_DROP of CAP_DAC_OVERRIDE
        return subprocess.run([ISOBAR, *map(str, arguments)], cwd=ROOT, capture_output=True, text=True, timeout=HANG_S,
                              preexec_fn=lambda: ctypes.CDLL(None).prctl(drop, dac_override))

    def test_an_export_needs_no_permission_to_write(self):
        sweep = self.sweep_command(self.small_sweep("allocator: even"))
        made = self.run_isobar(*sweep).stdout
        files = sorted(os.listdir(self.folder))
        self.make_read_only()
        exported = self.run_unprivileged(*sweep, "--export-only")
        self.assertEqual((exported.returncode, exported.stdout, exported.stderr), (0, made, ""))
        self.assertEqual(sorted(os.listdir(self.folder)), files)

    def test_a_database_that_cannot_be_written_is_reported(self):
        sweep = self.sweep_command(self.small_sweep("allocator: even"))
        self.make_read_only()
        refused = self.run_unprivileged(*sweep)
        self.assertEqual((refused.returncode, refused.stderr),
                         (3, f"isobar: {self.database}: cannot write there: Permission denied\n"))


class FailedRuns(Sweep):
    def test_of_scales_out_of_range_are_reported_at_once(self):
        for scale, what in (("speed: 1e-30", "speed of slow"), ("bandwidth: 1e300", "bandwidth of wire"),
                            ("latency: 1e30", "latency of wire")):
            row, = self.rows_of(self.small_sweep("allocator: even", f"scale: {{{scale}}}"), expect=3)
            self.assertRegex(row["reason"], rf"^small: scaled by 1e[-+]\d+, the {what} is out of range$")
        self.assertEqual(self.fault(self.small_sweep("allocator: even", "noise: 300")),
                         "sweep.yaml:4: noise: is above 10; write at most 10")

    def test_are_rows_with_a_reason_and_the_rest_continue(self):
        crash = self.write("crash.sh", "#!/bin/sh\necho broken >&2\nexit 7\n")
        hang = self.write("hang.sh", "#!/bin/sh\nsleep 600\n")
        for program in (crash, hang):
            pathlib.Path(program).chmod(0o755)
        bad = self.write("bad.xml", PLATFORM.replace("MEMORY", "16 GB").replace('speed="1Tf"', 'speed="-1Tf"'))
        platform, workload = self.small_inputs()
        content = (f"platform: [{platform}, {bad}]\nworkload: {workload}\n"
                   f"allocator: [even, 'exec:{crash}', 'exec:{hang}']\n")
        rows = self.rows_of(content, "--row-time-limit", "3s")
        self.assertEqual([row["outcome"] for row in rows], ["feasible"] + ["failed"] * 5)
        self.assertIn("exited with code 7; last line on stderr: broken", rows[1]["reason"])
        self.assertEqual(rows[2]["reason"], "was ended at the time limit of 3 s (--row-time-limit)")
        for row in rows[3:]:
            self.assertIn("bad.xml:5", row["reason"])

    def test_are_printed_with_their_reasons(self):
        schedules = 'schedule: [1f1b, "1f1b(warm_up=2/1/0)", "1f1b(warm_up=3/2/1/0)"]'
        output = self.run_isobar(*self.sweep_command(self.small_sweep("allocator: even", schedules))).stdout
        self.assertIn("3 of 3 runs, 2 failed, 1 feasible\n", output)
        self.assertRegex(output, r"\n\nschedule 1f1b\(warm_up=2/1/0\) failed: schedule: 3 numbers of warm_up, .*\n"
                                 r"schedule 1f1b\(warm_up=3/2/1/0\) failed: schedule: 4 numbers of warm_up, .*\n$")

    def test_are_repeated_only_on_request(self):
        program = self.write("allocator.sh", "#!/bin/sh\nexit 7\n")
        pathlib.Path(program).chmod(0o755)
        content = self.small_sweep(f"allocator: [even, 'exec:{program}']")
        first = self.rows_of(content)
        with self.opened() as database, database:
            database.execute("UPDATE runs SET reason = 'of old' WHERE outcome = 'failed'")
        self.assertEqual([row["reason"] for row in self.rows_of(content)], ["", "of old"])
        self.assertEqual(self.rows_of(content, "--retry-failed"), first)

    def test_exit_with_3_when_no_run_succeeded(self):
        program = self.write("allocator.sh", "#!/bin/sh\nexit 7\n")
        pathlib.Path(program).chmod(0o755)
        self.rows_of(self.small_sweep(f"allocator: 'exec:{program}'"), expect=3)


SLOW_GRID = """platform: platforms/sky32.xml
workload: {file: workloads/bert160.yaml, encoders: [24, 40]}
allocator: [even, sky-dynamic, chain-dp]
objective: [sequential, pipeline]
seed: [1, 2, 3]
"""


class SlowSweep(Sweep):
    def exports(self, *names):
        return [(self.folder / name).read_bytes() for name in names]

    def started(self, content, *options, **popen):
        return subprocess.Popen([ISOBAR, *map(str, self.sweep_command(content, *options))], cwd=ROOT, text=True,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, **popen)

    def rows_there(self):
        if not self.database.exists():
            return 0
        try:
            with self.opened() as database:
                return database.execute("SELECT count(*) FROM runs").fetchone()[0]
        except sqlite3.OperationalError:  # it is being created
            return 0

    def wait_for_rows(self, count, process):
        self.assertTrue(holds(lambda: self.rows_there() >= count or process.poll() is not None))
        self.assertIsNone(process.poll(), "it ended before it could be stopped")
        self.assertGreaterEqual(self.rows_there(), count)


class Resuming(SlowSweep):
    def test_after_a_kill_gives_the_same_bytes_as_an_undisturbed_run(self):
        process = self.started(SLOW_GRID)
        self.wait_for_rows(8, process)
        process.kill()
        process.communicate(timeout=HANG_S)
        kept = self.rows_there()
        self.assertGreaterEqual(kept, 8)
        self.assertLess(kept, 36)
        self.run_isobar(*self.sweep_command(SLOW_GRID, "--csv", self.folder / "a.csv", "--jsonl", self.folder / "a.jsonl",
                                            "--summary", self.folder / "a.sum"))
        self.database = self.folder / "undisturbed.db"
        self.run_isobar(*self.sweep_command(SLOW_GRID, "--csv", self.folder / "b.csv", "--jsonl", self.folder / "b.jsonl",
                                            "--summary", self.folder / "b.sum", "--jobs", 1))
        self.assertEqual(self.exports("a.csv", "a.jsonl", "a.sum"), self.exports("b.csv", "b.jsonl", "b.sum"))
        self.assertEqual((self.folder / "a.csv").read_text().count("\n"), 37)

    def test_an_interrupt_keeps_what_was_found(self):
        process = self.started(SLOW_GRID, "--csv", self.folder / "a.csv")
        self.wait_for_rows(4, process)
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=HANG_S)
        self.assertEqual((process.returncode, output), (130, ""))
        there = self.rows_there()
        self.assertEqual(errors, f"isobar: {there} of 36 runs are in {self.database}; the same command continues\n"
                                 "isobar: interrupted\n")
        self.assertFalse((self.folder / "a.csv").exists())
        result = self.run_isobar(*self.sweep_command(SLOW_GRID, "--export-only", "--csv", self.folder / "a.csv"))
        self.assertIn(f"{there} of 36 runs", result.stdout)
        self.assertEqual((self.folder / "a.csv").read_text().count("\n"), there + 1)

    def test_a_second_start_runs_only_what_is_missing(self):
        marker = self.folder / "calls"
        program = self.write("allocator.sh", f"#!/bin/sh\necho call >> '{marker}'\nexit 7\n")
        pathlib.Path(program).chmod(0o755)
        content = self.small_sweep(f"allocator: [even, 'exec:{program}']")
        first = self.rows_of(content)
        self.assertEqual(self.rows_of(content), first)
        self.assertEqual(marker.read_text(), "call\n")
        # A wider sweep in the same database makes what is new; a changed program, platform or workload makes it again.
        self.assertEqual(len(self.rows_of(content + "microbatches: [8, 16]\n")), 4)
        self.assertEqual(marker.read_text(), "call\n" * 2)
        self.write("small.yaml", WORKLOAD.replace("0.1 GB", "0.2 GB"))
        self.assertNotEqual(self.rows_of(content), first)
        self.assertEqual(marker.read_text(), "call\n" * 3)

    def test_two_sweeps_on_one_database_at_once_give_each_its_rows(self):
        both = SLOW_GRID, SLOW_GRID.replace("[1, 2, 3]", "[3, 4, 5]")
        processes = []
        for i, content in enumerate(both):
            command = self.sweep_command(content, "--csv", self.folder / f"{i}.csv", name=f"sweep{i}.yaml")
            processes.append(subprocess.Popen([ISOBAR, *map(str, command)], cwd=ROOT, text=True,
                                              stdout=subprocess.PIPE, stderr=subprocess.PIPE))
        for process in processes:
            output, errors = process.communicate(timeout=HANG_S)
            self.assertEqual(process.returncode, 0, output + errors)
        with self.opened() as database:
            self.assertEqual(database.execute("PRAGMA integrity_check").fetchone()[0], "ok")
            self.assertEqual(database.execute("SELECT count(*) FROM runs").fetchone()[0], 60)
        self.database = self.folder / "alone.db"
        for i, content in enumerate(both):
            self.run_isobar(*self.sweep_command(content, "--csv", self.folder / f"alone{i}.csv"))
            self.assertEqual(*self.exports(f"{i}.csv", f"alone{i}.csv"))


class FullDisk(SlowSweep):
    def assert_goes_on(self, errors):
        self.assertRegex(errors, rf"^isobar: {self.database}: .*; rows stored before are kept\n$")
        kept = self.rows_there()
        self.assertGreater(kept, 0)
        self.assertLess(kept, 36)
        with self.opened() as database:
            self.assertEqual(database.execute("PRAGMA integrity_check").fetchone()[0], "ok")
        self.run_isobar(*self.sweep_command(SLOW_GRID, "--csv", self.folder / "a.csv"))
        self.assertEqual((self.folder / "a.csv").read_text().count("\n"), 37)

    def test_is_reported_and_costs_no_row(self):
        def limit_files():  # Python and its children ignore SIGXFSZ here, so writing fails as on a full disk
            resource.setrlimit(resource.RLIMIT_FSIZE, (96 << 10, resource.RLIM_INFINITY))

        process = self.started(SLOW_GRID, preexec_fn=limit_files, restore_signals=False)
        output, errors = process.communicate(timeout=HANG_S)
        self.assertEqual((process.returncode, output), (3, ""), errors)
        self.assert_goes_on(errors)

    def test_a_file_system_without_space_is_reported(self):
        mount = self.folder / "small"
        mount.mkdir()
        if os.geteuid() != 0 or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=128k", "none", mount],
                                               capture_output=True).returncode != 0:
            self.skipTest("only root may mount a file system, and not in every container")
        try:
            self.database = mount / "sweep.db"
            process = self.started(SLOW_GRID)
            output, errors = process.communicate(timeout=HANG_S)
            self.assertEqual((process.returncode, output), (3, ""), errors)
            self.assertIn("No space left on device", errors)
            subprocess.run(["mount", "-o", "remount,size=8m", mount], check=True)
            self.assert_goes_on(errors)
        finally:
            subprocess.run(["umount", mount], check=True)
