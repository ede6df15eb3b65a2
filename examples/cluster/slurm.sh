#!/bin/bash
#SBATCH --job-name=laser
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=16
#SBATCH --gpus-per-node=1
#SBATCH --exclusive
#SBATCH --time=48:00:00
#SBATCH --signal=B:TERM@300
#SBATCH --output=%x-%j.log

# sbatch examples/cluster/slurm.sh --recipe atari-shared --env ALE/Breakout-v5 --out /shared/runs/breakout
# The run directory must be on a file system that all nodes see. Submitted again with the same --out, the sweep goes on where it stopped.
set -euo pipefail

# A token for this job alone, in a file that only its owner can read, on a file system that all nodes see.
export RAY_AUTH_MODE=token RAY_USAGE_STATS_ENABLED=0
export RAY_AUTH_TOKEN_PATH="${LASER_TOKENS:-$HOME/.ray/tokens}/$SLURM_JOB_ID"
mkdir -p -m 700 "$(dirname "$RAY_AUTH_TOKEN_PATH")"
(umask 077 && head -c 32 /dev/urandom | od -An -tx1 | tr -d ' \n' > "$RAY_AUTH_TOKEN_PATH")

# Jobs of several users may share a machine: the port follows from the job's number.
first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
address=$(srun --nodes=1 --ntasks=1 --nodelist="$first" hostname --ip-address | awk '{print $1}')
port=$((20000 + SLURM_JOB_ID % 10000))
pids=()
trap 'kill "${pids[@]}" 2>/dev/null || true; rm -f "$RAY_AUTH_TOKEN_PATH"' EXIT

srun --overlap --nodes=1 --ntasks=1 --nodelist="$first" \
  ray start --head --node-ip-address="$address" --port="$port" --include-dashboard=false --block &
pids+=($!)
if [ "$SLURM_JOB_NUM_NODES" -gt 1 ]; then
  srun --overlap --nodes=$((SLURM_JOB_NUM_NODES - 1)) --ntasks=$((SLURM_JOB_NUM_NODES - 1)) --exclude="$first" bash -c \
    "until ray health-check --address $address:$port 2>/dev/null; do sleep 2; done; ray start --address=$address:$port --block" &
  pids+=($!)
fi

python - "$address:$port" "$SLURM_JOB_NUM_NODES" << 'PY'
import sys, time, ray
end, alive = time.monotonic() + 300, 0
while alive < int(sys.argv[2]):
    if time.monotonic() > end:
        sys.exit(f"{alive} of {sys.argv[2]} nodes have joined {sys.argv[1]} in 300 s; look at the log of this job")
    try:
        ray.init(address=sys.argv[1], ignore_reinit_error=True, log_to_driver=False, logging_level="ERROR")
        alive = sum(node["Alive"] for node in ray.nodes())
    except (ConnectionError, RuntimeError):
        pass
    time.sleep(1)
PY

# Slurm sends TERM to this script five minutes before the end; the sweep writes a checkpoint and ends.
laser sweep --cluster "$address:$port" "$@" &
sweep=$!
trap 'kill -TERM "$sweep" 2>/dev/null || true' TERM
status=0
wait "$sweep" || status=$?
while kill -0 "$sweep" 2> /dev/null; do # the signal has ended `wait`, not the sweep
  status=0
  wait "$sweep" || status=$?
done
exit "$status"
