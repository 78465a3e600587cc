// Texts that were held to a schema, checked by ajv (node schemas.mjs URL FOLDER): every one that ended is valid.
import assert from "node:assert/strict";
import { readFileSync, readdirSync } from "node:fs";
import { join } from "node:path";
import Ajv from "ajv";
import Ajv2019 from "ajv/dist/2019.js";
import Ajv2020 from "ajv/dist/2020.js";
import Ajv4 from "ajv-draft-04";
import formats from "ajv-formats";
import { check, url } from "./common.mjs";

const folder = process.argv[3];
const N = 2; // texts of a schema
const dialects = { "draft-04": Ajv4, "2019-09": Ajv2019, "2020-12": Ajv2020 };

function validator({ dialect, schema }) {
    const found = Object.keys(dialects).find((name) => dialect?.includes(name));
    const ajv = new (dialects[found] ?? Ajv)({ strict: false, logger: false, validateFormats: !found || found === "draft-04" });
    formats(ajv);
    return ajv.compile(schema);
}

// The texts that ended; none where the schema is refused by name.
async function sample(schema, seed) {
    const body = { model: "any", prompt: "{", guided_json: schema, n: N, seed, temperature: 1, max_tokens: 120 };
    const headers = { "content-type": "application/json" };
    const reply = await fetch(`${url}/v1/completions`, { method: "POST", headers, body: JSON.stringify(body) });
    const answer = await reply.json();
    if (reply.status === 400) {
        // JavaScript writes the least int64 as an integer that is none.
        assert.match(answer.error.message, /cannot be enforced exactly|too big negative integer/);
        return /enforced/.test(answer.error.message) ? null : [];
    }
    assert.equal(reply.status, 200, JSON.stringify(answer));
    return answer.choices.filter((choice) => choice.finish_reason === "stop").map((choice) => choice.text);
}

let n_texts = 0;
let n_refused = 0;
const names = readdirSync(folder).filter((name) => name.endsWith(".json"));
for (const [i, name] of names.entries()) {
    const entry = JSON.parse(readFileSync(join(folder, name), "utf8"));
    const validate = validator(entry);
    const texts = await sample(entry.schema, i);
    n_refused += texts === null;
    for (const text of texts ?? [])
        assert.ok(validate(JSON.parse(text)), `${name}: ${JSON.stringify(validate.errors)}\n${text}`);
    n_texts += texts?.length ?? 0;
}
console.log(`# ${n_texts} texts ended`);
await check(`${n_texts} texts of ${names.length - n_refused} schemas are valid, ${n_refused} schemas are refused`, () => {
    assert.ok(n_refused <= 0.15 * names.length);
    assert.ok(n_texts >= 30);
});
