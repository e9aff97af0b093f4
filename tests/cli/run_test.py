"""isobar run and isobar profile: the commands of the executor, from a profile to a measured run."""

import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys

from tests.cli.support import BUSY_NOTE, HANG_S, ISOBAR, ROOT, CommandTest, holds, without_notes, worked_s
from tests.cli.trace import assert_is_trace, compute_s

MODEL = """model: gpt
layers: 3
hidden: 32
heads: 2
vocabulary: 60
sequence: 16
micro_batch: 2
optimizer: adam
learning_rate: 0.01
"""

MOE = """model: moe
trunk: plain
layers: 2
hidden: 16
heads: 2
experts: 2
sequence: 8
micro_batch: 2
"""

BERT_MOE = """model: moe
trunk: bert
layers: 2
hidden: 16
heads: 2
vocabulary: 40
experts: 2
sequence: 8
micro_batch: 3
optimizer: adam
learning_rate: 0.01
"""


class Run(CommandTest):
    def profiled(self, *options):
        workload = self.write("model.yaml", MODEL)
        live = str(self.folder / "live")
        self.run_isobar("profile", workload, "--slowdowns", "1,2", "--repetitions", 3, "-o", live, *options)
        return workload, live + ".xml", live + ".profile.json"

    def stamped_plan(self):
        workload, platform, profile = self.profiled()
        plan = self.make_plan(platform, workload, "--profile", profile, "--microbatches", 4)
        self.run_isobar("simulate", platform, workload, "--profile", profile, "--plan", plan, "--stamp")
        return workload, plan

    def test_ranks_that_need_more_memory_than_is_available_are_not_started(self):
        platform, workload = self.gpt_inputs()
        plan = pathlib.Path(self.make_plan(platform, workload))
        content = json.loads(plan.read_text())
        for device in content["predicted"]["peak_memory_bytes"]:
            content["predicted"]["peak_memory_bytes"][device] = 1e15
        plan.write_text(json.dumps(content))
        for way in ("--spawn", "--in-process"):
            self.assertRegex(self.fault_of("run", workload, "--plan", plan, way, "--unvalidated", expect=3),
                             r"^memory: .+ available(| under the limit of the control group); the plan needs .+ here; make "
                             r"more available, or run fewer ranks here$")

    def test_an_interrupt_ends_a_profile_within_a_pass_and_leaves_no_file(self):
        # A forward pass over the block takes half a minute.
        workload = self.write("large.yaml", "model: gpt\nlayers: 1\nhidden: 4096\nheads: 8\nvocabulary: 64\n"
                              "sequence: 1024\nmicro_batch: 8\n")
        process = subprocess.Popen([ISOBAR, "profile", workload, "-o", str(self.folder / "x")], cwd=ROOT, text=True,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.addCleanup(process.kill)
        self.assertTrue(holds(lambda: worked_s(process.pid) > 5))
        self.assertEqual([path.name for path in self.folder.iterdir()], ["large.yaml"])
        before = worked_s(process.pid)
        process.send_signal(signal.SIGINT)
        _, status, usage = os.wait4(process.pid, 0)
        self.assertEqual((os.waitstatus_to_exitcode(status), *process.communicate()), (130, "", "isobar: interrupted\n"))
        self.assertLess(usage.ru_utime + usage.ru_stime - before, 5)
        self.assertEqual(list(self.folder.glob("x*")), [])

    def test_a_profile_that_cannot_be_written_is_not_measured(self):
        self.assertRegex(self.fault_of("profile", "workloads/gpt2_124m.yaml", "-o", self.folder / "no/x", expect=3),
                         "x.profile.json: cannot write there: No such file or directory")

    def test_replicas_have_the_losses_of_one_device(self):
        workload, platform, profile = self.profiled()
        losses = {}
        for replicas in (1, 2):
            plan = self.make_plan(platform, workload, "--profile", profile, "--microbatches", 4, "--pipeline", 1,
                                  "--replicas", replicas, allocator="grid")
            simulated, trace, output = (self.folder / name for name in ("simulated.json", "trace.json", "run.json"))
            self.run_isobar("simulate", platform, workload, "--profile", profile, "--plan", plan, "--stamp", "-o",
                            simulated)
            self.run_isobar("run", workload, "--plan", plan, "--spawn", "--steps", 3, "--trace", trace, "-o", output)
            result = json.loads(output.read_text())
            losses[replicas] = result["losses"]
            # What was measured decides whether the grid divides what the replicas hold, and in how many parts.
            parts = len(json.loads(pathlib.Path(plan).read_text())["stages"])
            self.assertEqual([stage["device"] for stage in result["stages"]],
                             ["rank-0", "rank-1"][:replicas] * parts)
        for alone, together in zip(losses[1], losses[2], strict=True):
            self.assertAlmostEqual(together / alone, 1, places=6)
        events = assert_is_trace(self, trace)
        run, = self.json_of("report", simulated, "--measured", trace)["runs"]
        self.assertEqual(len(events), 3 * run["timeline"]["instructions"])
        self.assertEqual([(stage["replica"], stage["replicas"], stage["microbatches"]) for stage in run["stages"]],
                         [(0, 2, 2), (1, 2, 2)] * parts)
        self.assertEqual(run["measured"]["timeline"]["instructions"], run["timeline"]["instructions"])

    def test_a_tied_model_by_settings_is_profiled_trained_resumed_and_exported(self):
        settings = [word for setting in ("tied=true", "layers=2") for word in ("--set", setting)]
        workload, platform, profile = self.profiled(*settings)
        plan = self.make_plan(platform, workload, "--profile", profile, "--microbatches", 2, *settings, allocator="exact")
        self.run_isobar("simulate", platform, workload, "--profile", profile, "--plan", plan, "--stamp")
        losses = []
        for steps, options in ((4, []), (2, ["--checkpoint", self.folder / "c"]), (4, ["--checkpoint", self.folder / "c", "--resume"])):
            output = self.folder / "run.json"
            self.run_isobar("run", workload, "--plan", plan, "--spawn", "--steps", steps, "-o", output, *options)
            losses.append(json.loads(output.read_text())["losses"])
        self.assertEqual(losses[1] + losses[2], losses[0])
        self.assertEqual(self.fault_of("run", workload, "--plan", plan, "--spawn", "--steps", 1, "--set", "layers=3"),
                         f"--set: layers=3: {plan} was made with layers=2; leave the option out, or plan again")
        export = ["export", workload, self.folder / "c", "-o", self.folder / "hf"]
        self.assertIn("; give the run's own, with its --set", self.fault_of(*export))
        self.run_isobar(*export, *settings)
        self.assertTrue(json.loads((self.folder / "hf/config.json").read_text())["tie_word_embeddings"])
        self.run_isobar("run", workload, "--plan", plan, "--spawn", "--steps", 1, "--weights", self.folder / "hf")

    def test_a_tied_model_in_two_stages_has_the_losses_of_one_and_goes_on_there(self):
        workload = self.write("tied.yaml", MODEL + "tied: true\nclip_norm: 0.5\n")
        live = str(self.folder / "live")
        self.run_isobar("profile", workload, "--slowdowns", "1,1", "--repetitions", 3, "-o", live)
        inputs = live + ".xml", workload, "--profile", live + ".profile.json"
        plans, losses = {}, {}
        for name, options in (("one", ["--without", "rank-1"]), ("two", [])):
            made = pathlib.Path(self.make_plan(*inputs, "--microbatches", 2, *options))
            plans[name] = str(made.rename(self.folder / f"plan_{name}.json"))
            self.run_isobar("simulate", *inputs, "--plan", plans[name], "--stamp")
            output, folder = self.folder / "run.json", self.folder / name
            self.run_isobar("run", workload, "--plan", plans[name], "--spawn", "--steps", 3, "-o", output, "--checkpoint", folder)
            losses[name] = json.loads(output.read_text())["losses"]
        plan = json.loads(pathlib.Path(plans["two"]).read_text())
        self.assertEqual(len(plan["stages"]), 2)
        self.assertEqual(plan["predicted"]["step_time_by"], "played")
        platform, *others = inputs
        self.run_isobar("verify", platform, others[0], plans["two"], *others[1:])
        plan["predicted"]["step_time_s"] *= 0.9
        tampered = self.write("tampered.json", json.dumps(plan))
        refused = self.run_isobar("verify", platform, others[0], tampered, *others[1:], expect=5)
        self.assertIn("predicted.step_time_s: claims", refused.stdout + refused.stderr)
        for alone, together in zip(losses["one"], losses["two"], strict=True):
            self.assertAlmostEqual(together / alone, 1, places=6)
        output = self.folder / "resumed.json"
        self.run_isobar("run", workload, "--plan", plans["one"], "--spawn", "--steps", 5, "--checkpoint", self.folder / "two",
                        "--resume", "-o", output)
        self.assertEqual(len(json.loads(output.read_text())["losses"]), 2)
        self.run_isobar("export", workload, self.folder / "two", "-o", self.folder / "hf", "--step", 3)
        self.assertTrue(json.loads((self.folder / "hf/config.json").read_text())["tie_word_embeddings"])
        self.run_isobar("run", workload, "--plan", plans["two"], "--spawn", "--steps", 1, "--weights", self.folder / "hf")

    def test_a_model_with_differences_is_refused_until_they_are_left_out(self):
        workload = self.write("imported.yaml", MODEL + "tied: apart\ndifferences: [activation_function gelu]\n")
        platform, _ = self.small_inputs()
        run = ("run", workload, "--plan", self.make_plan(platform, workload), "--in-process", "--unvalidated", "--steps", 1)
        self.assertEqual(self.fault_of(*run), f"{workload}: differences: the model has activation_function gelu, which isobar "
                         "run does not compute; to train the model without, plan with --set differences=[]")
        self.make_plan(platform, workload, "--set", "differences=[]")
        self.assertIn(f"{workload}: tied: apart: counts ", self.run_isobar(*run).stderr)

    def test_shards_have_the_losses_of_one_device_and_give_and_take_weights(self):
        workload = self.write("operators.yaml", MODEL.replace("adam", "momentum") + "unit: operator\n")
        live = str(self.folder / "live")
        self.run_isobar("profile", workload, "--slowdowns", "1,1", "--repetitions", 3, "-o", live)
        results, from_weights = {}, {}
        for shards in (2, 1):
            plan = self.make_plan(live + ".xml", workload, "--profile", live + ".profile.json", "--microbatches", 2,
                                  "--pipeline", 1, "--replicas", 1, "--tensor", shards, allocator="grid")
            simulated, trace, output, folder = (self.folder / f"{name}{shards}"
                                                for name in ("simulated", "trace", "run", "checkpoints"))
            self.run_isobar("simulate", live + ".xml", workload, "--profile", live + ".profile.json", "--plan", plan,
                            "--stamp", "-o", simulated)
            self.run_isobar("run", workload, "--plan", plan, "--spawn", "--steps", 3, "--trace", trace, "-o", output,
                            "--checkpoint", folder)
            results[shards] = json.loads(output.read_text())
            if shards == 2:
                self.run_isobar("export", workload, folder, "-o", self.folder / "model")
                events = assert_is_trace(self, trace)
                run, = self.json_of("report", simulated, "--measured", trace)["runs"]
                self.assertEqual(len(events), 3 * run["timeline"]["instructions"])
                self.assertEqual(run["measured"]["timeline"]["instructions"], run["timeline"]["instructions"])
            self.run_isobar("run", workload, "--plan", plan, "--in-process", "--steps", 2, "--weights",
                            self.folder / "model", "-o", output)
            from_weights[shards] = json.loads(output.read_text())
        self.assertEqual([stage["device"] for stage in results[2]["stages"]], 8 * ["rank-0", "rank-1"])
        for of_one, of_two in ((results[1], results[2]), (from_weights[1], from_weights[2])):
            for alone, together in zip(of_one["losses"], of_two["losses"], strict=True):
                self.assertAlmostEqual(together / alone, 1, delta=1e-5)
        self.assertLess(from_weights[2]["losses"][0], results[2]["losses"][0])

    def test_profile_plan_simulate_run(self):
        workload, plan = self.stamped_plan()
        trace, log, output = (self.folder / name for name in ("trace.json", "log.jsonl", "run.json"))
        printed = self.run_isobar("run", workload, "--plan", plan, "--spawn", "--emulate", "--steps", 3, "--trace",
                                  trace, "--log", log, "-o", output).stdout
        self.assertIn("samples/s", printed)
        result = json.loads(output.read_text())
        self.assertEqual(result["schema"], "isobar-run/1")
        self.assertEqual(len(result["losses"]), 3)
        self.assertEqual(len(result["step_times_s"]), 3)
        self.assertEqual([stage["device"] for stage in result["stages"]], ["rank-0", "rank-1"])
        stamp = json.loads(pathlib.Path(plan).read_text())["stamp"]
        self.assertEqual(result["simulated_step_time_s"], stamp["step_time_s"])
        lines = [json.loads(line) for line in log.read_text().splitlines()]
        self.assertEqual([line["step"] for line in lines], [0, 1, 2])
        self.assertEqual([line["loss"] for line in lines], result["losses"])
        events = assert_is_trace(self, trace)
        # Two stages: 4 forwards, 4 backwards and an update each; 4 activations and 4 gradients, sent and received.
        self.assertEqual(len(events), 3 * (2 * 9 + 2 * 8))
        self.assertEqual(set(compute_s(events)), {0, 1})

        again = json.loads(self.run_isobar("run", workload, "--plan", plan, "--in-process", "--steps", 3,
                                           "--json").stdout)
        self.assertEqual(again["losses"], result["losses"])

    def test_separate_ranks_connect_over_tcp(self):
        workload, plan = self.stamped_plan()
        ranks = "127.0.0.1:21741,127.0.0.1:21742"
        secret = self.secret_file()
        in_variable = {**os.environ, "ISOBAR_SECRET": pathlib.Path(secret).read_text()}

        def run(options, environment):
            processes = [subprocess.Popen([ISOBAR, "run", workload, "--plan", plan, "--rank", str(rank), "--ranks",
                                           ranks, "--steps", "2", "--flows", "2", *options[rank]], cwd=ROOT,
                                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                          env=environment[rank]) for rank in (0, 1)]
            printed = [process.communicate(timeout=HANG_S) for process in processes]
            return [process.returncode for process in processes], printed

        from_file = ["--secret-file", secret]
        for options in ([from_file, []], [["--tls", *from_file], ["--tls", "--bind", "lo"]]):
            codes, printed = run(options, [None, in_variable])
            self.assertEqual(codes, [0, 0], printed)
            self.assertIn("loss", printed[1][0])

        other = ["--secret-file", self.secret_file("other"), "--deadline", "3s"]
        codes, printed = run([[*from_file, "--deadline", "3s"], other], [None, None])
        self.assertEqual(codes, [3, 3], printed)
        for rank, (_, errors) in enumerate(printed):
            self.assertRegex(errors, f"rank {rank}: still waiting .* for rank {1 - rank} \\(127.0.0.1:2174.: .*"
                                     "give all ranks the same secret")
            self.assertNotIn(in_variable["ISOBAR_SECRET"], errors)

    def test_links_between_cpus_are_reported_as_tcp(self):
        workload, plan = self.stamped_plan()
        printed = self.run_isobar("run", workload, "--plan", plan, "--spawn", "--steps", 1, "--transport",
                                  "auto").stdout
        self.assertEqual(sorted(line for line in printed.splitlines() if "TCP" in line),
                         ["rank 0 to rank 1, activations: TCP (a rank without a GPU or NCCL)",
                          "rank 1 to rank 0, gradients: TCP (a rank without a GPU or NCCL)"])

    def test_a_plan_must_be_simulated_before_it_runs(self):
        workload, platform, profile = self.profiled()
        plan = self.make_plan(platform, workload, "--profile", profile, "--microbatches", 2)
        fault = self.fault_of("run", workload, "--plan", plan, "--in-process")
        self.assertEqual(fault, f"{plan}: has no stamp; run isobar simulate {platform} {workload} --profile {profile} "
                                f"--plan {plan} --stamp, or give --unvalidated")
        self.run_isobar("run", workload, "--plan", plan, "--in-process", "--steps", 1, "--unvalidated")

        self.run_isobar("simulate", platform, workload, "--profile", profile, "--plan", plan, "--stamp")
        content = json.loads(pathlib.Path(plan).read_text())
        content["microbatches"] = 3
        pathlib.Path(plan).write_text(json.dumps(content))
        self.assertIn("stamp.plan: made for a plan with hash",
                      self.fault_of("run", workload, "--plan", plan, "--in-process"))

    def test_a_plan_for_a_global_batch_runs_at_its_own_micro_batch(self):
        platform, _ = self.small_inputs()
        losses = []
        for micro_batch, goal in ((2, ("--global-batch", 8, "--microbatches", 2)), (4, ("--microbatches", 2))):
            workload = self.write("model.yaml", MODEL.replace("micro_batch: 2", f"micro_batch: {micro_batch}"))
            plan = self.make_plan(platform, workload, *goal)
            self.assertEqual(json.loads(pathlib.Path(plan).read_text()).get("micro_batch"),
                             4 if micro_batch == 2 else None)
            output = self.folder / "run.json"
            self.run_isobar("run", workload, "--plan", plan, "--in-process", "--steps", 2, "--unvalidated", "-o",
                            output)
            losses.append(json.loads(output.read_text())["losses"])
        self.assertEqual(losses[0], losses[1])

    def test_a_micro_batch_that_the_workload_cannot_have_is_refused(self):
        workload, plan = self.stamped_plan()
        content = json.loads(pathlib.Path(plan).read_text())
        content["micro_batch"] = 4
        pathlib.Path(plan).write_text(json.dumps(content))
        self.assertEqual(self.fault_of("run", workload, "--plan", plan, "--in-process", "--unvalidated"),
                         f"{plan}: micro_batch: 4, but {content['inputs']['profile']['name']} was measured with micro-batches of "
                         "2 samples")

    def test_a_workload_of_skys_memory_runs_but_without_recomputation(self):
        platform, _ = self.small_inputs()
        workload = self.write("bert.yaml", (ROOT / "examples/tiny_bert.yaml").read_text() + "memory_model: sky\n")
        plan = self.make_plan(platform, workload, "--microbatches", 2)
        base = ("run", workload, "--plan", plan, "--in-process", "--steps", 1, "--unvalidated")
        self.run_isobar(*base)
        content = json.loads(pathlib.Path(plan).read_text())
        content["recompute"] = [1]
        pathlib.Path(plan).write_text(json.dumps(content))
        self.assertEqual(self.fault_of(*base), f"{plan}: recompute: memory_model sky does not model recomputation")

    def test_streams_that_are_closed_or_redirected_cost_no_file(self):
        workload, plan = self.stamped_plan()
        run = [ISOBAR, "run", workload, "--plan", plan, "--in-process", "--steps", "2"]
        everything = self.folder / "everything.txt"
        everything.write_text("of an earlier command\n")
        with everything.open("a") as stdout:
            subprocess.run([*run, "-o", "/dev/stdout"], cwd=ROOT, stdout=stdout, check=True)
        text = everything.read_text()
        self.assertTrue(text.startswith("of an earlier command\n step "), text)
        self.assertEqual(len(json.loads(text[text.index("\n{") + 1:])["losses"]), 2)
        trace = self.folder / "trace.json"
        subprocess.run(["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", *run, "--trace", trace], cwd=ROOT, check=True)
        assert_is_trace(self, trace)
        with open("/dev/full", "w") as full:
            subprocess.run([*run, "--checkpoint", self.folder / "kept", "--resume"], cwd=ROOT, stderr=full, check=True,
                           stdout=subprocess.DEVNULL)

    def test_a_reader_that_closes_the_pipe_is_not_a_lost_device(self):
        workload, plan = self.stamped_plan()
        run = subprocess.Popen([ISOBAR, "run", workload, "--plan", plan, "--spawn", "--steps", "1000000"], cwd=ROOT,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.addCleanup(run.kill)
        run.stdout.readline()
        run.stdout.close()
        self.assertEqual((run.wait(timeout=HANG_S), run.stderr.read()),
                         (3, "isobar: rank 1 (rank-1): cannot write to standard output\n"))

    def test_help_has_lines_of_at_most_80_columns(self):
        for command in ("run", "profile", "doctor", "export"):
            for line in self.run_isobar(command, "--help").stdout.splitlines():
                self.assertLessEqual(len(line), 80, f"{command}: {line}")

    def test_a_plan_for_another_workload_is_refused(self):
        workload, plan = self.stamped_plan()
        other = self.write("other.yaml", MODEL.replace("vocabulary: 60", "vocabulary: 61"))
        self.assertRegex(self.fault_of("run", other, "--plan", plan, "--in-process"),
                         rf"\A{plan}: stamp.workload: made for a workload with hash [0-9a-f]{{16}}; this one has "
                         r"[0-9a-f]{16}: simulate it again with --stamp\Z")
        deeper = self.write("deeper.yaml", MODEL.replace("layers: 3", "layers: 4"))
        self.assertEqual(self.fault_of("run", deeper, "--plan", plan, "--in-process", "--unvalidated"),
                         f"{plan}: layer 5 of 6 is not placed; the stages must hold every layer in order")

    def test_a_plan_that_was_simulated_on_another_platform_is_refused(self):
        platform, _ = self.small_inputs()
        # All claims of the plan hold there too; otherwise it would not be simulated.
        other = self.write("other.xml", pathlib.Path(platform).read_text().replace('"wire"', '"cable"'))
        workload = self.write("model.yaml", MODEL)
        plan = self.make_plan(platform, workload, "--microbatches", 2)
        base = ("run", workload, "--plan", plan, "--in-process", "--steps", 1)
        self.run_isobar("simulate", other, workload, "--plan", plan, "--stamp")
        self.assertRegex(self.fault_of(*base), rf"\A{plan}: stamp.platform: made on a platform with hash [0-9a-f]{{16}}"
                         rf"; the plan's, {platform}, has [0-9a-f]{{16}}: simulate it there with --stamp\Z")
        self.run_isobar(*base, "--unvalidated")
        self.run_isobar("simulate", platform, workload, "--plan", plan, "--stamp")
        self.run_isobar(*base)

    def test_emulated_ranks_are_as_fast_as_the_plans_own_profile_says(self):
        workload, plan = self.stamped_plan()
        profile = str(self.folder / "live.profile.json")
        base = ("run", workload, "--plan", plan, "--in-process", "--steps", 2)
        self.run_isobar(*base, "--emulate", "--profile", profile)
        self.assertEqual(self.fault_of(*base, "--profile", profile),
                         "--profile: sets the speed of emulated devices; add --emulate, and use a CPU")
        other = self.write("other.json", pathlib.Path(profile).read_text() + " ")
        self.assertRegex(self.fault_of(*base, "--emulate", "--profile", other),
                         "other.json: has hash .*; the plan was made with a profile with hash ")

    def test_wrong_options_are_faults_of_one_line(self):
        workload, plan = self.stamped_plan()
        base = ("run", workload, "--plan", plan)
        self.assertIn("choose where the ranks run: ", self.fault_of(*base))
        self.assertIn("choose where the ranks run: ", self.fault_of(*base, "--spawn", "--in-process"))
        self.assertEqual(self.fault_of(*base, "--rank", 0),
                         "--rank requires --ranks, or --world and --master where no launcher sets them")
        self.assertEqual(self.fault_of(*base, "--spawn", "--steps", 0), "--steps: 0 is not in 1 to 1000000000")
        self.assertEqual(self.fault_of(*base, "--spawn", "--threads", 0), "--threads: 0 is not in 1 to 1024")
        self.assertEqual(self.fault_of(*base, "--spawn", "--flows", 65), "--flows: 65 is not in 1 to 64")
        self.assertEqual(self.fault_of(*base, "--rank", 2, "--ranks", "a:1,b:2"),
                         "--rank: 2 is not below the plan's 2 ranks")
        self.assertEqual(self.fault_of(*base, "--rank", 0, "--ranks", "127.0.0.1:21743"),
                         "--ranks: lists 1 address; the plan has 2 ranks")
        places = ("--rank", 0, "--ranks", "127.0.0.1:21744,127.0.0.1:21745")
        self.assertIn("no secret: give --secret-file FILE or the environment variable ISOBAR_SECRET",
                      self.fault_of(*base, *places))
        secret = self.secret_file()
        self.assertRegex(self.fault_of(*base, *places, "--secret-file", secret, "--bind", "nosuch0"),
                         '--bind: "nosuch0" is neither an address nor an interface of this machine, which has .*lo')
        self.assertIn("--bind: 0.0.0.0 is open to other machines",
                      self.fault_of(*base, *places, "--secret-file", secret, "--bind", "0.0.0.0"))
        self.assertIn("--tls excludes --plain-text", self.fault_of(*base, *places, "--tls", "--plain-text"))
        self.assertEqual(self.fault_of(*base, "--rank", 0, "--ranks", "10.0.0.1:21744,10.0.0.2:21744", "--secret-file",
                                       secret, "--device", "cuda", "--transport", "nccl"),
                         "--transport: nccl does not encrypt; leave out --tls, and add --plain-text between machines")
        os.chmod(secret, 0o644)
        self.assertEqual(self.fault_of(*base, *places, "--secret-file", secret),
                         f"{secret}: others may read or change this secret (mode 644); run: chmod 600 {secret}")
        self.assertIn("--secret-file: requires --rank", self.fault_of(*base, "--spawn", "--secret-file", secret))
        self.assertIn("write host:port", self.fault_of(*base, "--rank", 0, "--ranks", "here,there"))
        self.assertIn("--deadline: ", self.fault_of(*base, "--spawn", "--deadline", "soon"))
        self.assertEqual(self.fault_of(*base, "--spawn", "--transport", "smoke"),
                         '--transport: "smoke" is not a transport; write tcp, nccl or auto')
        self.assertEqual(self.fault_of(*base, "--in-process", "--transport", "auto"),
                         "--transport: is for ranks that are processes; use --spawn or --rank")
        self.assertEqual(self.fault_of(*base, "--spawn", "--transport", "nccl"),
                         "--transport: nccl needs GPUs; add --device cuda")
        self.assertEqual(self.fault_of(*base, "--spawn", "--device", "tpu"),
                         '--device: "tpu" is not a device; write cpu, cuda, or cuda:N such as cuda:1')
        missing = self.fault_of("run", str(self.folder / "no.yaml"), "--plan", plan, "--spawn")
        self.assertIn("no.yaml: no such file", missing)

    def test_a_missing_gpu_is_a_fault_of_one_line(self):
        workload, plan = self.stamped_plan()
        base = ("--device", "cuda:77")
        for way in ("--in-process", "--spawn"):
            self.assertIn("--device cuda", self.fault_of("run", workload, "--plan", plan, way, *base, expect=3))
        self.assertIn("--device cuda", self.fault_of("profile", workload, "-o", self.folder / "gpu", *base, expect=3))

    def test_an_output_that_cannot_be_written_ends_the_run_before_training(self):
        workload, plan = self.stamped_plan()
        for option in ("-o", "--trace", "--log"):
            result = self.run_isobar("run", workload, "--plan", plan, "--in-process", "--steps", 1, option,
                                     self.folder / "no/such/folder", expect=3)
            self.assertIn("cannot write there", result.stderr)
            self.assertNotIn("loss", result.stdout)

    def test_listed_layers_have_costs_and_cannot_be_trained(self):
        platform, workload = self.small_inputs()
        plan = self.make_plan(platform, workload)
        self.assertIn("layers", self.fault_of("run", workload, "--plan", plan, "--in-process", "--unvalidated"))

    def test_a_mixture_of_experts_has_the_same_losses_on_one_and_two_devices(self):
        platform, _ = self.small_inputs()
        losses = []
        for without in ((), ("--without", "slow")):
            plan = self.make_plan(platform, "examples/tiny_moe.yaml", "--microbatches", 2, *without)
            self.run_isobar("simulate", platform, "examples/tiny_moe.yaml", "--plan", plan, "--stamp")
            output = self.folder / "run.json"
            self.run_isobar("run", "examples/tiny_moe.yaml", "--plan", plan, "--in-process", "--steps", 2, "-o", output)
            result = json.loads(output.read_text())
            self.assertEqual(len(result["stages"]), 1 if without else 2)
            losses.append(result["losses"])
        self.assertEqual(losses[0], losses[1])

    def test_the_published_operators_of_a_mixture_of_experts_are_only_searched(self):
        platform, _ = self.small_inputs()
        workload = self.write("tmoe.yaml", MOE + "parity: true\n")
        plan = self.make_plan(platform, workload, "--without", "slow")
        for way in ("--in-process", "--spawn"):
            fault = self.fault_of("run", workload, "--plan", plan, way, "--unvalidated").removeprefix("rank 0 (fast): ")
            self.assertEqual(fault, "workload tmoe: parity: true has the published operators, which are only searched; "
                             "leave it out to execute")

    def losses_by(self, workload, plan, *options):
        output = self.folder / "run.json"
        self.run_isobar("run", workload, "--plan", plan, *options, "-o", output)
        return json.loads(output.read_text())["losses"]

    def stamped(self, platform, workload, *options, allocator="even"):
        plan = self.make_plan(platform, workload, *(options or ("--microbatches", 2)), allocator=allocator)
        self.run_isobar("simulate", platform, workload, "--plan", plan, "--stamp")
        return plan

    def assert_close(self, losses, expected):
        for loss, wanted in zip(losses, expected, strict=True):
            self.assertAlmostEqual(loss / wanted, 1, delta=2e-5)

    def test_devices_that_divide_operators_have_the_losses_of_one_device(self):
        platform, _ = self.small_inputs()
        blocks = self.write("blocks.yaml", BERT_MOE)
        operators = self.write("operators.yaml", BERT_MOE + "unit: operator\n")
        expected = self.losses_by(blocks, self.stamped(platform, blocks, "--microbatches", 2, "--without", "slow"), "--in-process",
                                  "--steps", 5)
        folder = self.folder / "checkpoints"
        for allocator in ("ddp", "dp-cp", "spmd"):
            plan = self.stamped(platform, operators, allocator=allocator)
            for way in ("--in-process", "--spawn"):
                self.assert_close(self.losses_by(operators, plan, way, "--steps", 5), expected)
            # Each continues what another division has begun.
            options = "--checkpoint", folder, *(["--resume"] if folder.exists() else [])
            steps = {"ddp": 1, "dp-cp": 3, "spmd": 5}[allocator]
            self.assert_close(self.losses_by(operators, plan, "--spawn", "--steps", steps, *options),
                              expected[max(0, steps - 2):steps])

    def as_plan_of(self, plan, replicas, stages):
        """Lets two devices that have samples each be replicas or stages of a pipeline instead."""
        document = json.loads(pathlib.Path(plan).read_text())
        document.pop("sync", None)
        [stage] = document["stages"]
        devices = [{**shard, "share": 1} for shard in stage["replicas"][0]["shards"]]
        splits = list(stage["splits"].items())
        cut = next(i for i, (name, _) in enumerate(splits) if name.startswith("layer1."))
        document["stages"] = []
        for begin, end in [(0, len(splits))] if stages == 1 else [(0, cut), (cut, len(splits))]:
            shards = [[devices.pop(0)] for _ in range(replicas)]
            taken = {} if replicas > 1 else {"microbatches": document["microbatches"]}
            document["stages"].append({"first_layer": begin, "last_layer": end - 1, "splits": dict(splits[begin:end]),
                                       "replicas": [{**taken, "shards": each} for each in shards]})
        return self.write(f"{replicas}x{stages}.json", json.dumps(document))

    def test_replicas_and_groups_that_divide_operators_have_the_losses_of_one_device(self):
        platform, _ = self.small_inputs()
        model = BERT_MOE.replace("micro_batch: 3", "micro_batch: 4")
        blocks = self.write("blocks.yaml", model)
        operators = self.write("operators.yaml", model + "unit: operator\n")
        one = self.stamped(platform, blocks, "--microbatches", 2, "--without", "slow")
        expected = self.losses_by(blocks, one, "--in-process", "--steps", 3)
        whole = self.make_plan(platform, operators, "--microbatches", 2, allocator="ddp")
        for replicas, stages in ((2, 1), (1, 2)):
            plan = self.as_plan_of(whole, replicas, stages)
            for way in ("--in-process", "--spawn"):
                self.assert_close(self.losses_by(operators, plan, way, "--steps", 3, "--unvalidated"), expected)

    def test_rates_of_operators_hold_for_any_micro_batch(self):
        platform, _ = self.small_inputs()
        operators = self.write("operators.yaml", BERT_MOE + "unit: operator\n")
        rates = self.write("rates.json", '{"schema": "isobar-profile/1", "operator_rates": {"T4": {"flops_per_s": 8e9}}}')
        plan = self.make_plan(platform, operators, "--profile", rates, "--microbatches", 1, "--global-batch", 24,
                              allocator="ddp")
        with open(plan) as file:
            self.assertEqual(json.load(file)["micro_batch"], 24)
        self.assertEqual(len(self.losses_by(operators, plan, "--in-process", "--steps", 2, "--unvalidated")), 2)

    def test_mistakes_with_divided_operators_are_named(self):
        platform, _ = self.small_inputs()
        operators = self.write("operators.yaml", BERT_MOE + "unit: operator\n")
        plan = self.stamped(platform, operators, allocator="ddp")
        base = "run", operators, "--plan", plan, "--in-process", "--steps", 1
        reason = "the devices of the plan divide operators"
        self.assertEqual(self.fault_of(*base, "--evaluate", "x"),
                         f"--evaluate: {reason}, which isobar run only trains; leave it out")
        self.assertEqual(self.fault_of(*base, "--weights", "x"),
                         f"--weights: {reason}, which have no source in other models; leave it out")
        other = self.write("other.yaml", BERT_MOE.replace("hidden: 16", "hidden: 32") + "unit: operator\n")
        self.assertIn("stamp.workload: made for a workload with hash",
                      self.fault_of("run", other, "--plan", plan, "--in-process"))
        blocks = self.write("blocks.yaml", BERT_MOE)
        self.assertIn("layer 4 is placed, but workload blocks has 4 layers, 0 to 3",
                      self.fault_of("run", blocks, "--plan", plan, "--in-process", "--unvalidated"))
        self.assertIn("--ranks: lists 1 address; the plan has 2 ranks",
                      self.fault_of("run", operators, "--plan", plan, "--rank", 0, "--ranks", "127.0.0.1:21743"))
        published = self.write("published.yaml", BERT_MOE + "unit: operator\nparity: true\n")
        self.assertIn("parity: true has the published operators, which are only searched; leave it out to execute",
                      self.fault_of("run", published, "--plan", plan, "--in-process", "--unvalidated"))
        self.assertIn("unit: operator has layers that only plans that divide operators execute; leave it out",
                      self.fault_of("profile", operators, "-o", "p"))
        folder = self.folder / "checkpoints"
        self.run_isobar(*base, "--checkpoint", folder)
        plan = self.stamped(platform, operators, "--microbatches", 4, allocator="ddp")
        self.assertIn("was written by another run", self.fault_of("run", operators, "--plan", plan, "--in-process",
                                                                  "--steps", 2, "--checkpoint", folder, "--resume"))

    def test_plans_whose_tokens_reach_experts_otherwise_are_simulated_only(self):
        platform, _ = self.small_inputs()
        for key, slots in (("by_index: true", "all tokens, by index"), ("capacity_samples: 2", "slots for 2 samples")):
            workload = self.write("tmoe.yaml", MOE + key + "\n")
            plan = self.make_plan(platform, workload)
            fault = self.fault_of("run", workload, "--plan", plan, "--in-process", "--unvalidated")
            self.assertTrue(fault.startswith(f"{plan}: inputs.workload: experts take "), fault)
            self.assertTrue(fault.endswith(f"{slots}; isobar run gives the experts slots for each sample, and simulate "
                                           "plays all"), fault)
        workload = self.write("tmoe.yaml", MOE + "unit: operator\n")
        plan = self.make_plan(platform, workload, allocator="fastmoe-published")
        self.assertIn("routing: all tokens, by index; isobar run gives the experts slots for each sample",
                      self.fault_of("run", workload, "--plan", plan, "--in-process", "--unvalidated"))
        text = json.loads(open(plan).read())
        del text["routing"]
        plan = self.write("drifting.json", json.dumps(text))
        self.assertIn(f"{plan}: sync.adds_replicas: false; isobar run adds up the gradients of replicas, so that they stay "
                      "equal", self.fault_of("run", workload, "--plan", plan, "--in-process", "--unvalidated"))

    def test_plans_that_divide_sequences_have_the_losses_of_whole_ones(self):
        machine = self.write("machine.yaml", "nodes: 1\ngpus_per_node: 4\ndevice: A100-SXM4-80GB\n"
                                             "inside: {topology: switch, bandwidth_per_gpu: 300 GB/s}\n")
        platform = str(self.folder / "two.xml")
        self.run_isobar("platform", "generate", "machine", machine, "-o", platform)
        workload = self.write("llama.yaml", "model: llama\nlayers: 2\nhidden: 64\nheads: 4\nkv_heads: 4\nintermediate: 128\n"
                                            "vocabulary: 512\nsequence: 64\nmicro_batch: 1\noptimizer: adam\n"
                                            "unit: operator\ncompute: operators\nframework: megatron-core-0.8\n")
        losses = []
        for degree, exchange, tensor in (("1", "ring", "1"), ("2", "ring", "1"), ("2", "all-gather", "2"),
                                         ("4", "all-to-all", "1")):
            shape = ["--context", degree, "--context-exchange", exchange, "--tensor", tensor, "--pipeline", "1",
                     "--microbatches", "4", "--replicas", str(4 // int(tensor) // int(degree))]
            plan = self.make_plan(platform, workload, *shape[:4] if degree != "1" else [], *shape[4:], allocator="grid")
            base = ["run", workload, "--plan", plan, "--in-process", "--unvalidated", "--json"]
            run = self.run_isobar(*base, "--steps", 3)
            losses.append(json.loads(run.stdout)["losses"])
            folder = self.folder / "checkpoints"  # which the plan before has written
            if folder.exists():
                run = self.run_isobar(*base, "--steps", 3, "--checkpoint", folder, "--resume")
                self.assertAlmostEqual(json.loads(run.stdout)["losses"][-1] / losses[0][-1], 1, delta=1e-6)
                shutil.rmtree(folder)
            self.run_isobar(*base, "--steps", 2, "--checkpoint", folder)
        for other in losses[1:]:
            for mine, theirs in zip(other, losses[0], strict=True):
                self.assertAlmostEqual(mine / theirs, 1, delta=1e-6)

    def test_runs_refuse_what_of_divided_sequences_is_only_simulated(self):
        machine = self.write("machine.yaml", "nodes: 1\ngpus_per_node: 4\ndevice: A100-SXM4-80GB\n"
                                             "inside: {topology: switch, bandwidth_per_gpu: 300 GB/s}\n")
        platform = str(self.folder / "two.xml")
        self.run_isobar("platform", "generate", "machine", machine, "-o", platform)
        workload = self.write("llama.yaml", "model: llama\nlayers: 2\nhidden: 64\nheads: 4\nkv_heads: 4\nintermediate: 128\n"
                                            "vocabulary: 512\nsequence: 64\nmicro_batch: 1\noptimizer: adam\n"
                                            "unit: operator\ncompute: operators\nframework: megatron-core-0.8\n")
        plan = self.make_plan(platform, workload, "--context", 2, "--tensor", 2, "--splits", "sequence", "--pipeline", 1,
                              allocator="grid")
        self.assertEqual(self.fault_of("run", workload, "--plan", plan, "--in-process", "--unvalidated"),
                         f"{plan}: context: 2 parts (ring); isobar run does not divide activations among shards, too; plan "
                         "with --splits 1d")
        plan = self.make_plan(platform, workload, "--context", 2, "--tensor", 1, "--pipeline", 1, allocator="grid")
        document = json.loads(pathlib.Path(plan).read_text())
        document["sync"] = {"algorithm": "ring", "sharded": "parameters"}
        plan = self.write("parameters.json", json.dumps(document))
        self.assertEqual(self.fault_of("run", workload, "--plan", plan, "--in-process", "--unvalidated"),
                         f"{plan}: context: 2 parts (ring); isobar run does not divide parameters among replicas, too; use "
                         "sync.sharded gradients or optimizer")

    def test_what_other_systems_send_is_simulated_only(self):
        platform, workload = self.small_inputs()
        plan = json.loads(open(self.make_plan(platform, workload, "--pipeline", 1, "--replicas", 2,
                                              allocator="grid")).read())
        plan["sync"] = {"algorithm": "ring", "sharded": "parameters", "gather_dtype": "bf16", "each_microbatch": True}
        file = self.write("others.json", json.dumps(plan))
        fault = self.fault_of("run", workload, "--plan", file, "--in-process", "--unvalidated")
        for key, does in (("sync.gather_dtype", "parameters travel in float32"),
                          ("sync.each_microbatch: true", "replicas add up their gradients once a step")):
            self.assertIn(f"{file}: {key}, which isobar run does not execute: {does}\n", fault + "\n")
        workload = self.write("operators.yaml", MODEL + "unit: operator\n")
        plan = json.loads(pathlib.Path(self.make_plan(platform, workload, "--tensor", 2, allocator="grid")).read_text())
        plan["transfers"] = {"sliced": True}
        plan["system"] = "megatron-core-0.8"
        file = self.write("others.json", json.dumps(plan))
        self.assertIn("transfers.sliced: true, which isobar run does not execute: each shard sends all of what a stage passes "
                      "on; the plan imitates megatron-core-0.8, so plan with compute: rate or a --profile",
                      self.fault_of("run", workload, "--plan", file, "--in-process", "--unvalidated"))

    def test_a_run_far_slower_than_predicted_continues_and_warns_once(self):
        workload, plan = self.stamped_plan()
        document = json.loads(pathlib.Path(plan).read_text())
        document["predicted"]["step_time_s"] = 1e-6
        late = self.write("late.json", json.dumps(document))
        for way in ("--spawn", "--in-process"):
            run = self.run_isobar("run", workload, "--plan", late, way, "--unvalidated", "--steps", 500, "--json")
            self.assertRegex(without_notes(run.stderr, BUSY_NOTE),
                             r"\Aisobar: each of \d+ steps after the first took [\d.]+ s, \d+ times the 1e-06 s "
                             r"that the plan predicts\n\Z")
            self.assertEqual(len(json.loads(run.stdout)["losses"]), 500)

    def test_measurements_on_a_busy_machine_report_it(self):
        if not os.path.exists("/proc/thread-self/schedstat"):
            self.skipTest("the system does not count how long threads wait for a processor")
        workload, plan = self.stamped_plan()
        on_one_core = ["taskset", "--cpu-list", str(min(os.sched_getaffinity(0)))]
        for _ in range(2):
            busy = subprocess.Popen([*on_one_core, sys.executable, "-c", "while True: pass"])
            self.addCleanup(busy.communicate)
            self.addCleanup(busy.kill)
        run = subprocess.run([*on_one_core, ISOBAR, "run", workload, "--plan", plan, "--in-process", "--steps", "200",
                              "--json"], cwd=ROOT, capture_output=True, text=True, timeout=HANG_S, check=True)
        note = r" waited for a processor \d\d % of the time: its machine is busy, which distorts measured times\n"
        self.assertRegex(run.stderr, r"isobar: rank \d \(rank-\d\)" + note)
        waits = [stage["processor_wait_fraction"] for stage in json.loads(run.stdout)["stages"]]
        self.assertGreater(max(waits), 0.1)
        profile = subprocess.run([*on_one_core, ISOBAR, "profile", workload, "-o", self.folder / "busy"], cwd=ROOT,
                                 capture_output=True, text=True, timeout=HANG_S, check=True)
        self.assertRegex(profile.stderr, "isobar: profile: the computation" + note)
