import json

from tests.cli.support import CommandTest


class Command(CommandTest):
    def test_version_names_isobar_and_simgrid(self):
        self.assertRegex(self.run_isobar("--version").stdout, r"^isobar 0\.\d+\.\d+ \(SimGrid \d+\.\d+(\.\d+)?\)\n$")

    def test_every_help_has_an_example(self):
        for command in ([], ["plan"], ["simulate"], ["compare"], ["list"], ["platform"], ["verify"], ["workload"]):
            self.assertRegex(self.run_isobar(*command, "--help").stdout, r"Examples?:\n  isobar ")

    def test_an_unknown_option_is_a_fault_of_the_user(self):
        fault = self.fault_of("compare", "a.xml", "b.yaml", "--alocators", "even")
        self.assertIn("--alocators", fault)
        self.assertEqual(len(fault.splitlines()), 1)

    def test_a_missing_subcommand_is_a_fault_of_the_user(self):
        self.assertEqual(self.fault_of(), "A subcommand is required; see isobar --help")

    def test_an_unknown_subcommand_is_named(self):
        self.assertEqual(self.fault_of("simulat"), '"simulat" is no command here; see isobar --help')

    def test_lists_what_there_is_to_choose_from(self):
        names = [row["name"] for row in json.loads(self.run_isobar("list", "allocators", "--json").stdout)]
        self.assertEqual(names, sorted(names))
        for name in ("even", "sky-dynamic", "sky-dynamic-fixed", "sky-optimal", "chain-dp"):
            self.assertIn(name, names)
        schedules = [row["name"] for row in json.loads(self.run_isobar("list", "schedules", "--json").stdout)]
        self.assertEqual(schedules, ["sequential", "gpipe", "1f1b"])
        self.assertIn("platforms/sky64.xml", self.run_isobar("list", "platforms").stdout)
        self.assertIn("workloads/gpt2_1.5b.yaml", self.run_isobar("list", "workloads").stdout)

    def test_list_refuses_what_it_does_not_know(self):
        self.assertEqual(self.fault_of("list", "planets"),
                         'list: "planets" is none of allocators, schedules, platforms, workloads')
