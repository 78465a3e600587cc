// Requests that real programs sent (node replay.mjs URL FOLDER): none may be refused for a field.
import assert from "node:assert/strict";
import { readFileSync, readdirSync } from "node:fs";
import { join } from "node:path";
import { check, url } from "./common.mjs";

const folder = process.argv[3];
const captured = readdirSync(folder)
    .filter((name) => name.endsWith(".json"))
    .map((name) => ({ client: name, ...JSON.parse(readFileSync(join(folder, name), "utf8")) }));
const lines = readFileSync(join(folder, "sdk.jsonl"), "utf8").trim().split("\n");
const requests = [...captured, ...lines.map((line) => JSON.parse(line))];
assert.ok(requests.length > 20);

// A prompt may be too long for so small a context; that is found after all fields were read.
const tooLong = /maximum context length|prompt is too long/;

for (const { client, method, path, body } of requests) {
    await check(`${client}: ${method} ${path}`, async () => {
        const short = body?.stream ? body : body && { ...body, max_tokens: body.max_tokens ?? 16 };
        const asItIs = path.startsWith("/v1/responses") || path.startsWith("/api") || /embed/.test(path);
        const sent = asItIs ? body : short;
        const reply = await fetch(url + path, { method, headers: { "content-type": "application/json" }, body: sent ? JSON.stringify(sent) : undefined });
        const text = await reply.text();
        assert.doesNotMatch(text, /^event: error/m);
        assert.ok(reply.status === 200 || (reply.status === 400 && tooLong.test(text)), `${reply.status}: ${text.slice(0, 300)}`);
    });
}
