// constrained.mjs URL [STREAMS [TOKENS [ROUNDS]]] - tokens/s of texts that are held to a schema beside free ones: the same number of
// streams and tokens, in turns; medians of the rounds, and the share of the free speed. Start: hearthd serve --slots STREAMS.
const [url, streams = 8, tokens = 96, rounds = 5] = process.argv.slice(2);

const text = { type: "string", minLength: 20, maxLength: 60 };
const member = {
    type: "object",
    properties: { name: text, age: { type: "integer", minimum: 1, maximum: 99 }, tag: { enum: ["red", "green", "blue"] }, note: text },
    required: ["name", "age", "tag", "note"],
    additionalProperties: false,
};
const schema = { type: "array", items: member, minItems: 100 };

async function one(seed, extra) {
    const prompt = `${seed} A list of people, each with a name, an age, a tag and a note: `;
    const body = { prompt, seed, max_tokens: Number(tokens), temperature: 1, ...extra };
    const reply = await fetch(`${url}/generate`, { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body) });
    const answer = await reply.json();
    if (reply.status !== 200 || answer.usage.completion_tokens !== Number(tokens)) throw new Error(JSON.stringify(answer).slice(0, 300));
}

async function round(n, extra) {
    const since = performance.now();
    await Promise.all(Array.from({ length: Number(streams) }, (_, i) => one(n * 100 + i, extra)));
    return (streams * tokens * 1000) / (performance.now() - since);
}

const kinds = { free: { ignore_eos: true }, constrained: { json_schema: schema, ignore_eos: true } };
const speeds = { free: [], constrained: [] };
for (const extra of Object.values(kinds)) await round(0, extra);
for (let n = 1; n <= Number(rounds); n++) for (const [kind, extra] of Object.entries(kinds)) speeds[kind].push(await round(n, extra));
const median = (list) => list.toSorted((a, b) => a - b)[Math.floor(list.length / 2)];
for (const [kind, list] of Object.entries(speeds))
    console.log(`${kind.padEnd(12)} ${median(list).toFixed(1)} tokens/s (${list.map((x) => x.toFixed(1)).join(" ")})`);
console.log(`constrained texts have ${((100 * median(speeds.constrained)) / median(speeds.free)).toFixed(1)} % of the speed`);
