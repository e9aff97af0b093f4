import csv
import functools
import io
import json
import os
import pathlib
import re
import shutil
import subprocess

from tests.cli.support import GPT, HANG_S, ISOBAR, ROOT, CommandTest

EXECUTOR_COMMANDS = {"run", "profile", "doctor", "export"}
# The headings under which help lists options.
GROUPS = {"Inputs", "Goal", "Search", "Schedule", "Devices", "Network", "Launch", "Faults", "Data", "Checkpoints", "Output",
          "Baseline", "Cluster (Slurm)", "Rounds"}


class Command(CommandTest):
    def test_version_names_isobar_and_simgrid(self):
        self.assertRegex(self.run_isobar("--version").stdout, r"^isobar 0\.\d+\.\d+ \(SimGrid \d+\.\d+(\.\d+)?\)\n$")

    def helps(self):
        """Every command, subcommands included, and its help."""
        has_executor = pathlib.Path(ISOBAR).with_name("isobar-exec").exists()
        commands = [[]]
        while commands:
            command = commands.pop(0)
            text = self.run_isobar(*command, "--help").stdout
            yield " ".join(["isobar", *command]), text
            subcommands = text.partition("\nSubcommands:\n")[2].partition("\n\n")[0]
            for name in re.findall(r"^  (\S+)", subcommands, re.MULTILINE):
                if has_executor or name not in EXECUTOR_COMMANDS:
                    commands.append([*command, name])

    def test_helps_are_those_of_every_command(self):
        commands = [command for command, _ in self.helps()]
        self.assertEqual(len(set(commands)), len(commands))
        for command in ("isobar", "isobar sweep", "isobar trace merge", "isobar platform generate sites"):
            self.assertIn(command, commands)

    def test_help_has_lines_of_at_most_80_columns(self):
        for command, text in self.helps():
            for line in text.splitlines():
                self.assertLessEqual(len(line), 80, f"{command}: {line}")

    def test_help_lists_every_option_in_a_named_group(self):
        for command, text in self.helps():
            heading = ""
            for line in text.splitlines():
                if match := re.fullmatch(r"(\S.*):", line):
                    heading = match[1]
                elif re.match(r"  (-|[A-Z]+\b)", line) and not re.match(r"  (-h,--help|--version) ", line):
                    self.assertIn(heading, GROUPS, f"{command}: {line}")

    def test_help_ends_with_one_example(self):
        for command, text in self.helps():
            self.assertRegex(text, r"\n\nExample:\n  isobar .*\n(  .*\n)*\Z", command)
            self.assertEqual(len(re.findall("^Examples?:", text, re.MULTILINE)), 1, command)

    def test_an_unknown_option_is_a_fault_of_the_user(self):
        fault = self.fault_of("compare", "a.xml", "b.yaml", "--alocators", "even")
        self.assertIn("--alocators", fault)
        self.assertEqual(len(fault.splitlines()), 1)

    def test_help_without_the_executor_says_how_to_get_it(self):
        alone = shutil.copy(ISOBAR, self.folder / "isobar")
        run = functools.partial(subprocess.run, cwd=ROOT, env={**os.environ, "PATH": str(self.folder)}, capture_output=True,
                                text=True, timeout=HANG_S)
        missing = "isobar-exec is neither next to isobar nor on the PATH (No such file or directory); build it with " \
                  "./test or -DISOBAR_BUILD_EXEC=ON\n"
        for command, what in (("run", "train a model as a plan prescribes, on real devices (isobar-exec)\n"),
                              ("export", "write a checkpoint as a Hugging Face model (isobar-exec)\n")):
            for option in ("--help", "-h"):
                result = run([alone, command, option])
                self.assertEqual((result.returncode, result.stdout, result.stderr),
                                 (0, f"{what}Its options are not known here: {missing}", ""))
            result = run([alone, command])
            self.assertEqual((result.returncode, result.stdout, result.stderr), (3, "", f"isobar: {missing}"))

    def test_a_missing_subcommand_is_a_fault_of_the_user(self):
        self.assertEqual(self.fault_of(), "A subcommand is required; see isobar --help")

    def test_an_unknown_subcommand_is_named(self):
        self.assertEqual(self.fault_of("simulat"),
                         '"simulat" is not a command here; did you mean simulate? If not, see isobar --help')
        self.assertEqual(self.fault_of("plan", "--mircobatches=4"),
                         '"--mircobatches=4" is not expected here; did you mean --microbatches? If not, see isobar plan --help')

    def test_lists_allocators_schedules_and_files(self):
        names = [row["name"] for row in json.loads(self.run_isobar("list", "allocators", "--json").stdout)]
        self.assertEqual(names, sorted(names))
        for name in ("even", "sky-dynamic", "sky-dynamic-fixed", "sky-optimal", "chain-dp"):
            self.assertIn(name, names)
        schedules = [row["name"] for row in json.loads(self.run_isobar("list", "schedules", "--json").stdout)]
        self.assertEqual(schedules, ["1f1b", "1f1b-interlaced", "1f1b-vocab-1", "1f1b-vocab-2", "dualpipe-v", "duplex", "gpipe", "greedy",
                                     "interleaved", "listed", "sequential",
                                     "v-half", "v-min", "zero-bubble-h1", "zero-bubble-h2", "zero-bubble-v"])
        self.assertIn("platforms/sky64.xml", self.run_isobar("list", "platforms").stdout)
        self.assertIn("workloads/gpt2_1.5b.yaml", self.run_isobar("list", "workloads").stdout)

    def test_lists_fit_a_terminal_unless_they_are_wide(self):
        for what in ("allocators", "schedules", "objectives"):
            listed = self.run_isobar("list", what).stdout
            for line in listed.splitlines():
                self.assertLessEqual(len(line), 80, line)
            table = self.run_isobar("list", what, "--wide").stdout.splitlines()
            rows = json.loads(self.run_isobar("list", what, "--json").stdout)
            self.assertEqual(len(table), 2 + len(rows))
            for line, row in zip(table[2:], rows):
                for entry in row.values():
                    self.assertIn(entry, line)
                    self.assertIn(entry.replace(" ", ""), "".join(listed.split()))

    def test_list_refuses_an_unknown_kind(self):
        self.assertEqual(self.fault_of("list", "planets"),
                         'list: "planets" is none of allocators, objectives, schedules, platforms, workloads')

    def test_a_dash_writes_only_the_output_to_standard_output(self):
        inputs = self.small_inputs()
        plan = self.run_isobar("plan", *inputs, "--allocator", "even", "-o", "-").stdout
        self.assertEqual(json.loads(plan)["allocator"], "even")
        simulate = "simulate", *inputs, "--plan", self.write("plan.json", plan), "-o", "-"
        self.assertEqual(json.loads(self.run_isobar(*simulate).stdout)["step_times_s"],
                         json.loads(self.run_isobar(*simulate, "--json").stdout)["step_times_s"])
        table = self.run_isobar("compare", *inputs, "--allocators", "even,chain-dp", "-o", "-").stdout
        self.assertEqual([row["allocator"] for row in csv.DictReader(io.StringIO(table))], ["chain-dp", "even"])
        self.assertTrue(self.run_isobar("platform", "generate", "star", "-o", "-").stdout.startswith("<?xml"))

    def test_a_dash_is_refused_where_a_file_is_needed(self):
        platform, workload = self.small_inputs()
        for option, arguments in (("PLATFORM", ("plan", "-", workload, "--allocator", "even")),
                                  ("--database", ("sweep", "sweep.yaml", "--database", "-"))):
            self.assertEqual(self.fault_of(*arguments), f'{option}: "-" is not a file here; write ./- for a file of that '
                                                        f"name; see isobar {arguments[0]} --help")
        self.assertEqual(self.fault_of("compare", platform, workload, "--keep", "-"),
                         '--keep: "-" is not a folder here; write ./- for a folder of that name; see isobar compare --help')

    def test_two_outputs_cannot_share_standard_output(self):
        self.assertEqual(self.fault_of("sweep", "examples/bandwidth_sweep.yaml", "--csv", "-", "--jsonl", "-",
                                       "--database", self.folder / "new.db"), "-: is written twice; name two files")

    def test_a_read_only_file_is_not_replaced(self):
        file = pathlib.Path(self.write("plan.json", "kept"))
        file.chmod(0o444)
        self.assertEqual(self.fault_of("plan", *self.small_inputs(), "--allocator", "even", "-o", file, expect=3),
                         f"{file}: is read-only; make it writable, or name another file")
        self.assertEqual(file.read_text(), "kept")
        self.assertEqual(sorted(os.listdir(self.folder)), ["plan.json", "small.xml", "small.yaml"])

    def test_a_refusal_names_the_help_of_its_command(self):
        self.assertEqual(self.fault_of("plan", "a.xml"), "WORKLOAD is required; see isobar plan --help")
        self.assertEqual(self.fault_of("plan", "--bar"), '"--bar" is not expected here; see isobar plan --help')
        self.assertEqual(self.fault_of("platform", "generate", "sky", "--foo"),
                         '"--foo" is not expected here; see isobar platform generate sky --help')
        self.assertEqual(self.fault_of("platform", "foo\x1b[31m"),
                         '"foo\\x1b[31m" is not a command here; see isobar platform --help')

    def test_help_that_cannot_be_written_is_a_fault_of_the_machine(self):
        for arguments in ("--help",), ("plan", "--help"), ("--version",):
            with open("/dev/full", "w") as full:
                result = subprocess.run([ISOBAR, *arguments], stdout=full, stderr=subprocess.PIPE, text=True)
            self.assertEqual((result.returncode, result.stderr), (3, "isobar: cannot write to standard output\n"))

    def test_a_file_of_another_kind_is_named_by_its_kind(self):
        platform, workload = self.small_inputs()
        plan = self.make_plan(platform, workload)
        result = str(self.folder / "result.json")
        self.run_isobar("simulate", platform, workload, "--plan", plan, "-o", result)
        even = "--allocator", "even"
        yaml = "a workload (YAML, such as workloads/bert160.yaml)"
        for arguments, fault in ((("plan", workload, platform, *even), f"{platform}: is a platform; name {yaml}"),
                                 (("plan", platform, plan, *even), f"{plan}: is a plan; name {yaml}"),
                                 (("platform", "show", workload), f"{workload}: is a workload; name a platform "
                                                                  "(SimGrid's XML, such as platforms/sky64.xml)"),
                                 (("report", plan), f"{plan}: is a plan; name a result (isobar simulate -o writes it)"),
                                 (("simulate", platform, workload, "--plan", result),
                                  f"{result}: is a result; name a plan (isobar plan -o writes it)")):
            self.assertEqual(self.fault_of(*arguments), fault)

    def test_the_objectives_are_listed_with_their_defaults(self):
        platform, workload = self.small_inputs()
        objectives = json.loads(self.run_isobar("list", "objectives", "--json").stdout)
        self.assertEqual([objective["name"] for objective in objectives],
                         ["step", "dtfm", "sequential", "bottleneck", "pipeline"])
        for objective in objectives:
            allocator = ["dtfm", "--replicas", 1] if objective["name"] == "dtfm" else ["even"]
            plan = self.json_of("plan", platform, workload, "--objective", objective["name"], "--allocator", *allocator)
            self.assertEqual(objective["defaults"], f"communication {plan['communication']}, schedule "
                                                    f"{plan['schedule']}, M = {plan['microbatches']}")

    def test_escape_sequences_and_newlines_of_names_are_shown_as_text(self):
        raw, shown = "a\x1b[31m\nb", r"a\x1b[31m\x0ab"
        platform, workload = self.small_inputs()
        odd = {}
        for ending, source in ((".xml", platform), (".yaml", workload)):
            odd[ending] = self.write(raw + ending, pathlib.Path(source).read_text())
        inputs = odd[".xml"], odd[".yaml"]
        missing = str(self.folder / raw)
        even = "--allocator", "even"
        plan, result = missing + ".json", missing + ".result.json"
        self.run_isobar("plan", *inputs, *even, "-o", plan)
        self.run_isobar("simulate", *inputs, "--plan", plan, "-o", result)
        for expect, arguments in ((2, ("plan", missing, workload, *even)),
                                  (2, ("plan", platform, missing, *even)),
                                  (2, ("plan", *inputs, "--allocator", raw)),
                                  (3, ("plan", *inputs, "--allocator", f"exec:{missing}")),
                                  (2, ("plan", *inputs, *even, "--objective", raw)),
                                  (2, ("plan", *inputs, *even, "--without", raw)),
                                  (2, ("plan", *inputs, *even, "-o", odd[".xml"])),
                                  (3, ("plan", *inputs, *even, "-o", missing + "/x")),
                                  (0, ("compare", *inputs, "--allocators", f"even,exec:{missing}")),
                                  (2, ("compare", *inputs, "--keep", plan)),
                                  (2, ("simulate", *inputs, "--plan", result)),
                                  (0, ("verify", *inputs, plan)),
                                  (0, ("platform", "show", odd[".xml"])),
                                  (0, ("report", result, "-o", missing + ".html")),
                                  (2, ("sweep", missing)),
                                  (3, ("sweep", "examples/bandwidth_sweep.yaml", "--database", missing + "/x")),
                                  (2, ("check", missing)),
                                  (2, ("list", raw)),
                                  (2, ("platform", "generate", "star", "--devices", raw)),
                                  (2, (raw,))):
            with self.subTest(arguments):
                printed = self.run_isobar(*arguments, expect=expect)
                self.assertIn(shown, printed.stdout + printed.stderr)
                self.assertNotIn("\x1b", printed.stdout + printed.stderr)
                if expect != 0:
                    self.assertEqual(len(printed.stderr.splitlines()), 1)

    def test_a_dtype_without_a_rate_on_some_devices_is_noted(self):
        platform = str(self.folder / "mixed.xml")
        self.run_isobar("platform", "generate", "sites", "--site-devices", "1xA10,2xT4", "-o", platform)
        half = self.write("half.yaml", GPT + "dtype: bf16\n")
        noted = f"isobar: {platform}: no bf16 rate of T4 (2); their float32 rate is used; set speed.bf16\n"
        plan = str(self.folder / "plan.json")
        for arguments in (("plan", platform, half, "--allocator", "even", "-o", plan),
                          ("compare", platform, half, "--allocators", "even"),
                          ("simulate", platform, half, "--plan", plan)):
            self.assertEqual(self.run_isobar(*arguments).stderr, noted)
        full = self.write("full.yaml", GPT)
        self.assertEqual(self.run_isobar("plan", platform, full, "--allocator", "even").stderr, "")
