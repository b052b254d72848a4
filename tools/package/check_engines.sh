#!/usr/bin/env bash
# Installs the Python wheel with the newest PyTorch, transformers, safetensors and checkpoint-engine into a fresh environment,
# runs there the package's tests that need them and the documentation's examples, and compares the recorded interfaces of the engines
# with their newest wheels:
#
#   tools/package/check_engines.sh --wheels DIR --environment DIR
#
# It downloads 4 GB, so it is not a part of `make test`. It reads vLLM and SGLang but does not run them: their wheels need
# CUDA.
set -euo pipefail
source_dir=$(cd "$(dirname "$0")/../.." && pwd)

wheels='' environment=''
die() { echo "check-engines: error: $*" >&2; exit 1; }

while (($#)); do
  case $1 in
    --wheels) wheels=$(realpath "${2:?}"); shift 2 ;;
    --environment) environment=$(realpath -m "${2:?}"); shift 2 ;;
    *) die "unknown argument $1; see the head of $0" ;;
  esac
done
[[ -n $wheels && -n $environment ]] || die "--wheels and --environment are needed"

interpreter=$(printf '%s\n' "$HOME"/.pyenv/versions/3.1[2-9].*/bin/python3 /usr/bin/python3.1[2-9] | grep -v '[*[]' | sort -V | tail -n 1 || true)
[[ -x $interpreter ]] || die "there is no Python 3.12 or newer; install one from the distribution or with pyenv"
rm -rf "$environment"
"$interpreter" -m venv "$environment"
pip() { "$environment/bin/pip" --disable-pip-version-check --quiet "$@"; }
pip install torch transformers safetensors numpy ml_dtypes pyzmq pytest "$wheels"/tensorcast_store-*-cp312-abi3-*.whl
"$environment/bin/python" -c 'import torch, transformers, safetensors
print("check-engines: torch", torch.__version__, "transformers", transformers.__version__, "safetensors", safetensors.__version__)'

failed=0
# The tests use the package and the program of the wheel.
(cd "$source_dir/python/tests" && TENSORCAST_BINARY="$environment/bin/tensorcast" "$environment/bin/python" -B -m pytest -q -ra \
  -p no:cacheprovider test_torch.py test_sharded.py test_transformers.py test_readme.py test_safetensors.py) || failed=1

mkdir "$environment/wheels"
for recording in "$source_dir"/python/interfaces/*.json; do
  name=$(basename "$recording" .json)
  pip download --no-deps --only-binary :all: --dest "$environment/wheels" "$name"
  "$environment/bin/python" -B "$source_dir/python/interfaces/check.py" "$recording" "$environment/wheels/$name"-*.whl || failed=1
done
exit $failed
