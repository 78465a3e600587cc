// Requests that real programs sent (node replay.mjs URL FOLDER), to a model whose prompt opens its reasoning and whose
// context has room for them: each is answered to its end, in its dialect.
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

// The model's weights are random: without this its text would end at max_tokens.
const words = { regex: "I (see|know)\\.\\n</think>\\n\\nAll is (well|fine)\\.", chat_template_kwargs: { enable_thinking: true } };
const ends = /\[DONE\]|event: message_stop|event: response\.(completed|incomplete)|"done":true/;

for (const { client, method, path, body } of requests) {
    await check(`${client}: ${method} ${path}`, async () => {
        const asked = method === "POST" && !/embed|count_tokens|show/.test(path);
        // The client's own constraint holds.
        const held = body?.response_format || body?.format || body?.text?.format?.schema || body?.tool_choice?.function || body?.tool_choice === "required";
        const few = /responses/.test(path) ? { max_output_tokens: 60 } : /^.api/.test(path) ? { options: { num_predict: 60 } } : { max_tokens: 60 };
        const sent = asked ? { ...body, ...(held ? few : words) } : body;
        const headers = { "content-type": "application/json" };
        const reply = await fetch(url + path, { method, headers, body: sent ? JSON.stringify(sent) : undefined });
        const text = await reply.text();
        assert.equal(reply.status, 200, text.slice(0, 300));
        assert.doesNotMatch(text, /^event: error/m);
        if (!asked) return;
        if (/event-stream|ndjson/.test(reply.headers.get("content-type"))) assert.match(text, ends);
        if (!held) {
            assert.match(text, /All|is|well|fine/);
            assert.doesNotMatch(text, /think>/);
        }
    });
}
