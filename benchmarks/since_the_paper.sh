#!/bin/sh
# Do the unbiased weights of Algorithm 1 help on the objectives since the paper?
#
# For dm-small and cnn7-narrow, MNIST at 0.1 and 0.3: every method's own knob is tuned by the same number of trials on
# validation images; the best recipe is trained with three seeds; the same 1,000 test images are certified completely.
# Every step continues where it was interrupted. Estimated time on two cores: several days.
#
#     benchmarks/since_the_paper.sh OUT [TRIALS] [EPOCHS]
set -eu
out=$1 trials=${2:-12} epochs=${3:-30}
for net in dm-small cnn7-narrow; do
    for eps in 0.1 0.3; do
        for method in ibp mtl-ibp sabr advibp advsabr staps exp-ibp cc-ibp; do
            case $method in
                ibp) knob="kappa=0..0.9" ;;
                mtl-ibp | exp-ibp | cc-ibp) knob="alpha=0.01..1:log" ;;
                sabr | advsabr | staps) knob="sabr_lambda=0.05..1" ;;
                advibp) knob="beta1=0.5..0.999" ;;
            esac
            place=$out/$net-$eps/$method
            [ -d "$place/front" ] && [ -n "$(ls "$place/front" 2>/dev/null)" ] && [ -e "$place/done" ] ||
                advibp tune mnist "$net" --method "$method" --eps "$eps" --epochs "$epochs" \
                    --search "$knob" lr=2e-4..4e-3:log --objectives certified --trials "$trials" --sample 500 \
                    --budget 10 --out "$place"
            touch "$place/done"
            # One objective has one best trial; of several with the same value the first is used.
            best=$(ls "$place"/front/*.yaml | head -n 1)
            for seed in 0 1 2; do
                run=$place/seed-$seed
                [ -e "$run/summary.json" ] || advibp train --recipe "$best" --seed "$seed" --resume --out "$run"
                advibp certify "$run" --eps "$eps" --complete --sample 1000 --budget 120
            done
        done
        # Mean, spread and paired tests over the same images.
        advibp compare "$out/$net-$eps"/*/seed-* > "$out/$net-$eps/compare.txt"
    done
done
