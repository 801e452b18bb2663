"""Fields of the schemas whose numbers have bounds, and the check of a value."""

import dataclasses
import math
from typing import Any

from tipcast.config.errors import must_be

MISSING: Any = "???"
"""OmegaConf's sign of a value that must be set; workers load this module without OmegaConf."""


def bounded(
    least: float | None = None,
    *,
    above: float | None = None,
    below: float | None = None,
    default: Any = MISSING,
) -> Any:
    """Return a field whose numbers must be within bounds.

    The bounds are at least ``least``, or above ``above``, and below ``below``. None passes.
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

    least = field.metadata["least"]
    above = field.metadata["above"]
    below = field.metadata["below"]
    rule = f"at least {least}"

    if below is None:
        below = math.inf
    else:
        rule = f"at least {least} and below {below}"
    if above is not None:
        least = math.nextafter(above, math.inf)
        rule = f"above {above}"

    if not least <= value < below:  # nan is neither
        raise must_be(where, rule, value, "use a number within these bounds")
