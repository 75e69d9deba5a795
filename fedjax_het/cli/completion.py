"""Tab completion of the console command: `fedjax-het --completion bash` prints a script for the shell to read."""

import contextlib
import io
import re
from collections.abc import Callable, Iterable, Sequence

from fedjax_het.cli.configuration.command_line import with_exit_status
from fedjax_het.cli.configuration.config_files import embedded_configs
from fedjax_het.errors import InputError, nearest

_SCRIPT = r"""_fedjax_het() {
    local current="${COMP_WORDS[COMP_CWORD]}" before="${COMP_WORDS[COMP_CWORD - 1]}" choices="" prefix=""
    if [ "$current" = "=" ]; then  # bash takes --config=quick as three words, and zsh as one
        current=""
    elif [ "$before" = "=" ]; then
        before="${COMP_WORDS[COMP_CWORD - 2]}"
    fi
    case "$current" in
        --config=*) before=--config prefix=--config= current="${current#*=}" ;;
    esac
    case "$before $current" in
        "--config "*) choices="<CONFIGS>" ;;
        --*" "-* | [!-]*) case "$COMP_CWORD ${COMP_WORDS[1]} ${COMP_WORDS[2]-} " in
            "1 "*) choices="<COMMANDS>" ;;
<FLAGS>
        esac ;;
    esac
    COMPREPLY=($(compgen -P "$prefix" -W "$choices" -- "$current"))
}
complete -o default -F _fedjax_het fedjax-het
"""
_ZSH = "autoload -Uz compinit bashcompinit && compinit && bashcompinit\n"


@with_exit_status()
def main(shell: str, commands: Iterable[str], run: Callable[[Sequence[str]], int]) -> int:
    """Print the script that completes the commands, their flags and the embedded configs; return the exit status.

    Args:
        shell: "bash" or "zsh".
        commands: The names of the commands.
        run: Runs a command, given its arguments. The flags are those of its usage.
    """
    if shell not in ("bash", "zsh"):
        raise InputError(f"--completion: unknown shell '{shell}'. {nearest(shell, ('bash', 'zsh'))}")
    flags = "\n".join(f'            *" {name} "*) choices="{_find_flags(name, run)}" ;;' for name in commands)
    parts = {
        "CONFIGS": [name for name in embedded_configs() if ":" not in name],
        "COMMANDS": [*commands, "--completion", "--help", "--version"],
    }
    script = _SCRIPT.replace("<FLAGS>", flags)
    for part, names in parts.items():
        script = script.replace(f"<{part}>", " ".join(names))
    print(script if shell == "bash" else _ZSH + script, end="")
    return 0


def _find_flags(command: str, run: Callable[[Sequence[str]], int]) -> str:
    usage = io.StringIO()
    with contextlib.redirect_stdout(usage), contextlib.suppress(SystemExit):
        run([command, "--help"])
    return " ".join(["--help", *re.findall(r"--\w+", usage.getvalue().split("\n\n")[0])])
