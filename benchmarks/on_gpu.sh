#!/bin/bash
# Tests, benchmarks and traces for a machine with a GPU, ten minutes at the reference scale:
#
#     bash benchmarks/on_gpu.sh            # or: bash benchmarks/on_gpu.sh smoke
#
# What each prints is in build/on_gpu, one file each; the last line names what failed. It needs no
# internet and no Ray. The comparison with PyG's loader needs pyg-lib (benchmarks/README.md). To
# try the script without a GPU:
#
#     PYTHON="python -m tests.pretended_gpu.device" bash benchmarks/on_gpu.sh smoke
scale=${1:-reference}
python=${PYTHON:-python}
out=build/on_gpu
failed=""
processes=$(($(nproc) / 2))
batch=1024 first=40 traced=20
[ "$scale" = smoke ] && batch=64 first=4 traced=2
mkdir -p $out

run() {
    name=$1
    shift
    echo "== $name: $*"
    began=$SECONDS
    "$@" >"$out/$name.txt" 2>&1 || failed="$failed $name"
    tail -n 16 "$out/$name.txt"
    echo "-- $((SECONDS - began)) s"
}

run card $python -c "import torch; print(torch.__version__, torch.cuda.get_device_name())"
# First what decides: equal batches and milliseconds a batch, milliseconds a step, and PyG beside it.
run sampler $python benchmarks/device_sampler.py --scale "$scale" --device cuda --rounds 5
run engine_steps $python benchmarks/engine_steps.py --scale "$scale" --device cuda --threads 12
run training $python benchmarks/training.py --scale "$scale" --device cuda --sampler-threads 12 --rounds 5
run link_steps $python benchmarks/link_steps.py --scale "$scale" --device cuda --rounds 10
run row_steps $python benchmarks/row_steps.py --scale "$scale" --device cuda
# By file: others import Ray.
run tests $python -m pytest -p no:benchmark -n $processes -m gpu tests/unit/models/test_on_gpu.py \
    tests/unit/sampling/test_loader.py tests/numerics/test_on_gpu.py
# Two ranks on this GPU: NCCL where it allows that, and gloo.
two_ranks() {
    for rank in 1 0; do
        RANK=$rank WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=29533 \
            $python benchmarks/two_ranks_on_gpu.py "$1" --device cuda --scale smoke &
    done
    status=0
    for pid in $(jobs -p); do wait "$pid" || status=1; done
    return $status
}
run two-ranks-nccl two_ranks nccl
run two-ranks-gloo two_ranks gloo
tables=$(ls -d build/benchmarks/tables/rmat-*-classes | tail -n 1)
small=$(ls -td build/benchmarks/tables/rmat-* | grep -v classes | head -n 1)  # of link_steps.py
for model in GraphSAGE GAT HGT RGCN links; do
    graph=$tables what=(--model "{type: $model, args: {hidden_channels: 256}}")
    [ $model = links ] && graph=$small what=(--task link_prediction --model "{type: GraphSAGE, args: {hidden_channels: 256}}"
        --data.splits "{type: hash, fractions: [0.98, 0.01, 0.01]}")
    run trace-$model $python -m raygnn.train examples/quickstart.yaml --data.synthetic null \
        --data.uri "$graph" --data.cache_dir build/benchmarks/cache \
        --sampling.fanouts '[15, 10, 5]' --loader.batch_size $batch \
        "${what[@]}" \
        --training.max_steps $((first + 2 * traced)) --training.num_val_batches 1 --training.num_test_batches 1 \
        --scaling.num_workers 0 --scaling.use_gpu true --loggers '[]' \
        --run.storage_path $out/runs --run.name $model --run.overwrite true \
        --profiler "{wait: $first, warmup: 2, active: $traced}"
    run busy-$model $python benchmarks/gpu_busy.py $out/runs/$model/logs/profiler/*.gz
done
run encoders $python benchmarks/encoders.py --scale "$scale" --device cuda --rounds 5
echo "failed:${failed:- nothing}"
[ -z "$failed" ]
