// @openai/agents, over both of OpenAI's routes for chats.
import assert from "node:assert/strict";
import { Agent, OpenAIProvider, Runner, tool } from "@openai/agents";
import { Arguments, Dog, check, content, url } from "./common.mjs";

for (const useResponses of [false, true]) {
    const modelProvider = new OpenAIProvider({ baseURL: `${url}/v1`, apiKey: "none", useResponses });
    const runner = new Runner({ modelProvider, tracingDisabled: true });
    const route = useResponses ? "responses" : "chats";

    await check(`${route}: a tool is called, and the conversation is gone on with`, async () => {
        const given = [];
        const weather = tool({ name: "weather", description: "The weather.", parameters: Arguments, execute: (input) => (given.push(input), "sunny") });
        const agent = new Agent({ name: "a", model: "any", tools: [weather], modelSettings: { toolChoice: "required", temperature: 0 } });
        const first = await runner.run(agent, content);
        Arguments.parse(given[0]);
        const last = await runner.run(new Agent({ name: "b", model: "any", modelSettings: { temperature: 0 } }), [...first.history, { role: "user", content: "And then?" }], { stream: true });
        await last.completed;
        assert.ok(last.finalOutput.length > 0);
    });

    await check(`${route}: an output type is held`, async () => {
        Dog.parse((await runner.run(new Agent({ name: "a", model: "any", outputType: Dog, modelSettings: { temperature: 0 } }), content)).finalOutput);
    });
}
