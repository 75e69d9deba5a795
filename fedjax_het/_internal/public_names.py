"""Names that a module shows to `dir` and to completion: those that it defines, without its imports."""

import ast
import functools
import inspect
from types import ModuleType


def show_public_names(module: ModuleType) -> None:
    """Let `dir(module)` list its `__all__`, or else the public names that it defines."""
    module.__dict__["__dir__"] = functools.partial(_list_public_names, module)


def _list_public_names(module: ModuleType) -> list[str]:
    if (listed := getattr(module, "__all__", None)) is not None:
        return list(listed)
    names = []
    for node in ast.parse(inspect.getsource(module)).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.append(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names += [target.id for target in targets if isinstance(target, ast.Name)]
    return [name for name in names if not name.startswith("_")]
