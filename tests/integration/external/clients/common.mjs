// What the clients' tests share: node CLIENT.mjs http://127.0.0.1:PORT
import assert from "node:assert/strict";
import { z } from "zod";

export const url = process.argv[2];
export const content = "Tell me a story about a dog.";
export const messages = [{ role: "user", content }];

// The schema of the tool's arguments, as JSON and as zod writes it.
export const parameters = {
    type: "object",
    properties: { city: { type: "string", enum: ["Bern", "Basel"] }, now: { type: "boolean" } },
    required: ["city", "now"],
    additionalProperties: false,
};
export const Arguments = z.object({ city: z.enum(["Bern", "Basel"]), now: z.boolean() });
// What structured outputs must be.
export const Dog = z.object({ name: z.enum(["Spot", "Max"]), age: z.int().min(1).max(9), owner: z.enum(["Tom"]).nullable() });

export async function check(name, body) {
    await body();
    console.log(`ok - ${name}`);
}

// Joins what a stream gives; it must come in several pieces.
export async function join(stream, text) {
    let whole = "";
    let pieces = 0;
    for await (const piece of stream) {
        whole += text(piece) ?? "";
        pieces++;
    }
    assert.ok(pieces > 3, `${pieces} pieces`);
    assert.ok(whole.length > 0);
    return whole;
}
