#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the cases of bench/grammar/masks and peers.py: grammars, and texts that they take.

    make-cases.py OUTPUT.json
"""
import json
import random
import sys

WORDS = ("the sea was calm and grey under a sky that had no end in it when old man looked up from his work "
         "and said that nothing would ever be as it had been before the storm naïve café Zürich 東京 done").split()

C_LIKE = r'''root ::= (function ws)+
function ::= type " " ident "(" params? ")" ws block
params ::= type " " ident (", " type " " ident)*
type ::= ("int" | "char" | "double" | "void") " *"?
block ::= "{" ws (statement ws)* "}"
statement ::= "return" (" " expr)? ";" | "if (" expr ")" ws block (ws "else" ws block)? |
              "while (" expr ")" ws block | type " " ident " = " expr ";" | ident " = " expr ";" | expr ";"
expr ::= term (" " operator " " term)*
operator ::= "+" | "-" | "*" | "/" | "==" | "!=" | "<" | ">" | "<=" | "&&" | "||"
term ::= ident ("(" (expr (", " expr)*)? ")" | "[" expr "]")? | number | string | "(" expr ")" | "-" term
ident ::= [a-zA-Z_] [a-zA-Z0-9_]*
number ::= [0-9]+ ("." [0-9]+)?
string ::= "\"" ([^"\\\n] | "\\" [nrt"\\0])* "\""
ws ::= [ \n\t]*
'''

C_TEXT = '''int main(int argc, char * argv) {
    int total = 0;
    double mean_of_all = 3.25;
    while (total < 100 && argc > 1) {
        total = total + next_value(argv[argc - 1], "a name\\n");
        if (total == 42) {
            printf("the answer is %d\\n", total);
        } else {
            total = (total * 2) - -1;
        }
    }
    return total / 2;
}
void finish(char * reason) {
    log_message("finished", reason);
    return;
}
'''

REGEX = (r"\d{4}-(0[1-9]|1[0-2])-([0-2]\d|3[01])T\d{2}:\d{2}:\d{2}Z \[(INFO|WARN|ERROR)\] "
         r"[a-z]+(\.[a-z]+)*: [^\n]{1,200} \(user=[a-z0-9._]+@[a-z0-9-]+\.[a-z]{2,6}, took \d+(\.\d+)?ms\)")


def sentence(rng, n):
    return " ".join(rng.choice(WORDS) for _ in range(n))


def schema_of(rng, n):
    properties = {}
    for i in range(n):
        name = "_".join(rng.sample([w for w in WORDS if w.isascii()], 2)) + str(i)
        kind = i % 7
        properties[name] = (
            {"type": "string"} if kind in (0, 3) else {"type": "integer"} if kind == 1 else
            {"type": "number"} if kind == 2 else {"enum": ["red", "green", "blue", None]} if kind == 4 else
            {"type": "array", "items": {"type": "string"}} if kind == 5 else
            {"type": "object", "additionalProperties": False, "required": ["x", "label"],
             "properties": {"x": {"type": "integer"}, "label": {"type": "string", "maxLength": 60}}})
    return {"type": "object", "properties": properties, "required": list(properties),
            "additionalProperties": False}


def instance_of(rng, schema):
    if "enum" in schema:
        return rng.choice(schema["enum"])
    kind = schema["type"]
    if kind == "string":
        return sentence(rng, rng.randint(3, 20))[:schema.get("maxLength", 1000)]
    if kind == "integer":
        return rng.randint(-10**6, 10**6)
    if kind == "number":
        return round(rng.uniform(-1000, 1000), 3)
    if kind == "array":
        return [instance_of(rng, schema["items"]) for _ in range(rng.randint(0, 4))]
    return {k: instance_of(rng, v) for k, v in schema["properties"].items()}


def any_json(rng, depth):
    kind = rng.randint(0, 6) if depth else rng.randint(2, 6)
    if kind == 0:
        return {sentence(rng, 1) + str(i): any_json(rng, depth - 1) for i in range(rng.randint(1, 6))}
    if kind == 1:
        return [any_json(rng, depth - 1) for _ in range(rng.randint(0, 6))]
    return [sentence(rng, 6), rng.randint(-999, 99999), rng.random(), True, None][kind - 2]


def dump(value):
    return json.dumps(value, ensure_ascii=False)


def main():
    rng, cases = random.Random(23), []
    for n in (5, 20, 100):
        schema = schema_of(rng, n)
        texts = [dump(instance_of(rng, schema)) for _ in range(max(2, 200 // n))]
        cases.append({"name": f"schema-{n}", "kind": "schema", "grammar": dump(schema), "texts": texts})
    texts = [dump({f"k{i}": any_json(rng, 5) for i in range(5)}) for _ in range(20)]
    cases.append({"name": "json", "kind": "json", "grammar": "", "texts": texts})
    texts = [f"20{rng.randint(10, 30)}-0{rng.randint(1, 9)}-1{rng.randint(0, 9)}T12:{rng.randint(10, 59)}:30Z [WARN] "
             f"net.http.pool: {sentence(rng, 12)} (user=ann.b{i}@example-{i}.org, took {rng.randint(1, 999)}.5ms)"
             for i in range(20)]
    cases.append({"name": "regex", "kind": "regex", "grammar": REGEX, "texts": texts})
    cases.append({"name": "c-like", "kind": "gbnf", "grammar": C_LIKE, "texts": [C_TEXT] * 4})
    with open(sys.argv[1], "w", encoding="utf-8") as f:
        json.dump(cases, f, ensure_ascii=False, indent=1)


if __name__ == "__main__":
    main()
