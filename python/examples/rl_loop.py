#!/usr/bin/env python3
"""A trainer and two followers: each step's weights reach the followers as a difference, while they answer.

    python rl_loop.py [--trainer DAEMON] [--followers DAEMON DAEMON] [--versions 50] [--width 512]

The trainer has weights in fp32, and after each step it puts a bf16 copy of them. Each follower has a module of its own. Its
tensors never move, and the follower writes into them what changed. The trainer learns from the followers' answers to random questions.
Where no daemons are named, all use the daemon of this host: then followers read the trainer's replica, and nothing is moved.
"""

import argparse
import dataclasses
import queue
import statistics
import threading
import time

import torch

import tensorcast as tc

KEY = "examples/rl-loop"
LAYERS = 4
MIB = 1 << 20


def policy(width):
    """Layers by name. Weights as models have them: about N(0, 0.02)."""
    torch.manual_seed(0)
    return {f"layers.{n}.weight": torch.randn(width, width) * 0.02 for n in range(LAYERS)}


def answer(layers, questions):
    for weight in layers.values():
        questions = torch.tanh(questions @ weight.float().t()) + questions
    return questions


@dataclasses.dataclass
class Step:
    """What a follower did with one version."""

    revision: int
    pulled: int  # bytes that came from other nodes, without those of a difference
    by_difference: bool  # the node made the version of the one before
    written: tc.Written
    pause: float  # seconds
    questions: torch.Tensor
    answers: torch.Tensor


def follow(daemon, width, last_revision, steps):
    layers = {name: weight.bfloat16() for name, weight in policy(width).items()}
    try:
        with tc.connect(daemon) as store, store.follow(KEY) as versions:
            for version in versions:  # each is on this node before it is given
                written = version.apply(into=layers)
                pause = version.commit()
                sources = version.weights.transfer["sources"] if version.weights.transfer else []
                questions = torch.randn(8, width)
                steps.put(Step(version.revision, sum(source["bytes"] for source in sources if source["lane"] != "difference"),
                               any(source["lane"] == "difference" for source in sources), written, pause,
                               questions, answer(layers, questions)))
                if version.revision >= last_revision:
                    steps.put(layers)
                    return
    except BaseException as error:  # the trainer raises it
        steps.put(error)


def received(steps):
    step = steps.get()
    if isinstance(step, BaseException):
        raise step
    return step


def run(trainer, followers, versions, width, print=print):
    """Trains. Returns the steps of each follower."""
    layers = {name: weight.requires_grad_() for name, weight in policy(width).items()}
    optimizer = torch.optim.Adam(layers.values(), lr=2e-6)
    with tc.connect(trainer) as store:
        def put():
            state = {name: weight.detach().bfloat16() for name, weight in layers.items()}
            return state, store.put(state, key=KEY, base="auto", progress=False)

        state, published = put()
        puts = {published.key_revision: published}
        last = published.key_revision + versions - 1
        queues = [queue.Queue() for _ in followers]
        threads = [threading.Thread(target=follow, args=(daemon, width, last, steps)) for daemon, steps in zip(followers, queues)]
        for thread in threads:
            thread.start()
        done = [[] for _ in followers]
        begun = time.perf_counter()
        while published.key_revision < last:
            loss = torch.zeros(())
            for steps, queued in zip(done, queues):
                steps.append(received(queued))
                loss = loss + (answer(layers, steps[-1].questions) - steps[-1].questions).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            state, published = put()
            puts[published.key_revision] = published
            size = published.difference["image_bytes"] if published.difference else 0
            print(f"version {published.key_revision - last + versions}: loss {loss.item():.4f}, "
                  + (f"difference of {size / 1024:.1f} KiB" if size else f"no difference: {published.no_difference}"))
        for steps, queued in zip(done, queues):
            steps.append(received(queued))
        seconds = time.perf_counter() - begun
        for queued, thread in zip(queues, threads):
            held = received(queued)
            assert all(torch.equal(held[name], weight) for name, weight in state.items()), "a follower has other weights"
            thread.join()
        store.unbind(KEY)

    whole = sum(weight.numel() * 2 for weight in layers.values())
    print(f"{versions} versions of {whole / MIB:.1f} MiB in {seconds:.2f} s: {(versions - 1) / seconds:.1f} versions per second")
    for daemon, steps in zip(followers, done):
        moved = sum(step.pulled + (puts[step.revision].difference["image_bytes"] if step.by_difference else 0) for step in steps)
        pauses = [step.pause * 1e3 for step in steps]
        print(f"follower at {daemon or 'this host'}: {moved / MIB:.1f} MiB moved, {len(steps) * whole / MIB:.1f} as whole versions; "
              f"pause {statistics.median(pauses):.2f} ms per version, at most {max(pauses):.2f}")
    return done


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trainer", metavar="DAEMON", help="of the trainer's host; default: this host's")
    parser.add_argument("--followers", metavar="DAEMON", nargs=2, default=[None, None])
    parser.add_argument("--versions", type=int, default=50)
    parser.add_argument("--width", type=int, default=512)
    arguments = parser.parse_args()
    run(arguments.trainer, arguments.followers, arguments.versions, arguments.width)


if __name__ == "__main__":
    main()
