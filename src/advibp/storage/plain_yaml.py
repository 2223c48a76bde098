"""YAML as plain data, from files that nobody has to trust."""

from __future__ import annotations

from typing import Any

import yaml


class _Plain(yaml.SafeLoader):
    """YAML without aliases: a kilobyte of them unfolds to gigabytes, or holds itself."""

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("it has an alias, which recipes have not")
        return super().compose_node(parent, index)


def from_yaml(text: str) -> Any:
    """What a YAML file says, or a yaml.YAMLError."""
    try:
        return yaml.load(text, Loader=_Plain)
    except ValueError as error:  # a date that is none, a number of thousands of digits
        raise yaml.YAMLError(str(error)) from error
    except RecursionError:
        raise yaml.YAMLError("it is nested too deeply") from None
