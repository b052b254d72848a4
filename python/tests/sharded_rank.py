"""A rank of a process group over gloo, which puts and loads DTensors: `sharded_rank.py RANK RANKS FILE`.

It checks its results by assertions, and exits with 0 if all of them hold."""

import sys

import torch
import torch.distributed as dist
from torch.distributed._functional_collectives import all_reduce
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import tensorcast
import tensorcast.safetensors.torch
import tensorcast.torch

RANK, RANKS, FILE = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
WHOLE = torch.arange(15.0).reshape(5, 3)
INPUT = torch.ones(2, 4)


class Mlp(torch.nn.Module):
    def __init__(self, device="cpu"):
        super().__init__()
        self.up = torch.nn.Linear(4, 8, device=device)
        self.down = torch.nn.Linear(8, 5, device=device)  # a number of rows that no number of ranks divides

    def forward(self, tokens):
        return self.down(torch.relu(self.up(tokens)))


def refused(call, *words):
    try:
        call()
    except tensorcast.InvalidArgumentError as error:
        assert all(word in str(error) for word in ('put tensor "mine"', *words)), error
    else:
        raise AssertionError("it was put")


def put_of_dtensors(mesh):
    key = f"sharded/{RANKS}/{RANK}"
    put_by_all_ways = (
        lambda tensor: tensorcast.connect().put({"mine": tensor}, key=key),
        lambda tensor: tensorcast.torch.save_state_dict({"mine": tensor}, key),
        lambda tensor: tensorcast.safetensors.torch.save_file({"mine": tensor}, f"tc://{key}"),
    )
    sharded = distribute_tensor(WHOLE, mesh, [Shard(0)])
    partial = DTensor.from_local(WHOLE, mesh, [Partial()])
    whole = distribute_tensor(WHOLE, mesh, [Replicate()])
    in_flight = all_reduce(WHOLE, "sum", dist.group.WORLD)
    for put in put_by_all_ways:
        refused(lambda: put(partial), "Partial", "full_tensor()")
        if RANKS > 1:
            refused(lambda: put(sharded), "Shard", "full_tensor()")
        else:
            put(sharded)
        for tensor, expected in ((whole, WHOLE), (torch.nn.Parameter(whole), WHOLE), (sharded.full_tensor(), WHOLE), (in_flight, WHOLE * RANKS)):
            put(tensor)
            assert torch.equal(tensorcast.torch.state_dict(key)["mine"], expected)


def check_filled(module, expected, before):
    """Checks that the parameters have the class and placements that they have in `before`."""
    for name, parameter in module.named_parameters():
        assert type(parameter) is type(before[name]) and isinstance(parameter, torch.nn.Parameter), name
        assert parameter.requires_grad
        if isinstance(parameter, DTensor):
            assert parameter.placements == before[name].placements and parameter.device_mesh == before[name].device_mesh, name
            parameter = parameter.full_tensor()
        assert torch.equal(parameter, expected.get_parameter(name)), name
    torch.testing.assert_close(module(INPUT), expected(INPUT))


def load_of_sharded_modules(mesh):
    torch.manual_seed(7)
    trained = Mlp()
    if RANK == 0:
        tensorcast.torch.save_model(trained, "sharded/mlp")
    dist.barrier()
    plan = {"up": ColwiseParallel(), "down": RowwiseParallel()}
    for assign in (True, False):
        for shard in (fully_shard, lambda module: parallelize_module(module, mesh, plan)):
            torch.manual_seed(100)
            module = Mlp()
            shard(module)
            before = dict(module.named_parameters())
            optimizer = torch.optim.SGD(module.parameters(), lr=1.0)
            assert tensorcast.torch.load_model(module, "sharded/mlp", assign=assign) == ([], [])
            check_filled(module, trained, before)
            # Check again after a run of FSDP2 and a step of the optimizer, which holds the parameters.
            module(INPUT).sum().backward()
            optimizer.step()
            assert tensorcast.torch.load_model(module, "sharded/mlp", assign=assign) == ([], [])
            check_filled(module, trained, before)
            module(INPUT).sum().backward()
            optimizer.step()
            assert not torch.equal(module.up.bias.full_tensor(), trained.up.bias)


def load_of_modules_on_meta(mesh):
    module = Mlp("meta")
    fully_shard(module)
    before = dict(module.named_parameters())
    assert tensorcast.torch.load_model(module, "sharded/mlp") == ([], [])
    trained = Mlp()
    tensorcast.torch.load_model(trained, "sharded/mlp")
    check_filled(module, trained, before)


def load_of_two_dimensions():
    mesh = init_device_mesh("cpu", (2, RANKS // 2) if RANKS > 2 else (1, RANKS), mesh_dim_names=("data", "model"))
    trained, module = Mlp(), Mlp()
    tensorcast.torch.load_model(trained, "sharded/mlp")
    parallelize_module(module, mesh["model"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
    fully_shard(module, mesh=mesh["data"])
    before = dict(module.named_parameters())
    assert tensorcast.torch.load_model(module, "sharded/mlp") == ([], [])
    check_filled(module, trained, before)


def missing_parameters_are_not_filled_by_others():
    module = torch.nn.Sequential(torch.nn.Linear(3, 3, bias=False), torch.nn.Linear(3, 3, bias=False))
    if RANK == 0:
        tensorcast.torch.save_state_dict({"0.weight": module[0].weight}, "sharded/first")
    dist.barrier()
    fully_shard(module)
    try:
        tensorcast.torch.load_model(module, "sharded/first")
    except RuntimeError as error:
        assert "missing ['1.weight']" in str(error), error
    else:
        raise AssertionError("it was loaded")


dist.init_process_group("gloo", init_method=f"file://{FILE}", rank=RANK, world_size=RANKS)
world = init_device_mesh("cpu", (RANKS,))
put_of_dtensors(world)
load_of_sharded_modules(world)
load_of_modules_on_meta(world)
load_of_two_dimensions()
missing_parameters_are_not_filled_by_others()
dist.barrier()
dist.destroy_process_group()
