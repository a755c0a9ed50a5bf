"""Shell completion, generated from the parser itself, so that it cannot fall behind."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

SHELLS = ("bash", "zsh", "fish")


def words(parser: argparse.ArgumentParser) -> dict[str, tuple[str, list[str]]]:
    """`{command: (help, words that may follow)}`; the empty command holds the commands themselves."""
    table: dict[str, tuple[str, list[str]]] = {}
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            helps = {choice.dest: choice.help or "" for choice in action._choices_actions}
            table[""] = ("", [*action.choices, *_words(parser)])
            for name, sub in action.choices.items():
                table[name] = (helps.get(name, ""), _words(sub))
    return table


def _words(parser: argparse.ArgumentParser) -> list[str]:
    found: list[str] = []
    for action in parser._actions:
        found += [option for option in action.option_strings if option.startswith("--")]
        if action.choices and not isinstance(action, argparse._SubParsersAction):
            found += [str(choice) for choice in action.choices]
    return found


def render(parser: argparse.ArgumentParser, shell: str) -> str:
    """The completion script for a shell of `SHELLS`."""
    table = words(parser)
    return {"bash": _bash, "zsh": _zsh, "fish": _fish}[shell](table)


def _cases(table: dict[str, tuple[str, list[str]]]) -> Sequence[str]:
    return [f'        {name}) words="{" ".join(follow)}" ;;' for name, (_, follow) in table.items() if name]


def _bash(table: dict[str, tuple[str, list[str]]]) -> str:
    lines = [
        "# bash completion for specswap; to use it: source <(./specswap completion bash)",
        "_specswap() {",
        "    local words",
        '    case "${COMP_WORDS[1]}" in',
        *_cases(table),
        f'        *) words="{" ".join(table[""][1])}" ;;',
        "    esac",
        f'    if [ "$COMP_CWORD" -eq 1 ]; then words="{" ".join(table[""][1])}"; fi',
        '    mapfile -t COMPREPLY < <(compgen -W "$words" -- "${COMP_WORDS[COMP_CWORD]}")',
        "}",
        "complete -o default -F _specswap specswap ./specswap",
    ]
    return "\n".join(lines) + "\n"


def _zsh(table: dict[str, tuple[str, list[str]]]) -> str:
    lines = [
        "#compdef specswap",
        "# zsh completion for specswap; to use it: source <(./specswap completion zsh)",
        "_specswap() {",
        "    if (( CURRENT == 2 )); then",
        "        compadd -- " + " ".join(table[""][1]),
        "        return",
        "    fi",
        "    case ${words[2]} in",
        *[f"        {name}) compadd -- {' '.join(follow)} ;;" for name, (_, follow) in table.items() if name],
        "    esac",
        "}",
        "compdef _specswap specswap ./specswap",
    ]
    return "\n".join(lines) + "\n"


def _fish(table: dict[str, tuple[str, list[str]]]) -> str:
    lines = ["# fish completion for specswap; to use it: ./specswap completion fish | source"]
    for name, (text, follow) in table.items():
        if not name:
            continue
        about = text.replace("'", "")
        lines.append(f"complete -c specswap -n __fish_use_subcommand -f -a {name} -d '{about}'")
        for word in follow:
            kind = f"-l {word[2:]}" if word.startswith("--") else f"-f -a {word}"
            lines.append(f"complete -c specswap -n '__fish_seen_subcommand_from {name}' {kind}")
    return "\n".join(lines) + "\n"
