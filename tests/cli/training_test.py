"""isobar run over long training: data, checkpoints, resumption, evaluation, interruption."""

import contextlib
import json
import math
import os
import pathlib
import random
import re
import shutil
import signal
import subprocess
import time

from tests.cli.breakable_runs import is_alive, platform_of
from tests.cli.support import HANG_S, ISOBAR, ROOT, CommandTest, children_of, holds, without_notes

GPT = """model: gpt
layers: 3
hidden: 16
heads: 2
vocabulary: 60
sequence: 8
micro_batch: 2
optimizer: adam
learning_rate: 0.01
dropout: 0.1
"""


class Training(CommandTest):
    def plan_on(self, devices, workload):
        platform = self.write(f"{devices}.xml", platform_of([f"d{i}" for i in range(devices)]))
        plan = str(self.folder / f"plan{devices}.json")
        self.run_isobar("plan", platform, workload, "--allocator", "even", "--microbatches", 2, "-o", plan)
        return plan

    def losses(self, workload, plan, *options, expect=0):
        result = self.run_isobar("run", workload, "--plan", plan, "--spawn", "--unvalidated", "--json", *options,
                                 expect=expect)
        return json.loads(result.stdout)["losses"] if result.stdout else []

    def resumed_past_a_damaged_checkpoint(self, damage):
        """The stderr of a run that continues, with the undisturbed losses, from the checkpoint before the damaged one."""
        workload = self.write("gpt.yaml", GPT)
        plan = self.plan_on(3, workload)
        undisturbed = self.losses(workload, plan, "--steps", 30)
        folder = self.folder / "checkpoints"
        run = ("--checkpoint", folder, "--checkpoint-every", 10)
        self.losses(workload, plan, *run, "--steps", 20)
        damage(folder / "step-00000020")
        result = self.run_isobar("run", workload, "--plan", plan, "--spawn", "--unvalidated", "--json", *run, "--resume",
                                 "--steps", 30)
        self.assertEqual(json.loads(result.stdout)["losses"], undisturbed[10:])
        return result.stderr

    def logged(self, path):
        return [json.loads(line) for line in pathlib.Path(path).read_text().splitlines()]

    def test_three_two_and_four_stages_continue_from_one_another(self):
        workload = self.write("gpt.yaml", GPT)
        plans = {devices: self.plan_on(devices, workload) for devices in (2, 3, 4)}
        whole = self.losses(workload, plans[3], "--steps", 30)
        folder = ("--checkpoint", self.folder / "checkpoints")
        parts = self.losses(workload, plans[3], *folder, "--steps", 10)
        parts += self.losses(workload, plans[2], *folder, "--steps", 20, "--resume")
        parts += self.losses(workload, plans[4], *folder, "--steps", 30, "--resume")
        self.assertEqual(parts, whole)

    def killed_at(self, step, command, log, chance):
        """Kills a run shortly after that step. Returns which process it killed, or None when the run had ended."""
        process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        self.addCleanup(process.kill)
        while process.poll() is None and (not log.exists() or log.read_bytes().count(b"\n") <= step):
            time.sleep(0.001)
        time.sleep(chance.uniform(0, 0.01))
        ranks = children_of(process.pid)
        victim = chance.choice([process.pid, *ranks])
        with contextlib.suppress(ProcessLookupError):
            os.kill(victim, signal.SIGKILL)
        errors = process.communicate(timeout=HANG_S)[1]
        if process.returncode == 0:
            return None
        self.assertEqual(process.returncode, -signal.SIGKILL if victim == process.pid else 3, errors)
        self.assertTrue(holds(lambda: not any(map(is_alive, ranks))), ranks)
        return "the parent" if victim == process.pid else "a rank"

    def test_a_run_killed_at_twenty_random_moments_learns_the_same(self):
        workload = self.write("gpt.yaml", GPT)
        plan = self.plan_on(3, workload)
        undisturbed = self.losses(workload, plan, "--steps", 200)
        chance = random.Random(6)
        killed = []
        for attempt in range(40):
            log = self.folder / f"{attempt}.jsonl"
            command = [ISOBAR, "run", workload, "--plan", plan, "--spawn", "--unvalidated", "--steps", "200",
                       "--checkpoint", str(self.folder / f"checkpoints-{attempt}"), "--checkpoint-every", "10",
                       "--log", str(log)]
            step = chance.randint(0, 195)
            victim = self.killed_at(step, command, log, chance)
            if victim is None:
                continue
            self.run_isobar(*command[1:], "--resume")
            lines = self.logged(log)  # some steps appear twice
            self.assertEqual({line["step"] for line in lines}, set(range(200)))
            for line in lines:
                self.assertEqual(line["loss"], undisturbed[line["step"]], f"{victim} was killed after step {step}")
            killed.append(victim)
            if len(killed) == 20:
                break
        self.assertEqual(len(killed), 20)
        self.assertEqual(set(killed), {"the parent", "a rank"})

    def grid_plan(self, workload, pipeline, replicas, shards, sharded):
        """The plan of a grid, whose replicas divide what `sharded` says."""
        platform = self.write("grid.xml", platform_of([f"d{i}" for i in range(pipeline * replicas * shards)]))
        file = self.folder / f"{pipeline}x{replicas}x{shards}.json"
        self.run_isobar("plan", platform, workload, "--allocator", "grid", "--pipeline", pipeline, "--replicas",
                        replicas, "--tensor", shards, "--microbatches", 4, "-o", file)
        plan = json.loads(file.read_text())
        if sharded:
            plan["sync"] = {"algorithm": "ring", "sharded": sharded}
        file.write_text(json.dumps(plan))
        return str(file)

    def test_a_killed_run_of_replicas_and_shards_continues_under_other_degrees_and_shardings(self):
        workload = self.write("gpt.yaml", GPT.replace("0.01", "0.001") + "unit: operator\n")
        shapes = [(2, 2, 1, "gradients"), (1, 2, 2, "parameters"), (3, 1, 1, None), (2, 1, 2, None),
                  (1, 2, 2, "optimizer")]
        undisturbed = self.losses(workload, self.grid_plan(workload, 1, 1, 1, None), "--steps", 300)
        chance = random.Random(7)
        steps = set()
        for attempt, shape in enumerate(shapes):
            log = self.folder / f"{attempt}.jsonl"
            command = [ISOBAR, "run", workload, "--plan", self.grid_plan(workload, *shape), "--spawn",
                       "--unvalidated", "--steps", "300", "--checkpoint", str(self.folder / "checkpoints"),
                       "--checkpoint-every", "5", "--log", str(log), *(["--resume"] if attempt > 0 else [])]
            if attempt + 1 < len(shapes):
                self.assertIsNotNone(self.killed_at(12, command, log, chance))
            else:
                self.run_isobar(*command[1:])
            for text in log.read_text().splitlines(keepends=True):
                if text.endswith("\n"):  # the last one may be cut
                    line = json.loads(text)
                    steps.add(line["step"])
                    ratio = line["loss"] / undisturbed[line["step"]]
                    self.assertAlmostEqual(ratio, 1, delta=1e-5, msg=f"{shape}: {line}")
        self.assertEqual(steps, set(range(300)))

    def test_an_interrupt_finishes_the_step_and_writes_a_checkpoint(self):
        workload = self.write("gpt.yaml", GPT)
        plan = self.plan_on(3, workload)
        folder = self.folder / "checkpoints"
        undisturbed = self.losses(workload, plan, "--steps", 400)
        for number, (whom, sent) in enumerate([("all", signal.SIGINT), ("first", signal.SIGTERM),
                                               ("last", signal.SIGTERM)]):
            process = subprocess.Popen([ISOBAR, "run", workload, "--plan", plan, "--spawn", "--unvalidated", "--steps",
                                        "1000000", "--checkpoint", str(folder / str(number)), "-o",
                                        str(self.folder / "out.json")], cwd=ROOT, stdout=subprocess.PIPE,
                                       stderr=subprocess.PIPE, text=True)
            self.addCleanup(process.kill)
            while process.stdout.readline().split()[:1] != ["5"]:
                self.assertIsNone(process.poll())
            children = pathlib.Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
            os.kill({"all": process.pid, "first": int(children[0]), "last": int(children[-1])}[whom], sent)
            errors = process.communicate(timeout=HANG_S)[1]
            self.assertEqual(process.returncode, 130, errors)
            printed = without_notes(errors)
            done = int(re.fullmatch(r"isobar: interrupted; (\d+) of 1000000 steps are done\n", printed)[1])
            self.assertEqual(len(json.loads((self.folder / "out.json").read_text())["losses"]), done)
            rest = self.losses(workload, plan, "--steps", 400, "--checkpoint", folder / str(number), "--resume")
            self.assertEqual(rest, undisturbed[done:])

    def test_values_that_are_not_finite_end_the_run(self):
        wild = self.write("wild.yaml", GPT.replace("adam", "sgd").replace("0.01", "1e30"))
        plan = self.plan_on(3, wild)
        fault = self.fault_of("run", wild, "--plan", plan, "--spawn", "--unvalidated", "--steps", 100, "--json",
                              "--checkpoint", self.folder / "checkpoints", "--checkpoint-every", 1)
        # The last rank sees the loss, each rank its parameters when it writes a checkpoint. Any of them may be first.
        self.assertRegex(fault, r"rank (2 \(d2\): step \d+: the loss is -?(nan|inf)|\d \(d\d\): step \d+: \S+ is not finite)"
                                r"; training has diverged; try a smaller learning_rate or a clip_norm")

    def test_mnli_is_learned_and_evaluated(self):
        pairs, dev, vocabulary = (ROOT / "examples/mnli" / name for name in ("train.tsv", "dev.tsv", "vocab.txt"))
        words = len(vocabulary.read_text().splitlines())
        workload = self.write("bert.yaml", f"""model: bert
encoders: 2
positions: 32
hidden: 32
heads: 2
intermediate: 64
vocabulary: {words}
classes: 3
sequence: 32
micro_batch: 5
optimizer: adamw
learning_rate: 0.003
""")
        plan = self.plan_on(3, workload)
        data = ("--data", pairs, "--vocabulary", vocabulary)
        result = json.loads(self.run_isobar("run", workload, "--plan", plan, "--spawn", "--unvalidated", "--json", *data,
                                            "--evaluate", pairs, "--steps", 250).stdout)
        self.assertEqual(result["evaluation"]["labels"], 50)
        self.assertLess(sum(result["losses"][-5:]), 0.7 * sum(result["losses"][:5]))
        self.assertGreater(result["evaluation"]["accuracy_fraction"], 0.7)  # it has seen them
        other = json.loads(self.run_isobar("run", workload, "--plan", plan, "--in-process", "--unvalidated", "--json",
                                           *data, "--evaluate", dev, "--steps", 2).stdout)
        self.assertEqual(other["losses"], result["losses"][:2])
        self.assertLess(other["evaluation"]["loss"], 3)

    def test_another_run_can_begin_with_an_exported_model(self):
        workload = self.write("gpt.yaml", GPT.replace("dropout: 0.1\n", ""))
        still = self.write("still.yaml", GPT.replace("dropout: 0.1\n", "").replace("adam", "sgd").replace("0.01", "0"))
        tokens = self.folder / "tokens.bin"
        tokens.write_bytes(b"".join((7 * i % 11).to_bytes(2, "little") for i in range(100)))
        checkpoints, model = self.folder / "checkpoints", self.folder / "model"
        trained = json.loads(self.run_isobar(
            "run", workload, "--plan", self.plan_on(3, workload), "--spawn", "--unvalidated", "--json", "--data", tokens,
            "--evaluate", tokens, "--steps", 20, "--checkpoint", checkpoints).stdout)
        self.run_isobar("export", workload, checkpoints, "-o", model)
        again = json.loads(self.run_isobar(
            "run", still, "--plan", self.plan_on(2, still), "--spawn", "--unvalidated", "--json", "--weights", model,
            "--evaluate", tokens, "--steps", 1).stdout)
        self.assertEqual(again["evaluation"], trained["evaluation"])
        self.assertIn("has neither model.safetensors nor",
                      self.fault_of("run", still, "--plan", self.plan_on(2, still), "--spawn", "--unvalidated",
                                    "--weights", self.folder))
        for name in ("model.safetensors", "config.json"):
            self.assertEqual(self.fault_of("run", still, "--plan", self.plan_on(2, still), "--spawn", "--unvalidated",
                                           "--weights", model, "-o", model / name),
                             f"{model / name}: is an input; name another file to write")

    def test_tokens_are_learned_and_their_perplexity_reported(self):
        workload = self.write("gpt.yaml", GPT.replace("dropout: 0.1\n", ""))
        plan = self.plan_on(2, workload)
        tokens = self.folder / "tokens.bin"
        tokens.write_bytes(b"".join((7 * i % 11).to_bytes(2, "little") for i in range(500)))
        result = json.loads(self.run_isobar("run", workload, "--plan", plan, "--spawn", "--unvalidated", "--json",
                                            "--data", tokens, "--evaluate", tokens, "--steps", 80).stdout)
        evaluation = result["evaluation"]
        self.assertAlmostEqual(evaluation["perplexity"], math.exp(evaluation["loss"]), places=6)
        self.assertLess(evaluation["perplexity"], 1.5)
        self.assertEqual(evaluation["labels"], 499)

    def test_tokens_without_a_header_have_the_type_that_is_given(self):
        workload = self.write("gpt.yaml", GPT)
        plan = self.plan_on(2, workload)
        files = {}
        for width in (2, 4):
            files[width] = self.folder / f"{width}.bin"
            files[width].write_bytes(b"".join((7 * i % 11).to_bytes(width, "little") for i in range(500)))
        narrow = self.losses(workload, plan, "--steps", 3, "--data", files[2])
        run = ("--data", files[4], "--checkpoint", self.folder / "kept")
        self.assertEqual(self.losses(workload, plan, "--steps", 3, *run, "--data-type", "uint32"), narrow)
        base = ("run", workload, "--plan", plan, "--spawn", "--unvalidated", "--steps", 4)
        self.assertEqual(self.fault_of(*base, "--data", files[4]),
                         f"{files[4]}: looks like uint32, since every second uint16 is 0; give --data-type uint32, or "
                         "--data-type uint16 if that is right")
        self.assertIn("was written by another run",
                      self.fault_of(*base, *run, "--resume", "--data-type", "uint16"))
        text = self.write("input.txt", "First Citizen: Before we proceed any further, hear me speak.\n")
        for option in ("--data", "--evaluate"):
            self.assertEqual(self.fault_of(*base, option, text),
                             f"{text}: is text, not numbers of tokens; make a .bin or .npy file of it, or give "
                             "--data-type if these bytes are numbers")

    def test_wrong_inputs_are_faults_of_one_line(self):
        workload = self.write("gpt.yaml", GPT)
        plan = self.plan_on(2, workload)
        base = ("run", workload, "--plan", plan, "--spawn", "--unvalidated", "--steps", 4)
        folder = self.folder / "checkpoints"
        self.assertIn("add --checkpoint FOLDER", self.fault_of(*base, "--resume"))
        self.assertIn("write a number of steps", self.fault_of(*base, "--checkpoint", folder, "--checkpoint-every", 0))
        self.assertIn("--checkpoint-every: ", self.fault_of(*base, "--checkpoint", folder, "--checkpoint-every", "now"))
        self.run_isobar(*base, "--checkpoint", folder)
        self.assertIn("already holds a checkpoint of step 4; add --resume to continue from it",
                      self.fault_of(*base, "--checkpoint", folder))
        self.assertIn("all of them are done", self.run_isobar(*base, "--checkpoint", folder, "--resume").stderr)
        self.assertIn("was written by another run",
                      self.fault_of(*base, "--checkpoint", folder, "--resume", "--seed", 2))
        self.assertIn("no such file", self.fault_of(*base, "--data", self.folder / "none.bin"))
        above = self.folder / "above.bin"
        above.write_bytes(b"".join(token.to_bytes(2, "little") for token in [1] * 50 + [60]))
        self.assertIn("above.bin: token 50 is 60; ", self.fault_of(*base, "--evaluate", above))
        self.assertIn("none.xml: no such file", self.fault_of(*base, "--replan", self.folder / "none.xml"))
        self.assertEqual(self.fault_of(*base, "--restart", -1), '--restart: "-1" is not a whole number from 0 to 2^53')
        for option in ("--checkpoint", "--scratch", "--tensorboard"):
            self.assertIn(f"{option}: the name is empty; name a folder, such as . for this one",
                          self.fault_of(*base, option, ""))
        self.assertIn('--scratch: "-" is not a folder here; write ./- for a folder of that name',
                      self.fault_of(*base, "--scratch", "-"))

    def test_a_run_overwrites_none_of_its_inputs_and_no_output_twice(self):
        workload = self.write("gpt.yaml", GPT)
        plan = self.plan_on(2, workload)
        before = {name: pathlib.Path(name).read_text() for name in (workload, plan)}
        base = ("run", workload, "--plan", plan, "--spawn", "--unvalidated", "--steps", 1)
        for output in ("-o", "--trace", "--log", "--prometheus"):
            for name in before:
                self.assertIn("is an input; name another file to write", self.fault_of(*base, output, name))
        one = self.folder / "one"
        self.assertIn("is written twice; name two files", self.fault_of(*base, "-o", one, "--log", one))
        self.assertEqual({name: pathlib.Path(name).read_text() for name in before}, before)

    def test_a_log_stays_as_it_was_when_no_step_is_trained(self):
        workload = self.write("gpt.yaml", GPT)
        plan = self.plan_on(2, workload)
        log = pathlib.Path(self.write("log.jsonl", "years of work\n"))
        base = ("run", workload, "--plan", plan, "--spawn", "--unvalidated", "--steps", 2, "--log", log)
        self.fault_of(*base, "-o", "/proc/none", expect=3)
        self.fault_of(*base, "--weights", self.folder / "none")
        self.assertEqual(log.read_text(), "years of work\n")
        self.run_isobar(*base)
        self.assertEqual([line["step"] for line in self.logged(log)], [0, 1])

    def test_a_result_that_cannot_be_printed_is_reported(self):
        workload = self.write("gpt.yaml", GPT)
        plan = self.plan_on(2, workload)
        with open("/dev/full", "w") as full:
            done = subprocess.run([ISOBAR, "run", workload, "--plan", plan, "--spawn", "--unvalidated", "--steps", "1",
                                   "--json"], cwd=ROOT, stdout=full, stderr=subprocess.PIPE, text=True, timeout=HANG_S)
        self.assertEqual((done.returncode, without_notes(done.stderr)),
                         (3, "isobar: cannot write to standard output\n"))

    def test_an_interrupt_ends_an_evaluation_too(self):
        workload = self.write("gpt.yaml", GPT.replace("dropout: 0.1\n", ""))
        plan = self.plan_on(2, workload)
        tokens = self.folder / "tokens.bin"
        tokens.write_bytes(b"".join((7 * i % 11).to_bytes(2, "little") for i in range(2_000_000)))
        output, log = self.folder / "out.json", self.folder / "log.jsonl"
        process = subprocess.Popen([ISOBAR, "run", workload, "--plan", plan, "--spawn", "--unvalidated", "--steps", "3",
                                    "--evaluate", str(tokens), "--log", str(log), "-o", str(output)], cwd=ROOT,
                                   stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        self.addCleanup(process.kill)
        while not log.exists() or len(self.logged(log)) < 3:
            self.assertIsNone(process.poll())
            time.sleep(0.05)
        time.sleep(0.5)
        process.send_signal(signal.SIGINT)
        errors = process.communicate(timeout=HANG_S)[1]
        self.assertEqual((process.returncode, without_notes(errors)),
                         (130, "isobar: interrupted; 3 of 3 steps are done\n"))
        self.assertIsNone(json.loads(output.read_text())["evaluation"])  # it would cover the whole file

    def test_a_folder_of_checkpoints_that_cannot_be_written_is_found_before_training(self):
        workload = self.write("gpt.yaml", GPT)
        plan = self.plan_on(2, workload)
        log = self.folder / "log.jsonl"
        base = ("run", workload, "--plan", plan, "--spawn", "--unvalidated", "--log", log, "--checkpoint")
        self.assertIn("is a file; name a folder", self.fault_of(*base, plan))
        self.assertIn("/proc/checkpoints: ", self.fault_of(*base, "/proc/checkpoints", expect=3))
        self.assertFalse(log.exists())

    def test_two_runs_do_not_write_to_one_folder_of_checkpoints(self):
        workload = self.write("gpt.yaml", GPT)
        plan = self.plan_on(2, workload)
        base = ("run", workload, "--plan", plan, "--spawn", "--unvalidated", "--checkpoint", str(self.folder / "kept"))
        first = subprocess.Popen([ISOBAR, *base, "--steps", "1000000"], cwd=ROOT, stdout=subprocess.PIPE,
                                 stderr=subprocess.PIPE, text=True)
        self.addCleanup(first.kill)
        first.stdout.readline()  # training has begun
        self.assertIn("kept: another run is writing checkpoints there; stop it, or name another folder with --checkpoint",
                      self.fault_of(*base, "--resume"))
        first.send_signal(signal.SIGINT)
        first.communicate(timeout=HANG_S)
        self.assertEqual(first.returncode, 130)

    def test_unfinished_files_of_an_earlier_run_are_removed_first(self):
        workload = self.write("gpt.yaml", GPT)
        folder = self.folder / "checkpoints"
        run = ("--checkpoint", folder, "--checkpoint-every", 10)
        self.losses(workload, self.plan_on(2, workload), *run, "--steps", 20)
        left = folder / "step-00000030"
        shutil.copytree(folder / "step-00000020", left)
        (left / "stage-1-of-2.json").unlink()
        self.losses(workload, self.plan_on(3, workload), *run, "--steps", 25, "--resume")
        self.assertEqual(sorted(path.name for path in folder.glob("step-*")),
                         ["step-00000010", "step-00000020", "step-00000025"])

    def test_the_requested_number_of_checkpoints_is_kept(self):
        workload = self.write("gpt.yaml", GPT)
        plan = self.plan_on(3, workload)
        for number in range(5):
            folder = self.folder / str(number)
            self.losses(workload, plan, "--checkpoint", folder, "--checkpoint-every", 5, "--checkpoint-keep", 1,
                        "--steps", 20)
            self.assertEqual([path.name for path in folder.glob("step-*")], ["step-00000020"])

    def test_a_run_does_not_start_over_when_no_checkpoint_can_be_read(self):
        workload = self.write("gpt.yaml", GPT)
        plan = self.plan_on(2, workload)
        folder = self.folder / "checkpoints"
        run = ("--checkpoint", folder, "--checkpoint-every", 10)
        self.losses(workload, plan, *run, "--steps", 30)
        away = self.folder / "away"
        away.mkdir()
        for part in folder.glob("step-*/stage-1-of-2.safetensors"):
            part.rename(away / part.parent.name)
        result = self.run_isobar("run", workload, "--plan", plan, "--spawn", "--unvalidated", *run, "--resume",
                                 "--steps", 40, expect=2)
        self.assertIn("checkpoints: has no complete checkpoint; restore the missing files, or name another folder",
                      result.stderr)
        self.assertEqual(len(list(folder.glob("step-*"))), 3)
        for part in away.iterdir():
            part.rename(folder / part.name / "stage-1-of-2.safetensors")
        self.losses(workload, plan, *run, "--resume", "--steps", 40)

    def test_a_checkpoint_with_a_flipped_bit_is_skipped_and_renamed(self):
        def flip_a_bit(checkpoint):
            part = checkpoint / "stage-2-of-3.safetensors"
            content = bytearray(part.read_bytes())
            content[-1] ^= 1
            part.write_bytes(content)

        self.assertIn("damaged: its CRC-32C is ", self.resumed_past_a_damaged_checkpoint(flip_a_bit))
        self.assertTrue((self.folder / "checkpoints/step-00000020.damaged").is_dir())

    def test_a_finished_run_can_be_evaluated(self):
        workload = self.write("gpt.yaml", GPT.replace("dropout: 0.1\n", ""))
        plan = self.plan_on(3, workload)
        tokens = self.folder / "tokens.bin"
        tokens.write_bytes(b"".join((7 * i % 11).to_bytes(2, "little") for i in range(500)))
        base = ("run", workload, "--plan", plan, "--spawn", "--unvalidated", "--data", tokens, "--steps", 10,
                "--checkpoint", self.folder / "kept")
        trained = self.json_of(*base, "--evaluate", tokens)
        again = self.json_of(*base, "--evaluate", tokens, "--resume")
        self.assertEqual(again["evaluation"], trained["evaluation"])
        self.assertEqual((again["losses"], again["first_step"], again["step_time_s"]), ([], 10, None))
        printed = self.run_isobar(*base, "--evaluate", tokens, "--resume").stdout
        self.assertIn("nothing was left to train", printed)
        self.assertIn("evaluation: loss ", printed)

    def test_a_rank_that_fails_during_evaluation_is_restarted(self):
        workload = self.write("gpt.yaml", GPT.replace("dropout: 0.1\n", ""))
        plan = self.plan_on(2, workload)
        tokens = self.folder / "tokens.bin"
        tokens.write_bytes(b"".join((7 * i % 11).to_bytes(2, "little") for i in range(60_000)))
        output, log = self.folder / "out.json", self.folder / "log.jsonl"
        process = subprocess.Popen(
            [ISOBAR, "run", workload, "--plan", plan, "--spawn", "--unvalidated", "--steps", "5", "--restart", "2",
             "--checkpoint", str(self.folder / "kept"), "--evaluate", str(tokens), "--log", str(log), "-o", str(output)],
            cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        self.addCleanup(process.kill)
        manifest = self.folder / "kept/step-00000005/stage-1-of-2.json"
        while not manifest.exists():
            self.assertIsNone(process.poll())
            time.sleep(0.01)
        supervised = pathlib.Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()[0]
        ranks = pathlib.Path(f"/proc/{supervised}/task/{supervised}/children").read_text().split()
        os.kill(int(ranks[1]), signal.SIGKILL)
        errors = process.communicate(timeout=HANG_S)[1]
        self.assertEqual(process.returncode, 0, errors)
        self.assertIn("attempt 1 of 3 failed: rank 1 (d1): died of signal 9 (Killed); continuing from step 5", errors)
        self.assertEqual(json.loads(output.read_text())["evaluation"]["labels"], 59_999)

    def test_diverged_parameters_are_not_checkpointed(self):
        wild = self.write("wild.yaml", GPT.replace("adam", "sgd").replace("0.01", "1e38"))
        folder = self.folder / "checkpoints"
        fault = self.fault_of("run", wild, "--plan", self.plan_on(2, wild), "--spawn", "--unvalidated", "--steps", 100,
                              "--json", "--checkpoint", folder, "--checkpoint-every", 1)
        self.assertRegex(fault, r"rank \d \(d\d\): step \d+: (layers\.\S+ is not finite|the loss is -?(nan|inf)); training has")

    def test_a_damaged_checkpoint_is_skipped_for_the_previous_one(self):
        def cut_a_manifest(checkpoint):
            manifest = next(checkpoint.glob("stage-1*.json"))
            manifest.write_text(manifest.read_text()[:40])

        printed = self.resumed_past_a_damaged_checkpoint(cut_a_manifest)
        self.assertIn("step-00000020", printed)
        self.assertIn("continuing from", printed)
