// Random schemas: texts that were held to them, checked by ajv (node random_schemas.mjs URL [COUNT [SEED]]). A text that ended is an
// instance; a schema is held or refused by name; no request fails otherwise.
import assert from "node:assert/strict";
import Ajv2020 from "ajv/dist/2020.js";
import formats from "ajv-formats";
import { check, url } from "./common.mjs";

const count = Number(process.argv[3] ?? 1000);
let state = Number(process.argv[4] ?? 1);
const N = 3; // texts of a schema
const MOST = 4; // requests at once

function below(n) {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return Math.floor((state / 2 ** 32) * n);
}
const pick = (list) => list[below(list.length)];
const maybe = (of) => below(of) === 0;

const names = ["id", "name", "a", "ab", "na\"me", "size", "größe", "x/y", "_", "kind"];
const patterns = ["^[a-z]+$", "^[A-Z]{2,4}-\\d+$", "[0-9]", "^(?:red|green|blu)e?$", "^[^a-y]*$", "é", "^\\S+ \\S+$", "^.{0,5}$", "\\p{L}{2}"];
const kinds = ["date", "time", "date-time", "uuid", "ipv4", "ipv6", "email", "hostname"];
const values = [null, true, 0, -1, 1.5, "", "a", "é\n\"", [], [1, "b"], {}, { a: 1 }, 12345678901, "red"];

function text() {
    const s = { type: "string" };
    if (maybe(3)) s.minLength = below(4);
    if (maybe(3)) s.maxLength = (s.minLength ?? 0) + below(20);
    if (maybe(3)) s.pattern = pick(patterns);
    else if (maybe(4)) s.format = pick(kinds);
    return s;
}

function number() {
    const s = { type: pick(["integer", "integer", "number"]) };
    const least = below(200) - 100;
    if (maybe(2)) s[pick(["minimum", "exclusiveMinimum"])] = s.type === "number" && maybe(2) ? least + 0.5 : least;
    if (maybe(2)) s[pick(["maximum", "exclusiveMaximum"])] = least + 1 + below(1000);
    if (maybe(6)) s.multipleOf = pick([2, 3, 5, 10, 7]);
    return s;
}

function array(depth) {
    const s = { type: "array" };
    if (maybe(4)) s.prefixItems = [any(depth - 1), any(depth - 1)].slice(below(2));
    if (!maybe(6)) s.items = maybe(8) ? false : any(depth - 1);
    if (maybe(3)) s.minItems = below(3);
    if (maybe(2)) s.maxItems = (s.minItems ?? 0) + below(4);
    if (maybe(6)) s.uniqueItems = true;
    if (maybe(8)) s.contains = any(0);
    return s;
}

function object(depth) {
    const s = { type: "object", properties: {} };
    for (let n = below(5); n > 0; n--) s.properties[pick(names)] = any(depth - 1);
    const known = Object.keys(s.properties);
    if (maybe(2)) s.required = [...new Set(known.filter(() => maybe(2)).concat(maybe(5) ? [pick(names)] : []))];
    if (maybe(2)) s.additionalProperties = maybe(2) ? false : any(depth - 1);
    if (maybe(8)) s.patternProperties = { [pick(["^x", "_$", "^[a-c]"])]: any(depth - 1) };
    if (maybe(8)) s.propertyNames = { maxLength: 6 };
    if (maybe(6)) s.minProperties = below(3);
    if (maybe(6)) s.maxProperties = (s.minProperties ?? 0) + 1 + below(4);
    if (maybe(10) && known.length > 1) s.dependentRequired = { [known[0]]: [known[1]] };
    return s;
}

function joined(depth) {
    const parts = [any(depth - 1), any(depth - 1)];
    if (maybe(6)) return { if: { properties: { kind: { const: "a" } } }, then: parts[0], else: parts[1] };
    if (maybe(6)) return { ...any(depth - 1), not: { enum: [pick(values), pick(values)] } };
    return { [pick(["anyOf", "anyOf", "oneOf", "allOf"])]: parts };
}

function any(depth) {
    const n = below(depth > 0 ? 12 : 6);
    if (n === 0) return pick([{ type: "boolean" }, { type: "null" }, true, {}]);
    if (n === 1) return { enum: [pick(values), pick(values), pick(values)].filter((v, i, all) => all.findIndex((w) => JSON.stringify(w) === JSON.stringify(v)) === i) };
    if (n === 2) return { const: pick(values) };
    if (n === 3) return { type: ["null", pick(["string", "integer", "boolean"])] };
    if (n < 6) return maybe(2) ? text() : number();
    if (n < 7) return { $ref: "#/$defs/node" };
    if (n < 8) return joined(depth);
    return n < 10 ? array(depth) : object(depth);
}

const seen = { texts: 0, cut: 0, held: 0, refused: {} };

async function ask(schema, seed) {
    const body = { model: "any", prompt: "{", guided_json: schema, n: N, seed, temperature: 1.5, max_tokens: 160 };
    const headers = { "content-type": "application/json" };
    const reply = await fetch(`${url}/v1/completions`, { method: "POST", headers, body: JSON.stringify(body) });
    const answer = await reply.json();
    const asked = JSON.stringify(schema);
    if (reply.status === 400) {
        const why = /(\S+) at #\S* cannot be enforced exactly|(no text satisfies)|(too large)/.exec(answer.error.message);
        assert.ok(why, `${answer.error.message}\n${asked}`);
        const name = why[1] ?? why[2] ?? why[3];
        seen.refused[name] = (seen.refused[name] ?? 0) + 1;
        return;
    }
    assert.equal(reply.status, 200, `${JSON.stringify(answer)}\n${asked}`);
    seen.held++;
    // Without a precision ajv takes no large number for a multiple: it reads the quotient's first digit, before the point and exponent.
    const ajv = new Ajv2020({ strict: false, logger: false, validateFormats: true, multipleOfPrecision: 9 });
    formats(ajv);
    const validate = ajv.compile(schema);
    for (const choice of answer.choices) {
        assert.match(choice.finish_reason, /^(stop|length)$/, asked);
        if (choice.finish_reason === "length") {
            seen.cut++;
            continue;
        }
        assert.ok(validate(JSON.parse(choice.text)), `${JSON.stringify(validate.errors)}\n${choice.text}\n${asked}`);
        seen.texts++;
    }
}

let next = 0;
async function work() {
    while (next < count) {
        const seed = next++;
        const schema = any(3);
        const node = { type: "object", properties: { v: any(1), next: { $ref: "#/$defs/node" } }, additionalProperties: false };
        await ask(typeof schema === "object" ? { ...schema, $defs: { node } } : schema, seed);
    }
}

await Promise.all(Array.from({ length: MOST }, work));
const refused = Object.entries(seen.refused).sort((a, b) => b[1] - a[1]);
console.log(`# ${seen.texts} texts ended, ${seen.cut} were cut; refused: ${refused.map(([k, n]) => `${k} ${n}`).join(", ")}`);
await check(`the texts of ${seen.held} of ${count} random schemas are valid`, () => {
    assert.ok(seen.held >= count / 2);
    assert.ok(seen.texts >= count);
});
