"""Keeps torch.compile away from this package. Between two compiled pieces torch's C++ calls a group (DDP's reducer
does); torch.compile would trace the Python code there, where other backends have C++, and fail."""
from __future__ import annotations

import sys

from .places import HERE


def keep_eager() -> None:
    """Called once all modules are imported. What compiled code itself calls (all_reduce_) is traced all the same."""
    try:
        from torch._C._dynamo.eval_frame import _FrameAction, _FrameExecStrategy, set_code_exec_strategy
    except ImportError:  # not a stable interface; without it only compiled training suffers
        return
    skip = _FrameExecStrategy(_FrameAction.SKIP, _FrameAction.SKIP)
    for module in [module for name, module in sys.modules.items() if name.startswith(f"{__package__}.")]:
        for value in list(vars(module).values()):
            for function in vars(value).values() if isinstance(value, type) else (value,):
                code = getattr(function, "__code__", None)
                if code is not None and code.co_filename.startswith(HERE):
                    set_code_exec_strategy(code, skip)
