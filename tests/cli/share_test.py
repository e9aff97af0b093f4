import itertools
import json
import random
import re

from tests.cli.support import ROOT, CommandTest

TWO = "examples/share.xml"
JOB = "examples/share.yaml"
MURI = "platforms/muri_8x8.xml"
HEADER = "name,steps,devices,compute_s,network_s\n"

# Four devices on a switch, and one link in the middle over which left and right talk.
FOUR = """<?xml version='1.0'?>
<!DOCTYPE platform SYSTEM "https://simgrid.org/simgrid.dtd">
<platform version="4.1">
  <zone id="z" routing="Full">
    <host id="a" speed="10Tf"><prop id="memory" value="16 GB"/></host>
    <host id="b" speed="10Tf"><prop id="memory" value="16 GB"/></host>
    <host id="c" speed="10Tf"><prop id="memory" value="16 GB"/></host>
    <host id="d" speed="10Tf"><prop id="memory" value="16 GB"/></host>
    <link id="middle" bandwidth="1GBps" latency="0ms" sharing_policy="SPLITDUPLEX"/>
    <link id="slow" bandwidth="1MBps" latency="0ms"/>
    <route src="a" dst="b"><link_ctn id="middle" direction="UP"/></route>
    <route src="c" dst="d"><link_ctn id="middle" direction="UP"/></route>
    <route src="a" dst="c"><link_ctn id="slow"/></route>
    <route src="a" dst="d"><link_ctn id="slow"/></route>
    <route src="b" dst="c"><link_ctn id="slow"/></route>
    <route src="b" dst="d"><link_ctn id="slow"/></route>
  </zone>
</platform>
"""

# Two equal devices with a link that is slow for the gradients of SLOW_LINK_JOB.
PAIR = """<?xml version='1.0'?>
<!DOCTYPE platform SYSTEM "https://simgrid.org/simgrid.dtd">
<platform version="4.1">
  <zone id="z" routing="Full">
    <host id="left" speed="1Tf"><prop id="memory" value="8 GiB"/></host>
    <host id="right" speed="1Tf"><prop id="memory" value="8 GiB"/></host>
    <link id="l" bandwidth="1Gbps" latency="1us"/>
    <route src="left" dst="right"><link_ctn id="l"/></route>
  </zone>
</platform>
"""
SLOW_LINK_JOB = """model: layers
layers:
  - {name: x, forward: 0.01 TFLOP, parameters: 25000000, activations: 1 kB, output: 4 B}
"""


def hosts_of(speeds):
    """A platform of hosts with these speeds in TFLOP/s, on a switch."""
    hosts = "".join(f'<host id="h{i}" speed="{speed}Tf"><prop id="memory" value="8 GiB"/></host>'
                    f'<link id="l{i}" bandwidth="1GBps" latency="1us"/>' for i, speed in enumerate(speeds))
    routes = "".join(f'<route src="h{a}" dst="h{b}"><link_ctn id="l{a}"/><link_ctn id="l{b}"/></route>'
                     for a, b in itertools.combinations(range(len(speeds)), 2))
    return (f"<?xml version='1.0'?><!DOCTYPE platform SYSTEM \"https://simgrid.org/simgrid.dtd\"><platform version=\"4.1\">"
            f'<zone id="z" routing="Full">{hosts}{routes}</zone></platform>')


def job_of(tflop):
    """A job of one layer that takes 3 times this work for a micro-batch, and has next to no parameters."""
    return f"""model: layers
layers:
  - {{name: x, forward: {tflop} TFLOP, parameters: 1000, activations: 1 kB, output: 4 B}}
"""


class ShareTest(CommandTest):
    def job_with(self, parameters):
        return self.write("job.yaml", (ROOT / JOB).read_text().replace("50000000", str(parameters)))


class ShareDevices(ShareTest):
    def share(self, *arguments):
        return self.json_of("share", *arguments)

    def test_two_equal_jobs_gain_as_much_as_they_send(self):
        mix = self.folder / "mix.json"
        run = self.share(TWO, JOB, JOB, "--allocator", "metis", "--microbatches", 2, "-o", mix)
        self.assertEqual(run["schema"], "isobar-share/1")
        self.assertAlmostEqual(run["bound_s"], 2, places=4)
        self.assertEqual(run["binds"]["kind"], "device")
        best = [row for row in run["candidates"] if row["best"]]
        self.assertEqual(len(best), 1)
        self.assertAlmostEqual(best[0]["round_time_s"], 2, places=4)
        self.assertAlmostEqual(best[0]["speedup"], 1.2, places=4)
        self.assertEqual(len(run["plans"]), 1)
        for row in run["candidates"]:
            if row["round_time_s"] is not None:
                self.assertGreaterEqual(row["round_time_s"], run["bound_s"] * (1 - 1e-9))
        played = self.json_of("simulate", TWO, "--mix", mix)
        self.assertAlmostEqual(played["round_time_s"], best[0]["round_time_s"], places=9)

    def test_makes_the_mix_of_plans(self):
        plan = self.folder / "plan.json"
        self.run_isobar("plan", TWO, JOB, "--allocator", "metis", "--microbatches", 2, "-o", plan)
        job = f"{plan}:{JOB}"
        run = self.share(TWO, job, job, job)
        self.assertEqual(run["plans"], [])
        self.assertEqual([job["name"] for job in run["candidates"][0]["mix"]["jobs"]], ["share-1", "share-2", "share-3"])
        self.assertAlmostEqual(run["bound_s"], 3, places=4)
        printed = self.run_isobar("share", TWO, job, job).stdout
        self.assertIn("2 jobs: a step of each takes 2.40 s one after the other; no round below 2.00 s", printed)
        self.assertRegex(printed, r"\* +share-1 share-2 +strict +step +fifo +2.00 s +1.200 +0.00 %")

    def best_of(self, run):
        best, = [row for row in run["candidates"] if row["best"]]
        return best

    def test_gives_each_of_two_jobs_a_device_where_sharing_gains_nothing(self):
        platform, job = self.write("pair.xml", PAIR), self.write("slow_link.yaml", SLOW_LINK_JOB)
        mix = self.folder / "mix.json"
        command = platform, job, job, "--microbatches", 2
        run = self.share(*command, "-o", mix)
        self.assertAlmostEqual(min(row["round_time_s"] for row in run["candidates"] if row["placement"] == 0), 0.12, places=3)
        best = self.best_of(run)
        self.assertAlmostEqual(best["round_time_s"], 0.06, places=3)
        self.assertAlmostEqual(best["speedup"], 2, places=6)
        self.assertAlmostEqual(run["bound_s"], best["round_time_s"], places=9)
        self.assertEqual(run["placements"][best["placement"]]["devices"], {"slow_link-1": ["left"], "slow_link-2": ["right"]})
        self.assertEqual((run["groups"], run["has_all_groups"]), (3, True))
        played = self.json_of("simulate", platform, "--mix", mix)
        self.assertAlmostEqual(played["round_time_s"], best["round_time_s"], places=9)
        self.assertEqual({device["name"]: round(device["busy_fraction"], 3) for device in played["devices"]},
                         {"left": 1, "right": 1})
        self.assertEqual(len(run["plans"]), 2)
        for plan in run["plans"]:
            self.run_isobar("verify", platform, job, plan)
        printed = self.run_isobar("share", *command).stdout
        self.assertRegex(printed, r"^2 jobs: a step of each takes 120 ms one after the other; no round below 60.1 ms "
                                  r"\(job slow_link-1\)\n")
        self.assertRegex(printed, r"\n\*  B +slow_link-1 slow_link-2 +strict +step +fifo +60.1 ms +2.000 +0.00 %\n")
        self.assertIn("\nA: slow_link-1 on left; slow_link-2 on left\nB: slow_link-1 on left; slow_link-2 on right\n"
                      "That bound is over all placements of the jobs on any of the 3 groups of devices\n", printed)

    def test_keeps_sharing_where_dividing_gains_nothing(self):
        run = self.share(TWO, JOB, JOB, "--microbatches", 2)
        self.assertEqual(len(run["placements"]), 1)
        self.assertEqual({row["placement"] for row in run["candidates"]}, {0})
        self.assertAlmostEqual(self.best_of(run)["round_time_s"], 2, places=4)

    def test_jobs_with_plans_keep_their_devices(self):
        platform, job = self.write("pair.xml", PAIR), self.write("slow_link.yaml", SLOW_LINK_JOB)
        plan = self.folder / "left.json"
        self.run_isobar("plan", platform, job, "--allocator", "hybrid", "--microbatches", 2, "--without", "right", "-o", plan)
        run = self.share(platform, f"{plan}:{job}", job, "--microbatches", 2)
        best = run["placements"][self.best_of(run)["placement"]]
        self.assertEqual(best["devices"], {"slow_link-1": ["left"], "slow_link-2": ["right"]})
        both = self.share(platform, f"{plan}:{job}", f"{plan}:{job}", "--microbatches", 2)
        self.assertEqual((both["groups"], len(both["placements"])), (0, 1))

    def test_divides_devices_among_jobs_that_do_not_fit_together(self):
        large = self.job_with(1600000000)
        run = self.share(TWO, large, large, "--allocator", "metis", "--microbatches", 2)
        self.assertEqual({row["round_time_s"] for row in run["candidates"] if row["placement"] == 0}, {None})
        self.assertAlmostEqual(self.best_of(run)["round_time_s"], 2, places=3)

    def test_random_jobs_are_placed_as_the_best_of_all_placements(self):
        """Jobs of one micro-batch and one layer run on one device each: the round is the largest sum of work."""
        draw = random.Random(13)
        for _ in range(5):
            speeds = [draw.choice((1, 1, 2, 3)) for _ in range(draw.choice((2, 3)))]
            platform = self.write("hosts.xml", hosts_of(speeds))
            work = [draw.randint(1, 20) / 10 for _ in range(draw.choice((2, 3, 4)))]
            jobs = [self.write(f"job{i}.yaml", job_of(tflop)) for i, tflop in enumerate(work)]
            mix = self.folder / "mix.json"
            run = self.share(platform, *jobs, "--microbatches", 1, "--max-tensor-parallel", 1, "--rounds", 3,
                             "-o", mix)
            least = min(max(sum(3 * tflop / speeds[host] for tflop, on in zip(work, hosts) if on == host)
                            for host in range(len(speeds)))
                        for hosts in itertools.product(range(len(speeds)), repeat=len(work)))
            best = self.best_of(run)
            self.assertAlmostEqual(best["round_time_s"] / least, 1, delta=1e-3)
            self.assertAlmostEqual(run["bound_s"] / least, 1, delta=1e-3)
            for row in run["candidates"]:
                if row["round_time_s"] is not None:
                    self.assertGreaterEqual(row["round_time_s"], run["bound_s"] * (1 - 1e-9))
                    self.assertLessEqual(best["round_time_s"], row["round_time_s"] * (1 + 1e-3))
            played = self.json_of("simulate", platform, "--mix", mix, "--rounds", 3)
            self.assertAlmostEqual(played["round_time_s"], best["round_time_s"], places=9)

    def test_shifts_jobs_that_meet_on_a_link(self):
        platform = self.write("four.xml", FOUR)
        plans = []
        for names in ("c,d", "a,b"):
            plan = str(self.folder / f"{names[0]}.json")
            self.run_isobar("plan", platform, JOB, "--allocator", "metis", "--microbatches", 2, "--without", names, "-o", plan)
            plans.append(f"{plan}:{JOB}")
        run = self.share(platform, *plans)
        fair, shifted, fifo = run["candidates"]
        self.assertGreater(fair["round_time_s"], 1.39)
        self.assertAlmostEqual(shifted["round_time_s"], 1.2, places=3)
        self.assertAlmostEqual(fifo["round_time_s"], 1.2, places=3)
        self.assertTrue(shifted["best"])
        self.assertEqual({row["excess"] for row in run["shifts"]}, {0})
        self.assertGreater(max(job.get("start_s", 0) for job in shifted["mix"]["jobs"]), 0.19)

    def test_jobs_that_do_not_fit_together_are_infeasible(self):
        large = self.job_with(1600000000)
        done = self.run_isobar("share", TWO, large, large, large, "--allocator", "metis", "--microbatches", 2, expect=4)
        self.assertRegex(done.stdout, r"They cannot be swapped at a hand-over either: left is in no machine that could hold "
                                      r"them\n$")

    def test_says_what_swapping_at_a_hand_over_would_take(self):
        large = self.job_with(2500000000)
        command = "share", "platforms/stronghold_v100.xml", large, large, "--allocator", "even", "--rounds", 2
        printed = self.run_isobar(*command, expect=4).stdout
        self.assertRegex(printed, r"\nSwapping them at each hand-over, over the host tier, takes up to 1.67 s a turn: no round "
                                  r"below 17.3 s, 1.239 of the time one after the other\n$")
        swap = self.json_of(*command, expect=4)["swap"]
        self.assertEqual((swap["tier"], swap["reason"]), ("host", ""))
        self.assertAlmostEqual(swap["per_turn_s"], 20e9 / 12e9, delta=0.05)

    def test_refuses_what_shares_nothing_or_is_no_job(self):
        platform = self.write("four.xml", FOUR)
        for arguments, fault in (
                ([TWO], "JOB: no job; give two jobs or more"),
                ([TWO, JOB], "JOB: one job; give two jobs or more"),
                ([TWO, JOB, ":b.yaml"], 'JOB: ":b.yaml" is neither PLAN.json:WORKLOAD.yaml nor WORKLOAD.yaml'),
                ([TWO, JOB, "plan.json:"], 'JOB: "plan.json:" is neither PLAN.json:WORKLOAD.yaml nor WORKLOAD.yaml'),
                ([TWO, JOB, "absent.yaml"], "absent.yaml: no such file"),
                ([TWO, JOB, JOB, "--allocator", "hybrd"], 'allocator: "hybrd" is not known; did you mean hybrid?'),
                ([TWO, JOB, JOB, "--rounds", 0], "--rounds: 0 is not from 1 to 100000"),
                ([TWO, JOB, JOB, "--at-once"], "--at-once: goes with --group pairs"),
                ([TWO, JOB, JOB, "-o", "-"], "-o: plans of workloads alone lie next to the mix; name a file"),
                ([TWO, *[JOB] * 65], "JOB: 65 jobs; a mix has at most 64, --profiles takes more")):
            self.assertEqual(self.fault_of("share", *arguments), fault)
        plans = []
        for names in ("b,c,d", "a,b,c"):
            plan = str(self.folder / f"{names[0]}.json")
            self.run_isobar("plan", platform, JOB, "--allocator", "metis", "--without", names, "-o", plan)
            plans.append(f"{plan}:{JOB}")
        self.assertEqual(self.fault_of("share", platform, *plans),
                         "JOB: no two jobs have a device or a link in common, so they share nothing")


class ShareGroups(ShareTest):
    def profiles(self, count, seed=1):
        draw = random.Random(seed)
        return self.write(f"jobs{count}.csv", HEADER + "".join(
            f"j{i},{draw.randint(1, 1000)},8,{draw.random():.4f},{draw.random():.4f}\n" for i in range(count)))

    def test_pairs_have_a_certificate_that_verify_checks(self):
        file = self.folder / "groups.json"
        groups = self.json_of("share", MURI, "--group", "pairs", "--profiles", self.profiles(31), "-o", file)
        self.assertEqual(groups, json.loads(file.read_text()))
        self.assertEqual(groups["schema"], "isobar-groups/1")
        self.assertEqual(len(groups["groups"]), 16)
        self.assertAlmostEqual(groups["bound_s"], groups["total_s"], delta=1e-6 * groups["total_s"])
        self.assertEqual([rule["rule"] for rule in groups["baselines"]],
                         ["greedy", "most unlike first", "Muri's rule", "random"])
        for rule in groups["baselines"]:
            self.assertGreaterEqual(rule["total_s"], groups["total_s"] * (1 - 1e-9))
        self.assertRegex(self.run_isobar("verify", file).stdout,
                         r"groups.json: every claim holds\n16 groups of 31 jobs, \S+ s, no pairs below \S+ s \(certificate\)\n$")
        self.assertEqual(self.json_of("verify", file)["holds"], True)

    def test_verify_refuses_a_changed_number(self):
        file = self.folder / "groups.json"
        groups = self.json_of("share", MURI, "--group", "pairs", "--profiles", self.profiles(9))
        for change, fault in (
                (lambda g: g["certificates"][0]["duals"].__setitem__(0, g["certificates"][0]["duals"][0] + 1),
                 r"certificates\[0\].duals: sum to \d+; four times the weight is \d+"),
                (lambda g: g.update(total_s=g["total_s"] * 0.99), r"total_s: claims \S+; it is \S+"),
                (lambda g: g.update(bound_s=g["bound_s"] * 1.01), r"bound_s: claims \S+; what is proven is \S+"),
                (lambda g: g["groups"].pop(), r"groups: \S+ is in none(\n.*)?"),
                (lambda g: g["groups"][0].update(round_s=0.001), r"groups\[0\].round_s: claims 0.001; it is \S+")):
            wrong = json.loads(json.dumps(groups))
            change(wrong)
            file.write_text(json.dumps(wrong))
            printed = self.run_isobar("verify", file, expect=5).stdout
            self.assertRegex(printed, "^" + re.escape(str(file)) + ": " + fault)
            self.assertEqual(self.json_of("verify", file, expect=5)["holds"], False)

    def test_groups_of_more_are_no_worse_than_pairs(self):
        totals = [self.json_of("share", MURI, "--group", size, "--profiles", self.profiles(24))["total_s"]
                  for size in ("pairs", "triples", "auto")]
        self.assertLessEqual(totals[1], totals[0] * (1 + 1e-9))
        self.assertLessEqual(totals[2], totals[0] * (1 + 1e-9))

    def test_pairs_at_once_have_the_least_longest_round(self):
        file = self.folder / "groups.json"
        groups = self.json_of("share", MURI, "--group", "pairs", "--at-once", "--profiles", self.profiles(16), "-o", file)
        self.assertEqual({len(group["jobs"]) for group in groups["groups"]}, {2})
        for rule in groups["baselines"]:
            self.assertGreaterEqual(rule["longest_round_s"], groups["longest_round_s"] * (1 - 1e-9))
        self.run_isobar("verify", file)

    def test_jobs_of_the_command_line_are_grouped_by_their_runs_alone(self):
        heavy = self.job_with(250000000)
        groups = self.json_of("share", TWO, JOB, heavy, "--group", "pairs", "--allocator", "metis", "--microbatches", 2)
        self.assertEqual(len(groups["groups"]), 1)
        self.assertAlmostEqual(groups["groups"][0]["round_s"], 2, places=3)
        self.assertAlmostEqual(groups["jobs"][0]["network_s"], 0.2, places=4)
        self.assertGreater(groups["jobs"][0]["memory_bytes"], 0)

    def test_refuses_wrong_tables_and_options(self):
        table = self.profiles(4)
        for arguments, fault in (
                (["--group", "pears", "--profiles", table],
                 '--group: "pears" is none of pairs, triples, auto'),
                (["--profiles", table], "--profiles: goes with --group pairs, triples or auto: steps alone make no mix"),
                (["--group", "auto", "--at-once", "--profiles", table], "--at-once: goes with --group pairs"),
                (["a.yaml", "--group", "auto", "--profiles", table],
                 "--profiles: takes the place of the JOBs; give one of both"),
                (["--group", "pairs", "--profiles", "absent.csv"], "absent.csv: no such file"),
                (["--group", "pairs", "--at-once", "--profiles", self.profiles(5)],
                 "--at-once: 5 jobs with 8 devices: pairs of all take an even number"),
                (["--group", "pairs", "--at-once", "--profiles", self.profiles(18)],
                 f"--at-once: all pairs at once take 72 devices; {MURI} has 64")):
            self.assertEqual(self.fault_of("share", MURI, *arguments), fault)
        for rows, fault in (("a,1,8,1,1\n", " has 1 job; sharing takes two or more"),
                            ("a,1,8,1,1\na,1,8,1,1\n", '3: name: "a" is the name of line 2 too'),
                            ("a,1,8,1\n", "2: row: has 4 cells; the header has 5"),
                            ("a,1,8,1,x\nb,1,8,1,1\n", '2: network_s: "x" is not a number of 0 or more'),
                            ("a,1,8,0,0\nb,1,8,1,1\n", "2: alone_s: takes no time"),
                            ("a,1,8,1,1\nb,1,4,1,1\n",
                             " no two jobs have the same number of devices, so none can share them")):
            file = self.write("bad.csv", HEADER + rows)
            self.assertEqual(self.fault_of("share", MURI, "--group", "pairs", "--profiles", file), f"{file}:{fault}")
        wide = self.write("wide.csv", HEADER + "a,1,65,1,1\nb,1,65,1,1\n")
        self.assertEqual(self.fault_of("share", MURI, "--group", "pairs", "--profiles", wide),
                         f'{MURI}: has 64 devices; job "a" takes 65')

    def test_verify_refuses_a_file_that_is_no_grouping(self):
        file = self.write("groups.json", '{"schema": "isobar-result/1"}')
        self.assertIn(f'{file}:1: schema: "isobar-result/1" is not isobar-groups/1', self.fault_of("verify", file))
        plan = self.write("plan.json", '{"schema": "isobar-plan/2"}')
        self.assertEqual(self.fault_of("verify", plan), f"{plan}: is a plan; verify it with its platform and workload: "
                         "isobar verify PLATFORM WORKLOAD PLAN")
        self.assertEqual(self.fault_of("verify", "a.xml", "b.yaml"), "PLAN is required; see isobar verify --help")
