#!/usr/bin/env bash
# AdvIBP against fixed weights (both 1): three paired seeds, 20 epochs, eps_train 0.4. About an hour on one core.
# bash results/advibp-vs-fixed/run.sh   (continues where it was stopped)
set -euo pipefail
cd "$(dirname "$0")/../.."
for seed in ${SEEDS:-0 1 2}; do
  for method in advibp fixed; do
    run=runs/pair-$method-$seed
    .venv/bin/advibp train mnist dm-small --method $method --eps 0.4 --epochs 20 --ramp 50% --seed $seed --threads 1 --resume --out $run
    .venv/bin/advibp certify $run --eps 0.1 0.2 0.3 0.4 --steps 40 --threads 1
  done
done
.venv/bin/python results/advibp-vs-fixed/compare.py
