#!/usr/bin/env bash
# Makes the findings stored here: trains all the runs named, at once, on one GPU.
#
#   paper/nets/studies.sh target/release/afterfit-nets IMAGES OUT noise-1 vgg-16-1 resnet-18-1 resnet-18-no-decay-1
#
# IMAGES is the folder of CIFAR-10, OUT where runs and findings go. A name is noise, vgg-16, resnet-18 or resnet-18-no-decay and
# a seed. Runs that were stopped go on, and those that are done are left alone; checkpoints are removed
# once their averages are measured (11 to 15 GB a run until then).
# Under NVIDIA's MPS several runs share a GPU well; MORE adds options to all of them (MORE="--width 2 --epochs 2" tries it out).
set -euo pipefail
mkdir -p "$3"
binary=$(realpath "$1") images=$2 out=$(realpath "$3")
shift 3
if command -v nvidia-cuda-mps-control >/dev/null; then
    export CUDA_MPS_PIPE_DIRECTORY=$out/mps CUDA_MPS_LOG_DIRECTORY=$out/mps
    mkdir -p "$out/mps"
    nvidia-cuda-mps-control -d || true
fi
one() {
    local name=$1 seed=${1##*-} kind=${1%-*} study=table1 options=()
    case $kind in
        noise) study=noise ;;
        vgg-16 | resnet-18) options=(--net "$kind") ;;
        resnet-18-no-decay) options=(--weight-decay 0) ;;
        *) echo "$name: not a study" >&2; return 2 ;;
    esac
    local findings="$out/$study-${kind/noise/resnet-18}-seed-$seed.json"
    [ ! -e "$findings" ] || { echo "$name: done before"; return; }
    # shellcheck disable=SC2086
    "$binary" $study --out "$out/$name" --data-folder "$images" --seed "$seed" --quiet "${options[@]}" ${MORE:-} \
        >"$out/$name.txt" 2>&1 || { echo "$name failed: $(tail -n1 "$out/$name.txt")" >&2; return 1; }
    cp "$out/$name/$study.json" "$findings"
    rm -r "$out/$name/checkpoints"
    echo "$name: $(tail -n1 "$out/$name.txt")"
}
pids=()
for name in "$@"; do
    one "$name" &
    pids+=($!)
done
failed=0
for pid in "${pids[@]}"; do wait "$pid" || failed=$((failed + 1)); done
[ -z "${CUDA_MPS_PIPE_DIRECTORY:-}" ] || echo quit | nvidia-cuda-mps-control || true
exit $((failed > 0))
