"""Names in YAML are read as the same text, by programs of YAML 1.1 such as Ansible, and by ours."""

from __future__ import annotations

import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from fedquilt_common.files.yaml_text import dump_yaml, dump_yaml_1_1, load_yaml
from fedquilt_common.wire.topics import NAME


@given(st.from_regex(NAME, fullmatch=True) | st.from_regex("[0-9][0-9a-fox.eE_-]{0,5}", fullmatch=True))
@example("1e3")
@example("0o17")
@example("no")
@example("1_000")
def test_a_name_is_the_same_text_in_both_versions(name: str) -> None:
    for data in ({name: None}, {"name": name}, [name]):
        older = dump_yaml_1_1(data)
        assert yaml.safe_load(older) == load_yaml(older, "older") == load_yaml(dump_yaml(data), "ours") == data
