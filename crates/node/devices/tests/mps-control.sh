#!/bin/sh
# Stands in for nvidia-cuda-mps-control: says what it was started with, listens as far as a file can, and runs until
# told to quit.
cd "$CUDA_MPS_PIPE_DIRECTORY" || exit 1
if [ "$1" = -f ]; then
    env > ../log/env
    echo run >> ../log/runs
    echo $$ > pid
    touch control
    while [ ! -e quit ]; do sleep 0.02; done
    rm control quit
    exit 0
fi
kill -0 "$(cat pid)" 2>/dev/null || exit 1
while read -r order; do
    case "$order" in
        get_server_list) cat ../servers 2>/dev/null ;;
        quit) touch quit ;;
    esac
    [ "$order" = get_server_list ] || echo "$order" >> ../orders
done
exit 0
