// peer_llama.mjs - the speed of llama.cpp on this machine, to be set beside hearthd bench and bench_serve: llama.cpp as the
// npm package node-llama-cpp has it ready made (it picks the build for this CPU), flash attention on, weights and cache as
// they are. Nothing of Hearth uses it; install it in a folder of its own:
//
//   npm install --ignore-scripts node-llama-cpp@3.22.1
//   node peer_llama.mjs text MODEL PROMPT TEXT            tokens/s of a prompt, and of the text after it
//   node peer_llama.mjs streams MODEL N PROMPT TEXT       N at once, two rounds: tokens/s of prompts and texts, ms between tokens
//
// THREADS: 2 unless the variable says so. Medians of three, after one that does not count.
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

const installed = createRequire(process.cwd() + "/").resolve("node-llama-cpp");
const { getLlama } = await import(pathToFileURL(installed));
const [mode, modelPath, ...rest] = process.argv.slice(2);
const numbers = rest.map(Number), threads = Number(process.env.THREADS ?? 2), ROUNDS = 2;
const shape = { text: 2, streams: 3 }[mode];
if (!modelPath || numbers.length !== shape || !numbers.every((n) => n > 0)) {
    console.error("usage: peer_llama.mjs text MODEL PROMPT TEXT | streams MODEL N PROMPT TEXT");
    process.exit(2);
}

const llama = await getLlama({ gpu: false, build: "never", maxThreads: threads, logLevel: "error" });
const model = await llama.loadModel({ modelPath });
const greedy = { temperature: 0, yieldEogToken: true };
const prompt = (length, id) => Array.from({ length }, (_, i) => 1000 + ((i * 7919 + id * 131) % 50000)); // none begins as another
const median = (list) => list.sort((a, b) => a - b)[list.length >> 1].toFixed(1);
const open = (sequences, contextSize) =>
    model.createContext({ sequences, contextSize, threads, batchSize: 512, flashAttention: true });

async function text(nPrompt, nText) {
    const sequence = (await open(1, nPrompt + nText + 64)).getSequence(), reading = [], writing = [];
    for (let round = 0; round < 4; round++) {
        await sequence.clearHistory();
        const start = performance.now();
        await sequence.evaluateWithoutGeneratingNewTokens(prompt(nPrompt, round));
        const read = performance.now();
        let n = 0, first = 0;
        for await (const _ of sequence.evaluate([1234], greedy)) {
            first ||= performance.now();
            if (n++ === nText) break;
        }
        if (round === 0) continue;
        reading.push((nPrompt / (read - start)) * 1e3);
        writing.push((nText / (performance.now() - first)) * 1e3);
    }
    console.log(`prompt of ${nPrompt}: ${median(reading)} tokens/s; text behind it: ${median(writing)} tokens/s`);
}

async function streams(n, nPrompt, nText) {
    const context = await open(n, nPrompt + nText + 64), gaps = [], firsts = [];
    let tokens = 0, id = 0;
    const start = performance.now();
    await Promise.all(Array.from({ length: n }, () => context.getSequence()).map(async (sequence) => {
        for (let round = 0; round < ROUNDS; round++) {
            await sequence.clearHistory();
            let last = performance.now(), count = 0;
            for await (const _ of sequence.evaluate(prompt(nPrompt, id++), greedy)) {
                (count ? gaps : firsts).push(performance.now() - last);
                last = performance.now();
                if (++count === nText) break;
            }
            tokens += nPrompt + count;
        }
    }));
    const speed = (tokens / (performance.now() - start)) * 1e3;
    console.log(`${n} streams of ${nPrompt} + ${nText}: ${speed.toFixed(1)} tokens/s, between tokens ${median(gaps)} ms, first token ${median(firsts)} ms`);
}

await { text, streams }[mode](...numbers);
await llama.dispose();
