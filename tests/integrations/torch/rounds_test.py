"""Rounds of workers that are processes of this machine: what they must equal, and what is refused."""

import copy
import itertools
import json
import os
import select
import subprocess
import sys
import traceback

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from isobar_torch.document import InputError
from isobar_torch.outer_codec import BLOCK, CHUNK, codec_of
from isobar_torch.rounds import Rounds, RoundsPlan, Worker, read_rounds
from tests.docs.pages import ROOT, blocks_of
from tests.integrations.torch.support import ISOBAR, IsobarTorchTest

CODECS = ("fp32", "bf16", "int8", "int4", "top-k 0.1", "top-k 0.1 2-bit")
HANG_S = 300


def plan_of(steps=(4,), fragments=1, delay=0, codec="fp32", rate=0.7, momentum=0.9, mixing=0.0, layers=5):
    """A plan of workers w0, w1, … with these steps of a round."""
    workers = tuple(Worker(f"w{i}", each) for i, each in enumerate(steps))
    return RoundsPlan("rounds.json", max(steps), fragments, delay, codec_of(codec), rate, momentum, mixing, workers, layers)


def make_model(seed=1):
    """Five layers, of which one has no parameters."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(6, 40), nn.Sequential(nn.Tanh(), nn.Linear(40, 40)), nn.Tanh(), nn.Linear(40, 40),
                             nn.Linear(40, 3))


def train_step(model, optimizer, worker, step):
    """A step on samples of the worker. Returns the loss."""
    inputs = torch.randn(8, 6, generator=torch.Generator().manual_seed(1000 * step + worker))
    optimizer.zero_grad()
    loss = (model(inputs) - inputs[:, :3].sin()).square().mean()
    loss.backward()
    optimizer.step()
    return loss.item()


def vector(model):
    """A copy of the model's parameters as one vector."""
    return torch.cat([each.detach().flatten() for each in model.parameters()])


def whole(rounds):
    """A copy of the outer parameters of a whole model, in the model's order."""
    found = rounds.outer_parameters()
    return torch.cat([found[name].flatten() for name in sorted(found, key=lambda name: (name.split(".")[0], "bias" in name))])


class RoundsTest(IsobarTorchTest):
    """Runs workers as processes."""

    def ranks(self, count, body):
        """What `body(rank)` returns in each of `count` processes of a group; the text of a fault that it raises."""
        folder = self.folder / f"ranks-{len(list(self.folder.iterdir()))}"
        folder.mkdir()
        children = []
        for rank in range(count):
            child = os.fork()
            if child == 0:
                code = 1
                try:
                    dist.init_process_group("gloo", store=dist.FileStore(str(folder / "store"), count), rank=rank, world_size=count)
                    try:
                        result = body(rank)
                    except (InputError, RuntimeError) as fault:
                        result = str(fault)
                    torch.save(result, folder / f"{rank}.pt")
                    code = 0
                except BaseException:  # noqa: BLE001  a child must not return into unittest
                    traceback.print_exc()
                os._exit(code)
            children.append(child)
        self.assertEqual([os.waitpid(each, 0)[1] for each in children], [0] * count)
        return [torch.load(folder / f"{rank}.pt") for rank in range(count)]

    def trained(self, plan, steps, data=lambda rank: rank, inner=0.05):
        """Trains whole models by plain SGD, a process for each worker. Returns each one's outer parameters."""
        def body(rank):
            model = make_model(seed=rank)  # all begin with those of worker 0
            rounds = Rounds(plan, dict(enumerate(model)), rank)
            optimizer = torch.optim.SGD(model.parameters(), lr=inner)
            for step in range(steps[rank] if isinstance(steps, tuple) else steps):
                train_step(model, optimizer, data(rank), step)
                rounds.step()
            rounds.finish()
            return whole(rounds)
        return self.ranks(len(plan.workers), body)

    def assert_near(self, found, expected, delta):
        """Vectors that differ by at most delta, and that are not where training began."""
        self.assertLessEqual((found - expected).abs().max().item(), delta)
        self.assertGreater((found - vector(make_model(seed=0))).abs().max().item(), 0.01)


class Equalities(RoundsTest):
    """What rounds must equal."""

    def test_one_worker_without_momentum_trains_plainly(self):
        def losses(rounds_steps):
            def body(rank):
                model = make_model()
                optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
                rounds = None
                if rounds_steps:
                    rounds = Rounds(plan_of((rounds_steps,), rate=1, momentum=0), dict(enumerate(model)), rank)
                found = []
                for step in range(200):
                    found.append(train_step(model, optimizer, 0, step))
                    if rounds:
                        rounds.step()
                return found
            return self.ranks(1, body)[0]
        plain = losses(0)
        self.assertLess(plain[-1], plain[0] / 3)
        for steps in (1, 7):
            for each, other in zip(losses(steps), plain, strict=True):
                self.assertAlmostEqual(each, other, delta=1e-6)

    def test_rounds_of_one_step_are_synchronous_training(self):
        for count, rate, momentum in ((2, 1, 0), (4, 0.7, 0), (2, 0.7, 0.9)):
            with self.subTest(count=count, rate=rate, momentum=momentum):
                model = make_model(seed=0)
                optimizer = torch.optim.SGD(model.parameters(), lr=rate * 0.05, momentum=momentum, nesterov=momentum > 0)
                for step in range(20):
                    inputs = torch.cat([torch.randn(8, 6, generator=torch.Generator().manual_seed(1000 * step + worker))
                                        for worker in range(count)])
                    optimizer.zero_grad()
                    (model(inputs) - inputs[:, :3].sin()).square().mean().backward()
                    optimizer.step()
                plan = plan_of((1,) * count, rate=rate, momentum=momentum)
                self.assert_near(self.trained(plan, 20)[0], vector(model), 1e-6)

    def test_equal_workers_are_one_worker(self):
        one = self.trained(plan_of((6,), 2, 1), 12, data=lambda _: 0)[0]
        for count in (2, 3, 8):
            for found in self.trained(plan_of((6,) * count, 2, 1), 12, data=lambda _: 0):
                self.assertTrue(torch.equal(found, one))

    def test_rounds_of_unequal_steps_are_diloco(self):
        steps = (5, 3, 4)
        outer = nn.Parameter(vector(make_model(seed=0)))
        optimizer = torch.optim.SGD([outer], lr=0.7, momentum=0.9, nesterov=True)
        for each in range(3):
            moved = torch.zeros_like(outer)
            for worker, own in enumerate(steps):
                model = make_model()
                nn.utils.vector_to_parameters(outer.detach().clone(), model.parameters())
                inner = torch.optim.SGD(model.parameters(), lr=0.05)
                for step in range(each * own, (each + 1) * own):
                    train_step(model, inner, worker, step)
                moved += outer.detach() - vector(model)
            outer.grad = moved / len(steps)
            optimizer.step()
        self.assert_near(self.trained(plan_of(steps), (15, 9, 12))[0], outer.detach(), 1e-6)

    def test_fragments_of_workers_with_unequal_steps_meet(self):
        first, *others = self.trained(plan_of((8, 3, 4), 3, 2, "int8"), (24, 9, 12))
        self.assert_near(first, vector(make_model(seed=0)), 10)
        for each in others:
            self.assertTrue(torch.equal(each, first))

    def test_fragments_with_a_delay_and_mixing_are_streaming_diloco(self):
        period, delay, mixing = 6, 2, 0.25
        models = [make_model(seed=0) for _ in range(2)]
        inner = [torch.optim.SGD(model.parameters(), lr=0.05) for model in models]
        fragments = [(0, 1, 4, 5), (2, 3, 6, 7)]  # parameters of layers 0 and 3, 1 and 4
        outer = [nn.Parameter(each.detach().clone()) for each in models[0].parameters()]
        optimizers = [torch.optim.SGD([outer[i] for i in own], lr=0.7, momentum=0.9, nesterov=True) for own in fragments]
        own = [list(model.parameters()) for model in models]
        sent = {}
        for step in range(1, 21):
            for worker, model in enumerate(models):
                train_step(model, inner[worker], worker, step - 1)
            for f, each in enumerate(fragments):
                if (step - (2, 4)[f]) % period == 0:
                    sent[f] = step + delay, [sum(outer[i].detach() - own[k][i].detach() for k in range(2)) / 2 for i in each]
                if f in sent and (sent[f][0] == step or step == 20):  # the end takes what is on its way
                    for i, mean in zip(each, sent.pop(f)[1], strict=True):
                        outer[i].grad = mean
                    optimizers[f].step()
                    with torch.no_grad():
                        for k, i in itertools.product(range(2), each):
                            own[k][i].copy_(mixing * own[k][i] + (1 - mixing) * outer[i])
        plan = plan_of((period,) * 2, 3, delay, mixing=mixing)
        self.assert_near(self.trained(plan, 20)[1], torch.cat([each.detach().flatten() for each in outer]), 1e-6)

    def test_workers_have_the_same_outer_bits_after_each_step(self):
        for codec in CODECS:
            with self.subTest(codec=codec):
                plan = plan_of((4,) * 3, 2, 1, codec)

                def body(rank, plan=plan):
                    model = make_model()
                    rounds = Rounds(plan, dict(enumerate(model)), rank)
                    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
                    outer, own = [], []
                    for step in range(9):
                        train_step(model, optimizer, rank, step)
                        rounds.step()
                        outer.append(whole(rounds))
                        own.append(vector(model))
                    return torch.stack(outer), torch.stack(own)
                (outer, own), *others = self.ranks(3, body)
                changes = (outer[1:] != outer[:-1]).any(dim=1).tolist()
                self.assertEqual(changes, [step in (3, 5, 7, 9) for step in range(2, 10)])
                for other_outer, other_own in others:
                    self.assertTrue(torch.equal(outer, other_outer))
                    self.assertFalse(torch.equal(own, other_own))

    def test_what_top_k_drops_is_sent_later(self):
        def body(rank, codec):
            model = make_model()
            rounds = Rounds(plan_of((2,), 2, codec=codec, rate=1, momentum=0), dict(enumerate(model)), rank)
            begin = rounds.state_dict()["outer"]["3.weight"].clone()
            total = torch.zeros_like(begin)
            for step in range(30):
                moved = torch.randn(begin.shape, generator=torch.Generator().manual_seed(step)) * 0.01
                total += moved
                with torch.no_grad():
                    model[3].weight.sub_(moved)
                rounds.step()
            state = rounds.state_dict()
            return begin, state["outer"]["3.weight"], state["residual"]["3.weight"], total
        for codec in ("top-k 0.05", "top-k 0.05 2-bit"):
            begin, outer, residual, total = self.ranks(1, lambda rank, codec=codec: body(rank, codec))[0]
            self.assertLessEqual((begin - outer + residual - total).abs().max().item(), 1e-6)
            self.assertGreater(residual.abs().max().item(), 0.01)

    def test_resumed_rounds_have_the_same_bits(self):
        for codec in ("int8", "top-k 0.1"):
            with self.subTest(codec=codec):
                plan = plan_of((5,) * 2, 2, 2, codec, mixing=0.5)

                def body(rank, plan=plan):
                    def trainer(seed):
                        model = make_model(seed)
                        return model, torch.optim.SGD(model.parameters(), 0.05, 0.9), Rounds(plan, dict(enumerate(model)), rank)

                    def train(model, optimizer, rounds, steps):
                        for step in steps:
                            train_step(model, optimizer, rank, step)
                            rounds.step()
                    first = trainer(1)
                    train(*first, range(6))
                    saved = copy.deepcopy([each.state_dict() for each in first])
                    train(*first, range(6, 19))
                    second = trainer(2)
                    for each, state in zip(second, saved, strict=True):
                        each.load_state_dict(state)
                    train(*second, range(6, 19))
                    return saved[2], *(f(each[i]) for each in (first, second) for f, i in ((vector, 0), (whole, 2)))
                for state, own, outer, resumed, resumed_outer in self.ranks(2, body):
                    self.assertEqual(set(state["due"].values()), {7})
                    self.assertTrue(torch.equal(own, resumed))
                    self.assertTrue(torch.equal(outer, resumed_outer))


class Delays(RoundsTest):
    """What passes while workers compute."""

    def test_a_worker_computes_while_another_has_not_sent_yet(self):
        reader, writer = os.pipe()

        def body(rank):
            model = make_model()
            rounds = Rounds(plan_of((4, 4), delay=3), dict(enumerate(model)), rank)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
            for step in range(7):
                if (rank, step) == (1, 3) and not select.select([reader], [], [], HANG_S)[0]:
                    raise RuntimeError("worker 0 waits for worker 1")
                train_step(model, optimizer, rank, step)
                rounds.step()
                if (rank, step) == (0, 5):
                    os.write(writer, b"worker 0 has taken two steps since it sent")
            return whole(rounds)
        first, second = self.ranks(2, body)
        os.close(reader)
        os.close(writer)
        self.assertTrue(torch.equal(first, second))
        self.assert_near(first, first, 0)


class Divisions(RoundsTest):
    """Workers of several ranks."""

    def moved(self, plan, ranks):
        """The outer parameters, by name, of ranks (worker, layers) whose parameters move by what worker, step and layer say."""
        def body(rank):
            worker, layers = ranks[rank]
            model = make_model(seed=worker)
            rounds = Rounds(plan, {each: model[each] for each in layers}, worker)
            for step in range(8):
                for layer in layers:
                    generator = torch.Generator().manual_seed(step * 100 + worker * 10 + layer)
                    with torch.no_grad():
                        for each in model[layer].parameters():
                            each.sub_(torch.randn(each.shape, generator=generator) * 0.1)
                rounds.step()
            rounds.finish()
            return {name: each.clone() for name, each in rounds.outer_parameters().items()}
        found = {}
        for (_, layers), parts in zip(ranks, self.ranks(len(ranks), body), strict=True):
            self.assertEqual({int(name.split(".")[0]) for name in parts}, {each for each in layers if each != 2})
            for name, part in parts.items():
                self.assertTrue(torch.equal(found.setdefault(name, part), part), name)
        return found

    def test_pipelines_of_unlike_cuts_and_replicas_exchange_as_whole_models_do(self):
        plan = plan_of((4,) * 3, 2, 1)
        expected = self.moved(plan, [(0, range(5)), (1, range(5)), (2, range(5))])
        self.assertEqual(len(expected), 8)
        for ranks in ([(2, range(5)), (1, range(3, 5)), (0, range(2)), (1, range(3)), (0, range(2, 5))],
                      [(0, range(5)), (0, range(5)), (1, range(5)), (2, range(5)), (2, range(5)), (1, range(5))]):
            found = self.moved(plan, ranks)
            self.assertEqual(found.keys(), expected.keys())
            for name, part in found.items():
                self.assertTrue(torch.equal(part, expected[name]), name)

    def refusal(self, ranks, plan=None, change=lambda rank, model: None):
        """The line that all ranks raise."""
        def body(rank):
            worker, layers = ranks[rank]
            model = make_model()
            change(rank, model)
            layers = {each: model[each % 5] for each in layers}
            Rounds(plan(rank) if plan else plan_of((4, 4)), layers, worker)
        found = self.ranks(len(ranks), body)
        self.assertEqual(len(set(found)), 1, found)
        return found[0]

    def test_ranks_that_do_not_fit_together(self):
        every = range(5)
        two = [(0, every), (1, every)]

        def widen(rank, model):
            if rank == 1:
                model[3] = nn.Linear(40, 41)

        def divide(_, model):
            fully_shard(model[3], mesh=init_device_mesh("cpu", (2,)))
        self.assertEqual(self.refusal([(0, every), (2, every)]), "rounds.json: workers: rank 1 is of worker 2; there are 0 to 1")
        self.assertEqual(self.refusal([(0, every), (1, range(6))]), "rounds.json: rank 1 has layer 5; the plan has 0 to 4")
        self.assertEqual(self.refusal([(0, every), (1, range(4))]),
                         "rounds.json: layer 4: no rank of worker w1 has it; give its ranks all layers")
        self.assertEqual(self.refusal([(0, every), (1, every), (1, range(2))]),
                         "rounds.json: layer 0: 2 replicas in worker w1, and 1 in w0; rounds in torch need as many in each")
        self.assertEqual(self.refusal(two, change=widen), 'rounds.json: layer 3: rank 1 has {"weight": [41, 40], "bias": [41]}, '
                         'and rank 0 {"weight": [40, 40], "bias": [40]}; all workers train the same model')
        self.assertEqual(self.refusal(two, lambda rank: plan_of((4, 4), delay=rank)),
                         "rounds.json: rank 1 has another plan of rounds than rank 0; give all ranks the same")
        self.assertEqual(self.refusal(two, change=lambda rank, model: model[3].double()), "rank 0: parameter weight of layer 3 is "
                         "torch.float64; rounds need torch.float32, with autocast for others")
        self.assertEqual(self.refusal(two, change=divide), "rank 0: parameter weight of layer 3 is divided; rounds need whole "
                         "parameters, without FSDP and shards")

    def test_a_state_of_other_rounds(self):
        def body(rank):
            model = make_model()
            rounds = Rounds(plan_of((4, 4), 2), dict(enumerate(model)), rank)
            state = rounds.state_dict()
            other = Rounds(plan_of((4, 4), 2, codec="int8"), dict(enumerate(model)), rank)
            try:
                other.load_state_dict(state)
            except InputError as fault:
                first = str(fault)
            del state["outer"]["0.bias"]
            try:
                rounds.load_state_dict(state)
            except InputError as fault:
                return first, str(fault)
        for found in self.ranks(2, body):
            self.assertEqual(found, ("rounds.json: codec int8; the state has fp32",
                                     "rounds.json: the state has other parameters than this rank; give each rank its own"))

    def test_outer_gradients_that_are_not_finite(self):
        def body(rank, value, codec):
            model = make_model()
            rounds = Rounds(plan_of((1,), 2, codec=codec), dict(enumerate(model)), rank)
            with torch.no_grad():
                model[4].bias[1] = value
            rounds.step()
        self.assertEqual(self.ranks(1, lambda rank: body(rank, float("nan"), "fp32")),
                         ["the outer gradient of fragment 0 is not finite after step 1; lower the learning rate"])
        self.assertEqual(self.ranks(1, lambda rank: body(rank, 7e5, "int4")), ["the outer gradient of fragment 0 after step 1 has a "
                         "block whose scale is 100000, too large for float16; use int8 or bf16"])


class Codecs(IsobarTorchTest):
    """Sizes and errors of encodings."""

    SIZES = (1, 2, 7, 1023, 1024, 1025, 4095, 4096, 4097, 10_000)

    def values(self, count):
        """Values whose sizes differ from block to block."""
        generator = torch.Generator().manual_seed(count)
        return torch.randn(count, generator=generator) * 10 ** (torch.arange(count) // 500 % 10 - 7.0)

    def decoded(self, name, values):
        """Values, encoded and decoded; also from bytes that begin anywhere in a buffer."""
        codec = codec_of(name)
        encoded = codec.encode(values)
        self.assertEqual((encoded.dtype, len(encoded)), (torch.uint8, codec.size(len(values))))
        shifted = torch.cat((torch.zeros(1, dtype=torch.uint8), encoded))[1:]
        found = codec.decode(shifted, len(values))
        self.assertEqual((found.dtype, found.shape), (torch.float32, values.shape))
        self.assertTrue(torch.equal(found, codec.decode(encoded, len(values))))
        return found

    def test_sizes_are_those_of_plans(self):
        sizes = {name: [codec_of(name).size(each) for each in (1, 1024, 1025, 4096, 4099)] for name in CODECS}
        self.assertEqual(sizes, {
            "fp32": [4, 4096, 4100, 16384, 16396], "bf16": [2, 2048, 2050, 8192, 8198], "int8": [5, 1028, 1033, 4112, 4119],
            "int4": [3, 514, 517, 2056, 2060],
            # 410 of 4096 values, 103 of 1024 and 1025, 1 of 3.
            "top-k 0.1": [4, 361, 361, 1435, 1439], "top-k 0.1 2-bit": [4, 183, 183, 720, 724]})

    def test_dense_codecs_err_by_half_a_step(self):
        for count in self.SIZES:
            values = self.values(count)
            self.assertTrue(torch.equal(self.decoded("fp32", values), values))
            self.assertTrue(((self.decoded("bf16", values) - values).abs() <= values.abs() * 2**-8).all())
            # float16 scales are rounded up, to a multiple of 2^-24 where they are small.
            for name, levels, slack, step in (("int8", 127, 1e-5, 0), ("int4", 7, 2**-10, 2**-24)):
                errors = (self.decoded(name, values) - values).abs()
                for block, own in zip(errors.split(BLOCK), values.split(BLOCK), strict=True):
                    scale = own.abs().max().item() / levels * (1 + slack) + step
                    self.assertLessEqual(block.max().item(), scale / 2)

    def test_blocks_of_zeros_and_of_the_smallest_values(self):
        for name in CODECS:
            self.assertTrue(torch.equal(self.decoded(name, torch.zeros(1030)), torch.zeros(1030)))
            tiny = torch.full((9,), 1e-44)
            self.assertLessEqual((self.decoded(name, tiny) - tiny).abs().max().item(), 1e-7)

    def test_top_k_keeps_the_largest_values_of_each_chunk(self):
        for count in self.SIZES:
            values = self.values(count)
            found, signs = self.decoded("top-k 0.1", values), self.decoded("top-k 0.1 2-bit", values)
            for own, kept, coarse in zip(values.split(CHUNK), found.split(CHUNK), signs.split(CHUNK), strict=True):
                number = -(-len(own) // 10)
                least = own.abs().sort(descending=True).values[number - 1]
                self.assertTrue(torch.equal(kept != 0, own.abs() >= least))
                self.assertTrue(torch.equal(kept[kept != 0], own[kept != 0].bfloat16().float()))
                self.assertTrue(torch.equal(coarse.sign(), kept.sign()))
                self.assertLessEqual(len(coarse.abs().unique()), 3)  # 0, s and s / 3


class Files(IsobarTorchTest):
    """Plans of rounds that Isobar writes, and wrong ones."""

    def made(self, *options):
        """Writes rounds.json. Returns its content."""
        self.isobar("plan", ROOT / "platforms/two_sites.xml", ROOT / "examples/tiny_gpt.yaml", "--allocator", "even", "--outer", 20,
                    *options, "-o", "rounds.json")
        return json.loads((self.folder / "rounds.json").read_text())

    def test_a_plan_of_isobar(self):
        self.made("--fragments", 3, "--delay", 2, "--outer-codec", "top-k 0.01 2-bit", "--outer-sync", "direct")
        plan = read_rounds("rounds.json")
        expected = plan_of((20, 20), 3, 2, "top-k 0.01 2-bit", layers=8)
        workers = (Worker("site-0", 20), Worker("site-1", 20))
        self.assertEqual({**vars(expected), "workers": workers}, vars(plan))
        self.assertEqual(plan.snapshots(0), [7, 14, 20])

    def test_wrong_files(self):
        made = self.made()

        def refusal(change):
            content = copy.deepcopy(made)
            change(content)
            self.write("wrong.json", json.dumps(content))
            with self.assertRaises(InputError) as caught:
                read_rounds("wrong.json")
            return str(caught.exception)

        def worker(content, **keys):
            content["workers"][1].update(keys)
        for text, change in (
                ("schema: isobar-plan/2; use isobar-rounds/1", lambda content: content.update(schema="isobar-plan/2")),
                ("outer.steps: 0 is not a whole number from 1 to 100000", lambda content: content["outer"].update(steps=0)),
                ("outer.codec: int3; use fp32, bf16, int8, int4, or top-k and the part of the values that travel, above 0 and at most "
                 "1, such as top-k 0.01 or top-k 0.01 2-bit", lambda content: content["outer"].update(codec="int3")),
                ("outer.codec: top-k 1.5; use fp32, bf16, int8, int4, or top-k and the part of the values that travel, above 0 and at "
                 "most 1, such as top-k 0.01 or top-k 0.01 2-bit", lambda content: content["outer"].update(codec="top-k 1.5")),
                ("outer: momentum is missing", lambda content: content["outer"].pop("momentum")),
                ("outer.momentum: 1 is not below 1", lambda content: content["outer"].update(momentum=1)),
                ("outer.mixing: -1 is not a number from 0 to 1", lambda content: content["outer"].update(mixing=-1)),
                ("outer.algorithm: tree; use ring or direct or server", lambda content: content["outer"].update(algorithm="tree")),
                ("outer.weights: unknown key; remove it", lambda content: content["outer"].update(weights=1)),
                ("workers[1].name: site-0 is the name of another worker too; give each its own",
                 lambda content: worker(content, name="site-0")),
                ("workers[1].steps: 21, more than outer.steps, 20", lambda content: worker(content, steps=21)),
                ("workers[1].steps: 20, no more than outer.delay, 20", lambda content: content["outer"].update(delay=20)),
                ("workers[1].steps: 3, fewer than outer.fragments, 4",
                 lambda content: (content["outer"].update(fragments=4), worker(content, steps=3))),
                ("workers[1].plan: 7 layers; the plan of site-0 has 8",
                 lambda content: content["workers"][1]["plan"]["stages"][-1].update(last_layer=6)),
                ("workers[1].plan.stages: has no stages; a worker needs a feasible plan",
                 lambda content: content["workers"][1]["plan"].update(stages=[])),
                ("workers: has 1; rounds need 2 or more", lambda content: content["workers"].pop())):
            with self.subTest(text=text):
                found = refusal(change)
                if "delay, 20" in text:
                    text = text.replace("[1]", "[0]")
                self.assertEqual(found, f"wrong.json:1: {text}")


class Page(IsobarTorchTest):
    """docs/rounds.md"""

    def test_commands_of_the_page_run(self):
        commands = self.folder / "bin"
        commands.mkdir()
        (commands / "isobar").symlink_to(ISOBAR)
        (commands / "torchrun").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m torch.distributed.run "$@"\n')
        (commands / "torchrun").chmod(0o755)
        for name in ("examples", "platforms"):
            (self.folder / name).symlink_to(ROOT / name)
        blocks = [each for each in blocks_of((ROOT / "docs/rounds.md").read_text())
                  if each.run_by == "tests/integrations/torch/rounds_test.py"]
        self.assertEqual(len(blocks), 1)
        done = subprocess.run(["bash", "-euc", blocks[0].text], capture_output=True, text=True, check=False, timeout=HANG_S,
                              env={**os.environ, "PATH": f"{commands}{os.pathsep}{os.environ['PATH']}"})
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        rows = [line.split() for line in done.stdout.splitlines() if line.split()[:1] in (["0"], ["1"])]
        self.assertEqual(len(rows), 2, done.stdout)
        self.assertLess(float(rows[1][2]), float(rows[0][2]))
