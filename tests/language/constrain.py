#!/usr/bin/env python3
"""constrain.py - runs `hearthd constrain` over real schemas and the JSON Schema Test Suite.

usage: constrain.py HEARTHD LANGUAGE_DIR [--verbose]
Every valid instance is accepted (compact, and with a blank after , and :; whole numbers in digits), every invalid one refused; a schema that cannot be
enforced exactly is refused by name (exit code 3). At most 15 % of the real schemas may be. Exit code 1 on any wrong answer. One
process checks all instances of a schema, a line each.
"""
import collections
import concurrent.futures
import json
import os
import subprocess
import sys
import tempfile

HEARTHD, LANGUAGE = sys.argv[1:3]
VERBOSE = "--verbose" in sys.argv
ACCEPTED, REFUSED, NOT_HELD = 0, 1, 3


def constrain(path, texts):
    """The exit code, the verdict on each text, and all words."""
    lines = "".join(text + "\n" for text in texts).encode()
    p = subprocess.run([HEARTHD, "constrain", "--lines", "--schema", path], input=lines, capture_output=True, timeout=120)
    verdicts = p.stdout.decode().splitlines()
    if len(verdicts) == 1: # a schema that no text matches is refused once
        verdicts *= len(texts)
    return p.returncode, verdicts, p.stdout.decode() + p.stderr.decode()


def resolve(root, ref):
    """The target of a local reference; other targets say nothing about the order of keys."""
    if ref == "#":
        return root
    if not ref.startswith("#/"):
        return None
    node = root
    for part in ref[2:].split("/"):
        part = part.replace("~1", "/").replace("~0", "~").replace("%25", "%").replace("%22", '"')
        try:
            node = node[int(part)] if isinstance(node, list) else node[part]
        except (KeyError, IndexError, ValueError):
            return None
    return node


def in_place(root, schema, seen):
    """A schema and those that apply to the same value: own, allOf, anyOf, oneOf, $ref, conditions."""
    if not isinstance(schema, dict) or id(schema) in seen:
        return
    seen.add(id(schema))
    yield schema
    for word in ("allOf", "anyOf", "oneOf"):
        for sub in schema.get(word, []) if isinstance(schema.get(word), list) else []:
            yield from in_place(root, sub, seen)
    if isinstance(schema.get("$ref"), str):
        yield from in_place(root, resolve(root, schema["$ref"]), seen)
    for word in ("if", "then", "else", "not"):
        yield from in_place(root, schema.get(word), seen)
    for word in ("dependentSchemas", "dependencies"):
        for sub in schema.get(word, {}).values() if isinstance(schema.get(word), dict) else []:
            yield from in_place(root, sub, seen)


def ordered(root, schemas, value):
    """The value with its keys in the order of the schemas' properties."""
    places = [s for top in schemas for s in in_place(root, top, set())]
    if isinstance(value, list):
        out = []
        for i, v in enumerate(value):
            below = []
            for s in places:
                prefix = s.get("prefixItems", [])
                items = s.get("items")
                if isinstance(items, list):
                    prefix, items = items, s.get("additionalItems")
                below.append(prefix[i] if isinstance(prefix, list) and i < len(prefix) else items)
            out.append(ordered(root, below, v))
        return out
    if not isinstance(value, dict):
        return value
    keys = []
    for s in places:
        keys += [k for k in s.get("properties", {}) if k in value] if isinstance(s.get("properties"), dict) else []
        for c in [s.get("const")] + (s.get("enum") if isinstance(s.get("enum"), list) else []):
            keys += [k for k in c if k in value] if isinstance(c, dict) else []
    keys = list(dict.fromkeys(keys + list(value)))
    out = {}
    for k in keys:
        below = []
        for s in places:
            named = s.get("properties", {}).get(k) if isinstance(s.get("properties"), dict) else None
            below.append(named if named is not None else s.get("additionalProperties"))
        out[k] = ordered(root, below, value[k])
    return out


def in_digits(value):
    """The value with whole floats as integers: where only integers are valid, 1.0 is written 1."""  # other 1.0: test_schema.c
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**63:
        return int(value)
    if isinstance(value, list):
        return [in_digits(v) for v in value]
    return {k: in_digits(v) for k, v in value.items()} if isinstance(value, dict) else value


def spellings(value, valid):
    if valid:
        value = in_digits(value)
    yield json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    yield json.dumps(value)


def judge(path, cases):
    """[(name, wanted, got text)] of what went wrong, or None when the schema was refused by name."""
    asked = [(name, valid, text) for name, value, valid in cases for text in spellings(value, valid)]
    code, verdicts, words = constrain(path, [text for _, _, text in asked])
    if code == NOT_HELD:
        return None, words.strip()
    if code not in (ACCEPTED, REFUSED) or len(verdicts) != len(asked):
        return [("all", True, f"{code} {words.strip()}")], ""
    wrong = []
    for (name, valid, text), verdict in zip(asked, verdicts):
        if verdict.startswith("accepted") != valid:
            wrong.append((name, valid, f"{verdict} {text[:300]}"))
    return wrong, ""


def real_schemas():
    folder = os.path.join(LANGUAGE, "schemas")
    for name in sorted(os.listdir(folder)):
        with open(os.path.join(folder, name)) as f:
            j = json.load(f)
        cases = [(str(i.get("src")), i["instance"], True) for i in j["valid"]]
        cases += [(str(i.get("src") or i.get("made")) + " " + str(i.get("breaks")), i["instance"], False) for i in j["invalid"]]
        yield name, j["schema"], cases


def suite():
    folder = os.path.join(LANGUAGE, "json-schema-test-suite/tests/draft2020-12")
    for name in sorted(os.listdir(folder)):
        if not name.endswith(".json"):
            continue
        with open(os.path.join(folder, name)) as f:
            groups = json.load(f)
        for g in groups:
            cases = [(t["description"], ordered(g["schema"], [g["schema"]], t["data"]), t["valid"]) for t in g["tests"]]
            yield f"{name}: {g['description']}", g["schema"], cases


def run(schemas):
    def one(item):
        name, schema, cases = item
        with tempfile.NamedTemporaryFile("w", suffix=".json") as f:
            json.dump(schema, f)
            f.flush()
            return (name, len(cases)) + judge(f.name, cases)

    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        return list(pool.map(one, schemas))


def report(title, results):
    refused = [r for r in results if r[2] is None]
    wrong = [(r[0], w) for r in results if r[2] for w in r[2]]
    cases = sum(r[1] for r in results)
    held = sum(r[1] for r in results if r[2] is not None)
    print(f"{title}: {len(results)} schemas, {len(refused)} refused by name; {held} of {cases} cases held, {len(wrong)} wrong")
    for name, w in wrong if VERBOSE else wrong[:20]:
        print(f"  wrong: {name}: {w[0]}: valid is {w[1]}, but {w[2]}")
    words = collections.Counter(r[3].split(" at ")[0] for r in refused)
    print("  refused: " + ", ".join(f"{k} {n}" for k, n in words.most_common()))
    for r in refused if VERBOSE else []:
        print(f"  {r[0]}: {r[3]}")
    return len(refused) / max(1, len(results)), len(wrong)


def main():
    share, wrong = report("schemas", run(real_schemas()))
    _, wrong_suite = report("suite", run(suite()))
    if share > 0.15:
        print("more than 15 % of the real schemas are refused")
    sys.exit(1 if wrong or wrong_suite or share > 0.15 else 0)


main()
