#!/usr/bin/env bash
# Layer-wise stages after 40 epochs, three seeds, certified after each stage: about 90 minutes with one thread.
set -euo pipefail
for seed in 0 1 2; do
  out=runs/layerwise-$seed
  advibp train mnist dm-small --eps 0.4 --epochs 40 --stages 2 --stage-epochs 10 --seed $seed --threads 1 --resume --out $out
  for stage in 0 1 2; do
    advibp certify $out --stage $stage --eps 0.1 0.2 0.3 0.4 --steps 40 --threads 1
  done
done
python results/layerwise/collect.py runs/layerwise-{0,1,2}
