#!/bin/sh
# pack.sh BUILD FOLDER - copies the programs of a build tree and the libraries that they need to a folder that runs on
# another machine of this architecture with no older C library: FOLDER/check.sh DIR. System libraries (libc, libm,
# the loader) and the driver's libcuda are not copied: the other machine has its own. FOLDER.tgz is the same as one file,
# which must fit beside the source: together they may take 64 MiB.
set -eu
[ $# = 2 ] || { echo "usage: pack.sh BUILD FOLDER" >&2; exit 2; }
build=$1
folder=$2
source=$(cd "$(dirname "$0")/../.." && pwd)
programs="hearthd mkmodel gpu_bench gpu_report gpu_witness gpu_serve"
most_kib=65536

rm -rf "$folder"
mkdir -p "$folder/bin" "$folder/lib" "$folder/models" "$folder/data"
for program in $programs; do
    cp "$build/bin/$program" "$folder/bin/"
    strip "$folder/bin/$program"
    ldd "$build/bin/$program" >>"$folder/needed"
done
awk '$2 == "=>" && $3 ~ /^\// { print $3 }' "$folder/needed" | sort -u >"$folder/libraries"
while read -r library; do
    case $(basename "$library") in
    libc.so.* | libm.so.* | libdl.so.* | libpthread.so.* | librt.so.* | ld-linux*) ;;
    *) cp -L "$library" "$folder/lib/" ;;
    esac
done <"$folder/libraries"
rm "$folder/needed" "$folder/libraries"
cp "$source"/tests/gpu/check.sh "$source"/tests/gpu/check_models.sh "$source"/tests/gpu/check_tools.sh "$source"/tests/gpu/README.md "$folder/"
cp "$source"/models/*.gguf "$folder/models/"
cp "$source"/tests/data/tiny-* "$folder/data/"
tar -czf "$folder.tgz" -C "$(dirname "$folder")" "$(basename "$folder")"
packed=$(du -k --apparent-size "$folder.tgz" | cut -f1)
tree=$(cd "$source" && { git ls-files -z 2>/dev/null || true; } | xargs -0r du -ck --apparent-size | awk '$2 == "total" { n += $1 } END { print n + 0 }')
[ $((packed + tree)) -le $most_kib ] || { echo "pack.sh: $folder.tgz takes $packed KiB, more than the $most_kib KiB less $tree of the source" >&2; exit 1; }
echo "$folder.tgz: $packed KiB, with the source $((packed + tree)) of $most_kib"
