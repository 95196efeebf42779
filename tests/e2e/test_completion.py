#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Completion of options in shells: what the programs take is offered, nothing else, by the shells
themselves where they are installed."""
import os
import re
import shutil
import subprocess
import sys
import tempfile

from harness import BUILD, PATIENCE, SRC, Skip, main

PROGRAMS = {"mixd": "daemon/main.c", "mixd-eval": "tools/eval.c", "mixctl": "tools/mixctl/main.c"}
COMPLETION = os.path.join(BUILD, "completion")
FILES = {"bash": "{}.bash", "zsh": "_{}", "fish": "{}.fish"}


def script(shell, program):
    return os.path.join(COMPLETION, FILES[shell].format(program))


def read(path):
    with open(path, encoding="utf-8") as f:
        return f.read()


def options(program):
    """The long options that the program says and that it takes."""
    said = set(re.findall(r"--([a-z0-9-]+)", subprocess.run(
        [os.path.join(BUILD, program), "--help"], capture_output=True, text=True, timeout=PATIENCE).stdout))
    taken = set(re.findall(r'"([a-z0-9-]+)",\s*(?:no|required|optional)_argument', read(os.path.join(SRC, PROGRAMS[program]))))
    assert len(taken) >= 5 and said - {"help"} == taken - {"help"}, (program, said ^ taken)
    return taken


def commands():
    return re.findall(r"^  ([a-z]+) ", subprocess.run(
        [os.path.join(BUILD, "mixctl"), "--help"], capture_output=True, text=True, timeout=PATIENCE).stdout, re.M)


def run(shell, *args, **kw):
    if not shutil.which(shell):
        raise Skip("no " + shell)
    p = subprocess.run([shell, *args], capture_output=True, text=True, timeout=PATIENCE,
                       env=dict(os.environ, HOME=tempfile.gettempdir(), TERM="dumb"), **kw)
    assert p.returncode == 0 and not p.stderr, (args, p.stdout, p.stderr)
    return p.stdout


def test_every_option_is_in_every_script():
    for program in PROGRAMS:
        expected = options(program)
        forms = {"bash": r"--([a-z0-9-]+)(?=[ \")|])", "zsh": r"--([a-z0-9-]+)(?==?[\[}])", "fish": r" -l ([a-z0-9-]+)"}
        for shell, form in forms.items():
            found = set(re.findall(form, read(script(shell, program))))
            assert found == expected, (program, shell, found ^ expected)


def bash(program, *words):
    """What bash offers for the last word."""
    text = f'. {script("bash", program)}; compopt() {{ :; }}; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); ' \
           f'_{program}; printf "%s\\n" "${{COMPREPLY[@]}}"'
    return set(run("bash", "-c", text, "bash", program, *words).split())


def fish(line):
    program = line.split()[0]
    text = run("fish", "--no-config", "-c", f'source {script("fish", program)}; complete -C "{line}"')
    return {item.split("\t")[0] for item in text.splitlines()}


def test_bash():
    for program in PROGRAMS:
        assert {w for w in bash(program, "--") if w} == {"--" + o for o in options(program)}, program
    assert bash("mixd", "--de") == {"--deep", "--device"}
    assert bash("mixd", "--device", "cu") == {"cuda"} == bash("mixd", "--device", "=", "cu")
    assert bash("mixctl", "dr") == {"drain"} and bash("mixctl", "") == set(commands())
    assert bash("mixctl", "log", "w") == {"warning"} and bash("mixctl", "drain", "") == set()
    with tempfile.TemporaryDirectory() as folder:
        os.mkdir(os.path.join(folder, "a model"))
        with open(os.path.join(folder, "a file"), "w"):
            pass
        for program, found in {"mixd": {"a file", "a model"}, "mixd-eval": {"a model"}}.items():
            text = f'. {script("bash", program)}; compopt() {{ :; }}; COMP_WORDS=({program} --model "{folder}/a"); ' \
                   f'COMP_CWORD=2; _{program}; printf "%s\\n" "${{COMPREPLY[@]}}"'
            assert set(run("bash", "-c", text).splitlines()) == {f"{folder}/{f}" for f in found}, program


def test_fish():
    for program in PROGRAMS:
        assert fish(program + " --") == {"--" + o for o in options(program)}, program
    assert fish("mixctl dr") == {"drain"} and fish("mixctl ") == set(commands())
    assert fish("mixctl log w") == {"warning"}




def zsh(line):
    """The line after a tab."""
    text = f'''zmodload zsh/zpty; zpty shell zsh -f -i
zpty -w shell "PS1=; unsetopt zle_bracketed_paste beep; fpath=({COMPLETION} \\$fpath); autoload -U compinit; compinit -u -D"
zpty -w shell "end-it() {{ print -r -- \\"<<\\$BUFFER>>\\"; exit }}; zle -N end-it; bindkey '^X' end-it; print ready\\"\\"now"
zpty -r -m shell out '*readynow*'
zpty -w -n shell "{line}"$'\\t'$'\\x18'
zpty -r -m shell out '*>>*'
print -r -- "$out"'''
    found = re.findall(r"<<(.*?)>>", run("zsh", "-f", "-c", text), re.S)
    assert found, line
    return found[-1]


def test_zsh():
    assert zsh("mixd --dee") == "mixd --deep "
    assert zsh("mixd --conf") == "mixd --config="
    assert zsh("mixd --device cud") == "mixd --device cuda "
    assert zsh("mixd-eval --kv-f") == "mixd-eval --kv-fp8 "
    assert zsh("mixctl und") == "mixctl undrain "
    assert zsh("mixctl log warn") == "mixctl log warning "


main(sys.modules[__name__])
