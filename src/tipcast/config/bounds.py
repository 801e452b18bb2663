"""Fields of the schemas whose numbers have bounds, and the check of a value."""

import dataclasses
import math
from typing import Any

from tipcast.config.errors import must_be

# OmegaConf's sign of a value that must be given; workers load this without OmegaConf
MISSING: Any = "???"


def bounded(
    least: float | None = None,
    *,
    above: float | None = None,
    below: float | None = None,
    default: Any = MISSING,
) -> Any:
    """Return a field of numbers within bounds.

    They are at least ``least``, or above ``above``, and below ``below``. None passes.
    """
    return dataclasses.field(
        default=default, metadata={"least": least, "above": above, "below": below}
    )


def check_bounds(field: dataclasses.Field[Any], value: Any, where: str) -> None:
    """Refuse a number outside the bounds of its field, if it has any.

    Raises C003, which names the key ``where`` and the bounds.
    """
    if value is None or not field.metadata:
        return

    least, above, below = (field.metadata[name] for name in ("least", "above", "below"))
    wanted = f"at least {least}" if below is None else f"{least} to below {below}"
    if above is not None:
        least = math.nextafter(above, math.inf)
        wanted = f"above {above}"

    if not least <= value < (math.inf if below is None else below):  # nan is neither
        raise must_be(where, wanted, value, "use a number within these bounds")
