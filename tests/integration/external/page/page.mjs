// page.mjs URL KEYED_URL SLOW_URL [SHOTS] - the page at / in headless Chromium: what a person does there, and what a browser forbids it.
// What must be caught while it happens is asked of the slow daemon: a small model's text is over before a browser looks.
import assert from "node:assert";
import { chromium } from "playwright-core";

const [url, keyed, slow, shots] = process.argv.slice(2);
const browser = await chromium.launch({ executablePath: process.env.CHROMIUM || "/usr/bin/chromium", args: ["--no-sandbox"], timeout: 300000 });
const wide = { width: 1280, height: 860 }, phone = { width: 390, height: 844 };
let n = 0;

async function open(at, options = {}) {
  const context = await browser.newContext({ viewport: wide, ...options });
  context.setDefaultTimeout(300000); // of a machine that has other work
  const page = await context.newPage();
  const complaints = [], requests = [];
  page.on("console", m => m.type() === "error" && complaints.push(m.text()));
  page.on("pageerror", e => complaints.push(String(e)));
  page.on("request", r => requests.push(r.url()));
  const response = await page.goto(at);
  return { page, context, complaints, requests, response };
}
async function check(name, run) {
  await run();
  n++;
  console.log("ok", name);
}
// For the README: a page with a minute of other people's work in its charts.
async function shot(page, name) {
  if (!shots) return;
  for (let i = 0; i < 45; i++) {
    const many = 1 + Math.round(3 + 3 * Math.sin(i / 4));
    for (let k = 0; k < many; k++)
      fetch(url + "/generate", { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify({ prompt: "Once", max_tokens: 60 + 40 * k, ignore_eos: true }) }).catch(() => {});
    await new Promise(done => setTimeout(done, 1000));
  }
  await page.evaluate(() => document.querySelector("aside").scrollIntoView({ block: "end" })); // on a phone it is below
  await page.screenshot({ path: `${shots}/${name}.png` });
}

await check("it comes with a strict policy and loads nothing from other hosts", async () => {
  const { page, context, complaints, requests, response } = await open(url);
  const policy = response.headers()["content-security-policy"];
  assert.match(policy, /default-src 'none'/);
  assert.match(policy, /script-src 'sha256-/);
  assert.doesNotMatch(policy, /unsafe/);
  await page.waitForFunction(() => document.getElementById("state").textContent === "ready");
  assert.ok(requests.every(r => r.startsWith(url) || r.startsWith("data:")), requests.join(" "));
  assert.deepEqual(complaints, []);
  // The policy holds: a script that is not the page's own does not run.
  await page.evaluate(() => { const s = document.createElement("script"); s.textContent = "window.broken = 1"; document.body.append(s); });
  assert.equal(await page.evaluate(() => window.broken), undefined);
  await context.close();
});

await check("a prompt streams, and the launch counter stays at 1 while tokens rise", async () => {
  const { page, context, complaints } = await open(shots ? url : slow);
  await page.waitForFunction(() => document.getElementById("launches").textContent === "1");
  const before = Number((await page.textContent("#tokens")).replace(/,/g, ""));
  await page.fill("#prompt", "The little dog");
  await page.click("summary");
  await page.fill("#max_tokens", "120");
  await page.fill("#temperature", "0");
  const lengths = page.evaluate(() => new Promise(done => {
    const seen = [], out = document.getElementById("out");
    new MutationObserver(() => { seen.push(out.textContent.length); if (seen.length > 20) done(seen); }).observe(out, { childList: true, subtree: true, characterData: true });
  }));
  await page.click("#go");
  const seen = await lengths;
  assert.ok(seen.at(-1) > seen[2], "the text grows: " + seen);
  await page.waitForFunction(() => /tokens\/s/.test(document.getElementById("timing").textContent));
  const text = await page.textContent("#out");
  assert.ok(text.startsWith("The little dog") && text.length > 100, text);
  await page.waitForFunction(b => Number(document.getElementById("tokens").textContent.replace(/,/g, "")) > b, before);
  assert.equal(await page.textContent("#launches"), "1");
  assert.deepEqual(complaints, []);
  await shot(page, "page-wide");
  await context.close();
});

await check("four charts say what they show, how high they reach and for how long", async () => {
  const { page, context, complaints } = await open(url);
  const label = id => page.getAttribute(id, "aria-label");
  const drawn = id => page.waitForFunction(i => (document.querySelector(i + " .line:last-child").getAttribute("d") || "").includes("L"), id);
  await page.evaluate(() => { window.settingsBefore = settings; settings = () => ({ ...window.settingsBefore(), ignore_eos: true, max_tokens: 400 }); });
  await page.click("#go");
  for (const id of ["#chart-tps", "#chart-queue", "#chart-kv", "#chart-launches"]) await drawn(id);
  const stats = await page.evaluate(async () => (await fetch("stats")).json());
  const pages = stats.kv.pages_total.toLocaleString("en");
  assert.match(await label("#chart-kv"), new RegExp(`^KV cache pages held: \\d+ of ${pages} now; at most .* in the last two minutes, scale 0 to ${pages}$`));
  assert.equal(await page.textContent("#chart-kv-top"), pages);
  assert.equal(await page.textContent("#kv-total"), pages);
  assert.match(await label("#chart-queue"), /^Requests: \d+ running and \d+ waiting now/);
  assert.match(await label("#chart-launches"), /^Launches of the decoder: \d+ now; at most \d+ in/);
  await page.waitForFunction(() => { const most = /at most ([\d,]+)/.exec(document.getElementById("chart-tps").getAttribute("aria-label")); return most && most[1] !== "0"; });
  const [most, end] = (await label("#chart-tps")).match(/at most ([\d,]+).*0 to ([\d,]+)/).slice(1).map(n => Number(n.replace(/,/g, "")));
  assert.ok(most <= end && /^[125]0*$/.test(String(end)), `${most} of ${end}`);
  assert.equal(await page.getByRole("img").count(), 4);
  assert.equal(await page.locator(".plot .x", { hasText: "2 min ago" }).count(), 4);
  assert.deepEqual(await page.evaluate(() => [1, 1.2, 3, 10, 11, 500, 501].map(above)), [1, 2, 5, 10, 20, 500, 1000]);
  assert.deepEqual(complaints, []);
  await context.close();
});

await check("a chat says when its answer was cut at max_tokens, and only then", async () => {
  const { page, context } = await open(url);
  await page.click("#tab-chat");
  await page.click("summary");
  await page.fill("#max_tokens", "3");
  await page.fill("#message", "Tell me a story.");
  await page.click("#go");
  await page.waitForFunction(() => /3 tokens .*cut at max_tokens/.test(document.getElementById("timing").textContent));
  assert.equal(await page.locator(".turn.assistant.cut").count(), 1);
  await page.evaluate(() => { const before = settings; settings = () => ({ ...before(), stop: [" "], max_tokens: 400 }); });
  await page.fill("#message", "Another.");
  await page.click("#go");
  await page.waitForFunction(() => !document.getElementById("go").disabled);
  assert.match(await page.textContent("#timing"), /with the prompt$/);
  assert.equal(await page.locator(".turn.assistant.cut").count(), 1);
  await context.close();
});

await check("Stop ends a generation, on the server too", async () => {
  const { page, context } = await open(slow);
  await page.click("summary");
  await page.fill("#max_tokens", "1000");
  await page.fill("#prompt", "Once");
  await page.evaluate(() => { window.settingsBefore = settings; settings = () => ({ ...window.settingsBefore(), ignore_eos: true }); });
  await page.click("#go");
  await page.waitForFunction(() => document.getElementById("out").textContent.length > 20);
  await page.click("#stop");
  await page.waitForFunction(() => document.getElementById("timing").textContent === "stopped");
  await page.waitForFunction(async () => (await (await fetch("stats")).json()).requests.running === 0);
  const stats = await page.evaluate(async () => (await fetch("stats")).json());
  assert.ok(stats.requests.cancelled >= 1);
  await context.close();
});

await check("a chat that is cleared while it is answered leaves nothing behind", async () => {
  const { page, context } = await open(url);
  await page.click("#tab-chat");
  await page.click("summary");
  await page.fill("#max_tokens", "900");
  await page.fill("#message", "Tell me a story.");
  await page.evaluate(async () => {
    document.getElementById("go").click();
    while (!document.querySelector(".turn.assistant")?.textContent) await new Promise(done => setTimeout(done, 1));
    document.getElementById("clear").click();
  });
  await page.waitForFunction(() => !document.getElementById("go").disabled);
  await page.fill("#message", "Another.");
  const [request] = await Promise.all([page.waitForRequest(/completions/), page.click("#go")]);
  assert.deepEqual(request.postDataJSON().messages, [{ role: "user", content: "Another." }]);
  await context.close();
});

// --- the chat ---
// The next answers are these chunks, as a server would stream them.
async function answerWith(page, ...deltas) {
  await page.unroute("**/v1/chat/completions");
  const events = [...deltas.map(delta => ({ choices: [{ index: 0, delta }] })), { choices: [{ index: 0, delta: {}, finish_reason: "stop" }] },
    { choices: [], usage: { completion_tokens: 7 } }];
  await page.route("**/v1/chat/completions", route => route.fulfill({
    status: 200, contentType: "text/event-stream", body: events.map(e => `data: ${JSON.stringify(e)}\n\n`).join("") + "data: [DONE]\n\n" }));
}
async function say(page, text) {
  await page.fill("#message", text);
  const [request] = await Promise.all([page.waitForRequest("**/v1/chat/completions"), page.click("#go")]);
  await page.waitForFunction(() => !document.getElementById("go").disabled);
  return request.postDataJSON();
}

await check("reasoning is folded away, calls are shown, and their results go back", async () => {
  const { page, context, complaints } = await open(url);
  await page.click("#tab-chat");
  await answerWith(page, { reasoning_content: "Think of " }, { reasoning_content: "the *weather*." }, { content: "Let me look." },
    { tool_calls: [{ index: 0, id: "call-1", function: { name: "weather", arguments: "{\"city\":" } }] },
    { tool_calls: [{ index: 0, function: { arguments: "\"Ulm\"}" } }] });
  await say(page, "Will it rain?");
  const think = page.locator(".turn.assistant details.think"), call = page.locator(".turn.assistant details.call");
  assert.equal(await think.evaluate(d => d.open), false);
  assert.equal(await think.locator("em").textContent(), "weather");
  assert.equal(await call.evaluate(d => d.open), true);
  assert.match(await call.textContent(), /weather\s*{\s*"city": "Ulm"\s*}/);
  assert.equal(await page.getAttribute("#message", "placeholder"), "The result of weather");
  await answerWith(page, { content: "Yes." });
  const body = await say(page, "rain");
  assert.deepEqual(body.messages.map(m => m.role), ["user", "assistant", "tool"]);
  assert.deepEqual(body.messages[1].tool_calls, [{ id: "call-1", type: "function", function: { name: "weather", arguments: "{\"city\":\"Ulm\"}" } }]);
  assert.deepEqual(body.messages[2], { role: "tool", content: "rain", tool_call_id: "call-1" });
  assert.equal(await page.getAttribute("#message", "placeholder"), "Your message");
  assert.deepEqual(complaints, []);
  await context.close();
});

if (shots) { // for the README: a conversation with the demo's model, and an answer in a form
  const { page, context } = await open(url, { viewport: { width: 1280, height: 1190 } });
  const schema = { type: "object", properties: { name: { type: "string", pattern: "^[A-Z][a-z]{2,9}$" }, animal: { enum: ["dog", "cat", "bird"] },
    likes: { type: "array", items: { enum: ["the park", "the ball", "to run", "to sleep"] }, minItems: 1, maxItems: 2, uniqueItems: true } },
    required: ["name", "animal", "likes"], additionalProperties: false };
  await page.click("#tab-chat");
  await page.click("summary");
  await page.fill("#max_tokens", "90");
  await page.fill("#seed", "3");
  await page.click("summary");
  await say(page, "Tell me a story about a dog.");
  await page.click("#form > summary");
  await page.fill("#schema", JSON.stringify(schema));
  await page.waitForFunction(() => /takes this schema/.test(document.getElementById("schema-verdict").textContent));
  await say(page, "Who is in it?");
  await shot(page, "page-chat");
  await context.close();
}

await check("Markdown becomes what it says", async () => {
  const { page, context } = await open(url);
  const html = text => page.evaluate(t => { const box = document.createElement("div"); box.append(markdown(t)); return box.innerHTML; }, text);
  assert.equal(await html("# A\ntext **bold** `a*b*` *it*\n\n- one\n- two\n\n3. x"),
    "<h3>A</h3><p>text <strong>bold</strong> <code>a*b*</code> <em>it</em></p><ul><li>one</li><li>two</li></ul><ol start=\"3\"><li>x</li></ol>");
  assert.equal(await html("```c\nif (a < b)\n\n  *x*;\n```\nafter"), "<pre><code>if (a &lt; b)\n\n  *x*;</code></pre><p>after</p>");
  assert.equal(await html("```\nnot closed"), "<pre><code>not closed</code></pre>");
  assert.equal(await html("| a | b |\n|---|:-:|\n| 1 | **2** |"), "<div class=\"table\"><table><tr><th>a</th><th>b</th></tr><tr><td>1</td><td><strong>2</strong></td></tr></table></div>");
  assert.equal(await html("> q\n> r\n\n---"), "<blockquote><p>q\nr</p></blockquote><hr>");
  assert.equal(await html("[h](https://a.b/c)"), "<p><a href=\"https://a.b/c\" target=\"_blank\" rel=\"noopener noreferrer\">h</a></p>");
  assert.equal(await html("2 * 3 * 4 and snake_case_name"), "<p>2 * 3 * 4 and snake_case_name</p>");
  // Nothing that is made to be slow is: each of these ends.
  for (const bad of ["*".repeat(50000), "[".repeat(50000), "> ".repeat(3000), "`".repeat(50000), "| ".repeat(20000) + "\n" + "-".repeat(50000), ("- ".repeat(1000) + "\n").repeat(20)]) await html(bad);
  await context.close();
});

const attacks = ["<img src=x onerror='window.broken=1'>", "<script>window.broken=1</scr" + "ipt>", "[x](javascript:window.broken=1)", "[x](JaVaScRiPt:window.broken=1)",
  "[x](data:text/html,<script>window.broken=1</scr" + "ipt>)", "[x](vbscript:x)", "![x](https://elsewhere.example/x.png)", "<a href='javascript:window.broken=1'>x</a>",
  "```<img src=x onerror=window.broken=1>\n<svg onload=window.broken=1>\n```", "| <iframe src=javascript:window.broken=1> | b |\n|---|---|", "# <style>*{display:none}</style>",
  "> <svg onload=window.broken=1>", "[a\" onmouseover=window.broken=1](https://a.b/\"onmouseover=window.broken=1)", "<https://a.b/'onclick=window.broken=1>"].join("\n\n");
async function expectHarmless(page, complaints) {
  const found = await page.evaluate(() => ({
    broken: window.broken,
    strange: [...document.querySelectorAll("#talk *")].map(e => e.tagName).filter(t => ["IMG", "SCRIPT", "IFRAME", "SVG", "STYLE", "OBJECT", "FORM", "INPUT"].includes(t.toUpperCase())),
    handlers: [...document.querySelectorAll("#talk *")].flatMap(e => e.getAttributeNames()).filter(n => n.startsWith("on")),
    links: [...document.querySelectorAll("#talk a")].map(a => a.protocol).filter(p => !["http:", "https:", "mailto:"].includes(p)),
  }));
  assert.deepEqual(found, { broken: undefined, strange: [], handlers: [], links: [] });
  assert.deepEqual(complaints, []); // nor was the policy needed
}

await check("nothing that a model writes becomes code", async () => {
  const { page, context, complaints, requests } = await open(url);
  await page.click("#tab-chat");
  await answerWith(page, { reasoning_content: attacks }, { content: attacks }, { tool_calls: [{ index: 0, id: attacks, function: { name: attacks, arguments: attacks } }] });
  await say(page, attacks);
  for (const details of await page.locator("#talk details").all()) await details.evaluate(d => { d.open = true; });
  for (const link of await page.locator("#talk a").all()) await link.hover();
  await expectHarmless(page, complaints);
  assert.ok((await page.textContent("#talk")).includes("onerror='window.broken=1'"), "it is shown as text");
  // Nor what another has put into the browser's storage.
  await page.evaluate(a => localStorage.setItem("hearth-talks", JSON.stringify([{ messages: [{ role: "user\"><img src=x onerror=window.broken=1>", content: a },
    { role: "assistant", content: a, reasoning: { toString: 1 }, calls: [{ name: a, arguments: a }] }] }, { messages: "<img>" }, null].slice(0, 1))), attacks);
  await page.reload();
  await page.click("#tab-chat");
  await page.waitForSelector(".turn.assistant");
  await expectHarmless(page, complaints);
  await page.evaluate(() => localStorage.setItem("hearth-talks", "{broken"));
  await page.reload();
  assert.equal(await page.locator(".turn").count(), 0);
  assert.ok(requests.every(r => r.startsWith(url) || r.startsWith("data:")), requests.join(" "));
  await context.close();
});

await check("a schema is judged as one types, and the answer matches it", async () => {
  const { page, context } = await open(url);
  const judged = words => page.waitForFunction(w => document.getElementById("schema-verdict").textContent.includes(w), words);
  await page.click("#tab-chat");
  await page.click("#form summary");
  await page.fill("#schema", '{"type":');
  await judged("Not JSON");
  assert.equal(await page.getAttribute("#schema", "aria-invalid"), "true");
  await page.fill("#message", "Hello");
  await page.click("#go");
  assert.equal(await page.locator(".turn").count(), 0, "it is not sent");
  await page.fill("#schema", '{"type":"object","properties":{"a":{"type":"strange"}}}');
  await judged("type");
  assert.equal(await page.getAttribute("#schema", "aria-invalid"), "true");
  await page.fill("#schema", '{"type":"object","properties":{"good":{"type":"boolean"}},"required":["good"],"additionalProperties":false}');
  await judged("The server takes this schema.");
  await page.fill("#tools", "7");
  await page.waitForFunction(() => /tools/.test(document.getElementById("tools-verdict").textContent));
  await page.fill("#tools", "");
  await page.waitForFunction(() => document.getElementById("tools-verdict").textContent === "");
  await say(page, "Hello");
  assert.equal(typeof JSON.parse(await page.textContent(".turn.assistant")).good, "boolean");
  await context.close();
});

await check("conversations stay in the browser, and Clear takes one away", async () => {
  const { page, context } = await open(url);
  const titles = () => page.evaluate(() => [...document.getElementById("talks").options].map(o => o.text));
  await page.click("#tab-chat");
  await answerWith(page, { content: "**One.**" });
  await say(page, "first talk");
  await page.click("#new");
  assert.equal(await page.locator(".turn").count(), 0);
  await answerWith(page, { content: "Two." });
  assert.deepEqual((await say(page, "second talk")).messages, [{ role: "user", content: "second talk" }]);
  await page.reload();
  await page.click("#tab-chat");
  assert.deepEqual(await titles(), ["second talk", "first talk"]);
  await page.selectOption("#talks", "1");
  assert.equal(await page.textContent(".turn.assistant strong"), "One.");
  await page.click("#clear");
  await page.reload();
  assert.deepEqual(await titles(), ["second talk"]);
  await context.close();
});

await check("an answer can be stopped, and another asked for", async () => {
  const { page, context } = await open(slow);
  await page.click("#tab-chat");
  await page.evaluate(() => { const before = settings; settings = () => ({ ...before(), ignore_eos: true, max_tokens: 1000 }); });
  await page.fill("#message", "Tell me a story.");
  await page.click("#go");
  await page.waitForFunction(() => document.querySelector(".turn.assistant")?.textContent.length > 5);
  assert.ok(await page.isDisabled("#again"));
  await page.click("#stop");
  await page.waitForFunction(() => document.getElementById("timing").textContent === "stopped");
  assert.equal(await page.locator(".turn.assistant").count(), 1, "what has come stays");
  await answerWith(page, { content: "Another story." });
  const [request] = await Promise.all([page.waitForRequest("**/v1/chat/completions"), page.click("#again")]);
  assert.deepEqual(request.postDataJSON().messages, [{ role: "user", content: "Tell me a story." }]);
  await page.waitForFunction(() => document.querySelector(".turn.assistant").textContent === "Another story.");
  await page.unroute("**/v1/chat/completions");
  await page.route("**/v1/chat/completions", route => route.abort());
  await page.click("#again");
  await page.waitForFunction(() => !document.getElementById("go").disabled);
  assert.equal(await page.textContent(".turn.assistant"), "Another story.", "a failed one costs nothing");
  await context.close();
});

await check("it works from the keyboard alone", async () => {
  const { page, context } = await open(url);
  await page.focus("#prompt");
  await page.keyboard.press("Control+Enter");
  await page.waitForFunction(() => document.getElementById("out").textContent.length > 30);
  await page.keyboard.press("Escape");
  await page.waitForFunction(() => !document.getElementById("go").disabled);
  await page.focus("#tab-prompt");
  await page.keyboard.press("ArrowRight");
  assert.equal(await page.getAttribute("#tab-chat", "aria-selected"), "true");
  assert.ok(await page.isVisible("#message"));
  await context.close();
});

await check("trouble is shown in the server's words", async () => {
  const { page, context } = await open(url);
  await page.click("summary");
  await page.fill("#temperature", "7");
  await page.click("#go");
  await page.waitForFunction(() => /temperature must be/.test(document.getElementById("timing").textContent));
  await context.close();
});

await check("with keys on it asks for one, and keeps it", async () => {
  const { page, context } = await open(keyed);
  await page.waitForSelector("#keybox.wanted");
  await page.fill("#key", "wrong");
  await page.keyboard.press("Enter");
  await page.waitForFunction(() => /not known/.test(document.getElementById("keyerror").textContent));
  await page.fill("#key", "page-key");
  await page.keyboard.press("Enter");
  await page.waitForFunction(() => document.getElementById("state").textContent === "ready");
  await page.waitForFunction(() => !document.getElementById("keybox").classList.contains("wanted"));
  await page.click("#go");
  await page.waitForFunction(() => document.getElementById("out").textContent.length > 30);
  await context.close();
});

await check("a page elsewhere may ask, with the headers that the openai client sends", async () => {
  const { page, context } = await open(url + "/health"); // no policy of its own: the origin counts
  const answer = (at, headers) => page.evaluate(([a, h]) => fetch(a, { headers: h }).then(r => r.status, e => e.name), [at, headers]);
  const headers = { Authorization: "Bearer page-key", "Content-Type": "application/json", "X-Stainless-OS": "Linux", "X-Stainless-Retry-Count": "0" };
  assert.equal(await answer(keyed + "/v1/models", headers), 200);
  assert.equal(await answer(slow + "/v1/models", headers), "TypeError"); // its cors_origins lists no origin
  await context.close();
});

await check("on a phone nothing is cut off, in the dark neither", async () => {
  for (const colorScheme of ["light", "dark"]) {
    const { page, context } = await open(url, { viewport: phone, colorScheme, isMobile: true, hasTouch: true });
    await page.waitForFunction(() => document.getElementById("state").textContent === "ready");
    await page.tap("#go");
    await page.waitForFunction(() => /tokens\/s/.test(document.getElementById("timing").textContent));
    const width = await page.evaluate(() => document.documentElement.scrollWidth);
    assert.ok(width <= phone.width, `the page is ${width} wide`);
    const small = await page.evaluate(() => [...document.querySelectorAll("button")].filter(b => b.offsetParent && b.getBoundingClientRect().height < 36).map(b => b.id));
    assert.deepEqual(small, []);
    await shot(page, "page-phone-" + colorScheme);
    await context.close();
  }
});

await browser.close();
console.log(`${n} checks of the page passed`);
