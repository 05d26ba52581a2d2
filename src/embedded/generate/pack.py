#!/usr/bin/env python3
"""pack.py FOLDER: packs the files that main.go has written into `data/`, and the schemas into `src/kube-model/data/`."""
import pathlib
import sys
import zlib

source = pathlib.Path(sys.argv[1])
data = pathlib.Path(__file__).parent.parent / "data"
# Defaults that depend on other fields: `defaults.rs` has them.
CONDITIONAL = {
    "core.v1.Container imagePullPolicy",
    "core.v1.EphemeralContainer imagePullPolicy",
    "core.v1.ImageVolumeSource pullPolicy",
    "core.v1.ConfigMap data",
    "core.v1.PodSpec enableServiceLinks",
    "core.v1.ReplicationControllerSpec replicas",
    "core.v1.ServiceSpec internalTrafficPolicy",
    "batch.v1.JobSpec completions",
    "batch.v1.JobSpec parallelism",
    "batch.v1.JobSpec podReplacementPolicy",
    "networking.v1.NetworkPolicySpec policyTypes",
    "resource.v1.DeviceTaint timeAdded",
    "resource.v1.ExactDeviceRequest count",
    "resource.v1.DeviceSubRequest count",
    "autoscaling.v2.HorizontalPodAutoscalerSpec metrics",
}
model = data.parent.parent / "kube-model" / "data"
for name, folder in {"definitions": model, "numbers": data, "words": data}.items():
    (folder / f"{name}.z").write_bytes(zlib.compress((source / f"{name}.txt").read_bytes(), 9))
lines = (source / "defaults.txt").read_text().splitlines()
kept = [line for line in lines if " ".join(line.split(" ")[:2]) not in CONDITIONAL]
(data / "defaults.txt").write_text("\n".join(kept) + "\n")
