#!/bin/bash
# Tests, benchmarks and traces for a machine with a GPU, half an hour at the reference scale:
#
#     bash benchmarks/on_gpu.sh            # or: bash benchmarks/on_gpu.sh smoke
#
# What each prints is in build/on_gpu, one file each; the last line names what failed. It needs no
# internet and no Ray. To try the script without a GPU:
#
#     PYTHON="python -m tests.pretended_gpu.device" bash benchmarks/on_gpu.sh smoke
scale=${1:-reference}
python=${PYTHON:-python}
out=build/on_gpu
failed=""
nodes=20000 steps=60
[ "$scale" = smoke ] && nodes=500 steps=8
mkdir -p $out

run() {
    name=$1
    shift
    echo "== $name: $*"
    "$@" >"$out/$name.txt" 2>&1 || failed="$failed $name"
    tail -n 12 "$out/$name.txt"
}

run card $python -c "import torch; print(torch.__version__, torch.cuda.get_device_name())"
run tests $python -m pytest -n0 -m "gpu and not ray" tests/unit tests/numerics
for threads in 1 12; do
    run training-$threads $python benchmarks/training.py --scale "$scale" --device cuda \
        --sampler-threads $threads --steps-only
done
run encoders $python benchmarks/encoders.py --scale "$scale" --device cuda
for model in GraphSAGE GAT HGT RGCN; do
    data="{type: planted_partition, num_nodes: $nodes, num_classes: 10}"
    run trace-$model $python -m raygnn.train examples/quickstart.yaml --data.synthetic "$data" \
        --model.type $model --training.max_steps $steps --scaling.num_workers 0 \
        --scaling.use_gpu true --run.storage_path $out/runs --run.name $model \
        --profiler '{}'
done
echo "failed:${failed:- nothing}"
[ -z "$failed" ]
