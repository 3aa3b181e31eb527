#!/bin/bash
# A Ray cluster of four nodes that runs a grid's cells, for Slurm (docs/cluster.md): `sbatch slurm.sh`; again, it goes on.
# RAY_AUTH_MODE=disabled suits a private network only.
#SBATCH --nodes=4 --ntasks-per-node=1 --cpus-per-task=32 --gpus-per-node=4 --time=24:00:00 --signal=B:TERM@120
head=$(hostname)
port=6379
export RAY_AUTH_MODE=disabled RAY_USAGE_STATS_ENABLED=0
resources="--num-cpus $SLURM_CPUS_PER_TASK --num-gpus ${SLURM_GPUS_ON_NODE:-0} --disable-usage-stats --block"
ray start --head --port $port $resources &
sleep 20
srun --nodes=$((SLURM_NNODES - 1)) --ntasks=$((SLURM_NNODES - 1)) --exclude="$head" ray start --address "$head:$port" $resources &
sleep 30
bench run --grid table1.yaml --out runs/table1 --ray "$head:$port" --jobs 16 &
run=$!
trap 'kill -TERM $run' TERM        # Slurm's warning two minutes before the end: checkpoints are written
wait $run; wait $run
