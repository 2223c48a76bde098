"""Parse YAML from untrusted files as plain data."""

from __future__ import annotations

from typing import Any

import yaml


class _PlainLoader(yaml.SafeLoader):
    """Refuses aliases: with them, a small file can expand to gigabytes or contain itself."""

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("it has an alias, which recipes may not have")
        return super().compose_node(parent, index)


def from_yaml(text: str) -> Any:
    """Parse YAML.

    Raises:
        yaml.YAMLError: the text is not valid YAML, has an alias, or is nested too deeply.
    """
    try:
        return yaml.load(text, Loader=_PlainLoader)
    except ValueError as error:  # an invalid date, or a number with thousands of digits
        raise yaml.YAMLError(str(error)) from error
    except RecursionError:
        raise yaml.YAMLError("it is nested too deeply") from None
