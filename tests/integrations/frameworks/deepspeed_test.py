"""DeepSpeed builds the parts of what isobar convert --to deepspeed writes, on ranks of this machine."""

import contextlib
import importlib.util
import io
import json
import os
import socket
import tempfile

from tests.integrations.frameworks.support import FrameworkTest, stand_in_for

stand_in_for("msgpack", "ninja", "psutil", "cpuinfo")

GPT = "model: gpt\nlayers: 6\nhidden: 64\nheads: 4\nvocabulary: 1000\nsequence: 32\nmicro_batch: 2\noptimizer: adamw\n"


def free_port():
    """A port that nobody listens to."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def part_of_rank(rank, ranks, port, folder):
    """What DeepSpeed builds on a rank: its first layer, the one after its last, and its stage and replica."""
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(ranks), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    import deepspeed
    import torch
    from deepspeed.runtime.config import DeepSpeedConfig
    from deepspeed.runtime.pipe.module import LayerSpec

    torch.set_num_threads(1)
    deepspeed.init_distributed("gloo", verbose=False)
    spec = importlib.util.spec_from_file_location("planned_pipeline", folder / "planned_pipeline.py")
    planned = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(planned)
    layers = [LayerSpec(torch.nn.Linear, 4, 4) for _ in range(planned.BOUNDS[-1])]
    module = planned.PlannedPipeline(layers=layers, topology=planned.topology(), loss_fn=torch.nn.MSELoss())
    place = planned.topology().get_coord(rank)
    config = DeepSpeedConfig(json.loads((folder / "deepspeed.json").read_text()), mpu=module.mpu())
    torch.distributed.barrier()
    return {"begin": module._local_start, "end": module._local_stop, "built": len(list(module.forward_funcs)), "stage": place.pipe,
            "replica": place.data, "micro_batch": config.train_micro_batch_size_per_gpu,
            "accumulation": config.gradient_accumulation_steps, "zero": config.zero_optimization_stage}


class DeepSpeed(FrameworkTest):
    def parts(self, ranks):
        """What part_of_rank() returns on each rank, in processes of their own."""
        folder, port = self.converted("deepspeed"), free_port()
        with tempfile.TemporaryDirectory() as results:
            children = []
            for rank in range(ranks):
                child = os.fork()
                if child == 0:
                    code = 1
                    with contextlib.suppress(BaseException), open(f"{results}/{rank}.log", "w", encoding="utf-8") as log, \
                            contextlib.redirect_stdout(log), contextlib.redirect_stderr(log):
                        part = part_of_rank(rank, ranks, port, folder)
                        with open(f"{results}/{rank}.json", "w", encoding="utf-8") as file:
                            json.dump(part, file)
                        code = 0
                    os._exit(code)
                children.append(child)
            codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
            logs = "".join(open(f"{results}/{rank}.log", encoding="utf-8").read() for rank in range(ranks))
            self.assertEqual(codes, [0] * ranks, logs)
            return [json.loads(io.open(f"{results}/{rank}.json", encoding="utf-8").read()) for rank in range(ranks)]

    def test_parts_are_the_stages_of_the_plan(self):
        self.plan("Et|t*4|tL", 3, text=GPT)
        parts = self.parts(3)
        self.assertEqual([(part["begin"], part["end"], part["built"]) for part in parts], [(0, 2, 2), (2, 6, 4), (6, 8, 2)])
        self.assertEqual((parts[0]["micro_batch"], parts[0]["accumulation"], parts[0]["zero"]), (2, 8, 0))

    def test_replicas_of_a_stage_are_neighbours_as_in_the_hostfile(self):
        plan = self.plan("Et*3|t*3L", 4, "--replicas", 2, "--sharded", "optimizer", "--microbatches", 8, text=GPT)
        parts = self.parts(4)
        from deepspeed.launcher.runner import fetch_hostfile

        slots = fetch_hostfile(str(self.folder / "deepspeed/hostfile"))
        hosts = [host for host, count in slots.items() for _ in range(count)]
        for part, host in zip(parts, hosts, strict=True):
            replica = plan["stages"][part["stage"]]["replicas"][part["replica"]]
            self.assertEqual(replica["shards"][0]["device"], host)
            self.assertEqual((part["begin"], part["end"]), ((0, 4), (4, 8))[part["stage"]])
        self.assertEqual((parts[0]["accumulation"], parts[0]["zero"]), (4, 1))
