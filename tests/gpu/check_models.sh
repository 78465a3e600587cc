# check_models.sh - the part of check.sh that needs models; sourced by it. What explains most comes first, since time may
# run out: the small model, right and its figure, then the larger ones, then the other executors, which only compare.
# Models in the shapes of real ones are made here, the largest only if disk, memory and time allow.

emulated=""
grep -q '"emulated": true' "$work/device.json" 2>/dev/null && emulated=1
demo=$(ls "$here"/models/*.gguf "$here"/../../models/*.gguf 2>/dev/null | head -n 1)

# make_model SHAPE MEGABYTES SHARE: makes $made/SHAPE.gguf; false if it does not fit. Memory is not asked beforehand: a
# virtual machine may have little until more is used.
make_model() {
    if [ -n "$plan" ]; then
        : >"$made/$1.gguf"
        part "model-$1" figure "$3"
        return
    fi
    free_disk=$(df -Pm "$made" | awk 'NR == 2 { print $4 }')
    if [ "$free_disk" -lt $(($2 + 200)) ]; then
        echo "a file of $2 MB does not fit: $free_disk MB of disk are free" >"$work/model-$1.err"
        note "model-$1" figure left-out 0
        return 1
    fi
    part "model-$1" figure "$3" "$bin/mkmodel" --shape "$1" --quant q4_k_m --out "$made/$1.gguf"
}

# bench MODEL FILE SHARE EXECUTOR: batch 1 and 8, with 512 tokens of context and without. The persistent executor's last
# steps come back as $out/trace-MODEL.json.
bench() {
    model=$1 file=$2 share=$3 by=$4
    set -- -p 512 -n 128 -d 512 -b 8 -r 3
    [ -z "$emulated" ] || set -- -p 6 -n 2 -d 4 -b 2 -r 1
    [ "$by" != persistent ] || set -- "$@" --trace "$out/trace-$model.json"
    part "bench-$model-$by" figure "$share" "$bin/hearthd" bench --config /dev/null --json --model "$file" --backend cuda \
        --executor "$by" --n-ctx 1024 "$@"
}

# Text behind 8,192 tokens, where attention has most of the time.
bench_deep() {
    model=$1 file=$2 share=$3
    set -- --n-ctx 9216 -p 16 -n 32 -d 8192 -b 1 -r 1
    [ -z "$emulated" ] || set -- --n-ctx 256 -p 2 -n 2 -d 100 -b 1 -r 1
    part "bench-$model-deep" figure "$share" "$bin/hearthd" bench --config /dev/null --json --model "$file" --backend cuda \
        --executor persistent "$@"
}

# The persistent executor again, with all blocks waiting for each other between ops: the difference is what words gain.
bench_hops() {
    model=$1 file=$2 share=$3
    set -- --n-ctx 1024 -p 0 -n 128 -d 512 -b 1 -r 3
    [ -z "$emulated" ] || set -- --n-ctx 256 -p 0 -n 2 -d 4 -b 1 -r 1
    part "bench-$model-hops" figure "$share" "$bin/hearthd" bench --config /dev/null --json --model "$file" --backend cuda \
        --executor persistent --cuda-words no "$@"
}

part calls figure 16 "$bin/gpu_bench" calls
if [ -n "$emulated" ]; then
    part witness-golden right 100 "$bin/gpu_witness" golden "$data"
    part witness-tokens right 50 "$bin/gpu_witness" tokens "$data/tiny-qwen3-s11-q4_k_m.gguf" 3 4 2
    cp "$data/tiny-llama3-s15-q4_k_m.gguf" "$made/tiny.gguf"
    bench tiny "$made/tiny.gguf" 30 persistent
    bench_hops tiny "$made/tiny.gguf" 30
    bench_deep tiny "$made/tiny.gguf" 30
    part serve right 30 "$bin/gpu_serve" "$bin/hearthd" "$made/tiny.gguf"
else
    part witness-golden right 15 "$bin/gpu_witness" golden "$data"
    part witness-tokens right 12 "$bin/gpu_witness" tokens "$demo" 20 256 8
    for wanted in qwen3-0.6b:420:5 llama-3.2-1b:850:8; do
        shape=${wanted%%:*}
        sizes=${wanted#*:}
        make_model "$shape" "${sizes%:*}" "${sizes#*:}" || continue
        part "witness-$shape" right 12 "$bin/gpu_witness" tokens "$made/$shape.gguf" 8 16 8
        bench "$shape" "$made/$shape.gguf" 12 persistent
        [ "$shape" != qwen3-0.6b ] || bench_hops "$shape" "$made/$shape.gguf" 4
        bench_deep "$shape" "$made/$shape.gguf" 8
        [ "$shape" != qwen3-0.6b ] || part serve right 25 "$bin/gpu_serve" "$bin/hearthd" "$made/$shape.gguf"
    done
    if make_model qwen3-8b 5100 25; then
        bench qwen3-8b "$made/qwen3-8b.gguf" 35 persistent
        bench qwen3-8b "$made/qwen3-8b.gguf" 20 graph
        rm -f "$made/qwen3-8b.gguf"
    fi
    part witness-steps right 12 "$bin/gpu_witness" tokens "$demo" 10 1000 1
fi

# The other types of cache.
for type in q8_0 bf16; do
    sizes="20 64 8"
    [ -z "$emulated" ] || sizes="1 2 1"
    # shellcheck disable=SC2086 # several numbers
    part "witness-$type" right 6 "$bin/gpu_witness" tokens "$data/tiny-qwen3-s11-q4_k_m.gguf" $sizes $type
done
part idle figure 15 "$bin/gpu_bench" idle
for shape in tiny qwen3-0.6b; do
    for executor in graph eager; do
        [ ! -e "$made/$shape.gguf" ] || bench $shape "$made/$shape.gguf" 4 $executor
    done
done
