"""The JobSet controller accepts tools/jobs/jobset.yaml, by the part of its schema that is in jobset_schema.json, and the file
is consistent: volumes, ports, addresses and numbers of ranks match. Planted mistakes are found.

Exits 77 (skipped) where jsonschema or yaml is missing."""
import copy
import json
import re
import sys
from pathlib import Path

try:
    import jsonschema
    import yaml
except ImportError as error:
    print(f"skipped: {error} (Debian: python3-jsonschema, python3-yaml)")
    sys.exit(77)

HERE = Path(__file__).resolve().parent
MANIFEST = HERE.parents[1] / "tools/jobs/jobset.yaml"
SCHEMA = json.loads((HERE / "jobset_schema.json").read_text(encoding="utf-8"))


def pod_of(manifest):
    return manifest["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]


def complaints(manifest):
    found = [f"{error.json_path}: {error.message}" for error in jsonschema.Draft7Validator(SCHEMA).iter_errors(manifest)]
    if found:
        return found
    job = manifest["spec"]["replicatedJobs"][0]
    name, job_name, spec, pod = manifest["metadata"]["name"], job["name"], job["template"]["spec"], pod_of(manifest)
    container = pod["containers"][0]
    command, variables = " ".join(container["command"]), {one["name"]: one.get("value") for one in container["env"]}
    option = dict(re.findall(r"--([\w-]+)=(\S+)", command))
    ports = {one["name"]: str(one["containerPort"]) for one in container["ports"]}
    selected = pod["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"][0]["labelSelector"]
    fits = {
        "a pod for each node": spec["parallelism"] == spec["completions"] == int(option["nnodes"]),
        "the first pod's name": option["master-addr"] == f"{name}-{job_name}-0-0.{name}",
        "torch's port": ports["torch"] == option["master-port"],
        "Tutti's port": ports["tutti"] == variables["TUTTI_PORT"],
        "variables": set(re.findall(r"\$\((\w+)\)", command)) <= set(variables),
        "volumes": {one["name"] for one in container["volumeMounts"]} == {one["name"] for one in pod["volumes"]},
        "the affinity's label": selected["matchLabels"] == {"jobset.sigs.k8s.io/jobset-name": name},
    }
    return [f"{what} does not fit" for what, is_so in fits.items() if not is_so]


def planted(manifest):
    """(what, manifest with a mistake)"""
    def changed(change):
        broken = copy.deepcopy(manifest)
        change(broken, pod_of(broken))
        return broken

    yield "another field", changed(lambda _, pod: pod.update(hostIpc=True))
    yield "a number as a variable", changed(lambda _, pod: pod["containers"][0]["env"][1].update(value=29600))
    yield "no name", changed(lambda all_, _: all_["metadata"].pop("name"))
    yield "another name", changed(lambda all_, _: all_["metadata"].update(name="other"))
    yield "no volume", changed(lambda _, pod: pod["volumes"].pop())
    yield "another port", changed(lambda _, pod: pod["containers"][0]["ports"][0].update(containerPort=1))


def main():
    manifest = yaml.safe_load(MANIFEST.read_text(encoding="utf-8"))
    found = complaints(manifest)
    found += [f"not found: {what}" for what, broken in planted(manifest) if not complaints(broken)]
    print("\n".join(found) if found else "ok: the manifest is as the schema wants it")
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
