"""The client half of an algorithm, checked: what it returns and stores can be written and sent.

The coordinator receives the reason of a failure, so a reason never shows a client's numbers.
"""

from __future__ import annotations

from typing import Final

from fedquilt_common.algorithm_api import Algorithm, ClientContext, Reply, Task
from fedquilt_common.algorithm_api.array_types import array_types_problem, mapping_problem, name_type
from fedquilt_common.errors import AlgorithmError

_NO_REPLY: Final = "return a Reply, such as `Reply(trained.arrays, len(ctx.data), {'loss': trained.loss})`"
_METRICS: Final = "metrics are numbers by name, such as `{'loss': 0.5}`"


def do_work(name: str, algorithm: Algorithm, task: Task, ctx: ClientContext) -> Reply:
    """Let an algorithm do a task, and return its reply.

    Args:
        name: the algorithm's name in the experiment.
        algorithm: whose ``work`` does the task.
        task: what the client received.
        ctx: of the task; its memory is checked if the algorithm has used it.

    Raises:
        AlgorithmError: the reply or the memory cannot be written or sent.
    """
    reply = algorithm.work(task, ctx)
    problem = _reply_problem(reply) or array_types_problem(vars(ctx).get("memory", {}), "ctx.memory", name_type)
    if problem:
        raise AlgorithmError(f"{name}.work, task '{task.kind}': {problem}")
    return reply


def _reply_problem(reply: object) -> str:
    if not isinstance(reply, Reply):
        return f"returned {name_type(reply)}; {_NO_REPLY}"
    if not _is_number(reply.weight):
        return f"Reply.weight is {name_type(reply.weight)}; use a number, such as `len(ctx.data)`"
    return array_types_problem(reply.arrays, "Reply.arrays", name_type) or mapping_problem(
        reply.metrics, "Reply.metrics", _is_number, _METRICS, name_type
    )


def _is_number(value: object) -> bool:
    """Return whether it is a number: one of Python or numpy, or a tensor or an array with a single one."""
    try:
        float(value)  # type: ignore[arg-type]  # to find out is the purpose
    except (TypeError, ValueError):
        return False
    return not isinstance(value, str)
