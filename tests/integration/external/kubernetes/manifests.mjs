// manifests.mjs DIR OUT - the manifests below DIR against the schemas of Kubernetes, the Prometheus Operator, KEDA and the Gateway
// API: as types, which know every field and refuse any other, and as validators, which know formats and ranges. Of InferencePool
// there are no types: inferencepool.json is its schema, and refuses other fields itself. Then the types themselves:
// each field misspelt in turn must be an error. And what no schema knows: that names, times and paths agree with each other.
// hearthd.conf, the probed paths and the drain are left in OUT for the shell to ask hearthd about.
import assert from "node:assert";
import { readFileSync, readdirSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { parse } from "yaml";
import ts from "typescript";
import Ajv from "ajv/dist/2020.js";
import { ConfigMap } from "kubernetes-models/v1/ConfigMap";
import { PersistentVolumeClaim } from "kubernetes-models/v1/PersistentVolumeClaim";
import { Service } from "kubernetes-models/v1/Service";
import { Deployment } from "kubernetes-models/apps/v1/Deployment";
import { HTTPRoute } from "@kubernetes-models/gateway-api/gateway.networking.k8s.io/v1/HTTPRoute";
import { ScaledObject } from "@kubernetes-models/keda/keda.sh/v1alpha1/ScaledObject";
import { PodMonitor } from "@kubernetes-models/prometheus-operator/monitoring.coreos.com/v1/PodMonitor";

const [dir, out] = process.argv.slice(2);
const kinds = {
  ConfigMap: [ConfigMap, "kubernetes-models/v1/ConfigMap"],
  PersistentVolumeClaim: [PersistentVolumeClaim, "kubernetes-models/v1/PersistentVolumeClaim"],
  Service: [Service, "kubernetes-models/v1/Service"],
  Deployment: [Deployment, "kubernetes-models/apps/v1/Deployment"],
  HTTPRoute: [HTTPRoute, "@kubernetes-models/gateway-api/gateway.networking.k8s.io/v1/HTTPRoute"],
  ScaledObject: [ScaledObject, "@kubernetes-models/keda/keda.sh/v1alpha1/ScaledObject"],
  PodMonitor: [PodMonitor, "@kubernetes-models/prometheus-operator/monitoring.coreos.com/v1/PodMonitor"],
};
const read = (...path) => parse(readFileSync(join(dir, ...path), "utf8"), { version: "1.1" }); // 0440 is octal, as kubectl reads it

// What kustomize makes of a patch: objects are merged, lists of what has names too, null takes away.
function merge(base, patch) {
  if (Array.isArray(patch) && patch.every((item) => item?.name)) {
    const merged = (base ?? []).map((item) => merge(item, patch.find((p) => p.name === item.name) ?? {}));
    return merged.concat(patch.filter((p) => !merged.some((item) => item.name === p.name)));
  }
  if (patch === null || typeof patch !== "object" || Array.isArray(patch)) return patch;
  const merged = { ...base };
  for (const [key, value] of Object.entries(patch)) {
    if (value === null) delete merged[key];
    else merged[key] = merge(merged[key], value);
  }
  return merged;
}

// ---- every file is named by a kustomization, and what is named is there ----
const base = read("kustomization.yaml");
const files = readdirSync(dir).filter((name) => name.endsWith(".yaml") && name !== "kustomization.yaml");
assert.deepEqual([...base.resources].sort(), files.sort(), "kustomization.yaml names every file");
const gpu = read("gpu", "kustomization.yaml");
assert.deepEqual(gpu.resources, [".."]);
const documents = base.resources.map((name) => read(name));
const deployment = documents.find((d) => d.kind === "Deployment");
documents.push(gpu.patches.reduce((d, patch) => merge(d, read("gpu", patch.path)), deployment));
const onGpu = documents.at(-1);
const fleet = read("fleet", "kustomization.yaml");
assert.equal(fleet.resources[0], "..");
const inFleet = readdirSync(join(dir, "fleet")).filter((name) => name !== "kustomization.yaml");
assert.deepEqual([...fleet.resources.slice(1), ...fleet.patches.map((p) => p.path)].sort(), inFleet.sort(), "fleet/kustomization.yaml names every file");
documents.push(...fleet.resources.slice(1).map((name) => read("fleet", name)));
for (const { path } of fleet.patches) {
  const patch = read("fleet", path);
  documents.push(merge(documents.find((d) => d.kind === patch.kind && d.metadata.name === patch.metadata.name), patch));
}
const fleetDeployment = documents.at(-2);

// ---- InferencePool ----
const isPool = new Ajv({ allErrors: true }).compile(JSON.parse(readFileSync("inferencepool.json", "utf8")));
const pool = documents.splice(documents.findIndex((d) => d.kind === "InferencePool"), 1)[0];
assert(isPool(pool), JSON.stringify(isPool.errors));

// ---- validators ----
for (const d of documents) {
  assert(kinds[d.kind], `no schema is known for ${d.kind}`);
  new kinds[d.kind][0](d).validate();
}

// ---- types: the documents, then each of their fields misspelt ----
const free = new Set(["labels", "matchLabels", "data", "requests", "limits", "selector"]); // names of the user's choice
function* misspelt(node, path = []) {
  if (node === null || typeof node !== "object") return;
  for (const [key, value] of Object.entries(node)) {
    if (key === "metadata" && path.includes("triggers")) continue; // a map to the schema: each scaler reads its own
    const own = !Array.isArray(node) && !(free.has(path.at(-1)) && !("matchLabels" in node));
    if (own) yield [...path, key];
    yield* misspelt(value, [...path, key]);
  }
}
function misspell(document, path) {
  const copy = structuredClone(document);
  const node = path.slice(0, -1).reduce((n, key) => n[key], copy);
  const key = path.at(-1);
  node[`${key}x`] = node[key];
  delete node[key];
  return copy;
}
for (const path of misspelt(pool)) assert(!isPool(misspell(pool, path)), `InferencePool ${path.join(".")} misspelt is refused`);
const lines = [];
for (const [kind, [, from]] of Object.entries(kinds)) lines.push(`import type { I${kind} } from "${from}";`);
const declare = (d) => lines.push(`export const _${lines.length}: I${d.kind} = ${JSON.stringify(d)};`);
documents.forEach(declare);
const first = lines.length;
const wrong = [];
for (const d of documents)
  for (const path of misspelt(d)) {
    wrong.push(`${d.kind} ${path.join(".")}`);
    declare(misspell(d, path));
  }
const source = join(process.cwd(), "manifests.ts");
writeFileSync(source, lines.join("\n"));
const program = ts.createProgram([source], {
  strict: true, noEmit: true, skipLibCheck: true, types: [],
  module: ts.ModuleKind.ESNext, moduleResolution: ts.ModuleResolutionKind.Bundler, target: ts.ScriptTarget.ES2022,
});
const seen = new Set();
for (const d of ts.getPreEmitDiagnostics(program)) {
  const words = ts.flattenDiagnosticMessageText(d.messageText, "\n");
  assert(d.file?.fileName === source, words);
  const line = d.file.getLineAndCharacterOfPosition(d.start).line;
  assert(line >= first, `${documents[line - Object.keys(kinds).length]?.kind}: ${words}`);
  seen.add(line - first);
}
const unseen = wrong.filter((_, i) => !seen.has(i));
assert.deepEqual(unseen, [], "misspelt fields that no schema refuses");

// ---- what belongs together ----
const pod = deployment.spec.template.spec;
const container = pod.containers[0];
const conf = documents.find((d) => d.kind === "ConfigMap").data["hearthd.conf"];
const key = (name) => conf.match(new RegExp(`^${name} = (.*)$`, "m"))?.[1];
const service = documents.find((d) => d.kind === "Service");
const monitor = documents.find((d) => d.kind === "PodMonitor");
const labels = deployment.spec.template.metadata.labels;
assert.deepEqual(deployment.spec.selector.matchLabels, labels);
assert.deepEqual(service.spec.selector, labels);
assert.deepEqual(monitor.spec.selector.matchLabels, labels);
assert.equal(container.ports[0].containerPort, Number(key("port")));
for (const probe of ["startupProbe", "readinessProbe", "livenessProbe"]) assert.equal(container[probe].httpGet.port, container.ports[0].name);
assert.equal(service.spec.ports[0].targetPort, container.ports[0].name);
assert.equal(monitor.spec.podMetricsEndpoints[0].port, container.ports[0].name);
assert.deepEqual(container.volumeMounts.map((m) => m.name).sort(), pod.volumes.map((v) => v.name).sort());
const mounted = (path) => container.volumeMounts.some((m) => path.startsWith(m.mountPath) && (m.readOnly ?? false) === !path.startsWith("/var"));
for (const name of ["model", "api_keys_file", "prefix_cache_dir"]) assert(mounted(key(name)), name);
const seconds = container.lifecycle.preStop.sleep.seconds + Number(key("drain_timeout_ms")) / 1000 + 15;
assert(pod.terminationGracePeriodSeconds >= seconds, "terminationGracePeriodSeconds: sleep, drain and an end");
assert.equal(pod.enableServiceLinks, false, "HEARTH_PORT would be set by the Service");
assert.equal(pod.securityContext.runAsNonRoot, true);
assert.equal(pod.securityContext.seccompProfile.type, "RuntimeDefault");
assert.deepEqual(container.securityContext, { allowPrivilegeEscalation: false, readOnlyRootFilesystem: true, capabilities: { drop: ["ALL"] } });
const route = documents.find((d) => d.kind === "HTTPRoute").spec.rules[0].backendRefs[0];
assert.deepEqual([route.group, route.kind, route.name], [pool.apiVersion.split("/")[0], pool.kind, pool.metadata.name]);
assert.deepEqual(pool.spec.selector.matchLabels, labels);
assert.equal(pool.spec.targetPorts[0].number, container.ports[0].containerPort);
const scaled = documents.find((d) => d.kind === "ScaledObject").spec;
assert.equal(scaled.scaleTargetRef.name, deployment.metadata.name);
assert(!("replicas" in fleetDeployment.spec), "the autoscaler's, not the manifest's");
assert.deepEqual(fleetDeployment.spec.template.spec.containers[0].env, [{ name: "HEARTH_API_KEYS_FILE", value: "" }]);
for (const trigger of scaled.triggers) {
  const known = ["serverAddress", "query", "threshold", "ignoreNullValues"];
  assert(Object.entries(trigger.metadata).every(([name, value]) => known.includes(name) && typeof value === "string"), JSON.stringify(trigger.metadata));
  assert(Number(trigger.metadata.threshold) > 0);
}
const figures = scaled.triggers.flatMap((t) => t.metadata.query.match(/\bhearth_\w+/g));
assert.equal(figures.length, scaled.triggers.length);
writeFileSync(join(out, "figures"), figures.join("\n") + "\n");
const gpuContainer = onGpu.spec.template.spec.containers[0];
assert.equal(gpuContainer.resources.limits["nvidia.com/gpu"], "1");
assert.equal(gpuContainer.resources.limits.memory, container.resources.limits.memory);
assert(gpuContainer.env.some((e) => e.name === "HEARTH_BACKEND" && e.value === "cuda"));

writeFileSync(join(out, "hearthd.conf"), conf);
const paths = ["startupProbe", "readinessProbe", "livenessProbe"].map((probe) => container[probe].httpGet.path);
writeFileSync(join(out, "paths"), [...new Set(paths)].join("\n") + "\n");
console.log(`${documents.length + 1} documents, ${wrong.length} misspelt fields, each refused`);
